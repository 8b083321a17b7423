"""Attacks on an HTTP/2 server: each is stopped by ServerLimits and counted, other clients are served, nothing leaks,
and the process grows by at most GROWTH."""

import contextlib
import os
import resource
import select
import socket
import threading
import time

import pytest

from program import wait_until
from raw import (
    ACK, CANCEL, CONTINUATION, DATA, END_HEADERS, END_STREAM, ENHANCE_YOUR_CALM, FLOW_CONTROL_ERROR, GOAWAY,
    HEADERS, HTTP2, PING, PREFACE, PRIORITY, REFUSED_STREAM, RST_STREAM, SETTINGS, STREAM_CLOSED,
    WINDOW_UPDATE, block, connect, encrypt, frame, literal, read_to_end, responses, setting,
)

# KiB by which the highest resident size may rise in one attack: the receive budget of a loop (8 MiB) and as much
# again for everything else.
GROWTH = 16 * 1024
if os.environ.get("SANITIZER"):
    # Sanitizers keep freed memory to detect its use.
    GROWTH *= 8
BIG = 4 << 20
HASTY = """limits:
  headerTimeout: 1s
  handshakeTimeout: 1200ms
  idleTimeout: 2s
  progressInterval: 1500ms
  minimumProgress: 4KiB
"""


def address(server):
    return "127.0.0.1", server.http


def ask(server, method="GET", path="/b/photos/o/small", body=b""):
    """Sends one request on a new connection."""
    head = f"{method} {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    with connect(address(server)) as raw:
        raw.sendall(head.encode() + body)
        return responses(read_to_end(raw))[0]


def hits(server, kind):
    return server.metrics()[f'sluice_limit_hits_total{{limit="{kind}"}}']


def prepare(server):
    assert ask(server, "PUT", "/b/photos/o/small", b"small").status == 201
    assert ask(server, "PUT", "/b/photos/o/big", bytes(BIG)).status == 201
    # Memory for the first use of TLS, the index and the pools is not counted.
    for _ in range(20):
        assert ask(server, path="/b/photos/o/big").status == 200
    return server


@pytest.fixture(scope="module")
def victim(server):
    return prepare(server)


@pytest.fixture
def hasty(launch):
    return prepare(launch(extra=HASTY))


@contextlib.contextmanager
def attack(server, *kinds):
    """Expects one of `kinds` to be counted, other clients to be served meanwhile, and no leak."""
    before = {kind: hits(server, kind) for kind in kinds}
    memory = server.status("VmHWM")
    done = threading.Event()
    served = []

    def bystander():
        while True:
            served.append(ask(server).body == b"small")
            if done.wait(0.02):
                return

    other = threading.Thread(target=bystander)
    other.start()
    try:
        yield
    finally:
        done.set()
        other.join(30)
    if kinds:
        wait_until(lambda: any(hits(server, kind) > before[kind] for kind in kinds), what=f"a hit of {kinds}")
    assert served and all(served)
    assert ask(server).body == b"small"
    wait_until(lambda: server.metrics()["sluice_streams_live"] == 0, what="the end of all streams")
    wait_until(lambda: server.metrics()["sluice_connections_open"] == 0, what="the end of all connections")
    assert server.status("VmHWM") - memory < GROWTH


# Resets


def test_rapid_reset(victim):
    with attack(victim, "resetsReceived"), HTTP2(address(victim)) as peer:
        for n in range(300):
            peer.send(frame(HEADERS, END_HEADERS | END_STREAM, 2 * n + 1, block()) + frame(RST_STREAM, 0, 2 * n + 1, CANCEL.to_bytes(4)))
        assert peer.end() == ENHANCE_YOUR_CALM


def test_rapid_reset_of_uploads_leaves_no_object(victim):
    with attack(victim, "resetsReceived"), HTTP2(address(victim)) as peer:
        for n in range(150):
            stream = 2 * n + 1
            peer.request(stream, b"PUT", b"/b/photos/o/reset%d" % n, end=False)
            peer.send(frame(DATA, 0, stream, b"some") + frame(RST_STREAM, 0, stream, CANCEL.to_bytes(4)))
        assert peer.end() == ENHANCE_YOUR_CALM
    assert all(ask(victim, path=f"/b/photos/o/reset{n}").status == 404 for n in range(0, 150, 30))


def put(stream, *fields, path=b"/b/photos/o/made", end=False):
    return frame(HEADERS, END_HEADERS | (END_STREAM if end else 0), stream, block(b"PUT", path, *fields))


def malformed(*fields, **options):
    return lambda stream: frame(HEADERS, END_HEADERS | END_STREAM, stream, block(b"GET", b"/", *fields, **options))


