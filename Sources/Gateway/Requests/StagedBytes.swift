import System
import Telemetry
import Wire

/// Counts the bytes of uploads to one bucket that were received and are not committed yet, in total and by caller.
///
/// It outlives the gateway's snapshots, because uploads continue during a reload.
public final class StagedBytes: Sendable {
    /// The limit that was exceeded.
    enum Limit: String, CaseIterable, Sendable { case bucket, caller }

    /// The maximum number of staged bytes.
    struct Limits: Sendable, Equatable {
        /// For all uploads to the bucket together.
        var bucket = UInt64.max
        /// For the uploads of one caller.
        var caller = UInt64.max
    }

    /// Thrown if a limit would be exceeded.
    struct LimitExceeded: Error {
        var limit: Limit
        var bytes: UInt64
    }

    /// The staged bytes of one caller's uploads.
    ///
    /// Safety: the lock of ``StagedBytes`` protects it.
    final class Account: @unchecked Sendable {
        fileprivate let caller: BytewiseString
        fileprivate var bytes: UInt64 = 0
        /// The number of uploads that use it.
        fileprivate var uploads = 0

        fileprivate init(_ caller: BytewiseString) { self.caller = caller }
    }

    private struct State {
        var total: UInt64 = 0
        var accounts: [BytewiseString: Account] = [:]
        /// The counts of a bucket, in total and by caller.
        var rejections: (bucket: UInt64, caller: UInt64) = (0, 0)
    }
    private let state = Lock(State())

    public init() {}

    /// The account of a caller, for one upload. ``close(_:)`` must follow.
    func open(_ caller: BytewiseString) -> Account {
        state.withLock { state in
            let account = state.accounts[caller] ?? Account(caller)
            if account.uploads == 0 { state.accounts[caller] = account }
            account.uploads += 1
            return account
        }
    }

    /// Subtracts the `count` bytes of an upload that has ended, and forgets its caller if there is no other upload.
    func close(_ account: Account, _ count: UInt64) {
        state.withLock { state in
            state.total -= count
            account.bytes -= count
            account.uploads -= 1
            if account.uploads == 0 { state.accounts[account.caller] = nil }
        }
    }

    /// Counts bytes before they are staged.
    /// - Throws: ``LimitExceeded``. Nothing is counted then.
    func add(_ count: Int, to account: Account, _ limits: Limits) throws(LimitExceeded) {
        try state.withLock { (state) throws(LimitExceeded) in
            let count = UInt64(count)
            if count > limits.bucket || state.total > limits.bucket - count {
                state.rejections.bucket += 1
                throw LimitExceeded(limit: .bucket, bytes: limits.bucket)
            }
            if count > limits.caller || account.bytes > limits.caller - count {
                state.rejections.caller += 1
                throw LimitExceeded(limit: .caller, bytes: limits.caller)
            }
            state.total += count
            account.bytes += count
        }
    }

    /// Subtracts bytes that were not staged.
    func remove(_ count: Int, from account: Account) {
        if count == 0 { return }
        state.withLock { state in
            state.total -= UInt64(count)
            account.bytes -= UInt64(count)
        }
    }

    /// The values for metrics: all bytes, the bytes of the caller that has most, and rejections.
    var numbers: (total: UInt64, largest: UInt64, rejections: (bucket: UInt64, caller: UInt64)) {
        state.withLock { ($0.total, $0.accounts.values.map(\.bytes).max() ?? 0, $0.rejections) }
    }
}

/// Passes an upload's bytes on and counts them while staged. Ends the body at the size that the rules can allow.
final class StagingSink: ByteSink {
    /// Thrown if there are more bytes than the rules can allow.
    struct BeyondRules: Error {
        /// The largest size that they can allow.
        var bytes: UInt64
    }

    private let sink: any ByteSink
    private let staged: StagedBytes
    private let account: StagedBytes.Account
    private let limits: StagedBytes.Limits
    private let findBound: () -> UInt64?
    private var bound: UInt64?
    /// The number of bytes passed on.
    private(set) var count: UInt64 = 0

    /// - Parameter bound: Returns the largest size that the rules can allow; nil if there is no limit. It is called
    ///   again before the body is ended, because the rules may have been replaced.
    init(
        _ sink: any ByteSink, _ staged: StagedBytes, caller: BytewiseString, _ limits: StagedBytes.Limits,
        bound: @escaping () -> UInt64?
    ) {
        self.sink = sink
        self.staged = staged
        account = staged.open(caller)
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
        try staged.add(bytes.byteCount, to: account, limits)
        var taken = 0
        defer { staged.remove(bytes.byteCount - taken, from: account) }
        taken = try sink.write(bytes)
        count += UInt64(taken)
        return taken
    }

    private func isBeyond(_ more: Int) -> Bool {
        guard let bound else { return false }
        return count > bound || UInt64(more) > bound - count
    }

    func whenWritable(_ resume: @escaping () -> Void) { sink.whenWritable(resume) }

    /// Subtracts the bytes after the commit or the end of the upload.
    func end() {
        if hasEnded { return }
        hasEnded = true
        staged.close(account, count)
    }

    private var hasEnded = false
}

extension PrometheusRegistry {
    /// Exports staged bytes by bucket.
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
                "The part of the caller that has the most.")
            for (bucket, numbers) in numbers {
                text.sample("sluice_staged_bytes_largest_caller", [bucket], numbers.largest)
            }
            let name = "sluice_staging_refusals_total"
            text.family(name, .counter, "Uploads ended by a limit of staged bytes, by the limit.")
            for (bucket, numbers) in numbers {
                for (limit, count) in [
                    (StagedBytes.Limit.bucket, numbers.rejections.bucket),
                    (.caller, numbers.rejections.caller),
                ] {
                    text.sample(
                        name, [bucket, PrometheusLabel("limit", limit.rawValue)], count)
                }
            }
        }
    }
}
