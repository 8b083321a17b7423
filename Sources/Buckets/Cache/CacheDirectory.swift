import Glibc
import OpenSSL
import System

/// The directory of the cache: private to this user, and locked by this process.
final class CacheDirectory: Sendable {
    let descriptor: Int32
    private let lock: Int32
    private let contents: Lock<[UInt8]>
    /// The numbers of the segments that were there, ascending.
    let segments: [UInt64]

    private static let saltBytes = 16

    /// Opens the directory, and makes it if it does not exist. If others may enter it, as into the mount point of an
    /// `emptyDir`, its private folder `sluice-cache` is used.
    init(_ path: String) throws(CacheFault) {
        mkdir(path, 0o700)
        var directory = try CacheDirectory.enter(path)
        if try !CacheDirectory.isPrivate(directory) {
            Glibc.close(directory)
            mkdir(path + "/sluice-cache", 0o700)
            directory = try CacheDirectory.enter(path + "/sluice-cache")
        }
        descriptor = directory
        let lock = openat(directory, "lock", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0o600)
        do throws(CacheFault) {
            guard try CacheDirectory.isPrivate(directory) else {
                throw CacheFault.broken("others may enter '\(path)': its permissions must be 0700")
            }
            guard lock >= 0 else { throw CacheFault(SystemError("open")) }
            if flock(lock, LOCK_EX | LOCK_NB) != 0 {
                throw errno == EWOULDBLOCK
                    ? CacheFault.broken("another process uses '\(path)'") : CacheFault(SystemError("flock"))
            }
            contents = Lock(try CacheDirectory.salt(directory))
            segments = try CacheDirectory.segments(directory)
        } catch {
            if lock >= 0 { Glibc.close(lock) }
            Glibc.close(directory)
            throw error
        }
        self.lock = lock
    }

    deinit {
        Glibc.close(lock)
        Glibc.close(descriptor)
    }

    /// Random bytes that are part of each object's key.
    var salt: [UInt8] { contents.withLock { $0 } }

    /// A number that shows whether a segment was written with this salt.
    var saltHash: UInt64 {
        let digest = Digest(.sha256)
        digest.update(salt.span.bytes)
        return UInt64(littleEndian: digest.finish()[0..<8])
    }

    /// Makes a new salt.
    func renewSalt() throws(CacheFault) {
        let salt = try CacheDirectory.newSalt(descriptor)
        contents.withLock { $0 = salt }
    }

    /// Checks that so many bytes are free.
    func requireSpace(_ count: UInt64) throws(CacheFault) {
        var status = statvfs()
        guard fstatvfs(descriptor, &status) == 0 else { throw CacheFault(SystemError("statvfs")) }
        let free = UInt64(status.f_bavail) * UInt64(status.f_frsize)
        if free < count { throw CacheFault.full("\(free >> 20) MiB are free, \(count >> 20) MiB are needed") }
    }

    private static func enter(_ path: String) throws(CacheFault) -> Int32 {
        let descriptor = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC)
        guard descriptor >= 0 else { throw CacheFault(SystemError("open '\(path)'")) }
        return descriptor
    }

    private static func isPrivate(_ directory: Int32) throws(CacheFault) -> Bool {
        var status = stat()
        guard fstat(directory, &status) == 0 else { throw CacheFault(SystemError("stat")) }
        return status.st_mode & 0o077 == 0 && (status.st_uid == geteuid() || geteuid() == 0)
    }

    private static func salt(_ directory: Int32) throws(CacheFault) -> [UInt8] {
        let file = openat(directory, "salt", O_RDONLY | O_CLOEXEC | O_NOFOLLOW)
        guard file >= 0 else { return try newSalt(directory) }
        defer { Glibc.close(file) }
        guard let bytes = File.readAll(file, saltBytes, at: 0) else { return try newSalt(directory) }
        return bytes
    }

    private static func newSalt(_ directory: Int32) throws(CacheFault) -> [UInt8] {
        var generator = SystemRandomNumberGenerator()
        let salt = (0..<saltBytes).map { _ in UInt8.random(in: 0 ... .max, using: &generator) }
        let file = openat(directory, "salt.new", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0o600)
        guard file >= 0 else { throw CacheFault(SystemError("open")) }
        defer { Glibc.close(file) }
        let outcome = salt.withUnsafeBytes { bytes in
            Result { () throws(CacheFault) in try CacheDiskCalls.system.writeAll(file, bytes, at: 0) }
        }
        try outcome.get()
        guard renameat(directory, "salt.new", directory, "salt") == 0 else { throw CacheFault(SystemError("rename")) }
        return salt
    }

    private static func segments(_ directory: Int32) throws(CacheFault) -> [UInt64] {
        // fdopendir closes its descriptor.
        let copy = openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC)
        guard copy >= 0, let stream = fdopendir(copy) else { throw CacheFault(SystemError("opendir")) }
        defer { closedir(stream) }
        return File.names(in: stream).filter { $0.utf8.count == 16 }.compactMap { UInt64($0, radix: 16) }
            .filter { $0 < UInt64.max / 2 }.sorted()
    }
}
