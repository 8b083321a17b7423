"""RFC 9113, sections 3.4, 4 and 6: the preface, and every type of frame, valid and invalid."""

import pytest

from http2_peer import (
    ACK, CANCEL, COMPRESSION_ERROR, CONTINUATION, DATA, ENABLE_PUSH, END_HEADERS, END_STREAM, FLOW_CONTROL_ERROR,
    FRAME_SIZE_ERROR, GOAWAY, HEADERS, HEADER_TABLE_SIZE, INITIAL_WINDOW_SIZE, MAX_CONCURRENT_STREAMS,
    MAX_FRAME_SIZE, MAX_HEADER_LIST_SIZE, PADDED, PING, PREFACE, PRIORITISED, PRIORITY, PROTOCOL_ERROR,
    PUSH_PROMISE, RST_STREAM, SETTINGS, STREAM_CLOSED, WINDOW_UPDATE, block, frame, settings, word)


# 3.4 The preface

def test_3_4_server_preface_is_a_settings_frame(connect):
    peer = connect()
    peer.raw(PREFACE + frame(SETTINGS))
    first = peer.take()
    assert first.type == SETTINGS and not first.flags & ACK


def test_3_4_preface_in_pieces(connect, target):
    peer = connect()
    for byte in PREFACE + frame(SETTINGS):
        peer.raw(bytes([byte]))
    peer.request(path=target.path)
    assert peer.response().body


@pytest.mark.parametrize("bad", [
    b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n", b"PRI * HTTP/1.0\r\n\r\nSM\r\n\r\n", b"PRI * HTTP/2.0\n\nSM\n\n" + bytes(9),
])
def test_3_4_broken_preface_ends_the_connection(connect, bad):
    peer = connect()
    peer.raw(bad)
    # RFC 9113 permits a server to omit GOAWAY here; whatever it sends must be frames.
    while (got := peer.read()) is not None:
        assert got.type in (SETTINGS, WINDOW_UPDATE, GOAWAY), got
        assert got.type != GOAWAY or got.code == PROTOCOL_ERROR
    assert not peer.buffer, peer.buffer


@pytest.mark.parametrize("first", [
    frame(PING, payload=bytes(8)), frame(WINDOW_UPDATE, payload=word(1)), frame(DATA, 0, 1, b"x"),
    frame(HEADERS, END_HEADERS | END_STREAM, 1, block([(":method", "GET")])), frame(SETTINGS, ACK), frame(0x16),
])
def test_3_4_first_frame_must_be_settings(connect, first):
    peer = connect()
    peer.raw(PREFACE + first)
    peer.connection_error(PROTOCOL_ERROR)


# 4.1 The frame's format

def test_4_1_unknown_frame_type_is_ignored(peer):
    peer.send(0x16, 0xFF, 0, b"whatever")
    peer.send(0x16, 0xFF, 1, b"whatever")
    peer.ignored()


def test_4_1_undefined_flags_are_ignored(peer):
    peer.send(PING, 0x16, 0, b"8 octets")
    assert peer.until(lambda f: f.type == PING).payload == b"8 octets"


def test_4_1_reserved_bit_is_ignored(peer):
    peer.send(PING, 0, 0, b"8 octets", reserved=1)
    assert peer.until(lambda f: f.type == PING).payload == b"8 octets"


# 4.2 The frame's size

def test_4_2_data_of_16384_bytes_is_accepted(peer, target):
    peer.request(method="PUT", path=target.path + ".large", end=False)
    peer.send(DATA, END_STREAM, 1, bytes(16384))
    assert peer.response().status in (200, 201)


def test_4_2_data_over_the_maximum(peer, target):
    peer.request(method="PUT", path=target.path + ".large", end=False)
    peer.send(DATA, END_STREAM, 1, bytes(16385))
    peer.stream_error(1, FRAME_SIZE_ERROR)


@pytest.mark.parametrize("type, stream", [
    (HEADERS, 1), (SETTINGS, 0), (PING, 0), (PRIORITY, 1), (WINDOW_UPDATE, 0), (RST_STREAM, 1), (GOAWAY, 0),
    (0x16, 0),
])
def test_4_2_frame_over_the_maximum(peer, type, stream):
    peer.send(type, 0, stream, bytes(16386))
    peer.connection_error(FRAME_SIZE_ERROR)


# 4.3 Header compression and decompression

