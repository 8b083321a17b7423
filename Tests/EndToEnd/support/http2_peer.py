"""A raw HTTP/2 client that sends valid and invalid frames, and checks the server's reaction."""

import contextlib
import socket
import ssl
import struct
import typing

import hpack

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
ACK = END_STREAM = 0x1
END_HEADERS, PADDED, PRIORITISED = 0x4, 0x8, 0x20

(NO_ERROR, PROTOCOL_ERROR, INTERNAL_ERROR, FLOW_CONTROL_ERROR, SETTINGS_TIMEOUT, STREAM_CLOSED, FRAME_SIZE_ERROR,
 REFUSED_STREAM, CANCEL, COMPRESSION_ERROR, CONNECT_ERROR, ENHANCE_YOUR_CALM) = range(12)

HEADER_TABLE_SIZE, ENABLE_PUSH, MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE, MAX_HEADER_LIST_SIZE = (
    range(1, 7))

#: Seconds in which the server must react.
PATIENCE = 10


class Frame(typing.NamedTuple):
    type: int
    flags: int
    stream: int
    payload: bytes

    @property
    def code(self):
        """The error code of GOAWAY or RST_STREAM."""
        return struct.unpack(">I", self.payload[4:8] if self.type == GOAWAY else self.payload)[0]


class Response(typing.NamedTuple):
    status: int
    fields: list
    body: bytes
    interim: list
    trailers: list

    def __getitem__(self, name):
        return dict(self.fields).get(name)


def frame(type, flags=0, stream=0, payload=b"", length=None, reserved=0):
    """A frame. `length` overrides the true payload length."""
    size = len(payload) if length is None else length
    return struct.pack(">I", size)[1:] + struct.pack(">BBI", type, flags, stream | reserved << 31) + payload


def integer(value, prefix, first=0):
    """An HPACK integer (RFC 7541, section 5.1)."""
    most = (1 << prefix) - 1
    if value < most:
        return bytes([first | value])
    value -= most
    out = [first | most]
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def literal(name, value, first=0x00):
    """A literal field with a new name. `first`: 0x00 without indexing, 0x10 never indexed, 0x40 with indexing."""
    name, value = (part.encode() if isinstance(part, str) else part for part in (name, value))
    return bytes([first]) + integer(len(name), 7) + name + integer(len(value), 7) + value


def block(fields):
    """A header block of literals, which does not depend on the dynamic table."""
    return b"".join(literal(name, value) for name, value in fields)


def settings(*pairs):
    return b"".join(struct.pack(">HI", number, value) for number, value in pairs)


def word(value):
    return struct.pack(">I", value)


