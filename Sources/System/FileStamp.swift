import Glibc

/// What a file was when it was looked at; two of them differ where the file has changed.
public struct FileStamp: Equatable, Sendable {
    private let inode: UInt
    private let size: Int
    private let seconds: Int
    private let nanoseconds: Int

    /// Looks at a file. Of one that is not there: nothing but zeros.
    public init(_ path: String) {
        var status = stat()
        stat(path, &status)
        inode = UInt(status.st_ino)
        size = Int(status.st_size)
        // Of the file's properties too: a permission that is given is a change.
        (seconds, nanoseconds) = (status.st_ctim.tv_sec, status.st_ctim.tv_nsec)
    }
}
