"""A collector of spans: it decodes what is posted to /v1/traces and rejects anything that OTLP/HTTP in JSON does not have.

    with Collector() as collector:
        …
        collector.spans
"""

import http.server
import json
import re
import ssl
import threading

#: The fields of opentelemetry/proto/trace/v1/trace.proto that are used, with their types in JSON.
HEX = {"traceId": 32, "spanId": 16, "parentSpanId": 16}
TIMES = {"startTimeUnixNano", "endTimeUnixNano"}
SPAN = {*HEX, *TIMES, "traceState", "flags", "name", "kind", "attributes", "status"}


def attributes(found):
    """Attributes as a dictionary."""
    values = {}
    for attribute in found:
        assert set(attribute) == {"key", "value"} and len(attribute["value"]) == 1, attribute
        (kind, value), = attribute["value"].items()
        assert kind in ("stringValue", "intValue") and isinstance(value, str), attribute
        assert attribute["key"] not in values, attribute
        values[attribute["key"]] = int(value) if kind == "intValue" else value
    return values


def decoded(span):
    """A span with its attributes as a dictionary."""
    assert set(span) <= SPAN, span
    for name, length in HEX.items():
        assert name in span or name == "parentSpanId", span
        assert re.fullmatch(f"[0-9a-f]{{{length}}}", span.get(name, "0" * length)), span
    start, end = (int(span[name]) for name in sorted(TIMES, reverse=True))
    assert 0 < start <= end < 2**64 and all(isinstance(span[name], str) for name in TIMES), span
    assert span["kind"] in (2, 3) and span["status"] in ({}, {"code": 2}), span
    return {**span, "attributes": attributes(span["attributes"])}


class Collector:
    """Listens on a port of its own, with a certificate over TLS. `wait`: an event that each response waits for; `status`:
    of each response."""

    def __init__(self, status=200, wait=None, answer=b"{}", certificate=None):
        self.spans, self.resources, self.fields, self.faults = [], [], [], []
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *arguments):
                pass

            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                if wait:
                    wait.wait(60)
                try:
                    collector.take(self, body)
                except Exception as fault:  # noqa: BLE001: the test reads it
                    collector.faults.append(repr(fault))
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.scheme = "https" if certificate else "http"
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate.chain, certificate.key)
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.port = self.server.server_port
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def take(self, request, body):
        assert request.path == "/v1/traces" and request.headers["content-type"] == "application/json"
        self.fields.append(request.headers)
        message = json.loads(body)
        assert set(message) == {"resourceSpans"}
        for of_resource in message["resourceSpans"]:
            assert set(of_resource) == {"resource", "scopeSpans"}
            self.resources.append(attributes(of_resource["resource"]["attributes"]))
            for of_scope in of_resource["scopeSpans"]:
                assert set(of_scope) == {"scope", "spans"} and of_scope["scope"] == {"name": "sluice"}
                self.spans += [decoded(span) for span in of_scope["spans"]]

    def of(self, trace):
        """The spans of a trace."""
        return [span for span in self.spans if span["traceId"] == trace]

    def configuration(self, more=""):
        return f"telemetry: {{ traces: {{ endpoint: \"{self.scheme}://127.0.0.1:{self.port}\"{more} }} }}\n"

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.server.shutdown()
        self.server.server_close()
        if not error[0]:
            assert not self.faults, self.faults