def test_4_3_broken_header_block(peer):
    peer.send(HEADERS, END_HEADERS | END_STREAM, 1, b"\x40\x8f")
    peer.connection_error(COMPRESSION_ERROR)


@pytest.mark.parametrize("between", [
    frame(PRIORITY, 0, 1, word(0) + b"\x10"), frame(PRIORITY, 0, 3, word(0) + b"\x10"), frame(DATA, 0, 1, b"x"),
    frame(PING, payload=bytes(8)), frame(SETTINGS), frame(WINDOW_UPDATE, payload=word(1)),
    frame(RST_STREAM, 0, 1, word(CANCEL)), frame(GOAWAY, payload=bytes(8)), frame(0x16, 0, 1), frame(0x16),
    frame(HEADERS, END_HEADERS | END_STREAM, 3, block([(":method", "GET")])),
    frame(HEADERS, END_HEADERS | END_STREAM, 1, block([(":method", "GET")])),
    frame(CONTINUATION, END_HEADERS, 3, block([("a", "b")])),
], ids=["priority", "priority-other", "data", "ping", "settings", "window", "reset", "goaway", "unknown",
        "unknown-0", "headers-other", "headers-same", "continuation-other"])
def test_4_3_nothing_comes_between_the_parts_of_a_header_block(peer, between):
    peer.send(HEADERS, END_STREAM, 1, block(peer.fields()))
    peer.raw(between)
    peer.send(CONTINUATION, END_HEADERS, 1, block([("x", "y")]))
    peer.connection_error(PROTOCOL_ERROR)


# 6.1 DATA

def test_6_1_data_on_stream_0(peer):
    peer.send(DATA, END_STREAM, 0, b"test")
    peer.connection_error(PROTOCOL_ERROR)


@pytest.mark.parametrize("padding", [0, 1, 255])
def test_6_1_padded_data(peer, target, padding):
    peer.request(method="PUT", path=target.path + ".padded", end=False)
    peer.send(DATA, PADDED | END_STREAM, 1, bytes([padding]) + b"test" + bytes(padding))
    assert peer.response().status in (200, 201)
    peer.request(3, path=target.path + ".padded")
    assert peer.response(3).status == 200


def test_6_1_data_of_padding_alone(peer, target):
    peer.request(method="PUT", path=target.path + ".padded", end=False)
    peer.send(DATA, PADDED, 1, b"\x00")
    peer.send(DATA, PADDED, 1, b"\x03\x00\x00\x00")
    peer.send(DATA, END_STREAM, 1)
    assert peer.response().status in (200, 201)


@pytest.mark.parametrize("payload", [b"\x05test", b"\x06test", b"\xfftest", b"\x01", b""])
def test_6_1_padding_longer_than_the_payload(peer, payload):
    peer.request(method="PUT", end=False)
    peer.send(DATA, PADDED | END_STREAM, 1, payload)
    peer.connection_error(PROTOCOL_ERROR, *([] if payload else [FRAME_SIZE_ERROR]))


def test_6_1_padding_is_checked_also_after_an_early_response(peer, target):
    peer.request(path=target.path, end=False)
    peer.response()
    peer.send(DATA, PADDED | END_STREAM, 1, b"\x05test")
    peer.connection_error(PROTOCOL_ERROR)


# 6.2 HEADERS

def test_6_2_headers_on_stream_0(peer):
    peer.request(0)
    peer.connection_error(PROTOCOL_ERROR)


def test_6_2_padded_and_prioritised(peer, target):
    fields = block(peer.fields(path=target.path))
    peer.send(HEADERS, END_STREAM | END_HEADERS | PADDED | PRIORITISED, 1,
              b"\x07" + word(0) + b"\xff" + fields + bytes(7))
    assert peer.response().status == 200


def test_6_2_depends_on_an_idle_stream_exclusively(peer, target):
    fields = block(peer.fields(path=target.path))
    peer.send(HEADERS, END_STREAM | END_HEADERS | PRIORITISED, 1, word(1 << 31 | 99) + b"\x00" + fields)
    assert peer.response().status == 200


@pytest.mark.parametrize("excess", [0, 1])
def test_6_2_padding_longer_than_the_payload(peer, excess):
    fields = block(peer.fields())
    padding = len(fields) + 1 + excess
    peer.send(HEADERS, END_STREAM | END_HEADERS | PADDED, 1, bytes([padding]) + fields)
    peer.connection_error(PROTOCOL_ERROR)


