"""Bounds of resident memory, independent of the size and number of transfers. Figures are printed with -s.

The bounds are for a release build (SLUICE names it), and are applied to a debug build too. MEMORY_FULL=1 uses
objects of 1 GiB for the hundred transfers too.
"""

import concurrent.futures
import contextlib
import os
import resource
import socket
import struct
import subprocess
import time

import pytest

import http2_peer as http2
import raw
import wire
from bounds import BOUND, DOWNLOAD, MIB, SESSIONS, UPLOAD, a_hundred_appends, held, many, sparse
from program import curl, wait_until
from sessions import begin_parts

pytestmark = pytest.mark.skipif("SANITIZER" in os.environ, reason="sanitizers keep what was freed")
IDLE = int(os.environ.get("IDLE_CONNECTIONS", "2000"))


@pytest.fixture(autouse=True)
def descriptors():
    """Enough descriptors for two thousand connections in this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def calm(launch):
    """A server with long timeouts for stalled peers."""
    return launch(extra="limits: { idleTimeout: 10m, progressInterval: 10m }\n", threads=2)


def test_after_the_start(launch, report):
    begin = time.monotonic()
    server = launch()
    took = time.monotonic() - begin
    rss = server.status("VmRSS")
    report(f"{rss / 1024:.1f} MiB, of them {server.status('RssAnon') / 1024:.1f} anonymous; ready after {took * 1000:.0f} ms")
    assert rss <= BOUND


@pytest.mark.parametrize("protocol", ["--http1.1", "--http2-prior-knowledge", "--http2"])
def test_one_gibibyte_up_and_down(launch, tmp_path, report, protocol):
    server = launch(tls=protocol == "--http2")
    url = server.url("/b/photos/o/large", "https" if protocol == "--http2" else "http")
    source = sparse(tmp_path / "source", 1024 * MIB)
    options = [protocol, "--insecure", "--fail", "--max-time", "600"]
    curl(*options, "-T", source, url, "-o", os.devnull)
    up = server.status("VmHWM")
    size = curl(*options, url, "-o", os.devnull, "-w", "%{size_download}")
    assert size == b"1073741824"
    held(server, report, f"1 GiB up ({up / 1024:.1f} MiB) and down")


@pytest.mark.parametrize("protocol", ["--http1.1", "--http2-prior-knowledge", "--http2"])
def test_a_hundred_transfers_at_once(launch, tmp_path, report, protocol):
    server = launch(threads=2)
    scheme = "https" if protocol == "--http2" else "http"
    source = sparse(tmp_path / "source", DOWNLOAD)
    curl("--fail", "-T", source, server.url("/b/photos/o/large"), "-o", os.devnull, "--max-time", "600")
    many([[protocol, server.url("/b/photos/o/large", scheme)] for _ in range(100)])
    down = server.status("VmHWM")
    source = sparse(tmp_path / "source", UPLOAD)
    if protocol == "--http1.1":
        many([[protocol, "-T", source, server.url(f"/b/photos/o/up{number % 10}", scheme)] for number in range(100)])
    else:
        # Not curl, whose uploads over HTTP/2 spin while the window is closed.
        done = subprocess.run(["h2load", "-n100", "-c100", "-m1", "-d", source, "-H:method: PUT",
                               server.url("/b/photos/o/up", scheme)], capture_output=True, text=True, timeout=900)
        assert "100 succeeded" in done.stdout, done.stdout + done.stderr
    held(server, report, f"100 downloads ({down / 1024:.1f} MiB), 100 uploads")


@pytest.mark.parametrize("dialect", ["ietf", "tus", "firebase"])
def test_a_hundred_resumable_uploads(launch, tmp_path, report, dialect):
    server = launch(extra=SESSIONS, threads=2)
    a_hundred_appends(server, wire.Wire(server), dialect, sparse(tmp_path / "source", UPLOAD))
    held(server, report, "100 resumable uploads")


def test_a_hundred_uploads_in_parts(launch, tmp_path, report):
    server = launch(extra=SESSIONS, threads=2)
    client, source = wire.Wire(server), sparse(tmp_path / "source", UPLOAD // 2)
    uploads = [begin_parts(client, f"o{number}") for number in range(100)]
    for number in (2, 1):
        many([["-T", source, server.url(f"{upload.path}&part={number}")] for upload in uploads])
    assert all(upload.complete([1, 2]).status == 201 for upload in uploads)
    held(server, report, "100 uploads in parts")


def test_long_lists_are_not_held(launch, tmp_path, report):
    """Bodies of lists that arrive slowly from anonymous clients; most of them are refused before their end."""
    (tmp_path / "keys").touch(0o600)
    server = launch(s3=True, threads=2, extra=f"s3: {{ keys: {tmp_path}/keys }}\n")
    body = b"<Delete><Object><Key>" + bytes(2 * MIB)
    with contextlib.ExitStack() as stack:
        for _ in range(100):
            client = stack.enter_context(contextlib.closing(raw.connect(("127.0.0.1", server.s3))))
            client.sendall(b"POST /photos?delete HTTP/1.1\r\nHost: a\r\nContent-Length: 2097152\r\n"
                           b"Content-MD5: 1B2M2Y8AsgTpgAmY7PhCfg==\r\n\r\n")
            client.settimeout(1)
            with contextlib.suppress(OSError):
                client.sendall(body[:2 * MIB - 1])
        wait_until(lambda: server.output().count('"status":503') >= 80, what="refusals")
        held(server, report, "100 lists of 2 MiB")
    wait_until(lambda: server.status("VmRSS") < BOUND, what="freed memory")


def stalled_http1(server, tls):
    connection = raw.connect(("127.0.0.1", server.https if tls else server.http), receive_buffer=4096)
    if tls:
        connection = raw.encrypt(connection, ("http/1.1",))
    connection.sendall(b"GET /b/photos/o/large HTTP/1.1\r\nHost: a\r\n\r\n")
    assert connection.recv(64).startswith(b"HTTP/1.1 200")
    return connection


def windows(connection, stream=1, size=(1 << 31) - 1):
    """Opens both windows to the maximum, so that only the transport holds data back."""
    connection.send(http2.WINDOW_UPDATE, stream=0, payload=http2.word(size - 65535))


def stalled_http2(server, tls, streams=1):
    connection = http2.Peer(("127.0.0.1", server.https if tls else server.http), tls=tls)
    connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.handshake((http2.INITIAL_WINDOW_SIZE, (1 << 31) - 1), (http2.ENABLE_PUSH, 0))
    windows(connection)
    for number in range(streams):
        connection.request(stream=1 + 2 * number, path="/b/photos/o/large")
    connection.until(lambda frame: frame.type == http2.HEADERS)
    return connection


def settled(server, field="VmRSS"):
    """Waits until the memory has not changed for half a second."""
    last, since = None, time.monotonic()

    def same():
        nonlocal last, since
        now = server.status(field)
        if now != last:
            last, since = now, time.monotonic()
        return time.monotonic() - since > 0.5

    wait_until(same, 60, "a standing memory size")
    return last


@pytest.mark.parametrize("tls", [False, True], ids=["clear", "tls"])
@pytest.mark.parametrize("protocol", ["http1", "http2", "http2, ten streams each"])
def test_two_hundred_stalled_readers(calm, tmp_path, report, protocol, tls):
    curl("--fail", "-T", sparse(tmp_path / "source", 16 * MIB), calm.url("/b/photos/o/large"), "-o", os.devnull)
    opened = []
    with contextlib.ExitStack() as stack:
        for number in range(20 if "ten" in protocol else 200):
            if protocol == "http1":
                opened.append(stalled_http1(calm, tls))
            else:
                opened.append(stalled_http2(calm, tls, 10 if "ten" in protocol else 1))
            stack.callback(opened[-1].close)
        settled(calm)
        held(calm, report, "200 stalled readers of 16 MiB")
        # All are being served: each receives more once it reads.
        for connection in opened[:5]:
            transport = connection if protocol == "http1" else connection.socket
            # The kernel retries less and less often while the tiny buffer is full.
            transport.settimeout(120)
            assert transport.recv(65536)


@pytest.mark.parametrize("protocol", ["http1", "h2c"])
def test_two_hundred_slow_uploads(calm, report, protocol):
    body = bytes(60_000)
    with contextlib.ExitStack() as stack:
        for number in range(200):
            path = f"/b/photos/o/slow{number}"
            if protocol == "http1":
                connection = stack.enter_context(raw.connect(("127.0.0.1", calm.http)))
                head = f"PUT {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {16 * MIB}\r\n\r\n".encode()
                connection.sendall(head + body)
            else:
                peer = http2.Peer(("127.0.0.1", calm.http)).handshake()
                stack.callback(peer.close)
                peer.request(method="PUT", path=path, extra=[("content-length", str(16 * MIB))], end=False)
                for start in range(0, len(body), 15_000):
                    peer.send(http2.DATA, stream=1, payload=body[start:start + 15_000])
        settled(calm)
        held(calm, report, "200 slow uploads with 60,000 bytes of 16 MiB each")


def per_connection(server, report, what, opener):
    warm = [opener() for _ in range(50)]
    before = settled(server)
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        opened = list(pool.map(lambda _: opener(), range(IDLE)))
    after = settled(server)
    each = (after - before) / IDLE
    report(f"{IDLE} {what}: {each:.1f} KiB each ({before / 1024:.1f} to {after / 1024:.1f} MiB)")
    for connection in warm + opened:
        connection.close()
    return each


def test_idle_tls_connections(calm, report):
    def opener():
        return raw.encrypt(raw.connect(("127.0.0.1", calm.https)), ("http/1.1",))
    assert per_connection(calm, report, "idle TLS connections", opener) <= 32


def test_idle_http2_connections_over_tls(calm, report):
    def opener():
        return http2.Peer(("127.0.0.1", calm.https), tls=True).handshake()
    assert per_connection(calm, report, "idle TLS connections with HTTP/2", opener) <= 34


def test_idle_http2_connections_that_were_used(calm, report):
    curl("--fail", "-T", os.devnull, calm.url("/b/photos/o/empty"), "-o", os.devnull)

    def opener():
        peer = http2.Peer(("127.0.0.1", calm.https), tls=True).handshake()
        peer.request(path="/b/photos/o/empty")
        assert peer.response().status == 200
        return peer
    assert per_connection(calm, report, "used TLS connections with HTTP/2", opener) <= 44


def test_idle_connections_in_clear_text(calm, report):
    def opener():
        return http2.Peer(("127.0.0.1", calm.http)).handshake()
    assert per_connection(calm, report, "idle clear HTTP/2 connections", opener) <= 20


def test_memory_comes_back_after_a_burst(calm, tmp_path, report):
    """Ten bursts of stalled readers that disconnect: memory after the tenth is not above that after the third."""
    curl("--fail", "-T", sparse(tmp_path / "source", 16 * MIB), calm.url("/b/photos/o/large"), "-o", os.devnull)
    sizes = []
    for _ in range(10):
        opened = [stalled_http1(calm, False) for _ in range(100)]
        for connection in opened:
            # Reset instead of an orderly close.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()
        sizes.append(settled(calm))
    report("KiB after each burst: " + " ".join(map(str, sizes)))
    assert sizes[-1] <= sizes[2] + 4096


def stalled_upload(server, path, protocol):
    """An upload of 16 MiB that stops after 60,000 bytes."""
    body, address = bytes(60_000), ("127.0.0.1", server.https if protocol == "tls" else server.http)
    if protocol == "http1":
        connection = raw.connect(address)
        connection.sendall(f"PUT {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {16 * MIB}\r\n\r\n".encode() + body)
        return connection
    peer = http2.Peer(address, tls=protocol == "tls").handshake()
    peer.request(method="PUT", path=path, extra=[("content-length", str(16 * MIB))], end=False)
    for start in range(0, len(body), 15_000):
        peer.send(http2.DATA, stream=1, payload=body[start:start + 15_000])
    return peer


def test_what_stalled_peers_leave(calm, tmp_path, report):
    """Three rounds of 150 readers and 150 uploads that stall, over each protocol. What they leave is given back."""
    curl("--fail", "-T", sparse(tmp_path / "source", 16 * MIB), calm.url("/b/photos/o/large"), "-o", os.devnull)
    left, before = [], settled(calm, "RssAnon")
    for _ in range(3):
        with contextlib.ExitStack() as stack:
            for number in range(50):
                opened = [stalled_http1(calm, False), stalled_http2(calm, False), stalled_http2(calm, True)]
                opened += [stalled_upload(calm, f"/b/photos/o/slow{number}{protocol}", protocol)
                           for protocol in ("http1", "h2c", "tls")]
                for each in opened:
                    stack.callback(each.close)
            during = settled(calm, "RssAnon")
        wait_until(lambda: not calm.live(), what="the end of all connections")
        wait_until(lambda: calm.status("RssAnon") < before + 8 * 1024, 30, lambda: f"less than {calm.status('RssAnon')} KiB")
        left.append(settled(calm, "RssAnon"))
    report(f"KiB before {before}, during the last round {during}, after each round {left}")
    # Pages that hold few small objects stay; they serve the next round.
    assert max(left[1:]) <= left[0] + 2048
