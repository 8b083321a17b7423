"""A proxy in front of a real upstream that injects faults into selected requests.

    proxy = FaultProxy(upstream.port)
    proxy.fault(Status(503, {"retry-after": "1"}), method="PUT", times=2)

Requests without a fault are forwarded unchanged. `proxy.requests` has all received requests in order.
"""

import contextlib
import re
import socket
import ssl
import threading
import types

import pytest

import upstreams
import wire
from faults import Connection, Cut


class FaultProxy:
    """Listens on its own port, with a certificate over TLS. `upstream` is the port of the real server."""

    def __init__(self, upstream, certificate=None):
        self.upstream, self.certificate, self.context = upstream, certificate, None
        if certificate:
            self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self.context.load_cert_chain(certificate.chain, certificate.key)
        self.requests, self.faults, self.lock = [], [], threading.Lock()
        self.port = None
        self.open_connections = set()
        self.resume()

    @property
    def endpoint(self):
        return f"{'https' if self.certificate else 'http'}://127.0.0.1:{self.port}"

    def store(self, real, more=""):
        """The configuration of a bucket in the upstream `real`, behind this proxy. `more`: keys of its store."""
        tls = f", tls: {{ certificateAuthorities: {self.certificate.chain} }}" if self.certificate else ""
        return real.store(self.endpoint).replace(" }", more + " }") + tls

    def fault(self, fault, method=None, target="", times=1, skip=0):
        """Applies `fault` to the next `times` requests (None: all) with that method, or one of a tuple of them, and a
        target in which the pattern `target` is found. The first `skip` of them are forwarded."""
        methods = (method,) if isinstance(method, str) else method
        with self.lock:
            self.faults.append([fault, methods, re.compile(target), times, skip])
        return fault

    def clear(self):
        with self.lock:
            self.faults = []

    def take(self, request):
        with self.lock:
            self.requests.append(request)
            for entry in self.faults:
                fault, methods, pattern, times, skip = entry
                if methods and request.method not in methods or not pattern.search(request.target):
                    continue
                if skip:
                    entry[4] -= 1
                    continue
                if times == 0:
                    continue
                if times is not None:
                    entry[3] -= 1
                return fault
        return None

    def sent(self, method=None, target=""):
        """The received requests with that method and target."""
        return [request for request in list(self.requests)
                if (method is None or request.method == method) and re.search(target, request.target)]

    def pause(self):
        """Refuses new connections, and closes the open ones."""
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.thread.join()
        for client in list(self.open_connections):
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)

    stop = pause

    def resume(self):
        self.listener = socket.socket()
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.listener.bind(("127.0.0.1", self.port or 0))
        self.port = self.listener.getsockname()[1]
        self.listener.listen(512)
        self.thread = threading.Thread(target=self.accept, args=(self.listener,), daemon=True)
        self.thread.start()

    def accept(self, listener):
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(client,), daemon=True).start()

    def serve(self, client):
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.context:
            try:
                client = self.context.wrap_socket(client, server_side=True)
            except OSError:
                return
        self.open_connections.add(client)
        connection, reset = Connection(self, client), False
        try:
            connection.serve()
        except Cut as cut:
            reset = cut.reset
        except (OSError, ValueError):
            pass
        finally:
            self.open_connections.discard(client)
            with contextlib.suppress(OSError):
                connection.end(reset)


def each_upstream(*kinds):
    """A fixture for a module: each of these upstreams in turn."""

    @pytest.fixture(scope="module", params=kinds)
    def upstream(request, tmp_path_factory):
        with upstreams.warm(upstreams.UPSTREAMS[request.param], tmp_path_factory.mktemp("upstream")) as running:
            yield running

    return upstream


@contextlib.contextmanager
def behind_proxy(real, launch, limits, certificate=None):
    """A server whose bucket is in the upstream `real`, behind a proxy that injects faults."""
    proxy = FaultProxy(real.port, certificate)
    server = launch(buckets=f"  photos: {{ {proxy.store(real)} }}\n", extra=limits)
    yield types.SimpleNamespace(real=real, proxy=proxy, server=server, client=wire.Wire(server))
    proxy.stop()
