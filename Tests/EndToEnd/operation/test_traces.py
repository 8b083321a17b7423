"""W3C Trace Context, spans by OTLP/HTTP, and the time at services in access lines."""

import json
import re
import signal
import threading
import time
import urllib.request

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

import upstreams
from collector import Collector, rejection
from fault_proxy import FaultProxy
from faults import Break
from identities import Certificate, loopback_names
from program import curl, sluice, status, wait_until
from secret_words import secret

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
STATE = "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"


def parent(flags="01"):
    return f"traceparent: 00-{TRACE}-{PARENT}-{flags}"


@pytest.fixture(scope="module", params=["gcs-model", "moto"])
def proxy(request, tmp_path_factory):
    """A proxy that keeps the requests to a service."""
    real = upstreams.UPSTREAMS[request.param](tmp_path_factory.mktemp("upstream"))
    proxy = FaultProxy(real.port)
    proxy.real = real
    yield proxy
    proxy.pause()
    real.stop()


def cloud(proxy):
    return f"  photos: {{ {proxy.store(proxy.real)} }}\n"


def access_lines(server, count=1):
    """The access lines of a server, at least `count`."""
    def found():
        lines = [json.loads(line) for line in server.output().splitlines() if line.startswith("{")]
        lines = [line for line in lines if "duration_ms" in line]
        return lines if len(lines) >= count else None
    return wait_until(found, what=f"{count} access lines")


def seen(proxy, start):
    """The trace fields of the requests to the service since `start`."""
    return [(request.fields.get("traceparent"), request.fields.get("tracestate"))
            for request in proxy.requests[start:]]


def test_the_trace_of_one_upload_is_seen_from_client_to_service(proxy, launch):
    with Collector() as collector:
        server = launch(buckets=cloud(proxy), extra=collector.configuration())
        start = len(proxy.requests)
        assert status("-T", "/etc/hostname", "-H", parent(), "-H", f"tracestate: {STATE}",
                      server.url("/b/photos/o/traced")) == 201
        own = wait_until(lambda: [span for span in collector.of(TRACE) if span["kind"] == 2], what="the request's span")[0]
        assert own["parentSpanId"] == PARENT and own["traceState"] == STATE and own["name"] == "PUT create"
        assert own["status"] == {} and own["flags"] == 1
        wanted = {"http.request.method": "PUT", "url.path": "/b/photos/o/traced", "http.response.status_code": 201,
                  "sluice.bucket": "photos", "sluice.operation": "create", "sluice.decision": "allowed",
                  "client.address": "127.0.0.1", "server.address": "127.0.0.1", "server.port": server.http}
        assert wanted.items() <= own["attributes"].items()
        wait_until(lambda: len(collector.of(TRACE)) > 1, what="the services' spans")
        children = [span for span in collector.of(TRACE) if span["kind"] == 3]
        assert all(child["parentSpanId"] == own["spanId"] for child in children)
        for child in children:
            assert child["attributes"]["sluice.upstream"] == "bucket photos"
            # Nor is it a failure that the object was not there before.
            assert child["status"] == {}, child
            assert own["startTimeUnixNano"] <= child["startTimeUnixNano"] <= child["endTimeUnixNano"]
            assert abs(time.time() - child["endTimeUnixNano"] / 1e9) < 60
        # The service got each child's id, and the caller's state.
        passed = [field for field in seen(proxy, start) if field[0]]
        assert {f"00-{TRACE}-{child['spanId']}-01" for child in children} == {field[0] for field in passed}
        assert {field[1] for field in passed} == {STATE}
        line = access_lines(server)[-1]
        assert line["trace"] == TRACE and 0 < line["upstream_ms"]
        assert collector.resources[0]["service.name"] == "sluice"
        wait_until(lambda: server.metrics()["sluice_trace_spans_exported_total"] == len(collector.spans),
                   what="the count of spans")


def test_a_download_that_breaks_off_goes_on_in_its_trace(proxy, launch, tmp_path):
    large = tmp_path / "large"
    large.write_bytes(b"x" * 3_000_000)
    with Collector() as collector:
        server = launch(buckets=cloud(proxy), extra=collector.configuration())
        assert status("-T", large, server.url("/b/photos/o/large")) == 201
        start = len(proxy.requests)
        proxy.fault(Break(1_000_000), method="GET", target="large")
        assert len(curl("-H", parent(), server.url("/b/photos/o/large"))) == 3_000_000
        proxy.clear()
        fields = [field for field in seen(proxy, start) if field[0]]
        assert len(fields) == 2 and len({field[0] for field in fields}) == 2
        assert all(field[0].startswith(f"00-{TRACE}-") for field in fields)
        wait_until(lambda: len(collector.of(TRACE)) == 3, what="three spans")


def test_without_a_collector_the_callers_context_is_passed_on(proxy, launch):
    server = launch(buckets=cloud(proxy))
    start = len(proxy.requests)
    status("-H", parent("00"), "-H", f"tracestate: {STATE}", server.url("/b/photos/o/missing"))
    status(server.url("/b/photos/o/missing"))
    fields = [field for field in seen(proxy, start)]
    assert (parent("00").split(": ")[1], STATE) in fields and (None, None) in fields
    first, second = access_lines(server, 2)[-2:]
    assert first["trace"] == TRACE and "trace" not in second
    assert first["upstream_ms"] >= 0 and second["upstream_ms"] >= 0
    assert not any("trace_spans" in name for name in server.metrics())


