import BucketConformance
import HTTPClient
import Testing
import XML

@testable import Buckets

@Suite("Upload sessions of the S3 driver", .serialized, .timeLimit(.minutes(10)))
struct S3SessionTests {
    /// The servers that evaluate the conditions of writes.
    static let servers: [S3Server] = [.moto, .seaweedfs]

    @Test(.enabled(if: S3Server.directory != nil), arguments: servers)
    func conforms(_ server: S3Server) async throws {
        let running = try RunningServer(server)
        for check in SessionConformance.all {
            note("\(server): \(check)")
            let name = try await onLoop {
                let bucket = try await running.makeBucket()
                #expect(try await bucket.capabilities().uploadSessions)
                await bucket.close()
                return bucket.settings.bucket
            }
            do {
                try await check.run { running.openBucket(name) }
            } catch {
                Issue.record("\(server): \(check): \(error)")
            }
            try await expectNothingLeft(running, name)
        }
    }

    /// Cancels all sessions, and expects neither parts nor hidden objects.
    private func expectNothingLeft(_ running: RunningServer, _ name: String) async throws {
        try await onLoop {
            let bucket = running.openBucket(name)
            for (id, _) in try await bucket.listSessions(after: nil, limit: 1000) {
                try await bucket.openSession(id).cancel()
            }
            let names = try await bucket.listHidden(HiddenName.reserved, after: nil)
            #expect(names == [])
            #expect(try await Self.uploads(bucket) == 0)
            await bucket.close()
        }
    }

    /// The number of multipart uploads in progress.
    static func uploads(_ bucket: S3Bucket) async throws -> Int {
        let response = try await bucket.call(
            ClientRequest("GET", bucket.target(nil, "uploads=")))
        var count = 0
        try XMLReader.read(response.body) { parent, name, _ in
            if (parent, name) == ("Upload", "UploadId") { count += 1 }
        }
        return count
    }

    @Test(.enabled(if: S3Server.directory != nil))
    func withoutConditionalWritesThereAreNone() async throws {
        let running = try RunningServer(.rclone)
        try await onLoop {
            let bucket = try await running.makeBucket()
            #expect(try await bucket.capabilities().uploadSessions == false)
            do {
                _ = try await bucket.begin("n")
                Issue.record("a session begins")
            } catch SessionError.store(let error) {
                #expect(error.code == .unsupported)
            }
            await bucket.close()
        }
    }

    @Test(
        "An upload of several parts, by appends of all sizes on two gateways",
        .enabled(if: S3Server.directory != nil))
    func parts() async throws {
        let running = try RunningServer(.moto)
        try await onLoop {
            let first = try await running.makeBucket { $0.minimumPart = 5 << 20 }
            let second = running.openBucket(first.settings.bucket) { $0.minimumPart = 5 << 20 }
            let bytes = pattern(17_000_000, seed: 1)
            let id = try await first.begin("n", digests: [.sha256]).id
            var offset = 0
            for (index, end) in [1, 70_000, 200_000, 6_000_000, 6_000_001, 16_900_000, 17_000_000]
                .enumerated()
            {
                let bucket = index % 3 == 1 ? second : first
                let session = try await bucket.openSession(id)
                #expect(try await session.offset() == offset)
                offset = try await session.append(Array(bytes[offset..<end]), at: offset)
                #expect(offset == end)
            }
            let session = try await second.openSession(id)
            let facts = try await session.finish()
            #expect(facts.md5 == digest(.md5, bytes))
            #expect(facts.digests[.sha256] == digest(.sha256, bytes))
            let result = try await session.commitAll()
            #expect(try await first.openSession(id).commitAll().metadata == result.metadata)
            #expect(try await first.stat("n") == result.metadata)
            let stored = try await first.get("n")
            #expect(stored == bytes)
            await first.close()
            await second.close()
        }
    }

    @Test func sizesOfParts() {
        let sizes = S3PartSizes(minimum: 5 << 20, maximum: 5 << 30)
        // 5 TiB, with known and unknown length, and with a number skipped now and then.
        for (length, isKnown) in [(UInt64(5) << 40, true), (UInt64(5_000_000_000_000), false)] {
            var (sent, number) = (UInt64(0), UInt64(1))
            while sent < length, number <= sizes.count {
                let size = sizes.size(ofPart: number, length: isKnown ? length : nil, sent: sent)
                #expect(size >= 5 << 20 && size <= 5 << 30)
                sent += min(size, length - sent)
                number += isKnown && number % 25 == 0 ? 2 : 1
            }
            #expect(sent == length)
        }
        // Small objects have small parts, and large ones equal parts.
        #expect(sizes.size(ofPart: 1, length: 10, sent: 0) == 5 << 20)
        let large = (UInt64(1) << 40)
        let first = sizes.size(ofPart: 1, length: large, sent: 0)
        #expect(first % (1 << 20) == 0)
        #expect(sizes.size(ofPart: 2, length: large, sent: first) == first)
        #expect(sizes.size(ofPart: 9000, length: large, sent: first * 8999) == first)
        #expect(sizes.size(ofPart: 1001, length: nil, sent: 0) == 10 << 20)
    }
}
