import CoreMetrics
import Synchronization
import System

/// A histogram with fixed upper bounds, which are inclusive (`le`).
///
/// The exposed count is the sum of the exposed buckets, so they always agree. The sum may be one observation ahead of
/// or behind them.
///
/// Safety: `counts` is written only by the initializer; its elements are atomics.
public final class PrometheusHistogram: TimerHandler, RecorderHandler, PrometheusSeries,
    @unchecked Sendable
{
    /// One observation of a bucket, by which its trace is found. OpenMetrics calls it an exemplar.
    struct Example: Sendable {
        let trace: String
        let value: Double
        /// Seconds since 1970.
        let time: Double
    }

    private let bounds: [Double]
    private let counts: UnsafeMutablePointer<Atomic<Int64>>
    private let sum = AtomicDouble()
    /// The last example of each bucket; empty before the first.
    private let examples = Lock<[Example?]>([])

    init(_ bounds: [Double]) {
        self.bounds = bounds
        counts = .allocate(capacity: bounds.count + 1)
        for index in 0...bounds.count { (counts + index).initialize(to: Atomic(0)) }
    }

    deinit {
        counts.deinitialize(count: bounds.count + 1)
        counts.deallocate()
    }

    /// Records a duration, as seconds.
    public func recordNanoseconds(_ duration: Int64) { record(Double(duration) / 1e9) }
    /// Records a value.
    public func record(_ value: Int64) { record(Double(value)) }
    /// Records a value; NaN is ignored.
    public func record(_ value: Double) {
        if value.isNaN { return }
        counts[bucket(value)].add(1, ordering: .relaxed)
        sum.add(value)
    }

    /// Records a duration that belongs to the trace with this id.
    public func recordNanoseconds(_ duration: Int64, trace: String) {
        recordNanoseconds(duration)
        let value = Double(duration) / 1e9
        let now = SystemClock.time()
        let example = Example(
            trace: trace, value: value, time: Double(now.tv_sec) + Double(now.tv_nsec) / 1e9)
        examples.withLock { examples in
            if examples.isEmpty { examples = Array(repeating: nil, count: bounds.count + 1) }
            examples[bucket(value)] = example
        }
    }

    private func bucket(_ value: Double) -> Int {
        var index = 0
        while index < bounds.count, value > bounds[index] { index += 1 }
        return index
    }

    func write(_ name: String, _ labels: [PrometheusLabel], _ text: inout PrometheusText) {
        let examples = examples.withLock { $0 }
        var total: Int64 = 0
        for index in 0...bounds.count {
            total += counts[index].load(ordering: .relaxed)
            let bound = index < bounds.count ? bounds[index] : .infinity
            let limit = PrometheusLabel("le", text.bound(bound))
            text.sample(
                name + "_bucket", labels + [limit], total,
                examples.isEmpty ? nil : examples[index])
        }
        text.sample(name + "_sum", labels, sum.get())
        text.sample(name + "_count", labels, total)
    }
}
