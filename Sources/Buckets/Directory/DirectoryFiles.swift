import Glibc
import Synchronization
import System
import Wire

/// The files of an open bucket directory: the lock, the blobs and the staging area. The path of a blob is `blobs/<id /
/// 4096>/<id>`. Ids are dense, so a batch of new blobs affects one directory.
final class DirectoryFiles: Sendable {
    static let idsPerShard: Int64 = 4096
    static let index = "index.sqlite"
    let path: String
    private let root: Int32
    private let blobs: Int32
    private let staging: Int32
    private let lock: Atomic<Int32>

    /// Identifies the file at a path when the directory was opened.
    struct Identity: Equatable, Sendable {
        let device: UInt64
        let inode: UInt64
    }

    /// Opens and locks the directory.
    /// - Parameter create: False if the bucket was served before: an empty directory then means an unmounted disk.
    init(_ path: String, create: Bool) throws(BucketError) {
        self.path = path
        if create { try DirectoryFiles.makeDirectories(path) }
        root = try DirectoryFiles.openDirectory(AT_FDCWD, path, path)
        var held: [Int32] = [root]
        do throws(BucketError) {
            try DirectoryFiles.checkContents(root, path, create: create)
            let locked = try DirectoryFiles.takeLock(root, path)
            held.append(locked)
            lock = Atomic(locked)
            for name in ["blobs", "staging"] where mkdirat(root, name, 0o700) != 0 && errno != EEXIST {
                throw BucketError("mkdir", path + "/" + name)
            }
            blobs = try DirectoryFiles.openDirectory(root, "blobs", path + "/blobs")
            held.append(blobs)
            staging = try DirectoryFiles.openDirectory(root, "staging", path + "/staging")
        } catch {
            for descriptor in held { Glibc.close(descriptor) }
            throw error
        }
    }

    deinit {
        releaseLock()
        for descriptor in [staging, blobs, root] { Glibc.close(descriptor) }
    }

    /// Releases the lock, so that the directory can be opened again. Descriptors remain valid.
    func releaseLock() {
        let held = lock.exchange(-1, ordering: .acquiringAndReleasing)
        if held < 0 { return }
        // Closing is not sufficient while a child process between fork and exec has a copy of the descriptor.
        flock(held, LOCK_UN)
        Glibc.close(held)
    }

    // MARK: Opening

    private static func makeDirectories(_ path: String) throws(BucketError) {
        var prefix = ""
        for (index, part) in path.split(separator: "/", omittingEmptySubsequences: false)
            .enumerated()
        {
            prefix += index == 0 ? String(part) : "/" + part
            if prefix.isEmpty || part.isEmpty { continue }
            if mkdir(prefix, 0o700) == 0 {
                syncDirectory(above: prefix)
            } else if errno != EEXIST && errno != EISDIR {
                throw BucketError("mkdir", prefix)
            }
        }
    }

