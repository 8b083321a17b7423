import BucketConformance
import HTTPClient
import OpenSSL
import System
import TestSupport
import Testing
import Wire

@testable import Buckets

/// Changes in Cloud Storage whose response does not say that they were made.
@Suite("Unsettled changes in Cloud Storage", .timeLimit(.minutes(2)))
struct GCSUnsettledTests {
    /// The fate of a change to a service with one object.
    enum Fault: String, CaseIterable, Sendable {
        /// The change is made. Its response and all later ones are 503 with a delay that is too long to wait for.
        case pause
        /// The change is made, and the connection of every attempt ends without a response.
        case cut
        /// The change is made, and every response is 500.
        case failed
        /// Another writer makes a change. Ours is rejected by a 503 with a delay.
        case other
    }

    /// One object, as JSON.
    private struct Stored: Sendable {
        var generation = 0
        var metageneration = 1
        var bytes: [UInt8] = []
        var type = "a/b"
        var custom = "{}"

        var json: String {
            var crc = CRC32C()
            crc.update(bytes.span.bytes)
            let code = (0..<4).map { UInt8(truncatingIfNeeded: crc.value >> (24 - 8 * $0)) }
            return """
                {"name": "n", "generation": "\(generation)", "metageneration": "\(metageneration)",
                 "size": "\(bytes.count)", "timeCreated": "2026-01-02T03:04:05Z", "contentType": "\(type)",
                 "crc32c": "\(Base64.encode(code))", "metadata": \(custom)}
                """
        }
    }

    /// A service whose read requests always work.
    private func service(_ fault: Fault, _ initial: Stored, _ made: Stored) -> FakeService {
        let state = Lock<Stored>(initial)
        return FakeService { request in
            if request.method == "GET" {
                return state.withLock {
                    $0.generation == 0 ? FakeService.Response(status: 404) : .json($0.json)
                }
            }
            if request.query["uploadType"] == "resumable" {
                return FakeService.Response(fields: [("location", "/session?id=1")])
            }
            if request.path == "/session", request.body.isEmpty {
                return FakeService.Response(status: request.method == "PUT" ? 503 : 499)
            }
            if request.fields["content-range"]?.hasSuffix("/*") == true {
                let last = request.fields["content-range"]!.dropFirst(6).dropLast(2)
                return FakeService.Response(status: 308, fields: [("range", "bytes=\(last)")])
            }
            state.withLock { $0 = made }
            switch fault {
            case .pause, .other:
                return FakeService.Response(status: 503, fields: [("retry-after", "100")])
            case .cut: return .cut
            case .failed: return FakeService.Response(status: 500)
            }
        }
    }

    private func bucket(_ service: FakeService) -> GCSBucket {
        var settings = GCSBucket.Settings(
            bucket: "b", endpoint: service.origin, credentials: .anonymous, environment: [:])
        settings.upstream.retryDelay = 1_000_000
        return GCSBucket(settings, pool: sharedPool, environment: [:])
    }