@pytest.mark.parametrize("flags, payload", [
    (PADDED, b""), (PRIORITISED, b""), (PRIORITISED, bytes(4)), (PADDED | PRIORITISED, bytes(5))])
def test_6_2_too_short_for_its_flags(peer, flags, payload):
    peer.send(HEADERS, END_STREAM | END_HEADERS | flags, 1, payload)
    peer.connection_error(FRAME_SIZE_ERROR, PROTOCOL_ERROR)


# 6.3 PRIORITY

@pytest.mark.parametrize("payload", [
    word(0) + b"\x00", word(0) + b"\xff", word(5) + b"\x0f", word(1 << 31 | 5) + b"\x0f"])
def test_6_3_priority_is_accepted(peer, target, payload):
    peer.send(PRIORITY, 0, 1, payload)
    peer.request(1, path=target.path)
    assert peer.response(1).status == 200


def test_6_3_priority_of_a_higher_stream_leaves_lower_ones_usable(peer, target):
    peer.send(PRIORITY, 0, 9, word(0) + b"\x0f")
    peer.request(7, path=target.path)
    assert peer.response(7).status == 200


def test_6_3_priority_on_stream_0(peer):
    peer.send(PRIORITY, 0, 0, word(0) + b"\xff")
    peer.connection_error(PROTOCOL_ERROR)


@pytest.mark.parametrize("length", [0, 4, 6])
def test_6_3_priority_of_a_wrong_length(peer, length):
    peer.request(1, method="PUT", end=False)
    peer.send(PRIORITY, 0, 1, bytes(length))
    peer.stream_error(1, FRAME_SIZE_ERROR)


# 6.4 RST_STREAM

def test_6_4_reset_on_stream_0(peer):
    peer.send(RST_STREAM, 0, 0, word(CANCEL))
    peer.connection_error(PROTOCOL_ERROR)


def test_6_4_reset_on_an_idle_stream(peer):
    peer.send(RST_STREAM, 0, 1, word(CANCEL))
    peer.connection_error(PROTOCOL_ERROR)


@pytest.mark.parametrize("length", [0, 3, 5])
def test_6_4_reset_of_a_wrong_length(peer, length):
    peer.request(end=False, method="PUT")
    peer.send(RST_STREAM, 0, 1, bytes(length))
    peer.connection_error(FRAME_SIZE_ERROR)


@pytest.mark.parametrize("code", [CANCEL, 0, 0xFF])
def test_6_4_reset_ends_only_the_stream(peer, target, code):
    peer.request(1, method="PUT", path=target.path + ".reset", end=False)
    peer.send(RST_STREAM, 0, 1, word(code))
    peer.request(3, path=target.path)
    assert peer.response(3).status == 200
    assert not [f for f in peer.seen if f.stream == 1]


# 6.5 SETTINGS

def test_6_5_acknowledgement_with_a_payload(peer):
    peer.send(SETTINGS, ACK, 0, b"\0")
    peer.connection_error(FRAME_SIZE_ERROR)


def test_6_5_settings_on_a_stream(peer):
    peer.send(SETTINGS, 0, 1, settings((MAX_CONCURRENT_STREAMS, 100)))
    peer.connection_error(PROTOCOL_ERROR)


@pytest.mark.parametrize("length", [1, 3, 7])
def test_6_5_settings_of_a_wrong_length(peer, length):
    peer.send(SETTINGS, 0, 0, bytes(length))
    peer.connection_error(FRAME_SIZE_ERROR)


@pytest.mark.parametrize("setting, value, code", [
    (ENABLE_PUSH, 2, PROTOCOL_ERROR), (ENABLE_PUSH, 0xFFFFFFFF, PROTOCOL_ERROR),
    (INITIAL_WINDOW_SIZE, 1 << 31, FLOW_CONTROL_ERROR), (INITIAL_WINDOW_SIZE, 0xFFFFFFFF, FLOW_CONTROL_ERROR),
    (MAX_FRAME_SIZE, 16383, PROTOCOL_ERROR), (MAX_FRAME_SIZE, 1 << 24, PROTOCOL_ERROR), (MAX_FRAME_SIZE, 0, PROTOCOL_ERROR),
])
def test_6_5_2_value_out_of_range(peer, setting, value, code):
    peer.send(SETTINGS, 0, 0, settings((setting, value)))
    peer.connection_error(code)


