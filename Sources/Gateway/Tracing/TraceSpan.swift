import HTTPClient
import HTTPServer
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

    /// Statuses of usual negative results, such as a missing object. They are not failures.
    private static let answers = [404, 412, 416]

    /// - Parameters:
    ///   - start: Nanoseconds since 1970.
    ///   - duration: In nanoseconds.
    private init(
        _ context: TraceContext, parentID: String?, _ kind: Kind, _ name: String, start: UInt64, duration: UInt64
    ) {
        self.context = context
        self.parentID = parentID
        self.kind = kind
        self.name = name
        self.start = start
        end = start &+ duration
    }

    private mutating func add(_ name: StaticString, _ text: String?) {
        if let text { attributes.append((name, .text(text))) }
    }

    private mutating func add(_ name: StaticString, _ number: some BinaryInteger) {
        attributes.append((name, .number(Int64(clamping: number))))
    }
}

extension TraceSpan {
    /// Adds an address, and its port if there is one: `a:1`, `[::1]:1`, `a`.
    private mutating func addAddress(
        _ name: StaticString, _ portName: StaticString, _ text: String?
    ) {
        guard let text else { return }
        let parts = text.utf8.split(separator: UInt8(ascii: ":"), omittingEmptySubsequences: false)
        var host = text.utf8[...]
        if parts.count == 2 || parts.count > 2 && text.utf8.first == UInt8(ascii: "["),
            let port = parts.last.flatMap({ Decimal.parse(Array($0)[...]) })
        {
            host = host.prefix(upTo: parts[parts.count - 1].startIndex).dropLast()
            add(portName, port)
        }
        if host.first == UInt8(ascii: "["), host.last == UInt8(ascii: "]") {
            host = host.dropFirst().dropLast()
        }
        add(name, String(Substring(host)))
    }

    /// The span of a client's request that has just ended.
    init(_ record: RequestRecord, _ context: TraceContext, _ trace: RequestTrace) {
        let method = TraceSpan.method(record.method)
        self.init(
            context, parentID: record.origin.trace?.spanID, .server,
            record.operation.map { "\(method) \($0.rawValue)" } ?? method, start: trace.time(record.started),
            duration: record.durationNanoseconds)
        state = record.origin.traceState
        add("http.request.method", method)
        add("url.path", String(decoding: record.path.utf8.prefix(1024), as: UTF8.self))
        add("url.scheme", record.isSecure ? "https" : "http")
        add("http.response.status_code", record.status)
        add("network.protocol.version", record.version.number)
        addAddress("client.address", "client.port", record.peer)
        addAddress("server.address", "server.port", record.origin.host)
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
    init(_ record: UpstreamRecord, _ context: TraceContext, _ trace: RequestTrace) {
        self.init(
            context, parentID: trace.context?.spanID, .client, "\(record.method)", start: trace.time(record.begun),
            duration: record.duration)
        add("http.request.method", "\(record.method)")
        let upstream = record.upstream.settings
        add("server.address", upstream.origin.host)
        add("server.port", upstream.origin.port)
        add("url.scheme", upstream.origin.scheme.rawValue)
        add("sluice.upstream", upstream.name)
        if record.attempt > 1 { add("http.request.resend_count", record.attempt - 1) }
        if let status = record.status { add("http.response.status_code", status) }
        if let error = record.error {
            isError = true
            add("error.type", error.rawValue)
        } else if let status = record.status, status >= 400, !TraceSpan.answers.contains(status) {
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
