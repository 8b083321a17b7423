"""How connections end, and what becomes of requests that no handler sees."""

import json
import signal

import pytest

from conftest import wait_until
from raw import GOAWAY, HEADERS, HTTP2, connect, encrypt, read_to_end, responses


def access_lines(server):
    lines = [json.loads(line) for line in server.output().splitlines() if line.startswith("{")]
    return [line for line in lines if "request" in line]


REFUSED = {
    "malformed": (b"GET /\r\n\r\n", 400, "-"),
    "long target": (b"GET /" + b"x" * 9000 + b" HTTP/1.1\r\nHost: a\r\n\r\n", 414, "-"),
    "large header": (b"GET /b HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 40_000 + b"\r\n\r\n", 431, "-"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_request_has_an_access_line(launch, name):
    sent, status, path = REFUSED[name]
    running = launch(extra="log: { format: json }\n")
    with connect(("127.0.0.1", running.http)) as raw:
        raw.sendall(sent)
        answer = responses(read_to_end(raw))[0]
    assert answer.status == status
    problem = json.loads(answer.body)
    wait_until(lambda: access_lines(running), what="an access line")
    line = access_lines(running)[-1]
    assert line["status"] == status and line["path"] == path
    assert line["request"] == problem["instance"] and line["code"] == problem["code"]
    assert line["cause"] == problem["detail"] and line["bytes_out"] == len(answer.body)
    assert running.metrics()['sluice_requests_total{operation="none",status="4xx"}'] == 1


def test_request_refused_in_http2_has_an_access_line(launch):
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
        # The body comes with the head, then in parts, then the whole again with the next request behind it.
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
    assert [answer.status for answer in found] == [404]
    assert found[0].fields.get("connection") == "close"


@pytest.mark.parametrize("transport", ["clear", "tls"])
def test_drain_answers_who_had_only_connected(launch, transport):
    """A request may be on its way when the drain begins: it must not meet a reset."""
    running = launch()
    port = running.http if transport == "clear" else running.https
    raw = connect(("127.0.0.1", port))
    idle = HTTP2(("127.0.0.1", running.http))
    running.process.send_signal(signal.SIGTERM)
    wait_until(lambda: "draining" in running.output(), what="the drain")
    # GOAWAY on another connection tells that the loop has begun to drain.
    assert idle.until(GOAWAY)
    if transport == "tls":
        raw = encrypt(raw, ["http/1.1"])
    raw.sendall(b"GET /b/photos/o/none HTTP/1.1\r\nHost: a\r\n\r\n")
    answer = responses(read_to_end(raw))[0]
    assert answer.status == 404 and answer.fields.get("connection") == "close"
    idle.end()
    assert running.process.wait(20) == 0


def test_tls_ends_with_close_notify(server):
    with encrypt(connect(("127.0.0.1", server.https)), ["http/1.1"]) as raw:
        raw.suppress_ragged_eofs = False
        raw.sendall(b"GET /b/photos/o/none HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        while raw.recv(4096):
            pass
