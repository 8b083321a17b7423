import HTTPServer
import Telemetry
import Wire

/// The metrics of requests. The handles are made once; counting a request takes five atomic additions.
public struct RequestMetrics: Sendable {
    /// More buckets than this share a label, to bound the number of series.
    static let maximumBuckets = 50

    private struct Traffic {
        /// By status class, 1xx first.
        let requests: InlineArray<5, PrometheusCounter>
        let duration: PrometheusHistogram
        let bytesIn: PrometheusCounter
        let bytesOut: PrometheusCounter

        /// Makes the handles of one operation on one bucket.
        init(_ operation: String, bucket: String, _ registry: PrometheusRegistry) {
            let labels = [("bucket", bucket), ("operation", operation)]
            requests = InlineArray { index in
                registry.counter(
                    "sluice_requests_total", labels + [("status", "\(index + 1)xx")])
            }
            duration = registry.histogram("sluice_request_duration_seconds", labels)
            bytesIn = registry.counter("sluice_request_body_bytes_total", labels)
            bytesOut = registry.counter("sluice_response_body_bytes_total", labels)
        }
    }
    private struct Decisions {
        let allowed: PrometheusCounter
        let denied: PrometheusCounter
        let duration: PrometheusHistogram
        let timeouts: PrometheusCounter
        /// Differences of the shadow rules, by their decision.
        let shadows: [Verdict: PrometheusCounter]

        /// Makes the handles of one operation.
        init(_ operation: String, _ registry: PrometheusRegistry) {
            let label = [("operation", operation)]
            func counter(_ name: String, _ more: [(String, String)] = []) -> PrometheusCounter {
                registry.counter(name, label + more)
            }
            allowed = counter("sluice_decisions_total", [("outcome", "allowed")])
            denied = counter("sluice_decisions_total", [("outcome", "denied")])
            duration = registry.histogram("sluice_decision_duration_seconds", label)
            timeouts = counter("sluice_decision_timeouts_total")
            shadows = Dictionary(
                uniqueKeysWithValues: Verdict.allCases.map {
                    ($0, counter("sluice_shadow_differences_total", [("shadow", $0.rawValue)]))
                })
        }
    }
    // Arrays are by operation, in the order of its cases. The last element is for requests without a route.
    private let decisions: [Decisions]
    private let buckets: NameTable<[Traffic]>
    /// Of requests without a bucket.
    private let others: [Traffic]

    /// Makes the handles and describes the families in `registry`.
    /// - Parameter buckets: Their names.
    public init(_ registry: PrometheusRegistry, buckets: [String]) {
        registry.describe(
            "sluice_requests_total",
            "Completed requests, by bucket, operation and status class.")
        registry.describe(
            "sluice_request_duration_seconds",
            "Time from the complete header block to the end of the response, by bucket and operation.")
        registry.describe(
            "sluice_request_body_bytes_total",
            "Bytes of request bodies received, by bucket and operation.")
        registry.describe(
            "sluice_response_body_bytes_total",
            "Bytes of response bodies sent, by bucket and operation.")
        registry.describe(
            "sluice_decisions_total", "Requests decided, by operation and outcome.")
        registry.describe(
            "sluice_decision_duration_seconds",
            "Time for the decisions of a request, including the reasons for the log.",
            bounds: PrometheusRegistry.shortBounds)
        registry.describe(
            "sluice_decision_timeouts_total",
            "Requests denied because the rules took too long, by operation.")
        registry.describe(
            "sluice_shadow_differences_total",
            "Requests that the shadow rules decide differently, by their decision.")
        let operations = RequestedAccess.Kind.allCases.map(\.rawValue) + ["none"]
        decisions = operations.map { Decisions($0, registry) }
        func traffic(_ bucket: String) -> [Traffic] {
            operations.map { Traffic($0, bucket: bucket, registry) }
        }
        others = traffic("none")
        self.buckets = NameTable(
            buckets.enumerated().map { index, name in
                (name, traffic(index < RequestMetrics.maximumBuckets ? name : "more"))
            })
    }

