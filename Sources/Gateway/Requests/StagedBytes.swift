import System
import Telemetry
import Wire

/// Bytes of uploads to one bucket that were received and are not committed yet, in all and by caller.
///
/// It outlives the gateway's snapshots: uploads go on while the configuration is reloaded.
public final class StagedBytes: Sendable {
    /// Which limit refuses more.
    enum Limit: String, CaseIterable, Sendable { case bucket, caller }

    /// The most bytes that may be staged.
    struct Limits: Sendable, Equatable {
        /// Of all uploads to the bucket.
        var bucket = UInt64.max
        /// Of those of one caller.
        var caller = UInt64.max
    }

    /// More bytes than a limit allows.
    struct Refusal: Error {
        var limit: Limit
        var bytes: UInt64
    }

    private struct State {
        var total: UInt64 = 0
        var callers: [[UInt8]: UInt64] = [:]
        /// By bucket and by caller.
        var refusals: (bucket: UInt64, caller: UInt64) = (0, 0)
    }
    private let state = Lock(State())

    public init() {}

    /// Counts bytes before they are staged.
    /// - Throws: ``Refusal``; nothing is counted then.
    func add(_ count: Int, by caller: [UInt8], _ limits: Limits) throws(Refusal) {
        try state.withLock { (state) throws(Refusal) in
            let count = UInt64(count)
            if count > limits.bucket || state.total > limits.bucket - count {
                state.refusals.bucket += 1
                throw Refusal(limit: .bucket, bytes: limits.bucket)
            }
            let own = state.callers[caller] ?? 0
            if count > limits.caller || own > limits.caller - count {
                state.refusals.caller += 1
                throw Refusal(limit: .caller, bytes: limits.caller)
            }
            state.total += count
            state.callers[caller] = own + count
        }
    }

    /// Counts bytes no longer: they were committed or given up.
    func remove(_ count: UInt64, by caller: [UInt8]) {
        if count == 0 { return }
        state.withLock { state in
            state.total -= count
            let own = (state.callers[caller] ?? 0) - count
            state.callers[caller] = own == 0 ? nil : own
        }
    }

    /// What metrics show: all bytes, those of the caller that has most, and refusals.
    var numbers: (total: UInt64, largest: UInt64, refusals: (bucket: UInt64, caller: UInt64)) {
        state.withLock { ($0.total, $0.callers.values.max() ?? 0, $0.refusals) }
    }
}

/// Passes an upload's bytes on and counts them while they are staged; ends the body at what the rules can allow.
final class StagingSink: ByteSink {
    /// More bytes than the rules can allow.
    struct BeyondRules: Error {
        /// The most that they can.
        var bytes: UInt64
    }

    private let sink: any ByteSink
    private let staged: StagedBytes
    private let caller: [UInt8]
    private let limits: StagedBytes.Limits
    private let findBound: () -> UInt64?
    private var bound: UInt64?
    /// Bytes that were taken.
    private(set) var count: UInt64 = 0

    /// - Parameter bound: The most bytes that the rules can allow; nil for no limit. It is asked for again before the body
    ///   is ended, since the rules may have been replaced.
    init(
        _ sink: any ByteSink, _ staged: StagedBytes, caller: [UInt8], _ limits: StagedBytes.Limits,
        bound: @escaping () -> UInt64?
    ) {
        self.sink = sink
        self.staged = staged
        self.caller = caller
        self.limits = limits
        findBound = bound
        self.bound = bound()
    }

    deinit { end() }

    func write(_ bytes: RawSpan) throws -> Int {
        if isBeyond(bytes.byteCount) {
            bound = findBound()
            if let bound, isBeyond(bytes.byteCount) { throw BeyondRules(bytes: bound) }
        }
        try staged.add(bytes.byteCount, by: caller, limits)
        var taken = 0
        defer { staged.remove(UInt64(bytes.byteCount - taken), by: caller) }
        taken = try sink.write(bytes)
        count += UInt64(taken)
        return taken
    }

    private func isBeyond(_ more: Int) -> Bool {
        guard let bound else { return false }
        return count > bound || UInt64(more) > bound - count
    }

    func whenWritable(_ resume: @escaping () -> Void) { sink.whenWritable(resume) }

    /// The bytes are committed or given up.
    func end() {
        staged.remove(count - ended, by: caller)
        ended = count
    }

    private var ended: UInt64 = 0
}

extension PrometheusRegistry {
    /// Shows staged bytes by bucket.
    public func addStagedBytes(_ buckets: [BytewiseString: StagedBytes]) {
        let buckets = buckets.sorted { $0.key < $1.key }
        collect { text in
            let numbers = buckets.map { (PrometheusLabel("bucket", $0.key.text), $0.value.numbers) }
            text.family(
                "sluice_staged_bytes", .gauge, "Bytes of uploads that are not committed yet.")
            for (bucket, numbers) in numbers {
                text.sample("sluice_staged_bytes", [bucket], numbers.total)
            }
            text.family(
                "sluice_staged_bytes_largest_caller", .gauge,
                "Of them, those of the caller that has most.")
            for (bucket, numbers) in numbers {
                text.sample("sluice_staged_bytes_largest_caller", [bucket], numbers.largest)
            }
            let name = "sluice_staging_refusals_total"
            text.family(name, .counter, "Uploads ended by a limit of staged bytes, by the limit.")
            for (bucket, numbers) in numbers {
                for (limit, count) in [
                    (StagedBytes.Limit.bucket, numbers.refusals.bucket),
                    (.caller, numbers.refusals.caller),
                ] {
                    text.sample(
                        name, [bucket, PrometheusLabel("limit", limit.rawValue)], count)
                }
            }
        }
    }
}