# Frames that make a server reset a stream (MadeYouReset, VU#767506). Each is for one stream.
PRIMITIVES = {
    "send window overflow": lambda s: put(s) + frame(WINDOW_UPDATE, 0, s, (2**31 - 1).to_bytes(4)),
    "upper-case name": malformed((b"X", b"a")),
    "connection field": malformed((b"connection", b"close")),
    "transfer-encoding": malformed((b"transfer-encoding", b"chunked")),
    "te": malformed((b"te", b"gzip")),
    "control in a value": malformed((b"x", b"a\nb")),
    "no scheme": malformed(scheme=None),
    "no path": lambda s: frame(HEADERS, END_HEADERS | END_STREAM, s, block(b"GET", None)),
    "pseudo-header last": malformed((b":path", b"/")),
    "unknown pseudo-header": malformed((b":x", b"/")),
    "two lengths": lambda s: put(s, (b"content-length", b"1"), (b"content-length", b"1")),
    "body longer than its length": lambda s: put(s, (b"content-length", b"1")) + frame(DATA, 0, s, b"two"),
    "body shorter than its length": lambda s: put(s, (b"content-length", b"9")) + frame(DATA, END_STREAM, s, b"two"),
    "no body for a length": lambda s: put(s, (b"content-length", b"9"), end=True),
    "trailers that do not end": lambda s: put(s) + frame(HEADERS, END_HEADERS, s, literal(b"x", b"y")),
    "pseudo-header in trailers": lambda s: put(s) + frame(HEADERS, END_HEADERS | END_STREAM, s, literal(b":path", b"/")),
}


@pytest.mark.parametrize("name", PRIMITIVES)
def test_made_you_reset(victim, name):
    with attack(victim, "resetsSent"), HTTP2(address(victim)) as peer:
        peer.acknowledge()
        for n in range(400):
            if not peer.send(PRIMITIVES[name](2 * n + 1)):
                break
            # One at a time, because too many streams are another error.
            found = peer.until(RST_STREAM, GOAWAY, HEADERS)
            while found and found[0] == HEADERS:
                found = peer.until(RST_STREAM, GOAWAY)
            if found is None or found[0] == GOAWAY:
                break
        assert 99 <= n <= 200
        assert found is None or int.from_bytes(found[3][4:8]) == ENHANCE_YOUR_CALM
        peer.end()


def reset(raw):
    """Ends a connection by a TCP reset."""
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    raw.close()


# More requests in one write than start in one turn of the loop, and the bytes after them.
BURSTS = {
    "a TCP reset": lambda s: b"",
    "resets until GOAWAY": lambda s: frame(RST_STREAM, 0, s, CANCEL.to_bytes(4)),
    "window overflow": lambda s: frame(WINDOW_UPDATE, 0, s, (2**31 - 1).to_bytes(4)),
    "body longer than its length": lambda s: frame(DATA, 0, s, b"two"),
}


@pytest.mark.parametrize("listener", ["http", "https", "operator"])
@pytest.mark.parametrize("name", BURSTS)
def test_more_requests_than_a_turn_begins(victim, name, listener):
    """Requests that are queued when their connection ends are released with the connection."""
    for _ in range(100):
        peer = HTTP2(("127.0.0.1", getattr(victim, listener)), encrypted=listener == "https")
        count = 100 if name == "a TCP reset" else 150
        peer.send(b"".join(put(2 * n + 1, (b"content-length", b"1")) + BURSTS[name](2 * n + 1) for n in range(count)))
        if name != "a TCP reset":
            peer.until(GOAWAY)
        reset(peer.raw)
    assert ask(victim).body == b"small"


# Parts of an upload after which its client disconnects.
UPLOADS = {
    "half a head": (b"PUT /b/photos/o/part HTTP/1.1\r\nHost: a\r\nContent-Le", None),
    "a head that waits for 100": (b"PUT /b/photos/o/part HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n",
                                  put(1, (b"content-length", b"9"), (b"expect", b"100-continue"), path=b"/b/photos/o/part")),
    "a head": (b"PUT /b/photos/o/part HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n",
               put(1, (b"content-length", b"9"), path=b"/b/photos/o/part")),
    "half a body": (b"PUT /b/photos/o/part HTTP/1.1\r\nHost: a\r\nContent-Length: 900000\r\n\r\n" + bytes(60_000),
                    put(1, path=b"/b/photos/o/part") + frame(DATA, 0, 1, bytes(16_000)) * 3),
    "half a chunk": (b"PUT /b/photos/o/part HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n20\r\nhalf",
                     put(1, path=b"/b/photos/o/part") + frame(DATA, 0, 1, bytes(100))[:60]),
    "a whole body": (b"PUT /b/photos/o/whole HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n" + bytes(9),
                     put(1, path=b"/b/photos/o/whole") + frame(DATA, END_STREAM, 1, bytes(9))),
    "a body that is not wanted": (b"PUT /b/photos/o/a%2F%2Fb HTTP/1.1\r\nHost: a\r\nContent-Length: 900000\r\n\r\n" + bytes(70_000),
                                  put(1, path=b"/b/photos/o/a%2F%2Fb") + frame(DATA, 0, 1, bytes(16_000)) * 3),
    "a second upload behind the first": (
        2 * (b"PUT /b/photos/o/whole HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n" + bytes(9)),
        b"".join(put(s, path=b"/b/photos/o/whole") + frame(DATA, END_STREAM, s, bytes(9)) for s in (1, 3))),
    "a pipeline of uploads and downloads": (
        50 * (b"PUT /b/photos/o/whole HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n" + bytes(9)
              + b"GET /b/photos/o/big HTTP/1.1\r\nHost: a\r\n\r\n"),
        b"".join(put(s, path=b"/b/photos/o/whole") + frame(DATA, END_STREAM, s, bytes(9))
                 + frame(HEADERS, END_HEADERS | END_STREAM, s + 2, block(b"GET", b"/b/photos/o/big")) for s in range(1, 160, 4))),
}


