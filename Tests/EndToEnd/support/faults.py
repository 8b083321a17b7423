"""Faults that a `FaultProxy` injects into requests to an upstream, and the connections that it relays."""

import contextlib
import dataclasses
import select
import socket
import ssl
import struct
import threading
import time

SMALL = b"Quercus robur, thirty metres tall.\n"


@dataclasses.dataclass
class Request:
    """A received request and its result."""

    method: str
    target: str
    fields: dict
    began: float
    #: Bytes received of its body.
    received: int = 0
    #: The status from the upstream; None if it got no request or sent no response.
    status: int | None = None
    fault: object = None
    #: When the client closed the connection while a fault was waiting.
    abandoned: float | None = None


class Cut(Exception):
    """Ends the connection to the client: with a reset, or orderly."""

    def __init__(self, reset=True):
        self.reset = reset


class Fault:
    """A fault for one request. `before` runs before the request body is read, `after` forwards the response.

    `before` may send a response itself and return True.
    """

    def before(self, connection, request):
        return False

    def after(self, connection, request, response):
        connection.pass_on(response)


class Status(Fault):
    """Sends a response from the proxy; the upstream gets no request. With `early` the request body is not read, and the
    connection is closed."""

    def __init__(self, status, fields=None, body=b"", early=False):
        self.status, self.fields, self.body, self.early = status, fields or {}, body, early

    def before(self, connection, request):
        if not self.early:
            connection.drop_body(request)
        fields = {"content-length": str(len(self.body)), **self.fields}
        connection.send_head(self.status, fields)
        connection.send(self.body)
        if self.early:
            raise Cut(reset=False)
        return True


class Reset(Fault):
    """Ends the connection after `after` bytes of the request body. With None the upstream gets the whole request."""

    def __init__(self, after=0, reset=True):
        self.bytes, self.reset = after, reset

    def before(self, connection, request):
        if self.bytes is not None:
            connection.read_some(request, self.bytes)
            raise Cut(self.reset)
        return False

    def after(self, connection, request, response):
        raise Cut(self.reset)


class Break(Fault):
    """Forwards the response head and `after` bytes of its body, then ends the connection."""

    def __init__(self, after, reset=True):
        self.bytes, self.reset = after, reset

    def after(self, connection, request, response):
        connection.pass_on(response, limit=self.bytes)
        raise Cut(self.reset)


class Stall(Fault):
    """Forwards the response up to `after` bytes of its body (None: not even its head), then sends nothing until the
    client disconnects or `release` is called."""

    def __init__(self, after=None):
        self.bytes, self.released = after, threading.Event()

    def release(self):
        self.released.set()

    def after(self, connection, request, response):
        if self.bytes is not None:
            connection.pass_on(response, limit=self.bytes)
        connection.wait(request, self.released)
        raise Cut()


class StallRequest(Fault):
    """Reads only `after` bytes of the request body, until the client disconnects."""

    def __init__(self, after=0):
        self.bytes, self.released = after, threading.Event()

    def before(self, connection, request):
        connection.read_some(request, self.bytes)
        connection.wait(request, self.released)
        raise Cut()


class Bytes(Fault):
    """Sends `head` instead of a response, then `times` times `repeated` (None: endlessly), then closes the connection."""

    def __init__(self, head, repeated=b"", times=0):
        self.head, self.repeated, self.times = head, repeated, times

    def before(self, connection, request):
        connection.drop_body(request)
        connection.send(self.head)
        sent = 0
        while self.times is None or sent < self.times:
            connection.send(self.repeated)
            sent += 1
        raise Cut(reset=False)


class Alter(Fault):
    """Forwards the response as changed by `change(status, fields, body)`."""

    def __init__(self, change):
        self.change = change

    def after(self, connection, request, response):
        fields = {name: value for name, value in response.fields.items() if name != "connection"}
        status, fields, body = self.change(response.status, fields, response.read())
        if request.method == "HEAD":
            body = b""
        else:
            fields.pop("transfer-encoding", None)
            fields["content-length"] = str(len(body))
        connection.send_head(status, fields)
        connection.send(body)