@pytest.mark.parametrize("setting, value", [
    (ENABLE_PUSH, 0), (ENABLE_PUSH, 1), (INITIAL_WINDOW_SIZE, (1 << 31) - 1), (MAX_FRAME_SIZE, 16384),
    (MAX_FRAME_SIZE, (1 << 24) - 1), (HEADER_TABLE_SIZE, 0), (HEADER_TABLE_SIZE, 0xFFFFFFFF),
    (MAX_CONCURRENT_STREAMS, 0), (MAX_HEADER_LIST_SIZE, 0xFFFFFFFF), (0xFF, 1), (0, 1),
])
def test_6_5_2_good_and_unknown_settings_are_acknowledged(peer, target, setting, value):
    peer.send(SETTINGS, 0, 0, settings((setting, value)))
    peer.until(lambda f: f.type == SETTINGS and f.flags & ACK and not f.payload)
    if setting == HEADER_TABLE_SIZE:
        peer.decoder.max_allowed_table_size = min(value, 4096)
    for stream in (1, 3):
        peer.request(stream, path=target.path)
        assert peer.response(stream).status == 200


def test_6_5_3_last_value_of_a_setting_counts(peer, target):
    peer.send(SETTINGS, 0, 0, settings((INITIAL_WINDOW_SIZE, 100), (INITIAL_WINDOW_SIZE, 1)))
    peer.request(path=target.path)
    assert len(peer.until(lambda f: f.type == DATA).payload) == 1


def test_6_5_3_each_settings_frame_is_acknowledged(peer):
    for _ in range(5):
        peer.send(SETTINGS)
    for _ in range(5):
        peer.until(lambda f: f.type == SETTINGS and f.flags & ACK)


# 6.6 PUSH_PROMISE

@pytest.mark.parametrize("stream", [0, 1, 3])
def test_6_6_a_client_cannot_push(peer, stream):
    peer.request(1, method="PUT", end=False)
    peer.send(PUSH_PROMISE, END_HEADERS, stream, word(2) + block(peer.fields()))
    peer.connection_error(PROTOCOL_ERROR)


# 6.7 PING

def test_6_7_ping_is_returned_with_the_same_payload(peer):
    peer.send(PING, 0, 0, b"abcdefgh")
    response = peer.until(lambda f: f.type == PING)
    assert response.flags & ACK and response.payload == b"abcdefgh" and response.stream == 0


def test_6_7_acknowledgement_gets_no_reply(peer):
    peer.send(PING, ACK, 0, b"not mine")
    assert not [f for f in peer.alive() if f.type == PING]


def test_6_7_ping_on_a_stream(peer):
    peer.send(PING, 0, 1, bytes(8))
    peer.connection_error(PROTOCOL_ERROR)


@pytest.mark.parametrize("length", [0, 6, 7, 9])
@pytest.mark.parametrize("flags", [0, ACK])
def test_6_7_ping_of_a_wrong_length(peer, length, flags):
    peer.send(PING, flags, 0, bytes(length))
    peer.connection_error(FRAME_SIZE_ERROR)


# 6.8 GOAWAY

def test_6_8_goaway_on_a_stream(peer):
    peer.send(GOAWAY, 0, 1, word(0) + word(0))
    peer.connection_error(PROTOCOL_ERROR)


@pytest.mark.parametrize("length", [0, 4, 7])
def test_6_8_goaway_too_short(peer, length):
    peer.send(GOAWAY, 0, 0, bytes(length))
    peer.connection_error(FRAME_SIZE_ERROR)


@pytest.mark.parametrize("code", [0, 0xFF])
def test_6_8_streams_finish_after_the_clients_goaway(peer, target, code):
    peer.request(1, method="PUT", path=target.path + ".goaway", end=False)
    peer.send(GOAWAY, 0, 0, word(0) + word(code) + b"additional data")
    peer.send(DATA, END_STREAM, 1, b"test")
    assert peer.response(1).status in (200, 201)


# 6.9 WINDOW_UPDATE

def test_6_9_increment_of_0_on_the_connection(peer):
    peer.send(WINDOW_UPDATE, 0, 0, word(0))
    peer.connection_error(PROTOCOL_ERROR)


def test_6_9_increment_of_0_on_a_stream(peer):
    peer.request(1, method="PUT", end=False)
    peer.send(WINDOW_UPDATE, 0, 1, word(0))
    peer.stream_error(1, PROTOCOL_ERROR)


