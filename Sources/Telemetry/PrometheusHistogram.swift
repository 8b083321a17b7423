import Synchronization
import System

/// A histogram of durations in seconds, with fixed upper bounds, which are inclusive (`le`). All copies count together. A copy
/// changes no reference count.
///
/// The exposed count always equals the sum of the buckets. The sum may differ by one observation.
///
/// Safety: all is in memory that is never freed, because series are never removed. The bounds never change, the numbers are
/// atomics, and the examples have a lock.
public struct PrometheusHistogram: PrometheusSeries, @unchecked Sendable {
    /// One observation of a bucket, by which its trace is found. OpenMetrics calls it an exemplar.
    struct Example: Sendable {
        let trace: String
        let value: Double
        /// Seconds since 1970.
        let time: Double
    }
    private struct Totals: ~Copyable {
        let sum = AtomicDouble()
        /// The last example of each bucket; empty before the first.
        let examples = Lock<[Example?]>([])
    }

    private let bounds: UnsafeMutableBufferPointer<Double>
    /// One for each bound, and one above.
    private let counts: UnsafeMutablePointer<Atomic<Int64>>
    private let totals: UnsafeMutablePointer<Totals>

    init(_ bounds: [Double]) {
        self.bounds = .allocate(capacity: bounds.count)
        _ = self.bounds.initialize(from: bounds)
        counts = .allocate(capacity: bounds.count + 1)
        for index in 0...bounds.count { (counts + index).initialize(to: Atomic(0)) }
        totals = .allocate(capacity: 1)
        totals.initialize(to: Totals())
    }

    /// Records a duration.
    public func recordNanoseconds(_ duration: Int64) {
        let value = Double(duration) / 1e9
        counts[bucket(value)].add(1, ordering: .relaxed)
        totals.pointee.sum.add(value)
    }

    /// Records a duration that belongs to the trace with this id.
    public func recordNanoseconds(_ duration: Int64, trace: String) {
        recordNanoseconds(duration)
        let value = Double(duration) / 1e9
        let now = SystemClock.time()
        let example = Example(trace: trace, value: value, time: Double(now.tv_sec) + Double(now.tv_nsec) / 1e9)
        totals.pointee.examples.withLock { examples in
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
        let examples = totals.pointee.examples.withLock { $0 }
        var total: Int64 = 0
        for index in 0...bounds.count {
            total += counts[index].load(ordering: .relaxed)
            let bound = index < bounds.count ? bounds[index] : .infinity
            let limit = PrometheusLabel("le", text.bound(bound))
            text.sample(
                name + "_bucket", labels + [limit], total,
                examples.isEmpty ? nil : examples[index])
        }
        text.sample(name + "_sum", labels, totals.pointee.sum.get())
        text.sample(name + "_count", labels, total)
    }
}

/// A `Double` that any thread may add to.
private struct AtomicDouble: ~Copyable {
    private let bits = Atomic<UInt64>(0)

    func get() -> Double { Double(bitPattern: bits.load(ordering: .relaxed)) }

    func add(_ amount: Double) {
        var current = bits.load(ordering: .relaxed)
        while true {
            let next = (Double(bitPattern: current) + amount).bitPattern
            let (done, found) = bits.weakCompareExchange(expected: current, desired: next, ordering: .relaxed)
            if done { return }
            current = found
        }
    }
}
