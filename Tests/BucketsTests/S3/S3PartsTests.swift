import BucketConformance
import Credentials
import HTTPClient
import Synchronization
import System
import TestSupport
import Testing
import Wire

@testable import Buckets

@Suite("Uploads in parts of the S3 driver", .serialized, .timeLimit(.minutes(10)))
struct S3PartsTests {
    /// The cases that a server can fail, and why.
    private static let known: [S3Server: [String: String]] = [
        .seaweedfs: [
            "a part replaces an earlier one of the same number":
                "a list also has the replaced parts, in no order within a second"
        ]
    ]

    @Test(.enabled(if: S3Server.directory != nil), arguments: S3SessionTests.servers)
    func conforms(_ server: S3Server) async throws {
        let running = try RunningServer(server)
        for check in SessionConformance.partsCases {
            note("\(server): \(check)")
            let name = try await onLoop {
                let bucket = try await running.makeBucket()
                #expect(try await bucket.capabilities().parts)
                await bucket.close()
                return bucket.settings.bucket
            }
            do {
                try await check.run { running.openBucket(name) }
            } catch {
                if Self.known[server]?[check.name] == nil { Issue.record("\(server): \(check): \(error)") }
            }
            try await expectNothingLeft(running, name)
        }
    }

    /// Cancels all uploads, and expects neither parts nor hidden objects.
    private func expectNothingLeft(_ running: RunningServer, _ name: String) async throws {
        try await onLoop {
            let bucket = running.openBucket(name)
            for (id, state) in try await bucket.listSessions(after: nil, limit: 1000) {
                try await bucket.openParts(id, state.name, key: []).cancel()
            }
            #expect(try await bucket.listHidden(HiddenName.reserved, after: nil) == [])
            #expect(try await S3SessionTests.uploads(bucket) == 0)
            await bucket.close()
        }
    }

    @Test(
        "A part that ends early, or is aborted when it was complete, is not stored",
        .enabled(if: S3Server.directory != nil))
    func cut() async throws {
        let running = try RunningServer(.moto)
        try await onLoop {
            let bucket = try await running.makeBucket()
            let upload = try await bucket.beginUpload("n")
            for size in [300_000, 70_000, 10] {
                let part = try await upload.beginPart(1, PartPlan(size: UInt64(size)))
                try await part.fill(pattern(size / 2, seed: 1))
                part.abort()
                await #expect(throws: SessionError.self) { try await part.keep() }
                let whole = try await upload.beginPart(2, PartPlan(size: UInt64(size), md5: digest(.md5, [])))
                try await whole.fill(pattern(size, seed: 1))
                #expect(try await whole.finish().size == UInt64(size))
                whole.abort()
            }
            // A later request of the same connections' service sees what they have left.
            try await upload.send(3, [1])
            #expect(try await upload.parts(after: 0, limit: 10).map(\.number) == [3])
            try await upload.cancel()
            await bucket.close()
        }
    }

    @Test(
        "A part that replaces another is selected by its entity tag", .enabled(if: S3Server.directory != nil),
        arguments: S3SessionTests.servers)
    func replaced(_ server: S3Server) async throws {
        let running = try RunningServer(server)
        try await onLoop {
            let bucket = try await running.makeBucket()
            for kept in 0..<4 {
                let upload = try await bucket.beginUpload("n")
                var last: [Part] = []
                for round in 0...kept {
                    last = []
                    for number in [3, 1] {
                        let bytes = pattern(number == 1 ? 5 << 20 : 1000, seed: UInt64(10 * round + number))
                        last.append(try await upload.send(number, bytes))
                    }
                }
                try await upload.select(last.reversed().map { SelectedPart($0.number, etag: $0.etag) })
                _ = try await upload.commit(try await upload.finish(), Preconditions(), resultUntil: .max)
                let wanted = pattern(5 << 20, seed: UInt64(10 * kept + 1)) + pattern(1000, seed: UInt64(10 * kept + 3))
                let found = try await bucket.get("n")
                #expect(found == wanted)
            }
            await bucket.close()
        }
    }

    /// A service that begins uploads, stores everything, and copies parts with this status.
    private func copyingService(
        _ copies: Lock<[FakeService.Request]>, _ status: Lock<Int>, tagOfProbe: String
    ) -> FakeService {
        FakeService { request in
            if request.fields["x-amz-copy-source"] != nil {
                let isProbe = request.path.contains("probe")
                if !isProbe { copies.withLock { $0.append(request) } }
                let tag = isProbe ? tagOfProbe : "t"
                return FakeService.Response(
                    status: isProbe ? 200 : status.withLock { $0 },
                    body: Array("<CopyPartResult><ETag>\"\(tag)\"</ETag></CopyPartResult>".utf8))
            }
            let begun = "<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>"
            let body = request.method == "POST" ? Array(begun.utf8) : []
            return FakeService.Response(fields: [("etag", "\"s\"")], body: body)
        }
    }

