import BucketConformance
import Glibc
import TestSupport
import Testing

@testable import Buckets

@Suite("Upload sessions and faults of the disk", .timeLimit(.minutes(5)))
struct SessionFaultTests {
    private func code(_ body: () async throws -> some Any) async -> BucketError.Code? {
        do {
            _ = try await body()
            return nil
        } catch SessionError.store(let error) {
            return error.code
        } catch {
            Issue.record(error)
            return nil
        }
    }

    @Test(
        "A full disk: acknowledged bytes stay, and the rest follows once there is space",
        .enabled(if: SmallDisk.isPossible, "needs root and the right to mount a tmpfs"))
    func fullDisk() async throws {
        let disk = try #require(SmallDisk())
        let path = disk.path + "/bucket"
        try await onLoop {
            let bucket = try openBucket(path)
            let bytes = pattern(6_000_000, seed: 1)
            let session = try await bucket.begin("n")
            var offset = try await session.append(Array(bytes[..<1_000_000]), at: 0)
            #expect(run("fallocate", "-l", "4m", disk.path + "/filler") == 0)
            for _ in 0..<3 {
                let rest = Array(bytes[offset...])
                let failure = await code { try await session.append(rest, at: offset) }
                #expect(failure == .insufficientStorage)
                let now = try await session.offset()
                #expect(now >= offset)
                offset = now
                #expect(try await session.finish().md5 == digest(.md5, Array(bytes[..<offset])))
                let begin = await code { try await bucket.begin("other") }
                #expect(begin == .insufficientStorage)
            }
            // All or nothing gives its space back.
            #expect(unlink(disk.path + "/filler") == 0)
            let before = try await session.offset()
            let whole = try await session.append(
                AppendPlan(at: UInt64(before), isAllOrNothing: true))
            let failure = await code {
                try await whole.fill(pattern(9_000_000, seed: 2))
                return try await whole.end()
            }
            #expect(failure == .insufficientStorage)
            await whole.discard()
            #expect(try await session.offset() == before)
            try await session.append(Array(bytes[before...]), at: before)
            try await session.commitAll()
            let found = try await bucket.get("n")
            #expect(found == bytes)
            await bucket.close()
        }
        try expectNoLeftovers(path)
    }

    @Test(
        "A directory that vanishes during an append: nothing is acknowledged, and nothing is lost when it is back"
    )
    func vanished() async throws {
        let directory = TemporaryDirectory()
        let (path, away) = (directory.path + "/bucket", directory.path + "/away")
        try await onLoop {
            let bucket = try openBucket(path)
            let session = try await bucket.begin("n")
            try await session.append(pattern(50_000, seed: 1), at: 0)
            let append = try await session.append(AppendPlan(at: 50_000))
            try await append.fill(pattern(50_000, seed: 2))
            #expect(rename(path, away) == 0)
            #expect(await code { try await append.end() } == .unavailable)
            #expect(await code { try await session.state() } == .unavailable)
            #expect(await code { try await bucket.openSession(session.id) } == .unavailable)
            #expect(rename(away, path) == 0)
            // What was not acknowledged may be there or not; a client asks.
            let offset = try await session.offset()
            #expect(offset == 50_000)
            let under = try await session.append(AppendPlan(at: 50_000))
            try await under.fill([1])
            // Replaced by itself between two calls: the append began in what is not served any more.
            #expect(rename(path, away) == 0)
            await #expect(throws: BucketError.self) { try await bucket.put("m", [1]) }
            #expect(rename(away, path) == 0)
            #expect(await code { try await under.end() } == .unavailable)
            try await session.append(pattern(50_000, seed: 2), at: 50_000)
            try await session.commitAll()
            let bytes = try await bucket.get("n")
            #expect(bytes == pattern(50_000, seed: 1) + pattern(50_000, seed: 2))
            await bucket.close()
        }
        try expectNoLeftovers(path)
    }
}
