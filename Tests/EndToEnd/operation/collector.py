"""A collector of spans: it decodes what is posted to /v1/traces with OpenTelemetry's own messages, and rejects what it would not
expect.

    with Collector() as collector:
        …
        collector.spans
"""

import http.server
import ssl
import threading

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest, ExportTraceServiceResponse

PROTOBUF = "application/x-protobuf"


def attributes(found):
    """Attributes as a dictionary."""
    values = {}
    for attribute in found:
        kind = attribute.value.WhichOneof("value")
        assert kind in ("string_value", "int_value") and attribute.key and attribute.key not in values, attribute
        values[attribute.key] = getattr(attribute.value, kind)
    return values


def decoded(span):
    """A span as a dictionary with the names of OTLP in JSON. Fields without a value are left out."""
    assert len(span.trace_id) == 16 and len(span.span_id) == 8 and len(span.parent_span_id) in (0, 8), span
    assert any(span.trace_id) and any(span.span_id), span
    assert 0 < span.start_time_unix_nano <= span.end_time_unix_nano and span.kind in (2, 3), span
    assert span.HasField("status") == (span.status.code == 2) and not span.status.message, span
    found = {"traceId": span.trace_id.hex(), "spanId": span.span_id.hex(), "parentSpanId": span.parent_span_id.hex(),
             "traceState": span.trace_state}
    return {**{name: value for name, value in found.items() if value}, "name": span.name, "kind": span.kind, "flags": span.flags,
            "startTimeUnixNano": span.start_time_unix_nano, "endTimeUnixNano": span.end_time_unix_nano,
            "status": {"code": 2} if span.status.code else {}, "attributes": attributes(span.attributes)}


def rejection(count, message):
    """A response that says how many spans were not taken."""
    response = ExportTraceServiceResponse()
    response.partial_success.rejected_spans, response.partial_success.error_message = count, message
    return response.SerializeToString()


class Collector:
    """Listens on a port of its own, with a certificate over TLS. `wait`: an event that each response waits for; `status`:
    of each response."""

    def __init__(self, status=200, wait=None, answer=b"", certificate=None):
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
                self.send_header("content-type", PROTOBUF)
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
        assert request.path == "/v1/traces" and request.headers["content-type"] == PROTOBUF
        self.fields.append(request.headers)
        message = ExportTraceServiceRequest.FromString(body)
        message.DiscardUnknownFields()
        assert message.ByteSize() == len(body), "it has fields that OpenTelemetry does not know"
        for of_resource in message.resource_spans:
            self.resources.append(attributes(of_resource.resource.attributes))
            for of_scope in of_resource.scope_spans:
                assert of_scope.scope.name == "sluice" and of_scope.spans
                self.spans += [decoded(span) for span in of_scope.spans]

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