@pytest.mark.parametrize("how", ["FIN", "RST"])
@pytest.mark.parametrize("protocol", ["HTTP/1.1", "HTTP/2"])
@pytest.mark.parametrize("name", UPLOADS)
def test_a_client_that_disconnects_while_it_uploads(victim, name, protocol, how):
    one, two = UPLOADS[name]
    if protocol == "HTTP/2" and two is None:
        two = frame(HEADERS, END_HEADERS, 1, block(b"PUT", b"/b/photos/o/part"))[:30]
    with attack(victim):
        for _ in range(20):
            if protocol == "HTTP/2":
                peer = HTTP2(address(victim))
                peer.send(two)
                raw = peer.raw
            else:
                raw = connect(address(victim))
                raw.sendall(one)
            if how == "RST":
                reset(raw)
            raw.close()
    assert ask(victim, path="/b/photos/o/part").status == 404


@pytest.mark.parametrize("fields, path", [
    ([], b"/b/photos/o/a//b"), ([(b"content-length", b"9" * 18)], b"/b/photos/o/large"),
])
def test_made_you_reset_by_an_early_response(victim, fields, path):
    """The server resets a stream after a response that does not wait for the body."""
    with attack(victim, "resetsSent"), HTTP2(address(victim)) as peer:
        peer.acknowledge()
        for n in range(90):
            peer.send(put(2 * n + 1, *fields, path=path))
        found = peer.until(RST_STREAM, GOAWAY)
        while found and found[0] == RST_STREAM:
            n += 1
            peer.send(put(2 * n + 1, *fields, path=path))
            found = peer.until(RST_STREAM, GOAWAY)
        assert found and int.from_bytes(found[3][4:8]) == ENHANCE_YOUR_CALM
        peer.end()


def test_made_you_reset_by_our_window(launch):
    server = prepare(launch(extra="limits: { initialWindow: 1KiB, maximumWindow: 1KiB }\n"))
    with attack(server, "resetsSent"), HTTP2(address(server)) as peer:
        peer.acknowledge()
        for n in range(150):
            peer.request(2 * n + 1, b"PUT", b"/b/photos/o/flow", end=False)
            peer.send(frame(DATA, 0, 2 * n + 1, bytes(4000)))
            found = peer.until(RST_STREAM, GOAWAY)
            if found is None or found[0] == GOAWAY:
                break
            assert int.from_bytes(found[3]) == FLOW_CONTROL_ERROR
        assert n >= 99
        assert int.from_bytes(found[3][4:8]) == ENHANCE_YOUR_CALM
        peer.end()


def test_too_many_streams_before_the_settings_are_acknowledged(victim):
    with attack(victim, "resetsSent"), HTTP2(address(victim)) as peer:
        for n in range(400):
            peer.request(2 * n + 1, b"PUT", b"/b/photos/o/many", end=False)
        codes = set()
        while found := peer.next():
            if found[0] == RST_STREAM:
                codes.add(int.from_bytes(found[3]))
            if found[0] == GOAWAY:
                assert int.from_bytes(found[3][4:8]) == ENHANCE_YOUR_CALM
        assert codes == {REFUSED_STREAM}


def test_too_many_streams_afterwards(victim):
    with attack(victim), HTTP2(address(victim)) as peer:
        peer.acknowledge()
        for n in range(101):
            peer.request(2 * n + 1, b"PUT", b"/b/photos/o/many", end=False)
        found = peer.until(RST_STREAM, GOAWAY)
        assert found and (found[0] == GOAWAY or int.from_bytes(found[3]) == REFUSED_STREAM)


