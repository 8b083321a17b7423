import EventLoop
import Glibc

/// A file without a name, in which a part of an upload waits until its length is known.
///
/// Safety: the descriptor changes only on the pool, by the one job that the upload waits for.
final class S3Spool: @unchecked Sendable {
    private static let step = 32 * 1024

    /// Bytes in it.
    private(set) var count: UInt64 = 0
    private let directory: String
    private let pool: BlockingPool
    private var descriptor: Int32 = -1

    init(_ directory: String, _ pool: BlockingPool) {
        self.directory = directory
        self.pool = pool
    }

    deinit {
        let descriptor = descriptor
        // Freeing its blocks can take a while.
        if descriptor >= 0 { pool.submit { close(descriptor) } }
    }

    func append(_ bytes: [UInt8]) async throws(BucketError) {
        let offset = count
        try await run { (spool) throws(SystemError) in
            if spool.descriptor < 0 {
                // O_TMPFILE would do in one call, but not on every file system.
                let path = "\(spool.directory)/sluice-\(UInt64.random(in: 0 ... .max))"
                spool.descriptor = try SystemError.check("open") {
                    open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0o600)
                }
                unlink(path)
            }
            var written = 0
            while written < bytes.count {
                written += try SystemError.check("pwrite") {
                    bytes.withUnsafeBytes {
                        pwrite(
                            spool.descriptor, $0.baseAddress! + written, bytes.count - written,
                            off_t(offset) + off_t(written))
                    }
                }
            }
        }
        count += UInt64(bytes.count)
    }

    /// Writes all of it to a request's body.
    func copy(to body: S3Body) async throws {
        var offset: UInt64 = 0
        while offset < count {
            let (place, wanted) = (offset, Int(min(count - offset, UInt64(Self.step))))
            let bytes = try await run { (spool) throws(SystemError) in
                var bytes = [UInt8](repeating: 0, count: wanted)
                let got = try SystemError.check("pread") {
                    bytes.withUnsafeMutableBytes {
                        pread(spool.descriptor, $0.baseAddress, wanted, off_t(place))
                    }
                }
                if got == 0 { throw SystemError("pread", EIO) }
                bytes.removeSubrange(got...)
                return bytes
            }
            try await body.writeAll(bytes)
            offset += UInt64(bytes.count)
        }
    }

    /// Makes room for the next part.
    func empty() async throws(BucketError) {
        try await run { (spool) throws(SystemError) in
            _ = try SystemError.check("ftruncate") { ftruncate(spool.descriptor, 0) }
        }
        count = 0
    }

    private func run<Value: Sendable>(
        _ body: @escaping @Sendable (S3Spool) throws(SystemError) -> Value
    ) async throws(BucketError) -> Value {
        do throws(SystemError) {
            return try await pool.run { () throws(SystemError) in try body(self) }
        } catch {
            throw BucketError(error.call, "the temporary directory \(directory)", error.code)
        }
    }
}
