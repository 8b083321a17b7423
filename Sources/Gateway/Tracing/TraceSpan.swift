import HTTPClient
import HTTPServer
import System
import Telemetry
import Wire

/// One operation of a trace, complete.
struct TraceSpan: Sendable {
    /// The kind's number in OpenTelemetry's protocol.
    enum Kind: Int, Sendable {
        /// A client's request to the gateway.
        case server = 2
        /// The gateway's request to a service.
        case client = 3
    }

    enum Value: Sendable {
        case text(String)
        case number(Int64)
    }

    let context: TraceContext
    /// The id of the span that caused this one; nil for the first span of a trace.
    let parentID: String?
    /// The caller's `tracestate`.
    var state: String?
    let kind: Kind
    let name: String
    /// Nanoseconds since 1970.
    let start: UInt64
    let end: UInt64
    /// Names follow OpenTelemetry's conventions for HTTP. Those of the gateway begin with `sluice.`.
    private(set) var attributes: [(name: StaticString, value: Value)] = []
    /// Whether the operation failed.
    var isError = false

    private init(
        _ context: TraceContext, parentID: String?, _ kind: Kind, _ name: String, duration: UInt64
    ) {
        self.context = context
        self.parentID = parentID
        self.kind = kind
        self.name = name
        let now = SystemClock.time()
        end = UInt64(now.tv_sec) * 1_000_000_000 + UInt64(now.tv_nsec)
        start = end - min(end, duration)
    }

    private mutating func add(_ name: StaticString, _ text: String?) {
        if let text { attributes.append((name, .text(text))) }
    }

    private mutating func add(_ name: StaticString, _ number: some BinaryInteger) {
        attributes.append((name, .number(Int64(clamping: number))))
    }
}

extension TraceSpan {
    /// The span of a client's request that has just ended.
    init(_ record: RequestRecord, _ context: TraceContext) {
        let method = TraceSpan.method(record.method)
        self.init(
            context, parentID: record.origin.trace?.spanID, .server,
            record.operation.map { "\(method) \($0.rawValue)" } ?? method,
            duration: record.durationNanoseconds)
        state = record.origin.traceState
        add("http.request.method", method)
        add("url.path", String(decoding: record.path.utf8.prefix(1024), as: UTF8.self))
        add("url.scheme", record.isSecure ? "https" : "http")
        add("http.response.status_code", record.status)
        add("network.protocol.version", record.version.number)
        add("client.address", record.peer)
        add("server.address", record.origin.host)
        add("user_agent.original", record.origin.userAgent)
        add("http.request.body.size", record.bytesIn)
        add("http.response.body.size", record.bytesOut)
        add("sluice.request", record.requestId)
        add("sluice.bucket", record.bucket)
        add("sluice.operation", record.operation?.rawValue)
        add("sluice.decision", record.decision?.rawValue)
        if record.statusClass == 5 {
            isError = true
            add("error.type", record.errorCode ?? String(record.status))
        }
    }

    /// The span of a request to a service that has just ended.
    init(_ record: UpstreamRecord, _ context: TraceContext) {
        self.init(
            context, parentID: record.parentID, .client, "\(record.method)",
            duration: record.duration)
        add("http.request.method", "\(record.method)")
        add("server.address", record.origin.host)
        add("server.port", record.origin.port)
        add("url.scheme", record.origin.scheme.rawValue)
        add("sluice.upstream", record.upstream)
        if record.attempt > 1 { add("http.request.resend_count", record.attempt - 1) }
        if let status = record.status { add("http.response.status_code", status) }
        if let error = record.error {
            isError = true
            add("error.type", error.rawValue)
        } else if let status = record.status, status >= 400 {
            isError = true
            add("error.type", String(status))
        }
    }

    /// The method, or `_OTHER`, so that names are from a closed set.
    private static func method(_ method: String) -> String {
        HTTPMethod(rawValue: method) == nil ? "_OTHER" : method
    }
}

extension HTTPVersion {
    fileprivate var number: String {
        switch self {
        case .http1_0: "1.0"
        case .http1_1: "1.1"
        case .http2: "2"
        }
    }
}

extension [TraceSpan] {
    /// A request of OTLP/HTTP in JSON (`ExportTraceServiceRequest`): ids in hexadecimal, 64-bit numbers as strings.
    func exportRequest(service: String, build: BuildInfo) -> [UInt8] {
        var json = JSONWriter(reserving: 1024 * (count + 1))
        json.beginObject()
        json.beginArray("resourceSpans")
        json.beginObject()
        json.key("resource")
        json.beginObject()
        json.beginArray("attributes")
        json.attribute("service.name", .text(service))
        json.attribute("service.version", .text(build.version))
        json.endArray()
        json.endObject()
        json.beginArray("scopeSpans")
        json.beginObject()
        json.key("scope")
        json.beginObject()
        json.member("name", "sluice")
        json.endObject()
        json.beginArray("spans")
        for span in self { json.span(span) }
        json.endArray()
        json.endObject()
        json.endArray()
        json.endObject()
        json.endArray()
        json.endObject()
        return json.bytes
    }
}

extension JSONWriter {
    fileprivate mutating func beginArray(_ key: StaticString) {
        self.key(key)
        beginArray()
    }

    fileprivate mutating func span(_ span: TraceSpan) {
        beginObject()
        member("traceId", span.context.traceID)
        member("spanId", span.context.spanID)
        if let parent = span.parentID { member("parentSpanId", parent) }
        if let state = span.state { member("traceState", state) }
        member("flags", Int64(span.context.flags))
        member("name", span.name)
        member("kind", Int64(span.kind.rawValue))
        member("startTimeUnixNano", String(span.start))
        member("endTimeUnixNano", String(span.end))
        beginArray("attributes")
        for (name, value) in span.attributes { attribute(name, value) }
        endArray()
        key("status")
        beginObject()
        // 2 is an error. A success is left unset, as the conventions say.
        if span.isError { member("code", 2) }
        endObject()
        endObject()
    }

    /// Writes an attribute. Secrets in texts are removed, as in the log.
    fileprivate mutating func attribute(_ name: StaticString, _ value: TraceSpan.Value) {
        beginObject()
        member("key", "\(name)")
        key("value")
        beginObject()
        switch value {
        case .number(let number): member("intValue", String(number))
        case .text(let text):
            var line = LogLine()
            line.quoted(text)
            member(key: "stringValue", json: line.bytes)
        }
        endObject()
        endObject()
    }
}
