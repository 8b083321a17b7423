import CoreMetrics
import Synchronization
import System
import Wire

/// The swift-metrics backend for Prometheus.
///
/// A counter becomes a `counter`, a timer a `histogram` in seconds, an aggregating recorder a `histogram` in its own
/// unit, a meter and any other recorder a `gauge`. Characters that Prometheus does not allow in names become `_`. The
/// same label and dimensions give the same series. If a label is already used by another kind, the new handler is not
/// exposed. Series are removed only by `destroy`, so dimensions must come from closed sets.
public final class PrometheusRegistry: MetricsFactory, Sendable {
    /// Upper bounds in seconds for timers: from a cached read to a long upload.
    public static let durationBounds: [Double] = [
        0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5,
        5, 10, 30, 60, 300,
    ]
    /// Upper bounds in seconds for short durations: 500 ns to 10 ms.
    public static let shortBounds: [Double] = [
        0.0000005, 0.000001, 0.0000025, 0.000005, 0.00001, 0.000025, 0.00005, 0.0001, 0.001, 0.01,
    ]
    /// Upper bounds in bytes for aggregating recorders: 1 KiB to 1 GiB, in steps of factor 8.
    public static let sizeBounds: [Double] = [
        1024, 8192, 65536, 524_288, 4_194_304, 33_554_432, 268_435_456, 1_073_741_824,
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
    /// - Parameter bounds: Replaces ``durationBounds`` for timers that are made later.
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

    /// The same as a timer of swift-metrics, which can also keep examples.
    public func histogram(_ label: String, _ dimensions: [(String, String)]) -> PrometheusHistogram
    {
        let bounds = state.withLock { $0.bounds[PrometheusText.name(label)] }
        return series(label, dimensions, .histogram) {
            PrometheusHistogram(bounds ?? PrometheusRegistry.durationBounds)
        }
    }

    private func series<Series: PrometheusSeries>(
        _ label: String, _ dimensions: [(String, String)], _ kind: PrometheusText.Kind,
        _ make: () -> Series
    ) -> Series {
        let name = PrometheusText.name(label)
        let labels = dimensions.map(PrometheusLabel.init).sorted()
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

    private func forget(_ handler: AnyObject) {
        state.withLock { state in
            for (name, family) in state.families {
                for (labels, series) in family.series where series === handler {
                    state.families[name]?.series[labels] = nil
                    if family.series.count == 1 { state.families[name] = nil }
                }
            }
        }
    }

    // MARK: MetricsFactory

    public func makeCounter(label: String, dimensions: [(String, String)]) -> any CounterHandler {
        series(label, dimensions, .counter) { PrometheusCounter() }
    }

    public func makeFloatingPointCounter(label: String, dimensions: [(String, String)])
        -> any FloatingPointCounterHandler
    {
        series(label, dimensions, .counter) { PrometheusFloatingPointCounter() }
    }

    public func makeMeter(label: String, dimensions: [(String, String)]) -> any MeterHandler {
        series(label, dimensions, .gauge) { PrometheusGauge() }
    }

    public func makeRecorder(label: String, dimensions: [(String, String)], aggregate: Bool)
        -> any RecorderHandler
    {
        guard aggregate else { return series(label, dimensions, .gauge) { PrometheusGauge() } }
        return series(label, dimensions, .histogram) {
            PrometheusHistogram(PrometheusRegistry.sizeBounds)
        }
    }

    public func makeTimer(label: String, dimensions: [(String, String)]) -> any TimerHandler {
        histogram(label, dimensions)
    }

    public func destroyCounter(_ handler: any CounterHandler) { forget(handler) }
    public func destroyFloatingPointCounter(_ handler: any FloatingPointCounterHandler) {
        forget(handler)
    }
    public func destroyMeter(_ handler: any MeterHandler) { forget(handler) }
    public func destroyRecorder(_ handler: any RecorderHandler) { forget(handler) }
    public func destroyTimer(_ handler: any TimerHandler) { forget(handler) }
}

/// A series that can write its samples.
protocol PrometheusSeries: AnyObject, Sendable {
    func write(_ name: String, _ labels: [PrometheusLabel], _ text: inout PrometheusText)
}

final class PrometheusCounter: CounterHandler, PrometheusSeries {
    private let value = Atomic<Int64>(0)

    func increment(by amount: Int64) { value.add(max(0, amount), ordering: .relaxed) }
    func reset() { value.store(0, ordering: .relaxed) }

    func write(_ name: String, _ labels: [PrometheusLabel], _ text: inout PrometheusText) {
        text.sample(name, labels, value.load(ordering: .relaxed))
    }
}

final class PrometheusFloatingPointCounter: FloatingPointCounterHandler, PrometheusSeries {
    private let value = AtomicDouble()

    func increment(by amount: Double) {
        if amount > 0, amount.isFinite { value.add(amount) }
    }
    func reset() { value.set(0) }

    func write(_ name: String, _ labels: [PrometheusLabel], _ text: inout PrometheusText) {
        text.sample(name, labels, value.get())
    }
}

final class PrometheusGauge: MeterHandler, RecorderHandler, PrometheusSeries {
    private let value = AtomicDouble()

    func set(_ value: Int64) { self.value.set(Double(value)) }
    func set(_ value: Double) { self.value.set(value) }
    func record(_ value: Int64) { self.value.set(Double(value)) }
    func record(_ value: Double) { self.value.set(value) }
    func increment(by amount: Double) { value.add(amount) }
    func decrement(by amount: Double) { value.add(-amount) }

    func write(_ name: String, _ labels: [PrometheusLabel], _ text: inout PrometheusText) {
        text.sample(name, labels, value.get())
    }
}

/// A `Double` that any thread may change.
final class AtomicDouble: Sendable {
    private let bits = Atomic<UInt64>(0)

    func get() -> Double { Double(bitPattern: bits.load(ordering: .relaxed)) }
    func set(_ value: Double) { bits.store(value.bitPattern, ordering: .relaxed) }
    func add(_ amount: Double) {
        var current = bits.load(ordering: .relaxed)
        while true {
            let next = (Double(bitPattern: current) + amount).bitPattern
            let (done, found) = bits.weakCompareExchange(
                expected: current, desired: next, ordering: .relaxed)
            if done { return }
            current = found
        }
    }
}
