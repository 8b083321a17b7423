"""Webhooks that fail in every way, and a gateway that is killed: every acknowledged change arrives, in order for each object, and
a sink that does not work delays nobody else."""

import json
import os
import random
import signal
import socket
import ssl
import threading
import time

import h2.config
import h2.connection
import h2.events
import pytest

from program import curl, descriptors, wait_until
from test_webhooks import delete, put
from upstreams import free_port
from webhook_sink import Sink, subscription


def state(server):
    """The subscriptions, `thumbs` first."""
    found = json.loads(curl(f"http://127.0.0.1:{server.operator}/events"))["subscriptions"]
    return sorted(found, key=lambda one: one["subscription"] != "thumbs")


def operator(server, method, path):
    return json.loads(curl("-X", method, f"http://127.0.0.1:{server.operator}{path}"))


class Writer:
    """Changes objects from several threads, and keeps what was acknowledged."""

    def __init__(self, server):
        self.server, self.acknowledged, self.attempted, self.ends = server, [], 0, threading.Event()
        self.lock = threading.Lock()
        self.threads = [threading.Thread(target=self.run, args=(number,)) for number in range(3)]
        for thread in self.threads:
            thread.start()

    def run(self, number):
        import http.client
        connection = None
        while not self.ends.is_set():
            try:
                if connection is None:
                    connection = http.client.HTTPConnection("127.0.0.1", self.server.http, timeout=5)
                name = f"o{number}-{random.randrange(4)}"
                with self.lock:
                    self.attempted += 1
                connection.request("PUT", f"/b/photos/o/{name}", body=b"x" * random.choice([10, 5000]))
                response = connection.getresponse()
                body = response.read()
                if response.status in (200, 201):
                    with self.lock:
                        self.acknowledged.append((name, json.loads(body)["generation"]))
            except (OSError, http.client.HTTPException):
                connection = None
                time.sleep(0.01)

    def stop(self):
        self.ends.set()
        for thread in self.threads:
            thread.join()
        return self.acknowledged


#: The turns of each test with `kill -9`.
KILLS = int(os.environ.get("TEST_KILLS", 12))


@pytest.mark.parametrize("batch", [1, 20])
def test_nothing_is_lost_when_gateway_and_sink_are_killed(launch, batch):
    """`kill -9` of the gateway, again and again, with a sink that fails at random and is away at times."""
    port = free_port()
    received, lock, first = {}, threading.Lock(), {}
    contents = {}

    def answer(request, handler):
        value = request.json
        with lock:
            for event in value if isinstance(value, list) else [value]:
                # An ID never has two contents.
                assert contents.setdefault(event["id"], event["data"]) == event["data"]
                key = event["data"]["name"], event["data"]["generation"]
                if key not in received:
                    first.setdefault(key[0], []).append(int(key[1]))
                received[key] = received.get(key, 0) + 1
        # An object that fails waits for a second, so the end would take long.
        return 204 if writer.ends.is_set() else random.choices([204, 500, 503], [90, 5, 5])[0]

    sink = Sink(answer, port=port)
    server = launch(extra=subscription(f"http://127.0.0.1:{port}/hook", batch=batch, concurrency=4), tls=False)
    writer = Writer(server)
    try:
        for turn in range(KILLS):
            time.sleep(random.uniform(0.05, 0.4))
            if turn % 4 == 3:
                sink.__exit__()
                time.sleep(0.1)
                sink = Sink(answer, port=port)
            server.stop(signal.SIGKILL)
            server.start()
        acknowledged = writer.stop()
        assert len(acknowledged) > 50
        curl("-X", "POST", f"http://127.0.0.1:{server.operator}/events/resume?subscription=thumbs")
        missing = wait_until(lambda: not [key for key in acknowledged if key not in received] or None, timeout=60,
                             what=lambda: f"{len([key for key in acknowledged if key not in received])} of "
                                          f"{len(acknowledged)} arrive; {state(server)}")
        assert missing
        # In order for each object, as first seen.
        for name, generations in first.items():
            assert generations == sorted(generations), name
        # Nothing arrives that was not in the bucket's history: at most one unacknowledged change for each kill and thread.
        assert len(set(received) - set(acknowledged)) <= KILLS * 3
        wait_until(lambda: state(server)[0]["pending"] == 0, timeout=60, what=lambda: state(server))
    finally:
        writer.ends.set()
        sink.__exit__()
    assert server.stop() == 0


