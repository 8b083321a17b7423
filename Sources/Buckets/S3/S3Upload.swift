import HTTPClient
import OpenSSL
import System
import Wire

extension S3Bucket {
    public func beginUpload(_ name: String, _ plan: UploadPlan) async throws(BucketError)
        -> any Upload
    {
        guard let loop = EventLoop.current else {
            throw BucketError(.internal, "an upload belongs on a loop")
        }
        let upload = S3Upload(self, loop, name, plan)
        if let size = plan.size, size > UInt64(S3Upload.memory) {
            if plan.isDecided, size <= settings.replayLimit, upload.reserve(Int(size)) {
                return upload
            }
            if plan.isDecided, size <= settings.singleLimit, settings.uploadRetries == .memory {
                try await upload.beginSingle(size)
            } else {
                upload.mode = .spooled(nil)
            }
        }
        return upload
    }
}

/// An upload to an S3 bucket. How it is sent depends on its size:
/// - A small body is held in memory until the commit and can be retried.
/// - A larger body that is authorized and of known length is streamed in one request, except for its last bytes;
///   ``S3Bucket/Settings/uploadRetries`` can select a multipart upload instead.
/// - Every other body becomes a multipart upload that the commit completes.
///
/// Bytes are hashed on the loop as they arrive, at most the 128 KiB that a connection reads at once. The request takes
/// them immediately, so the pool would need a copy.
///
/// Safety: confined to its loop; tasks that it starts run there.
final class S3Upload: Upload, @unchecked Sendable {
    /// The maximum size in memory if the length is unknown or the upload is not authorized yet: 64 KiB.
    static let memory = 64 * 1024
    private static let step = 32 * 1024
    /// The bytes of a single request that are held back until the commit.
    private static let tail = 4096

    enum Mode {
        case memory
        case single(S3Body, S3Bucket.WriteCondition, generation: Int64)
        /// A multipart upload. A file buffers each part for retries, and because its length must be known first.
        case spooled(Spool?)
    }

    let bucket: S3Bucket
    let name: String
    private(set) var plan: UploadPlan
    let loop: EventLoop
    var mode = Mode.memory
    var multipart: S3Multipart
    var held: [UInt8] = []
    /// This upload's share of ``S3Bucket/replayed``, which limits ``held``.
    private var reserved = 0
    private(set) var size: UInt64 = 0
    private let digests: ContentDigests
    private var facts: ContentFacts?
    /// Looks up the existing object, unless a precondition or an earlier lookup decides whether there is one.
    private(set) var lookup: Task<Result<ObjectMetadata?, BucketError>, Never>?
    private var isBusy = false
    private var isEnded = false
    /// A failed precondition does not end it, unless the body was streamed: the service has discarded those bytes.
    var isOpen: Bool { !isEnded }
    private var failure: BucketError?
    private var resume: (() -> Void)?
    private var idle: [CheckedContinuation<Void, Never>] = []

    init(_ bucket: S3Bucket, _ loop: EventLoop, _ name: String, _ plan: UploadPlan) {
        self.bucket = bucket
        self.loop = loop
        self.name = name
        self.plan = plan
        multipart = S3Multipart(bucket, name, size: plan.size)
        var wanted = plan
        // A body in memory is stored with its md5. A streamed body is compared with the response's md5, if any.
        let isSmall = plan.size.map { $0 <= UInt64(S3Upload.memory) } ?? false
        wanted.wantsMD5 = plan.wantsMD5 || isSmall || bucket.tellsMD5.load(ordering: .relaxed)
        digests = ContentDigests(wanted)
        if case .unknown = plan.existing, plan.preconditions.isEmpty {
            lookup = Task(executorPreference: loop) {
                do throws(BucketError) { return .success(try await bucket.find(name)) } catch {
                    return .failure(error)
                }
            }
        }
    }

    deinit {
        abort()
        release()
    }

