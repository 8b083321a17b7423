import EventLoop
import Glibc

/// Bytes on their way to a service that must know how many they are before the first is sent: a file without a name,
/// which is gone when it is closed. Its calls block: they belong on a pool.
///
/// Safety: used by one job at a time.
final class Spool: @unchecked Sendable {
    private let descriptor: Int32
    private let pool: BlockingPool
    /// Bytes written so far.
    private(set) var count: UInt64 = 0

    /// - Parameters:
    ///   - directory: On a disk rather than in memory, where there is much to send.
    ///   - pool: Where the file is closed in the end.
    /// - Throws: ``BucketError`` where no file can be made there.
    init(in directory: String, _ pool: BlockingPool) throws(BucketError) {
        self.pool = pool
        // O_TMPFILE would do in one call, but not on every file system.
        let path = "\(directory)/sluice-spool-\(UInt64.random(in: 0 ... .max))"
        descriptor = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0o600)
        guard descriptor >= 0 else { throw BucketError("open", path, errno) }
        unlink(path)
    }

    deinit {
        let descriptor = descriptor
        // Freeing its blocks can take a while.
        pool.submit { close(descriptor) }
    }

    /// Adds bytes.
    /// - Throws: ``BucketError``: `.insufficientStorage` where the disk is full.
    func append(_ bytes: UnsafeRawBufferPointer) throws(BucketError) {
        try DirectoryFiles.writeAll(descriptor, bytes, at: count, "spool")
        count += UInt64(bytes.count)
    }

    /// At most `limit` bytes from `offset` on; fewer only at the end.
    func read(at offset: UInt64, limit: Int) throws(BucketError) -> [UInt8] {
        let wanted = min(UInt64(limit), count - min(offset, count))
        var failure: Int32 = 0
        let bytes = [UInt8](unsafeUninitializedCapacity: Int(wanted)) { buffer, filled in
            while filled < Int(wanted) {
                let got = pread(
                    descriptor, buffer.baseAddress! + filled, Int(wanted) - filled,
                    off_t(offset) + off_t(filled))
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

    /// Forgets all bytes, so that the file can be filled again.
    func clear() {
        ftruncate(descriptor, 0)
        count = 0
    }
}