CONNECTION_ERRORS = {
    "WINDOW_UPDATE of 0": frame(WINDOW_UPDATE, 0, 0, bytes(4)),
    "overflow of the connection's window": frame(WINDOW_UPDATE, 0, 0, (2**31 - 1).to_bytes(4)),
    "DATA on an idle stream": frame(DATA, 0, 1, b"a"),
    "DATA on a stream that ended": frame(HEADERS, END_HEADERS | END_STREAM, 1, block(b"GET", b"/b/photos/o/big")) + frame(DATA, 0, 1, b"a"),
    "HEADERS on stream 0": frame(HEADERS, END_HEADERS | END_STREAM, 0, block()),
    "even stream": frame(HEADERS, END_HEADERS | END_STREAM, 2, block()),
    "PUSH_PROMISE": frame(5, END_HEADERS, 1, bytes(4)),
    "a frame too large": frame(PING, 0, 0, bytes(20000)),
    "PING of 7 bytes": frame(PING, 0, 0, bytes(7)),
    "SETTINGS of 5 bytes": frame(SETTINGS, 0, 0, bytes(5)),
    "initial window too large": frame(SETTINGS, 0, 0, setting(4, 2**31)),
    "broken header block": frame(HEADERS, END_HEADERS | END_STREAM, 1, b"\xff\xff\xff\xff\xff\xff"),
    "index beyond the table": frame(HEADERS, END_HEADERS | END_STREAM, 1, b"\xff\x40"),
    "table larger than allowed": frame(HEADERS, END_HEADERS | END_STREAM, 1, b"\x3f\xff\xff\x03" + block()),
    "DATA within a header block": frame(HEADERS, END_STREAM, 1, block()) + frame(DATA, 0, 1, b"a"),
    "CONTINUATION alone": frame(CONTINUATION, END_HEADERS, 1, b""),
    "padding longer than the frame": frame(HEADERS, END_HEADERS | END_STREAM | 8, 1, b"\xff" + block()),
    "bad preface": b"",
}


