"""Starts real servers for the system tests: the built program on loopback. Each is ended by its process ID."""

import os
import pathlib
import re
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
        help="the store behind the shared server; with an upstream, only the tests that use it are run")


def pytest_collection_modifyitems(config, items):
    """With an upstream, runs only the tests that depend on it. Tests of features that it does not have must fail."""
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
    raise AssertionError(f"{what() if callable(what) else what} did not come true within {timeout} s")


@pytest.fixture(scope="session", autouse=True)
def no_secret_in_any_log():
    """At the end of a run, checks that no server has logged a secret that a test made or sent."""
    yield
    found = [(str(log), *leak) for log in sorted(Server.logs) for leak in secret_words.leaks(log.read_text(errors="replace"))]
    assert not found, found[:20]
    print(f"none of {len(secret_words.WORDS)} secret words is in the {len(Server.logs)} logs")


#: KiB by which a server's resident memory may grow during a test, because the allocator keeps freed memory.
RESIDUE = 16 * 1024 * (8 if os.environ.get("SANITIZER") else 1)
#: Test modules of attacks, faults and protocols, after which a server must have no objects or memory left.
LEAVES_NOTHING = re.compile(r"test_(attacks|ends|faults|http1|http2|upstream_faults)")


@pytest.fixture(autouse=True)
def nothing_stays(request):
    """After each test of these modules, checks that no server has live objects and that its memory has not grown."""
    if not LEAVES_NOTHING.match(request.node.path.name):
        yield
        return
    # Set up `launch` first, so that its servers still run when this fixture ends.
    request.getfixturevalue("launch")
    before = {server: server.status("VmRSS") for server in Server.running()}
    yield
    for server in Server.running():
        wait_until(lambda: not server.live(), what=lambda: f"the end of {server.live()}")
        wait_until(lambda: server.status("VmRSS") - before.get(server, server.resident) < RESIDUE,
                   what=lambda: f"less than {server.status('VmRSS')} KiB of memory, before {before.get(server)}")


def new_token(name):
    """Makes a static token; returns the token and its line of the configuration."""
    done = subprocess.run([str(BINARY), "token", "new", name], capture_output=True, text=True, check=True)
    first, entry = done.stderr.splitlines()
    assert first == "tokens:"
    return secret_words.secret(done.stdout.strip()), entry


class Server:
    """A `sluice serve` process with a bucket `photos` in `directory`. `extra` is YAML added to its configuration."""

    #: The logs of all servers of the run.
    logs = set()
    started = []

    @classmethod
    def running(cls):
        """The servers that have not ended."""
        cls.started = [server for server in cls.started if server.process.poll() is None]
        return cls.started

    def __init__(self, directory, extra="", buckets=None, threads=1, tls=True, environment=None,
                 ready=200, arguments=(), rules="none"):
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
            [str(BINARY), "serve", "--config", str(self.config), *self.arguments],
            stdout=self.log, stderr=self.log, env={**os.environ, **self.environment},
        )
        wait_until(self.ready, what="the server")
        #: Resident memory after the start, in KiB.
        self.resident = self.status("VmRSS")
        if self not in Server.started:
            Server.started.append(self)

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
        return f"{scheme}://127.0.0.1:{self.http if scheme == 'http' else self.https}{path}"


@pytest.fixture(scope="session")
def upstream(request, tmp_path_factory):
    """The server behind the gateway; None for a directory."""
    name = request.config.getoption("--upstream")
    if name == upstreams.DIRECTORY:
        yield None
        return
    running = upstreams.UPSTREAMS[name](tmp_path_factory.mktemp("upstream"))
    yield running
    running.stop()


@pytest.fixture(scope="session")
def store(upstream):
    """The configuration of an empty store for a bucket: `store(directory, "photos")`. An upstream's bucket gets a unique
    name, because another server may already use the name."""
    def describe(directory, name):
        if upstream is None:
            return f"directory: {{ path: {directory}/{name} }}"
        describe.buckets[name] = f"{name}-{next(wire_client.NUMBERS)}"
        upstream.make_bucket(describe.buckets[name])
        return upstream.store(bucket=describe.buckets[name])

    #: The upstream's bucket name for the latest store of each bucket.
    describe.buckets = {}
    return describe


@pytest.fixture(scope="session")
def server(tmp_path_factory, store, upstream):
    """The server that the tests of a run share."""
    directory = tmp_path_factory.mktemp("shared")
    running = Server(directory, buckets=f"  photos: {{ {store(directory, 'photos')} }}\n")
    #: The upstream's name of the bucket.
    running.bucket = store.buckets.get("photos")
    yield running
    assert running.stop() == 0, running.output()


@pytest.fixture
def launch(tmp_path):
    """Starts servers for one test: `launch(extra="limits: …")`."""
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
    """The address for the protocol tests, and objects that exist there."""

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
    """The shared server, or the server at SLUICE_TARGET and SLUICE_TARGET_TLS (host:port)."""
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
    """A raw HTTP/2 connection after the exchange of SETTINGS."""
    return connect().handshake()


@pytest.fixture(params=list(wire_client.TRANSPORTS))
def wire(request, server):
    """A client of the shared server. The test runs with each transport."""
    return wire_client.Wire(server, request.param)


@pytest.fixture
def http1(server):
    """A client of the shared server over HTTP/1.1, for tests whose result does not depend on the transport."""
    return wire_client.Wire(server)


@pytest.fixture
def folder():
    """A folder that no other test uses."""
    return wire_client.unique()
