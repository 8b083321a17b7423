import System

/// A part in progress. Its bytes go to the service as they arrive, except for the last ones, which ``keep()`` sends.
/// Thus the service stores nothing before.
///
/// Bytes are hashed on the loop as they arrive, at most the 64 KiB that a connection reads at once.
///
/// Safety: confined to its loop; ``stop(within:)`` goes through it.
final class CloudPart: PartUpload, @unchecked Sendable {
    /// The maximum size of a part that is held in memory, so that its request can be retried: 64 KiB.
    static let memory = 64 * 1024
    /// The bytes of a larger part that are held back until ``keep()``.
    private static let tail: UInt64 = 4096

    private let upload: CloudParts
    private let service: any CloudPartsService
    private let address: CloudPartAddress
    private let plan: PartPlan
    private let loop: EventLoop
    /// nil if the part is held in memory.
    private let stream: (any CloudPartStream)?
    private let session: CloudSession
    private let digests: ContentDigests
    private var held: [UInt8] = []
    private var taken: UInt64 = 0
    private var facts: ContentFacts?
    private var failure: SessionError?
    /// Waits for the cause of a failure.
    private var failing: Task<Void, Never>?
    private var keeping: Task<Result<Part, SessionError>, Never>?
    private var resume: (() -> Void)?
    private var isEnded = false

    init(
        _ upload: CloudParts, _ service: any CloudPartsService, _ address: CloudPartAddress, _ plan: PartPlan,
        _ loop: EventLoop, _ stream: (any CloudPartStream)?, in session: CloudSession
    ) {
        self.upload = upload
        self.service = service
        self.address = address
        self.plan = plan
        self.loop = loop
        self.stream = stream
        self.session = session
        digests = ContentDigests(UploadPlan(digests: plan.computed))
        session.sessions.work.begin()
    }

    // MARK: Bytes

    func write(_ bytes: RawSpan) throws -> Int {
        if let failure { throw failure }
        precondition(facts == nil, "write after finish")
        if bytes.byteCount == 0 || failing != nil { return 0 }
        if taken == plan.size { throw SessionError.lengthExceeded(limit: plan.size) }
        let offered = bytes.extracting(first: Int(clamping: plan.size - taken))
        let passed = stream.map { pass(offered, to: $0) } ?? 0
        var count = passed
        if failing == nil, taken + UInt64(passed) >= streamed {
            if held.isEmpty { held.reserveCapacity(Int(plan.size - streamed)) }
            offered.extracting(passed..<offered.byteCount).withUnsafeBytes { held += $0 }
            count = offered.byteCount
        }
        digests.update(offered.extracting(first: count))
        taken += UInt64(count)
        return count
    }

    /// The number of bytes that are sent before ``keep()``.
    private var streamed: UInt64 { stream == nil ? 0 : plan.size - CloudPart.tail }

    private func pass(_ bytes: RawSpan, to stream: any CloudPartStream) -> Int {
        guard taken < streamed else { return 0 }
        do {
            return try stream.write(bytes.extracting(first: Int(clamping: streamed - taken)))
        } catch {
            failing = Task(executorPreference: loop) { [self] in
                let cause = await cause()
                failure = failure ?? cause
                failing = nil
                wake()
            }
            return 0
        }
    }

    private func cause() async -> SessionError {
        do throws(CloudPartFailure) {
            _ = try await stream?.end([], ContentFacts(size: taken, md5: nil, crc32c: nil))
            return .store(BucketError(.unavailable, "the service has ended the request of a part early"))
        } catch {
            return await upload.sessionError(error)
        }
    }

    func whenWritable(_ resume: @escaping () -> Void) {
        self.resume = resume
        if failing != nil { return }
        if failure == nil, taken < streamed, let stream {
            stream.whenWritable { [weak self] in self?.wake() }
        } else {
            loop.execute { self.wake() }
        }
    }

    private func wake() { resume.take()?() }