def test_6_9_increment_of_0_after_an_early_response(peer, target):
    peer.request(path=target.path, end=False)
    peer.response()
    peer.send(WINDOW_UPDATE, 0, 1, word(0))
    peer.stream_error(1, PROTOCOL_ERROR)


@pytest.mark.parametrize("length", [0, 3, 5])
@pytest.mark.parametrize("stream", [0, 1])
def test_6_9_window_update_of_a_wrong_length(peer, length, stream):
    peer.request(1, method="PUT", end=False)
    peer.send(WINDOW_UPDATE, 0, stream, bytes(length))
    peer.connection_error(FRAME_SIZE_ERROR)


def test_6_9_1_no_more_than_the_window_is_sent(connect, target):
    peer = connect().handshake((INITIAL_WINDOW_SIZE, 1))
    peer.request(path=target.path)
    assert len(peer.until(lambda f: f.type == DATA).payload) == 1
    assert not [f for f in peer.alive() if f.type == DATA]
    peer.send(WINDOW_UPDATE, 0, 1, word(3))
    assert len(peer.until(lambda f: f.type == DATA).payload) == 3
    peer.send(WINDOW_UPDATE, 0, 1, word(10000))
    while not peer.take().flags & END_STREAM:
        pass


def test_6_9_1_the_connections_window_holds_too(connect, target):
    peer = connect().handshake((INITIAL_WINDOW_SIZE, 1 << 20))
    peer.request(path=target.large)
    used = 0
    while used < 65_535:
        used += len(peer.until(lambda f: f.type == DATA).payload)
    assert used == 65_535
    assert not [f for f in peer.alive() if f.type == DATA]
    peer.send(WINDOW_UPDATE, 0, 0, word(5))
    # In two frames where the next piece of the file has not been read yet.
    while used < 65_540:
        used += len(peer.until(lambda f: f.type == DATA).payload)
    assert used == 65_540 and not [f for f in peer.alive() if f.type == DATA]


def test_6_9_1_connection_window_over_its_maximum(peer):
    peer.send(WINDOW_UPDATE, 0, 0, word(0x7FFFFFFF))
    peer.send(WINDOW_UPDATE, 0, 0, word(0x7FFFFFFF))
    peer.connection_error(FLOW_CONTROL_ERROR)


def test_6_9_1_stream_window_over_its_maximum(peer):
    peer.request(1, method="PUT", end=False)
    peer.send(WINDOW_UPDATE, 0, 1, word(0x7FFFFFFF))
    peer.send(WINDOW_UPDATE, 0, 1, word(0x7FFFFFFF))
    peer.stream_error(1, FLOW_CONTROL_ERROR)


def test_6_9_2_initial_window_changes_what_open_streams_may_send(connect, target):
    peer = connect().handshake((INITIAL_WINDOW_SIZE, 0))
    peer.request(path=target.path)
    peer.until(lambda f: f.type == HEADERS)
    assert not [f for f in peer.alive() if f.type == DATA]
    peer.send(SETTINGS, 0, 0, settings((INITIAL_WINDOW_SIZE, 1)))
    assert len(peer.until(lambda f: f.type == DATA).payload) == 1


def test_6_9_2_a_window_can_be_negative(connect, target):
    peer = connect().handshake((INITIAL_WINDOW_SIZE, 3))
    peer.request(path=target.path)
    assert len(peer.until(lambda f: f.type == DATA).payload) == 3
    peer.send(SETTINGS, 0, 0, settings((INITIAL_WINDOW_SIZE, 2)))  # The stream's window is -1 now.
    peer.send(WINDOW_UPDATE, 0, 1, word(1))
    assert not [f for f in peer.alive() if f.type == DATA]
    peer.send(WINDOW_UPDATE, 0, 1, word(2))
    assert len(peer.until(lambda f: f.type == DATA).payload) == 2


def test_6_9_2_initial_window_that_overflows_an_open_stream(connect, target):
    peer = connect().handshake((INITIAL_WINDOW_SIZE, 0))
    peer.request(method="PUT", path=target.path + ".open", end=False)
    peer.send(WINDOW_UPDATE, 0, 1, word(0x7FFFFFFF - 65535))
    peer.send(SETTINGS, 0, 0, settings((INITIAL_WINDOW_SIZE, 0x7FFFFFFF)))
    # RFC 9113 requires a connection error; nghttp2 ends each stream that overflows, which has the same effect.
    peer.stream_error(1, FLOW_CONTROL_ERROR)