    /// Counts one request.
    func count(_ record: RequestRecord) {
        let index = record.operation?.index ?? decisions.count - 1
        let traffic = (record.bucket.flatMap { buckets[$0] } ?? others)[index]
        traffic.requests[record.statusClass - 1].increment()
        let duration = Int64(clamping: record.busyNanoseconds)
        if let trace = record.trace?.context, trace.isSampled {
            traffic.duration.recordNanoseconds(duration, trace: trace.traceID)
        } else {
            traffic.duration.recordNanoseconds(duration)
        }
        if record.bytesIn > 0 { traffic.bytesIn.increment(by: Int64(clamping: record.bytesIn)) }
        if record.bytesOut > 0 { traffic.bytesOut.increment(by: Int64(clamping: record.bytesOut)) }
        let handle = decisions[index]
        if let decision = record.decision {
            (decision == .allowed ? handle.allowed : handle.denied).increment()
            handle.duration.recordNanoseconds(Int64(clamping: record.decisionNanoseconds))
        }
        if record.isDecisionTimedOut { handle.timeouts.increment() }
        if let shadow = record.shadow { handle.shadows[shadow]?.increment() }
    }
}

extension RequestedAccess.Kind {
    /// The case's index in `allCases`.
    fileprivate var index: Int {
        switch self {
        case .get: 0
        case .list: 1
        case .create: 2
        case .update: 3
        case .delete: 4
        }
    }
}

/// Counts each request and passes it to the access log, the decision log and the traces, if there are any.
public struct GatewayObserver: RequestObserver {
    private let accessLog: AccessLog?
    private let decisionLog: DecisionLog?
    private let metrics: RequestMetrics
    private var callers: CallerMetrics?
    private let traces: TraceExporter?
    private let feed: (any RequestObserver)?
    public let watch: RequestWatch?

    /// Creates an observer; without logs and traces it only counts.
    /// - Parameter feed: Gets the records of requests that arrive while its watch lasts.
    public init(
        accessLog: AccessLog?, decisionLog: DecisionLog? = nil, metrics: RequestMetrics,
        callers: CallerMetrics? = nil, traces: TraceExporter? = nil, feed: (any RequestObserver)? = nil
    ) {
        self.traces = traces
        self.feed = feed
        watch = feed?.watch
        self.callers = callers
        self.accessLog = accessLog
        self.decisionLog = decisionLog
        self.metrics = metrics
    }

    /// A copy that counts with other caller groups.
    public func counting(_ callers: CallerMetrics) -> GatewayObserver {
        var copy = self
        copy.callers = callers
        return copy
    }

    public var readsDetails: Bool { accessLog != nil || traces != nil }

    public func finished(_ record: RequestRecord) {
        metrics.count(record)
        callers?.count(record)
        accessLog?.finished(record)
        decisionLog?.finished(record)
        traces?.add(record)
        if let watch, watch.until > record.started { feed?.finished(record) }
    }
}

extension PrometheusRegistry {
    /// Adds the metrics of the HTTP server, and the live objects of the operator's server.
    public func addServer(_ statistics: ServerStatistics, operators: ServerStatistics) {
        collect { text in
            text.single(
                "sluice_connections_open", .gauge, "Open connections.",
                statistics.openConnections)
            text.single(
                "sluice_connections_waiting", .gauge,
                "Connections of trusted proxies before their first byte or PROXY header.",
                statistics.waitingConnections)
            text.single(
                "sluice_connections_accepted_total", .counter, "Connections accepted.",
                statistics.acceptedConnections)
            text.single(
                "sluice_streams_live", .gauge, "Requests whose response has not ended.",
                statistics.liveStreams)
            text.family(
                "sluice_live_objects", .gauge,
                "Connections, sessions, streams and requests in memory, by listener; 0 without connections.")
            for (listener, statistics) in [("public", statistics), ("operator", operators)] {
                for object in LiveObject.allCases {
                    text.sample(
                        "sluice_live_objects",
                        [
                            PrometheusLabel("listener", listener),
                            PrometheusLabel("object", object.rawValue),
                        ], statistics.live(object))
                }
            }
            text.single(
                "sluice_protocol_errors_total", .counter, "Connections closed because the peer violated the protocol.",
                statistics.protocolErrorCount)
            text.single(
                "sluice_tls_handshake_failures_total", .counter, "Failed TLS handshakes.",
                statistics.failedHandshakes)
            text.family(
                "sluice_limit_hits_total", .counter, "How often a connection limit was reached.")
            for kind in LimitKind.allCases {
                text.sample(
                    "sluice_limit_hits_total", [PrometheusLabel("limit", "\(kind)")],
                    statistics.hits(kind))
            }
        }
    }

    /// Adds the number of lost log lines.
    public func addLog(_ sink: LogSink) {
        collect { text in
            text.single(
                "sluice_log_lines_dropped_total", .counter,
                "Log lines lost because the log's reader was too slow or gone.", sink.droppedLines)
        }
    }
}
