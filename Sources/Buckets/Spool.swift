import Glibc
import System

/// A temporary file without a name, for bytes whose number must be known before they are sent. Closing removes it.
/// Calls block and must run on a pool.
///
/// Safety: used by one job at a time.
final class Spool: @unchecked Sendable {
    /// `O_TMPFILE`: the file disappears if the process is killed.
    private static let temporary = __O_TMPFILE | O_DIRECTORY
    private let descriptor: Int32
    private let pool: BlockingPool
    private(set) var count: UInt64 = 0

    /// - Parameters:
    ///   - directory: The file's directory, on a disk rather than in memory for much data.
    ///   - pool: Closes the file.
    /// - Throws: ``BucketError`` if the file can't be created.
    init(in directory: String, _ pool: BlockingPool) throws(BucketError) {
        self.pool = pool
        let unnamed = open(directory, O_RDWR | Spool.temporary | O_EXCL | O_CLOEXEC, 0o600)
        if unnamed >= 0 {
            descriptor = unnamed
            return
        }
        // Not every file system supports `O_TMPFILE`.
        let path = "\(directory)/sluice-spool-\(UInt64.random(in: 0 ... .max))"
        descriptor = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0o600)
        guard descriptor >= 0 else { throw BucketError("open", path, errno) }
        unlink(path)
    }

    deinit {
        let descriptor = descriptor
        // Closing frees the file's blocks, which takes time.
        pool.submit { close(descriptor) }
    }

    /// Throws `.insufficientStorage` if the disk is full.
    func append(_ bytes: UnsafeRawBufferPointer) throws(BucketError) {
        try DirectoryFiles.writeAll(descriptor, bytes, at: count, "spool")
        count += UInt64(bytes.count)
    }

    /// Returns at most `limit` bytes from `offset`; fewer only at the end.
    func read(at offset: UInt64, limit: Int) throws(BucketError) -> [UInt8] {
        let wanted = min(UInt64(limit), count - min(offset, count))
        var failure: Int32 = 0
        let bytes = [UInt8](unsafeUninitializedCapacity: Int(wanted)) { buffer, filled in
            while filled < Int(wanted) {
                let got = pread(
                    descriptor, buffer.baseAddress! + filled, Int(wanted) - filled, off_t(offset) + off_t(filled))
                if got < 0, errno == EINTR { continue }
                if got <= 0 {
                    failure = got < 0 ? errno : EIO
                    return
                }
                filled += got
            }
        }
        if failure != 0 { throw BucketError("pread", "spool", failure) }
        return bytes
    }

    func clear() { truncate(to: 0) }

    func truncate(to offset: UInt64) {
        ftruncate(descriptor, off_t(offset))
        count = offset
    }
}
