import BucketConformance
import Buckets
import Glibc
import System
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

/// Opens the bucket, runs `body` with it on the loop, and closes it.
func onOpenBucket<Result: Sendable>(
    _ path: String, _ body: @escaping @Sendable (DirectoryBucket) async throws -> Result
) async throws -> Result {
    try await onLoop {
        let bucket = try openBucket(path)
        let result = try await body(bucket)
        await bucket.close()
        return result
    }
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
