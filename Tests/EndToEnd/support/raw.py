"""Raw connections, which send and receive exactly the given bytes, without the corrections of a client library."""

import os
import socket
import ssl
import time


def target(request):
    """The host and port of SLUICE_TARGET, or of the shared server."""
    given = os.environ.get("SLUICE_TARGET")
    if given:
        host, port = given.rsplit(":", 1)
        return host, int(port)
    return "127.0.0.1", request.getfixturevalue("server").http


def connect(address, receive_buffer=None, timeout=10):
    raw = socket.socket()
    if receive_buffer:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    raw.settimeout(timeout)
    raw.connect(address)
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return raw


def encrypt(raw, protocols=("h2",)):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(list(protocols))
    return context.wrap_socket(raw)


def read_to_end(raw, timeout=10):
    """Reads until the server ends the connection, orderly or with a reset."""
    raw.settimeout(timeout)
    taken = bytearray()
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        try:
            more = raw.recv(65536)
        except ConnectionError:
            return bytes(taken)
        if not more:
            return bytes(taken)
        taken += more
    raise AssertionError("the server did not end the connection")


class Response:
    def __init__(self, status, fields, body):
        self.status, self.fields, self.body = status, fields, body


def responses(taken, heads=()):
    """Splits HTTP/1.1 responses. `heads` has the indices of responses to HEAD."""
    found = []
    while taken:
        head, separator, rest = taken.partition(b"\r\n\r\n")
        assert separator, f"half a response: {taken[:200]!r}"
        line, *lines = head.split(b"\r\n")
        version, status = line.split(b" ")[:2]
        assert version == b"HTTP/1.1", line
        fields = {}
        for text in lines:
            name, value = text.split(b":", 1)
            fields[name.lower().decode()] = value.strip().decode()
        if status[:1] == b"1":
            found.append(Response(int(status), fields, b""))
            taken = rest
            continue
        length = int(fields.get("content-length", 0))
        if len(found) in heads or status in (b"204", b"304"):
            length = 0
        assert len(rest) >= length, "a short body"
        found.append(Response(int(status), fields, rest[:length]))
        taken = rest[length:]
    return found


# HTTP/2 (RFC 9113, sections 6 and 7): frame types, flags and error codes.
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PING = 0, 1, 2, 3, 4, 6
GOAWAY, WINDOW_UPDATE, CONTINUATION = 7, 8, 9
END_STREAM, ACK, END_HEADERS = 1, 1, 4
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
PROTOCOL_ERROR, FLOW_CONTROL_ERROR, STREAM_CLOSED = 1, 3, 5
REFUSED_STREAM, CANCEL, ENHANCE_YOUR_CALM = 7, 8, 11


def frame(kind, flags, stream, payload=b""):
    return len(payload).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + payload


def setting(number, value):
    return number.to_bytes(2) + value.to_bytes(4)


def literal(name, value):
    """A field without indexing (RFC 7541, section 6.2.2) and without Huffman coding."""
    def text(data):
        count = len(data)
        if count < 127:
            return bytes([count]) + data
        count -= 127
        size = b"\x7f"
        while count >= 128:
            size += bytes([count & 127 | 128])
            count >>= 7
        return size + bytes([count]) + data

    return b"\x00" + text(name) + text(value)


def block(method=b"GET", path=b"/b/photos/o/none", *fields, scheme=b"http", authority=b"a"):
    """A header block. A pseudo-header field that is None is left out."""
    pseudo = [(b":method", method), (b":scheme", scheme), (b":authority", authority), (b":path", path)]
    given = [pair for pair in pseudo if pair[1] is not None] + list(fields)
    return b"".join(literal(name, value) for name, value in given)


class HTTP2:
    """A connection that sends exactly the given bytes, and reads frames only on request."""

    def __init__(self, address, *settings, encrypted=False, receive_buffer=None):
        self.raw = connect(address, receive_buffer)
        if encrypted:
            self.raw = encrypt(self.raw)
        self.taken = b""
        self.is_ended = False
        self.send(PREFACE + frame(SETTINGS, 0, 0, b"".join(settings)))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.raw.close()

    def send(self, data):
        """Sends data; returns False if the server has ended the connection."""
        try:
            self.raw.sendall(data)
            return True
        except (ConnectionError, ssl.SSLError):
            return False

    def request(self, stream, method=b"GET", path=b"/b/photos/o/none", *fields, end=True, **options):
        flags = END_HEADERS | (END_STREAM if end else 0)
        return self.send(frame(HEADERS, flags, stream, block(method, path, *fields, **options)))

    def next(self, timeout=10):
        """The next frame as (type, flags, stream, payload); None at the end of the connection."""
        self.raw.settimeout(timeout)
        while len(self.taken) < 9 or len(self.taken) < 9 + int.from_bytes(self.taken[:3]):
            try:
                more = self.raw.recv(65536)
            except (ConnectionError, ssl.SSLEOFError):
                more = b""
            if not more:
                self.is_ended = True
                return None
            self.taken += more
        size = 9 + int.from_bytes(self.taken[:3])
        head, self.taken = self.taken[:size], self.taken[size:]
        return head[3], head[4], int.from_bytes(head[5:9]) & 0x7FFFFFFF, head[9:]

    def until(self, *kinds, stream=None, acknowledgement=False):
        """The next frame of these types; None at the end. Returns acknowledgements only if `acknowledgement` is set."""
        while found := self.next():
            if found[0] not in kinds or (stream is not None and found[2] != stream):
                continue
            if found[0] in (SETTINGS, PING) and bool(found[1] & ACK) != acknowledgement:
                continue
            return found
        return None

    def acknowledge(self):
        """Waits for the server's SETTINGS and acknowledges them."""
        assert self.until(SETTINGS)
        self.send(frame(SETTINGS, ACK, 0) + frame(PING, 0, 0, bytes(8)))
        assert self.until(PING, acknowledgement=True)

    def end(self):
        """Reads to the end of the connection; returns the error code of the GOAWAY, or None without one."""
        code = None
        while found := self.next():
            if found[0] == GOAWAY:
                code = int.from_bytes(found[3][4:8])
        return code
