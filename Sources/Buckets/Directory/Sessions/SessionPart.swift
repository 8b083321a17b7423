import Glibc
import System

/// The open file of an upload session during an append, with the digests of its content.
///
/// Safety: used by one job on the pool at a time, or by the loop while no job runs; except for ``abandon()``.
final class SessionPart: @unchecked Sendable {
    /// The maximum offset in a file.
    static let maximumLength = UInt64(Int64.max)
    /// The dirty bytes after which the kernel is asked to start writing: 1 MiB, so that little is left for the sync at the
    /// end of an append.
    private static let writebackStep: UInt64 = 1 << 20

    /// -1 after it was closed.
    private var descriptor: Int32
    private let pool: BlockingPool
    private let name: String
    /// The number of written and hashed bytes.
    private(set) var offset: UInt64
    private(set) var digests: SessionDigests
    private var handedToKernel: UInt64
    let gate = ChangeGate()

    private init(_ row: SessionRow, _ directory: OpenDirectory, _ pool: BlockingPool)
        throws(BucketError)
    {
        guard let digests = SessionDigests(saved: row.digests) else { throw row.unreadable }
        descriptor = try directory.files.openPart(row.blob, offset: row.offset)
        self.pool = pool
        self.digests = digests
        name = "blob \(row.blob) of \(directory.files.path)"
        offset = row.offset
        handedToKernel = row.offset
    }

    deinit {
        let descriptor = descriptor
        if descriptor >= 0 { pool.submit { Glibc.close(descriptor) } }
    }

    /// Closes the file. For a removed file this frees its blocks, which takes time.
    func close() async {
        await pool.run {
            Glibc.close(self.descriptor)
            self.descriptor = -1
        }
    }

    /// Opens the file, truncated to its durable length.
    static func open(_ row: SessionRow, _ directory: OpenDirectory, _ pool: BlockingPool)
        async throws(SessionError) -> SessionPart
    {
        do throws(BucketError) {
            return try await pool.run { () throws(BucketError) in
                try SessionPart(row, directory, pool)
            }
        } catch {
            throw .store(error)
        }
    }

    /// Appends a buffer. After a failure none of its bytes count.
    func append(_ buffer: UploadBuffer) throws(BucketError) {
        guard gate.begin() else {
            throw BucketError(.internal, "another append uses the \(name)")
        }
        defer { gate.end() }
        try buffer.withBytes { bytes throws(BucketError) in
            try DirectoryFiles.writeAll(descriptor, bytes, at: offset, name)
            digests.update(RawSpan(_unsafeBytes: bytes))
        }
        offset += UInt64(buffer.count)
        if offset - handedToKernel >= SessionPart.writebackStep {
            File.startWriteback(descriptor, from: handedToKernel, count: offset - handedToKernel)
            handedToKernel = offset
        }
    }

    func sync() throws(BucketError) {
        if fdatasync(descriptor) != 0 { throw BucketError("fdatasync", name) }
    }

    /// Frees the space after the durable bytes. A failure is harmless: the next append truncates the file.
    func truncate(to offset: UInt64) {
        guard gate.begin() else { return }
        _ = ftruncate(descriptor, off_t(offset))
        gate.end()
    }

    /// Waits for a job that is changing the file, without a thread of the pool. No job changes it later.
    func abandon() async { await gate.close() }
}

/// Permits changes until it is closed, so that another call can continue without an append or part in progress.
final class ChangeGate: Sendable {
    private struct State {
        var isClosed = false
        var isChanging = false
        /// Resumed at the end of that change.
        var waiters: [CheckedContinuation<Void, Never>] = []
    }
    private let state = Lock(State())

    var isClosed: Bool { state.withLock { $0.isClosed } }

    /// Whether a change may begin. If so, ``end()`` must follow.
    func begin() -> Bool {
        state.withLock { state in
            if state.isClosed { return false }
            state.isChanging = true
            return true
        }
    }

    func end() {
        let waiters = state.withLock { state in
            state.isChanging = false
            defer { state.waiters = [] }
            return state.waiters
        }
        for waiter in waiters { waiter.resume() }
    }

    /// Waits for a change in progress. None begins later.
    func close() async {
        await withCheckedContinuation { waiter in
            let isFree = state.withLock { state in
                state.isClosed = true
                if state.isChanging { state.waiters.append(waiter) }
                return !state.isChanging
            }
            if isFree { waiter.resume() }
        }
    }
}
