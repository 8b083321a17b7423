import CoreMetrics
import EventLoop
import HTTPClient

/// Counts what is asked of upstreams, attempt by attempt.
public final class UpstreamMetrics: UpstreamObserver {
    /// What tells one series from another, in what is known without making texts. A method that is written down in two
    /// places may have two addresses: the registry gives both the same series.
    private struct Key: Hashable {
        let upstream: String
        let method: UInt
        /// The class of the status.
        let status: Int?
        /// Why there was no complete answer.
        let error: ClientError.Code?

        init(_ record: UpstreamRecord) {
            upstream = record.upstream
            method = UInt(bitPattern: record.method.utf8Start)
            status = record.error == nil ? record.status.map { $0 / 100 } : nil
            error = record.error
        }
    }
    private struct Handles {
        let requests: Counter
        let duration: CoreMetrics.Timer
        let firstByte: CoreMetrics.Timer
    }
    private let registry: PrometheusRegistry
    /// Made when they are first needed: most methods are never used.
    private let handles = Lock<[Key: Handles]>([:])

    /// Names the families in `registry`.
    public init(_ registry: PrometheusRegistry) {
        self.registry = registry
        registry.describe(
            "sluice_upstream_requests_total",
            "Attempts of requests to upstreams, by method and outcome: a status class, or why there was none."
        )
        registry.describe(
            "sluice_upstream_request_duration_seconds",
            "Time from the beginning of an attempt to the end of its answer, the wait for its turn included."
        )
        registry.describe(
            "sluice_upstream_first_byte_seconds",
            "Time from the beginning of an attempt to the head of its answer.")
    }

    public func finished(_ record: UpstreamRecord) {
        let key = Key(record)
        let handles = handles.withLock { known in
            if let handles = known[key] { return handles }
            let made = make(record)
            known[key] = made
            return made
        }
        handles.requests.increment()
        handles.duration.recordNanoseconds(Int64(clamping: record.duration))
        if let time = record.timeToFirstByte {
            handles.firstByte.recordNanoseconds(Int64(clamping: time))
        }
    }

    private func make(_ record: UpstreamRecord) -> Handles {
        let method = [("upstream", record.upstream), ("method", "\(record.method)")]
        let outcome = record.error?.rawValue ?? record.status.map { "\($0 / 100)xx" } ?? "none"
        return Handles(
            requests: Counter(
                label: "sluice_upstream_requests_total",
                dimensions: method + [("outcome", outcome)], factory: registry),
            duration: CoreMetrics.Timer(
                label: "sluice_upstream_request_duration_seconds", dimensions: method,
                factory: registry),
            firstByte: CoreMetrics.Timer(
                label: "sluice_upstream_first_byte_seconds", dimensions: method, factory: registry))
    }
}

extension PrometheusRegistry {
    /// Shows the numbers of upstreams.
    public func addUpstreams(_ upstreams: [Upstream]) {
        if upstreams.isEmpty { return }
        collect { text in
            func family(
                _ name: String, _ kind: PrometheusText.Kind, _ help: String,
                _ value: (Upstream) -> Int
            ) {
                text.family("sluice_upstream_" + name, kind, help)
                for upstream in upstreams {
                    text.sample(
                        "sluice_upstream_" + name,
                        [PrometheusLabel("upstream", upstream.settings.name)], value(upstream))
                }
            }
            family("retries_total", .counter, "Attempts beyond the first.") {
                $0.statistics.retries
            }
            family("requests_in_flight", .gauge, "Requests that have begun and not ended.") {
                $0.statistics.inFlight
            }
            family("requests_queued", .gauge, "Requests that wait for their turn.") {
                $0.statistics.queued
            }
            family("connections_open", .gauge, "Connections to the upstream.") {
                $0.statistics.connections
            }
            family("connections_idle", .gauge, "Connections at rest.") {
                $0.statistics.idleConnections
            }
            family(
                "breaker_open", .gauge,
                "Whether the upstream is left alone because nobody answers there."
            ) {
                $0.openCircuit == nil ? 0 : 1
            }
        }
    }
}
