"""A webhook that keeps what it gets, verifies signatures with the library of Standard Webhooks, and answers as told.

    with Sink() as sink:
        …
        sink.events()
"""

import http.server
import json
import socket
import ssl
import threading
import time

from standardwebhooks import Webhook


class Request:
    """A request to a sink."""

    def __init__(self, method, path, fields, body):
        self.method, self.path, self.body, self.time = method, path, body, time.time()
        #: Names in lower case.
        self.fields = {name.lower(): value for name, value in fields}

    @property
    def json(self):
        return json.loads(self.body)


class Sink:
    """A server on the loopback interface. `answer(request)` returns a status, or a status and fields, or sends a response of
    its own with the second argument and returns None."""

    def __init__(self, answer=lambda request, handler: 204, key=None, context=None, port=0):
        self.requests, self.answer, self.lock = [], answer, threading.Lock()
        #: Requests under way, the most at a time, and by the object's name.
        self.current, self.most = 0, 0
        self.webhook = Webhook(key) if key else None
        sink = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def handle_any(self):
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                request = Request(self.command, self.path, self.headers.items(), body)
                if sink.webhook and self.command == "POST":
                    sink.webhook.verify(body, request.fields)
                with sink.lock:
                    sink.requests.append(request)
                    sink.current += 1
                    sink.most = max(sink.most, sink.current)
                try:
                    answer = sink.answer(request, self)
                finally:
                    with sink.lock:
                        sink.current -= 1
                if answer is None:
                    self.close_connection = True
                    return
                status, fields = answer if isinstance(answer, tuple) else (answer, {})
                self.send_response(status)
                for name, value in fields.items():
                    self.send_header(name, value)
                if status not in (204, 304):
                    self.send_header("content-length", "0")
                self.end_headers()

            do_POST = do_OPTIONS = do_GET = handle_any

            def log_message(self, *_):
                pass

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 256

            def handle_error(self, *_):
                pass

        self.server = Server(("127.0.0.1", port), Handler)
        self.scheme = "http"
        if context:
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
            self.scheme = "https"
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    def url(self, path="/hook"):
        return f"{self.scheme}://127.0.0.1:{self.port}{path}"

    def posts(self):
        with self.lock:
            return [request for request in self.requests if request.method == "POST"]

    def events(self):
        """The events of all requests, in order."""
        found = []
        for request in self.posts():
            value = request.json
            found += value if isinstance(value, list) else [value]
        return found

    def names(self):
        return [event["data"]["name"] for event in self.events()]


def closed_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def subscription(sink, buckets="[photos]", **settings):
    """The YAML of one subscription."""
    lines = "".join(f"    {name}: {value}\n" for name, value in settings.items())
    url = sink if isinstance(sink, str) else sink.url()
    return f"events:\n  thumbs:\n    url: \"{url}\"\n    buckets: {buckets}\n{lines}"
