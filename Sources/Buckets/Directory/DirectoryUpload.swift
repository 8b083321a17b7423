import Glibc
import OpenSSL
import Synchronization
import System

/// A complete and synced file in the staging area.
struct StagedFile: Sendable {
    private static let lastID = Atomic<Int64>(0)

    /// An id for a new staged file.
    static func newID() -> Int64 { lastID.wrappingAdd(1, ordering: .relaxed).newValue }

    let id: Int64
    let directory: OpenDirectory

    /// Moves the file to the blobs of `current` if it was staged there.
    func place(in current: OpenDirectory, as blob: Int64) throws(BucketError) {
        guard directory === current else {
            throw BucketError(.unavailable, "the bucket directory was replaced during the upload")
        }
        try current.files.placeBlob(blob, staged: id)
    }
}

enum UploadContent: Sendable {
    case memory(UploadBuffer)
    case staged(StagedFile)

    /// Removes a staged file that did not become a blob.
    func discard() {
        if case .staged(let file) = self { file.directory.files.removeStaged(file.id) }
    }
}

/// Where the bytes of an upload or a part are written.
enum BodyTarget {
    /// Into a new staged file, if they exceed one buffer.
    case staged(OpenDirectory)
    /// Into an open file, which the receiver closes, from an offset on, as long as the gate permits it.
    case file(Int32, at: UInt64, name: String, ChangeGate)
}

/// Hashes the bytes of a body and writes them to a file.
///
/// Safety: used by one thread at a time: a job on the pool, or the loop while no job runs.
final class BodyReceiver: @unchecked Sendable {
    /// The dirty bytes after which the kernel is asked to start writing: 8 MiB.
    private static let writebackStep: UInt64 = 8 << 20

    private let target: BodyTarget
    private let id = StagedFile.newID()
    private let md5 = Digest(.md5)
    private var crc32c = CRC32C()
    private var others: [(DigestAlgorithm, RunningDigest)]
    private var descriptor: Int32 = -1
    /// The offset of the next byte in the file.
    private var offset: UInt64 = 0
    private var size: UInt64 = 0
    private var handedToKernel: UInt64 = 0

    init(_ target: BodyTarget, _ digests: Set<DigestAlgorithm>) {
        self.target = target
        others = digests.map { ($0, RunningDigest($0)) }
        if case .file(let descriptor, let start, _, _) = target {
            self.descriptor = descriptor
            offset = start
            handedToKernel = start
        }
    }

    /// Whether there is a file.
    var hasFile: Bool { descriptor >= 0 }

    func hash(_ buffer: UploadBuffer) {
        buffer.withBytes { bytes in
            let span = RawSpan(_unsafeBytes: bytes)
            md5.update(span)
            crc32c.update(span)
            for index in others.indices { others[index].1.update(span) }
        }
        size += UInt64(buffer.count)
    }

    func write(_ buffer: UploadBuffer) throws(BucketError) {
        if descriptor < 0, case .staged(let directory) = target { descriptor = try directory.files.createStaged(id) }
        if case .file(_, _, _, let gate) = target, !gate.begin() { throw BucketError(.internal, "\(name) is closed") }
        defer { if case .file(_, _, _, let gate) = target { gate.end() } }
        try buffer.withBytes { bytes throws(BucketError) in
            try DirectoryFiles.writeAll(descriptor, bytes, at: offset, name)
        }
        offset += UInt64(buffer.count)
        if offset - handedToKernel >= BodyReceiver.writebackStep {
            File.startWriteback(descriptor, from: handedToKernel, count: offset - handedToKernel)
            handedToKernel = offset
        }
    }

    private var name: String {
        switch target {
        case .staged(let directory): "\(directory.files.path)/staging/\(id)"
        case .file(_, _, let name, _): name
        }
    }

    func facts() -> ContentFacts {
        ContentFacts(
            size: size, md5: md5.finish(), crc32c: crc32c.value,
            digests: Dictionary(uniqueKeysWithValues: others.map { ($0.0, $0.1.finish()) }))
    }

    /// Makes the bytes durable and closes the file.
    /// - Returns: The staged file, if it is one.
    func sync() throws(BucketError) -> StagedFile? {
        if fdatasync(descriptor) != 0 {
            let error = BucketError("fdatasync", name)
            discard()
            throw error
        }
        close(descriptor)
        descriptor = -1
        if case .staged(let directory) = target { return StagedFile(id: id, directory: directory) }
        return nil
    }

    func discard() {
        guard descriptor >= 0 else { return }
        if case .file(_, let start, _, let gate) = target, offset > start, gate.begin() {
            File.punchHole(descriptor, from: start, count: offset - start)
            gate.end()
        }
        close(descriptor)
        descriptor = -1
        if case .staged(let directory) = target { directory.files.removeStaged(id) }
    }
}

/// The body of an upload or a part: the loop fills one buffer while the pool hashes and writes another. A body that fits
/// into one buffer stays in memory, unless it has a file from the start.
///
/// Safety: confined to its loop; jobs on the pool get the receiver and a full buffer, and only carry a reference to
/// this object back to the loop.
final class DirectoryBody: @unchecked Sendable {
    /// The maximum number of bytes hashed on the loop, which takes about 20 µs. More are hashed on the pool.
    private static let hashedInline = 16 * 1024

    private let expected: UInt64?
    private let loop: EventLoop
    private let pool: BlockingPool
    private let receiver: BodyReceiver
    private var buffers = UploadBuffers()
    private var isRunning = false
    private var failure: BucketError?
    private var resume: (() -> Void)?
    private var idle: CheckedContinuation<Void, Never>?
    private var isAborted = false
    /// Called after an abort, on any thread, once nothing is written to the file any more.
    private let whenDiscarded: @Sendable () -> Void

