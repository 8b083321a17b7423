"""Starts real servers for the system tests: the built program on loopback, each ended by its process id."""

import os
import pathlib
import signal
import subprocess
import time
import urllib.error
import urllib.request

import pytest

import known_limits
import secret_words
import upstreams
import wire as wire_client
from http2_peer import Peer
from upstreams import free_port

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = pathlib.Path(os.environ.get("SLUICE", ROOT / ".build" / "debug" / "sluice"))


def pytest_addoption(parser):
    parser.addoption(
        "--upstream", default=upstreams.DIRECTORY, choices=[upstreams.DIRECTORY, *upstreams.UPSTREAMS],
        help="what is behind the shared server; of the tests, those run that ask it something")


def pytest_collection_modifyitems(config, items):
    """With an upstream behind the gateway only what depends on it is run, and what it can't do must fail."""
    name = config.getoption("--upstream")
    if name == upstreams.DIRECTORY:
        return
    kept = [item for item in items if "upstream" in item.fixturenames]
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept
    for item in items:
        reason = known_limits.reason(name, item.nodeid)
        if reason:
            item.add_marker(pytest.mark.xfail(reason=reason, strict=True))


def wait_until(condition, timeout=20, what="condition"):
    """Polls until `condition()` is true; fails after `timeout` seconds."""
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.01)
    raise AssertionError(f"{what} did not come true within {timeout} s")


@pytest.fixture(scope="session", autouse=True)
def no_secret_in_any_log():
    """At the end of a run: what its tests made and sent of secrets is in no line that any of its servers printed."""
    yield
    found = [(str(log), *leak) for log in sorted(Server.logs) for leak in secret_words.leaks(log.read_text(errors="replace"))]
    assert not found, found[:20]
    print(f"{len(secret_words.WORDS)} words of secrets are in none of {len(Server.logs)} logs")


def new_token(name):
    """Makes a static token: what the caller shows, and its line of the configuration."""
    done = subprocess.run([str(BINARY), "token", "new", name], capture_output=True, text=True, check=True)
    first, entry = done.stderr.splitlines()
    assert first == "tokens:"
    return secret_words.secret(done.stdout.strip()), entry


class Server:
    """One `sluice serve` with a bucket `photos` in `directory`, plus whatever `extra` YAML adds."""

    #: Of all servers of the run.
    logs = set()

    def __init__(self, directory, extra="", buckets=None, threads=1, tls=True, environment=None,
                 ready=200, arguments=()):
        self.directory = pathlib.Path(directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        self.http, self.https, self.operator = free_port(), free_port(), free_port()
        if buckets is None:
            buckets = f"  photos: {{ directory: {{ path: {self.directory}/photos }} }}\n"
        https = f"  https: {{ address: 127.0.0.1:{self.https}, certificate: self-signed }}\n"
        self.config = self.directory / "sluice.yaml"
        self.config.write_text(
            f"listen:\n  http: 127.0.0.1:{self.http}\n{https if tls else ''}"
            f"  operator: 127.0.0.1:{self.operator}\n"
            f"threads: {threads}\nrules: none\nbuckets:\n{buckets}{extra}"
        )
        self.environment = environment or {}
        self.arguments = arguments
        #: What /readyz answers as soon as the server has started.
        self.first = ready
        self.process = None
        self.start()

    def start(self):
        self.log = open(self.directory / "server.log", "ab")
        Server.logs.add(self.directory / "server.log")
        self.process = subprocess.Popen(
            [str(BINARY), "serve", "--config", str(self.config), *self.arguments],
            stdout=self.log, stderr=self.log, env={**os.environ, **self.environment},
        )
        wait_until(self.ready, what="the server")

    def ready(self):
        if self.process.poll() is not None:
            raise AssertionError(f"the server ended:\n{self.output()}")
        try:
            url = f"http://127.0.0.1:{self.operator}/readyz"
            with urllib.request.urlopen(url, timeout=5) as answer:
                return answer.status == self.first
        except urllib.error.HTTPError as error:
            return error.code == self.first
        except OSError:
            return False

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
        url = f"http://127.0.0.1:{self.operator}/metrics"
        with urllib.request.urlopen(url, timeout=5) as answer:
            lines = answer.read().decode().splitlines()
        return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1])
                for line in lines if line and not line.startswith("#")}

    def status(self, field):
        """A field of /proc/PID/status in KiB."""
        for line in open(f"/proc/{self.process.pid}/status"):
            if line.startswith(field + ":"):
                return int(line.split()[1])
        raise KeyError(field)

    def url(self, path, scheme="http"):
        return f"{scheme}://127.0.0.1:{self.http if scheme == 'http' else self.https}{path}"


