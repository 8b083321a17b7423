import System

/// An append in progress: the loop fills one buffer while the pool writes and hashes another.
///
/// The session's row is updated at the end, after every ``checkpointStep`` bytes, and every ``checkpointInterval`` if
/// bytes arrive. The file is synced before the row. Bytes after the last update are lost if the process is killed.
///
/// Safety: confined to its loop. Jobs on the pool get the part and a full buffer.
final class DirectoryAppend: HeldAppend, @unchecked Sendable {
    /// The maximum number of bytes that a long append can lose: 64 MiB.
    static let checkpointStep: UInt64 = 64 << 20
    /// The interval in which a slow append's bytes become durable, in nanoseconds.
    static let checkpointInterval: UInt64 = 5_000_000_000

    private let session: DirectoryUploadSession
    private let directory: OpenDirectory
    private let part: SessionPart
    private let loop: EventLoop
    private let pool: BlockingPool
    private var row: SessionRow
    private let isAllOrNothing: Bool
    private let limit: UInt64
    /// The size of the object including the bytes of this append.
    private var taken: UInt64
    private var buffers = UploadBuffers()
    /// The time of the last update of the row, in the loop's nanoseconds.
    private var saved: UInt64
    private var failure: SessionError?
    private var resume: (() -> Void)?
    private var stopped: (() -> Void)?
    private var durable: ((UInt64) -> Void)?
    private var isRunning = false
    private var idle: CheckedContinuation<Void, Never>?
    private var isStopped = false
    private var isEnding = false
    private var isEnded = false
    private var enders: [CheckedContinuation<Void, Never>] = []

    init(
        _ session: DirectoryUploadSession, _ directory: OpenDirectory, _ part: SessionPart,
        _ loop: EventLoop, _ pool: BlockingPool, _ row: SessionRow, _ plan: AppendPlan
    ) {
        self.session = session
        self.directory = directory
        self.part = part
        self.loop = loop
        self.pool = pool
        self.row = row
        isAllOrNothing = plan.isAllOrNothing
        limit = row.length ?? SessionPart.maximumLength
        taken = row.offset
        saved = loop.now
    }

    // MARK: Bytes

    func write(_ bytes: RawSpan) throws -> Int {
        if isStopped { throw SessionError.superseded }
        if let failure { throw failure }
        precondition(!isEnding, "write after the end")
        if bytes.byteCount > 0, taken == limit { throw SessionError.lengthExceeded(limit: limit) }
        let end = min(bytes.byteCount, Int(clamping: limit - taken))
        let count = buffers.append(
            bytes.extracting(0..<end), expected: nil, isRunning: isRunning
        ) { send($0) }
        taken += UInt64(count)
        return count
    }

    func whenWritable(_ resume: @escaping () -> Void) {
        self.resume = resume
        // Once a write was cut short at the limit, every later write must fail.
        if !isRunning || isStopped || failure != nil { loop.execute { self.wake() } }
    }

    func whenStopped(_ body: @escaping () -> Void) { stopped = body }

    func whenDurable(_ body: @escaping (UInt64) -> Void) { durable = body }

    private func wake() { resume.take()?() }

    private func send(_ buffer: UploadBuffer) {
        isRunning = true
        let part = part
        pool.submit { [self] in
            let outcome = Result { () throws(BucketError) in try part.append(buffer) }
            loop.execute { self.jobDone(outcome) }
        }
    }

    private func jobDone(_ outcome: Result<Void, BucketError>) {
        if case .failure(let error) = outcome { failure = .store(error) }
        if failure == nil && session.isExpired { failure = .notFound }
        if failure == nil, !isAllOrNothing, !isEnding, isCheckpointDue {
            Task(executorPreference: loop) { [self] in
                await save()
                if failure == nil { durable?(row.offset) }
                jobsDone()
            }
        } else {
            jobsDone()
        }
    }

    private var isCheckpointDue: Bool {
        part.offset - row.offset >= DirectoryAppend.checkpointStep
            || loop.now - saved >= DirectoryAppend.checkpointInterval
    }

    private func jobsDone() {
        isRunning = false
        if let idle = idle.take() {
            idle.resume()
        } else {
            wake()
        }
    }

    private func save() async {
        if part.offset == row.offset { return }
        let part = part
        do throws(SessionError) {
            do throws(BucketError) {
                try await pool.run { () throws(BucketError) in try part.sync() }
            } catch {
                throw SessionError.store(error)
            }
            var next = row
            next.offset = part.offset
            next.digests = part.digests.saved
            row = try await session.change(.save(next), directory)
            saved = loop.now
        } catch {
            failure = error
        }
    }

    // MARK: Ending

    func end() async throws(SessionError) -> UInt64 {
        if isStopped {
            await settle(keeping: true)
            throw .superseded
        }
        await settle(keeping: true)
        if let failure { throw failure }
        return row.offset
    }

    func discard() async { await settle(keeping: false) }

    /// Ends the append for another call, on any loop. An upload that must be complete counts as incomplete.
    /// - Parameter limit: The maximum wait for a disk that hangs, in nanoseconds.
    /// - Returns: Whether it has ended.
    func stop(keeping: Bool, within limit: UInt64) async -> Bool {
        guard loop.isRunning else {
            // Only a job and a change can still run without the loop.
            let part = part
            let hasEnded = await finishes(within: limit, on: nil) { await part.abandon() }
            if hasEnded { session.abandon(self) }
            return hasEnded
        }
        return await finishes(within: limit, on: loop) { [self] in
            await stopHere(keeping: keeping)
        }
    }

    private func stopHere(keeping: Bool) async {
        if !isEnding {
            isStopped = true
            let stopped = self.stopped.take()
            await settle(keeping: keeping && !isAllOrNothing)
            stopped?()
            wake()
        } else {
            await settle(keeping: keeping)
        }
    }

    func drop() {
        let keeping = !isAllOrNothing
        Task(executorPreference: loop) { [self] in await settle(keeping: keeping) }
    }

    /// Ends the append once; further calls wait for that.
    private func settle(keeping: Bool) async {
        if isEnded { return }
        if isEnding { return await withCheckedContinuation { enders.append($0) } }
        isEnding = true
        if isRunning { await withCheckedContinuation { idle = $0 } }
        let (part, last) = (part, buffers.take())
        var keeps = keeping
        if keeps, failure == nil, last.count > 0 {
            do throws(BucketError) {
                try await pool.run { () throws(BucketError) in try part.append(last) }
            } catch {
                failure = .store(error)
            }
        }
        if isAllOrNothing && failure != nil { keeps = false }
        if keeps {
            // Report an earlier failure rather than this one.
            let first = failure
            await save()
            failure = first ?? failure
        } else {
            let offset = row.offset
            await pool.run { part.truncate(to: offset) }
        }
        await part.close()
        session.detach(self)
        isEnded = true
        for ender in enders { ender.resume() }
        enders = []
        resume = isStopped ? resume : nil
        stopped = nil
        durable = nil
    }
}
