import BucketConformance
import Glibc
import Synchronization
import System
import TestSupport
import Testing

@testable import Buckets

@Suite("A bucket in a directory", .timeLimit(.minutes(5)))
struct DirectoryTests {
    let directory = TemporaryDirectory()
    var path: String { directory.path + "/new/bucket" }

    private func mode(_ name: String) -> UInt32 {
        var status = Glibc.stat()
        return lstat(path + name, &status) == 0 ? status.st_mode & 0o777 : 0
    }

    /// Runs `body` on a loop with the bucket, and closes it.
    private func withBucket<Result: Sendable>(
        _ body: @escaping @Sendable (DirectoryBucket) async throws -> Result
    ) async throws -> Result {
        try await onOpenBucket(path, body)
    }

    private func expectRejected(_ words: String, sourceLocation: SourceLocation = #_sourceLocation) {
        do {
            _ = try openBucket(path)
            Issue.record("opened", sourceLocation: sourceLocation)
        } catch {
            #expect("\(error)".contains(words), sourceLocation: sourceLocation)
        }
    }

    @Test("Created files are accessible only to the owner")
    func modes() async throws {
        try await withBucket { [path] bucket in
            try await bucket.put("n", pattern(10_000, seed: 1))
            #expect(
                entries(path) == [
                    "blobs", "index.sqlite", "index.sqlite-shm", "index.sqlite-wal", "lock",
                    "staging",
                ])
        }
        for name in ["", "/blobs", "/blobs/0", "/staging"] { #expect(mode(name) == 0o700) }
        for name in ["/lock", "/index.sqlite", "/blobs/0/1"] { #expect(mode(name) == 0o600) }
    }

    @Test("Everything is present after reopening")
    func reopening() async throws {
        let before = try await withBucket { bucket in
            var all: [ObjectMetadata] = []
            for size in [0, 10, 10_000, 200_000] {
                let attributes = ObjectAttributes(
                    contentType: "a/b", cacheControl: "c", customMetadata: ["ä": "ö"])
                all.append(
                    try await bucket.put("n\(size)", pattern(size, seed: 1), attributes).metadata)
            }
            return all
        }
        try await withBucket { bucket in
            for metadata in before {
                #expect(try await bucket.stat(metadata.name) == metadata)
                let bytes = try await bucket.get(metadata.name)
                #expect(bytes == pattern(Int(metadata.size), seed: 1))
            }
        }
        try expectNoLeftovers(path)
    }

    @Test("The index of an older version opens, and gets what it lacks")
    func olderIndex() async throws {
        let custom = StoredPairs.encode([
            "k": "v", "Sluice-X": "y", "firebaseStorageDownloadTokens": "z",
        ])
        let system = SystemMetadata(
            downloadTokens: ["a", "b"], uploadSession: UploadSessionID(expires: 7))
        try await withBucket { bucket in _ = try await bucket.put("n", [1, 2, 3]) }
        do {
            let index = try SQLiteConnection(path + "/index.sqlite", cacheKiB: 512)
            try index.execute("ALTER TABLE objects DROP COLUMN system")
            try index.execute("ALTER TABLE sessions DROP COLUMN system")
            for column in ["objects", "bytes"] {
                try index.execute("ALTER TABLE state DROP COLUMN \(column)")
            }
            let statement = try SQLiteStatement(index, "UPDATE objects SET custom = ?1")
            statement.bind(1, blob: custom)
            try statement.run()
        }
        for usage in [DirectoryUsage(objects: 1, bytes: 3), DirectoryUsage(objects: 2, bytes: 4)] {
            try await withBucket { bucket in
                #expect(bucket.usage == usage)
                let old = try await bucket.stat("n").attributes
                #expect(old == ObjectAttributes(customMetadata: ["k": "v"]))
                let new = ObjectAttributes(contentType: "a/b", system: system)
                try await bucket.put("new", [1], new)
                #expect(try await bucket.stat("new").attributes == new)
            }
        }
        try await withBucket { bucket in
            let found = try await bucket.stat("new").attributes.system
            #expect(found == system)
        }
    }

    @Test("Only one bucket at a time opens the directory")
    func lock() async throws {
        try await withBucket { _ in expectRejected("in use") }
        try await withBucket { bucket in try await bucket.checkHealth() }
    }

    @Test("An index of another program or a newer version is rejected and not changed")
    func foreignIndex() async throws {
        try await withBucket { bucket in _ = try await bucket.put("n", [1]) }
        let index = path + "/index.sqlite"
        for (change, undo) in [
            ("PRAGMA user_version = 99", "PRAGMA user_version = 1"),
            (
                "PRAGMA application_id = 1",
                "PRAGMA application_id = \(IndexSchema.applicationID)"
            ),
        ] {
            try SQLiteConnection(index, cacheKiB: 512).execute(change)
            expectRejected("another program or a newer version")
            try SQLiteConnection(index, cacheKiB: 512).execute(undo)
        }
        #expect(try await withBucket { bucket in try await bucket.get("n") } == [1])
        let descriptor = open(index, O_WRONLY | O_TRUNC)
        #expect(write(descriptor, "not a database, by far too short of one", 39) == 39)
        close(descriptor)
        expectRejected("another program or a newer version")
    }

    @Test("Blobs without an index are not treated as leftovers")
    func blobsWithoutIndex() async throws {
        try await withBucket { bucket in _ = try await bucket.put("n", pattern(9000, seed: 1)) }
        for name in entries(path) where name.hasPrefix("index") { unlink(path + "/" + name) }
        expectRejected("blobs but no index.sqlite")
        #expect(files(of: path).blobs == ["1"])
    }

    @Test("Leftovers of every kind are collected at the start")
    func leftovers() async throws {
        try await withBucket { bucket in
            for index in 0..<3 { try await bucket.put("n\(index)", pattern(9000, seed: 1)) }
        }
        func make(_ name: String) {
            let descriptor = open(path + name, O_WRONLY | O_CREAT, 0o600)
            #expect(descriptor >= 0)
            close(descriptor)
        }
        // Not in any transaction: in this shard and, as after many failures, in a later one.
        for name in ["/blobs/0/4", "/blobs/0/77", "/staging/12", "/staging/probe"] { make(name) }
        mkdir(path + "/blobs/3", 0o700)
        make("/blobs/3/12288")
        // In the garbage table, as if the process was killed before the removal.
        try SQLiteConnection(path + "/index.sqlite", cacheKiB: 512).execute(
            """
            DELETE FROM objects WHERE name = 'n1'; INSERT INTO garbage VALUES (2);
            UPDATE state SET objects = 2, bytes = 18000
            """)
        try await withBucket { bucket in
            for name in ["n0", "n2"] {
                let bytes = try await bucket.get(name)
                #expect(bytes == pattern(9000, seed: 1))
            }
        }
        try expectNoLeftovers(path)
        #expect(files(of: path).blobs == ["1", "3"])
        #expect(
            try SQLiteConnection(path + "/index.sqlite", cacheKiB: 512)
                .integer("SELECT count(*) FROM garbage") == 0)
    }