def test_6_9_1_a_body_after_an_early_response_is_accepted_for_a_while(peer, target):
    peer.request(path=target.path, end=False)
    peer.response()
    window = peer.settings[INITIAL_WINDOW_SIZE]
    for _ in range(64):
        peer.send(DATA, 0, 1, bytes(16384))
        window -= 16384
        while window < 16384:
            got = peer.until(lambda f: f.stream == 1)
            assert got.type == WINDOW_UPDATE
            window += int.from_bytes(got.payload, "big")
    peer.send(DATA, 0, 1, b"one byte too many"[:1])
    assert peer.until(lambda f: f.type == RST_STREAM).code == 0
    peer.alive()


# 6.10 CONTINUATION

@pytest.mark.parametrize("parts", [1, 2, 8])
def test_6_10_header_block_in_parts(peer, target, parts):
    fields = block(peer.fields(path=target.path))
    peer.send(HEADERS, END_STREAM, 1, fields[:9])
    rest = fields[9:]
    for part in range(parts):
        last = part == parts - 1
        peer.send(CONTINUATION, END_HEADERS if last else 0, 1, rest if last else rest[:4])
        rest = rest[4:]
    assert peer.response().status == 200


def test_6_10_continuation_on_stream_0(peer):
    peer.send(HEADERS, END_STREAM, 1, block(peer.fields()))
    peer.send(CONTINUATION, END_HEADERS, 0, block([("x", "y")]))
    peer.connection_error(PROTOCOL_ERROR)


@pytest.mark.parametrize("before", ["headers", "continuation", "data", "nothing"])
def test_6_10_continuation_without_an_open_header_block(peer, before):
    if before == "headers":
        peer.request(1, method="PUT", end=False)
    elif before == "continuation":
        peer.send(HEADERS, 0, 1, block(peer.fields("PUT")))
        peer.send(CONTINUATION, END_HEADERS, 1, block([("x", "y")]))
    elif before == "data":
        peer.request(1, method="PUT", end=False)
        peer.send(DATA, 0, 1, b"test")
    peer.send(CONTINUATION, END_HEADERS, 1, block([("x", "y")]))
    peer.connection_error(PROTOCOL_ERROR)


# 7 Error codes

def test_7_unknown_error_codes_are_no_error(peer, target):
    peer.request(1, method="PUT", end=False)
    peer.send(RST_STREAM, 0, 1, word(0xABCD))
    peer.alive()
    peer.send(GOAWAY, 0, 0, word(0) + word(0xABCD))
    peer.send(PING, 0, 0, bytes(8))
    got = peer.read()
    assert got is None or got.type == PING or got.code == 0


# 5.4.1 What follows a connection error

def test_5_4_1_nothing_after_goaway_is_served(peer, target):
    peer.raw(frame(PING, 0, 0, bytes(6)) + frame(PING, 0, 0, b"too late")
             + frame(HEADERS, END_HEADERS | END_STREAM, 1, block(peer.fields(path=target.path))))
    peer.connection_error(FRAME_SIZE_ERROR)
    assert not [f for f in peer.seen if f.type in (PING, HEADERS, DATA)]


def test_5_4_1_goaway_names_the_last_stream(peer, target):
    peer.request(1, path=target.path)
    peer.response(1)
    peer.request(5, path=target.path)
    peer.response(5)
    peer.send(WINDOW_UPDATE, 0, 0, word(0))
    peer.connection_error(PROTOCOL_ERROR)
    goaway = [f for f in peer.seen if f.type == GOAWAY][-1]
    assert goaway.stream == 0 and int.from_bytes(goaway.payload[:4], "big") == 5


def test_a_stream_error_leaves_the_other_streams_alone(peer, target):
    peer.request(1, method="PUT", path=target.path + ".kept", end=False)
    peer.request(3, extra=[("Upper", "case")])
    peer.stream_error(3, PROTOCOL_ERROR, responded=False)
    peer.send(DATA, END_STREAM, 1, b"test")
    assert peer.response(1).status in (200, 201)
    peer.send(DATA, END_STREAM, 1, b"more")
    peer.stream_error(1, STREAM_CLOSED)
