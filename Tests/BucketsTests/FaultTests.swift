import BucketConformance
import Glibc
import System
import TestSupport
import Testing

@testable import Buckets

private let isNotMountable: Comment = "needs root and the right to mount a tmpfs"

@Suite("Faults of the disk", .timeLimit(.minutes(5)))
struct FaultTests {
    /// Runs `body` on a loop with a bucket at `path`, and closes it.
    private func withBucket(
        _ path: String, _ body: @escaping @Sendable (DirectoryBucket) async throws -> Void
    ) async throws {
        try await onLoop {
            let bucket = try openBucket(path)
            try await body(bucket)
            await bucket.close()
        }
    }

    private func expectCode(
        _ code: BucketError.Code, sourceLocation: SourceLocation = #_sourceLocation,
        _ body: () async throws -> some Any
    ) async {
        do {
            _ = try await body()
            Issue.record("no error", sourceLocation: sourceLocation)
        } catch let error as BucketError {
            #expect(error.code == code, "\(error)", sourceLocation: sourceLocation)
        } catch {
            Issue.record(error, sourceLocation: sourceLocation)
        }
    }

    /// Uses up all free space, down to the last byte.
    private func fill(_ disk: SmallDisk) -> String {
        let path = disk.path + "/filler"
        let descriptor = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0o600)
        defer { close(descriptor) }
        var block = 65_536
        let zeros = [UInt8](repeating: 0, count: block)
        while block > 0 {
            if write(descriptor, zeros, block) <= 0 { block /= 2 }
        }
        return path
    }

    @Test(
        "A full disk: 507 for writes that need space, and recovery once there is some",
        .enabled(if: SmallDisk.isPossible, isNotMountable))
    func fullDisk() async throws {
        let disk = try #require(SmallDisk())
        let path = disk.path + "/bucket"
        try await withBucket(path) { bucket in
            for size in [100, 4000, 10_000, 200_000] {
                try await bucket.put("kept/\(size)", pattern(size, seed: 1))
            }
            for round in 0..<3 {
                let filler = fill(disk)
                for size in [10_000, 300_000] {
                    await expectCode(.insufficientStorage) {
                        try await bucket.put("new", pattern(size, seed: 2))
                    }
                    await expectCode(.insufficientStorage) {
                        try await bucket.put("kept/\(size)", pattern(size, seed: 2))
                    }
                }
                await expectCode(.insufficientStorage) { try await bucket.checkHealth() }
                for size in [100, 4000, 10_000, 200_000] {
                    let bytes = try await bucket.get("kept/\(size)")
                    #expect(bytes == pattern(size, seed: 1))
                }
                await expectCode(.objectNotFound) { try await bucket.stat("new") }
                // The pool removes them later.
                await eventually { files(of: path).staged == [] }
                #expect(unlink(filler) == 0)
                try await bucket.put("after/\(round)", pattern(100_000, seed: 3))
                try await bucket.checkHealth()
            }
        }
        try expectNoLeftovers(path)
    }

    @Test(
        "A disk filled by the bucket itself: only small writes fail, deletions free space",
        .enabled(if: SmallDisk.isPossible, isNotMountable))
    func filledByItself() async throws {
        let disk = try #require(SmallDisk(size: "3m"))
        let path = disk.path + "/bucket"
        try await withBucket(path) { bucket in
            var stored = 0
            await expectCode(.insufficientStorage) {
                while stored < 100_000 {
                    try await bucket.put("small/\(stored)", pattern(4000, seed: UInt64(stored)))
                    stored += 1
                }
            }
            #expect(stored > 100)
            await expectCode(.insufficientStorage) { try await bucket.checkHealth() }
            for index in 0..<stored {
                let bytes = try await bucket.get("small/\(index)")
                #expect(bytes == pattern(4000, seed: UInt64(index)))
            }
            for index in 0..<stored { try await bucket.delete("small/\(index)", Preconditions()) }
            try await bucket.put("again", pattern(4000, seed: 1))
            try await bucket.checkHealth()
        }
        try await withBucket(path) { bucket in try await bucket.checkHealth() }
        try expectNoLeftovers(path)
    }

    /// Stores many objects concurrently. Returns the number that fitted.
    private static func storeAll(_ bucket: DirectoryBucket, _ count: Int) async throws -> Int {
        try await withThrowingTaskGroup(of: Int.self) { group in
            for index in 0..<count {
                group.addTask(executorPreference: EventLoop.current) {
                    do {
                        try await bucket.put("n\(index)", pattern(30_000, seed: UInt64(index)))
                        return 1
                    } catch let error as BucketError {
                        #expect(error.code == .insufficientStorage)
                        return 0
                    }
                }
            }
            var stored = 0
            for try await one in group { stored += one }
            return stored
        }
    }

    @Test(
        "In a batch that does not fit as a whole, the changes that fit succeed",
        .enabled(if: SmallDisk.isPossible, isNotMountable))
    func batchOnFullDisk() async throws {
        let disk = try #require(SmallDisk(size: "3m"))
        let path = disk.path + "/bucket"
        try await withBucket(path) { bucket in
            let stored = try await Self.storeAll(bucket, 300)
            #expect(stored > 20 && stored < 200)
            let query = ListQuery(prefix: "", delimited: false, limit: 1000)
            let names = try await bucket.list(query, after: nil).items
            #expect(names.count == stored)
            for name in names {
                let bytes = try await bucket.get(name)
                #expect(bytes == pattern(30_000, seed: UInt64(name.dropFirst())!))
            }
        }
        try expectNoLeftovers(path)
    }

    @Test(
        "A read-only directory can't be opened, and the error says so",
        .enabled(if: SmallDisk.isPossible, isNotMountable))
    func readOnly() async throws {
        let disk = try #require(SmallDisk())
        let path = disk.path + "/bucket"
        try await withBucket(path) { bucket in _ = try await bucket.put("n", [1]) }
        #expect(disk.remount("ro"))
        await expectCode(.unavailable) { try openBucket(path) }
        #expect(disk.remount("rw"))
        try await withBucket(path) { bucket in
            let bytes = try await bucket.get("n")
            #expect(bytes == [1])
        }
    }

    @Test(
        "A directory that becomes immutable: reads continue, writes fail, and both recover",
        .enabled(if: SmallDisk.isPossible, isNotMountable))
    func immutable() async throws {
        let disk = try #require(SmallDisk())
        let path = disk.path + "/bucket"
        try await withBucket(path) { bucket in
            try await bucket.put("n", pattern(10_000, seed: 1))
            for name in ["index.sqlite", "blobs", "staging"] {
                // Kernels before 6.6 do not support this flag on tmpfs.
                guard run("chattr", "+i", path + "/" + name) == 0 else { return }
                for size in [10, 10_000] {
                    await expectCode(.unavailable) {
                        try await bucket.put("new", pattern(size, seed: 1))
                    }
                }
                await expectCode(.unavailable) { try await bucket.delete("n", Preconditions()) }
                await expectCode(.unavailable) { try await bucket.checkHealth() }
                let bytes = try await bucket.get("n")
                #expect(bytes == pattern(10_000, seed: 1))
                #expect(run("chattr", "-i", path + "/" + name) == 0)
                try await bucket.checkHealth()
                try await bucket.put("new/\(name)", pattern(70_000, seed: 1))
            }
        }
        try expectNoLeftovers(path)
    }

    @Test("A directory that vanishes is unavailable, and healthy again when it is back")
    func vanished() async throws {
        let directory = TemporaryDirectory()
        let (path, away) = (directory.path + "/bucket", directory.path + "/away")
        try await withBucket(path) { bucket in
            try await bucket.put("small", pattern(10, seed: 1))
            try await bucket.put("large", pattern(100_000, seed: 1))
            for round in 0..<3 {
                let reader = try await bucket.open("large", ReadPlan())
                let upload = try await bucket.filledUpload("under way", pattern(200_000, seed: 1))
                #expect(rename(path, away) == 0)
                await expectCode(.unavailable) { try await bucket.put("new", [1]) }
                await expectCode(.unavailable) {
                    try await bucket.put("new", pattern(9000, seed: 1))
                }
                await expectCode(.unavailable) { try await bucket.delete("small", Preconditions()) }
                await expectCode(.unavailable) { try await bucket.open("large", ReadPlan()) }
                await expectCode(.unavailable) { try await bucket.stat("small") }
                await expectCode(.unavailable) { try await bucket.checkHealth() }
                await expectCode(.unavailable) {
                    _ = try await upload.finish()
                    return try await upload.commit(Preconditions())
                }
                // An open object stays readable.
                let bytes = try await readAll(reader, 0..<100_000)
                #expect(bytes == pattern(100_000, seed: 1))
                // No new directory was created.
                #expect(access(path, F_OK) != 0)
                #expect(rename(away, path) == 0)
                try await bucket.checkHealth()
                let large = try await bucket.get("large")
                #expect(large == pattern(100_000, seed: 1))
                try await bucket.put("after/\(round)", pattern(10_000, seed: 2))
            }
        }
        try expectNoLeftovers(path)
    }

    @Test("A lookup detects that the directory is gone")
    func vanishedForReaders() async throws {
        let directory = TemporaryDirectory()
        let (path, away) = (directory.path + "/bucket", directory.path + "/away")
        try await withBucket(path) { bucket in
            try await bucket.put("small", [1])
            #expect(rename(path, away) == 0)
            await eventually {
                do {
                    _ = try await bucket.stat("small")
                    return false
                } catch { return true }
            }
            await expectCode(.unavailable) { try await bucket.stat("small") }
            #expect(rename(away, path) == 0)
            let bytes = try await bucket.get("small")
            #expect(bytes == [1])
        }
    }

    @Test(
        "Another bucket at the same path is served; an empty directory is not treated as a bucket")
    func replaced() async throws {
        let directory = TemporaryDirectory()
        let (path, other) = (directory.path + "/bucket", directory.path + "/other")
        try await withBucket(other) { bucket in
            _ = try await bucket.put("n", pattern(5000, seed: 2))
        }
        try await withBucket(path) { bucket in
            try await bucket.put("n", pattern(5000, seed: 1))
            #expect(rename(path, directory.path + "/first") == 0)
            #expect(mkdir(path, 0o700) == 0)
            await expectCode(.unavailable) { try await bucket.put("new", [1]) }
            await expectCode(.unavailable) { try await bucket.checkHealth() }
            #expect(entries(path) == [])
            removeTree(path)
            #expect(rename(other, path) == 0)
            try await bucket.checkHealth()
            let bytes = try await bucket.get("n")
            #expect(bytes == pattern(5000, seed: 2))
            try await bucket.put("m", pattern(5000, seed: 3))
            // Exchanged between two calls, so that no name was ever missing.
            #expect(rename(path, other) == 0)
            #expect(rename(directory.path + "/first", path) == 0)
            await expectCode(.objectNotFound) { try await bucket.delete("m", Preconditions()) }
            let first = try await bucket.get("n")
            #expect(first == pattern(5000, seed: 1))
            #expect(rename(path, directory.path + "/first") == 0)
            #expect(rename(other, path) == 0)
        }
        for name in ["/bucket", "/first"] { try expectNoLeftovers(directory.path + name) }
        try await withBucket(directory.path + "/first") { bucket in
            let bytes = try await bucket.get("n")
            #expect(bytes == pattern(5000, seed: 1))
        }
    }

    @Test("Objects whose blobs vanish are unavailable until the blobs are back")
    func blobsVanished() async throws {
        let directory = TemporaryDirectory()
        let path = directory.path + "/bucket"
        try await withBucket(path) { bucket in
            try await bucket.put("n", pattern(10_000, seed: 1))
            #expect(rename(path + "/blobs", path + "/gone") == 0)
            await expectCode(.unavailable) { try await bucket.checkHealth() }
            await expectCode(.unavailable) { try await bucket.put("m", pattern(10_000, seed: 1)) }
            #expect(rename(path + "/gone", path + "/blobs") == 0)
            try await bucket.checkHealth()
            try await bucket.put("m", pattern(10_000, seed: 1))
            let bytes = try await bucket.get("n")
            #expect(bytes == pattern(10_000, seed: 1))
        }
    }
}
