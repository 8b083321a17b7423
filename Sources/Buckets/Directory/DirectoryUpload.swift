import Glibc
import OpenSSL
import Synchronization
import System

/// A complete and synced file in the staging area.
struct StagedFile: Sendable {
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

/// Hashes the bytes of an upload and, if they exceed one buffer, writes a staged file.
///
/// Safety: used by one thread at a time: a job on the pool, or the loop while no job runs.
private final class UploadReceiver: @unchecked Sendable {
    private static let nextID = Atomic<Int64>(1)
    /// The dirty bytes after which the kernel is asked to start writing: 8 MiB.
    private static let writebackStep: UInt64 = 8 << 20

    private let directory: OpenDirectory
    private let md5 = Digest(.md5)
    private var crc32c = CRC32C()
    private let others: [(DigestAlgorithm, Digest)]
    private let id = UploadReceiver.nextID.wrappingAdd(1, ordering: .relaxed).oldValue
    private var descriptor: Int32 = -1
    private var size: UInt64 = 0
    private var written: UInt64 = 0
    private var handedToKernel: UInt64 = 0

    init(_ directory: OpenDirectory, _ digests: Set<DigestAlgorithm>) {
        self.directory = directory
        others = digests.map { algorithm in
            switch algorithm {
            case .sha256: (algorithm, Digest(.sha256))
            case .sha512: (algorithm, Digest(.sha512))
            }
        }
    }

    var isStaged: Bool { descriptor >= 0 }

    func hash(_ buffer: UploadBuffer) {
        buffer.withBytes { bytes in
            let span = RawSpan(_unsafeBytes: bytes)
            md5.update(span)
            crc32c.update(span)
            for (_, digest) in others { digest.update(span) }
        }
        size += UInt64(buffer.count)
    }

    func write(_ buffer: UploadBuffer) throws(BucketError) {
        if descriptor < 0 { descriptor = try directory.files.createStaged(id) }
        try buffer.withBytes { bytes throws(BucketError) in
            try DirectoryFiles.writeAll(descriptor, bytes, at: written, "\(directory.files.path)/staging/\(id)")
        }
        written += UInt64(buffer.count)
        if written - handedToKernel >= UploadReceiver.writebackStep {
            File.startWriteback(descriptor, from: handedToKernel, count: written - handedToKernel)
            handedToKernel = written
        }
    }

    func facts() -> ContentFacts {
        ContentFacts(
            size: size, md5: md5.finish(), crc32c: crc32c.value,
            digests: Dictionary(uniqueKeysWithValues: others.map { ($0.0, $0.1.finish()) }))
    }

    func sync() throws(BucketError) -> StagedFile {
        let code = fdatasync(descriptor) == 0 ? 0 : errno
        close(descriptor)
        descriptor = -1
        if code != 0 {
            directory.files.removeStaged(id)
            throw BucketError("fdatasync", "\(directory.files.path)/staging/\(id)", code)
        }
        return StagedFile(id: id, directory: directory)
    }

    func discard() {
        guard descriptor >= 0 else { return }
        close(descriptor)
        descriptor = -1
        directory.files.removeStaged(id)
    }
}

/// An upload to a directory. A body that fits into one buffer stays in memory until the commit. A larger body goes to a
/// staged file, which the pool writes while the loop fills a second buffer.
///
/// Safety: confined to its loop; jobs on the pool get the receiver and a full buffer, and only carry a reference to
/// this object back to the loop.
final class DirectoryUpload: Upload, @unchecked Sendable {
    /// The maximum number of bytes hashed on the loop, which takes about 20 µs. More are hashed on the pool.
    private static let hashedInline = 16 * 1024

    private let bucket: DirectoryBucket
    private let name: String
    private let attributes: ObjectAttributes
    private let expected: UInt64?
    private let loop: EventLoop
    private let receiver: UploadReceiver
    private var buffers = UploadBuffers()
    private var isRunning = false
    private var failure: BucketError?
    private var resume: (() -> Void)?
    private var idle: CheckedContinuation<Void, Never>?
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
        expected = plan.size
        self.loop = loop
        receiver = UploadReceiver(directory, plan.digests)
    }

    deinit { abort() }

    func write(_ bytes: RawSpan) throws -> Int {
        precondition(facts == nil, "write after finish")
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
        bucket.pool.submit { [self] in
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
        if isEnded { return discard() }
        if let idle = idle.take() {
            idle.resume()
        } else {
            wake()
        }
    }

    func finish() async throws(BucketError) -> ContentFacts {
        if isRunning { await withCheckedContinuation { idle = $0 } }
        if let failure { throw failure }
        if isEnded { throw BucketError(.internal, "finish after abort") }
        let (receiver, last) = (receiver, buffers.take())
        if receiver.isStaged {
            isRunning = true
            let outcome: Result<Void, BucketError> = await bucket.pool.run {
                receiver.hash(last)
                return Result { () throws(BucketError) in try receiver.write(last) }
            }
            isRunning = false
            if isEnded { discard() }
            try outcome.get()
        } else {
            if last.count > DirectoryUpload.hashedInline {
                isRunning = true
                await bucket.pool.run { receiver.hash(last) }
                isRunning = false
            } else {
                receiver.hash(last)
            }
            content = .memory(last)
        }
        let result = receiver.facts()
        facts = result
        return result
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
        let receiver = receiver
        return .staged(try await bucket.pool.run { () throws(BucketError) in try receiver.sync() })
    }

    func abort() {
        if isEnded { return }
        isEnded = true
        resume = nil
        if let content { bucket.pool.submit { content.discard() } }
        content = nil
        buffers = UploadBuffers()
        idle.take()?.resume()
        if !isRunning { discard() }
    }

    /// Removes the staged file on the pool, because removing a large file takes time.
    private func discard() {
        guard receiver.isStaged else { return }
        let receiver = receiver
        bucket.pool.submit { receiver.discard() }
    }
}
