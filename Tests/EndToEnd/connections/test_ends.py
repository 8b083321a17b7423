"""Ends of connections, and requests that reach no handler."""

import json
import signal
import socket
import ssl

import pytest

from program import wait_until
from raw import (
    END_HEADERS, END_STREAM, GOAWAY, HEADERS, HTTP2, PING, PREFACE, SETTINGS, WINDOW_UPDATE, block, connect, encrypt,
    frame, read_to_end, responses,
)


def access_lines(server):
    lines = [json.loads(line) for line in server.output().splitlines() if line.startswith("{")]
    return [line for line in lines if "request" in line]


CONNECTION_ERRORS = {
    "PING of 7 bytes": frame(PING, 0, 0, bytes(7)),
    "SETTINGS of 5 bytes": frame(SETTINGS, 0, 0, bytes(5)),
    "WINDOW_UPDATE of 0": frame(WINDOW_UPDATE, 0, 0, bytes(4)),
    "PUSH_PROMISE": frame(5, END_HEADERS, 1, bytes(4)),
    "broken header block": frame(HEADERS, END_HEADERS | END_STREAM, 129, b"\xff\xff\xff\xff\xff\xff"),
    "even stream": frame(HEADERS, END_HEADERS | END_STREAM, 130, block()),
    "flood of PING": frame(PING, 0, 0, bytes(8)) * 8000,
}
REFUSED = {
    "malformed": (b"GET /\r\n\r\n", 400, "-"),
    "long target": (b"GET /" + b"x" * 9000 + b" HTTP/1.1\r\nHost: a\r\n\r\n", 414, "-"),
    "large header": (b"GET /b HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 40_000 + b"\r\n\r\n", 431, "-"),
    "unknown coding": (b"PUT /b HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n", 501, "-"),
    "unknown version": (b"GET /b HTTP/3.0\r\nHost: a\r\n\r\n", 505, "-"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_rejected_request_has_an_access_line(launch, name):
    sent, status, path = REFUSED[name]
    running = launch(extra="log: { format: json }\n")
    with connect(("127.0.0.1", running.http)) as raw:
        raw.sendall(sent)
        response = responses(read_to_end(raw))[0]
    assert response.status == status
    problem = json.loads(response.body)
    wait_until(lambda: access_lines(running), what="an access line")
    line = access_lines(running)[-1]
    assert line["status"] == status and line["path"] == path
    # Malformed requests are not server errors, whatever their status.
    assert line["level"] == "warning"
    assert line["request"] == problem["instance"] and line["code"] == problem["code"]
    assert line["cause"] == problem["detail"] and line["bytes_out"] == len(response.body)
    assert running.metrics()['sluice_requests_total{bucket="none",operation="none",status="4xx"}'] == 1


@pytest.mark.parametrize("name", CONNECTION_ERRORS)
def test_requests_before_a_client_error_are_499(launch, name):
    """A stream that ends by a protocol error of the client is a 499, not a server error."""
    running = launch(extra="log: { format: json }\n")
    with HTTP2(("127.0.0.1", running.http)) as peer:
        requests = b"".join(
            frame(HEADERS, END_HEADERS | END_STREAM, 2 * n + 1, block(b"GET", b"/b/photos/o/none")) for n in range(64))
        peer.send(requests + CONNECTION_ERRORS[name])
        assert peer.end() not in (None, 0)
    wait_until(lambda: not running.live(), what="the end of all requests")
    lines = access_lines(running)
    assert {line["level"] for line in lines} <= {"warning"}
    assert {line["status"] for line in lines} <= {404, 499}
    assert all(line["cause"] == "the client went away" for line in lines if line["status"] == 499)
    assert not [key for key, value in running.metrics().items() if 'status="5xx"' in key and value]


def test_request_rejected_in_http2_has_an_access_line(launch):
    running = launch(extra="log: { format: json }\n")
    with HTTP2(("127.0.0.1", running.http)) as peer:
        peer.request(1, b"GET", b"/b/photos/o/secret?token=abc", *[(b"x", b"y")] * 101)
        assert peer.until(HEADERS)
    wait_until(lambda: access_lines(running), what="an access line")
    line = access_lines(running)[-1]
    assert (line["status"], line["path"], line["protocol"]) == (431, "/b/photos/o/secret", "HTTP/2")
    assert "abc" not in running.output()


def test_small_unwanted_body_keeps_the_connection(server):
    get = b"GET /b/photos/o/none HTTP/1.1\r\nHost: a\r\n\r\n"
    refused = b"PUT /b/none/o/x HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n"
    with connect(("127.0.0.1", server.http)) as raw:
        # The body arrives with the head, then in parts, then again with the head and followed by the next request.
        raw.sendall(refused + bytes(1000))
        raw.sendall(refused + bytes(10))
        assert b"404" in raw.recv(4096)
        raw.sendall(bytes(990) + refused + bytes(1000) + get.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        found = responses(read_to_end(raw))
    assert found[-1].status == 404 and json.loads(found[-1].body)["code"] == "object-not-found"


@pytest.mark.parametrize("fields", [b"Content-Length: 1000000", b"Transfer-Encoding: chunked",
                                    b"Content-Length: 10\r\nExpect: 100-continue"])
def test_large_or_unknown_unwanted_body_ends_the_connection(server, fields):
    with connect(("127.0.0.1", server.http)) as raw:
        raw.sendall(b"PUT /b/none/o/x HTTP/1.1\r\nHost: a\r\n" + fields + b"\r\n\r\n")
        found = responses(read_to_end(raw))
    assert [response.status for response in found] == [404]
    assert found[0].fields.get("connection") == "close"


@pytest.mark.parametrize("transport", ["clear", "tls"])
def test_drain_serves_new_connections(launch, transport):
    """A request in flight when the drain begins must not be reset."""
    running = launch()
    port = running.http if transport == "clear" else running.https
    raw = connect(("127.0.0.1", port))
    idle = HTTP2(("127.0.0.1", running.http))
    running.process.send_signal(signal.SIGTERM)
    wait_until(lambda: "draining" in running.output(), what="the drain")
    # GOAWAY on another connection shows that the loop is draining.
    assert idle.until(GOAWAY)
    if transport == "tls":
        raw = encrypt(raw, ["http/1.1"])
    raw.sendall(b"GET /b/photos/o/none HTTP/1.1\r\nHost: a\r\n\r\n")
    response = responses(read_to_end(raw))[0]
    assert response.status == 404 and response.fields.get("connection") == "close"
    idle.end()
    assert running.process.wait(20) == 0


def test_tls_ends_with_close_notify(server):
    with encrypt(connect(("127.0.0.1", server.https)), ["http/1.1"]) as raw:
        raw.suppress_ragged_eofs = False
        raw.sendall(b"GET /b/photos/o/none HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        while raw.recv(4096):
            pass


@pytest.mark.parametrize("transport", ["clear", "tls"])
def test_end_that_arrives_with_the_request(server, transport):
    """The kernel reports both at once, and nothing after them."""
    with connect(("127.0.0.1", server.http if transport == "clear" else server.https)) as raw:
        if transport == "tls":
            raw = encrypt(raw, ["http/1.1"])
        # One packet has the request and the end.
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
        raw.sendall(b"GET /b/photos/o/none HTTP/1.1\r\nHost: a\r\n\r\n")
        socket.socket.shutdown(raw, socket.SHUT_WR)
        assert responses(read_to_end(raw))[0].status == 404


def test_broken_record_that_arrives_with_the_request(server):
    """Both are decrypted by one read. The broken one ends the connection, however late it is read."""
    raw = encrypt(connect(("127.0.0.1", server.https)), ["http/1.1"])
    with raw:
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
        raw.sendall(b"GET /b/photos/o/none HTTP/1.1\r\nHost: a\r\n\r\n")
        socket.socket.sendall(raw, b"\x17\x03\x03\x00\x20" + bytes(32))
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 0)
        raw.settimeout(10)
        # The alert, or the end without one.
        with pytest.raises((ssl.SSLError, ConnectionError)):
            while raw.recv(4096):
                pass
            raise ConnectionError


@pytest.mark.parametrize("protocols", [["http/1.1"], []], ids=["http/1.1", "none"])
def test_http2_over_tls_requires_alpn(server, protocols):
    """RFC 9113, section 3.2: without h2 by ALPN the preface is a request of a version that is not supported."""
    with encrypt(connect(("127.0.0.1", server.https)), protocols) as raw:
        raw.sendall(PREFACE + frame(SETTINGS, 0, 0))
        response = responses(read_to_end(raw))[0]
    assert response.status == 505


@pytest.mark.parametrize("transport", ["clear", "tls"])
def test_response_to_a_rejected_upload_survives_its_body(server, transport):
    """A client that reads only after sending a large body gets the response that did not wait for it."""
    raw = connect(("127.0.0.1", server.http if transport == "clear" else server.https), timeout=60)
    if transport == "tls":
        raw = encrypt(raw, ["http/1.1"])
    with raw:
        raw.sendall(b"PUT /b/photos/o/a%%2F%%2Fb HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % (20 << 20))
        for _ in range(20):
            raw.sendall(bytes(1 << 20))
        response = responses(read_to_end(raw))[0]
    assert response.status == 400 and json.loads(response.body)["code"] == "invalid-name"
