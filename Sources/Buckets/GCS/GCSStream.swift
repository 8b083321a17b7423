import HTTPClient
import System

/// The body of a resumable session. Its task hashes and sends a full buffer while the loop fills another.
///
/// A body of known length is streamed in chunks, except for the bytes after the last multiple of 256 KiB, which stay in
/// memory. A spool keeps the sent bytes of a chunk until the service confirms it; after an interruption, missing bytes
/// are sent again from there. Without a spool, an interruption fails the upload. A body of unknown length uses two
/// spools: one is sent while the other is filled.
///
/// Safety: confined to its loop.
final class GCSStream: @unchecked Sendable {
    /// The size of a spool: 8 MiB.
    private static let spoolSize: UInt64 = 8 << 20
    /// The chunk size of a body of known length: 16 MiB, a multiple of the session's quantum and of a buffer.
    private static let chunkSize: UInt64 = 16 << 20

    private let bucket: GCSBucket
    private let size: UInt64?
    private let digests: ContentDigests
    private var filling = UploadBuffer()
    private var full: UploadBuffer?
    private var isComplete = false
    private var isAborted = false
    private var failure: BucketError?
    private var resume: (() -> Void)?
    private var next: CheckedContinuation<Void, Never>?
    private var task: Task<Void, Never>?

    private var session: GCSSession?
    /// The sent bytes of the current chunk; nil without a spool.
    private var sent: Spool?
    /// The last bytes, sent by the commit.
    private var tail: ReplayBuffer?
    private var facts: ContentFacts?

    /// - Parameter start: Begins the session.
    init(
        _ bucket: GCSBucket, _ plan: UploadPlan, _ start: @escaping @Sendable () async throws(BucketError) -> GCSSession
    ) {
        self.bucket = bucket
        size = plan.size
        digests = ContentDigests(plan)
        bucket.cleaning.begin()
        task = Task(executorPreference: EventLoop.current) {
            do throws(BucketError) {
                let session = try await start()
                self.session = session
                if let size = self.size {
                    try await self.send(size, session)
                } else {
                    try await self.sendSpooled(session)
                }
            } catch {
                self.failure = error
            }
            self.releaseFull()
        }
    }

    deinit { bucket.cleaning.end() }

    // MARK: The loop's side

    /// Accepts bytes gathered earlier, which must fit into two buffers.
    func begin(with bytes: [UInt8]) {
        let taken = try? write(bytes.span.bytes)
        precondition(taken == bytes.count, "more was gathered than two buffers hold")
    }

    func write(_ bytes: RawSpan) throws -> Int {
        if let failure { throw failure }
        var offset = 0
        while offset < bytes.byteCount {
            if filling.count == UploadBuffer.limit, !handOver() { break }
            offset += filling.append(bytes.extracting(droppingFirst: offset), expected: size)
        }
        return offset
    }

    private func handOver() -> Bool {
        guard full == nil else { return false }
        full = filling
        filling = UploadBuffer()
        wakeTask()
        return true
    }

    func whenWritable(_ resume: @escaping () -> Void) {
        self.resume = resume
        if full == nil || failure != nil { EventLoop.current?.execute { self.wakeWriter() } }
    }

    private func wakeWriter() { resume.take()?() }

    private func wakeTask() { next.take()?.resume() }

    /// Waits until the service has confirmed all but the last bytes.
    func finish() async throws(BucketError) -> ContentFacts {
        isComplete = true
        wakeTask()
        await task?.value
        if let failure { throw failure }
        guard let facts, !isAborted else { throw BucketError(.internal, "finish after abort") }
        return facts
    }

    /// Sends the last bytes, which creates the object.
    func commit() async throws(BucketError) -> ObjectMetadata {
        guard let session, let tail, let facts else {
            throw BucketError(.internal, "commit without finish")
        }
        do throws(BucketError) {
            return try await session.finish(tail, facts)
        } catch {
            bucket.cleaning.run { await session.cancel() }
            throw error
        }
    }

    /// Ends the task and discards the session at the service.
    func abort() {
        if isAborted { return }
        isAborted = true
        resume = nil
        wakeTask()
        task?.cancel()
        session?.giveUp()
        let task = task
        bucket.cleaning.run {
            await task?.value
            await self.session?.cancel()
        }
    }

    // MARK: The task's side

    /// The next buffer, hashed and saved in ``sent``; nil after the last one.
    private func nextBuffer() async throws(BucketError) -> UploadBuffer? {
        while full == nil {
            if isAborted { throw BucketError(.unavailable, "the upload was given up") }
            if isComplete {
                guard filling.count > 0 else { return nil }
                _ = handOver()
                break
            }
            await withCheckedContinuation { next = $0 }
        }
        guard let buffer = full else { return nil }
        let digests = digests
        let spool = sent
        let isKept = await bucket.pool.run {
            buffer.withBytes { bytes in
                digests.update(RawSpan(_unsafeBytes: bytes))
                return (try? spool?.append(bytes)) != nil
            }
        }
        if !isKept { sent = nil }
        if isAborted { throw BucketError(.unavailable, "the upload was given up") }
        return buffer
    }

