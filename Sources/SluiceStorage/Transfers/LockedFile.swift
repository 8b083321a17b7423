import Foundation

/// A file that one process at a time writes.
package enum LockedFile {
    /// Opens a file of this user for reading and writing, and locks it (flock(2)) until its descriptor is closed.
    /// - Parameter creates: Whether to create the file if there is none.
    /// - Returns: nil if that can't be; `errno` is `EWOULDBLOCK` then if another descriptor has the lock, and `EPERM` if it
    ///   is not a plain file of this user with a single name.
    package static func open(_ path: String, creates: Bool) -> Int32? {
        let flags = O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | (creates ? O_CREAT : 0)
        // Meanwhile another process may remove or rename what was opened.
        for _ in 0..<100 {
            let descriptor = Foundation.open(path, flags, 0o666)
            guard descriptor >= 0 else { return nil }
            let code = lock(descriptor)
            if code == 0, isNamed(path, descriptor) { return descriptor }
            close(descriptor)
            if code != 0 {
                errno = code
                return nil
            }
        }
        errno = EWOULDBLOCK
        return nil
    }

    /// A name for the file that belongs to a text: 16 hexadecimal digits (FNV-1a). Other texts may have the same.
    package static func name(for text: String) -> String {
        var hash: UInt64 = 0xcbf2_9ce4_8422_2325
        for byte in text.utf8 { hash = (hash ^ UInt64(byte)) &* 0x100_0000_01b3 }
        let digits = String(hash, radix: 16)
        return String(repeating: "0", count: 16 - digits.utf8.count) + digits
    }

    /// - Returns: 0, or the error's number.
    private static func lock(_ descriptor: Int32) -> Int32 {
        var status = stat()
        guard flock(descriptor, LOCK_EX | LOCK_NB) == 0, fstat(descriptor, &status) == 0 else {
            return errno
        }
        let isOwn =
            LocalFile.isRegular(status) && status.st_uid == geteuid() && status.st_nlink <= 1
        return isOwn ? 0 : EPERM
    }

    /// Whether the path leads to the file that was opened.
    private static func isNamed(_ path: String, _ descriptor: Int32) -> Bool {
        var (opened, named) = (stat(), stat())
        return fstat(descriptor, &opened) == 0 && lstat(path, &named) == 0 && named.st_ino == opened.st_ino
    }
}