    // MARK: Ending

    func finish() async throws(SessionError) -> ContentFacts {
        await failing?.value
        if let failure { throw failure }
        guard taken == plan.size else { throw .lengthMismatch(declared: plan.size) }
        let facts = self.facts ?? digests.facts()
        self.facts = facts
        return facts
    }

    /// Runs in its own task, because the service may store the part although the client went away.
    func keep() async throws(SessionError) -> Part {
        if let failure { throw failure }
        guard let facts, keeping == nil else {
            throw .store(BucketError(.internal, "a part is kept twice, or without its end"))
        }
        let task = Task(executorPreference: loop) { [self] in await result(of: facts) }
        keeping = task
        return try await task.value.get()
    }

    private func result(of facts: ContentFacts) async -> Result<Part, SessionError> {
        defer { end(with: .superseded) }
        do throws(CloudPartFailure) {
            let etag =
                if let stream {
                    try await stream.end(held, facts)
                } else {
                    try await service.storePart(address, held, facts)
                }
            let part = Part(
                number: address.number, size: facts.size, etag: etag, crc32c: facts.crc32c,
                updated: session.file.milliseconds, checksum: plan.checksum(facts))
            session.sessions.computed.keep(part, of: session.id, md5: facts.md5)
            return .success(part)
        } catch {
            return .failure(await upload.sessionError(error))
        }
    }

    func abort() {
        guard keeping == nil else { return }
        end(with: .superseded)
    }

    private func end(with error: SessionError) {
        if isEnded { return }
        isEnded = true
        failure = failure ?? error
        stream?.cancel()
        held = []
        session.parts.remove(self)
        session.sessions.work.end()
        wake()
    }

    /// Aborts the part for another call, on any loop, or waits at most `limit` nanoseconds if it is being kept.
    func stop(within limit: UInt64) async {
        // A loop that has ended runs nothing any more.
        guard loop.isRunning else { return }
        _ = await finishes(within: limit, on: loop) { [self] in
            if let keeping { _ = await keeping.value } else { end(with: .superseded) }
        }
    }

    /// Aborts the part after its owner has dropped it. Called on any thread.
    func drop() {
        Task(executorPreference: loop) { [self] in abort() }
    }
}

/// The owner's reference to a part.
final class CloudPartHandle: PartUpload {
    private let part: CloudPart

    init(_ part: CloudPart) { self.part = part }

    deinit { part.drop() }

    func write(_ bytes: RawSpan) throws -> Int { try part.write(bytes) }
    func whenWritable(_ resume: @escaping () -> Void) { part.whenWritable(resume) }
    func finish() async throws(SessionError) -> ContentFacts { try await part.finish() }
    func keep() async throws(SessionError) -> Part { try await part.keep() }
    func abort() { part.abort() }
}

/// The parts of one upload that are being received, on any loop.
final class CloudPartsInProgress: Sendable {
    private struct State {
        var parts: [ObjectIdentifier: CloudPart] = [:]
        var round = 0
    }
    private let state = Lock(State())

    /// Increases with each ``stop(within:)``.
    var round: Int { state.withLock { $0.round } }

    /// - Returns: Whether parts were not stopped since `round`. Otherwise nothing is added.
    func add(_ part: CloudPart, since round: Int) -> Bool {
        state.withLock { state in
            guard state.round == round else { return false }
            state.parts[ObjectIdentifier(part)] = part
            return true
        }
    }

    func remove(_ part: CloudPart) { state.withLock { _ = $0.parts.removeValue(forKey: ObjectIdentifier(part)) } }

    /// Stops all parts. Each takes at most `limit` nanoseconds.
    func stop(within limit: UInt64) async {
        let parts = state.withLock { state in
            state.round += 1
            return Array(state.parts.values)
        }
        await withTaskGroup(of: Void.self) { group in
            for part in parts { group.addTask { await part.stop(within: limit) } }
        }
    }
}