class Peer:
    """One connection, optionally with a client certificate. After `handshake()`, the SETTINGS of both sides are
    acknowledged."""

    def __init__(self, address, tls=False, certificate=None):
        self.authority = "%s:%d" % address
        self.scheme = "https" if tls else "http"
        self.socket = socket.create_connection(address, timeout=PATIENCE)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            context.set_alpn_protocols(["h2"])
            if certificate:
                context.load_cert_chain(certificate.chain, certificate.key)
            self.socket = context.wrap_socket(self.socket)
            assert self.socket.selected_alpn_protocol() == "h2"
        self.buffer = b""
        self.decoder = hpack.Decoder()
        self.settings = {}
        self.seen = []

    def close(self):
        self.socket.close()

    def handshake(self, *pairs, acknowledge=True):
        self.raw(PREFACE)
        self.send(SETTINGS, payload=settings(*pairs))
        acknowledged = False
        while not acknowledged or not any(f.type == SETTINGS and not f.flags for f in self.seen):
            got = self.take()
            assert got.type in (SETTINGS, WINDOW_UPDATE), got
            acknowledged |= got.type == SETTINGS and bool(got.flags & ACK)
            if got.type == SETTINGS and not got.flags:
                for offset in range(0, len(got.payload), 6):
                    number, value = struct.unpack_from(">HI", got.payload, offset)
                    self.settings[number] = value
        if acknowledge:
            self.send(SETTINGS, ACK)
        return self

    # Sending

    def raw(self, data):
        # The server may have closed the connection already. Tests check its reaction by the frames that it sent.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError, ssl.SSLError):
            self.socket.sendall(data)

    def send(self, type, flags=0, stream=0, payload=b"", **more):
        self.raw(frame(type, flags, stream, payload, **more))

    def fields(self, method="GET", path="/", extra=(), without=()):
        head = [(":method", method), (":scheme", self.scheme), (":path", path), (":authority", self.authority)]
        return [pair for pair in head if pair[0] not in without] + list(extra)

    def request(self, stream=1, method="GET", path="/", extra=(), without=(), end=True):
        flags = END_HEADERS | (END_STREAM if end else 0)
        self.send(HEADERS, flags, stream, block(self.fields(method, path, extra, without)))

    # Receiving

    def read(self):
        """The next frame; None if the server has closed the connection."""
        def exactly(count):
            while len(self.buffer) < count:
                try:
                    more = self.socket.recv(65536)
                except (ConnectionResetError, ssl.SSLEOFError):
                    more = b""
                if not more:
                    return False
                self.buffer += more
            return True

        if not exactly(9):
            return None
        length = int.from_bytes(self.buffer[:3], "big")
        if not exactly(9 + length):
            return None
        type, flags, stream = struct.unpack(">BBI", self.buffer[3:9])
        got = Frame(type, flags, stream & 0x7FFFFFFF, self.buffer[9:9 + length])
        self.buffer = self.buffer[9 + length:]
        self.seen.append(got)
        return got

    def take(self):
        got = self.read()
        assert got is not None, f"the connection was closed after {self.seen}"
        return got

    def until(self, condition, goaway=False):
        """Reads up to the first frame that `condition` accepts. A GOAWAY before it fails the test, unless `goaway` is set
        and its code is NO_ERROR."""
        while True:
            got = self.take()
            if condition(got):
                return got
            assert got.type != GOAWAY or goaway and got.code == NO_ERROR, f"GOAWAY {got.code}"

    def until_goaway(self):
        while (got := self.take()).type != GOAWAY:
            pass
        return got

    def response(self, stream=1, goaway=False):
        """Reads the whole response on `stream`. With `goaway`, a GOAWAY with NO_ERROR is permitted."""
        status, fields, body, interim, trailers = None, [], b"", [], []
        while True:
            got = self.until(lambda f: f.stream == stream and f.type in (DATA, HEADERS, RST_STREAM), goaway)
            assert got.type != RST_STREAM, f"RST_STREAM {got.code}"
            if got.type == DATA:
                assert status is not None
                body += got.payload
            else:
                assert got.flags & END_HEADERS
                decoded = [(str(n), str(v)) for n, v in self.decoder.decode(got.payload)]
                if status is not None:
                    trailers = decoded
                elif dict(decoded)[":status"].startswith("1"):
                    interim.append(decoded)
                    continue
                else:
                    status, fields = int(dict(decoded)[":status"]), decoded
            if got.flags & END_STREAM:
                return Response(status, fields, body, interim, trailers)

    def alive(self):
        """Checks with a PING that the server has read everything and still serves; returns the frames before the reply."""
        token = struct.pack(">Q", 0x51C0 + len(self.seen))
        start = len(self.seen)
        self.send(PING, payload=token)
        self.until(lambda f: f.type == PING and f.flags & ACK and f.payload == token)
        return self.seen[start:-1]

    def ignored(self):
        """Checks that the frames sent so far had no effect: the connection is open and no stream was reset."""
        before = self.alive()
        assert not [f for f in before if f.type == RST_STREAM], before

    def connection_error(self, *codes):
        """Expects a connection error (RFC 9113, section 5.4.1): GOAWAY with one of these codes, then the end."""
        while self.read() is not None:
            pass
        goaways = [f for f in self.seen if f.type == GOAWAY]
        assert goaways, f"closed without GOAWAY: {self.seen}"
        assert goaways[-1].code in codes, f"GOAWAY {goaways[-1].code}, wanted {codes}"

    def stream_error(self, stream, *codes, responded=True):
        """Expects a stream error (RFC 9113, section 5.4.2): RST_STREAM with one of these codes on a connection that stays
        open, or a connection error with one of them. With `responded=False`, no success response may come before it."""
        got = self.read()
        while got is not None and got.type != GOAWAY and not (got.type == RST_STREAM and got.stream == stream):
            if not responded and got.type == HEADERS and got.stream == stream:
                head = dict(self.decoder.decode(got.payload))
                assert not head[":status"].startswith("2"), head
            got = self.read()
        assert got is not None, f"closed without an error code: {self.seen}"
        assert got.code in codes, f"code {got.code} in frame type {got.type}, wanted {codes}"
        if got.type == GOAWAY:
            self.connection_error(*codes)
        else:
            self.alive()
