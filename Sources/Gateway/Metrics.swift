import CoreMetrics
import HTTPServer

/// What is counted of requests. The handles are made once; counting one request is five atomic additions.
public struct RequestMetrics: Sendable {
    // A class, so that counting touches one reference count and not those of all handles.
    private final class Handles: Sendable {
        /// By status class, 1xx first.
        let requests: [Counter]
        let duration: CoreMetrics.Timer
        let bytesIn: Counter
        let bytesOut: Counter
        let allowed: Counter
        let denied: Counter
        let decisions: CoreMetrics.Timer
        /// Differences of rules on trial, by what these said.
        let trials: [Verdict: Counter]

        /// Of one operation.
        init(_ name: String, _ registry: PrometheusRegistry) {
            let operation = [("operation", name)]
            func counter(_ label: String, _ dimension: (String, String)? = nil) -> Counter {
                Counter(
                    label: label, dimensions: operation + (dimension.map { [$0] } ?? []),
                    factory: registry)
            }
            func timer(_ label: String) -> CoreMetrics.Timer {
                CoreMetrics.Timer(label: label, dimensions: operation, factory: registry)
            }
            requests = (1...5).map { counter("sluice_requests_total", ("status", "\($0)xx")) }
            duration = timer("sluice_request_duration_seconds")
            bytesIn = counter("sluice_request_body_bytes_total")
            bytesOut = counter("sluice_response_body_bytes_total")
            allowed = counter("sluice_decisions_total", ("outcome", "allowed"))
            denied = counter("sluice_decisions_total", ("outcome", "denied"))
            decisions = timer("sluice_decision_duration_seconds")
            trials = Dictionary(
                uniqueKeysWithValues: Verdict.allCases.map {
                    ($0, counter("sluice_shadow_differences_total", ("shadow", $0.rawValue)))
                })
        }
    }
    /// By operation, in the order of its cases; the last is of requests without a route.
    private let handles: [Handles]

    /// Makes the handles and names the families in `registry`.
    public init(_ registry: PrometheusRegistry) {
        registry.describe(
            "sluice_requests_total", "Requests answered, by operation and status class.")
        registry.describe(
            "sluice_request_duration_seconds",
            "Time from a complete header block to the end of the answer, by operation.")
        registry.describe(
            "sluice_request_body_bytes_total", "Bytes of request bodies taken, by operation.")
        registry.describe(
            "sluice_response_body_bytes_total", "Bytes of response bodies sent, by operation.")
        registry.describe(
            "sluice_decisions_total", "Requests decided, by operation and outcome.")
        registry.describe(
            "sluice_decision_duration_seconds",
            "Time for the decisions of a request, reasons for the log included.",
            bounds: PrometheusRegistry.shortBounds)
        registry.describe(
            "sluice_shadow_differences_total",
            "Requests that rules on trial decide otherwise, by what they say.")
        let names = Operation.Kind.allCases.map(\.rawValue) + ["none"]
        handles = names.map { Handles($0, registry) }
    }

    /// Counts one request.
    func count(_ record: RequestRecord) {
        let handle = handles[record.operation?.index ?? handles.count - 1]
        handle.requests[record.statusClass - 1].increment()
        handle.duration.recordNanoseconds(Int64(clamping: record.durationNanoseconds))
        if record.bytesIn > 0 { handle.bytesIn.increment(by: Int64(clamping: record.bytesIn)) }
        if let decision = record.decision {
            (decision == .allowed ? handle.allowed : handle.denied).increment()
            handle.decisions.recordNanoseconds(Int64(clamping: record.decisionNanoseconds))
        }
        if let trial = record.trial { handle.trials[trial]?.increment() }
        if record.bytesOut > 0 { handle.bytesOut.increment(by: Int64(clamping: record.bytesOut)) }
    }
}

extension Operation.Kind {
    /// The case's place in `allCases`.
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

/// Writes the access line of each request, where there is an access log, and counts it.
public struct GatewayObserver: RequestObserver {
    private let accessLog: AccessLog?
    private let decisionLog: DecisionLog?
    private let metrics: RequestMetrics
    private var callers: CallerMetrics?

    /// Creates an observer; without logs it only counts.
    public init(
        accessLog: AccessLog?, decisionLog: DecisionLog? = nil, metrics: RequestMetrics,
        callers: CallerMetrics? = nil
    ) {
        self.callers = callers
        self.accessLog = accessLog
        self.decisionLog = decisionLog
        self.metrics = metrics
    }

    /// The same, with other groups of callers.
    public func counting(_ callers: CallerMetrics) -> GatewayObserver {
        var copy = self
        copy.callers = callers
        return copy
    }

    public func finished(_ record: RequestRecord) {
        metrics.count(record)
        callers?.count(record)
        accessLog?.finished(record)
        decisionLog?.finished(record)
    }
}

extension PrometheusRegistry {
    /// Shows what the HTTP server counts.
    public func addServer(_ statistics: ServerStatistics) {
        collect { text in
            text.single(
                "sluice_connections_open", .gauge, "Connections that are open.",
                statistics.openConnections)
            text.single(
                "sluice_connections_accepted_total", .counter, "Connections accepted.",
                statistics.acceptedConnections)
            text.single(
                "sluice_streams_live", .gauge, "Requests whose answer has not ended.",
                statistics.liveStreams)
            text.single(
                "sluice_protocol_errors_total", .counter,
                "Connections that ended because the peer broke the protocol.",
                statistics.protocolErrorCount)
            text.single(
                "sluice_tls_handshake_failures_total", .counter, "TLS handshakes that failed.",
                statistics.failedHandshakes)
            text.family(
                "sluice_limit_hits_total", .counter, "How often a limit of a connection was hit.")
            for kind in LimitKind.allCases {
                text.sample(
                    "sluice_limit_hits_total", [PrometheusLabel("limit", "\(kind)")],
                    statistics.hits(kind))
            }
        }
    }

    /// Shows how many log lines were lost.
    public func addLog(_ sink: LogSink) {
        collect { text in
            text.single(
                "sluice_log_lines_dropped_total", .counter,
                "Log lines lost because the log's reader was too slow or gone.", sink.droppedLines)
        }
    }
}
