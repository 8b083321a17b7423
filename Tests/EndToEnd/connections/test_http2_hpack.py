"""RFC 7541: every form of a header field, valid and invalid."""

import hpack
import pytest

from http2_peer import (
    COMPRESSION_ERROR, CONTINUATION, END_HEADERS, END_STREAM, HEADERS, HEADER_TABLE_SIZE, PROTOCOL_ERROR, SETTINGS, ACK,
    block, integer, literal, settings)


def ask(peer, header_block, stream=1):
    peer.send(HEADERS, END_STREAM | END_HEADERS, stream, header_block)


def huffman(text):
    return hpack.huffman.HuffmanEncoder(
        hpack.huffman_constants.REQUEST_CODES, hpack.huffman_constants.REQUEST_CODES_LENGTH).encode(text)


def head(peer, target, extra=b""):
    return block(peer.fields(path=target.path)) + extra


# 2.3 and 6.1: the tables

def test_6_1_indexed_fields_of_the_static_table(peer, target):
    scheme = b"\x86" if peer.scheme == "http" else b"\x87"
    ask(peer, b"\x82" + scheme + literal(":path", target.path) + literal(":authority", peer.authority))
    assert peer.response().status == 200


def test_6_1_index_0(peer, target):
    ask(peer, head(peer, target, b"\x80"))
    peer.connection_error(COMPRESSION_ERROR)


@pytest.mark.parametrize("index", [62, 63, 70, 127, 4096, 2**31 - 1])
def test_2_3_3_index_beyond_the_tables(peer, target, index):
    ask(peer, head(peer, target, integer(index, 7, 0x80)))
    peer.connection_error(COMPRESSION_ERROR)


@pytest.mark.parametrize("first, prefix", [(0x40, 6), (0x00, 4), (0x10, 4)])
def test_2_3_3_name_index_beyond_the_tables(peer, target, first, prefix):
    ask(peer, head(peer, target, integer(70, prefix, first) + b"\x01x"))
    peer.connection_error(COMPRESSION_ERROR)


def test_2_3_2_dynamic_table_is_first_in_first_out(peer, target):
    # Two entries; index 62 is the later one.
    ask(peer, head(peer, target, b"\x40\x03x-a\x01a" + b"\x40\x03x-b\x01b"))
    assert peer.response(1).status == 200
    ask(peer, head(peer, target, b"\xbe\xbf"), 3)
    assert peer.response(3).status == 200
    ask(peer, head(peer, target, b"\xc0"), 5)
    peer.connection_error(COMPRESSION_ERROR)


def test_2_3_2_table_is_shared_by_the_streams_of_a_connection(peer, target):
    scheme = b"\x86" if peer.scheme == "http" else b"\x87"
    ask(peer, b"\x82" + scheme + literal(":path", target.path, 0x40) + literal(":authority", peer.authority))
    peer.response(1)
    ask(peer, b"\x82" + scheme + b"\xbe" + literal(":authority", peer.authority), 3)
    assert peer.response(3).body == target.body


# 4 The dynamic table's size

def test_4_2_size_update_at_the_start(peer, target):
    ask(peer, b"\x20" + integer(4096, 5, 0x20) + head(peer, target))
    assert peer.response().status == 200


def test_4_2_size_update_empties_the_table(peer, target):
    ask(peer, head(peer, target, b"\x40\x03x-a\x01a"))
    peer.response(1)
    ask(peer, b"\x20" + integer(4096, 5, 0x20) + head(peer, target, b"\xbe"), 3)
    peer.connection_error(COMPRESSION_ERROR)


@pytest.mark.parametrize("position", ["end", "middle"])
def test_4_2_size_update_not_at_the_start(peer, target, position):
    fields = [literal(*pair) for pair in peer.fields(path=target.path)]
    if position == "end":
        fields.append(b"\x20")
    else:
        fields.insert(1, b"\x20")
    ask(peer, b"".join(fields))
    peer.connection_error(COMPRESSION_ERROR)


@pytest.mark.parametrize("size", [4097, 65536, 2**32 - 1, 2**32, 2**63])
def test_6_3_size_update_over_the_setting(peer, target, size):
    ask(peer, integer(size, 5, 0x20) + head(peer, target))
    peer.connection_error(COMPRESSION_ERROR)


def test_4_1_entry_larger_than_the_table_empties_it(peer, target):
    ask(peer, head(peer, target, b"\x40\x03x-a\x01a" + literal("x-large", "v" * 4096, 0x40)))
    peer.response(1)
    ask(peer, head(peer, target, b"\xbe"), 3)
    peer.connection_error(COMPRESSION_ERROR)


