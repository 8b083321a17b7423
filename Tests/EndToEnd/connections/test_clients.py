"""Common clients: a round trip with each, 100-continue, cancellation and drain."""

import re
import signal
import socket
import ssl
import subprocess

import h2.config
import h2.connection
import h2.events
import httpx
import pytest

import raw
from program import curl, wait_until
from http2_peer import (
    CANCEL, DATA, END_HEADERS, END_STREAM, HEADERS, INITIAL_WINDOW_SIZE, PING, RST_STREAM, Peer, WINDOW_UPDATE,
    block, word)

#: Several windows and buffers long, and of no round length.
BODY = bytes(range(256)) * 4096 + b"end"
PATH = "/b/photos/o/clients/"


def address(server, scheme="http"):
    return "127.0.0.1", server.http if scheme == "http" else server.https


# The round trip

@pytest.mark.parametrize("scheme, options, version", [
    ("http", ["--http2-prior-knowledge"], b"2"), ("https", ["--http2", "-k"], b"2"),
    ("http", ["--http1.1"], b"1.1"), ("https", ["--http1.1", "-k"], b"1.1"),
    ("http", ["--http1.0"], b"1.1"), ("http", ["--http2"], b"1.1"),
])
def test_curl(server, tmp_path, scheme, options, version):
    file = tmp_path / "body"
    file.write_bytes(BODY)
    name = "curl" + scheme + options[0]
    url = server.url(PATH + name, scheme)
    show = ["-w", "%{stderr}%{http_version}"]
    put = subprocess.run(["curl", "-sS", "--fail", *options, *show, "-T", str(file), url], capture_output=True)
    assert put.returncode == 0 and put.stderr == version, put.stderr
    assert b'"size":"%d"' % len(BODY) in put.stdout
    assert curl(*options, "--fail", url) == BODY
    assert curl(*options, "-r", "5-9", url) == BODY[5:10]
    head = curl(*options, "-I", url).decode().lower()
    assert f"content-length: {len(BODY)}\r\n" in head and " 200" in head.split("\r\n")[0]
    assert curl(*options, "-o", "/dev/null", "-w", "%{http_code}", "-X", "DELETE", url) == b"204"
    assert curl(*options, "-o", "/dev/null", "-w", "%{http_code}", url) == b"404"


