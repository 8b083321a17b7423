import HTTPClient
import System
import Telemetry
import Wire

/// Counts requests to upstreams, and passes them to the traces, if there are any. Each attempt counts separately.
public final class UpstreamMetrics: UpstreamObserver {
    /// Identifies a series without allocating strings: the method is compared by the address of its literal. Equal
    /// literals may have different addresses; the registry then returns the same series for both keys.
    private struct Key {
        let upstream: String
        let method: UInt
        /// The status class, 1 to 5; nil if the attempt failed.
        let status: Int?
        /// Why there was no complete response.
        let error: ClientError.Code?

        init(_ record: UpstreamRecord) {
            upstream = record.upstream.settings.name
            method = UInt(bitPattern: record.method.utf8Start)
            status = record.error == nil ? record.status.map { $0 / 100 } : nil
            error = record.error
        }

        /// Whether the record belongs to the series.
        func matches(_ record: UpstreamRecord) -> Bool {
            method == UInt(bitPattern: record.method.utf8Start) && error == record.error
                && (error != nil || status == record.status.map { $0 / 100 })
                && BytewiseString.areEqual(upstream, record.upstream.settings.name)
        }

        /// One of ``listCount`` lists, by method and status. All upstreams share them; they are short.
        static func list(_ record: UpstreamRecord) -> Int {
            let address = Int(bitPattern: record.method.utf8Start)
            return (address &+ (record.status ?? 0) / 100) & (listCount - 1)
        }

        /// A power of two.
        static let listCount = 64
    }
    private struct Handles {
        let requests: PrometheusCounter
        let duration: PrometheusHistogram
        let firstByte: PrometheusHistogram

        /// Makes the handles for a record.
        init(_ record: UpstreamRecord, _ registry: PrometheusRegistry) {
            let method = [
                ("upstream", record.upstream.settings.name), ("method", "\(record.method)"),
            ]
            let outcome = record.error?.rawValue ?? record.status.map { "\($0 / 100)xx" } ?? "none"
            requests = registry.counter("sluice_upstream_requests_total", method + [("outcome", outcome)])
            duration = registry.histogram("sluice_upstream_request_duration_seconds", method)
            firstByte = registry.histogram("sluice_upstream_first_byte_seconds", method)
        }
    }
    private let registry: PrometheusRegistry
    /// Made at first use, since most methods are never used.
    private let series = Lock<[[(key: Key, handles: Handles)]]>(Array(repeating: [], count: Key.listCount))

    private let traces: TraceExporter?

    /// Describes the families in `registry`.
    public init(_ registry: PrometheusRegistry, traces: TraceExporter? = nil) {
        self.traces = traces
        self.registry = registry
        registry.describe(
            "sluice_upstream_requests_total",
            "Attempts of requests to upstreams, by method and outcome (a status class, or an error).")
        registry.describe(
            "sluice_upstream_request_duration_seconds",
            "Time from the start of an attempt to the end of its response, including the time in the queue.")
        registry.describe(
            "sluice_upstream_first_byte_seconds", "Time from the start of an attempt to the head of its response.")
    }

    public func finished(_ record: UpstreamRecord) {
        let list = Key.list(record)
        let known = series.withLock { lists -> Handles? in
            for index in lists[list].indices where lists[list][index].key.matches(record) {
                return lists[list][index].handles
            }
            return nil
        }
        let counted = known ?? make(record, list)
        traces?.add(record)
        counted.requests.increment()
        counted.duration.recordNanoseconds(Int64(clamping: record.duration))
        if let time = record.timeToFirstByte {
            counted.firstByte.recordNanoseconds(Int64(clamping: time))
        }
    }

    /// Makes the handles of a record's series, and keeps them in its list. If two threads make one at once, both count: the
    /// registry returns the same handles to both.
    @inline(never)
    private func make(_ record: UpstreamRecord, _ list: Int) -> Handles {
        let made = Handles(record, registry)
        series.withLock { $0[list].append((Key(record), made)) }
        return made
    }
}

extension PrometheusRegistry {
    /// Adds the metrics of upstreams.
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
            family("requests_in_flight", .gauge, "Requests that have started and not ended.") {
                $0.statistics.inFlight
            }
            family("requests_queued", .gauge, "Queued requests.") {
                $0.statistics.queued
            }
            family("connections_open", .gauge, "Connections to the upstream.") {
                $0.statistics.connections
            }
            family("connections_idle", .gauge, "Idle connections to the upstream.") {
                $0.statistics.idleConnections
            }
            family(
                "breaker_open", .gauge,
                "Whether the circuit is open because the upstream does not respond."
            ) {
                $0.openCircuit == nil ? 0 : 1
            }
        }
    }
}