@pytest.mark.parametrize("name", CONNECTION_ERRORS)
def test_connection_errors(victim, name):
    with attack(victim), HTTP2(address(victim)) as peer:
        if name == "bad preface":
            peer.raw.close()
            with connect(address(victim)) as raw:
                raw.sendall(b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n" + bytes(100))
                read_to_end(raw)
            return
        before = victim.metrics()["sluice_protocol_errors_total"]
        peer.send(CONNECTION_ERRORS[name])
        assert peer.end() not in (None, 0)
        assert victim.metrics()["sluice_protocol_errors_total"] == before + 1


# Floods


FLOODS = {
    "PING": lambda n: frame(PING, 0, 0, bytes(8)),
    "PING acknowledgements": lambda n: frame(PING, ACK, 0, bytes(8)),
    "SETTINGS": lambda n: frame(SETTINGS, 0, 0, setting(3, 100)),
    "SETTINGS without content": lambda n: frame(SETTINGS, 0, 0),
    "PRIORITY": lambda n: frame(PRIORITY, 0, 2 * n + 1, bytes(4) + b"\x10"),
    "WINDOW_UPDATE": lambda n: frame(WINDOW_UPDATE, 0, 0, (1).to_bytes(4)),
    "unknown frames": lambda n: frame(0xBB, 0, 0, b"x"),
    "unknown frames on streams": lambda n: frame(0xBB, 0xFF, 1, b""),
}


@pytest.mark.parametrize("name", FLOODS)
def test_flood(victim, name):
    with attack(victim, "controlFrames", "queuedControlFrames"), HTTP2(address(victim)) as peer:
        peer.send(b"".join(FLOODS[name](n) for n in range(8000)))
        assert peer.end() == ENHANCE_YOUR_CALM


def test_continuation_flood(victim):
    with attack(victim, "continuations"), HTTP2(address(victim)) as peer:
        peer.send(frame(HEADERS, END_STREAM, 1, block()))
        for n in range(30):
            peer.send(frame(CONTINUATION, 0, 1, literal(b"x", b"y" * 1000)))
        assert peer.end() == ENHANCE_YOUR_CALM


def test_flood_of_continuations_without_content(victim):
    with attack(victim, "continuations", "emptyFrames"), HTTP2(address(victim)) as peer:
        peer.send(frame(HEADERS, END_STREAM, 1) + 1000 * frame(CONTINUATION, 0, 1))
        assert peer.end() == ENHANCE_YOUR_CALM


def test_flood_of_empty_data(victim):
    with attack(victim, "emptyFrames"), HTTP2(address(victim)) as peer:
        peer.request(1, b"PUT", b"/b/photos/o/empty", end=False)
        peer.send(1000 * frame(DATA, 0, 1))
        assert peer.end() == ENHANCE_YOUR_CALM


def test_flood_of_headers_on_streams_that_are_gone(victim):
    with attack(victim), HTTP2(address(victim)) as peer:
        for stream in (1, 3):
            peer.request(stream)
            assert peer.until(DATA, stream=stream)
        peer.send(frame(HEADERS, END_HEADERS | END_STREAM, 1, block()) * 4000)
        assert peer.end() in (ENHANCE_YOUR_CALM, STREAM_CLOSED)


def test_a_window_opened_byte_by_byte(victim):
    with attack(victim, "controlFrames"), HTTP2(address(victim), setting(4, 0)) as peer:
        peer.request(1, path=b"/b/photos/o/big")
        for _ in range(40):
            if not peer.send(frame(WINDOW_UPDATE, 0, 1, (1).to_bytes(4)) * 200):
                break
        assert peer.end() == ENHANCE_YOUR_CALM


def test_a_peer_that_does_not_read(victim):
    """Acknowledgements are queued behind a body that the client does not read."""
    with attack(victim, "queuedControlFrames"):
        with HTTP2(address(victim), setting(4, 2**31 - 1), receive_buffer=4096) as peer:
            peer.send(frame(WINDOW_UPDATE, 0, 0, (2**30).to_bytes(4)))
            for n in range(20):
                peer.request(2 * n + 1, path=b"/b/photos/o/big")
            before = hits(victim, "queuedControlFrames")

            def refused():
                # Until the bodies have come from an upstream and fill the sockets, acknowledgements still pass.
                peer.send(frame(PING, 0, 0, bytes(8)) * 8)
                return hits(victim, "queuedControlFrames") > before

            wait_until(refused)
            # It does not read its GOAWAY either: the server waits two seconds and cuts.
            wait_until(lambda: is_cut(peer.raw), what="the cut")


# Header blocks


def test_hpack_bomb(victim):
    """One field of 3.9 kB in the table, then named by single bytes."""
    with attack(victim, "headerBytes"), HTTP2(address(victim)) as peer:
        value = b"x" * 3900
        entry = b"\x40" + literal(b"b", value)[1:]
        for n in range(50):
            bomb = block(b"GET", b"/b/photos/o/none") + entry + b"\xbe" * 12000
            peer.send(frame(HEADERS, END_HEADERS | END_STREAM, 2 * n + 1, bomb))
            found = peer.until(HEADERS, GOAWAY, RST_STREAM)
            assert found is None or found[0] != HEADERS or b"431" in status_of(peer, found)
            if found is None or found[0] == GOAWAY:
                break


def status_of(peer, found):
    """The server's table changes with each response, so there is one decoder for the connection."""
    import hpack

    if not hasattr(peer, "decoder"):
        peer.decoder = hpack.Decoder()
    return dict(peer.decoder.decode(found[3], raw=True))[b":status"]


@pytest.mark.parametrize("kind, fields, path, wanted", [
    ("headerBytes", [(b"x%d" % n, b"y" * 1000) for n in range(40)], b"/", b"431"),
    ("headerBytes", [(b"x" * 300, b"y")], b"/", b"431"),
    ("headerFields", [(b"x%d" % n, b"y") for n in range(120)], b"/", b"431"),
    ("targetBytes", [], b"/" + b"a" * 9000, b"414"),
])
def test_header_limits(victim, kind, fields, path, wanted):
    data = block(b"GET", path, *fields)
    with attack(victim, kind), HTTP2(address(victim)) as peer:
        parts = [data[offset:offset + 16000] for offset in range(0, len(data), 16000)]
        for index, part in enumerate(parts):
            flags = END_HEADERS if index == len(parts) - 1 else 0
            peer.send(frame(CONTINUATION if index else HEADERS, flags | (0 if index else END_STREAM), 1, part))
        assert status_of(peer, peer.until(HEADERS)) == wanted


@pytest.mark.parametrize("fields, wanted", [
    (dict(path=b"b/photos"), None), (dict(path=b"x", scheme=b"foo"), b"400"), (dict(path=b"/a#b"), b"400"),
    (dict(path=b"/\xff"), b"400"), (dict(method=b"CONNECT", path=None, scheme=None), b"400"),
    (dict(authority=b"me@a"), b"400"), (dict(path=b"*"), None),
])
def test_targets(victim, fields, wanted):
    """`wanted` is the status; None if nghttp2 resets the stream."""
    with attack(victim), HTTP2(address(victim)) as peer:
        method, path = fields.pop("method", b"GET"), fields.pop("path", b"/")
        peer.request(1, method, path, **fields)
        found = peer.until(HEADERS, RST_STREAM)
        if wanted is None:
            assert found[0] == RST_STREAM
        else:
            assert found[0] == HEADERS and status_of(peer, found) == wanted


def test_unknown_expectation(victim):
    with attack(victim), HTTP2(address(victim)) as peer:
        peer.request(1, b"PUT", b"/b/photos/o/x", (b"expect", b"tea"))
        assert status_of(peer, peer.until(HEADERS)) == b"417"


# Slow clients


def ends(raw):
    return read_to_end(raw, timeout=20)


SLOW_STARTS = {
    "nothing": (b"", "handshakeTimeout", 0),
    "half a preface": (PREFACE[:3], "handshakeTimeout", 0),
    "most of a preface": (PREFACE[:-1], "handshakeTimeout", 0),
    "half a request line": (b"GET / HT", "headerTimeout", 408),
    "half a header": (b"GET / HTTP/1.1\r\nHost: a\r\n", "headerTimeout", 408),
    "half an HTTP/2 header": (PREFACE + frame(SETTINGS, 0, 0) + frame(HEADERS, 0, 1, block()), "headerTimeout", 0),
    "half a HEADERS frame": (PREFACE + frame(SETTINGS, 0, 0) + frame(HEADERS, 4, 1, block())[:20], "headerTimeout", 0),
    "half a frame header": (PREFACE + frame(SETTINGS, 0, 0) + bytes(4), "idleTimeout", 0),
}


@pytest.mark.parametrize("name", SLOW_STARTS)
def test_slow_start(hasty, name):
    data, kind, code = SLOW_STARTS[name]
    with attack(hasty, kind), contextlib.ExitStack() as stack:
        before = hits(hasty, kind)
        peers = []
        for _ in range(100):
            peers.append(stack.enter_context(connect(address(hasty))))
            peers[-1].sendall(data)
        for raw in peers:
            response = ends(raw)
            if code:
                assert responses(response)[0].status == code
        assert hits(hasty, kind) >= before + 100


def test_slow_start_byte_by_byte(hasty):
    """Each byte arrives in time, but not the whole header."""
    with attack(hasty, "headerTimeout"), connect(address(hasty)) as raw:
        with contextlib.suppress(ConnectionError):
            for byte in b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 1000:
                raw.sendall(bytes([byte]))
                raw.settimeout(0.01)
                with contextlib.suppress(TimeoutError):
                    assert raw.recv(1000).startswith(b"HTTP/1.1 408")
                    break
            else:
                raise AssertionError("it was never ended")


def test_tls_handshake_that_never_ends(hasty):
    with attack(hasty, "handshakeTimeout"):
        for data in (b"", bytes.fromhex("16030100c8010000c40303")):
            with connect(("127.0.0.1", hasty.https)) as raw:
                raw.sendall(data)
                ends(raw)


def test_tls_without_a_request(hasty):
    with attack(hasty, "handshakeTimeout"):
        for protocol in ("h2", "http/1.1"):
            with encrypt(connect(("127.0.0.1", hasty.https)), [protocol]) as raw:
                ends(raw)


def test_garbage_instead_of_tls(victim):
    before = victim.metrics()["sluice_tls_handshake_failures_total"]
    with attack(victim):
        for data in (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", bytes(100), b"\x16\x03\x01\xff\xff" + bytes(100)):
            with connect(("127.0.0.1", victim.https)) as raw:
                raw.sendall(data)
                ends(raw)
    assert victim.metrics()["sluice_tls_handshake_failures_total"] == before + 3


@pytest.mark.parametrize("trickle", [False, True])
@pytest.mark.parametrize("coding", ["length", "chunked"])
def test_slow_upload(hasty, trickle, coding):
    fields = b"Content-Length: 100000" if coding == "length" else b"Transfer-Encoding: chunked"
    with attack(hasty, "bodyProgress"), connect(address(hasty)) as raw:
        raw.sendall(b"PUT /b/photos/o/slow HTTP/1.1\r\nHost: a\r\n" + fields + b"\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            for _ in range(1000 if trickle else 1):
                raw.sendall(b"x" if coding == "length" else b"1\r\nx\r\n")
                raw.settimeout(0.02)
                with contextlib.suppress(TimeoutError):
                    assert raw.recv(1000).startswith(b"HTTP/1.1 408")
                    break
        ends(raw)
    assert ask(hasty, path="/b/photos/o/slow").status == 404


def test_slow_upload_by_http2(hasty):
    with attack(hasty, "bodyProgress"), HTTP2(address(hasty)) as peer:
        peer.request(1, b"PUT", b"/b/photos/o/slow", end=False)
        peer.send(frame(DATA, 0, 1, b"some"))
        found = peer.until(HEADERS, RST_STREAM)
        assert found[0] == RST_STREAM or status_of(peer, found) == b"408"
    assert ask(hasty, path="/b/photos/o/slow").status == 404


def test_a_window_that_stays_shut(hasty):
    with attack(hasty, "bodyProgress"), HTTP2(address(hasty), setting(4, 0)) as peer:
        for n in range(50):
            peer.request(2 * n + 1, path=b"/b/photos/o/big")
        resets = [peer.until(RST_STREAM) for _ in range(50)]
        assert all(int.from_bytes(one[3]) == CANCEL for one in resets)


def test_a_reader_that_does_not_read(hasty):
    with attack(hasty, "bodyProgress"), contextlib.ExitStack() as stack:
        before = hits(hasty, "bodyProgress")
        for _ in range(30):
            raw = stack.enter_context(connect(address(hasty), receive_buffer=4096))
            raw.sendall(b"GET /b/photos/o/big HTTP/1.1\r\nHost: a\r\n\r\n")
        wait_until(lambda: hits(hasty, "bodyProgress") >= before + 30)


def test_a_reader_that_does_not_read_by_tls(hasty):
    with attack(hasty, "bodyProgress"):
        with HTTP2(("127.0.0.1", hasty.https), setting(4, 2**31 - 1), encrypted=True, receive_buffer=4096) as peer:
            peer.send(frame(WINDOW_UPDATE, 0, 0, (2**30).to_bytes(4)))
            for n in range(20):
                peer.request(2 * n + 1, path=b"/b/photos/o/big", scheme=b"https")
            wait_until(lambda: is_cut(peer.raw), what="the cut")


@pytest.mark.parametrize("kind", ["lingerTimeout", "lingerInterval"])
def test_a_rejected_upload_that_never_ends(launch, kind):
    """Bytes after a final response are read for a bounded time, and only while they arrive."""
    server = prepare(launch(extra=f"limits: {{ {kind}: 300ms }}\n"))
    with attack(server), connect(address(server)) as raw:
        raw.sendall(b"PUT /b/none/o/x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
        taken = b""
        while b"\r\n\r\n" not in taken:
            taken += raw.recv(4096)
        assert taken.startswith(b"HTTP/1.1 404")
        if kind == "lingerTimeout":
            with contextlib.suppress(ConnectionError):
                while True:
                    raw.sendall(b"5\r\nhello\r\n")
        wait_until(lambda: is_cut(raw), what="the cut")


def is_cut(raw):
    """Whether the server has closed its socket, according to the kernel's table, because reading would let it send."""
    try:
        here, there = raw.getsockname()[1], raw.getpeername()[1]
    except OSError:  # no longer connected: a reset has arrived
        return True
    for line in open("/proc/net/tcp").readlines()[1:]:
        local, remote, state = line.split()[1:4]
        if int(local[-4:], 16) == there and int(remote[-4:], 16) == here:
            # The server's end: in ESTABLISHED and CLOSE_WAIT the process still has the socket.
            return state not in ("01", "08") and not is_held(line)
    return True


def is_held(line):
    """Whether a process still has the socket (the inode of an orphan is 0)."""
    return line.split()[9] != "0"


def test_idle_connections_are_closed(hasty):
    with attack(hasty, "idleTimeout"):
        with connect(address(hasty)) as raw:
            raw.sendall(b"GET /b/photos/o/small HTTP/1.1\r\nHost: a\r\n\r\n")
            assert len(responses(ends(raw))) == 1
        with HTTP2(address(hasty)) as peer:
            peer.request(1)
            assert peer.end() == 0


def test_pings_do_not_keep_a_connection(hasty):
    with attack(hasty, "idleTimeout"), HTTP2(address(hasty)) as peer:
        peer.request(1)
        while peer.send(frame(PING, 0, 0, bytes(8))):
            if peer.until(PING, GOAWAY, acknowledgement=True)[0] == GOAWAY:
                break
            # Too few to be a flood.
            time.sleep(0.01)


# Exhaustion


def test_connections_of_one_address_over_the_limit(launch):
    server = prepare(launch(extra="limits: { connectionsPerAddress: 5 }\n"))
    wait_until(lambda: server.metrics()["sluice_connections_open"] == 0)
    get = b"GET /b/photos/o/small HTTP/1.1\r\nHost: a\r\n\r\n"
    with contextlib.ExitStack() as stack:
        peers = [stack.enter_context(connect(address(server))) for _ in range(9)]
        wait_until(lambda: hits(server, "connectionsPerAddress") == 4)
        for raw in peers[:5]:
            raw.sendall(get)
            assert raw.recv(1000).startswith(b"HTTP/1.1 200")
        for raw in peers[5:]:
            assert read_to_end(raw) == b""
        # The limit covers all listeners, but not another address.
        with connect(("127.0.0.1", server.https)) as raw:
            assert read_to_end(raw) == b""
        with socket.create_connection(address(server), 10, ("127.0.0.2", 0)) as raw:
            raw.sendall(get)
            assert raw.recv(1000).startswith(b"HTTP/1.1 200")
    wait_until(lambda: server.metrics()["sluice_connections_open"] == 0)
    assert ask(server).body == b"small"


def test_connections_over_the_limit(launch):
    server = prepare(launch(extra="limits: { connections: 20 }\n"))
    wait_until(lambda: server.metrics()["sluice_connections_open"] == 0)
    before = hits(server, "connections")
    with contextlib.ExitStack() as stack:
        peers = [stack.enter_context(connect(address(server))) for _ in range(40)]
        wait_until(lambda: hits(server, "connections") == before + 20)
        for raw in peers[:20]:
            raw.sendall(b"GET /b/photos/o/small HTTP/1.1\r\nHost: a\r\n\r\n")
            assert raw.recv(1000).startswith(b"HTTP/1.1 200")
        for raw in peers[20:]:
            assert read_to_end(raw) == b""
    wait_until(lambda: server.metrics()["sluice_connections_open"] == 0)
    assert ask(server).body == b"small"


def test_descriptors_run_out(launch):
    server = prepare(launch())
    limit = len(os.listdir(f"/proc/{server.process.pid}/fd")) + 20
    resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (limit, limit))
    with contextlib.ExitStack() as stack:
        peers = [stack.enter_context(connect(address(server))) for _ in range(60)]
        responses = []
        for raw in peers[:10]:
            raw.sendall(b"GET /b/photos/o/small HTTP/1.1\r\nHost: a\r\n\r\n")
            responses.append(raw.recv(1000)[:12])
        # Accepted connections get a response, at least an error, because the object can't be opened.
        assert set(responses) <= {b"HTTP/1.1 200", b"HTTP/1.1 500", b"HTTP/1.1 503"}
        time_spent = cpu(server)
        time.sleep(0.5)
        assert cpu(server) - time_spent < 0.25, "it spins"
    wait_until(lambda: ask(server).body == b"small")
    assert hits(server, "descriptors") > 0


def cpu(server):
    fields = open(f"/proc/{server.process.pid}/stat").read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_lists_of_deep_folders_do_not_block_others(launch, tmp_path):
    """Each list takes 2,000 rules decisions, and all start in one turn of the only loop, so they are sliced."""
    rules = tmp_path / "deep.rules"
    rules.write_text("rules_version = '2'; service firebase.storage { match /b/photos/o { match /{name=**} { allow read, write; } } }\n")
    server = launch(extra="limits: { turnBudget: 1ms }\n", environment={"SLUICE_RULES": str(rules)})
    for n in range(5):
        assert ask(server, "PUT", "/b/photos/o/" + "%2F".join([str(n)] + ["a"] * 479), b"x").status == 201
    assert ask(server, "PUT", "/b/photos/o/small", b"small").status == 201
    assert ask(server, path="/b/photos/o").status == 200
    lists, left, others = 10, 10, 0
    with HTTP2(address(server), setting(4, 2**31 - 1)) as peer:
        peer.acknowledge()
        peer.send(frame(WINDOW_UPDATE, 0, 0, (2**30).to_bytes(4)))
        peer.send(b"".join(frame(HEADERS, END_HEADERS | END_STREAM, 2 * n + 1, block(b"GET", b"/b/photos/o")) for n in range(lists)))
        while left:
            # One request of another client, then the progress of the lists.
            assert ask(server).body == b"small"
            others += 1
            while left and (peer.taken or select.select([peer.raw], [], [], 0)[0]):
                found = peer.next()
                left -= found[0] == DATA and bool(found[1] & END_STREAM)
    assert others >= 2 * lists


def test_stalled_uploads_do_not_block_others(launch):
    server = prepare(launch(extra="limits: { receiveBudget: 64KiB }\n"))
    with attack(server), contextlib.ExitStack() as stack:
        for _ in range(10):
            peer = stack.enter_context(HTTP2(address(server)))
            for n in range(15):
                peer.request(2 * n + 1, b"PUT", b"/b/photos/o/stall%d" % n, end=False)
                peer.send(frame(DATA, 0, 2 * n + 1, bytes(16384)) * 4)
        done = [None] * 8

        def upload(n):
            done[n] = ask(server, "PUT", f"/b/photos/o/other{n}", bytes(1 << 20)).status

        others = [threading.Thread(target=upload, args=(n,)) for n in range(8)]
        for other in others:
            other.start()
        for other in others:
            other.join(30)
        assert done == [201] * 8


# Connections that end abnormally


@pytest.mark.parametrize("how", ["FIN", "RST"])
@pytest.mark.parametrize("protocol", ["HTTP/1.1", "HTTP/2"])
def test_a_connection_that_ends_within_a_body(victim, protocol, how):
    with attack(victim):
        for _ in range(20):
            if protocol == "HTTP/2":
                peer = HTTP2(address(victim))
                for n in range(10):
                    peer.send(put(2 * n + 1, path=b"/b/photos/o/cut") + frame(DATA, 0, 2 * n + 1, b"some"))
                raw = peer.raw
            else:
                raw = connect(address(victim))
                raw.sendall(b"PUT /b/photos/o/cut HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nsome")
            if how == "RST":
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            raw.close()
    assert ask(victim, path="/b/photos/o/cut").status == 404


def test_a_reader_that_disconnects(victim):
    with attack(victim):
        for n in range(20):
            with HTTP2(address(victim), setting(4, 2**31 - 1)) as peer:
                peer.send(frame(WINDOW_UPDATE, 0, 0, (2**30).to_bytes(4)))
                peer.request(1, path=b"/b/photos/o/big")
                peer.until(DATA)


@pytest.mark.parametrize("protocol", ["HTTP/1.1", "HTTP/2"])
def test_a_client_that_half_closes_and_then_disconnects(launch, protocol):
    """Its requests end when it disconnects, not when their responses come."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        server = launch(buckets=f"  photos: {{ gcs: {{ endpoint: '{endpoint}', bucket: photos, credentials: anonymous }} }}\n",
                        ready=503)
        with connect(address(server)) as raw:
            if protocol == "HTTP/2":
                raw.sendall(PREFACE + frame(SETTINGS, 0, 0) + frame(HEADERS, END_HEADERS | END_STREAM, 1, block()))
            else:
                raw.sendall(b"GET /b/photos/o/none HTTP/1.1\r\nHost: a\r\n\r\n")
            raw.shutdown(socket.SHUT_WR)
            wait_until(lambda: server.metrics()["sluice_streams_live"] == 1, what="the request")
            # Another client's request, after which the server has read the end of this one.
            assert ask(server, path="/b/unknown/o/none").status == 404
            assert server.metrics()["sluice_streams_live"] == 1
            reset(raw)
        wait_until(lambda: server.metrics()["sluice_streams_live"] == 0, what="the end of the request")


def test_half_closed_http2(victim):
    with attack(victim), HTTP2(address(victim)) as peer:
        peer.request(1, b"PUT", b"/b/photos/o/half", end=False)
        peer.raw.shutdown(socket.SHUT_WR)
        peer.end()
        assert peer.is_ended
    assert ask(victim, path="/b/photos/o/half").status == 404
