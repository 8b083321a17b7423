"""Runs the built program and waits for what it does. Each server is ended by its process ID."""

import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import time
import urllib.error
import urllib.request

import secret_words
from upstreams import free_port

ROOT = pathlib.Path(__file__).resolve().parents[3]
BINARY = pathlib.Path(os.environ.get("SLUICE", ROOT / ".build" / "debug" / "sluice"))


def wait_until(condition, timeout=20, what="condition"):
    """Polls until `condition()` is true; fails after `timeout` seconds."""
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.01)
    raise AssertionError(f"{what() if callable(what) else what} did not come true within {timeout} s")


def descriptors(server):
    """The number of the program's open sockets and files. Those of event loops and timers are left out, because some are
    made after the start."""
    folder, count = f"/proc/{server.process.pid}/fd", 0
    for descriptor in os.listdir(folder):
        with contextlib.suppress(FileNotFoundError):
            count += not os.readlink(f"{folder}/{descriptor}").startswith("anon_inode:")
    return count


def curl(*arguments, check=True):
    """Runs curl; returns its standard output as bytes."""
    done = subprocess.run(["curl", "-sS", "--max-time", "60", *arguments], capture_output=True)
    if check and done.returncode != 0:
        raise AssertionError(f"curl {arguments}: {done.returncode} {done.stderr.decode()}")
    return done.stdout


def new_token(name):
    """Makes a static token; returns the token and its line of the configuration."""
    done = subprocess.run([str(BINARY), "token", "new", name], capture_output=True, text=True, check=True)
    first, entry = done.stderr.splitlines()
    assert first == "tokens:"
    return secret_words.secret(done.stdout.strip()), entry


class Server:
    """A `sluice serve` process with a bucket `photos` in `directory`. `extra` is YAML added to its configuration, `namespace`
    the network namespace that it runs in."""

    #: The logs of all servers of the run.
    logs = set()
    started = []
    #: Its address, and a command where it runs.
    host, inside = "127.0.0.1", staticmethod(lambda *command: command)

    @classmethod
    def running(cls):
        """The servers that have not ended."""
        cls.started = [server for server in cls.started if server.process.poll() is None]
        return cls.started

    def __init__(self, directory, extra="", buckets=None, threads=1, tls=True, environment=None,
                 ready=200, arguments=(), rules="none", namespace=None, s3=False):
        self.directory = pathlib.Path(directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        if namespace:
            self.host, self.inside = namespace.address, namespace.inside
        self.http, self.https, self.operator = free_port(), free_port(), free_port()
        if buckets is None:
            buckets = f"  photos: {{ directory: {{ path: {self.directory}/photos }} }}\n"
        #: The port of the S3 listener, if there is one, and of its TLS listener.
        self.s3, self.s3_tls = (free_port(), free_port()) if s3 else (None, None)
        listeners = f"  s3: {{ http: {self.host}:{self.s3}, https: {self.host}:{self.s3_tls} }}\n" if s3 else ""
        https = f"  https: {{ address: {self.host}:{self.https}, certificate: self-signed }}\n"
        self.config = self.directory / "sluice.yaml"
        self.config.write_text(
            f"listen:\n  http: {self.host}:{self.http}\n{https if tls else ''}"
            f"{listeners}  operator: {self.host}:{self.operator}\n"
            f"threads: {threads}\nrules: {rules}\nbuckets:\n{buckets}{extra}"
        )
        self.environment = environment or {}
        self.arguments = arguments
        #: The status of /readyz when the server has started.
        self.first = ready
        self.process = None
        self.start()

    def start(self):
        self.log = open(self.directory / "server.log", "ab")
        Server.logs.add(self.directory / "server.log")
        self.process = subprocess.Popen(
            self.inside(str(BINARY), "serve", "--config", str(self.config), *self.arguments),
            stdout=self.log, stderr=self.log, env={**os.environ, **self.environment},
        )
        wait_until(self.ready, what="the server")
        #: Memory of its own after the start, in KiB. Code is left out, which is resident when it runs.
        self.resident = self.status("RssAnon")
        if self not in Server.started:
            Server.started.append(self)

    def ready(self):
        if self.process.poll() is not None:
            raise AssertionError(f"the server ended:\n{self.output()}")
        try:
            url = f"http://{self.host}:{self.operator}/readyz"
            with urllib.request.urlopen(url, timeout=5) as response:
                return response.status == self.first
        except urllib.error.HTTPError as error:
            return error.code == self.first
        except OSError:
            return False

    def readiness(self):
        """The status and the text of /readyz?verbose."""
        try:
            with urllib.request.urlopen(f"http://{self.host}:{self.operator}/readyz?verbose", timeout=60) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def output(self):
        return (self.directory / "server.log").read_text(errors="replace")

    def stop(self, how=signal.SIGTERM, timeout=40):
        """Ends the process; returns its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(how)
        status = self.process.wait(timeout)
        self.log.close()
        return status

    def metrics(self):
        """The samples of /metrics by name with labels."""
        url = f"http://{self.host}:{self.operator}/metrics"
        with urllib.request.urlopen(url, timeout=60) as response:
            lines = response.read().decode().splitlines()
        return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1])
                for line in lines if line and not line.startswith("#")}

    def live(self):
        """Live connections, streams and upstream requests, without this request itself."""
        found = {}
        for name, value in self.metrics().items():
            if name.startswith('sluice_live_objects{listener="operator"'):
                value -= 1
            elif not re.match(r"sluice_(live_objects|streams_live|connections_open|upstream_requests_(in_flight|queued))", name):
                continue
            if value:
                found[name] = value
        return found

    def status(self, field):
        """A field of /proc/PID/status in KiB."""
        for line in open(f"/proc/{self.process.pid}/status"):
            if line.startswith(field + ":"):
                return int(line.split()[1])
        raise KeyError(field)

    def url(self, path, scheme="http"):
        return f"{scheme}://{self.host}:{self.http if scheme == 'http' else self.https}{path}"


def status(*arguments):
    """Runs curl; returns the status of the response."""
    return int(curl("-o", os.devnull, "-w", "%{http_code}", *arguments))


def sluice(*arguments, environment=None):
    """Runs the program to its end; returns status, standard output and standard error."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SLUICE_")}
    done = subprocess.run([str(BINARY), *map(str, arguments)], capture_output=True, text=True,
                          timeout=60, env={**clean, **(environment or {})})
    return done.returncode, done.stdout, done.stderr


def log_lines(server, logger="sluice.decisions"):
    """The log lines of a logger, parsed."""
    found = [json.loads(line) for line in server.output().splitlines() if line.startswith("{")]
    return [line for line in found if line.get("logger") == logger]
