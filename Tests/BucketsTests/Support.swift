import Buckets
import EventLoop
import Glibc
import TestSupport
import Testing

/// The ids of the blobs on disk, and the names of the staged files.
func files(of bucket: String) -> (blobs: [String], staged: [String]) {
    let shards = entries(bucket + "/blobs")
    return (
        shards.flatMap { entries(bucket + "/blobs/" + $0) }.sorted(), entries(bucket + "/staging")
    )
}

/// The pool that all tests of the process share.
let sharedPool = BlockingPool(threads: 4)

func openBucket(_ path: String) throws -> DirectoryBucket {
    try DirectoryBucket(path: path, pool: sharedPool, readers: 2)
}

/// Runs a program found on the path and waits for it.
/// - Returns: Its status as reported by waitpid(2), or -1.
@discardableResult
func run(_ arguments: String...) -> Int32 {
    var list = arguments.map { strdup($0) } + [nil]
    defer { for text in list { free(text) } }
    var actions = posix_spawn_file_actions_t()
    posix_spawn_file_actions_init(&actions)
    defer { posix_spawn_file_actions_destroy(&actions) }
    posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0)
    var identifier: pid_t = 0
    guard posix_spawnp(&identifier, arguments[0], &actions, nil, &list, environ) == 0 else {
        return -1
    }
    var status: Int32 = 0
    return waitpid(identifier, &status, 0) == identifier ? status : -1
}

/// A small file system in memory, unmounted with this value.
final class SmallDisk: Sendable {
    private let directory = TemporaryDirectory()
    var path: String { directory.path }

    /// nil if the tests may not mount.
    init?(size: String = "8m") {
        guard run("mount", "-t", "tmpfs", "-o", "size=\(size),mode=0700", "tmpfs", path) == 0 else {
            return nil
        }
    }

    deinit { run("umount", "-l", path) }

    static let isPossible = geteuid() == 0 && SmallDisk() != nil

    func remount(_ options: String) -> Bool { run("mount", "-o", "remount,\(options)", path) == 0 }
}