def test_4_2_server_keeps_to_the_clients_table_size(connect, target):
    peer = connect().handshake((HEADER_TABLE_SIZE, 0))
    peer.decoder.max_allowed_table_size = 0
    for stream in (1, 3, 5):
        peer.request(stream, path=target.path)
        assert peer.response(stream).status == 200
    assert len(peer.decoder.header_table.dynamic_entries) == 0


def test_4_2_server_announces_a_smaller_table(peer, target):
    peer.request(1, path=target.path)
    peer.response(1)
    peer.send(SETTINGS, 0, 0, settings((HEADER_TABLE_SIZE, 0)))
    peer.until(lambda f: f.type == SETTINGS and f.flags & ACK)
    peer.decoder.max_allowed_table_size = 0
    peer.request(3, path=target.path)
    # The decoder rejects the block unless it begins with the size update.
    assert peer.response(3).status == 200


# 5.1 Integers

def test_5_1_long_form_of_a_small_integer(peer, target):
    ask(peer, head(peer, target, b"\x00\x01x\x7f\x80\x00" + b"v" * 127))
    assert peer.response().status == 200


@pytest.mark.parametrize("number", [b"\xff" + b"\xff" * 4 + b"\x7f", b"\xff" + b"\xff" * 20 + b"\x01",
                                    b"\xff" + b"\x80" * 100])
def test_5_1_integer_overflows(peer, target, number):
    ask(peer, head(peer, target, number))
    peer.connection_error(COMPRESSION_ERROR)


@pytest.mark.parametrize("cut", [b"\xff", b"\xff\x80", b"\x40", b"\x40\x01", b"\x40\x01x", b"\x40\x01x\x05ab", b"\x00\x7f",
                                 b"\x00\x81", b"\x3f"])
def test_5_1_block_ends_within_a_field(peer, target, cut):
    ask(peer, head(peer, target, cut))
    peer.connection_error(COMPRESSION_ERROR)


# 5.2 Strings

def test_5_2_huffman_coded(peer, target):
    fields = b""
    for name, value in peer.fields(path=target.path, extra=[("x-tree", "Quercus robur")]):
        name, value = huffman(name.encode()), huffman(value.encode())
        fields += b"\x00" + integer(len(name), 7, 0x80) + name + integer(len(value), 7, 0x80) + value
    ask(peer, fields)
    response = peer.response()
    assert response.status == 200 and response.body == target.body


@pytest.mark.parametrize("coded", [
    pytest.param(b"\x1c\x64\xff\xff\xff", id="more than 7 bits of padding"),
    pytest.param(b"\x1f\xff", id="8 bits of padding"),
    pytest.param(b"\x18", id="padding of zeros"),
    pytest.param(b"\xff\xff\xff\xfc", id="EOS"),
    pytest.param(b"\x1f\xff\xff\xff\xff", id="EOS after a symbol"),
])
def test_5_2_wrong_huffman_coding(peer, target, coded):
    ask(peer, head(peer, target, b"\x00\x06x-test" + integer(len(coded), 7, 0x80) + coded))
    peer.connection_error(COMPRESSION_ERROR)


@pytest.mark.parametrize("value", ["", "v", "v" * 127, "v" * 300])
@pytest.mark.parametrize("first", [0x40, 0x00, 0x10])
def test_6_2_literals_with_a_new_name(peer, target, first, value):
    ask(peer, head(peer, target, literal("x-tree", value, first)))
    assert peer.response().status == 200


@pytest.mark.parametrize("first, prefix", [(0x40, 6), (0x00, 4), (0x10, 4)])
def test_6_2_literals_with_an_indexed_name(peer, target, first, prefix):
    ask(peer, head(peer, target, integer(58, prefix, first) + b"\x05tests"))  # user-agent
    assert peer.response().status == 200


# The whole block

def test_a_block_may_be_cut_anywhere(peer, target):
    whole = head(peer, target, b"\x40\x03x-a\x01a" + integer(58, 4) + b"\x05tests")
    for number, cut in enumerate((1, 7, len(whole) // 2, len(whole) - 1)):
        stream = 2 * number + 1
        peer.send(HEADERS, END_STREAM, stream, whole[:cut])
        peer.send(CONTINUATION, END_HEADERS, stream, whole[cut:])
        assert peer.response(stream).status == 200


def test_a_malformed_request_still_counts_for_compression(peer, target):
    ask(peer, block([(":method", "GET")]) + b"\x40\x03x-a\x01a")
    peer.stream_error(1, PROTOCOL_ERROR, responded=False)
    ask(peer, head(peer, target, b"\xbe"), 3)
    assert peer.response(3).status == 200