def test_without_access_lines_the_callers_context_is_passed_on(proxy, launch):
    server = launch(buckets=cloud(proxy), extra="log: { access: false }\n")
    start = len(proxy.requests)
    assert status("-H", parent("00"), "-H", f"tracestate: {STATE}", server.url("/b/photos/o/missing")) == 404
    assert status(server.url("/b/photos/o/missing")) == 404
    assert [field for field in seen(proxy, start) if field[0]] == [(parent("00").split(": ")[1], STATE)]


def test_denials_have_the_trace(launch, tmp_path):
    rules = tmp_path / "closed.rules"
    rules.write_text("service firebase.storage { match /b/{bucket}/o { match /{all=**} { allow read: if false; } } }")
    server = launch(rules=rules)
    assert status("-H", parent(), server.url("/b/photos/o/a")) == 403
    wait_until(lambda: server.output().count(f'"trace":"{TRACE}"') == 2, what="access line and decision")


@pytest.mark.parametrize("field", [
    "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0", "nonsense", f"ff-{TRACE}-{PARENT}-01",
    f"00-{'0' * 32}-{PARENT}-01"])
def test_a_malformed_context_starts_a_new_trace(launch, field):
    with Collector() as collector:
        server = launch(extra=collector.configuration())
        assert status("-H", f"traceparent: {field}", "-H", f"tracestate: {STATE}", server.url("/b/photos/o/a")) == 404
        wait_until(lambda: collector.spans, what="the span")
        span, = collector.spans
        assert span["traceId"] != TRACE and "parentSpanId" not in span and "traceState" not in span
        assert access_lines(server)[-1]["trace"] == span["traceId"]


@pytest.mark.parametrize("host, address, port", [
    ("a.test:81", "a.test", 81), ("a.test", "a.test", None), ("[::1]:81", "::1", 81), ("[::1]", "::1", None)])
def test_the_address_is_without_its_port(launch, host, address, port):
    with Collector() as collector:
        server = launch(extra=collector.configuration())
        status("-H", f"Host: {host}", server.url("/b/photos/o/a"))
        wait_until(lambda: collector.spans, what="the span")
        found = collector.spans[0]["attributes"]
        assert (found["server.address"], found.get("server.port")) == (address, port) and found["client.port"] > 1024


def test_two_contexts_are_none(launch):
    server = launch()
    status("-H", parent(), "-H", parent(), server.url("/b/photos/o/a"))
    assert "trace" not in access_lines(server)[-1]


def test_the_caller_decides_what_is_recorded(launch):
    with Collector() as collector:
        server = launch(extra=collector.configuration(", sampleRatio: 0"))
        for _ in range(20):
            status(server.url("/b/photos/o/a"))
        status("-H", parent("00"), server.url("/b/photos/o/a"))
        status("-H", parent("01"), server.url("/b/photos/o/a"))
        wait_until(lambda: collector.spans, what="the span")
        server.stop()
        assert [span["parentSpanId"] for span in collector.spans] == [PARENT]


def test_what_waits_is_sent_at_the_end(launch):
    with Collector() as collector:
        server = launch(extra=collector.configuration(", serviceName: media, sampleRatio: 1.0"))
        for _ in range(30):
            status(server.url("/b/photos/o/a"))
        assert server.stop() == 0
        assert len(collector.spans) == 30 and collector.resources[0]["service.name"] == "media"


def test_the_collectors_fields_are_sent_and_never_logged(launch, tmp_path):
    word = secret("collector-password-" + "x" * 12)
    file = tmp_path / "fields"
    file.write_text(f"Authorization: Bearer {word}\n\nX-Scope: a b\n")
    file.chmod(0o600)
    with Collector(status=401) as collector:
        server = launch(extra=collector.configuration(f", headers: {file}"))
        status(server.url("/b/photos/o/a"))
        wait_until(lambda: collector.fields, what="the request")
        assert collector.fields[0]["authorization"] == f"Bearer {word}" and collector.fields[0]["x-scope"] == "a b"
        wait_until(lambda: "traces not exported" in server.output(), what="the warning")


@pytest.mark.parametrize("how", ["dead", "slow"])
def test_a_collector_that_does_not_respond_delays_nothing(launch, how):
    event = threading.Event()
    with Collector(wait=event) as collector:
        port = upstreams.free_port() if how == "dead" else collector.port
        server = launch(extra=f"telemetry: {{ traces: {{ endpoint: \"http://127.0.0.1:{port}/v1/traces\" }} }}\n")
        urls = server.url("/b/photos/o/[1-2000]")
        curl("-o", "/dev/null", urls)
        before, slowest = server.status("RssAnon"), 0
        for _ in range(5):
            begin = time.monotonic()
            curl("-o", "/dev/null", urls)
            slowest = max(slowest, time.monotonic() - begin)
        assert slowest < 30
        # At most 4096 spans wait, and one batch is being sent.
        assert server.metrics()["sluice_trace_spans_queued"] <= 4096
        dropped = wait_until(lambda: server.metrics()["sluice_trace_spans_dropped_total"], what="dropped spans")
        assert dropped > 0 and server.metrics()["sluice_trace_spans_exported_total"] == 0
        assert server.status("RssAnon") - before < 16 * 1024
        begin = time.monotonic()
        # The requests of spans have 2 s, however long the collector takes.
        assert server.stop(signal.SIGTERM) == 0 and time.monotonic() - begin < 4.8
        event.set()