    private static func syncDirectory(above path: String) {
        let parent = path.lastIndex(of: "/").map { String(path[...$0]) } ?? "."
        let descriptor = Glibc.open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC)
        guard descriptor >= 0 else { return }
        fsync(descriptor)
        Glibc.close(descriptor)
    }

    private static func openDirectory(_ parent: Int32, _ name: String, _ path: String)
        throws(BucketError) -> Int32
    {
        let descriptor = openat(parent, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC)
        if descriptor < 0 { throw BucketError("open", path) }
        return descriptor
    }

    private static func takeLock(_ root: Int32, _ path: String) throws(BucketError) -> Int32 {
        let descriptor = openat(root, "lock", O_RDWR | O_CREAT | O_CLOEXEC, 0o600)
        if descriptor < 0 { throw BucketError("open", path + "/lock") }
        if flock(descriptor, LOCK_EX | LOCK_NB) == 0 { return descriptor }
        let code = errno
        Glibc.close(descriptor)
        throw code == EWOULDBLOCK
            ? BucketError(.unavailable, "\(path) is in use: another process or bucket holds \(path)/lock")
            : BucketError("flock", path + "/lock", code)
    }

    /// Fails if there are blobs but no index: all of them would be treated as leftovers.
    private static func checkContents(_ root: Int32, _ path: String, create: Bool)
        throws(BucketError)
    {
        if faccessat(root, index, F_OK, 0) == 0 { return }
        if errno != ENOENT { throw BucketError("access", path + "/" + index) }
        if !create {
            throw BucketError(
                .unavailable, "\(path) has no \(index): the directory was emptied or replaced")
        }
        let descriptor = openat(root, "blobs", O_RDONLY | O_DIRECTORY | O_CLOEXEC)
        if descriptor < 0 { return }
        if !entries(descriptor).isEmpty {
            throw BucketError(
                .unavailable,
                "\(path) has blobs but no \(index): restore it, or use an empty directory")
        }
    }

    /// Whether a directory has visible files, but none of a bucket's.
    static func hasForeignFiles(_ path: String) -> Bool {
        let descriptor = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC)
        guard descriptor >= 0 else { return false }
        // A new file system has `lost+found`, and desktops leave `.DS_Store` and others.
        let names = Set(
            entries(descriptor).filter { $0.utf8.first != UInt8(ascii: ".") && $0 != "lost+found" }
                .map { BytewiseString($0) })
        return !names.isEmpty
            && names.isDisjoint(with: [BytewiseString(index), "blobs", "staging", "lock"])
    }

    /// The names in a directory. Closes the descriptor.
    private static func entries(_ descriptor: Int32) -> [String] {
        guard let stream = fdopendir(descriptor) else {
            Glibc.close(descriptor)
            return []
        }
        defer { closedir(stream) }
        return File.names(in: stream)
    }

    /// Creates an empty index file with the right mode, which SQLite also uses for the log.
    func createIndex() throws(BucketError) {
        let flags = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC
        let descriptor = openat(root, DirectoryFiles.index, flags, 0o600)
        if descriptor >= 0 {
            Glibc.close(descriptor)
            if fsync(root) != 0 { throw BucketError("fsync", path) }
        } else if errno != EEXIST {
            throw BucketError("open", path + "/" + DirectoryFiles.index)
        }
    }

    // MARK: Health

    func identity() throws(BucketError) -> Identity {
        var status = stat()
        guard lstat(path + "/" + DirectoryFiles.index, &status) == 0 else {
            throw BucketError("stat", path + "/" + DirectoryFiles.index)
        }
        return Identity(device: UInt64(status.st_dev), inode: UInt64(status.st_ino))
    }

    /// Checks the permissions that a write needs, because open descriptors would not notice a change.
    func checkWritable() throws(BucketError) {
        for name in [DirectoryFiles.index, "blobs", "staging"] where faccessat(root, name, W_OK, 0) != 0 {
            throw BucketError("access", path + "/" + name)
        }
    }

    /// The free space of the file system in bytes; the maximum value if unknown.
    func freeBytes() -> UInt64 {
        var status = statvfs()
        guard fstatvfs(root, &status) == 0, status.f_blocks > 0 else { return .max }
        return UInt64(status.f_bavail) * UInt64(status.f_frsize)
    }

    func probe() throws(BucketError) {
        try checkWritable()
        let name = path + "/staging/probe"
        let descriptor = openat(staging, "probe", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0o600)
        if descriptor < 0 { throw BucketError("open", name) }
        defer {
            Glibc.close(descriptor)
            unlinkat(staging, "probe", 0)
        }
        let block = [UInt8](repeating: 0, count: 4096)
        let written = block.withUnsafeBytes { pwrite(descriptor, $0.baseAddress, $0.count, 0) }
        if written < 0 { throw BucketError("write", name) }
        if written < block.count { throw BucketError("write", name, ENOSPC) }
    }

    // MARK: Blobs

    private static func withPath<Result>(_ id: Int64, _ body: (UnsafePointer<CChar>) -> Result)
        -> Result
    {
        "\(id / idsPerShard)/\(id)".withCString(body)
    }

    /// Opens a blob for reading; nil if the file does not exist.
    func openBlob(_ id: Int64) throws(BucketError) -> Int32? {
        let descriptor = DirectoryFiles.withPath(id) { openat(blobs, $0, O_RDONLY | O_CLOEXEC) }
        if descriptor >= 0 { return descriptor }
        if errno == ENOENT { return nil }
        throw BucketError("open", "\(path)/blobs/\(id / DirectoryFiles.idsPerShard)/\(id)")
    }

    /// Creates a blob's file and writes its bytes. The caller syncs and closes it.
    func writeBlob(_ id: Int64, _ bytes: UnsafeRawBufferPointer) throws(BucketError) -> Int32 {
        let name = "\(path)/blobs/\(id / DirectoryFiles.idsPerShard)/\(id)"
        let flags = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC
        let descriptor = try inShard(of: id) {
            DirectoryFiles.withPath(id) { openat(blobs, $0, flags, 0o600) }
        }
        do throws(BucketError) {
            try DirectoryFiles.writeAll(descriptor, bytes, at: 0, name)
            return descriptor
        } catch {
            Glibc.close(descriptor)
            throw error
        }
    }

    /// Opens the file of an upload session for writing, truncated to the acknowledged `offset`.
    func openPart(_ id: Int64, offset: UInt64) throws(BucketError) -> Int32 {
        let name = "\(path)/blobs/\(id / DirectoryFiles.idsPerShard)/\(id)"
        let descriptor = DirectoryFiles.withPath(id) { openat(blobs, $0, O_WRONLY | O_CLOEXEC) }
        if descriptor < 0 { throw BucketError("open", name) }
        var status = stat()
        var code: Int32 = 0
        if fstat(descriptor, &status) != 0
            || status.st_size > offset && ftruncate(descriptor, off_t(offset)) != 0
        {
            code = errno
        }
        if code == 0, status.st_size >= offset { return descriptor }
        Glibc.close(descriptor)
        throw code != 0
            ? BucketError("ftruncate", name, code)
            : BucketError(.internal, "\(name) has \(status.st_size) bytes, but \(offset) were acknowledged")
    }

    /// Opens the blob of an upload in parts.
    func openForParts(_ id: Int64) throws(BucketError) -> Int32 {
        let descriptor = DirectoryFiles.withPath(id) { openat(blobs, $0, O_RDWR | O_CLOEXEC) }
        if descriptor < 0 { throw BucketError("open", "\(path)/blobs/\(id / DirectoryFiles.idsPerShard)/\(id)") }
        return descriptor
    }

    func placeBlob(_ id: Int64, staged: Int64) throws(BucketError) {
        _ = try inShard(of: id) {
            DirectoryFiles.withPath(id) { renameat(staging, String(staged), blobs, $0) }
        }
    }

    /// Moves a blob without a row back to the staging area.
    func unplaceBlob(_ id: Int64, staged: Int64) throws(BucketError) {
        guard DirectoryFiles.withPath(id, { renameat(blobs, $0, staging, String(staged)) }) != 0 else { return }
        throw BucketError("rename", "\(path)/blobs/\(id / DirectoryFiles.idsPerShard)/\(id)")
    }

    /// Runs a call on a blob's path. Creates a missing shard and repeats the call.
    private func inShard(of id: Int64, _ call: () -> Int32) throws(BucketError) -> Int32 {
        var result = call()
        if result < 0 && errno == ENOENT {
            try makeShard(id / DirectoryFiles.idsPerShard)
            result = call()
        }
        if result >= 0 { return result }
        let code = errno
        throw BucketError("create", "\(path)/blobs/\(id / DirectoryFiles.idsPerShard)/\(id)", code)
    }

    private func makeShard(_ shard: Int64) throws(BucketError) {
        let name = String(shard)
        if mkdirat(blobs, name, 0o700) != 0 {
            let code = errno
            if code == EEXIST { return }
            throw BucketError("mkdir", "\(path)/blobs/\(shard)", code)
        }
        if fsync(blobs) == 0 { return }
        let code = errno
        // Otherwise the next blob would rely on a directory entry that a crash can lose.
        unlinkat(blobs, name, AT_REMOVEDIR)
        throw BucketError("fsync", path + "/blobs", code)
    }

    func syncShard(_ shard: Int64) throws(BucketError) {
        let descriptor = try DirectoryFiles.openDirectory(blobs, String(shard), "\(path)/blobs/\(shard)")
        defer { Glibc.close(descriptor) }
        if fsync(descriptor) != 0 { throw BucketError("fsync", "\(path)/blobs/\(shard)") }
    }

    /// Makes the removal of blobs from these shards durable, and removes empty shards. Only the caller creates blobs,
    /// so none appears meanwhile. `current`, the shard of the next blob, is kept.
    func syncRemovals(in shards: Set<Int64>, current: Int64) throws(BucketError) {
        var isShardGone = false
        for shard in shards {
            let isGone =
                shard != current
                && (unlinkat(blobs, String(shard), AT_REMOVEDIR) == 0 || errno == ENOENT)
            if isGone { isShardGone = true } else { try syncShard(shard) }
        }
        if isShardGone && fsync(blobs) != 0 { throw BucketError("fsync", path + "/blobs") }
    }

    /// Removes a blob's file, and returns whether it no longer exists.
    func removeBlob(_ id: Int64) -> Bool {
        DirectoryFiles.withPath(id) { unlinkat(blobs, $0, 0) } == 0 || errno == ENOENT
    }

    // MARK: Staging

    func createStaged(_ id: Int64) throws(BucketError) -> Int32 {
        let flags = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC
        let descriptor = openat(staging, String(id), flags, 0o600)
        if descriptor < 0 { throw BucketError("open", "\(path)/staging/\(id)") }
        return descriptor
    }

    func removeStaged(_ id: Int64) { unlinkat(staging, String(id), 0) }

    static func writeAll(
        _ descriptor: Int32, _ bytes: UnsafeRawBufferPointer, at offset: UInt64, _ name: String
    ) throws(BucketError) {
        var done = 0
        while done < bytes.count {
            let count = pwrite(descriptor, bytes.baseAddress! + done, bytes.count - done, off_t(offset) + done)
            if count > 0 {
                done += count
            } else if count == 0 || errno != EINTR {
                throw BucketError("write", name, count == 0 ? ENOSPC : errno)
            }
        }
    }

    // MARK: Leftovers

    /// Removes the leftovers of an earlier process: all staged files, and blobs unknown to every transaction.
    func removeLeftovers(from next: Int64) {
        for name in DirectoryFiles.entries(
            openat(root, "staging", O_RDONLY | O_DIRECTORY | O_CLOEXEC))
        {
            unlinkat(staging, name, 0)
        }
        let first = next / DirectoryFiles.idsPerShard
        for shard in DirectoryFiles.entries(
            openat(root, "blobs", O_RDONLY | O_DIRECTORY | O_CLOEXEC))
        {
            guard let number = Int64(shard), number >= first else { continue }
            let descriptor = openat(blobs, shard, O_RDONLY | O_DIRECTORY | O_CLOEXEC)
            guard descriptor >= 0 else { continue }
            for name in DirectoryFiles.entries(descriptor) where (Int64(name) ?? -1) >= next {
                unlinkat(blobs, shard + "/" + name, 0)
            }
            // The ids are reused, so a crash may restore a removed directory.
            if number > first { unlinkat(blobs, shard, AT_REMOVEDIR) }
        }
    }
}

extension BucketError {
    init(_ call: String, _ path: String, _ code: Int32 = errno) {
        self.init(
            BucketError.code(of: code), "\(call) \(path): \(String(cString: strerror(code)))")
    }

    static func code(of code: Int32) -> Code {
        switch code {
        case ENOSPC, EDQUOT: .insufficientStorage
        case EMFILE, ENFILE, ENOMEM: .overloaded
        default: .unavailable
        }
    }
}
