import BucketConformance
import Glibc
import OpenSSL
import System
import TestSupport
import Testing

@testable import Buckets

@Suite("Upload sessions of the directory driver", .timeLimit(.minutes(5)))
struct SessionTests {
    let directory = TemporaryDirectory()
    var path: String { directory.path + "/bucket" }

    @Test(arguments: SessionConformance.all)
    func conforms(_ check: SessionConformance.Case) async throws {
        let path = path
        try await check.run { try openBucket(path) }
        try await endSessions()
        try expectNoLeftovers(path)
    }

    /// Cancels what is open, so that no file may be left.
    private func endSessions() async throws {
        try await withBucket { bucket in
            for (id, _) in try await bucket.listSessions(after: nil, limit: 1000) {
                try await bucket.openSession(id).cancel()
            }
        }
    }

    private func withBucket<Result: Sendable>(
        _ body: @escaping @Sendable (DirectoryBucket) async throws -> Result
    ) async throws -> Result {
        try await onOpenBucket(path, body)
    }

    @Test func isPromised() async throws {
        try await withBucket { bucket in #expect(bucket.capabilities().uploadSessions) }
    }

    @Test("A session goes on after the loop of its append has ended")
    func endedLoop() async throws {
        let bucket = try DirectoryBucket(path: path, pool: sharedPool, readers: 1)
        let bytes = pattern(400_000, seed: 1)
        let session = try await onLoop {
            try await bucket.beginSession(
                "o", SessionPlan(UploadPlan(ObjectAttributes()), expires: 4_000_000_000))
        }
        for round in 0..<4 {
            let start = round * 100
            let loop = try EventLoop()
            let thread = startThread { loop.run() }
            let append = try await Task(executorPreference: loop) {
                try await session.append(Array(bytes[start..<start + 100]), at: start)
                let append = try await session.append(AppendPlan(at: UInt64(start + 100)))
                // Other bytes than those that come later. Jobs on the pool may write them after the loop has ended.
                try await append.fill(pattern(100_000, seed: 2))
                return Held(append)
            }.value
            loop.stop()
            pthread_join(thread, nil)
            try await onLoop {
                let offset = try await session.offset()
                #expect(offset == start + 100)
            }
            withExtendedLifetime(append) {}
        }
        try await onLoop {
            try await session.append(Array(bytes[400...]), at: 400)
            try await session.commitAll()
            let reader = try await bucket.open("o", ReadPlan())
            defer { reader.close() }
            let stored = try await readAll(reader, 0..<400_000)
            #expect(stored == bytes)
        }
        await bucket.close()
    }

    @Test("A call does not wait forever for an append whose disk hangs")
    func hangingDisk() async throws {
        let pool = BlockingPool(threads: 1)
        let bucket = try DirectoryBucket(
            path: path, pool: pool, readers: 1, stopLimit: 50_000_000)
        var ends: [Int32] = [-1, -1]
        #expect(pipe(&ends) == 0)
        let (blocked, release) = (ends[0], ends[1])
        try await onLoop {
            let session = try await bucket.beginSession(
                "o", SessionPlan(UploadPlan(ObjectAttributes()), expires: 4_000_000_000))
            let append = try await session.append(AppendPlan(at: 0))
            pool.submit {
                var byte: UInt8 = 0
                _ = read(blocked, &byte, 1)
            }
            try await append.fill(pattern(40_000, seed: 1))
            do throws(SessionError) {
                _ = try await session.state()
                Issue.record("the append has ended")
            } catch {
                guard case .store(let cause) = error, cause.code == .timedOut else { throw error }
            }
            close(release)
            let offset = try await session.offset()
            #expect(offset == 40_000)
            await append.discard()
        }
        close(blocked)
        await bucket.close()
    }

    @Test("A session goes on after the loop of its append has ended, while a disk hangs")
    func endedLoopAndHangingDisk() async throws {
        let pool = BlockingPool(threads: 1)
        let bucket = try DirectoryBucket(path: path, pool: pool, readers: 1)
        var ends: [Int32] = [-1, -1]
        #expect(pipe(&ends) == 0)
        let (blocked, release) = (ends[0], ends[1])
        let session = try await onLoop {
            try await bucket.beginSession(
                "o", SessionPlan(UploadPlan(ObjectAttributes()), expires: 4_000_000_000))
        }
        let loop = try EventLoop()
        let thread = startThread { loop.run() }
        let append = try await Task(executorPreference: loop) {
            let append = try await session.append(AppendPlan(at: 0))
            pool.submit {
                var byte: UInt8 = 0
                _ = read(blocked, &byte, 1)
            }
            try await append.fill(pattern(40_000, seed: 1))
            return Held(append)
        }.value
        loop.stop()
        pthread_join(thread, nil)
        try await onLoop {
            let offset = try await session.offset()
            #expect(offset == 0)
            close(release)
            // The job of the first append, which has not begun before, writes nothing.
            try await session.append(pattern(30_000, seed: 2), at: 0)
            try await session.commitAll()
            let stored = try await bucket.get("o")
            #expect(stored == pattern(30_000, seed: 2))
        }
        withExtendedLifetime(append) {}
        close(blocked)
        await bucket.close()
    }

    @Test("Who abandons the file of an append waits for its job, as long as wanted")
    func abandonedPart() async throws {
        try await withBucket { bucket in
            let session = try await bucket.beginSession(
                "o", SessionPlan(UploadPlan(ObjectAttributes()), expires: 4_000_000_000))
            let outcome = try await bucket.sessionChange(
                .session(.load(session.id), nil), "")
            let row = try #require(outcome.sessions.first)
            let part = try await SessionPart.open(
                row, try await bucket.openDirectory(), sharedPool)
            #expect(part.gate.begin())
            let isEarly = await finishes(within: 20_000_000, on: nil) { await part.abandon() }
            #expect(!isEarly)
            part.gate.end()
            await part.abandon()
            let buffer = UploadBuffer()
            _ = buffer.append([1, 2, 3].span.bytes, expected: nil)
            #expect(throws: BucketError.self) { try part.append(buffer) }
            #expect(part.offset == 0)
            await part.close()
        }
    }

    @Test("Only the commit that creates the object says that it did")
    func repeatedCommit() async throws {
        try await withBucket { bucket in
            let session = try await bucket.beginSession(
                "o", SessionPlan(UploadPlan(ObjectAttributes()), expires: 4_000_000_000))
            let facts = try await session.finish()
            let first = try await session.commit(facts, Preconditions(), resultUntil: .max)
            let second = try await session.commit(facts, Preconditions(), resultUntil: .max)
            #expect(!first.isRepeated && second.isRepeated)
            #expect(first.metadata == second.metadata)
        }
    }

    /// Safety: only kept.
    private struct Held: @unchecked Sendable {
        let append: any SessionAppend
        init(_ append: any SessionAppend) { self.append = append }
    }

    @Test("A saved digest continues at any offset")
    func digests() {
        let bytes = pattern(300, seed: 1)
        for algorithm in Digest.Algorithm.allCases {
            let wanted = digest(algorithm, bytes)
            for cut in 0...130 {
                var first = ResumableDigest(algorithm)
                first.update(bytes.span.bytes.extracting(0..<cut))
                #expect(first.value == digest(algorithm, Array(bytes[..<cut])))
                let saved = first.savedState
                var second = ResumableDigest(algorithm, savedState: saved)
                #expect(second?.savedState == saved)
                second?.update(bytes.span.bytes.extracting(cut..<300))
                #expect(second?.value == wanted, "\(algorithm) cut at \(cut)")
                // What is not a state is none.
                #expect(ResumableDigest(algorithm, savedState: saved.dropLast()) == nil)
                #expect(ResumableDigest(algorithm, savedState: saved + [0]) == nil)
            }
        }
        // Longer than 32 bits count.
        var long = ResumableDigest(.md5).savedState
        long.replaceSubrange(16..<24, with: [0, 0, 0, 3, 0, 0, 0, 0])
        let far = ResumableDigest(.md5, savedState: long)
        #expect(far?.savedState == long)
    }

    @Test("All digests of a session continue from a saved state")
    func allDigests() {
        let bytes = pattern(1000, seed: 1)
        var digests = SessionDigests(Set(DigestAlgorithm.allCases))
        digests.update(bytes.span.bytes.extracting(0..<333))
        var restored = SessionDigests(saved: digests.saved)
        restored?.update(bytes.span.bytes.extracting(333..<1000))
        let facts = restored?.facts(size: 1000)
        let whole = ContentDigests(UploadPlan(digests: Set(DigestAlgorithm.allCases)))
        whole.update(bytes.span.bytes)
        #expect(facts == whole.facts())
        #expect(facts?.digests.count == DigestAlgorithm.allCases.count)
    }

    @Test("An invalid saved state is rejected")
    func foreignDigests() {
        var digests = SessionDigests([.sha256, .sha512])
        digests.update(pattern(200, seed: 1).span.bytes)
        let saved = digests.saved
        #expect(SessionDigests(saved: saved)?.facts(size: 200) == digests.facts(size: 200))
        for count in 0..<saved.count where SessionDigests(saved: Array(saved[..<count])) != nil {
            // Only where a whole digest is missing.
            #expect([5 + 2 + 16 + 8 + 8, saved.count - (2 + 64 + 8 + 72)].contains(count))
        }
        #expect(SessionDigests(saved: saved + [1]) == nil)
        #expect(SessionDigests(saved: [2] + saved.dropFirst()) == nil)
    }

    @Test("Only the text form of an id is parsed")
    func ids() {
        let id = UploadSessionID(expires: 1_700_000_000)
        #expect(UploadSessionID(text: id.text) == id)
        #expect(UploadSessionID(id.bytes) == id)
        let negative = "8" + id.text.dropFirst()
        for text in [
            "", "..", "../../etc/passwd", id.text + "0", String(id.text.dropLast()),
            id.text.uppercased(), "/" + id.text, id.text + "\0", negative,
            String(id.text.dropLast()) + "/", String(repeating: "é", count: 24),
        ] { #expect(UploadSessionID(text: text) == nil, "\(text)") }
        #expect(UploadSessionID(expires: -5).expires == 0)
        #expect(UploadSessionID(expires: .max).expires == .max)
    }

    /// Begins a session of 50,000 bytes, and closes the bucket.
    /// - Returns: Its id, and the path of its file.
    private func begun() async throws -> (UploadSessionID, String) {
        let id = try await withBucket { bucket in
            let session = try await bucket.begin("n")
            try await session.append(pattern(50_000, seed: 1), at: 0)
            return session.id
        }
        return (id, path + "/blobs/0/" + files(of: path).blobs[0])
    }

    @Test("Bytes beyond the durable offset of a killed process do not count")
    func uncountedBytes() async throws {
        let (id, blob) = try await begun()
        for isAppended in [false, true] {
            let descriptor = open(blob, O_WRONLY | O_APPEND)
            #expect(write(descriptor, [UInt8](repeating: 7, count: 9), 9) == 9)
            close(descriptor)
            try await withBucket { bucket in
                let session = try await bucket.openSession(id)
                #expect(try await session.offset() == (isAppended ? 50_001 : 50_000))
                if !isAppended { try await session.append([1], at: 50_000) }
                if isAppended { try await session.commitAll() }
            }
        }
        var status = Glibc.stat()
        #expect(lstat(blob, &status) == 0 && status.st_size == 50_001)
        try await withBucket { bucket in
            let bytes = try await bucket.get("n")
            #expect(bytes == pattern(50_000, seed: 1) + [1])
        }
    }

    @Test("A file that lost acknowledged bytes never becomes an object")
    func lostBytes() async throws {
        let (id, blob) = try await begun()
        #expect(truncate(blob, 49_999) == 0)
        for isMissing in [false, true] {
            if isMissing { #expect(unlink(blob) == 0) }
            try await withBucket { bucket in
                let session = try await bucket.openSession(id)
                let facts = try await session.finish()
                for attempt in 0..<2 {
                    await #expect(throws: SessionError.self) {
                        if attempt == 0 {
                            _ = try await session.append(AppendPlan(at: 50_000))
                        } else {
                            _ = try await session.commit(facts, Preconditions(), resultUntil: .max)
                        }
                    }
                }
                await #expect(throws: BucketError.self) { try await bucket.stat("n") }
            }
        }
        try await endSessions()
        try expectNoLeftovers(path)
    }

    @Test("The bytes of a cancelled or closed session are gone when the call returns")
    func freedAtOnce() async throws {
        let path = path
        try await withBucket { bucket in
            for isClosed in [false, true] {
                let session = try await bucket.begin("n")
                let append = try await session.append(AppendPlan(at: 0))
                try await append.fill(pattern(100_000, seed: 1))
                #expect(files(of: path).blobs.count == 1)
                if isClosed {
                    try await session.close([], until: .max)
                } else {
                    try await session.cancel()
                }
                #expect(files(of: path).blobs == [])
            }
        }
    }

    @Test("A long append is durable in steps, before it ends")
    func checkpoints() async throws {
        try await withBucket { bucket in
            let session = try await bucket.begin("n")
            let block = pattern(1 << 20, seed: 1)
            let append = try await session.append(AppendPlan(at: 0))
            let whole = try await bucket.begin("m")
            let atOnce = try await whole.append(AppendPlan(at: 0, isAllOrNothing: true))
            for _ in 0..<66 {
                try await append.fill(block, step: 1 << 20)
                try await atOnce.fill(block, step: 1 << 20)
            }
            func offsets() async throws -> [String: UInt64] {
                let all = try await bucket.listSessions(after: nil, limit: 9)
                return Dictionary(
                    uniqueKeysWithValues: all.map { ($0.state.name, $0.state.offset) })
            }
            // After as many bytes as a step has. On a slow disk, some were made durable earlier, after an interval.
            try await eventually { try await offsets()["n"] ?? 0 > 0 }
            #expect(try await offsets()["m"] == 0)
            #expect(try await append.end() == 66 << 20)
            await atOnce.discard()
            #expect(try await offsets() == ["n": 66 << 20, "m": 0])
            let step = Digest(.md5)
            for _ in 0..<66 { step.update(block.span.bytes) }
            #expect(try await session.finish().md5 == step.finish())
        }
    }

    @Test("Unused sessions hold no resources")
    func descriptors() async throws {
        try await withBucket { [path] bucket in
            let session = try await bucket.begin("n")
            let before = DirectoryTests.openFiles(below: path).count
            for index in 0..<50 {
                let append = try await session.append(AppendPlan(at: UInt64(index)))
                try await append.fill([UInt8(index)])
                if index % 2 == 0 { _ = try await append.end() }
            }
            #expect(try await session.offset() == 50)
            await eventually { DirectoryTests.openFiles(below: path).count == before }
            weak let gone = try await bucket.begin("m") as? DirectoryUploadSession
            await eventually { gone == nil }
        }
    }

    @Test("Expired sessions that can't be read do not keep the sweep from the others")
    func damagedRow() async throws {
        let now = Lock<Int64>(1_000_000)
        let path = path
        try await onLoop {
            let bucket = try DirectoryBucket(
                path: path, pool: sharedPool, readers: 1,
                clock: { now.withLock { $0 } * 1_000_000 })
            for expires in [1_000_100, 1_000_200] as [Int64] {
                let plan = SessionPlan(UploadPlan(ObjectAttributes()), expires: expires)
                _ = try await bucket.beginSession("n", plan)
            }
            try SQLiteConnection(path + "/index.sqlite", cacheKiB: 512)
                .execute("UPDATE sessions SET offset = -1 WHERE expires = 1000100")
            now.withLock { $0 = 1_000_300 }
            #expect(try await bucket.removeExpiredSessions(limit: 1) == 1)
            #expect(try await bucket.removeExpiredSessions(limit: 1) == 0)
            await bucket.close()
        }
    }

    @Test("A bucket created before sessions existed supports them too")
    func olderIndex() async throws {
        try await withBucket { bucket in _ = try await bucket.put("n", [1]) }
        try SQLiteConnection(path + "/index.sqlite", cacheKiB: 512)
            .execute("DROP TABLE sessions")
        try await withBucket { bucket in
            #expect(try await bucket.get("n") == [1])
            let session = try await bucket.begin("n")
            try await session.append([2], at: 0)
            try await session.commitAll()
            #expect(try await bucket.get("n") == [2])
        }
        try expectNoLeftovers(path)
    }
}