    @Test("Replaced, deleted, rejected and aborted objects leave no file")
    func garbage() async throws {
        try await withBucket { [path] bucket in
            for round in 0..<5 {
                for size in [5000, 100_000] {
                    try await bucket.put("n\(size)", pattern(size, seed: UInt64(round)))
                    try await bucket.put("deleted", pattern(size, seed: 1))
                    try await bucket.delete("deleted", Preconditions())
                    var mustBeNew = Preconditions()
                    mustBeNew.generation = 0
                    await #expect(throws: BucketError.self) {
                        try await bucket.put(
                            "n\(size)", pattern(size, seed: 7), ObjectAttributes(), mustBeNew)
                    }
                    try await bucket.filledUpload("x", pattern(size, seed: 2)).abort()
                    let finished = try await bucket.filledUpload("x", pattern(size, seed: 2))
                    _ = try await finished.finish()
                    finished.abort()
                    _ = try await bucket.filledUpload("x", pattern(size, seed: 2))
                }
            }
            // Files are removed while the bucket runs, not only at the next start.
            await eventually { files(of: path).blobs.count == 2 && files(of: path).staged == [] }
        }
        try expectNoLeftovers(path)
    }

    @Test("Garbage rows are removed from their table")
    func garbageRows() async throws {
        let rounds = DirectoryCommitter.garbageBatch + 200
        try await withBucket { bucket in
            for round in 0..<rounds {
                try await bucket.put("n", pattern(4100 + round % 3, seed: 1))
            }
        }
        let rows = try SQLiteConnection(path + "/index.sqlite", cacheKiB: 512)
            .integer("SELECT count(*) FROM garbage")
        #expect(rows < 400)
        try expectNoLeftovers(path)
    }

    /// Makes `next` the id of the closed bucket's next blob.
    private func skipBlobs(to next: Int64) throws {
        try SQLiteConnection(path + "/index.sqlite", cacheKiB: 512)
            .execute("UPDATE state SET next_blob = \(next)")
    }

    @Test("A shard is removed with its last blob, while the bucket is served and at its start")
    func emptyShards() async throws {
        try await withBucket { _ in }
        try skipBlobs(to: DirectoryFiles.idsPerShard - 1)
        try await withBucket { [path] bucket in
            try await bucket.put("first", pattern(5000, seed: 1))
            try await bucket.put("second", pattern(5000, seed: 1))
            #expect(entries(path + "/blobs") == ["0", "1"])
            for round in 0..<DirectoryCommitter.garbageBatch + 5 {
                try await bucket.put("first", pattern(5000, seed: UInt64(round)))
            }
            #expect(entries(path + "/blobs") == ["1"])
            try await bucket.put("last", pattern(5000, seed: 1))
        }
        try skipBlobs(to: 2 * DirectoryFiles.idsPerShard)
        try await withBucket { bucket in
            for name in ["first", "second", "last"] {
                try await bucket.put(name, pattern(5000, seed: 2))
            }
        }
        try await withBucket { [path] bucket in
            #expect(entries(path + "/blobs") == ["2"])
            for name in ["first", "second", "last"] {
                let bytes = try await bucket.get(name)
                #expect(bytes == pattern(5000, seed: 2))
                try await bucket.delete(name, Preconditions())
            }
            try await bucket.put("again", pattern(5000, seed: 3))
        }
        try expectNoLeftovers(path)
    }

    @Test("A blob that can't be moved into place reports the reason")
    func placingFails() async throws {
        try await withBucket { bucket in _ = try await bucket.put("n", pattern(9000, seed: 1)) }
        let files = try DirectoryFiles(path, create: false)
        do throws(BucketError) {
            try files.placeBlob(9, staged: 1)
            Issue.record("placed")
        } catch {
            #expect(error.cause.contains("blobs/0/9: No such file or directory"), "\(error)")
        }
    }

    @Test("A lack of memory or descriptors is not an error of the store")
    func exhausted() {
        #expect(BucketError("open", "/x", EMFILE).code == .overloaded)
        #expect(BucketError("open", "/x", ENOMEM).code == .overloaded)
        #expect(BucketError("open", "/x", EDQUOT).code == .insufficientStorage)
        #expect(BucketError("open", "/x", EIO).code == .unavailable)
    }

    @Test("Lists omit names that are not UTF-8, and end")
    func namesThatAreNoText() async throws {
        try await withBucket { bucket in
            for name in ["a", "b/x", "m/y", "z"] { try await bucket.put(name, [1]) }
        }
        let index = try SQLiteConnection(path + "/index.sqlite", cacheKiB: 512)
        for name in ["80", "61ff", "622fff", "6dff2f31", "6dff2f32", "ff", "ffff2f31", "edA080"] {
            try index.execute(
                """
                INSERT INTO objects(\(IndexSchema.columns), name) SELECT generation, 1, size, 0, 0,
                md5, 0, blob, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
                CAST(x'\(name)' AS TEXT)
                FROM objects WHERE name = 'a'
                """)
        }
        try await withBucket { bucket in
            for (delimited, wanted) in [
                (false, ["a", "b/x", "m/y", "z"]), (true, ["a", "b/", "m/", "z"]),
            ] {
                for limit in 1...5 {
                    var (found, end): ([String], String?) = ([], nil)
                    for _ in 0..<10 {
                        let page = try await bucket.list(
                            ListQuery(prefix: "", delimited: delimited, limit: limit), after: end)
                        found += (page.items + page.prefixes).sorted()
                        end = page.end
                        if end == nil { break }
                    }
                    #expect(end == nil)
                    #expect(found == wanted)
                }
            }
        }
    }

    @Test("Concurrent writes share their syncs")
    func groupCommit() async throws {
        let batches = try await withBucket { bucket in
            try await withThrowingTaskGroup(of: Void.self) { group in
                for index in 0..<400 {
                    group.addTask(executorPreference: EventLoop.current) {
                        try await bucket.put("n\(index)", pattern(index * 20, seed: 1))
                    }
                }
                try await group.waitForAll()
            }
            for index in 0..<400 {
                #expect(try await bucket.get("n\(index)") == pattern(index * 20, seed: 1))
            }
            return bucket.batches
        }
        #expect(batches < 200)
        try expectNoLeftovers(path)
    }

    @Test("Generations rise even if the clock stops or goes back, also across restarts")
    func clock() async throws {
        let path = path
        for (time, start) in [(5_000_000, 5_000_000), (1000, 5_000_003), (6_000_000, 6_000_000)]
            as [(Int64, Int64)]
        {
            try await onLoop {
                let bucket = try DirectoryBucket(
                    path: path, pool: sharedPool, readers: 1, clock: { time })
                for step in 0..<3 {
                    let metadata = try await bucket.put("n", [1]).metadata
                    #expect(metadata.generation == start + Int64(step))
                    #expect(metadata.etag == String(metadata.generation))
                    #expect(metadata.created == time / 1000)
                }
                await bucket.close()
            }
        }
    }

    @Test("An upload holds at most two buffers, and accepts nothing while both are full")
    func backPressure() async throws {
        let path = path
        let gate = Lock(0)
        let pool = BlockingPool(threads: 1)
        try await onLoop {
            let bucket = try DirectoryBucket(path: path, pool: pool, readers: 1)
            let bytes = pattern(1 << 20, seed: 3)
            let upload = try await bucket.beginUpload("n", UploadPlan())
            // The pool's only thread is blocked, so nothing can be written.
            let taken = try gate.withLock { _ in
                pool.submit { gate.withLock { _ in } }
                let taken = try upload.write(bytes.span.bytes)
                #expect(try upload.write(bytes.span.bytes.extracting(taken..<bytes.count)) == 0)
                return taken
            }
            #expect(taken == 2 * UploadBuffer.limit)
            var offset = taken
            while offset < bytes.count {
                await withCheckedContinuation { waiter in
                    upload.whenWritable {
                        #expect(EventLoop.current != nil)
                        waiter.resume()
                    }
                }
                offset += try upload.write(bytes.span.bytes.extracting(offset..<bytes.count))
            }
            _ = try await upload.finish()
            _ = try await upload.commit(Preconditions())
            #expect(try await bucket.get("n") == bytes)
            await bucket.close()
        }
        pool.shutdown()
    }

    @Test("A buffer grows with its bytes up to its limit")
    func bufferGrowth() {
        let buffer = UploadBuffer()
        #expect(buffer.append(pattern(3, seed: 1).span.bytes, expected: nil) == 3)
        #expect(buffer.capacity == 1024)
        let declared = UploadBuffer()
        _ = declared.append(([1] as [UInt8]).span.bytes, expected: 300)
        #expect(declared.capacity == 300)
        let large = pattern(70_000, seed: 1)
        #expect(declared.append(large.span.bytes, expected: 300) == UploadBuffer.limit - 1)
        #expect(declared.append(large.span.bytes, expected: 300) == 0)
        #expect(declared.capacity == UploadBuffer.limit)
        let taken = large[..<(UploadBuffer.limit - 1)]
        #expect(declared.withBytes { $0[0] == 1 && $0.dropFirst().elementsEqual(taken) })
    }

    /// The open descriptors of files below a directory, including removed files.
    static func openFiles(below path: String) -> [String] {
        entries("/proc/self/fd").compactMap { descriptor in
            var buffer = [UInt8](repeating: 0, count: 4096)
            let count = buffer.withUnsafeMutableBytes {
                readlink(
                    "/proc/self/fd/" + descriptor,
                    $0.baseAddress!.assumingMemoryBound(to: CChar.self),
                    $0.count)
            }
            guard count > 0 else { return nil }
            let target = String(decoding: buffer[..<count], as: UTF8.self)
            return target.hasPrefix(path) ? target : nil
        }
    }

    @Test("Descriptors are closed, whatever happens to an object")
    func descriptors() async throws {
        try await withBucket { [path] bucket in
            try await bucket.put("n", pattern(100_000, seed: 1))
            for _ in 0..<5 {
                _ = try await bucket.open("n", ReadPlan())
                _ = try await bucket.open("n", ReadPlan()).bytes(0..<10)
                let reader = try await bucket.open("n", ReadPlan())
                reader.close()
                reader.close()
                _ = try await bucket.get("n", 5..<70_000)
                _ = try await bucket.filledUpload("dropped", pattern(100_000, seed: 1))
                try await bucket.filledUpload("aborted", pattern(100_000, seed: 1)).abort()
            }
            let held = try await bucket.open("n", ReadPlan())
            await eventually { Self.openFiles(below: path + "/blobs/0/").count == 1 }
            await eventually { Self.openFiles(below: path + "/staging/").isEmpty }
            held.close()
            await eventually { Self.openFiles(below: path + "/blobs/0/").isEmpty }
        }
        await eventually { Self.openFiles(below: path).isEmpty }
    }

    @Test("More objects than the readers cache are distinguished, before and after a change")
    func manyNames() async throws {
        try await withBucket { bucket in
            let count = 700
            for round in 0..<2 {
                for index in 0..<count where index % (round + 1) == 0 {
                    try await bucket.put("n\(index)", [UInt8(round), UInt8(index & 255)])
                }
                for _ in 0..<2 {
                    for index in 0..<count {
                        let bytes = try await bucket.get("n\(index)")
                        let last = index % (round + 1) == 0 ? round : 0
                        #expect(bytes == [UInt8(last), UInt8(index & 255)])
                        #expect(try await bucket.stat("n\(index)").name == "n\(index)")
                    }
                }
            }
        }
    }
}