    private func releaseFull() {
        full = nil
        wakeWriter()
    }

    private func send(_ size: UInt64, _ session: GCSSession) async throws(BucketError) {
        let streamed = size - size % GCSSession.quantum
        let (directory, pool) = (bucket.settings.spoolDirectory, bucket.pool)
        sent = await pool.run { try? Spool(in: directory, pool) }
        while session.persisted < streamed {
            let count = min(streamed - session.persisted, GCSStream.chunkSize)
            try await sendChunk(count, session)
            if let sent { await pool.run { sent.clear() } }
        }
        sent = nil
        var rest: [UInt8] = []
        rest.reserveCapacity(Int(size - streamed))
        while let buffer = try await nextBuffer() {
            guard rest.count + buffer.count <= Int(size - streamed) else {
                throw BucketError(.internal, "more bytes than were declared")
            }
            buffer.withBytes { rest += $0 }
            releaseFull()
        }
        guard rest.count == Int(size - streamed) else { throw GCSStream.tooShort }
        tail = .memory(rest)
        facts = digests.facts()
    }

    private static let tooShort = BucketError(.internal, "fewer bytes than were declared")

    /// Streams the next `count` bytes. After an interruption, the rest only goes into the spool, and is sent from
    /// there.
    private func sendChunk(_ count: UInt64, _ session: GCSSession) async throws(BucketError) {
        let stream = session.beginStream(count)
        do throws(BucketError) {
            var early: GCSSession.Outcome?
            var taken: UInt64 = 0
            while taken < count {
                // Only the body's last buffer is not full, so no buffer spans two chunks.
                guard let buffer = try await nextBuffer() else { throw GCSStream.tooShort }
                taken += UInt64(buffer.count)
                guard taken <= count else {
                    throw BucketError(.internal, "a buffer across the end of a chunk")
                }
                if early == nil {
                    let isTaken = await stream.pipe.writeAll(buffer.count) {
                        try buffer.write(from: $0, stream.pipe)
                    }
                    if !isTaken { early = try await session.response(to: stream) }
                }
                releaseFull()
                if let early, sent == nil { try await session.settle(early, .gone(count)) }
            }
            let outcome: GCSSession.Outcome
            if let early {
                outcome = early
            } else {
                outcome = try await session.response(to: stream)
            }
            try await session.settle(outcome, sent.map(ReplayBuffer.spool) ?? .gone(count))
        } catch {
            stream.exchange.cancel()
            throw error
        }
    }

    private func sendSpooled(_ session: GCSSession) async throws(BucketError) {
        let directory = bucket.settings.spoolDirectory
        let pool = bucket.pool
        var spool = try await pool.run { () throws(BucketError) in try Spool(in: directory, pool) }
        var other: Spool?
        var sending: Task<Result<Void, BucketError>, Never>?
        do throws(BucketError) {
            while let buffer = try await nextBuffer() {
                let filled = spool
                let limit = Int(GCSStream.spoolSize - filled.count)
                let first = min(limit, buffer.count)
                try await pool.run { () throws(BucketError) in
                    try buffer.withBytes { (bytes) throws(BucketError) in
                        try filled.append(UnsafeRawBufferPointer(rebasing: bytes[..<first]))
                    }
                }
                // A full spool is sent once more bytes follow, so it is not the last.
                if first < buffer.count {
                    try await sending?.value.get()
                    sending = Task(executorPreference: EventLoop.current) {
                        await Result { () async throws(BucketError) in
                            try await session.send(.spool(filled))
                        }
                    }
                    let next = other
                    other = filled
                    spool = try await pool.run { () throws(BucketError) in
                        let spool: Spool
                        if let next { spool = next } else { spool = try Spool(in: directory, pool) }
                        spool.clear()
                        try buffer.withBytes { (bytes) throws(BucketError) in
                            try spool.append(UnsafeRawBufferPointer(rebasing: bytes[first...]))
                        }
                        return spool
                    }
                }
                releaseFull()
            }
            try await sending?.value.get()
        } catch {
            sending?.cancel()
            _ = await sending?.value
            throw error
        }
        tail = .spool(spool)
        facts = digests.facts()
    }
}

extension UploadBuffer {
    fileprivate func write(from start: Int, _ pipe: RequestBodyPipe) throws -> Int {
        try withBytes { bytes in
            let rest = UnsafeRawBufferPointer(rebasing: bytes[start...])
            return try pipe.write(RawSpan(_unsafeBytes: rest))
        }
    }
}
