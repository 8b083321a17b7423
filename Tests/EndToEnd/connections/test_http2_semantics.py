"""RFC 9113, section 8: which header blocks and bodies are requests, and which are malformed."""

import pytest

from http2_peer import (
    DATA, END_HEADERS, END_STREAM, HEADERS, INTERNAL_ERROR, PROTOCOL_ERROR, PUSH_PROMISE, block, word)


def malformed(peer, stream=1):
    """RFC 9113, section 8.1.1: a stream error of type PROTOCOL_ERROR and never a success."""
    peer.stream_error(stream, PROTOCOL_ERROR, responded=False)


# 8.1 Framing

def test_8_1_get(peer, target):
    peer.request(path=target.path)
    response = peer.response()
    assert response.status == 200 and response.body == target.body
    assert response["content-length"] == str(len(target.body))


def test_8_1_head(peer, target):
    peer.request(method="HEAD", path=target.path)
    response = peer.response()
    assert response.status == 200 and response.body == b""
    assert response["content-length"] == str(len(target.body))


def test_8_1_put_with_trailers(peer, target):
    peer.request(method="PUT", path=target.path + ".trailers", end=False)
    peer.send(DATA, 0, 1, b"body")
    peer.send(HEADERS, END_STREAM | END_HEADERS, 1, block([("x-checksum", "abc")]))
    assert peer.response().status in (200, 201)
    peer.request(3, path=target.path + ".trailers")
    assert peer.response(3).body == b"body"


def test_8_1_trailers_without_data(peer, target):
    peer.request(method="PUT", path=target.path + ".trailers", end=False)
    peer.send(HEADERS, END_STREAM | END_HEADERS, 1, block([("x-checksum", "abc")]))
    assert peer.response().status in (200, 201)


def test_8_1_trailers_without_end_stream(peer, target):
    peer.request(method="PUT", path=target.path + ".never", end=False)
    peer.send(DATA, 0, 1, b"body")
    peer.send(HEADERS, END_HEADERS, 1, block([("x-checksum", "abc")]))
    malformed(peer)
    peer.request(3, path=target.path + ".never")
    assert peer.response(3).status == 404


@pytest.mark.parametrize("responded", [False, True])
def test_8_1_second_header_block_without_end_stream(peer, target, responded):
    if responded:
        peer.request(path=target.path, end=False)
        peer.response()
    else:
        peer.request(method="PUT", path=target.path + ".never", end=False)
    peer.request(method="PUT", path=target.path + ".never", end=False)
    malformed(peer)


def test_8_1_data_after_trailers(peer, target):
    peer.request(method="PUT", path=target.path + ".trailers", end=False)
    peer.send(HEADERS, END_STREAM | END_HEADERS, 1, block([("x-checksum", "abc")]))
    peer.send(DATA, END_STREAM, 1, b"late")
    peer.stream_error(1, 0x5)


# 8.1.1 Content-Length

@pytest.mark.parametrize("length, parts", [
    ("1", [b"test"]), ("5", [b"test"]), ("0", [b"t"]), ("1", [b"te", b"st"]), ("9", [b"te", b"st"]), ("4", []),
    ("4", [b""]), ("3", [b"t", b"es", b"t"]),
])
@pytest.mark.parametrize("method", ["PUT", "GET", "POST"])
def test_8_1_1_content_length_differs_from_the_body(peer, target, length, parts, method):
    path = target.path + ".mismatch"
    peer.request(method=method, path=path, extra=[("content-length", length)], end=False)
    for part in parts[:-1]:
        peer.send(DATA, 0, 1, part)
    peer.send(DATA, END_STREAM, 1, parts[-1] if parts else b"")
    malformed(peer)
    peer.request(3, path=path)
    assert peer.response(3).status == 404


def test_8_1_1_content_length_with_no_body_at_all(peer, target):
    peer.request(method="PUT", path=target.path + ".mismatch", extra=[("content-length", "4")])
    malformed(peer)


