import Synchronization
import System
import Wire

/// The metrics of the program, for Prometheus.
///
/// Characters that Prometheus does not allow in names become `_`. The same name and labels give the same series. If a name
/// is already used by another kind, the new series is not exposed. Series are never removed, so the values of labels must
/// come from closed sets.
public final class PrometheusRegistry: Sendable {
    /// Upper bounds in seconds: from a cached read to a long upload.
    public static let durationBounds: [Double] = [
        0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5,
        5, 10, 30, 60, 300,
    ]
    /// Upper bounds in seconds for short durations: 500 ns to 10 ms.
    public static let shortBounds: [Double] = [
        0.0000005, 0.000001, 0.0000025, 0.000005, 0.00001, 0.000025, 0.00005, 0.0001, 0.001, 0.01,
    ]

    struct Family {
        let kind: PrometheusText.Kind
        var series: [[PrometheusLabel]: any PrometheusSeries] = [:]
    }
    private struct State {
        // Keys: metric names, which come from the program.
        var families: [String: Family] = [:]
        var help: [String: String] = [:]
        var bounds: [String: [Double]] = [:]
        var collectors: [@Sendable (inout PrometheusText) -> Void] = []
    }
    private let state = Lock(State())

    public init() {}

    /// Sets the HELP text of a family: one sentence.
    /// - Parameter bounds: Replaces ``durationBounds`` for histograms that are made later.
    public func describe(_ name: String, _ help: String, bounds: [Double]? = nil) {
        let name = PrometheusText.name(name)
        state.withLock { state in
            state.help[name] = help
            state.bounds[name] = bounds
        }
    }

    /// Registers a closure that is called at each scrape, to write families whose values are kept elsewhere.
    public func collect(_ collect: @escaping @Sendable (inout PrometheusText) -> Void) {
        state.withLock { $0.collectors.append(collect) }
    }

    /// All metrics. Families and series have a fixed order.
    public func exposition(_ format: PrometheusText.Format = .text) -> [UInt8] {
        let (families, help, collectors) = state.withLock { ($0.families, $0.help, $0.collectors) }
        var text = PrometheusText(format)
        for (name, family) in families.sorted(by: { $0.key < $1.key }) {
            text.family(name, family.kind, help[name] ?? name)
            for (labels, series) in family.series.sorted(by: {
                $0.key.lexicographicallyPrecedes($1.key)
            }) {
                series.write(name, labels, &text)
            }
        }
        for collect in collectors { collect(&text) }
        text.end()
        return text.bytes
    }

    /// The counter with this name and these labels.
    public func counter(_ name: String, _ labels: [(String, String)] = []) -> PrometheusCounter {
        series(name, labels, .counter) { PrometheusCounter() }
    }

    /// The histogram of durations with this name and these labels.
    public func histogram(_ name: String, _ labels: [(String, String)] = []) -> PrometheusHistogram {
        let bounds = state.withLock { $0.bounds[PrometheusText.name(name)] }
        return series(name, labels, .histogram) {
            PrometheusHistogram(bounds ?? PrometheusRegistry.durationBounds)
        }
    }

    private func series<Series: PrometheusSeries>(
        _ name: String, _ labels: [(String, String)], _ kind: PrometheusText.Kind, _ make: () -> Series
    ) -> Series {
        let name = PrometheusText.name(name)
        let labels = labels.map(PrometheusLabel.init).sorted()
        return state.withLock { state in
            var family = state.families[name] ?? Family(kind: kind)
            if let known = family.series[labels] { return known as? Series ?? make() }
            let series = make()
            guard family.kind == kind else { return series }
            family.series[labels] = series
            state.families[name] = family
            return series
        }
    }
}

/// A series that can write its samples.
protocol PrometheusSeries: Sendable {
    func write(_ name: String, _ labels: [PrometheusLabel], _ text: inout PrometheusText)
}

/// A number of events. All copies count together. A copy changes no reference count.
///
/// Safety: the number is an atomic in memory that is never freed, because series are never removed.
public struct PrometheusCounter: PrometheusSeries, @unchecked Sendable {
    @usableFromInline let value: UnsafeMutablePointer<Atomic<Int64>>

    init() {
        value = .allocate(capacity: 1)
        value.initialize(to: Atomic(0))
    }

    /// Adds events; a negative number is ignored.
    @inlinable
    public func increment(by amount: Int64 = 1) {
        value.pointee.add(max(0, amount), ordering: .relaxed)
    }

    func write(_ name: String, _ labels: [PrometheusLabel], _ text: inout PrometheusText) {
        text.sample(name, labels, value.pointee.load(ordering: .relaxed))
    }
}
