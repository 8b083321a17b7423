"""Raw connections: bytes out, bytes in, and nothing that a client library would put right."""

import os
import socket
import ssl
import time


def target(request):
    """The host and port of SLUICE_TARGET, or of the run's shared server."""
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
    """All bytes until the server ends the connection, in order or by a reset."""
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
    """Splits HTTP/1.1 responses; `heads` names the places of answers to HEAD."""
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
