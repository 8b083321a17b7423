"""Fixtures and options of the end-to-end tests: servers, clients and connections."""

import os
import re
import signal
import subprocess

import pytest

import known_limits
import secret_words
import upstreams
import wire as wire_client
from http2_peer import Peer
from program import Server, curl, wait_until

# Programs inherit signals that are ignored, as by nohup(1) and in background jobs of a shell, and leave them so.
for number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)


def pytest_addoption(parser):
    parser.addoption(
        "--upstream", default=upstreams.DIRECTORY, choices=[upstreams.DIRECTORY, *upstreams.UPSTREAMS],
        help="the store behind the shared server; with an upstream, only the tests that use it are run")


#: Modules that take minutes. They begin first, so that none is left to one worker when all others have ended.
SLOW = ("test_uploads_s3_faults.py", "test_uploads_full_disk.py", "test_rolling_update.py", "test_rules.py")


def pytest_collection_modifyitems(config, items):
    """With an upstream, runs only the tests that depend on it. Tests of features that it does not have must fail."""
    items.sort(key=lambda item: SLOW.index(item.path.name) if item.path.name in SLOW else len(SLOW))
    name = config.getoption("--upstream")
    if name == upstreams.DIRECTORY:
        return
    kept = [item for item in items if "upstream" in item.fixturenames
            and (item.path.parent.name not in ("uploads", "firebase", "s3") or name in known_limits.SESSIONS)]
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept
    for item in items:
        reason = known_limits.reason(name, item.nodeid)
        if reason:
            item.add_marker(pytest.mark.xfail(reason=reason, strict=True))


@pytest.fixture(scope="session", autouse=True)
def no_secret_in_any_log():
    """At the end of a run, checks that no server has logged a secret that a test made or sent."""
    yield
    found = [(str(log), *leak) for log in sorted(Server.logs) for leak in secret_words.leaks(log.read_text(errors="replace"))]
    assert not found, found[:20]
    print(f"none of {len(secret_words.WORDS)} secret words is in the {len(Server.logs)} logs")


#: KiB by which a server's memory may grow during a test, because the allocator keeps freed memory. Code is not counted.
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
    before = {server: server.status("RssAnon") for server in Server.running()}
    yield
    for server in Server.running():
        wait_until(lambda: not server.live(), what=lambda: f"the end of {server.live()}")
        wait_until(lambda: server.status("RssAnon") - before.get(server, server.resident) < RESIDUE,
                   what=lambda: f"less than {server.status('RssAnon')} KiB of memory, before {before.get(server)}")


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


@pytest.fixture
def mounted(tmp_path):
    """Mounts disks for one test: a function of the size and of further options of mount(8). Returns the path."""
    paths = []

    def mount(size, *options):
        path = tmp_path / f"disk{len(paths)}"
        path.mkdir()
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", ",".join([f"size={size}", *options]), "tmpfs", str(path)],
                              capture_output=True)
        if done.returncode != 0:
            pytest.skip(f"a tmpfs can't be mounted: {done.stderr.decode().strip()}")
        paths.append(path)
        return path

    yield mount
    for path in paths:
        if path.is_mount():
            subprocess.run(["umount", "--lazy", str(path)], check=True)


@pytest.fixture
def disk(mounted):
    """A disk of 8 MiB for one test."""
    return mounted("8m")


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