    @Test(
        arguments: Fault.allCases, [3, 600_000])
    func anUploadThatIsStoredIsReportedAsStored(fault: Fault, size: Int) async throws {
        let bytes = pattern(size, seed: 8)
        for before in [0, 4] {
            var made = Stored(
                generation: 5, bytes: bytes, custom: #"{"k": "v", "noted_by_the_service": "x"}"#)
            if fault == .other { made.custom = #"{"k": "w"}"# }
            let service = service(fault, Stored(generation: before, bytes: [1]), made)
            try await onLoop {
                let bucket = bucket(service)
                let attributes = ObjectAttributes(contentType: "a/b", customMetadata: ["k": "v"])
                let outcome = await Result {
                    let upload = try await bucket.filledUpload("n", bytes, attributes)
                    _ = try await upload.finish()
                    return try await upload.commit(Preconditions())
                }
                if fault == .other {
                    #expect(throws: BucketError.self) { try outcome.get() }
                } else {
                    let result = try outcome.get()
                    #expect(result.metadata.generation == 5 && result.replaced == (before == 4))
                }
                await bucket.close()
            }
        }
    }

    @Test(arguments: Fault.allCases, [false, true])
    func aPatchThatIsMadeIsReportedAsMade(fault: Fault, pinned: Bool) async throws {
        var made = Stored(generation: 4, metageneration: 2, type: "c/d")
        if fault == .other { made.type = "e/f" }
        let service = service(fault, Stored(generation: 4), made)
        try await onLoop {
            let bucket = bucket(service)
            var patch = AttributePatch()
            patch.contentType = .set("c/d")
            var conditions = Preconditions()
            if pinned { (conditions.generation, conditions.metageneration) = (4, 1) }
            let outcome = await Result { try await bucket.patch("n", patch, conditions) }
            if fault == .other {
                #expect(throws: BucketError.self) { try outcome.get() }
            } else {
                let patched = try outcome.get()
                #expect(patched.metageneration == 2)
            }
            await bucket.close()
        }
    }

    @Test(arguments: Fault.allCases, [false, true])
    func aDeletionThatIsMadeIsReportedAsMade(fault: Fault, pinned: Bool) async throws {
        // Another writer replaces the object, so it is not known whether our deletion took place.
        let made = Stored(generation: fault == .other ? 7 : 0)
        let service = service(fault, Stored(generation: 4), made)
        try await onLoop {
            let bucket = bucket(service)
            var conditions = Preconditions()
            if pinned { conditions.generation = 4 }
            let outcome = await Result { try await bucket.delete("n", conditions) }
            if fault == .other {
                #expect(throws: BucketError.self) { try outcome.get() }
            } else {
                try outcome.get()
            }
            await bucket.close()
        }
    }

    private static func copyPlan(_ bytes: [UInt8]) -> CopyPlan {
        var crc = CRC32C()
        crc.update(bytes.span.bytes)
        let source = ObjectMetadata(
            name: "s", generation: 3, metageneration: 1, size: UInt64(bytes.count), created: 0, updated: 0, md5: nil,
            crc32c: crc.value, etag: "3", attributes: ObjectAttributes())
        return CopyPlan(source, ObjectAttributes(contentType: "a/b", customMetadata: ["k": "v"]))
    }

    @Test(arguments: Fault.allCases, [0, 4])
    func aCopyThatIsMadeIsReportedAsMade(fault: Fault, before: Int) async throws {
        let bytes = pattern(300, seed: 9)
        let made = Stored(generation: 5, bytes: bytes, custom: fault == .other ? #"{"k": "w"}"# : #"{"k": "v"}"#)
        let service = service(fault, Stored(generation: before, bytes: [1]), made)
        try await onLoop {
            let bucket = bucket(service)
            let outcome = await Result { try await bucket.copy(to: "n", Self.copyPlan(bytes)) }
            if fault == .other {
                #expect(throws: BucketError.self) { try outcome.get() }
            } else {
                let result = try outcome.get()
                #expect(result.metadata.generation == 5 && result.replaced == (before == 4))
            }
            await bucket.close()
        }
    }

    @Test(arguments: [
        #"{"done": false}"#, #"{"done": false, "rewriteToken": "t"}"#, "{", "[]", #"{"done": true}"#,
        #"{"done": true, "resource": {"name": "n"}}"#,
    ])
    func aCopyThatDoesNotEndIsAnError(body: String) async throws {
        let count = Lock(0)
        let service = FakeService { request in
            if request.method == "GET" { return FakeService.Response(status: 404) }
            count.withLock { $0 += 1 }
            return .json(body)
        }
        try await onLoop {
            let bucket = bucket(service)
            await #expect(throws: BucketError.self) {
                try await bucket.copy(to: "n", Self.copyPlan([1, 2, 3]))
            }
            await bucket.close()
        }
        #expect(count.withLock { $0 } <= 16)
    }

    @Test(arguments: [
        "[]", "null", "1", #""text""#, #"{"items": {}}"#, #"{"items": "n"}"#, #"{"items": [1]}"#,
        #"{"items": [{"id": "n"}]}"#, #"{"prefixes": [{}]}"#, #"{"nextPageToken": 7}"#, "{", "",
    ])
    func aPageThatIsNotAListIsAnError(body: String) async throws {
        let service = FakeService { _ in .json(body) }
        try await onLoop {
            let bucket = bucket(service)
            let query = ListQuery(prefix: "", delimited: true, limit: 9)
            let error = await #expect(throws: BucketError.self) {
                try await bucket.list(query, after: nil)
            }
            #expect(error?.code == .unavailable)
            await bucket.close()
        }
    }

    @Test(arguments: ["{}", #"{"items": null, "prefixes": null, "nextPageToken": null}"#])
    func aPageWithoutEntriesIsEmpty(body: String) async throws {
        let service = FakeService { _ in .json(body) }
        try await onLoop {
            let bucket = bucket(service)
            let query = ListQuery(prefix: "", delimited: true, limit: 9)
            let page = try await bucket.list(query, after: nil)
            #expect(page == ListPage())
            await bucket.close()
        }
    }
}

extension Result where Failure == any Error {
    fileprivate init(_ body: () async throws -> Success) async {
        do { self = .success(try await body()) } catch { self = .failure(error) }
    }
}