def test_a_restart_continues_without_sending_again(launch):
    with Sink() as sink:
        server = launch(extra=subscription(sink))
        for number in range(20):
            put(server, f"o{number}")
        wait_until(lambda: len(sink.posts()) == 20)
        time.sleep(0.5)
        assert server.stop() == 0
        server.start()
        put(server, "last")
        wait_until(lambda: len(sink.posts()) == 21)
        time.sleep(0.3)
    assert len(sink.posts()) == 21 and sink.names()[-1] == "last"


def test_a_sink_that_hangs_delays_nobody_else_and_ends_in_time(launch):
    away = threading.Event()
    with Sink(lambda request, handler: (away.wait(20), None)[1]) as hanging, Sink() as other:
        extra = subscription(hanging, timeout="500ms", concurrency=2)
        extra += f"  other:\n    url: {other.url()}\n    buckets: [photos]\n"
        server = launch(extra=extra)
        begun = time.monotonic()
        for number in range(30):
            put(server, f"o{number}")
        wait_until(lambda: len(other.posts()) == 30)
        assert time.monotonic() - begun < 5
        wait_until(lambda: state(server)[0]["failed"] >= 8, what=lambda: state(server))
        wait_until(lambda: state(server)[0]["state"] == "paused")
        assert "no response in time" in state(server)[0]["lastCause"]
        # Readiness has a note, and nothing else.
        status, text = server.readiness()
        assert status == 200 and "events" in text and "paused" in text
        # A drain does not wait for it.
        begun = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - begun < 5
        away.set()


def test_endless_and_slow_bodies_cost_a_connection_only(launch):
    def answer(request, handler):
        handler.wfile.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000000000\r\n\r\n")
        try:
            while True:
                handler.wfile.write(b"x" * 65536)
        except OSError:
            return None

    def drip(request, handler):
        handler.wfile.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        try:
            while True:
                handler.wfile.write(b"1\r\nx\r\n")
                time.sleep(0.05)
        except OSError:
            return None

    with Sink(answer) as flood, Sink(drip) as slow:
        extra = subscription(flood)
        extra += f"  slow:\n    url: {slow.url()}\n    buckets: [photos]\n"
        server = launch(extra=extra)
        before = server.status("RssAnon")
        for number in range(16):
            put(server, f"o{number}")
        wait_until(lambda: all(one["settled"] == 16 for one in state(server)), what=lambda: state(server))
        assert len(flood.posts()) == 16 and len(slow.posts()) == 16
        assert server.status("RssAnon") - before < 16 * 1024


def test_redirects_are_failures_and_are_not_followed(launch):
    with Sink() as inner, Sink(lambda request, handler: (307, {"location": inner.url("/secret")})) as sink:
        server = launch(extra=subscription(sink))
        put(server, "a")
        wait_until(lambda: sink.posts() and state(server)[0]["failed"] > 0)
        assert not inner.requests and "redirects are not followed" in state(server)[0]["lastCause"]
        # The address that it names is in no response and in no log.
        assert str(inner.port) not in server.output()


def test_certificates_are_verified(launch, tmp_path):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    key, certificate = self_signed(tmp_path)
    context.load_cert_chain(certificate, key)
    with Sink(context=context) as sink:
        server = launch(extra=subscription(sink))
        put(server, "a")
        wait_until(lambda: state(server)[0]["failed"] > 0)
        assert not sink.requests and state(server)[0]["settled"] == 0
        # With its authority it is trusted.
        text = server.config.read_text()
        server.config.write_text(text + f"    tls: {{ certificateAuthorities: {certificate} }}\n")
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: sink.posts(), what=lambda: server.output()[-2000:])