@pytest.fixture(scope="session")
def upstream(request, tmp_path_factory):
    """What is behind the gateway; None where that is a directory."""
    name = request.config.getoption("--upstream")
    if name == upstreams.DIRECTORY:
        yield None
        return
    running = upstreams.UPSTREAMS[name](tmp_path_factory.mktemp("upstream"))
    yield running
    running.stop()


@pytest.fixture(scope="session")
def store(upstream):
    """The configuration of an empty store for a bucket: `store(directory, "photos")`. In an upstream the bucket's own
    name may be taken by another server's, so it gets one that is not."""
    def describe(directory, name):
        if upstream is None:
            return f"directory: {{ path: {directory}/{name} }}"
        describe.buckets[name] = f"{name}-{next(wire_client.NUMBERS)}"
        upstream.make_bucket(describe.buckets[name])
        return upstream.store(bucket=describe.buckets[name])

    #: The upstream's names of the latest.
    describe.buckets = {}
    return describe


@pytest.fixture(scope="session")
def server(tmp_path_factory, store, upstream):
    """A server that the tests of a run share."""
    directory = tmp_path_factory.mktemp("shared")
    running = Server(directory, buckets=f"  photos: {{ {store(directory, 'photos')} }}\n")
    #: The upstream's name for it.
    running.bucket = store.buckets.get("photos")
    yield running
    assert running.stop() == 0, running.output()


@pytest.fixture
def launch(tmp_path):
    """Starts servers of a test's own: `launch(extra="limits: …")`."""
    started = []

    def start(**options):
        running = Server(tmp_path / f"s{len(started)}", **options)
        started.append(running)
        return running

    yield start
    for running in started:
        running.stop(signal.SIGKILL)


def curl(*arguments, check=True):
    """Runs curl; returns its standard output as bytes."""
    done = subprocess.run(["curl", "-sS", "--max-time", "60", *arguments], capture_output=True)
    if check and done.returncode != 0:
        raise AssertionError(f"curl {arguments}: {done.returncode} {done.stderr.decode()}")
    return done.stdout


class Target:
    """Where the protocol tests connect to, and an object there that has a body."""

    path = "/b/photos/o/conformance.txt"
    body = b"Quercus robur, thirty metres tall.\n"
    large = "/b/photos/o/conformance.large"
    large_size = 200_000

    def __init__(self, clear, tls):
        self.clear, self.tls = clear, tls

    def address(self, transport):
        return self.clear if transport == "h2c" else self.tls


@pytest.fixture(scope="session")
def target(request, tmp_path_factory):
    """The shared server, or the one that SLUICE_TARGET and SLUICE_TARGET_TLS (host:port) name."""
    def parsed(text):
        host, port = text.rsplit(":", 1)
        return host, int(port)

    if "SLUICE_TARGET" in os.environ:
        where = Target(parsed(os.environ["SLUICE_TARGET"]),
                       parsed(os.environ.get("SLUICE_TARGET_TLS", os.environ["SLUICE_TARGET"])))
    else:
        server = request.getfixturevalue("server")
        where = Target(("127.0.0.1", server.http), ("127.0.0.1", server.https))
    file = tmp_path_factory.mktemp("target") / "body"
    file.write_bytes(where.body)
    curl("--fail", "-T", str(file), "http://%s:%d%s" % (*where.clear, where.path))
    file.write_bytes(bytes(where.large_size))
    curl("--fail", "-T", str(file), "http://%s:%d%s" % (*where.clear, where.large))
    return where


@pytest.fixture(params=["h2c", "tls"])
def connect(request, target):
    """Opens raw HTTP/2 connections, without a handshake: `connect().handshake()`."""
    opened = []

    def start():
        peer = Peer(target.address(request.param), tls=request.param == "tls")
        opened.append(peer)
        return peer

    yield start
    for peer in opened:
        peer.close()


@pytest.fixture
def peer(connect):
    """A raw HTTP/2 connection whose SETTINGS are exchanged."""
    return connect().handshake()


@pytest.fixture(params=list(wire_client.TRANSPORTS))
def wire(request, server):
    """A client of the shared server, over each transport in turn."""
    return wire_client.Wire(server, request.param)


@pytest.fixture
def http1(server):
    """A client of the shared server over HTTP/1.1, for what no transport can make different."""
    return wire_client.Wire(server)


@pytest.fixture
def folder():
    """A folder that no other test uses."""
    return wire_client.unique()