def test_openmetrics_has_the_trace_of_a_request(launch):
    """Read by Prometheus' own parser of OpenMetrics, which is strict."""
    server = launch()
    assert status("-T", "/etc/hostname", "-H", parent(), server.url("/b/photos/o/a")) == 201
    access_lines(server)
    request = urllib.request.Request(f"http://127.0.0.1:{server.operator}/metrics",
                                     headers={"Accept": "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"})
    with urllib.request.urlopen(request, timeout=5) as response:
        assert response.headers["content-type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
        families = {family.name: family for family in text_string_to_metric_families(response.read().decode())}
    [line] = [sample for sample in families["sluice_request_duration_seconds"].samples if sample.exemplar]
    assert line.labels["bucket"] == "photos" and line.labels["operation"] == "create" and line.value == 1
    assert line.exemplar.labels == {"trace_id": TRACE} and abs(float(line.exemplar.timestamp) - time.time()) < 60
    assert families["sluice_requests"].type == "counter"


def test_spans_that_a_collector_rejects_are_dropped(launch):
    with Collector(answer=rejection(1, "no")) as collector:
        server = launch(extra=collector.configuration())
        status(server.url("/b/photos/o/a"))
        wait_until(lambda: server.metrics()["sluice_trace_spans_dropped_total"] == 1, what="the rejected span")
        assert server.metrics()["sluice_trace_spans_exported_total"] == 0


@pytest.mark.parametrize("answer", [b"{}", b"\x0a\x80", b"\x0a\x05\x08", b"\xff" * 11, rejection(-1, "no"), b"\x0d1"])
def test_a_strange_response_is_a_success(launch, answer):
    with Collector(answer=answer) as collector:
        server = launch(extra=collector.configuration())
        assert status(server.url("/b/photos/o/a")) == 404
        wait_until(lambda: server.metrics()["sluice_trace_spans_exported_total"] == 1, what="the span")
        assert server.metrics()["sluice_trace_spans_dropped_total"] == 0


def test_a_collector_over_tls(launch, tmp_path):
    authority = Certificate(tmp_path, "authority", "authority", is_authority=True)
    certificate = authority.issue("collector", names=loopback_names())
    with Collector(certificate=certificate) as collector:
        untrusting = launch(extra=collector.configuration())
        assert status(untrusting.url("/b/photos/o/x")) == 404
        wait_until(lambda: untrusting.metrics()["sluice_trace_spans_dropped_total"] == 1, what="the lost span")
        assert "certificate" in untrusting.output() and not collector.spans
        server = launch(extra=collector.configuration(f", certificateAuthorities: {authority.chain}"))
        assert status("-H", parent(), server.url("/b/photos/o/x")) == 404
        wait_until(lambda: collector.of(TRACE), what="the span")
        (tmp_path / "empty").write_text("no certificate\n")
        unusable = launch(extra=collector.configuration(f", certificateAuthorities: {tmp_path}/empty"))
        assert status(unusable.url("/b/photos/o/x")) == 404
        wait_until(lambda: "traces not exported" in unusable.output(), what="the line about the file")
        assert f"{tmp_path}/empty" in unusable.output()


@pytest.mark.parametrize("keys, message", [
    ("endpoint: collector", "expected a URL such as http://127.0.0.1:4318"),
    ("endpoint: http://u:p@host/", "expected a URL such as http://127.0.0.1:4318"),
    ("sampleRatio: 1.5", "expected a number from 0 to 1"),
    ("headers: /nowhere/fields", "'telemetry.traces.headers': /nowhere/fields"),
    ("certificateAuthorities: /nowhere/ca", "'telemetry.traces.certificateAuthorities': /nowhere/ca can't be read"),
    ("headers: BAD", "bad:2: expected 'name: value'"),
    ("ratio: 1", "unknown key 'ratio' in 'telemetry.traces'"),
])
def test_check_names_what_is_wrong(tmp_path, keys, message):
    (tmp_path / "bad").write_text("a: b\nno field\n")
    file = tmp_path / "sluice.yaml"
    keys = keys.replace("BAD", str(tmp_path / "bad"))
    file.write_text(f"rules: none\nbuckets: {{ a: {{ directory: {{ path: {tmp_path}/a }} }} }}\n"
                    f"telemetry: {{ traces: {{ {keys} }} }}\n")
    code, output, errors = sluice("check", "--config", file)
    assert code != 0 and re.search(re.escape(message), output + errors), output + errors