    /// Reserves memory for the whole body, and returns whether that much is available now.
    fileprivate func reserve(_ count: Int) -> Bool {
        let total = bucket.replayed.add(count, ordering: .relaxed).newValue
        reserved = count
        if total > bucket.settings.replayMemory { release() }
        return reserved > 0
    }

    private func release() {
        bucket.replayed.subtract(reserved, ordering: .relaxed)
        reserved = 0
    }

    fileprivate func beginSingle(_ size: UInt64) async throws(BucketError) {
        let condition = try await bucket.writeCondition(name, plan.preconditions)
        let generation = newGeneration()
        var fields = objectFields(generation, md5: plan.md5, crc32c: plan.crc32c)
        condition.append(to: &fields)
        let body = try await bucket.stream("PUT", bucket.target(name), fields, length: size)
        mode = .single(body, condition, generation: generation)
    }

    func newGeneration() -> Int64 {
        if case .object(let object) = plan.existing {
            return bucket.newGeneration(after: object.generation)
        }
        return bucket.newGeneration()
    }

    func objectFields(_ generation: Int64, md5: [UInt8]?, crc32c: UInt32?) -> HeaderFields {
        var fields = HeaderFields(reserving: 512)
        S3Fields.append(plan.attributes, to: &fields)
        S3Fields.append(
            generation: generation, md5: md5, crc32c: crc32c, to: &fields)
        guard bucket.isSigned else { return fields }
        if let md5 { fields.append("content-md5", Base64.encode(md5)) }
        if let crc32c {
            fields.append("x-amz-checksum-crc32c", Base64.encode(crc32c.bigEndianBytes))
        }
        return fields
    }

    // MARK: Bytes

    func write(_ bytes: RawSpan) throws -> Int {
        precondition(facts == nil, "write after finish")
        if let failure { throw failure }
        if isBusy || bytes.byteCount == 0 { return 0 }
        if let declared = plan.size, UInt64(bytes.byteCount) > declared - size {
            throw BucketError(.internal, "more bytes than the \(declared) that were declared")
        }
        let taken = take(bytes)
        size += UInt64(taken)
        let span = bytes.extracting(first: taken)
        digests.update(span)
        return taken
    }

    private func take(_ bytes: RawSpan) -> Int {
        switch mode {
        case .memory:
            let taken = hold(bytes, max(S3Upload.memory, reserved))
            if taken < bytes.byteCount {
                mode = .spooled(nil)
                step { upload throws(BucketError) in try await upload.flush() }
            }
            return taken
        case .spooled:
            let taken = hold(bytes, S3Upload.step)
            if held.count == S3Upload.step {
                step { upload throws(BucketError) in try await upload.flush() }
            }
            return taken
        case .single(let body, _, _):
            let free = Int(clamping: body.remaining) - S3Upload.tail
            let passed = min(max(free, 0), bytes.byteCount)
            let taken = passed > 0 ? pass(bytes.extracting(first: passed), to: body) : 0
            if taken < passed || taken == bytes.byteCount { return taken }
            return taken + hold(bytes.extracting(taken..<bytes.byteCount), S3Upload.tail)
        }
    }

    private func hold(_ bytes: RawSpan, _ limit: Int) -> Int {
        let count = min(bytes.byteCount, limit - held.count)
        if held.isEmpty { held.reserveCapacity(min(limit, Int(clamping: plan.size ?? 0))) }
        bytes.extracting(first: count).withUnsafeBytes { held += $0 }
        return count
    }

    private func pass(_ bytes: RawSpan, to body: S3Body) -> Int {
        do {
            return try body.write(bytes)
        } catch {
            step { _ throws(BucketError) in
                let response = try await body.response()
                throw S3ErrorResponse(response).error("upload")
            }
            return 0
        }
    }

    func whenWritable(_ resume: @escaping () -> Void) {
        self.resume = resume
        if isBusy { return }
        if failure == nil, case .single(let body, _, _) = mode {
            body.whenWritable { [weak self] in self?.wake() }
        } else {
            loop.execute { self.wake() }
        }
    }

