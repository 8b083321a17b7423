import CLinux
import Glibc
import Wire

/// File operations. The comments state which may wait for a disk.
public enum File {
    /// The result of ``read(_:into:count:at:)``.
    public enum ReadResult: Equatable, Sendable {
        /// This many bytes were written to the start of the buffer; 0 at the end of the file.
        case bytes(Int)
        /// The page cache does not hold the bytes: read them where waiting is allowed.
        case wouldWait
    }

    /// Reads at most `count` bytes from the page cache directly into `buffer`. On a file system without support for
    /// this, such as tmpfs, which holds all files in memory, it is a plain read.
    /// - Parameter offset: In bytes from the start of the file.
    /// - Throws: ``SystemError`` if the file can't be read.
    public static func read(
        _ descriptor: Int32, into buffer: inout MutableRawSpan, count: Int, at offset: UInt64
    ) throws(SystemError) -> ReadResult {
        let wanted = min(count, buffer.byteCount)
        // The closure can't have a typed throw, so it returns `errno`.
        let outcome = buffer.withUnsafeMutableBytes { bytes -> (Int, Int32) in
            while true {
                let result = sluice_pread_nowait(descriptor, bytes.baseAddress, wanted, off_t(offset))
                if result >= 0 { return (result, 0) }
                switch errno {
                case EINTR: continue
                case EOPNOTSUPP:
                    let plain = pread(descriptor, bytes.baseAddress, wanted, off_t(offset))
                    if plain >= 0 { return (plain, 0) }
                    if errno != EINTR { return (-1, errno) }
                default: return (-1, errno)
                }
            }
        }
        if outcome.0 >= 0 { return .bytes(outcome.0) }
        if outcome.1 == EAGAIN { return .wouldWait }
        throw SystemError("preadv2", outcome.1)
    }

    /// The result of ``send(_:to:count:at:)``.
    public enum SendResult: Equatable, Sendable {
        /// This many bytes were written to the socket; 0 at the end of the file.
        case bytes(Int)
        /// The page cache does not hold the bytes: read them where waiting is allowed.
        case wouldWait
        /// The socket's buffer is full.
        case socketFull
    }

    /// The maximum number of bytes that ``send(_:to:count:at:)`` moves per call.
    private static let sendWindow = 256 * 1024

    /// Moves bytes from the page cache to a socket without copying them through this process. Checks only that the
    /// first and last byte are cached: read-ahead fetches those in between.
    /// - Throws: ``SystemError`` if the file can't be read or the socket has failed.
    public static func send(
        _ descriptor: Int32, to socket: Int32, count: Int, at offset: UInt64
    ) throws(SystemError) -> SendResult {
        let wanted = min(count, sendWindow)
        for position in [offset, offset + UInt64(wanted) - 1] {
            var byte: UInt8 = 0
            if sluice_pread_nowait(descriptor, &byte, 1, off_t(position)) < 0 && errno == EAGAIN {
                return .wouldWait
            }
        }
        var position = off_t(offset)
        while true {
            let sent = sendfile(socket, descriptor, &position, wanted)
            if sent >= 0 { return .bytes(sent) }
            switch errno {
            case EINTR: continue
            case EAGAIN: return .socketFull
            default: throw SystemError("sendfile", errno)
            }
        }
    }

    /// Asks the kernel to start writing `count` dirty bytes from `offset`, so that a later sync waits less.
    public static func startWriteback(_ descriptor: Int32, from offset: UInt64, count: UInt64) {
        _ = sluice_start_writeback(descriptor, Int64(offset), Int64(count))
    }

    /// Frees the space of a range without changing the file's size. File systems without support ignore it.
    public static func punchHole(_ descriptor: Int32, from offset: UInt64, count: UInt64) {
        _ = sluice_punch_hole(descriptor, Int64(offset), Int64(count))
    }

    /// Copies at most `count` bytes between two files, or disjoint ranges of one, within the kernel. May wait for a disk.
    /// - Returns: The number of copied bytes; nil if the file system can't, or the source ends at `start`.
    /// - Throws: ``SystemError`` if it failed.
    public static func copy(
        _ source: Int32, at start: UInt64, to target: Int32, at offset: UInt64, count: Int
    ) throws(SystemError) -> Int? {
        let copied = sluice_copy_range(source, Int64(start), target, Int64(offset), count)
        if copied > 0 { return copied }
        if copied == 0 || [EXDEV, EINVAL, EOPNOTSUPP, ENOSYS, EINTR].contains(errno) { return nil }
        throw SystemError("copy_file_range", errno)
    }

    /// Reads a small file completely. May wait for a disk.
    /// - Throws: ``SystemError`` if the file can't be read, or has more than `limit` bytes (`EFBIG`).
    public static func contents(of path: String, limit: Int) throws(SystemError) -> [UInt8] {
        let descriptor = try SystemError.check("open") { open(path, O_RDONLY | O_CLOEXEC) }
        defer { close(descriptor) }
        return try contents(of: descriptor, limit: limit)
    }

    /// Reads a small file and its state from one descriptor, as its name may be reused meanwhile. May wait for a disk.
    /// - Returns: nil if the state equals `stamp`.
    /// - Throws: ``SystemError`` if the file can't be read, or has more than `limit` bytes (`EFBIG`).
    public static func contents(of path: String, limit: Int, unless stamp: FileStamp?)
        throws(SystemError) -> (bytes: [UInt8], stamp: FileStamp)?
    {
        let descriptor = try SystemError.check("open") { open(path, O_RDONLY | O_CLOEXEC) }
        defer { close(descriptor) }
        let now = FileStamp(descriptor: descriptor)
        if now == stamp { return nil }
        return (try contents(of: descriptor, limit: limit), now)
    }

    /// Reads the rest of an open file or stream. May wait.
    /// - Throws: ``SystemError`` if it can't be read, or has more than `limit` bytes (`EFBIG`).
    public static func contents(of descriptor: Int32, limit: Int) throws(SystemError) -> [UInt8] {
        var all: [UInt8] = []
        var chunk = [UInt8](repeating: 0, count: 16 * 1024)
        while true {
            let count = Glibc.read(descriptor, &chunk, chunk.count)
            if count == 0 { return all }
            if count < 0 {
                if errno == EINTR { continue }
                throw SystemError("read", errno)
            }
            all += chunk[..<count]
            if all.count > limit { throw SystemError("read", EFBIG) }
        }
    }

    /// When a file or directory was made, in milliseconds since 1970; 0 if its file system does not tell.
    public static func birth(of path: String) -> Int64 { sluice_birth(path) }

    /// The names in an open directory.
    public static func names(in directory: OpaquePointer) -> [String] {
        var names: [String] = []
        while let entry = readdir(directory) {
            let name = withUnsafePointer(to: &entry.pointee.d_name) {
                $0.withMemoryRebound(to: CChar.self, capacity: 256) { String(cString: $0) }
            }
            if name != "." && name != ".." { names.append(name) }
        }
        return names
    }
}
