import Glibc

/// The state of a file. Two stamps differ if the file has changed in between.
public struct FileStamp: Equatable, Sendable {
    private let inode: UInt
    private let size: Int
    private let seconds: Int
    private let nanoseconds: Int

    /// Reads the state of a file; all zero if it does not exist.
    public init(_ path: String) {
        var status = stat()
        stat(path, &status)
        self.init(status)
    }

    init(descriptor: Int32) {
        var status = stat()
        fstat(descriptor, &status)
        self.init(status)
    }

    private init(_ status: stat) {
        inode = UInt(status.st_ino)
        size = Int(status.st_size)
        // The ctime, because a granted permission is a change too.
        (seconds, nanoseconds) = (status.st_ctim.tv_sec, status.st_ctim.tv_nsec)
    }
}
