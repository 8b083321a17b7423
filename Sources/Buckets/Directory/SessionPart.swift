import Glibc
import System

/// The file of an upload session while an append writes to it, and the digests of what is in it.
///
/// Safety: used by one job of the pool at a time, or by the loop while none runs.
final class SessionPart: @unchecked Sendable {
    /// What a file's offsets can name.
    static let maximumLength = UInt64(Int64.max)
    /// Dirty bytes after which the kernel is asked to begin writing: 8 MiB.
    private static let writebackStep: UInt64 = 8 << 20

    /// -1 once it is closed.
    private var descriptor: Int32
    private let pool: BlockingPool
    private let name: String
    /// Bytes that were written and hashed.
    private(set) var offset: UInt64
    private(set) var digests: SessionDigests
    private var handedToKernel: UInt64

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

    /// Closes the file. Of one that is removed that frees the blocks: it takes its time.
    func close() async {
        await pool.run {
            Glibc.close(self.descriptor)
            self.descriptor = -1
        }
    }

    /// Opens the file and cuts off what is not durable.
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

    /// Adds a buffer. Where that fails, nothing of it counts.
    func append(_ buffer: UploadBuffer) throws(BucketError) {
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

    /// Puts everything on stable storage.
    func sync() throws(BucketError) {
        if fdatasync(descriptor) != 0 { throw BucketError("fdatasync", name) }
    }

    /// Gives back the space of what does not count. Failure costs nothing: the next append cuts it off.
    func truncate(to offset: UInt64) { ftruncate(descriptor, off_t(offset)) }
}
