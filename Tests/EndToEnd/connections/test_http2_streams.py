"""RFC 9113, section 5: the states of streams, their numbers, how many there may be, and priorities."""

import random

import pytest

from http2_peer import (
    CANCEL, CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADERS, INITIAL_WINDOW_SIZE, MAX_CONCURRENT_STREAMS, PADDED,
    PING, PRIORITISED, PRIORITY, PROTOCOL_ERROR, REFUSED_STREAM, RST_STREAM, STREAM_CLOSED, WINDOW_UPDATE, GOAWAY, block,
    frame, word)


def frames_on(stream, peer):
    """The frames that only make sense on an open stream, by name."""
    return {
        "data": (DATA, END_STREAM, stream, b"test"),
        "headers": (HEADERS, END_STREAM | END_HEADERS, stream, block(peer.fields())),
        "continuation": (CONTINUATION, END_HEADERS, stream, block([("x", "y")])),
        "reset": (RST_STREAM, 0, stream, word(CANCEL)),
        "window": (WINDOW_UPDATE, 0, stream, word(100)),
        "priority": (PRIORITY, 0, stream, word(0) + b"\x10"),
    }


def half_closed(connect, target):
    """A peer whose stream 1 has sent END_STREAM, and whose window is too small for the response."""
    peer = connect().handshake((INITIAL_WINDOW_SIZE, 0))
    peer.request(1, path=target.path)
    peer.until(lambda f: f.type == HEADERS)
    return peer


# 5.1 Idle

@pytest.mark.parametrize("kind", ["data", "reset", "window", "continuation"])
@pytest.mark.parametrize("stream", [1, 2, 101])
def test_5_1_idle(peer, kind, stream):
    peer.send(*frames_on(stream, peer)[kind])
    peer.connection_error(PROTOCOL_ERROR)


@pytest.mark.parametrize("stream", [1, 2, 101])
def test_5_1_idle_priority(peer, stream):
    peer.send(*frames_on(stream, peer)["priority"])
    peer.ignored()


# 5.1 Half-closed (remote)

@pytest.mark.parametrize("kind", ["data", "headers"])
def test_5_1_half_closed(connect, target, kind):
    peer = half_closed(connect, target)
    peer.send(*frames_on(1, peer)[kind])
    peer.stream_error(1, STREAM_CLOSED)


def test_5_1_half_closed_continuation(connect, target):
    peer = half_closed(connect, target)
    peer.send(*frames_on(1, peer)["continuation"])
    peer.connection_error(STREAM_CLOSED, PROTOCOL_ERROR)


@pytest.mark.parametrize("kind", ["window", "priority"])
def test_5_1_half_closed_may_still_send(connect, target, kind):
    peer = half_closed(connect, target)
    peer.send(*frames_on(1, peer)[kind])
    peer.send(WINDOW_UPDATE, 0, 1, word(1000))
    while not peer.take().flags & END_STREAM:
        pass
    peer.alive()


def test_5_1_half_closed_reset(connect, target):
    peer = half_closed(connect, target)
    peer.send(*frames_on(1, peer)["reset"])
    peer.ignored()


# 5.1 Closed

def closed(peer, target, how):
    """Ends stream 1 in one of the ways in which streams end."""
    if how == "end":
        peer.request(1, path=target.path)
        peer.response(1)
    elif how == "reset":
        peer.request(1, method="PUT", path=target.path + ".closed", end=False)
        peer.send(RST_STREAM, 0, 1, word(CANCEL))
    elif how == "response-then-reset":
        peer.request(1, path=target.path, end=False)
        peer.response(1)
        peer.send(RST_STREAM, 0, 1, word(CANCEL))


CLOSED = pytest.mark.parametrize("how", ["end", "reset", "response-then-reset"])


@CLOSED
@pytest.mark.parametrize("kind", ["data", "headers"])
def test_5_1_closed(peer, target, how, kind):
    closed(peer, target, how)
    peer.send(*frames_on(1, peer)[kind])
    peer.stream_error(1, STREAM_CLOSED)