@pytest.mark.parametrize("value", ["", "-1", "+4", "4x", "0x4", "4, 4", "99999999999999999999"])
def test_8_1_1_content_length_is_not_a_number(peer, target, value):
    peer.request(method="PUT", path=target.path + ".mismatch", extra=[("content-length", value)], end=False)
    malformed(peer)


def test_8_1_1_two_content_lengths(peer, target):
    peer.request(method="PUT", path=target.path + ".mismatch",
                 extra=[("content-length", "4"), ("content-length", "4")], end=False)
    malformed(peer)


def test_8_1_1_content_length_differs_after_an_early_response(peer, target):
    peer.request(path=target.path, extra=[("content-length", "1")], end=False)
    peer.response()
    peer.send(DATA, END_STREAM, 1, b"test")
    peer.stream_error(1, PROTOCOL_ERROR)


# 8.2 Fields

@pytest.mark.parametrize("field", [
    ("X-Tree", "oak"), ("xTree", "oak"), ("", "oak"), ("x tree", "oak"), ("x:tree", "oak"), ("x\0tree", "oak"),
    ("x-trée", "oak"), ("x\ttree", "oak"), ("x\x7f", "oak"),
    ("x-tree", "o\0ak"), ("x-tree", "o\rak"), ("x-tree", "o\nak"), ("x-tree", "o\r\nx: y"),
])
def test_8_2_1_invalid_field(peer, target, field):
    peer.request(path=target.path, extra=[field])
    malformed(peer)


@pytest.mark.parametrize("value", [" oak", "oak ", "\toak", "oak\t"])
def test_8_2_1_space_around_a_value(peer, target, value):
    peer.request(path=target.path, extra=[("x-tree", value)])
    malformed(peer)


@pytest.mark.parametrize("field", [
    ("connection", "keep-alive"), ("connection", "close"), ("keep-alive", "timeout=5"), ("proxy-connection", "close"),
    ("transfer-encoding", "chunked"), ("upgrade", "h2c"), ("te", "gzip"), ("te", "trailers, deflate;q=0.5"),
])
def test_8_2_2_connection_specific_field(peer, target, field):
    peer.request(path=target.path, extra=[field])
    malformed(peer)


@pytest.mark.parametrize("value", ["trailers"])
def test_8_2_2_te_trailers_is_fine(peer, target, value):
    peer.request(path=target.path, extra=[("te", value)])
    assert peer.response().status == 200


def test_8_2_3_cookie_in_pieces(peer, target):
    peer.request(path=target.path, extra=[("cookie", "a=b"), ("cookie", "c=d")])
    assert peer.response().status == 200


# 8.3 Pseudo-header fields

@pytest.mark.parametrize("field", [(":tree", "oak"), (":status", "200"), (":protocol", "websocket"), (":", "x")])
def test_8_3_unknown_or_response_pseudo_header(peer, target, field):
    head = block([field]) + block(peer.fields(path=target.path))
    peer.send(HEADERS, END_STREAM | END_HEADERS, 1, head)
    malformed(peer)


@pytest.mark.parametrize("name", [":method", ":scheme", ":path", ":authority"])
def test_8_3_pseudo_header_after_a_regular_field(peer, target, name):
    fields = peer.fields(path=target.path)
    moved = [pair for pair in fields if pair[0] == name]
    rest = [pair for pair in fields if pair[0] != name]
    peer.send(HEADERS, END_STREAM | END_HEADERS, 1, block(rest + [("x-tree", "oak")] + moved))
    malformed(peer)


@pytest.mark.parametrize("name", [":method", ":scheme", ":path", ":authority", ":status", ":tree"])
@pytest.mark.parametrize("responded", [False, True])
def test_8_3_pseudo_header_in_trailers(peer, target, name, responded):
    if responded:
        peer.request(path=target.path, end=False)
        peer.response()
    else:
        peer.request(method="PUT", path=target.path + ".never", end=False)
    peer.send(HEADERS, END_STREAM | END_HEADERS, 1, block([(name, "200")]))
    malformed(peer)


