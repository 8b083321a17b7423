"""A client of upload sessions (draft-ietf-httpbis-resumable-upload) and of uploads in parts: single requests with curl, or raw ones that
are cut."""

import json
import socket
import urllib.parse

from program import wait_until
from secret_words import secret

PARTIAL = "application/partial-upload"


def complete(value):
    return ("Upload-Complete", "?1" if value else "?0")


class Session:
    """An upload session, by the answer that created it."""

    def __init__(self, wire, answer):
        assert answer.status == 201, answer
        self.wire, self.created = wire, answer
        self.path = urllib.parse.urlsplit(answer["location"]).path
        assert self.path.startswith("/b/") and "/u/" in self.path, answer
        secret(self.path.rpartition("/")[2])

    def head(self, *fields, method="HEAD"):
        return self.wire.call(method, self.path, fields)

    def offset(self):
        answer = self.head()
        assert answer.status == 204, answer
        return int(answer["upload-offset"])

    def patch(self, offset, body=None, *fields, last=False):
        fields = [("Content-Type", PARTIAL), ("Upload-Offset", str(offset)), complete(last), *fields]
        return self.wire.call("PATCH", self.path, fields, body)

    def cancel(self, *fields):
        return self.wire.call("DELETE", self.path, fields)


def begin(wire, name, body=None, *fields, method="PUT", bucket="photos"):
    """Creates a session with a first part of the body."""
    return Session(wire, wire.call(method, f"/b/{bucket}/o/{name}", [complete(False), *fields], body))


class Parts:
    """An upload in parts, by the response that began it."""

    def __init__(self, wire, begun):
        assert begun.status == 201, begun
        self.wire, self.begun = wire, begun
        url = urllib.parse.urlsplit(begun["location"])
        self.path = f"{url.path}?{url.query}"
        assert begun.json["url"] == begun["location"] and url.query.startswith("parts=")
        secret(url.query.removeprefix("parts="))

    def at(self, wire):
        """The same upload, for another client or server."""
        return Parts(wire, self.begun)

    def put(self, number, body, *fields):
        return self.wire.call("PUT", f"{self.path}&part={number}", fields, body)

    def stored(self, number, body, *fields):
        """Stores a part; returns its facts."""
        response = self.put(number, body, *fields)
        assert response.status == 200 and response.json["part"] == number, response
        return response.json

    def list(self, more=""):
        response = self.wire.call("GET", self.path + more)
        assert response.status == 200, response
        return response.json

    def complete(self, parts=None, *fields):
        body = None if parts is None else parts if isinstance(parts, str) else json.dumps({"parts": parts})
        return self.wire.call("POST", self.path, fields, body)

    def cancel(self, *fields):
        return self.wire.call("DELETE", self.path, fields)


def begin_parts(wire, name, *fields, bucket="photos"):
    """Begins an upload in parts."""
    return Parts(wire, wire.call("POST", f"/b/{bucket}/o/{name}?parts", fields))


def problem(answer, status, code):
    assert answer.status == status and answer.json["code"] == code, answer
    return answer.json


class Raw:
    """A request whose body is sent as the test wants it."""

    def __init__(self, server, method, path, fields):
        self.socket = socket.create_connection(("127.0.0.1", server.http), timeout=20)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields)
        self.send(f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{server.http}\r\n{lines}\r\n".encode())

    def send(self, data):
        self.socket.sendall(data)

    def head(self):
        """The next response's head: its status and fields."""
        taken = b""
        while b"\r\n\r\n" not in taken:
            more = self.socket.recv(1)
            assert more, taken
            taken += more
        line, *lines = taken.decode().strip().split("\r\n")
        fields = dict(text.lower().split(": ", 1) if ":" in text else (text, "") for text in lines)
        where = [text.split(": ", 1)[1] for text in lines if text.lower().startswith("location:")]
        if where:
            fields["location"] = where[0]
        return int(line.split(" ")[1]), fields

    def close(self):
        self.socket.close()


def append(server, path, offset, size, last=False, more=()):
    """Begins a raw append of `size` bytes."""
    return Raw(server, "PATCH", path, [
        ("Content-Type", PARTIAL), ("Upload-Offset", offset), complete(last), ("Content-Length", size), *more])


def received(server, count):
    """Waits until open sessions have received this number of additional bytes."""
    name = 'sluice_uploads_staged_bytes{bucket="photos"}'
    before = server.metrics()[name]
    return lambda: wait_until(lambda: server.metrics()[name] == before + count, what="the bytes")