@CLOSED
def test_5_1_closed_continuation(peer, target, how):
    closed(peer, target, how)
    peer.send(*frames_on(1, peer)["continuation"])
    peer.connection_error(STREAM_CLOSED, PROTOCOL_ERROR)


@CLOSED
@pytest.mark.parametrize("kind", ["window", "reset", "priority"])
def test_5_1_closed_tolerates(peer, target, how, kind):
    closed(peer, target, how)
    peer.send(*frames_on(1, peer)[kind])
    peer.ignored()
    peer.request(3, path=target.path)
    assert peer.response(3).status == 200


def test_5_1_closed_by_us_tolerates_frames_in_transit(peer, target):
    peer.request(1, path=target.path, end=False)
    assert peer.response(1).status == 200
    assert peer.until(lambda f: f.type == RST_STREAM).code == 0
    for kind in ("window", "reset", "priority"):
        peer.send(*frames_on(1, peer)[kind])
    peer.alive()


# 5.1.1 Stream identifiers

@pytest.mark.parametrize("stream", [2, 100])
def test_5_1_1_even_number(peer, stream):
    peer.request(stream)
    peer.connection_error(PROTOCOL_ERROR)


@pytest.mark.parametrize("first, second", [(5, 3), (5, 1), (101, 99), (3, 1)])
@pytest.mark.parametrize("open", [False, True])
def test_5_1_1_number_below_an_earlier_one(peer, target, first, second, open):
    if open:
        peer.request(first, method="PUT", path=target.path + ".open", end=False)
        peer.alive()
    else:
        peer.request(first, path=target.path)
        peer.response(first)
    peer.request(second)
    peer.connection_error(PROTOCOL_ERROR)


def test_5_1_1_number_below_one_of_many_gaps(peer, target):
    """Skipped stream identifiers can not be used later."""
    for stream in range(3, 603, 4):
        peer.request(stream, path=target.path)
        assert peer.response(stream).status == 200
    peer.request(1)
    peer.connection_error(PROTOCOL_ERROR)


def test_5_1_1_number_used_again(peer, target):
    peer.request(1, path=target.path)
    peer.response(1)
    peer.request(3, path=target.path)
    peer.response(3)
    peer.request(1, path=target.path)
    peer.stream_error(1, STREAM_CLOSED, PROTOCOL_ERROR)


def test_5_1_1_numbers_may_be_passed_over(peer, target):
    for stream in (1, 7, 9, 0x7FFFFFFD, 0x7FFFFFFF):
        peer.request(stream, path=target.path)
        assert peer.response(stream).status == 200


# 5.1.2 Concurrency

def test_5_1_2_more_streams_than_allowed(connect, target):
    peer = connect().handshake((INITIAL_WINDOW_SIZE, 0))
    limit = peer.settings[MAX_CONCURRENT_STREAMS]
    for stream in range(1, 2 * limit + 1, 2):
        peer.request(stream, path=target.path)
    extra = 2 * limit + 1
    peer.request(extra, path=target.path)
    peer.stream_error(extra, REFUSED_STREAM, PROTOCOL_ERROR, responded=False)


def test_5_1_2_refused_header_blocks_still_count_for_compression(connect, target):
    # The limit is not acknowledged: a client that does not know it yet must only lose this stream.
    peer = connect().handshake((INITIAL_WINDOW_SIZE, 0), acknowledge=False)
    limit = peer.settings[MAX_CONCURRENT_STREAMS]
    for stream in range(1, 2 * limit + 1, 2):
        peer.request(stream, path=target.path)
    extra = 2 * limit + 1
    # The refused request puts a field into the dynamic table, which the next one refers to.
    peer.send(HEADERS, END_STREAM | END_HEADERS, extra,
              block(peer.fields(path=target.path)) + b"\x40\x01x\x01y")
    peer.stream_error(extra, REFUSED_STREAM)
    peer.send(RST_STREAM, 0, 1, word(CANCEL))
    peer.alive()
    peer.send(HEADERS, END_STREAM | END_HEADERS, extra + 2, block(peer.fields(path=target.path)) + b"\xbe")
    peer.until(lambda f: f.type == HEADERS and f.stream == extra + 2)