@pytest.mark.parametrize("name", [":method", ":scheme", ":path"])
def test_8_3_1_missing(peer, target, name):
    peer.request(path=target.path, without=[name])
    malformed(peer)


@pytest.mark.parametrize("name", [":method", ":scheme", ":path", ":authority"])
def test_8_3_1_twice(peer, target, name):
    fields = peer.fields(path=target.path)
    again = [pair for pair in fields if pair[0] == name]
    peer.send(HEADERS, END_STREAM | END_HEADERS, 1, block(fields + again))
    malformed(peer)


@pytest.mark.parametrize("path", ["", "b/photos", "*", "http://example.com/"])
def test_8_3_1_invalid_path(peer, path):
    peer.request(path=path)
    got = peer.until(lambda f: f.stream == 1)
    if got.type == HEADERS:  # A response instead of the reset (section 8.1.1) must be a client error.
        assert path and dict(peer.decoder.decode(got.payload))[":status"] in ("400", "404")
    else:
        assert got.code == PROTOCOL_ERROR
    peer.alive()


@pytest.mark.parametrize("method", ["", "G ET", "GET\0"])
def test_8_3_1_method_that_is_not_a_token(peer, target, method):
    peer.request(method=method, path=target.path)
    got = peer.until(lambda f: f.stream == 1)
    if got.type == HEADERS:
        assert dict(peer.decoder.decode(got.payload))[":status"] in ("400", "405", "501")
    else:
        assert got.code == PROTOCOL_ERROR


def test_8_3_1_host_differs_from_authority(peer, target):
    peer.request(path=target.path, extra=[("host", "elsewhere.example")])
    assert peer.response().status == 400


def test_8_3_1_host_replaces_authority(peer, target):
    peer.request(path=target.path, extra=[("host", peer.authority)], without=[":authority"])
    assert peer.response().status == 200


def test_8_5_connect_is_rejected(peer):
    peer.send(HEADERS, END_HEADERS, 1, block([(":method", "CONNECT"), (":authority", "example.com:443")]))
    got = peer.until(lambda f: f.stream == 1)
    if got.type == HEADERS:
        assert dict(peer.decoder.decode(got.payload))[":status"] in ("400", "404", "405", "501")
    else:
        assert got.code != INTERNAL_ERROR
    peer.alive()


# 8.4 Push

def test_8_4_push_promise_from_a_client(peer):
    peer.request(1, method="PUT", end=False)
    peer.send(PUSH_PROMISE, END_HEADERS, 1, word(2) + block(peer.fields()))
    peer.connection_error(PROTOCOL_ERROR)


def test_8_4_the_server_pushes_nothing(peer, target):
    peer.request(path=target.path)
    peer.response()
    peer.alive()
    assert all(f.type != PUSH_PROMISE for f in peer.seen)
    assert all(f.stream in (0, 1) for f in peer.seen)


# Responses

def test_a_response_is_well_formed(peer, target):
    for stream, path in ((1, target.path), (3, "/"), (5, "/b/photos/o/%zz"), (7, target.path + ".none")):
        peer.request(stream, path=path)
        response = peer.response(stream)
        names = [name for name, _ in response.fields]
        assert names[0] == ":status" and names.count("date") == 1 and names.count("content-length") == 1
        assert all(name == name.lower() for name in names)
        assert not {"connection", "keep-alive", "transfer-encoding", "upgrade"} & set(names)
        assert int(response["content-length"]) == len(response.body)


def test_streams_are_served_concurrently(peer, target):
    for stream in range(1, 41, 2):
        peer.request(stream, path=target.path)
    ended = set()
    while len(ended) < 20:
        got = peer.take()
        if got.type in (DATA, HEADERS) and got.flags & END_STREAM:
            ended.add(got.stream)
