"""HTTP/1.1 as RFC 9110 and RFC 9112 have it: messages that two servers could read differently are rejected."""

import pytest

from raw import connect, read_to_end, responses, target

OBJECT = b"/b/photos/o/strict"
LAST = b"GET /b/photos/o/none HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"


def get(*lines, start=b"GET " + OBJECT + b" HTTP/1.1", host=b"Host: a"):
    fields = ([host] if host is not None else []) + list(lines)
    return start + b"\r\n" + b"".join(line + b"\r\n" for line in fields) + b"\r\n"


def put(*lines, body=b"", **options):
    return get(*lines, start=b"PUT " + OBJECT + b" HTTP/1.1", **options) + body


def chunked(body, **options):
    return put(b"Transfer-Encoding: chunked", body=body, **options)


REFUSED = {
    # Lengths (RFC 9112, section 6.3).
    "both lengths": (put(b"Content-Length: 5", b"Transfer-Encoding: chunked", body=b"0\r\n\r\n"), 400),
    "both lengths, the other order": (put(b"Transfer-Encoding: chunked", b"Content-Length: 5", body=b"0\r\n\r\n"), 400),
    "two lengths that differ": (put(b"Content-Length: 5", b"Content-Length: 6", body=b"hello"), 400),
    "two equal lengths": (put(b"Content-Length: 5", b"Content-Length: 5", body=b"hello"), 400),
    "a list of lengths": (put(b"Content-Length: 5, 5", body=b"hello"), 400),
    "plus": (put(b"Content-Length: +5", body=b"hello"), 400),
    "minus": (put(b"Content-Length: -5", body=b"hello"), 400),
    "hexadecimal": (put(b"Content-Length: 0x5", body=b"hello"), 400),
    "empty length": (put(b"Content-Length:", body=b"hello"), 400),
    "blank in a length": (put(b"Content-Length: 1 0", body=b"hello"), 400),
    "length with a fraction": (put(b"Content-Length: 5.0", body=b"hello"), 400),
    "huge length": (put(b"Content-Length: " + b"9" * 30), 400),
    "length beyond 64 bits": (put(b"Content-Length: 18446744073709551621", body=b"hello"), 400),
    "letters as length": (put(b"Content-Length: five", body=b"hello"), 400),
    "digits that are not ASCII": (put("Content-Length: ٥".encode(), body=b"hello"), 400),
    # Lines and fields (RFC 9112, sections 2.2 and 5).
    "bare LF everywhere": (get().replace(b"\r\n", b"\n"), 400),
    "bare LF after a field": (b"GET / HTTP/1.1\r\nHost: a\nX: b\r\n\r\n", 400),
    "bare LF at the end": (b"GET / HTTP/1.1\r\nHost: a\r\n\n", 400),
    "bare CR in a value": (get(b"X: a\rb"), 400),
    "CR CR LF": (get(b"X: a\r"), 400),
    "obs-fold": (get(b"X: a", b" folded"), 400),
    "obs-fold with a tab": (get(b"X: a", b"\tfolded"), 400),
    "blank before the first field": (b"GET / HTTP/1.1\r\n Host: a\r\n\r\n", 400),
    "blank before the colon": (get(b"X : a"), 400),
    "tab before the colon": (get(b"X\t: a"), 400),
    "length with a blank before the colon": (put(b"Content-Length : 5", body=b"hello"), 400),
    "no colon": (get(b"X"), 400),
    "no name": (get(b": a"), 400),
    "NUL in a value": (get(b"X: a\0b"), 400),
    "NUL in a name": (get(b"X\0Y: a"), 400),
    "control in a value": (get(b"X: a\x01b"), 400),
    "DEL in a value": (get(b"X: a\x7fb"), 400),
    "control in a name": (get(b"X\x01Y: a"), 400),
    "a name that is not ASCII": (get("É: a".encode()), 400),
    "brackets in a name": (get(b"X[]: a"), 400),
    "two empty lines first": (b"\r\n\r\n" + get(), 400),
    # Hosts (RFC 9112, section 3.2).
    "no host": (get(host=None), 400),
    "two hosts": (get(b"Host: b"), 400),
    "two equal hosts": (get(b"Host: a"), 400),
    "host with a blank": (get(host=b"Host: a b"), 400),
    "host with a path": (get(host=b"Host: a/b"), 400),
    "host with user information": (get(host=b"Host: me@a"), 400),
    "list of hosts": (get(host=b"Host: a,b"), 400),
    "host that is not ASCII": (get(host="Host: á".encode()), 400),
    # Request lines (RFC 9112, section 3).
    "lower-case version": (get(start=b"GET / http/1.1"), 400),
    "no version (HTTP/0.9)": (b"GET /\r\n\r\n", 400),
    "version with a blank": (get(start=b"GET / HTTP/1.1 "), (400, 505)),
    "two blanks": (get(start=b"GET  / HTTP/1.1"), 400),
    "tab between": (get(start=b"GET\t/ HTTP/1.1"), 400),
    "blank in the target": (get(start=b"GET /a b HTTP/1.1"), (400, 505)),
    "blank first": (get(start=b" GET / HTTP/1.1"), 400),
    "HTTP/2.0": (get(start=b"GET / HTTP/2.0"), 505),
    "HTTP/1.x": (get(start=b"GET / HTTP/1.x"), 505),
    "HTTP/1,2": (get(start=b"GET / HTTP/1,2"), 505),
    "HTTP/3.0": (get(start=b"GET / HTTP/3.0"), 505),
    "HTTP/1.10": (get(start=b"GET / HTTP/1.10"), 505),
    "HTTP/01.1": (get(start=b"GET / HTTP/01.1"), 505),
    "a method that is no token": (get(start=b"G(T / HTTP/1.1"), 400),
    "a very long method": (get(start=b"G" * 300 + b" / HTTP/1.1"), 400),
    "no slash": (get(start=b"GET b/photos HTTP/1.1"), 400),
    "asterisk of GET": (get(start=b"GET * HTTP/1.1"), 400),
    "authority form": (get(start=b"CONNECT a:443 HTTP/1.1"), 400),
    "fragment": (get(start=b"GET /a#b HTTP/1.1"), 400),
    "control in the target": (get(start=b"GET /\x01 HTTP/1.1"), 400),
    "target that is not UTF-8": (get(start=b"GET /\xff HTTP/1.1"), 400),
    "absolute form without host": (get(start=b"GET http:///b HTTP/1.1"), 400),
    "absolute form with user information": (get(start=b"GET http://me@a/b HTTP/1.1"), 400),
    "absolute form with a quote": (get(start=b'GET http://a"b/c HTTP/1.1'), 400),
    "absolute form of another scheme": (get(start=b"GET ftp://a/b HTTP/1.1"), 400),
    "garbage": (b"\x80\x81\x82 hello\r\n\r\n", 400),
    "TLS on the clear port": (bytes.fromhex("16030100c8010000c40303") + bytes(190), 400),
    # Transfer codings (RFC 9112, sections 6.1 and 7.1).
    "chunked in HTTP/1.0": (put(b"Transfer-Encoding: chunked", body=b"0\r\n\r\n").replace(b"/1.1\r", b"/1.0\r"), 400),
    "gzip": (put(b"Transfer-Encoding: gzip"), (400, 501)),
    "gzip, chunked": (put(b"Transfer-Encoding: gzip, chunked", body=b"0\r\n\r\n"), (400, 501)),
    "chunked, gzip": (put(b"Transfer-Encoding: chunked, gzip", body=b"0\r\n\r\n"), (400, 501)),
    "chunked, chunked": (put(b"Transfer-Encoding: chunked, chunked", body=b"0\r\n\r\n"), (400, 501)),
    "chunked twice": (put(b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked", body=b"0\r\n\r\n"), (400, 501)),
    "chunked and identity": (put(b"Transfer-Encoding: identity", b"Transfer-Encoding: chunked", body=b"0\r\n\r\n"), (400, 501)),
    "empty coding": (put(b"Transfer-Encoding:", body=b"0\r\n\r\n"), (400, 501)),
    "chunked with a parameter": (put(b"Transfer-Encoding: chunked;a=b", body=b"0\r\n\r\n"), (400, 501)),
    "chunked after a vertical tab": (put(b"Transfer-Encoding: \x0bchunked", body=b"0\r\n\r\n"), 400),
    "quoted chunked": (put(b'Transfer-Encoding: "chunked"', body=b"0\r\n\r\n"), (400, 501)),
    "chunked with a Kelvin sign": (put("Transfer-Encoding: chun\u212aed".encode(), body=b"0\r\n\r\n"), (400, 501)),
    "no chunk size": (chunked(b"\r\nhello\r\n0\r\n\r\n"), 400),
    "chunk size with a sign": (chunked(b"+5\r\nhello\r\n0\r\n\r\n"), 400),
    "minus chunk size": (chunked(b"-5\r\nhello\r\n0\r\n\r\n"), 400),
    "0x chunk size": (chunked(b"0x5\r\nhello\r\n0\r\n\r\n"), 400),
    "chunk size that is no number": (chunked(b"xyz\r\nhello\r\n0\r\n\r\n"), 400),
    "blank before a chunk size": (chunked(b" 5\r\nhello\r\n0\r\n\r\n"), 400),
    "blank after a chunk size": (chunked(b"5 \r\nhello\r\n0\r\n\r\n"), 400),
    "huge chunk size": (chunked(b"FFFFFFFFFFFFFFFFF\r\nhello\r\n"), 400),
    "chunk size that wraps": (chunked(b"10000000000000005\r\nhello\r\n0\r\n\r\n"), 400),
    "chunk longer than said": (chunked(b"3\r\nhello\r\n0\r\n\r\n"), 400),
    "LF after a chunk size": (chunked(b"5\nhello\r\n0\r\n\r\n"), 400),
    "LF after a chunk": (chunked(b"5\r\nhello\n0\r\n\r\n"), 400),
    "LF in an extension": (chunked(b"5;a\nb\r\nhello\r\n0\r\n\r\n"), 400),
    "CR in an extension": (chunked(b"5;a\rb\r\nhello\r\n0\r\n\r\n"), 400),
    "NUL in an extension": (chunked(b"5;a\0\r\nhello\r\n0\r\n\r\n"), 400),
    "endless extension": (chunked(b"5;" + b"a" * 20000), 400),
    "trailer without a colon": (chunked(b"0\r\nX\r\n\r\n"), 400),
    "trailer without a name": (chunked(b"0\r\n: a\r\n\r\n"), 400),
    "folded trailer": (chunked(b"0\r\nX: a\r\n b\r\n\r\n"), 400),
    "control in a trailer": (chunked(b"0\r\nX: a\x01\r\n\r\n"), 400),
    "LF at the end of trailers": (chunked(b"0\r\nX: a\r\n\n"), 400),
    "endless trailers": (chunked(b"0\r\n" + b"X: a\r\n" * 4000), 400),
    # Limits.
    "long target": (get(start=b"GET /" + b"a" * 9000 + b" HTTP/1.1"), 414),
    "endless request line": (b"GET /" + b"a" * 40000, 414),
    "long field": (get(b"X: " + b"a" * 40000), 431),
    "endless field": (b"GET / HTTP/1.1\r\nX: " + b"a" * 60000, 431),
    "many bytes in fields": (get(*[b"X%d: " % n + b"a" * 1000 for n in range(40)]), 431),
    "many fields": (get(*[b"X%d: a" % n for n in range(120)]), 431),
    "a very long name": (get(b"X" * 300 + b": a"), 400),
    # Expectations (RFC 9110, section 10.1.1).
    "unknown expectation": (get(b"Expect: tea"), 417),
    "two expectations": (put(b"Expect: 100-continue", b"Expect: tea", b"Content-Length: 0"), 417),
}

SERVED = {
    "plain": get(),
    "one empty line first": b"\r\n" + get(),
    "no blank after the colon": get(b"X:a"),
    "blanks around a value": get(b"X: \t a \t "),
    "empty value": get(b"X:"),
    "bytes above ASCII in a value": get(b"X: \xe9\xff"),
    "empty host": get(host=b"Host:"),
    "host with a port": get(host=b"Host: a:80"),
    "IPv6 host": get(host=b"Host: [::1]:80"),
    "every token character": get(b"!#$%&'*+-.^_`|~09azAZ: a"),
    "unknown method": get(start=b"BREW " + OBJECT + b" HTTP/1.1"),
    "lower-case method": get(start=b"get " + OBJECT + b" HTTP/1.1"),
    "absolute form": get(start=b"GET http://b" + OBJECT + b" HTTP/1.1"),
    "absolute form, host differs": get(start=b"GET HTTP://b:81/ HTTP/1.1"),
    "absolute form without a path": get(start=b"GET http://b HTTP/1.1"),
    "absolute form with a query": get(start=b"GET http://b?c HTTP/1.1"),
    "a later minor version": get(start=b"GET " + OBJECT + b" HTTP/1.2"),
    "the last minor version": get(start=b"GET " + OBJECT + b" HTTP/1.9"),
    "asterisk": get(start=b"OPTIONS * HTTP/1.1"),
    "length 0": put(b"Content-Length: 0"),
    "leading zeros": put(b"Content-Length: 0005", body=b"hello"),
    "length": put(b"Content-Length: 5", body=b"hello"),
    "blanks around a length": put(b"Content-Length: \t5 ", body=b"hello"),
    "chunked": chunked(b"5\r\nhello\r\n0\r\n\r\n"),
    "Chunked": put(b"Transfer-Encoding: CHUNKED", body=b"5\r\nhello\r\n0\r\n\r\n"),
    "no chunk": chunked(b"0\r\n\r\n"),
    "chunk sizes with zeros and capitals": chunked(b"00A\r\n0123456789\r\na\r\n0123456789\r\n000\r\n\r\n"),
    "chunk extensions": chunked(b'5;a=b;c="d e"\r\nhello\r\n0;x\r\n\r\n'),
    "trailers": chunked(b"5\r\nhello\r\n0\r\nX: a\r\nContent-Length: 7\r\n\r\n"),
    "connection list": get(b"Connection: keep-alive, X-Other"),
    "upgrade to h2c is ignored": get(b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABkAAQAAP__"),
    "expectation": put(b"Expect: 100-continue", b"Content-Length: 5", body=b"hello"),
}


@pytest.fixture
def address(request):
    return target(request)


def talk(address, *parts):
    with connect(address) as raw:
        for part in parts:
            raw.sendall(part)
        return read_to_end(raw)


@pytest.mark.parametrize("name", REFUSED)
def test_refused(address, name):
    data, wanted = REFUSED[name]
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    found = responses(talk(address, data, LAST))
    assert len(found) == 1, f"{len(found)} responses"
    assert found[0].status in wanted
    assert found[0].fields["connection"] == "close"
    assert found[0].fields["content-type"] == "application/problem+json"


@pytest.mark.parametrize("name", SERVED)
def test_served(address, name):
    found = responses(talk(address, SERVED[name], LAST))
    found = [one for one in found if one.status != 100]
    assert len(found) == 2, [one.status for one in found]
    assert found[0].status not in (400, 408, 411, 414, 417, 431, 500, 501, 505), found[0].body
    if SERVED[name].startswith(b"PUT"):
        assert found[0].status in (200, 201)
    assert found[1].fields.get("connection") == "close"


@pytest.mark.parametrize("name", ["chunk extensions", "trailers", "one empty line first"])
def test_every_split_gives_the_same_response(address, name):
    data = SERVED[name]
    with connect(address) as raw:
        for split in range(1, len(data)):
            raw.sendall(data[:split])
            raw.sendall(data[split:])
            assert read_one(raw).status in (200, 201, 404), split
        for byte in data + LAST:
            raw.sendall(bytes([byte]))
        assert len(responses(read_to_end(raw))) == 2


@pytest.mark.parametrize("name", ["both lengths", "bare CR in a value", "chunk longer than said", "two hosts"])
def test_every_split_is_rejected(address, name):
    data, wanted = REFUSED[name]
    for split in range(1, len(data), 3):
        found = responses(talk(address, data[:split], data[split:]))
        assert [one.status for one in found] == [wanted], split


def read_one(raw):
    taken = b""
    while b"\r\n\r\n" not in taken:
        taken += raw.recv(65536)
    length = 0
    for line in taken.partition(b"\r\n\r\n")[0].split(b"\r\n"):
        if line.lower().startswith(b"content-length:"):
            length = int(line.split(b":")[1])
    while len(taken.partition(b"\r\n\r\n")[2]) < length:
        taken += raw.recv(65536)
    found = responses(taken)
    assert len(found) == 1
    return found[0]


def test_a_body_is_not_read_as_a_request(address):
    smuggled = get(start=b"GET /smuggled HTTP/1.1")
    data = put(b"Content-Length: %d" % len(smuggled), body=smuggled)
    data += chunked(b"%x\r\n" % len(smuggled) + smuggled + b"\r\n0\r\n\r\n")
    found = responses(talk(address, data, LAST))
    assert [one.status in (200, 201) for one in found[:2]] == [True, True]
    assert len(found) == 3


def test_the_body_of_a_get_is_not_read_as_a_request(address):
    smuggled = get(start=b"BREW /smuggled HTTP/1.1")
    found = responses(talk(address, get(b"Content-Length: %d" % len(smuggled)) + smuggled + LAST))
    # The response does not need the body, so the server may close instead of reading it.
    assert len(found) == 2 or found[0].fields["connection"] == "close"
    assert all(one.status in (200, 404) for one in found)


def test_pipelined_requests_are_served_in_order(address):
    parts = [get(start=b"GET /b/photos/o/n%d HTTP/1.1" % n) for n in range(50)]
    parts[7] = put(b"Content-Length: 5", body=b"hello")
    found = responses(talk(address, b"".join(parts) + LAST))
    assert len(found) == 51
    assert found[7].status in (200, 201)


def test_head_has_no_body(address):
    found = responses(talk(address, get(start=b"HEAD " + OBJECT + b" HTTP/1.1") + LAST), heads=(0,))
    assert len(found) == 2


@pytest.mark.parametrize("option", [b"close", b"Close", b"x, close", b"close,x", b" ,close"])
def test_connection_close(address, option):
    found = responses(talk(address, get(b"Connection: " + option) + LAST))
    assert len(found) == 1
    assert found[0].fields["connection"] == "close"


@pytest.mark.parametrize("lines", [(), (b"Connection: keep-alive",)])
def test_http_1_0_closes(address, lines):
    found = responses(talk(address, get(*lines, start=b"GET / HTTP/1.0", host=None) + LAST))
    assert len(found) == 1


def test_a_client_that_half_closes_gets_a_response(address):
    import socket

    with connect(address) as raw:
        raw.sendall(get())
        raw.shutdown(socket.SHUT_WR)
        assert len(responses(read_to_end(raw))) == 1


def test_100_comes_before_the_body(address):
    with connect(address) as raw:
        raw.sendall(put(b"Expect: 100-continue", b"Content-Length: 5"))
        assert raw.recv(1024).startswith(b"HTTP/1.1 100 Continue\r\n\r\n")
        raw.sendall(b"hello" + LAST)
        assert len(responses(read_to_end(raw))) == 2