@pytest.mark.parametrize("options", [["--http2-prior-knowledge"], ["--http1.1"]])
def test_curl_uploads_what_it_reads(server, options):
    """Without a length: chunked in HTTP/1.1, DATA alone in HTTP/2."""
    url = server.url(PATH + "piped" + options[0])
    done = subprocess.run(["curl", "-sS", "--fail", *options, "-T", "-", url], input=BODY, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert curl(*options, url) == BODY


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_nghttp(server, tmp_path, scheme):
    file = tmp_path / "body"
    file.write_bytes(BODY)
    url = server.url(PATH + "nghttp", scheme)
    put = subprocess.run(["nghttp", "-v", "-n", "-H", ":method: PUT", "-d", str(file), url], capture_output=True, timeout=60)
    assert put.returncode == 0 and re.search(rb":status: 20[01]", put.stdout), put.stdout[-2000:]
    got = subprocess.run(["nghttp", url], capture_output=True, timeout=60)
    assert got.stdout == BODY
    seen = subprocess.run(["nghttp", "-nv", url], capture_output=True, timeout=60).stdout
    assert b"recv GOAWAY" not in seen and b"recv RST_STREAM" not in seen


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("options", [["-m", "32"], ["--h1"], ["-m", "32", "-w", "14", "-W", "16"]])
def test_h2load(server, scheme, options):
    url = server.url(PATH + "h2load", scheme)
    # Without curl's default type of a form, which moto would parse.
    curl("-k", "--fail", "-X", "PUT", "-H", "Content-Type:", "--data-binary", "x" * 1024, url)
    done = subprocess.run(["h2load", "-n", "2000", "-c", "8", "-t", "1", *options, url], capture_output=True, timeout=120)
    assert b"2000 succeeded, 0 failed, 0 errored, 0 timeout" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("http2", [True, False])
def test_httpx(server, http2):
    with httpx.Client(http1=not http2, http2=http2, verify=False, timeout=30) as client:
        url = server.url(PATH + f"httpx{http2}", "https")
        put = client.put(url, content=BODY)
        assert put.status_code in (200, 201) and put.http_version == ("HTTP/2" if http2 else "HTTP/1.1")
        got = client.get(url)
        assert got.content == BODY and got.headers["etag"] == put.headers["etag"]
        assert client.get(url, headers={"if-none-match": got.headers["etag"]}).status_code == 304
        assert client.head(url).headers["content-length"] == str(len(BODY))
        # Rejected at once, but httpx reads the response only after it has sent everything.
        assert client.put(server.url("/b/none/o/x", "https"), content=BODY[:1 << 20]).status_code == 404
        assert client.get(url).content == BODY


class PythonH2:
    """A connection of the package h2."""

    def __init__(self, server, scheme="http"):
        self.socket = socket.create_connection(address(server, scheme), timeout=30)
        if scheme == "https":
            self.socket = raw.encrypt(self.socket)
        self.client = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
        self.client.initiate_connection()
        self.responses = {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def request(self, stream, method, path, *fields, end=True):
        pseudo = [(":method", method), (":scheme", "http"), (":path", path), (":authority", "127.0.0.1")]
        self.client.send_headers(stream, [*pseudo, *fields], end_stream=end)

    def send(self, stream, body, end):
        while body:
            window = min(self.client.local_flow_control_window(stream), self.client.max_outbound_frame_size)
            if window:
                self.client.send_data(stream, body[:window], end_stream=end and window >= len(body))
                body = body[window:]
                self.socket.sendall(self.client.data_to_send())
            else:
                self.receive()

    def receive(self):
        self.socket.sendall(self.client.data_to_send())
        for event in self.client.receive_data(self.socket.recv(65536)):
            if isinstance(event, h2.events.ResponseReceived):
                self.responses[event.stream_id] = [dict(event.headers)[b":status"], b"", False]
            elif isinstance(event, h2.events.DataReceived):
                self.responses[event.stream_id][1] += event.data
                self.client.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, h2.events.StreamEnded):
                self.responses[event.stream_id][2] = True

    def response(self, stream):
        while not self.responses.get(stream, [False])[-1]:
            self.receive()
        return tuple(self.responses[stream][:2])


def test_python_h2(server):
    with PythonH2(server) as client:
        client.request(1, "PUT", PATH + "h2", end=False)
        client.send(1, BODY, end=True)
        assert client.response(1)[0] in (b"200", b"201")
        client.request(3, "GET", PATH + "h2")
        assert client.response(3) == (b"200", BODY)


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_small_requests_beside_an_upload_that_pauses(server, scheme):
    """While an upload is fast, its bytes gather in the kernel. What comes after them must not wait for more."""
    piece = BODY * 4
    with PythonH2(server, scheme) as client:
        client.request(1, "PUT", PATH + "pauses", ("content-length", str(4 * len(piece))), end=False)
        for number in range(4):
            client.send(1, piece, end=number == 3)
            client.request(2 * number + 3, "GET", PATH + "none")
            assert client.response(2 * number + 3)[0] == b"404"
        assert client.response(1)[0] in (b"200", b"201")
        client.request(11, "GET", PATH + "pauses")
        assert client.response(11) == (b"200", piece * 4)


# HTTP/1.1 as it is on the wire

def http1(server, sent, scheme="http"):
    connection = raw.connect(address(server, scheme))
    if scheme == "https":
        connection = raw.encrypt(connection, ["http/1.1"])
    with connection:
        connection.sendall(sent)
        return raw.responses(raw.read_to_end(connection))


def request(method, path, extra="", body=b"", close=False):
    length = f"Content-Length: {len(body)}\r\n" if body or method == "PUT" else ""
    end = "Connection: close\r\n" if close else ""
    return f"{method} {path} HTTP/1.1\r\nHost: x\r\n{length}{extra}{end}\r\n".encode() + body


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_pipelined_requests_are_served_in_order(server, scheme):
    sent = b"".join(request("PUT", PATH + f"pipe{n}", body=b"body %d" % n) for n in range(20))
    sent += b"".join(request("GET", PATH + f"pipe{n}") for n in range(20))
    responses = http1(server, sent + request("DELETE", PATH + "pipe0", close=True), scheme)
    assert [a.status in (200, 201) for a in responses[:40]] == [True] * 40
    assert [a.body for a in responses[20:40]] == [b"body %d" % n for n in range(20)]
    assert responses[40].status == 204 and responses[40].fields["connection"] == "close"


def test_connection_is_kept_between_requests(server):
    with raw.connect(address(server)) as connection:
        for number in range(5):
            body = b"kept %d" % number
            connection.sendall(request("PUT", PATH + "kept", body=body))
            taken = b""
            while b"}" not in taken:
                taken += connection.recv(65536)
            assert taken.startswith(b"HTTP/1.1 20") and b"connection: close" not in taken
        connection.sendall(request("GET", PATH + "kept", close=True))
        assert raw.responses(raw.read_to_end(connection))[0].body == b"kept 4"


def test_http_1_0_is_closed_after_the_response(server):
    curl("-X", "PUT", "--data-binary", "ten", server.url(PATH + "ten"))
    responses = http1(server, f"GET {PATH}ten HTTP/1.0\r\n\r\n".encode())
    assert len(responses) == 1 and responses[0].body == b"ten" and responses[0].fields["connection"] == "close"


def test_upgrade_to_h2c_is_ignored(server):
    curl("-X", "PUT", "--data-binary", "plain", server.url(PATH + "plain"))
    upgrade = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n"
    responses = http1(server, request("GET", PATH + "plain", upgrade) + request("GET", PATH + "plain", close=True))
    assert [(a.status, a.body) for a in responses] == [(200, b"plain")] * 2
    assert "upgrade" not in responses[0].fields


def test_trailers_of_a_chunked_body_are_ignored(server):
    sent = request("PUT", PATH + "chunked", close=True).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    responses = http1(server, sent + b"4;name=value\r\nbody\r\n0\r\nX-Checksum: abc\r\n\r\n")
    assert responses[0].status in (200, 201)
    assert curl(server.url(PATH + "chunked")) == b"body"


def test_trailers_in_http2_are_ignored(server):
    peer = Peer(address(server)).handshake()
    peer.request(method="PUT", path=PATH + "trailers", end=False)
    peer.send(DATA, 0, 1, b"body")
    peer.send(HEADERS, END_STREAM | END_HEADERS, 1, block([("x-checksum", "abc")]))
    assert peer.response().status in (200, 201)
    assert curl(server.url(PATH + "trailers")) == b"body"
    peer.close()


def test_head_has_the_fields_of_get_and_no_body(server):
    curl("-X", "PUT", "--data-binary", "head", server.url(PATH + "head"))
    with raw.connect(address(server)) as connection:
        connection.sendall(request("HEAD", PATH + "head") + request("GET", PATH + "head", close=True))
        head, get = raw.responses(raw.read_to_end(connection), heads=(0,))
    assert get.body == b"head" and head.fields["content-length"] == "4"
    varying = {"date", "x-request-id", "connection"}
    assert {n: v for n, v in head.fields.items() if n not in varying} == {
        n: v for n, v in get.fields.items() if n not in varying}


# 100-continue

def test_continue_comes_before_the_body_is_sent(server):
    with raw.connect(address(server)) as connection:
        connection.sendall(request("PUT", PATH + "expect", "Expect: 100-continue\r\nContent-Length: 4\r\n", close=True)
                           .replace(b"Content-Length: 0\r\n", b""))
        assert connection.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(b"body")
        assert raw.responses(raw.read_to_end(connection))[0].status in (200, 201)


def test_continue_in_http2(server):
    peer = Peer(address(server)).handshake()
    peer.request(method="PUT", path=PATH + "expect", extra=[("expect", "100-continue")], end=False)
    got = peer.until(lambda f: f.type == HEADERS)
    assert dict(peer.decoder.decode(got.payload))[":status"] == "100" and not got.flags & END_STREAM
    peer.send(DATA, END_STREAM, 1, b"body")
    response = peer.response()
    assert response.status in (200, 201) and not response.interim
    peer.close()


def test_no_continue_for_a_denied_upload(server):
    extra = "Expect: 100-continue\r\nContent-Length: 4\r\n"
    sent = request("PUT", "/b/none/o/x", extra).replace(b"Content-Length: 0\r\n", b"")
    assert [a.status for a in http1(server, sent)] == [404]
    peer = Peer(address(server)).handshake()
    peer.request(method="PUT", path="/b/none/o/x", extra=[("expect", "100-continue")], end=False)
    response = peer.response()
    assert response.status == 404 and not response.interim
    peer.close()


# Responses before the end of the body

def test_early_response_in_http1_closes(server):
    with raw.connect(address(server)) as connection:
        connection.sendall(b"PUT /b/none/o/x HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\nsome")
        response = raw.responses(raw.read_to_end(connection))[0]
    assert response.status == 404 and response.fields["connection"] == "close"


def test_early_response_in_http2_ends_only_the_upload(server):
    peer = Peer(address(server)).handshake()
    peer.request(1, method="PUT", path="/b/none/o/x", extra=[("content-length", "1000000")], end=False)
    peer.send(DATA, 0, 1, b"some")
    assert peer.response(1).status == 404
    peer.send(DATA, 0, 1, b"more")
    peer.request(3, method="PUT", path=PATH + "next", end=False)
    peer.send(DATA, END_STREAM, 3, b"next")
    assert peer.response(3).status in (200, 201)
    resets = [f for f in peer.seen if f.type == RST_STREAM]
    reset = resets[0] if resets else peer.until(lambda f: f.type == RST_STREAM)
    assert reset.stream == 1 and reset.code == 0
    peer.alive()
    peer.close()


# Cancelling

def live(server):
    return server.metrics()["sluice_streams_live"]


def test_reset_cancels_a_download(launch, tmp_path):
    server = launch()
    file = tmp_path / "large"
    file.write_bytes(bytes(8 << 20))
    curl("--fail", "-T", str(file), server.url(PATH + "large"))
    peer = Peer(address(server)).handshake()
    for stream in range(1, 21, 2):
        peer.request(stream, path=PATH + "large")
    for _ in range(10):
        peer.until(lambda f: f.type == HEADERS)
    assert live(server) == 10
    for stream in range(1, 21, 2):
        peer.send(RST_STREAM, 0, stream, word(CANCEL))
    wait_until(lambda: live(server) == 0, what="the end of the streams")
    peer.alive()
    # The log distinguishes cancelled requests.
    wait_until(lambda: server.output().count('"status":499') == 10, what="499 in the log")
    peer.close()


def test_reset_cancels_an_upload(launch):
    server = launch()
    peer = Peer(address(server)).handshake()
    peer.request(1, method="PUT", path=PATH + "partial", end=False)
    peer.send(DATA, 0, 1, bytes(10_000))
    peer.alive()
    assert live(server) == 1
    peer.send(RST_STREAM, 0, 1, word(CANCEL))
    wait_until(lambda: live(server) == 0, what="the end of the stream")
    peer.request(3, path=PATH + "partial")
    assert peer.response(3).status == 404
    peer.close()


def test_a_lost_connection_cancels_an_upload(launch):
    server = launch()
    with raw.connect(address(server)) as connection:
        connection.sendall(f"PUT {PATH}partial HTTP/1.1\r\nHost: x\r\nContent-Length: 10000\r\n\r\nsome".encode())
        wait_until(lambda: live(server) == 1, what="the start")
    wait_until(lambda: live(server) == 0, what="the end")
    assert curl("-o", "/dev/null", "-w", "%{http_code}", server.url(PATH + "partial")) == b"404"


# Drain

@pytest.mark.parametrize("scheme", ["http", "https"])
def test_sigterm_lets_open_requests_finish(launch, scheme):
    server = launch()
    peer = Peer(address(server, scheme), tls=scheme == "https").handshake((INITIAL_WINDOW_SIZE, 10))
    peer.request(1, method="PUT", path=PATH + "last", end=False)
    peer.send(DATA, 0, 1, b"first half, ")
    peer.alive()
    server.process.send_signal(signal.SIGTERM)
    first = peer.until_goaway()
    assert first.code == 0 and int.from_bytes(first.payload[:4], "big") == 0x7FFFFFFF
    # A request that the client sent before it received GOAWAY is still served.
    peer.request(3, path=PATH + "none")
    pings = [f for f in peer.seen if f.type == PING and not f.flags]
    ping = pings[0] if pings else peer.until(lambda f: f.type == PING)
    peer.send(PING, 1, 0, ping.payload)
    second = peer.until_goaway()
    assert second.code == 0 and int.from_bytes(second.payload[:4], "big") == 3
    peer.send(WINDOW_UPDATE, 0, 3, word(10_000))
    peer.send(WINDOW_UPDATE, 0, 1, word(10_000))
    peer.send(DATA, END_STREAM, 1, b"second half")
    ended = {f.stream for f in peer.seen if f.type in (DATA, HEADERS) and f.flags & END_STREAM}
    while ended != {1, 3}:
        got = peer.take()
        if got.type in (DATA, HEADERS) and got.flags & END_STREAM:
            ended.add(got.stream)
    while peer.read() is not None:
        pass
    assert server.process.wait(20) == 0
    server.start()
    assert curl(server.url(PATH + "last")) == b"first half, second half"


def test_sigterm_in_the_middle_of_http1(launch):
    server = launch()
    with raw.connect(address(server)) as connection, raw.connect(address(server)) as idle:
        connection.sendall(f"PUT {PATH}last HTTP/1.1\r\nHost: x\r\nContent-Length: 8\r\n\r\nhalf".encode())
        idle.sendall(request("GET", PATH + "none"))
        wait_until(lambda: live(server) == 1 and b"404" in idle.recv(65536, socket.MSG_PEEK), what="the start")
        server.process.send_signal(signal.SIGTERM)
        # The idle connection ends at once, the other after its response.
        assert raw.responses(raw.read_to_end(idle))[0].status == 404
        connection.sendall(b"half")
        response = raw.responses(raw.read_to_end(connection))[0]
    assert response.status == 201 and response.fields["connection"] == "close"
    assert server.process.wait(20) == 0


def draining(launch):
    """A server that drains, and a connection with an upload that is still open."""
    server = launch()
    peer = Peer(address(server)).handshake()
    peer.request(1, method="PUT", path=PATH + "open", end=False)
    peer.alive()
    server.process.send_signal(signal.SIGTERM)
    peer.until_goaway()
    return server, peer


def test_no_connection_is_accepted_while_draining(launch):
    server, peer = draining(launch)

    def refused():
        try:
            socket.create_connection(address(server), timeout=5).close()
        except ConnectionRefusedError:
            return True
        return False

    wait_until(refused, what="the end of accepting")
    peer.send(DATA, END_STREAM, 1, b"done")
    while peer.read() is not None:
        pass
    assert server.process.wait(20) == 0


def test_a_second_signal_ends_at_once(launch):
    server, peer = draining(launch)
    server.process.send_signal(signal.SIGTERM)
    # The stream stays open, so only the second signal can end the process in this time.
    server.process.wait(10)
    peer.close()


def test_tls_without_a_common_protocol_is_rejected(server):
    with raw.connect(address(server, "https")) as connection, pytest.raises(ssl.SSLError):
        raw.encrypt(connection, ["spdy/3"])