    private func wake() { resume.take()?() }

    /// Runs an asynchronous step, during which no bytes are accepted.
    private func step(_ body: @escaping @Sendable (S3Upload) async throws(BucketError) -> Void) {
        isBusy = true
        Task(executorPreference: loop) {
            do throws(BucketError) { try await body(self) } catch {
                self.failure = self.failure ?? error
            }
            self.stepEnded()
        }
    }

    private func stepEnded() {
        isBusy = false
        if isEnded { discard() }
        let waiters = idle
        idle = []
        for waiter in waiters { waiter.resume() }
        wake()
    }

    private func untilIdle() async {
        if isBusy { await withCheckedContinuation { idle.append($0) } }
    }

    /// Writes the bytes in memory to the file, and sends the file as a part if it is long enough.
    private func flush(isLast: Bool = false) async throws(BucketError) {
        guard case .spooled(let first) = mode else { return }
        let (bytes, directory, pool) = (held, bucket.settings.temporaryDirectory, bucket.pool)
        held = []
        let spool = try await pool.run { () throws(BucketError) in
            let spool: Spool
            if let first { spool = first } else { spool = try Spool(in: directory, pool) }
            try bytes.span.bytes.withUnsafeBytes { (bytes) throws(BucketError) in
                try spool.append(bytes)
            }
            return spool
        }
        mode = .spooled(spool)
        // The previous part may have contained the last bytes.
        if spool.count == 0, multipart.hasParts { return }
        if spool.count >= multipart.nextLength || isLast {
            try await multipart.send(spool, storedFields())
        }
    }

    /// The fields of a multipart object, which can only contain digests declared by the client.
    private func storedFields() -> HeaderFields {
        multipart.generation = multipart.generation ?? newGeneration()
        var fields = HeaderFields(reserving: 512)
        S3Fields.append(plan.attributes, to: &fields)
        S3Fields.append(generation: multipart.generation ?? 0, md5: plan.md5, crc32c: plan.crc32c, to: &fields)
        return fields
    }

    // MARK: Finishing

    func finish() async throws(BucketError) -> ContentFacts {
        await untilIdle()
        if case .spooled = mode, failure == nil {
            step { upload throws(BucketError) in try await upload.flush(isLast: true) }
            await untilIdle()
        }
        if let failure { throw failure }
        if isEnded { throw BucketError(.internal, "finish after abort") }
        if let declared = plan.size, declared != size {
            throw BucketError(.internal, "\(size) bytes of the \(declared) that were declared")
        }
        let facts = digests.facts()
        self.facts = facts
        return facts
    }

    func keep(_ checksum: S3Properties.Checksum) -> Bool {
        guard case .memory = mode else { return false }
        plan.attributes.keep(checksum)
        return true
    }

    func commit(_ preconditions: Preconditions) async throws(BucketError) -> CommitResult {
        guard let facts, !isEnded else { throw BucketError(.internal, "commit without finish") }
        isEnded = true
        do throws(BucketError) {
            return try await store(facts, preconditions)
        } catch {
            if error.code == .preconditionFailed, canCommitAgain {
                isEnded = false
            } else {
                discard()
            }
            throw error
        }
    }

    /// Whether all bytes are available after a failed precondition; a single streamed request loses them.
    private var canCommitAgain: Bool {
        if case .single = mode { return false }
        return true
    }

    func abort() {
        if isEnded { return }
        isEnded = true
        resume = nil
        lookup?.cancel()
        guard isBusy else { return discard() }
        multipart.cancel()
        // Closing the bucket also waits until the parts are aborted.
        bucket.cleaning.run(on: loop) { await self.untilIdle() }
    }

    private func discard() {
        if case .single(let body, _, _) = mode { body.cancel() }
        held = []
        release()
        mode = .memory
        multipart.abort()
    }
}