class Response:
    """The upstream's response. Its head has been read, its body has not."""

    def __init__(self, file, method):
        self.file = file
        while True:
            self.head = read_head(file)
            line, *lines = self.head.split(b"\r\n")
            self.status = int(line.split(b" ")[1])
            if self.status >= 200:
                break
        self.fields = fields_of(lines)
        self.chunked = "chunked" in self.fields.get("transfer-encoding", "")
        length = self.fields.get("content-length")
        self.length = int(length) if length is not None else None
        if method == "HEAD" or self.status in (204, 304):
            self.length, self.chunked = 0, False
        #: Whether the body ends with the connection.
        self.unframed = self.length is None and not self.chunked

    def blocks(self):
        """Yields the body in its wire format, each block with its number of content bytes."""
        if self.chunked:
            while True:
                line = self.file.readline()
                size = int(line.split(b";")[0], 16)
                yield line, 0
                if size == 0:
                    break
                block = self.file.read(size)
                yield block, len(block)
                yield self.file.read(2), 0
            yield self.file.readline(), 0
            return
        left = self.length
        while left is None or left > 0:
            block = self.file.read1(min(left or 65536, 65536))
            if not block:
                return
            left = None if left is None else left - len(block)
            yield block, len(block)

    def read(self):
        return b"".join(block for block, content in self.blocks() if content)


def read_head(file):
    lines = []
    while True:
        line = file.readline(65536)
        if not line:
            raise ConnectionError("ended")
        if line == b"\r\n":
            return b"\r\n".join(lines)
        lines.append(line[:-2])


def fields_of(lines):
    pairs = (line.decode("latin-1").split(":", 1) for line in lines)
    return {name.lower(): value.strip() for name, value in pairs}


class Connection:
    """One client connection. Each of its requests gets an upstream connection of its own."""

    def __init__(self, proxy, client):
        self.proxy, self.client, self.file = proxy, client, client.makefile("rb")
        self.body = iter(())

    def serve(self):
        while True:
            head = read_head(self.file)
            line, *lines = head.split(b"\r\n")
            method, target, _ = line.decode("latin-1").split(" ")
            request = Request(method, target, fields_of(lines), time.monotonic())
            self.body = self.body_of(request)
            request.fault = self.proxy.take(request)
            if request.fault is not None and request.fault.before(self, request):
                continue
            with socket.create_connection(("127.0.0.1", self.proxy.upstream), 30) as upstream:
                kept = [text for text in lines if not text.lower().startswith((b"connection:", b"expect:"))]
                upstream.sendall(b"\r\n".join([line, *kept, b"Connection: close"]) + b"\r\n\r\n")
                for block in self.body:
                    upstream.sendall(block)
                response = Response(upstream.makefile("rb"), method)
                request.status = response.status
                if request.fault is None:
                    self.pass_on(response)
                else:
                    request.fault.after(self, request, response)
                if response.unframed:
                    return

    def body_of(self, request):
        """Yields the request body in its wire format."""
        if "chunked" in request.fields.get("transfer-encoding", ""):
            while True:
                line = self.file.readline()
                size = int(line.split(b";")[0], 16)
                block = self.file.read(size + 2)
                request.received += size
                yield line + block
                if size == 0:
                    return
        left = int(request.fields.get("content-length", 0))
        while left:
            block = self.file.read1(min(left, 65536))
            if not block:
                raise ConnectionError("the client ended in a body")
            left -= len(block)
            request.received += len(block)
            yield block

    def drop_body(self, request):
        for _ in self.body:
            pass

    def read_some(self, request, count):
        while request.received < count:
            if next(self.body, None) is None:
                return

    def send_head(self, status, fields):
        lines = [f"HTTP/1.1 {status} Made", *(f"{name}: {value}" for name, value in fields.items())]
        self.send("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n")

    def send(self, data):
        self.client.sendall(data)

    def pass_on(self, response, limit=None):
        """Forwards the response with at most `limit` bytes of its body."""
        kept = [line for line in response.head.split(b"\r\n") if not line.lower().startswith(b"connection:")]
        self.send(b"\r\n".join(kept) + (b"\r\nConnection: close" if response.unframed else b"") + b"\r\n\r\n")
        for block, content in response.blocks():
            if limit is not None and content > limit:
                block = block[:limit]
            self.send(block)
            if limit is not None:
                limit -= min(content, limit)
                if content and limit == 0:
                    return

    def end(self, reset):
        if reset:
            self.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        else:
            self.client.settimeout(0.2)
            if isinstance(self.client, ssl.SSLSocket):
                # Sends close_notify, unless the proxy has shut the connection down.
                with contextlib.suppress(OSError, ValueError):
                    self.client.unwrap()
            # Read the remaining data, since closing a socket with unread data would send a reset.
            self.client.shutdown(socket.SHUT_WR)
            with contextlib.suppress(OSError):
                while self.client.recv(65536):
                    pass
        self.file.close()
        self.client.close()

    def wait(self, request, released):
        """Waits until the client closes the connection, or until `released`."""
        while not released.is_set():
            flags = select.POLLRDHUP | select.POLLHUP | select.POLLERR
            poll = select.poll()
            poll.register(self.client, flags)
            if poll.poll(20):
                request.abandoned = time.monotonic()
                return
