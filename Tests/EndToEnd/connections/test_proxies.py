"""Behind a proxy, a Service or on a Unix domain socket: who the client is, and how the gateway leaves."""

import contextlib
import json
import os
import signal
import socket
import ssl
import stat
import struct

import pytest

from program import curl, descriptors, sluice, status, wait_until

TRUSTED = ("--set", "listen.trustedProxies=127.0.0.1")
SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
ONE = b"PROXY TCP4 192.0.2.7 127.0.0.1 4711 80\r\n"
TWO = SIGNATURE + b"\x21\x11" + struct.pack(">H4s4sHH", 12, bytes([192, 0, 2, 7]), bytes([127, 0, 0, 1]), 4711, 80)
UNEXPECTED = "unexpected PROXY header: it must come first, from a peer in listen.trustedProxies"
LOCAL = SIGNATURE + b"\x20\x00\0\0"


def lines(server, path):
    """The access lines of a path, once there is one."""
    def found():
        all_lines = [json.loads(line) for line in server.output().splitlines() if f'"{path}"' in line]
        return [line for line in all_lines if line.get("path") == path]
    return wait_until(found, what=f"an access line of {path}")


def exchange(peer, path):
    peer.settimeout(20)
    peer.sendall(f"GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".encode())
    received = b""
    while chunk := peer.recv(65536):
        received += chunk
    return received


def ended(peer):
    """Waits until the gateway has closed the connection without a response."""
    peer.settimeout(20)
    try:
        return peer.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("transport", ["--http1.1", "--http2-prior-knowledge"])
def test_a_trusted_proxy_names_the_client(launch, transport):
    server = launch(arguments=TRUSTED)
    path = "/b/photos/o/a"
    assert status(transport, "-H", "X-Forwarded-For: 6.6.6.6, 192.0.2.7", server.url(path)) == 404
    assert lines(server, path)[0]["peer"] == "192.0.2.7:0"
    path = "/b/photos/o/b"
    assert status(transport, "-H", 'Forwarded: for="[2001:db8::7]:9";proto=https', server.url(path)) == 404
    assert (lines(server, path)[0]["peer"], lines(server, path)[0]["tls"]) == ("[2001:db8::7]:9", True)


def test_an_untrusted_peer_names_nobody(launch):
    server = launch(arguments=("--set", "listen.trustedProxies=192.0.2.0/24"))
    path = "/b/photos/o/a"
    status("-H", "X-Forwarded-For: 192.0.2.7", "-H", "Forwarded: for=192.0.2.7",
           "-H", "X-Forwarded-Proto: https", server.url(path))
    line = lines(server, path)[0]
    assert line["peer"].startswith("127.0.0.1:") and not line["tls"]
    with socket.create_connection(("127.0.0.1", server.http)) as peer:
        peer.sendall(ONE)
        assert exchange(peer, path).startswith(b"HTTP/1.1 400 ")


def test_limits_count_the_client_behind_the_proxy(launch):
    server = launch(arguments=TRUSTED, extra="callers: { anonymous: { requests: 1 } }\n")
    first = [status("-H", f"X-Forwarded-For: 192.0.2.{n}", server.url("/b/photos/o/a")) for n in range(1, 9)]
    assert first == [404] * 8
    second = {status("-H", "X-Forwarded-For: 192.0.2.100", server.url("/b/photos/o/a")) for n in range(8)}
    assert 429 in second


@pytest.mark.parametrize("forged", ["for=198.51.100.9", 'for=198.51.100.9;x="'])
def test_a_client_can_not_hide_behind_a_field_that_its_proxy_does_not_write(launch, forged):
    server = launch(arguments=TRUSTED, extra="callers: { anonymous: { requests: 1 } }\n")
    found = {status("-H", "X-Forwarded-For: 192.0.2.100", "-H", f"Forwarded: {forged}", server.url("/b/photos/o/a")) for _ in range(8)}
    assert 429 in found
    line = lines(server, "/b/photos/o/a")[0]
    assert (line["peer"], line["ignored_forwarding"]) == ("192.0.2.100:0", f"Forwarded: {forged}")


