import System

/// An append in progress: one buffer is filled while another is stored.
///
/// Safety: confined to its loop.
final class CloudAppend: HeldAppend, @unchecked Sendable {
    /// 32 KiB are stored at a time.
    static let step = 32 * 1024

    private let session: CloudSession
    private let loop: EventLoop
    private let transfer: any CloudTransfer
    private let limit: UInt64
    /// The size of a buffer in bytes: ``step``, or the whole append's.
    private let capacity: Int
    /// The length of the object that this append has declared.
    private let length: UInt64?
    private let isAllOrNothing: Bool
    /// The size of the object including the bytes of this append.
    private var taken: UInt64
    private var filling: [UInt8] = []
    /// The buffer that is passed to the transfer next.
    private var full: [UInt8] = []
    private var offset: UInt64
    private var failure: SessionError?
    private var resume: (() -> Void)?
    private var stopped: (() -> Void)?
    private var durable: ((UInt64) -> Void)?
    private var isRunning = false
    private var idle: CheckedContinuation<Void, Never>?
    private var isStopped = false
    /// Set when the append begins to end.
    private var ending: Task<Void, Never>?

    init(
        _ session: CloudSession, _ loop: EventLoop, _ transfer: any CloudTransfer,
        _ plan: AppendPlan, limit: UInt64, length: UInt64?
    ) {
        self.session = session
        self.loop = loop
        self.transfer = transfer
        self.limit = limit
        self.length = length
        capacity = Int(min(plan.size ?? .max, UInt64(CloudAppend.step)))
        isAllOrNothing = plan.isAllOrNothing
        offset = plan.offset
        taken = offset
        session.sessions.work.begin()
    }

    // MARK: Bytes

    func write(_ bytes: RawSpan) throws -> Int {
        if isStopped { throw SessionError.superseded }
        if let failure { throw failure }
        precondition(ending == nil, "write after the end")
        if bytes.byteCount > 0, taken == limit { throw SessionError.lengthExceeded(limit: limit) }
        let free = min(CloudAppend.step - filling.count, Int(clamping: limit - taken))
        let count = min(bytes.byteCount, free)
        // Otherwise the array would double beyond its limit.
        if filling.isEmpty { filling.reserveCapacity(capacity) }
        bytes.extracting(0..<count).withUnsafeBytes { filling += $0 }
        taken += UInt64(count)
        store()
        return count
    }

    func whenWritable(_ resume: @escaping () -> Void) {
        self.resume = resume
        // Once a write was cut short at the limit, every later write must fail.
        let isFull = filling.count == CloudAppend.step
        if !isFull || isStopped || failure != nil { loop.execute { self.wake() } }
    }

    func whenStopped(_ body: @escaping () -> Void) { stopped = body }

    func whenDurable(_ body: @escaping (UInt64) -> Void) { durable = body }

    private func wake() { resume.take()?() }

    private func store() {
        guard filling.count == CloudAppend.step, !isRunning, failure == nil else { return }
        isRunning = true
        (full, filling) = (filling, [])
        Task(executorPreference: loop) { [self] in
            await take()
            isRunning = false
            if let idle = idle.take() { return idle.resume() }
            store()
            wake()
        }
    }

    private func take() async {
        do throws(SessionError) {
            try await transfer.take(released())
            try await transfer.forward()
        } catch {
            failure = failure ?? error
        }
        if failure == nil, session.file.isExpired { failure = .notFound }
        if failure == nil, let now = session.file.known?.offset, now > offset {
            offset = now
            if ending == nil { durable?(now) }
        }
    }

    private func released() -> [UInt8] {
        defer { full = [] }
        return full
    }

    // MARK: Ending

    func end() async throws(SessionError) -> UInt64 {
        await settle(keeping: true)
        if isStopped { throw session.file.isExpired ? .notFound : .superseded }
        if let failure { throw failure }
        return offset
    }

    func discard() async { await settle(keeping: false) }

    /// Ends the append for another call, on any loop. An upload that must be complete counts as incomplete.
    /// - Parameter limit: The maximum wait in nanoseconds.
    /// - Returns: Whether it has ended.
    func stop(keeping: Bool, within limit: UInt64) async -> Bool {
        // A loop that has ended runs nothing any more.
        guard loop.isRunning else { return false }
        return await finishes(within: limit, on: loop) { [self] in
            await stopHere(keeping: keeping)
        }
    }

    private func stopHere(keeping: Bool) async {
        if ending != nil { return await settle(keeping: keeping) }
        isStopped = true
        let stopped = self.stopped.take()
        await settle(keeping: keeping)
        stopped?()
        wake()
    }

    func drop() {
        let keeping = !isAllOrNothing
        Task(executorPreference: loop) { [self] in await settle(keeping: keeping) }
    }

    /// Ends the append once; further calls wait for that. Runs in its own task, because the owner's is cancelled when
    /// the client goes away, and the received bytes are kept.
    private func settle(keeping: Bool) async {
        let ending =
            self.ending
            ?? Task(executorPreference: loop) { [self] in await settleOnce(keeping: keeping) }
        self.ending = ending
        await ending.value
    }

    private func settleOnce(keeping: Bool) async {
        // Only the owner knows whether the bytes of an all-or-nothing append are complete.
        var keeps = keeping && !(isAllOrNothing && isStopped)
        if !keeps { transfer.cancel() }
        if isRunning { await withCheckedContinuation { idle = $0 } }
        (full, filling) = (filling, [])
        if keeps, failure == nil, !full.isEmpty { await take() }
        if session.file.isExpired { failure = failure ?? .notFound }
        if failure != nil, isAllOrNothing || session.file.isExpired { keeps = false }
        if keeps {
            do throws(SessionError) { offset = try await transfer.end(length: length) } catch {
                // Report an earlier failure rather than this one.
                failure = failure ?? error
            }
        } else {
            await transfer.discard()
        }
        session.detach(self)
        session.sessions.work.end()
        resume = isStopped ? resume : nil
        stopped = nil
        durable = nil
    }
}