# 5.3 Priority

def test_5_3_1_headers_depend_on_themselves(peer):
    peer.send(HEADERS, END_STREAM | END_HEADERS | PRIORITISED, 1, word(1) + b"\xff" + block(peer.fields()))
    peer.stream_error(1, PROTOCOL_ERROR)


@pytest.mark.parametrize("exclusive", [0, 1 << 31])
def test_5_3_1_priority_depends_on_itself(peer, exclusive):
    peer.send(PRIORITY, 0, 3, word(exclusive | 3) + b"\x10")
    peer.stream_error(3, PROTOCOL_ERROR)


# 5.4 Errors

def test_5_4_1_connection_error_is_goaway_and_the_end(peer):
    peer.send(PING, 0, 0, bytes(6))
    while peer.read() is not None:
        pass
    assert [f for f in peer.seen if f.type == GOAWAY]


def test_5_4_2_reset_is_not_followed_by_reset(peer, target):
    peer.request(1, method="PUT", path=target.path + ".reset", end=False)
    peer.send(RST_STREAM, 0, 1, word(CANCEL))
    assert not [f for f in peer.alive() if f.type == RST_STREAM]


# 5.5 Extensions

@pytest.mark.parametrize("stream", [0, 1, 2, 101])
def test_5_5_unknown_frames_are_ignored(peer, target, stream):
    peer.send(0xFF, 0, stream, bytes(8))
    peer.ignored()
    peer.request(1, path=target.path)
    assert peer.response(1).status == 200


def test_5_5_unknown_frame_on_a_half_closed_stream(connect, target):
    peer = half_closed(connect, target)
    peer.send(0xFF, 0, 1, bytes(8))
    peer.ignored()


# 6.1 Bodies of several streams in one read

@pytest.mark.parametrize("seed", range(6))
def test_6_1_bodies_of_interleaved_streams_arrive_whole(connect, folder, seed):
    """DATA frames of all sizes, some padded, with other frames between them, in pieces that don't respect frames."""
    choose = random.Random(seed)
    peer = connect().handshake()
    bodies = {stream: choose.randbytes(choose.choice([1, 300, 9_000, 25_000])) for stream in (1, 3, 5)}
    paths = {stream: f"/b/photos/o/{folder}%2F{stream}" for stream in bodies}
    wire = b"".join(
        frame(HEADERS, END_HEADERS, stream, block(peer.fields("PUT", paths[stream], [("content-length", str(len(body)))])))
        for stream, body in bodies.items())
    left = dict(bodies)
    while left:
        stream = choose.choice(list(left))
        # Most frames follow one of the same stream.
        for _ in range(choose.randint(1, 5)):
            count = choose.choice([1, 9, 100, 1_000, 7_000])
            part, left[stream] = left[stream][:count], left[stream][count:]
            padding = choose.choice([None, None, 0, 200])
            payload = part if padding is None else bytes([padding]) + part + bytes(padding)
            end = END_STREAM if not left[stream] else 0
            wire += frame(DATA, end | (0 if padding is None else PADDED), stream, payload)
            if end:
                del left[stream]
                break
            wire += choose.choice([b"", b"", frame(PING, payload=bytes(8)), frame(WINDOW_UPDATE, 0, stream, word(1))])
    while wire:
        count = choose.choice([1, 500, 20_000, len(wire)])
        peer.raw(wire[:count])
        wire = wire[count:]
    for _ in bodies:
        got = peer.until(lambda got: got.type in (HEADERS, RST_STREAM))
        assert got.type == HEADERS and dict(peer.decoder.decode(got.payload))[":status"] == "201", got
    for number, (stream, body) in enumerate(bodies.items()):
        get = 7 + 2 * number
        peer.request(get, path=paths[stream])
        response = peer.response(get)
        assert (response.status, response.body) == (200, body)