@Suite("The cost of a list", .timeLimit(.minutes(5)))
struct ListCostTests {
    /// Fills the index of a closed bucket with rows: `count / 2` in one folder, and as many in folders of two.
    private func fill(_ path: String, _ count: Int) throws {
        let connection = try SQLiteConnection(path + "/index.sqlite", cacheKiB: 65_536)
        for name in ["printf('flat/%07d', n)", "printf('deep/%07d/', n / 2) || (n % 2)"] {
            try connection.execute(
                """
                WITH RECURSIVE numbers(n) AS
                    (SELECT 0 UNION ALL SELECT n + 1 FROM numbers WHERE n + 1 < \(count / 2))
                INSERT INTO objects(\(IndexSchema.columns), name)
                SELECT n, 1, 0, 0, 0, x'', 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, \(name)
                FROM numbers
                """)
        }
    }

    @Test("A page of 1,000 costs the same among 1,000,000 objects as among 10,000")
    func pageCost() async throws {
        var costs: [[Int]] = []
        for count in [10_000, 1_000_000] {
            // In memory if possible: writing a hundred megabytes to a disk would delay every other test's syncs.
            let directory = TemporaryDirectory(
                below: access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp")
            let path = directory.path
            try await onLoop { try await openBucket(path).close() }
            try fill(path, count)
            costs.append(
                try await onLoop {
                    let bucket = try openBucket(path)
                    var costs: [Int] = []
                    for (prefix, delimited, after, entries) in [
                        ("", true, nil, 2), ("", false, nil, 1000), ("flat/", true, nil, 1000),
                        ("flat/", true, "flat/0002000", 1000), ("deep/", true, nil, 1000),
                        ("deep/", true, "deep/0000500/", 1000), ("deep/0000007/", true, nil, 2),
                        ("none/", true, nil, 0), ("flat/0000", false, "flat/0000990", 9),
                    ] as [(String, Bool, String?, Int)] {
                        let query = ListQuery(prefix: prefix, delimited: delimited, limit: 1000)
                        let (page, steps) = try await bucket.listMeasured(query, after: after)
                        #expect(page.items.count + page.prefixes.count == entries)
                        costs.append(steps)
                    }
                    await bucket.close()
                    return costs
                })
        }
        #expect(costs[0] == costs[1])
        #expect(costs[1].allSatisfy { $0 < 20_000 })
    }
}
