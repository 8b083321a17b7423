"""Three gateways are replaced behind a load balancer of connections, under load. No request may fail. Each gateway is a process
in a network namespace of its own, whose address goes away with it, as a pod's does."""

import contextlib
import itertools
import signal
import socket
import subprocess
import threading
import time
import urllib.request

import httpx
import pytest

import gcs_model
import upstreams
from namespaces import POSSIBLE, Namespace, Network
from program import Server, wait_until

pytestmark = pytest.mark.skipif(not POSSIBLE, reason="needs the right to make network namespaces")


class LoadBalancer:
    """Passes each connection on to one of the gateways that were ready at the last look, as a Kubernetes Service does. It
    looks every 0.5 s, so it knows of a change as late as that.

    It has threads and no asyncio, which forgot some connections: the client then waited for a response in vain.
    """

    def __init__(self, servers):
        self.servers = servers
        self.ready = []
        self.looked = 0
        self.refused = 0
        # Each broken connection: when, to which gateway, why, and how long before the gateways were looked at.
        self.broken = []
        self.turn = itertools.count()
        self.ending = threading.Event()
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        # Accepted sockets inherit it.
        self.listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.port = self.listener.getsockname()[1]
        self.threads = [threading.Thread(target=self.look), threading.Thread(target=self.accept)]
        for thread in self.threads:
            thread.start()

    def look(self):
        while not self.ending.wait(0.5):
            self.ready = [one for one in list(self.servers) if one.is_ready()]
            self.looked = time.monotonic()

    def accept(self):
        while True:
            client, _ = self.listener.accept()
            if self.ending.is_set():
                return client.close()
            threading.Thread(target=self.serve, args=(client,), daemon=True).start()

    def serve(self, client):
        ready, begun, age = self.ready, time.monotonic(), time.monotonic() - self.looked
        server = ready[next(self.turn) % len(ready)]

        def broke(error):
            took = time.monotonic() - begun
            self.broken.append(
                f"{time.ctime()}: {server.host}, {error!r} after {took:.1f} s, looked at {age:.1f} s before")

        with client:
            try:
                gateway = socket.create_connection((server.host, server.https))
            except OSError as error:
                self.refused += 1
                return broke(error)
            with gateway:
                gateway.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                back = threading.Thread(target=copy, args=(gateway, client, broke), daemon=True)
                back.start()
                copy(client, gateway, broke)
                back.join()

    def close(self):
        self.ending.set()
        # Wakes the thread that accepts.
        socket.create_connection(("127.0.0.1", self.port)).close()
        for thread in self.threads:
            thread.join()
        self.listener.close()


def copy(source, sink, broke):
    """Passes on what arrives, up to the end of either connection."""
    end = socket.SHUT_WR
    try:
        while data := source.recv(65536):
            sink.sendall(data)
    except OSError as error:
        broke(error)
        # The other direction ends too.
        end = socket.SHUT_RDWR
        shut(source, end)
    shut(sink, end)


def shut(one, end):
    # The peer may have gone already.
    with contextlib.suppress(OSError):
        one.shutdown(end)


class Replica(Server):
    """A gateway in a namespace of its own."""

    def __init__(self, directory, network, **options):
        self.namespace = Namespace(network)
        super().__init__(directory, namespace=self.namespace, **options)

    def is_ready(self):
        try:
            with urllib.request.urlopen(f"http://{self.host}:{self.operator}/readyz", timeout=5) as response:
                return response.status == 200
        except OSError:
            return False


class Load:
    """Clients that send requests until `end` is called."""

    def __init__(self, port):
        self.url = f"https://127.0.0.1:{port}/b/photos/o"
        self.ending = threading.Event()
        self.failures = []
        self.counts = {}
        self.threads = []

    def add(self, name, client):
        self.counts[name] = 0
        self.threads.append(threading.Thread(target=self.run, args=(name, client)))
        self.threads[-1].start()

    def run(self, name, client):
        while not self.ending.is_set():
            try:
                client(f"{self.url}/{name}-{self.counts[name]}")
            except Exception as failure:
                self.failures.append((time.ctime(), name, self.counts[name], repr(failure)))
            self.counts[name] += 1

    def end(self):
        self.ending.set()
        for thread in self.threads:
            thread.join()


def round_trip(client, url):
    """Stores an object, reads it, and removes it, over connections that are kept."""
    for method, body, expected in [("PUT", url.encode(), 201), ("GET", None, 200), ("DELETE", None, 204)]:
        response = client.request(method, url, content=body)
        assert response.status_code == expected, (method, response.status_code, response.text)
        assert method != "GET" or response.content == url.encode()


def upload(*arguments):
    """Uploads with curl, which fails at the first response that is no success."""
    done = subprocess.run(
        ["curl", "-sSk", "--fail-early", "--fail", "-o", "/dev/null", "--max-time", "60", *arguments],
        capture_output=True)
    assert done.returncode == 0, (arguments, done.stderr.decode())


@pytest.fixture
def network():
    made = Network()
    yield made
    made.close()


@pytest.fixture
def gcs(tmp_path, network):
    """The buckets' service, where the gateways reach it too."""
    running = upstreams.GCSModel(tmp_path)
    reachable = gcs_model.serve(running.model, running.port, host=network.address)
    yield running
    reachable.shutdown()
    reachable.server_close()
    running.stop()


def test_no_request_fails_while_three_gateways_are_replaced(gcs, network, tmp_path):
    started = []

    def start():
        started.append(Replica(
            tmp_path / f"s{len(started)}", network,
            buckets=f"  photos: {{ {gcs.store(f'http://{network.address}:{gcs.port}')} }}\n",
            arguments=("--set", "limits.drainDelay=8s")))
        return started[-1]

    servers = [start(), start(), start()]
    balancer = LoadBalancer(servers)
    load = Load(balancer.port)
    try:
        wait_until(lambda: len(balancer.ready) == 3, what="three ready gateways")
        small, large = tmp_path / "small", tmp_path / "large"
        small.write_bytes(bytes(1000))
        large.write_bytes(bytes(250_000))
        with httpx.Client(verify=False, timeout=60) as client:
            load.add("http1", lambda url: round_trip(client, url))
            load.add("kept1", lambda url: upload("--http1.1", "-T", small, f"{url}-[1-50]"))
            # Not httpx, whose HTTP/2 connections fail at any frame after a GOAWAY.
            load.add("kept2", lambda url: upload("--http2", "-T", small, f"{url}-[1-50]"))
            # A connection for each request: some meet a gateway that the load balancer does not know to be leaving.
            load.add("fresh1", lambda url: upload("--http1.1", "-T", small, url))
            load.add("fresh2", lambda url: upload("--http2", "-T", small, url))
            load.add("slow1", lambda url: upload("--http1.1", "--limit-rate", "100K", "-T", large, url))
            load.add("slow2", lambda url: upload("--http2", "--limit-rate", "100K", "-T", large, url))
            try:
                for old in list(servers):
                    wait_until(lambda: all(load.counts.values()), what="requests of every client")
                    new = start()
                    servers.append(new)
                    wait_until(lambda: new in balancer.ready, what="the new gateway behind the load balancer")
                    old.process.send_signal(signal.SIGTERM)
                    assert old.process.wait(40) == 0, old.output()
                    old.namespace.close()
                    servers.remove(old)
            finally:
                load.end()
        assert load.failures == [] and balancer.refused == 0, balancer.broken
    finally:
        for server in started:
            server.stop(signal.SIGKILL)
            server.namespace.close()
        balancer.close()