def test_client_certificates_are_sent(launch, tmp_path):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    key, certificate = self_signed(tmp_path)
    key.chmod(0o600)
    context.load_cert_chain(certificate, key)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(certificate)
    with Sink(context=context) as sink:
        server = launch(extra=subscription(sink, tls=f"{{ certificateAuthorities: {certificate} }}"))
        put(server, "a")
        wait_until(lambda: state(server)[0]["failed"] > 0)
        assert not sink.requests
        text = server.config.read_text()
        server.config.write_text(text.replace(
            "certificateAuthorities:", f"clientCertificate: {certificate}, clientKey: {key}, certificateAuthorities:"))
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: sink.names() == ["a"], what=lambda: server.output()[-2000:])


def test_sinks_of_http2_have_one_connection(launch, tmp_path):
    key, certificate = self_signed(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    context.set_alpn_protocols(["h2"])
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connections, received, lock = [], [], threading.Lock()

        def serve(connection):
            with context.wrap_socket(connection, server_side=True) as tls:
                peer = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
                peer.initiate_connection()
                bodies = {}
                while True:
                    tls.sendall(peer.data_to_send())
                    data = tls.recv(65536)
                    if not data:
                        return
                    for event in peer.receive_data(data):
                        if isinstance(event, h2.events.DataReceived):
                            bodies[event.stream_id] = bodies.get(event.stream_id, b"") + event.data
                            peer.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                        elif isinstance(event, h2.events.StreamEnded):
                            with lock:
                                received.append(json.loads(bodies[event.stream_id])["data"]["name"])
                            peer.send_headers(event.stream_id, [(":status", "204")], end_stream=True)

        def accept():
            while True:
                try:
                    connections.append(listener.accept()[0])
                except OSError:
                    return
                threading.Thread(target=serve, args=(connections[-1],), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        server = launch(extra=subscription(
            f"https://127.0.0.1:{listener.getsockname()[1]}/hook", tls=f"{{ certificateAuthorities: {certificate} }}"))
        names = [f"o{number}" for number in range(40)]
        for name in names:
            put(server, name)
        wait_until(lambda: sorted(received) == sorted(names), what=lambda: (len(received), state(server)))
        wait_until(lambda: state(server)[0]["pending"] == 0)
        assert len(connections) == 1 and state(server)[0]["failed"] == 0


def self_signed(directory):
    import subprocess
    key, certificate = directory / "k.pem", directory / "c.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate, "-days", "2",
                    "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
    return key, certificate


def test_retry_after_silences_all_objects(launch):
    times = []

    def answer(request, handler):
        times.append(time.monotonic())
        return (429, {"retry-after": "2"}) if len(times) == 1 else 204

    with Sink(answer) as sink:
        server = launch(extra=subscription(sink, concurrency=1))
        put(server, "a")
        wait_until(lambda: times)
        for number in range(5):
            put(server, f"o{number}")
        wait_until(lambda: state(server)[0]["settled"] == 6, what=lambda: state(server))
    assert times[1] - times[0] >= 1.9


def test_gone_stops_until_resume(launch):
    gone = [True]
    with Sink(lambda request, handler: 410 if gone[0] else 204) as sink:
        server = launch(extra=subscription(sink, concurrency=1))
        put(server, "a")
        wait_until(lambda: state(server)[0]["state"] == "gone")
        for number in range(5):
            put(server, f"o{number}")
        time.sleep(1.5)
        assert len(sink.posts()) == 1 and state(server)[0]["pending"] == 6
        gone[0] = False
        operator(server, "POST", "/events/resume?subscription=thumbs")
        wait_until(lambda: state(server)[0]["settled"] == 6, what=lambda: state(server))
        gone[0] = True
        put(server, "b")
        wait_until(lambda: state(server)[0]["state"] == "gone")
        gone[0] = False
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: state(server)[0]["settled"] == 7, what=lambda: state(server))


@pytest.mark.parametrize("batch", [1, 10])
def test_a_poisonous_event_holds_up_its_object_only(launch, batch):
    def answer(request, handler):
        return 400 if b"poison" in request.body else 204

    with Sink(answer) as sink:
        server = launch(extra=subscription(sink, batch=batch))
        for number in range(40):
            put(server, "poison" if number % 10 == 3 else f"o{number}")
        wait_until(lambda: state(server)[0]["settled"] == 36, what=lambda: state(server))
        shown = state(server)[0]
        assert shown["waiting"] == 4 and shown["pending"] == 4
        # The later ones wait behind the first.
        bad = [event["id"] for event in sink.events() if event["data"]["name"] == "poison"]
        if batch == 1:
            assert len(set(bad)) == 1
        def waiting():
            found = operator(server, "GET", "/events/list?subscription=thumbs&state=waiting")["events"]
            return len(found) == 4 and found

        listed = wait_until(waiting)
        assert {one["state"] for one in listed} == {"waiting"} and listed[0]["cause"] == "status 400"
        assert "poison" not in json.dumps(listed)


def test_too_many_pending_events_are_discarded_and_counted(launch):
    with Sink(lambda request, handler: 500) as sink:
        server = launch(extra=subscription(sink) + "eventOptions: { maximumPending: 50 }\n")
        for number in range(150):
            put(server, f"o{number}")
        wait_until(lambda: state(server)[0]["discarded"] >= 95, what=lambda: state(server))
        sink.answer = lambda request, handler: 204
        operator(server, "POST", "/events/resume?subscription=thumbs")
        wait_until(lambda: state(server)[0]["pending"] == 0, what=lambda: state(server))
        shown = state(server)[0]
        assert shown["settled"] + shown["discarded"] == 150
        wait_until(lambda: "events discarded: more than maximumPending" in server.output())
        metric = 'sluice_event_deliveries_total{bucket="photos",subscription="thumbs",result="discarded"}'
        assert server.metrics()[metric] == shown["discarded"]


def test_reload_under_load_loses_and_repeats_nothing(launch):
    with Sink() as sink:
        server = launch(extra=subscription(sink), tls=False)
        writer = Writer(server)
        text = server.config.read_text()
        for turn in range(10):
            time.sleep(0.15)
            # Every second time the subscription changes.
            server.config.write_text(text + f"    concurrency: {turn // 2 + 1}\n")
            server.process.send_signal(signal.SIGHUP)
        time.sleep(0.3)
        acknowledged = writer.stop()
        wait_until(lambda: {(e["data"]["name"], e["data"]["generation"]) for e in sink.events()} >= set(acknowledged),
                   what=lambda: (len(sink.events()), len(acknowledged), state(server)))
        assert len(acknowledged) > 50
        ids = [event["id"] for event in sink.events()]
        assert len(ids) == len(set(ids))
        assert server.output().count("configuration reloaded") == 10


def test_connections_that_break_after_receipt_repeat_the_event(launch):
    cut = [3]

    def answer(request, handler):
        if cut[0] > 0:
            cut[0] -= 1
            handler.connection.shutdown(socket.SHUT_RDWR)
            return None
        return 204

    with Sink(answer) as sink:
        server = launch(extra=subscription(sink, concurrency=1))
        put(server, "a")
        wait_until(lambda: state(server)[0]["settled"] == 1, what=lambda: state(server))
        assert len(sink.posts()) == 4 and len({event["id"] for event in sink.events()}) == 1
        before = descriptors(server)
        for number in range(20):
            put(server, f"o{number}")
        wait_until(lambda: state(server)[0]["settled"] == 21)
        assert descriptors(server) <= before + 2