def test_connections_without_a_proxy_header_are_counted_and_limited(launch):
    server = launch(arguments=TRUSTED, extra="limits: { waitingPerProxy: 5, handshakeTimeout: 1h }\n")
    waiting = lambda: server.metrics()["sluice_connections_waiting"]
    with contextlib.ExitStack() as stack:
        peers = [stack.enter_context(socket.create_connection(("127.0.0.1", server.http), 10)) for _ in range(8)]
        wait_until(lambda: server.metrics()['sluice_limit_hits_total{limit="waitingPerProxy"}'] == 3, what="the limit")
        assert waiting() == 5 and server.metrics()["sluice_connections_open"] == 0
        for raw in peers[5:]:
            assert ended(raw)
        # A header makes room for another connection; a part of one does not.
        peers[0].sendall(ONE[:6])
        peers[1].sendall(ONE)
        assert exchange(peers[1], "/b/photos/o/a").startswith(b"HTTP/1.1 404 ")
        wait_until(lambda: waiting() == 4, what="the count")
        with socket.create_connection(("127.0.0.1", server.http), 10) as more:
            assert exchange(more, "/b/photos/o/a").startswith(b"HTTP/1.1 404 ")
        assert waiting() == 4
    wait_until(lambda: waiting() == 0 and not server.live(), what="the end of all connections")


def test_the_scheme_of_the_client_is_in_urls(launch):
    server = launch(arguments=TRUSTED)
    response = curl("-i", "-X", "PUT", "-H", "Upload-Complete: ?0", "-H", "X-Forwarded-Proto: https", "-d", "x",
                    server.url("/b/photos/o/a"))
    assert b"location: https://127.0.0.1:" in response.lower()


@pytest.mark.parametrize("header, client", [(ONE, "192.0.2.7:4711"), (TWO, "192.0.2.7:4711"), (LOCAL, "127.0.0.1:"),
                                            (b"PROXY UNKNOWN\r\n", "127.0.0.1:"), (b"", "127.0.0.1:")])
@pytest.mark.parametrize("is_secure", [False, True])
def test_the_proxy_protocol(launch, header, client, is_secure):
    server = launch(arguments=TRUSTED)
    path = "/b/photos/o/a"
    with socket.create_connection(("127.0.0.1", server.https if is_secure else server.http)) as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for part in (header[:3], header[3:]):
            peer.sendall(part)
        if is_secure:
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            with context.wrap_socket(peer) as secure:
                assert exchange(secure, path).startswith(b"HTTP/1.1 404 ")
        else:
            assert exchange(peer, path).startswith(b"HTTP/1.1 404 ")
    assert lines(server, path)[0]["peer"].startswith(client)


def test_a_client_named_by_the_proxy_protocol_is_not_trusted(launch):
    server = launch(arguments=TRUSTED)
    path = "/b/photos/o/a"
    with socket.create_connection(("127.0.0.1", server.http)) as peer:
        peer.sendall(ONE)
        peer.sendall(f"GET {path} HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 6.6.6.6\r\n\r\n".encode())
        assert peer.recv(65536).startswith(b"HTTP/1.1 404 ")
    assert lines(server, path)[0]["peer"] == "192.0.2.7:4711"


@pytest.mark.parametrize("first", [b"PROXY TCP4 a b c d\r\n", SIGNATURE + b"\x31\x11\0\0", SIGNATURE + b"\x21\x11\xff\xff"])
def test_a_malformed_header_closes_the_connection(launch, first):
    server = launch(arguments=TRUSTED)
    with socket.create_connection(("127.0.0.1", server.http)) as peer:
        peer.sendall(first)
        assert ended(peer)
    line, = wait_until(lambda: [json.loads(line) for line in server.output().splitlines() if '"duration_ms"' in line],
                       what="the access line")
    assert line["status"] == 400 and line["cause"] == "malformed PROXY header" and line["peer"].startswith("127.0.0.1:")


@pytest.mark.parametrize("first, detail", [
    (ONE, UNEXPECTED),
    (TWO, UNEXPECTED),
    (b"PROXY UNKNOWN\r\n", UNEXPECTED),
    (b"PROXY / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", None),
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "TLS on a port without TLS: use http")])
def test_another_protocol_is_named(launch, first, detail):
    server = launch()
    with socket.create_connection(("127.0.0.1", server.http)) as peer:
        peer.sendall(first)
        received = exchange(peer, "/")
    assert (f'"detail":"{detail}"'.encode() in received) == (detail is not None), received
    assert received.startswith(b"HTTP/1.1 400 ") == (detail is not None)


@pytest.mark.parametrize("header", [ONE, TWO, LOCAL, b"PROXY UNKNOWN\r\n"])
def test_a_header_before_tls_is_named(launch, header):
    server = launch()
    with socket.create_connection(("127.0.0.1", server.https)) as peer:
        peer.sendall(header)
        assert f'"detail":"{UNEXPECTED}"'.encode() in exchange(peer, "/")
    line, = wait_until(lambda: [json.loads(line) for line in server.output().splitlines() if '"status":400' in line],
                       what="the access line")
    assert line["cause"] == UNEXPECTED and line["tls"] is False


