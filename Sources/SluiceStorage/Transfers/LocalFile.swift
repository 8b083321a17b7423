import Foundation
import Wire

/// The size and state of a file, to detect changes.
package struct FileState: Sendable, Codable, Equatable {
    /// Bytes.
    package let size: Int64
    /// Nanoseconds since 1970.
    let modified: Int64
    /// When the bytes or the attributes changed, in nanoseconds since 1970. Programs can't set it.
    let changed: Int64
    /// The number of the file on its volume.
    let number: UInt64

    init(_ status: stat) {
        size = Int64(status.st_size)
        #if os(Linux)
            let times = (status.st_mtim, status.st_ctim)
        #else
            let times = (status.st_mtimespec, status.st_ctimespec)
        #endif
        modified = FileState.nanoseconds(times.0)
        changed = FileState.nanoseconds(times.1)
        number = UInt64(status.st_ino)
    }

    private static func nanoseconds(_ time: timespec) -> Int64 {
        Int64(time.tv_sec) &* 1_000_000_000 &+ Int64(time.tv_nsec)
    }

    /// The state of the file that a path leads to, also through links; nil if there is none.
    package init?(path: String) {
        var status = stat()
        guard stat(path, &status) == 0, LocalFile.isRegular(status) else { return nil }
        self.init(status)
    }
}

/// Bytes of a file.
struct FileRange: Sendable {
    let file: LocalFile
    let range: Range<Int64>

    /// - Throws: ``StorageError`` if the file has changed since it was opened.
    func read() throws(StorageError) -> [UInt8] { try file.read(range) }
}

/// A file that is read. All pieces are of one version.
///
/// Safety: its properties do not change, and the reads of a descriptor at given offsets do not disturb each other.
final class LocalFile: Sendable {
    /// Timestamps of files are coarse: a second change within this time, in microseconds, may not be visible.
    private static let timestampPrecision: UInt32 = 20_000

    let path: String
    let state: FileState
    private let descriptor: Int32

    /// - Throws: ``StorageError`` if it can't be opened or is no regular file.
    init(_ path: String) throws(StorageError) {
        self.path = path
        // Without waiting for a writer of a pipe.
        descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK)
        guard descriptor >= 0 else { throw .file("read", path) }
        var status = stat()
        guard fstat(descriptor, &status) == 0 else {
            let error = StorageError.file("read", path)
            close(descriptor)
            throw error
        }
        guard LocalFile.isRegular(status) else {
            close(descriptor)
            throw StorageError(.file(0), "\(path) is not a regular file.")
        }
        let age = Date().timeIntervalSince1970 * 1e9 - Double(FileState(status).modified)
        if age >= 0, age < Double(LocalFile.timestampPrecision) * 1000 {
            usleep(LocalFile.timestampPrecision)
            fstat(descriptor, &status)
        }
        state = FileState(status)
    }

    deinit { close(descriptor) }

    static func isRegular(_ status: stat) -> Bool { status.st_mode & S_IFMT == S_IFREG }

    /// - Returns: Exactly the bytes of the range.
    /// - Throws: ``StorageError`` if the file has changed since it was opened.
    func read(_ range: Range<Int64>) throws(StorageError) -> [UInt8] {
        guard let bytes = LocalFile.read(descriptor, range) else { throw .file("read", path) }
        try check()
        guard bytes.count == range.count else { throw changed }
        return bytes
    }

    /// - Throws: ``StorageError`` if the file has changed since it was opened.
    func check() throws(StorageError) {
        var status = stat()
        guard fstat(descriptor, &status) == 0, FileState(status) == state else { throw changed }
    }

    var changed: StorageError {
        StorageError(.changedFile, "\(path) has changed while it was read.")
    }

    // MARK: Descriptors

    /// Reads at an offset.
    /// - Returns: Fewer bytes at the end of the file; nil after a failure, with `errno`.
    static func read(_ descriptor: Int32, _ range: Range<Int64>) -> [UInt8]? {
        var isComplete = true
        let bytes = [UInt8](unsafeUninitializedCapacity: range.count) { buffer, count in
            while count < range.count {
                let offset = off_t(range.lowerBound) + off_t(count)
                let read = pread(descriptor, buffer.baseAddress! + count, range.count - count, offset)
                if read > 0 {
                    count += read
                } else if read == 0 || errno != EINTR {
                    isComplete = read == 0
                    return
                }
            }
        }
        return isComplete ? bytes : nil
    }

    /// Writes at an offset.
    /// - Returns: Whether all bytes were written; if not, `errno` says why.
    static func write(_ descriptor: Int32, _ bytes: [UInt8], at offset: Int64) -> Bool {
        var written = 0
        return bytes.withUnsafeBytes { buffer in
            while written < buffer.count {
                let count = pwrite(
                    descriptor, buffer.baseAddress! + written, buffer.count - written,
                    off_t(offset) + off_t(written))
                if count >= 0 {
                    written += count
                } else if errno != EINTR {
                    return false
                }
            }
            return true
        }
    }
}
