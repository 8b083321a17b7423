import Telemetry
import Wire

extension [TraceSpan] {
    /// A request of OTLP/HTTP: an `ExportTraceServiceRequest` of opentelemetry-proto 1.
    func exportRequest(service: String, build: BuildInfo) -> [UInt8] {
        var request = ProtobufWriter()
        request.message(1) { spans in  // resource_spans
            spans.message(1) { resource in
                resource.attribute(1, "service.name", .text(service))
                resource.attribute(1, "service.version", .text(build.version))
            }
            spans.message(2) { spans in  // scope_spans
                spans.message(1) { $0.bytes(1, "sluice".utf8) }
                for span in self { spans.message(2) { $0.write(span) } }
            }
        }
        return request.bytes
    }
}

/// The number of rejected spans in a collector's `ExportTraceServiceResponse`; 0 if it has none.
func rejectedSpans(of response: [UInt8]) -> Int {
    guard let partialSuccess = ProtobufReader.bytes(1, of: response[...]),
        let rejected = ProtobufReader.number(1, of: partialSuccess)
    else { return 0 }
    return Int(Swift.max(0, rejected))
}

extension ProtobufWriter {
    /// Writes the fields of a `Span`.
    fileprivate mutating func write(_ span: TraceSpan) {
        bytes(1, Hexadecimal.decode(span.context.traceID.utf8) ?? [])
        bytes(2, Hexadecimal.decode(span.context.spanID.utf8) ?? [])
        if let state = span.state { bytes(3, state.utf8) }
        if let parent = span.parentID { bytes(4, Hexadecimal.decode(parent.utf8) ?? []) }
        bytes(5, span.name.utf8)
        number(6, Int64(span.kind.rawValue))
        fixed(7, span.start)
        fixed(8, span.end)
        for (name, value) in span.attributes { attribute(9, name, value) }
        // 2 is an error. A success is left unset, as the conventions say.
        if span.isError { message(15) { $0.number(3, 2) } }
        if span.context.flags != 0 { fixed(16, UInt32(span.context.flags)) }
    }

    /// Writes a `KeyValue`. Secrets in texts are removed, as in the log.
    fileprivate mutating func attribute(
        _ field: Int, _ name: StaticString, _ value: TraceSpan.Value
    ) {
        message(field) { pair in
            name.withUTF8Buffer { pair.bytes(1, $0) }
            pair.message(2) { any in
                switch value {
                case .number(let number): any.number(3, number)
                case .text(let text): any.bytes(1, LogLine.redacted(text).utf8)
                }
            }
        }
    }
}