@pytest.mark.parametrize("header", [ONE, TWO])
def test_a_second_header_is_named(launch, header):
    server = launch(arguments=TRUSTED)
    with socket.create_connection(("127.0.0.1", server.http)) as peer:
        peer.sendall(header + header)
        assert UNEXPECTED.encode() in exchange(peer, "/")


def test_connections_without_first_bytes_end(launch):
    """Cut, silent and half a header: none is left over, and other connections are served."""
    server = launch(arguments=(*TRUSTED, "--set", "limits.handshakeTimeout=1s"))
    before = descriptors(server)
    peers = [socket.create_connection(("127.0.0.1", server.http)) for _ in range(60)]
    for index, peer in enumerate(peers):
        if index % 3:
            peer.sendall(ONE[:9])
        if index % 3 == 2:
            peer.close()
    assert status(server.url("/b/photos/o/a")) == 404
    for index, peer in enumerate(peers):
        if index % 3 != 2:
            assert ended(peer)
        peer.close()
    wait_until(lambda: descriptors(server) <= before, what="closed sockets")


def test_waiting_connections_do_not_hold_the_drain_up(launch):
    server = launch(arguments=TRUSTED)
    with socket.create_connection(("127.0.0.1", server.http)) as peer:
        peer.sendall(ONE[:9])
        assert status(server.url("/b/photos/o/a")) == 404
        assert server.stop(timeout=15) == 0


# Unix domain sockets

@pytest.fixture
def unix(launch, tmp_path):
    path = tmp_path / "run" / "http.sock"
    path.parent.mkdir()

    def start(*arguments, threads=2):
        return launch(threads=threads, arguments=("--set", f"listen.http=unix:{path}", *arguments))
    return start, path


@pytest.mark.parametrize("transport", ["--http1.1", "--http2-prior-knowledge"])
def test_a_unix_domain_socket_serves(unix, transport):
    start, path = unix
    server = start("--set", "listen.socketMode=0660")
    assert stat.S_IMODE(path.stat().st_mode) == 0o660
    for index in range(20):
        curl(transport, "--fail", "--unix-socket", path, "-d", f"{index}", "-X", "PUT", "http://a/b/photos/o/a")
        assert curl(transport, "--fail", "--unix-socket", path, "http://a/b/photos/o/a") == f"{index}".encode()
    peers = {line["peer"] for line in lines(server, "/b/photos/o/a")}
    assert all(peer.startswith(f"unix:{os.getuid()}:") for peer in peers) and len(peers) > 30
    assert server.stop() == 0
    assert not path.exists()


def test_a_socket_that_was_left_over_is_replaced(unix):
    start, path = unix
    server = start()
    server.stop(signal.SIGKILL)
    assert path.exists()
    start()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert curl("-o", "/dev/null", "-w", "%{http_code}", "--unix-socket", path, "http://a/b/photos/o/a") == b"404"


@pytest.mark.parametrize("kind", ["in use", "file", "link", "no directory"])
def test_what_is_there_is_kept(launch, tmp_path, kind):
    path = tmp_path / "http.sock"
    other = socket.socket(socket.AF_UNIX)
    if kind == "in use":
        other.bind(str(path))
        other.listen()
    elif kind == "file":
        path.write_text("precious")
    elif kind == "link":
        target = tmp_path / "target.sock"
        other.bind(str(target))
        path.symlink_to(target)
    else:
        path = tmp_path / "absent" / "http.sock"
    config = tmp_path / "sluice.yaml"
    config.write_text(f"listen: {{ http: 'unix:{path}', operator: null }}\nrules: none\n"
                      f"buckets: {{ photos: {{ directory: {{ path: {tmp_path}/data }} }} }}\n")
    code, _, error = sluice("serve", "--config", config)
    assert code == 2 and f"unix:{path}" in error
    assert ("which is not a socket" in error) == (kind in ("file", "link")), error
    if kind == "file":
        assert path.read_text() == "precious"
    if kind in ("in use", "link"):
        assert path.exists()


# Leaving

def test_the_drain_waits_for_the_load_balancer(launch):
    server = launch(arguments=("--set", "limits.drainDelay=10s"))
    server.process.send_signal(signal.SIGTERM)
    wait_until(lambda: server.readiness()[0] == 503, what="not ready")
    # New connections are still served.
    assert status(server.url("/b/photos/o/a")) == 404
    assert status("--http2-prior-knowledge", server.url("/b/photos/o/a")) == 404
    # Connections that are kept move to another gateway before they are closed.
    assert b"connection: close" in curl("-i", "--http1.1", server.url("/b/photos/o/a"))
    assert server.process.wait(60) == 0
    assert "drained" in server.output()