    init(
        _ target: BodyTarget, _ digests: Set<DigestAlgorithm>, expected: UInt64?, _ loop: EventLoop,
        _ pool: BlockingPool, whenDiscarded: @escaping @Sendable () -> Void = {}
    ) {
        self.whenDiscarded = whenDiscarded
        self.expected = expected
        self.loop = loop
        self.pool = pool
        receiver = BodyReceiver(target, digests)
    }

    deinit { abort() }

    func write(_ bytes: RawSpan) throws(BucketError) -> Int {
        if let failure { throw failure }
        return buffers.append(bytes, expected: expected, isRunning: isRunning) { send($0) }
    }

    func whenWritable(_ resume: @escaping () -> Void) {
        self.resume = resume
        if !isRunning { loop.execute { self.wake() } }
    }

    private func wake() { resume.take()?() }

    private func send(_ buffer: UploadBuffer) {
        isRunning = true
        pool.submit { [self] in
            var failure: BucketError?
            receiver.hash(buffer)
            do throws(BucketError) { try receiver.write(buffer) } catch { failure = error }
            let outcome = failure
            loop.execute { self.jobDone(outcome) }
        }
    }

    private func jobDone(_ outcome: BucketError?) {
        isRunning = false
        if let outcome { failure = outcome }
        if isAborted { return discard() }
        if let idle = idle.take() {
            idle.resume()
        } else {
            wake()
        }
    }

    /// Completes the body.
    /// - Returns: Its facts, and its bytes if they have no file.
    func finish() async throws(BucketError) -> (ContentFacts, UploadBuffer?) {
        if isRunning { await withCheckedContinuation { idle = $0 } }
        if let failure { throw failure }
        if isAborted { throw BucketError(.internal, "finish after abort") }
        let (receiver, last) = (receiver, buffers.take())
        if receiver.hasFile {
            isRunning = true
            let outcome: Result<Void, BucketError> = await pool.run {
                receiver.hash(last)
                return Result { () throws(BucketError) in try receiver.write(last) }
            }
            isRunning = false
            if isAborted { discard() }
            try outcome.get()
            return (receiver.facts(), nil)
        }
        if last.count > DirectoryBody.hashedInline {
            isRunning = true
            await pool.run { receiver.hash(last) }
            isRunning = false
        } else {
            receiver.hash(last)
        }
        return (receiver.facts(), last)
    }

    /// Makes the bytes of a complete body with a file durable.
    /// - Returns: The staged file, if it is one.
    func sync() async throws(BucketError) -> StagedFile? {
        let receiver = receiver
        return try await pool.run { () throws(BucketError) in try receiver.sync() }
    }

    func abort() {
        if isAborted { return }
        isAborted = true
        resume = nil
        buffers = UploadBuffers()
        idle.take()?.resume()
        if !isRunning { discard() }
    }

    /// Removes the staged file on the pool, because removing a large file takes time.
    private func discard() {
        guard receiver.hasFile else { return }
        let (receiver, whenDiscarded) = (receiver, whenDiscarded)
        pool.submit {
            receiver.discard()
            whenDiscarded()
        }
    }
}

/// An upload to a directory. Confined to its loop.
final class DirectoryUpload: Upload {
    private let bucket: DirectoryBucket
    private let name: String
    private var attributes: ObjectAttributes
    private let body: DirectoryBody
    private var facts: ContentFacts?
    /// The bytes for the committer. Set by ``finish()`` if they are in memory, otherwise by the first commit.
    private var content: UploadContent?
    private var isEnded = false

    var isOpen: Bool { !isEnded }

    init(
        _ bucket: DirectoryBucket, _ directory: OpenDirectory, _ loop: EventLoop, _ name: String,
        _ plan: UploadPlan
    ) {
        self.bucket = bucket
        self.name = name
        attributes = plan.attributes
        body = DirectoryBody(.staged(directory), plan.digests, expected: plan.size, loop, bucket.pool)
    }

    deinit { abort() }

    func write(_ bytes: RawSpan) throws -> Int {
        precondition(facts == nil, "write after finish")
        return try body.write(bytes)
    }

    func whenWritable(_ resume: @escaping () -> Void) { body.whenWritable(resume) }

    func finish() async throws(BucketError) -> ContentFacts {
        let (facts, last) = try await body.finish()
        content = last.map { .memory($0) }
        self.facts = facts
        return facts
    }

    func keep(_ checksum: S3Properties.Checksum) -> Bool {
        attributes.keep(checksum)
        return true
    }

    func commit(_ preconditions: Preconditions) async throws(BucketError) -> CommitResult {
        guard let facts, !isEnded else { throw BucketError(.internal, "commit without finish") }
        isEnded = true
        let content = try await contentForCommit()
        let outcome: DirectoryChange.Outcome
        do throws(BucketError) {
            outcome = try await bucket.change(
                name, .put(content, facts, attributes), preconditions)
        } catch {
            // The committer has kept the bytes.
            if error.code == .preconditionFailed {
                self.content = content
                isEnded = false
            }
            throw error
        }
        guard let metadata = outcome.metadata else {
            throw BucketError(.internal, "a commit without an object")
        }
        return CommitResult(metadata: metadata, replaced: outcome.replaced)
    }

    private func contentForCommit() async throws(BucketError) -> UploadContent {
        if let content = content.take() { return content }
        guard let file = try await body.sync() else { throw BucketError(.internal, "an upload without a file") }
        return .staged(file)
    }

    func abort() {
        if isEnded { return }
        isEnded = true
        if let content { bucket.pool.submit { content.discard() } }
        content = nil
        body.abort()
    }
}