    @Test("The service copies a part, also from another of its buckets", arguments: [true, false])
    func copied(isOwn: Bool) async throws {
        let copies = Lock<[FakeService.Request]>([])
        let status = Lock(200)
        let service = copyingService(copies, status, tagOfProbe: Hexadecimal.encode(digest(.md5, Array("ro".utf8))))
        let wrong = copyingService(copies, status, tagOfProbe: Hexadecimal.encode(digest(.md5, Array("probe".utf8))))
        @Sendable func bucket(_ name: String, key: String = "k", of service: FakeService) -> S3Bucket {
            var settings = S3Bucket.Settings(
                endpoint: service.origin, bucket: name,
                credentials: .fixed(AWSCredentials(accessKey: key, secretKey: "s")))
            settings.conditionalWrites = .yes
            let upstream = Upstream(UpstreamSettings(name: "test", origin: settings.origin))
            return S3Bucket(settings, upstream: upstream, pool: sharedPool)
        }
        let object = ObjectMetadata(
            name: "a b", generation: 1, metageneration: 1, size: 10, created: 0, updated: 0, md5: nil, crc32c: nil,
            etag: "e", attributes: ObjectAttributes())
        try await onLoop {
            let (target, other) = (bucket("b", of: service), bucket("other", of: service))
            let (stranger, odd) = (bucket("other", key: "another", of: service), bucket("b", of: wrong))
            let upload = try #require(try await target.beginUpload("n") as? any CopyingPartsUpload)
            func copy(_ range: Range<UInt64>, from bucket: S3Bucket) async throws -> Part? {
                try await upload.copyPart(7, of: PartSource(object, in: bucket, range))
            }
            for (range, field) in [(UInt64(0)..<10, nil), (2..<5, "bytes=2-4")] {
                let part = try await copy(range, from: isOwn ? target : other)
                #expect(part?.etag == "t" && part?.number == 7 && part?.size == UInt64(range.count))
                let sent = try #require(copies.withLock { $0 }.last)
                #expect(sent.target == "/b/n?partNumber=7&uploadId=u")
                #expect(sent.fields["x-amz-copy-source"] == "/\(isOwn ? "b" : "other")/a%20b")
                #expect(sent.fields["x-amz-copy-source-if-match"] == "\"e\"")
                #expect(sent.fields["x-amz-copy-source-range"] == field)
            }
            // Requests with other credentials may not read that bucket.
            #expect(try await copy(0..<10, from: stranger) == nil)
            #expect(copies.withLock { $0.count } == 2)
            status.withLock { $0 = 501 }
            #expect(try await copy(0..<10, from: target) == nil)
            for (code, wanted) in [(412, BucketError.Code.preconditionFailed), (404, .objectNotFound)] {
                status.withLock { $0 = code }
                do {
                    _ = try await copy(0..<10, from: target)
                    Issue.record("a changed source is copied")
                } catch SessionError.store(let error) {
                    #expect(error.code == wanted)
                }
            }
            // A service whose tags are not those of the copied bytes.
            let count = copies.withLock { $0.count }
            let unfit = try #require(try await odd.beginUpload("n") as? any CopyingPartsUpload)
            #expect(try await unfit.copyPart(1, of: PartSource(object, in: odd, 0..<10)) == nil)
            #expect(copies.withLock { $0.count } == count)
            for bucket in [target, other, stranger, odd] { await bucket.close() }
        }
    }

    @Test("The service compares a declared md5", .enabled(if: S3Server.directory != nil))
    func declared() async throws {
        let running = try RunningServer(.seaweedfs)
        try await onLoop {
            let bucket = try await running.makeBucket()
            let upload = try await bucket.beginUpload("n")
            let (bytes, other) = (pattern(200_000, seed: 1), pattern(200_000, seed: 2))
            for content in [other, bytes] {
                let part = try await upload.beginPart(1, PartPlan(size: 200_000, md5: digest(.md5, bytes)))
                try await part.fill(content)
                _ = try await part.finish()
                if content == bytes {
                    _ = try await part.keep()
                } else {
                    await #expect(throws: SessionError.self) { try await part.keep() }
                }
            }
            try await upload.commitAll([1])
            #expect(try await bucket.get("n") == bytes)
            await bucket.close()
        }
    }

    /// Another process's driver of the bucket, whose requests are counted.
    private func counting(_ bucket: S3Bucket) -> (S3Bucket, RequestCounter) {
        let counter = RequestCounter()
        let upstream = UpstreamSettings(name: "test", origin: bucket.settings.origin)
        let counted = S3Bucket(
            bucket.settings, upstream: Upstream(upstream, observer: counter), pool: sharedPool)
        return (counted, counter)
    }

    @Test("A part is one request, of this or another process", .enabled(if: S3Server.directory != nil))
    func costs() async throws {
        let running = try RunningServer(.moto)
        try await onLoop {
            let made = try await running.makeBucket()
            _ = try await made.capabilities()
            let (first, begun) = counting(made)
            _ = try await first.capabilities()
            begun.reset()
            let upload = try await first.beginUpload("n")
            #expect(begun.reset() == 2)
            let (second, others) = counting(made)
            let other = try await second.openParts(upload.id, "n", key: upload.key)
            try await other.send(2, pattern(1000, seed: 2))
            try await upload.send(1, pattern(5 << 20, seed: 1))
            #expect(others.reset() == 1)
            #expect(begun.reset() == 1)
            #expect(try await other.parts(after: 0, limit: 9).count == 2)
            #expect(others.reset() == 1)
            try await upload.select([SelectedPart(1), SelectedPart(2)])
            // The state is read and written, and the parts are listed.
            #expect(begun.reset() == 3)
            let facts = try await upload.finish()
            #expect(begun.reset() == 0)
            _ = try await upload.commit(facts, Preconditions(), resultUntil: .max)
            // The state is read and written twice, and the existing object is looked up.
            #expect(begun.reset() == 5)
            try await upload.cancel()
            for bucket in [made, first, second] { await bucket.close() }
        }
    }
}

/// Counts requests.
private final class RequestCounter: UpstreamObserver {
    private let count = Atomic<Int>(0)

    func finished(_ record: UpstreamRecord) { count.add(1, ordering: .relaxed) }

    @discardableResult
    func reset() -> Int { count.exchange(0, ordering: .relaxed) }
}
