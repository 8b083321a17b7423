import BucketConformance
import Credentials
import HTTPClient
import OpenSSL
import Synchronization
import System
import TestSupport
import Testing
import Wire

@testable import Buckets

@Suite("Downloads from Cloud Storage", .timeLimit(.minutes(2)))
struct GCSDownloadTests {
    private struct State {
        var bytes = pattern(200_000, seed: 1)
        var sent: [UInt8]?
        var announced: Int?
        var metageneration = 1
    }

    /// A service with one object, which `change` can break.
    private func service(_ change: @escaping @Sendable () -> (inout State) -> Void = { { _ in } })
        -> FakeService
    {
        FakeService { request in
            var state = State()
            change()(&state)
            guard request.query["alt"] == "media" else {
                return .json(
                    object(
                        state.bytes, generation: 7, metageneration: state.metageneration,
                        custom: #"{"k": "v", "firebaseStorageDownloadTokens": "secret"}"#))
            }
            return FakeService.Response(
                fields: [
                    ("x-goog-generation", "7"),
                    ("x-goog-metageneration", "\(state.metageneration)"),
                    ("x-goog-hash", "crc32c=\(crc(state.bytes)),md5=x"),
                ],
                body: state.sent ?? state.bytes, announced: state.announced)
        }
    }

    @Test func whatIsKnownOfAnObjectNeedsNoSecondCall() async throws {
        let metageneration = Atomic<Int>(1)
        let service = service {
            let now = metageneration.load(ordering: .relaxed)
            return { $0.metageneration = now }
        }
        try await onLoop {
            let bucket = bucket(service)
            for calls in [2, 3] {
                let reader = try await bucket.open("n", ReadPlan())
                #expect(reader.metadata.attributes.customMetadata == ["k": "v"])
                #expect(reader.metadata.attributes.system.downloadTokens == ["secret"])
                #expect(reader.metadata.etag == "7")
                #expect(reader.metadata.created % 1000 == 678)
                #expect(try await readAll(reader, 0..<200_000) == pattern(200_000, seed: 1))
                #expect(service.log.count == calls)
            }
            metageneration.store(5, ordering: .relaxed)
            let reader = try await bucket.open("n", ReadPlan())
            #expect(reader.metadata.metageneration == 5)
            reader.close()
            #expect(service.log.allSatisfy { $0.path == "/storage/v1/b/b/o/n" })
            await bucket.close()
        }
    }

    @Test(arguments: ["damaged", "short", "long", "cut"])
    func brokenBytesEndInAnError(how: String) async throws {
        let service = service {
            { state in
                var bytes = state.bytes
                switch how {
                case "damaged": bytes[100_000] ^= 1
                case "short": bytes.removeLast()
                case "long": bytes.append(0)
                default:
                    state.announced = bytes.count
                    bytes.removeLast(5000)
                }
                state.sent = bytes
            }
        }
        try await expectUnavailable(service)
    }

    /// Reads the object of 200,000 bytes, which must fail.
    private func expectUnavailable(_ service: FakeService, _ code: BucketError.Code = .unavailable) async throws {
        try await onLoop {
            let bucket = bucket(service)
            let error = await #expect(throws: BucketError.self) {
                let reader = try await bucket.open("n", ReadPlan())
                _ = try await readAll(reader, 0..<200_000)
            }
            #expect(error?.code == code)
            await bucket.close()
        }
    }

    /// A service whose responses end after `limit` bytes of the announced length. It logs the ranges.
    private func breaking(
        after limit: Int, generation: @escaping @Sendable (Int) -> Int = { _ in 7 }
    ) -> (FakeService, Lock<[String]>) {
        let ranges = Lock<[String]>([])
        let bytes = pattern(200_000, seed: 1)
        let service = FakeService { request in
            guard request.query["alt"] == "media" else {
                return .json(object(bytes, generation: 7))
            }
            let range = request.fields["range"]
            let now = ranges.withLock { ranges in
                ranges.append(range ?? "")
                return generation(ranges.count)
            }
            guard request.query["generation"].map({ $0 == "\(now)" }) ?? true else {
                return FakeService.Response(status: 404)
            }
            let first = range?.split(whereSeparator: "=-".contains).dropFirst().first ?? "0"
            let rest = Array(bytes[Int(first)!...])
            return FakeService.Response(
                status: range == nil ? 200 : 206,
                fields: [
                    ("x-goog-generation", "\(now)"), ("x-goog-metageneration", "1"),
                    ("content-range", "bytes \(first)-199999/200000"),
                ],
                body: Array(rest.prefix(limit)), announced: rest.count)
        }
        return (service, ranges)
    }

    @Test func aBrokenDownloadContinues() async throws {
        let (service, ranges) = breaking(after: 70_000)
        try await onLoop {
            let bucket = bucket(service)
            let reader = try await bucket.open("n", ReadPlan())
            #expect(try await readAll(reader, 0..<200_000) == pattern(200_000, seed: 1))
            await bucket.close()
        }
        #expect(
            ranges.withLock { $0 } == ["", "bytes=70000-199999", "bytes=140000-199999"])
    }

    @Test(arguments: [(10, 7, 4), (0, 7, 4), (70_000, 8, 2)])
    func aDownloadThatKeepsBreakingFails(after: Int, generation: Int, requests: Int)
        async throws
    {
        // Fails after little or no progress, or at once if the object was replaced.
        let (service, ranges) = breaking(after: after) { $0 == 1 ? 7 : generation }
        try await expectUnavailable(service, generation == 8 ? .replaced : .unavailable)
        #expect(ranges.withLock { $0.count } == requests)
    }

    @Test(arguments: [(503, 4), (403, 2), (400, 2), (200, 2)])
    func theRestIsRetriedLikeAnyRequest(status: Int, requests: Int) async throws {
        let bytes = pattern(200_000, seed: 1)
        let media = Atomic<Int>(0)
        let service = FakeService { request in
            guard request.query["alt"] == "media" else {
                return .json(object(bytes, generation: 7))
            }
            let isFirst = media.add(1, ordering: .relaxed).newValue == 1
            guard isFirst || status == 200 else { return .json("{}", status) }
            // The second response does not name the generation of its bytes.
            return FakeService.Response(
                status: isFirst ? 200 : 206,
                fields: (isFirst ? [("x-goog-generation", "7")] : []) + [
                    ("content-range", "bytes \(isFirst ? 0 : 70_000)-199999/200000")
                ],
                body: isFirst ? Array(bytes.prefix(70_000)) : Array(bytes[70_000...]),
                announced: isFirst ? 200_000 : nil)
        }
        try await onLoop {
            let bucket = bucket(service)
            await #expect(throws: BucketError.self) {
                let reader = try await bucket.open("n", ReadPlan())
                _ = try await readAll(reader, 0..<200_000)
            }
            await bucket.close()
        }
        #expect(media.load(ordering: .relaxed) == requests)
    }

    @Test func aResponseAboutAnotherObjectIsAnError() async throws {
        for change in [("\"n\"", "\"other\""), ("{\"name\"", "{\"bucket\": \"c\", \"name\"")] {
            let service = FakeService { request in
                request.method == "DELETE"
                    ? FakeService.Response(status: 204)
                    : .json(object([1, 2], generation: 7).replacing(change.0, with: change.1))
            }
            try await onLoop {
                let bucket = bucket(service)
                var error = await #expect(throws: BucketError.self) { try await bucket.stat("n") }
                #expect(error?.code == .unavailable)
                error = await #expect(throws: BucketError.self) {
                    try await bucket.patch("n", AttributePatch(), Preconditions())
                }
                #expect(error?.code == .unavailable)
                error = await #expect(throws: BucketError.self) {
                    let upload = try await bucket.filledUpload("n", [1, 2, 3])
                    _ = try await upload.finish()
                    return try await upload.commit(Preconditions())
                }
                #expect(error?.code == .unavailable)
                await bucket.close()
            }
            #expect(service.log.allSatisfy { !$0.path.hasSuffix("/other") })
        }
    }

    @Test func aPageThatIsFollowedByItselfIsAnError() async throws {
        let service = FakeService { _ in .json(#"{"items": [], "nextPageToken": "again"}"#) }
        try await onLoop {
            let bucket = bucket(service)
            let error = await #expect(throws: BucketError.self) {
                try await bucket.list(ListQuery(prefix: "", delimited: false, limit: 9), after: nil)
            }
            #expect(error?.code == .unavailable)
            await bucket.close()
        }
        #expect(service.log.count == 2)
    }

    @Test("A list of hidden objects ends, even if its pages alternate")
    func emptyPagesOfHiddenObjects() async throws {
        let service = FakeService { request in
            let next = request.query["pageToken"] == "a" ? "b" : "a"
            return .json(#"{"items": [], "nextPageToken": "\#(next)"}"#)
        }
        try await onLoop {
            let bucket = bucket(service)
            let error = await #expect(throws: BucketError.self) {
                try await bucket.listHidden(HiddenName.prefix, after: nil)
            }
            #expect(error?.code == .unavailable)
            await bucket.close()
        }
        #expect(service.log.count == GCSBucket.maximumPages)
    }

    @Test(arguments: ["9223372036854775807", "9223372036854775808", "18446744073709551614"])
    func sizesAtTheEndOfNumbersAreErrors(size: String) async throws {
        let bytes = [UInt8](1...9)
        let service = FakeService { request in
            guard request.query["alt"] == "media" else {
                return .json(
                    object(bytes, generation: 7).replacing("\"9\"", with: "\"\(size)\""))
            }
            let range = request.fields["range"].map { $0.dropFirst(6) } ?? ""
            let first = range.split(separator: "-").first.flatMap { UInt64($0) } ?? 0
            let last = UInt64(size)! - 1
            return FakeService.Response(
                status: 206,
                fields: [
                    ("x-goog-generation", "7"),
                    ("content-range", "bytes \(range.isEmpty ? "0-\(last)" : range)/\(size)"),
                ], body: bytes,
                // Every response breaks off.
                announced: Int(clamping: UInt64(size)! - first))
        }
        try await onLoop {
            let bucket = bucket(service)
            await #expect(throws: BucketError.self) {
                let reader = try await bucket.open("n", ReadPlan())
                _ = try await readAll(reader, 0..<reader.metadata.size)
            }
            await bucket.close()
        }
    }

    @Test func aRejectedTokenIsRenewedOnce() async throws {
        let tokens = FakeService { _ in
            .json(
                #"{"access_token": "t\#(UInt32.random(in: 0...999_999))", "expires_in": 3600}"#,
                200, [("metadata-flavor", "Google")])
        }
        let first = Lock<String?>(nil)
        let service = FakeService { request in
            let token = request.fields["authorization"]
            let isFirst = first.withLock { first in
                if first == nil { first = token }
                return first == token
            }
            return isFirst
                ? .json(#"{"error": {"message": "Invalid Credentials"}}"#, 401)
                : .json(object([1], generation: 3))
        }
        try await onLoop {
            let bucket = bucket(
                service, .metadataServer, ["GCE_METADATA_HOST": tokens.origin.authority])
            let metadata = try await bucket.stat("n")
            #expect(metadata.generation == 3)
            #expect(tokens.log.count == 2)
            await bucket.close()
        }
    }

    @Test func responsesOfGooglesTestBench() async throws {
        let service = FakeService { request in
            if request.path.hasSuffix("wrong") {
                return .json(#"{"code": 412, "message": "{crc32c validation failed.}"}"#, 412)
            }
            return .json(
                """
                {"name": "n", "generation": "7", "metageneration": "1", "crc32c": "AAAAAA==",
                 "timeCreated": "2026-01-02T03:04:05.678Z"}
                """)
        }
        try await onLoop {
            let bucket = bucket(service)
            let empty = try await bucket.stat("n")
            #expect(empty.size == 0)
            let error = await #expect(throws: BucketError.self) { try await bucket.stat("wrong") }
            #expect(error?.code == .unavailable)
            #expect(error?.cause.contains("other bytes: 412, {crc32c") == true)
            await bucket.close()
        }
    }

    @Test(arguments: [
        (403, "refuses the credentials: 403, No access."), (404, "bucket 'b' does not exist"),
        (503, "503"),
    ])
    func rejectionsAreReportedInWords(status: Int, words: String) async throws {
        let message = status == 404 ? "The specified bucket does not exist." : "No access."
        let service = FakeService { _ in
            .json(#"{"error": {"code": \#(status), "message": "\#(message)"}}"#, status)
        }
        try await onLoop {
            let bucket = bucket(service)
            let error = await #expect(throws: BucketError.self) { try await bucket.stat("n") }
            #expect(error?.code == .unavailable)
            #expect(error?.cause.contains(words) == true, "\(String(describing: error))")
            await bucket.close()
        }
    }
}

@Suite("Uploads to Cloud Storage", .timeLimit(.minutes(2)))
struct GCSUploadTests {
    /// The received bytes of a session, and its responses.
    final class Session: Sendable {
        struct State {
            var bytes: [UInt8] = []
            var isDone = false
            var failures: [String]
            var log: [String] = []
        }
        let state: Lock<State>
        init(_ failures: [String]) { state = Lock(State(failures: failures)) }

        /// Responds to a request of the session. A request with bytes consumes the next failure.
        func respond(_ request: FakeService.Request) -> FakeService.Response {
            state.withLock { state in
                let range = request.fields["content-range"] ?? request.method
                state.log.append(range)
                func kept() -> FakeService.Response {
                    let count = state.bytes.count
                    return FakeService.Response(
                        status: 308, fields: count == 0 ? [] : [("range", "bytes=0-\(count - 1)")])
                }
                if request.method == "DELETE" { return FakeService.Response(status: 499) }
                if state.isDone { return .json(object(state.bytes, generation: 9)) }
                if range == "bytes */*" { return kept() }
                let failure = state.failures.isEmpty ? "" : state.failures.removeFirst()
                switch failure {
                case "cut before": return .cut
                case "half", "503 half": state.bytes += request.body.prefix(262_144)
                default: state.bytes += request.body
                }
                state.isDone = range.hasSuffix("/\(state.bytes.count)") && failure != "412"
                switch failure {
                case "503 after", "503 half": return FakeService.Response(status: 503)
                case "short": return .json(#"{"name""#)
                case "cut after": return .cut
                case "412": return FakeService.Response(status: 412)
                default:
                    return state.isDone ? .json(object(state.bytes, generation: 9)) : kept()
                }
            }
        }
    }

    private func service(_ session: Session, host: String? = nil) -> FakeService {
        let own = Lock<String>("")
        let service = FakeService { request in
            if request.path == "/secret" { return session.respond(request) }
            if request.method == "GET" { return FakeService.Response(status: 404) }
            let origin = host ?? own.withLock { $0 }
            return FakeService.Response(fields: [("location", "\(origin)/secret?id=hidden")])
        }
        own.withLock { $0 = "\(service.origin)" }
        return service
    }

    private func upload(_ bucket: GCSBucket, _ bytes: [UInt8], declared: Bool)
        async throws -> CommitResult
    {
        let upload = try await bucket.filledUpload("n", bytes, declared: declared)
        do {
            _ = try await upload.finish()
            return try await upload.commit(Preconditions())
        } catch {
            upload.abort()
            throw error
        }
    }

    @Test(arguments: [
        // The failures of requests with bytes, and the expected requests of the session.
        (true, [], ["bytes 0-524287/*", "bytes 524288-599999/600000"]),
        (
            true, ["503 after"],
            ["bytes 0-524287/*", "bytes */*", "bytes 524288-599999/600000"]
        ),
        (
            true, ["", "cut before"],
            [
                "bytes 0-524287/*", "bytes 524288-599999/600000", "bytes */*",
                "bytes 524288-599999/600000",
            ]
        ),
        (
            true, ["", "cut after"],
            ["bytes 0-524287/*", "bytes 524288-599999/600000", "bytes */*"]
        ),
        (
            true, ["half"],
            ["bytes 0-524287/*", "bytes 262144-524287/*", "bytes 524288-599999/600000"]
        ),
        (
            true, ["503 half"],
            [
                "bytes 0-524287/*", "bytes */*", "bytes 262144-524287/*",
                "bytes 524288-599999/600000",
            ]
        ),
        (
            true, ["cut before", "cut before", "cut after"],
            [
                "bytes 0-524287/*", "bytes */*", "bytes 0-524287/*", "bytes */*",
                "bytes 0-524287/*", "bytes */*", "bytes 524288-599999/600000",
            ]
        ),
        (
            true, ["", "short"],
            ["bytes 0-524287/*", "bytes 524288-599999/600000", "bytes */*"]
        ),
        (
            false, ["half"],
            ["bytes 0-599999/600000", "bytes 262144-599999/600000"]
        ),
        (
            false, ["cut before", "503 after"],
            ["bytes 0-599999/600000", "bytes */*", "bytes 0-599999/600000", "bytes */*"]
        ),
    ])
    func whatTheServiceKeepsIsNotSentAgain(declared: Bool, failures: [String], log: [String])
        async throws
    {
        let session = Session(failures)
        let service = service(session)
        let bytes = pattern(600_000, seed: 4)
        try await onLoop {
            let bucket = bucket(service)
            let result = try await upload(bucket, bytes, declared: declared)
            #expect(result.metadata.generation == 9 && !result.replaced)
            await bucket.close()
        }
        session.state.withLock { state in
            #expect(state.bytes == bytes)
            // A transport may retry once by itself if an idle connection was closed.
            let hasCut = failures.contains { $0.hasPrefix("cut") }
            #expect(state.log == log || hasCut && Set(state.log).isSubset(of: log))
        }
    }

    @Test(arguments: ["half", "503 half", "cut before"])
    func bytesThatAreGoneFailTheUpload(failure: String) async throws {
        let session = Session([failure])
        let service = service(session)
        try await onLoop {
            let bucket = bucket(service, spools: false)
            let error = await #expect(throws: BucketError.self) {
                try await upload(bucket, pattern(600_000, seed: 4), declared: true)
            }
            #expect(error?.code == .unavailable && error?.isRetryable == true)
            #expect(error?.cause.contains("hidden") == false)
            // Closing waits until the session is discarded.
            await bucket.close()
        }
        session.state.withLock { state in
            #expect(!state.isDone)
            #expect(state.log.last == "DELETE")
        }
    }

    @Test func aConditionThatDoesNotHoldAtTheEndIsTold() async throws {
        let service = service(Session(["", "412"]))
        try await onLoop {
            let bucket = bucket(service)
            let error = await #expect(throws: BucketError.self) {
                try await upload(bucket, pattern(600_000, seed: 4), declared: true)
            }
            #expect(error?.code == .preconditionFailed)
            await bucket.close()
        }
    }

    @Test func manyChunksWithFaultsAreOneObject() async throws {
        let session = Session(["", "503 half", "cut after", "half"])
        let service = service(session)
        let bytes = pattern(40_000_000, seed: 5)
        try await onLoop {
            let bucket = bucket(service)
            let result = try await upload(bucket, bytes, declared: true)
            #expect(result.metadata.size == 40_000_000)
            await bucket.close()
        }
        session.state.withLock { state in
            #expect(state.bytes == bytes)
            #expect(state.log.prefix(2) == ["bytes 0-16777215/*", "bytes 16777216-33554431/*"])
        }
    }

    @Test func aSessionAtAnotherHostIsContinuedHere() async throws {
        let session = Session([])
        let service = service(session, host: "http://127.0.0.2:1")
        try await onLoop {
            let bucket = bucket(service)
            _ = try await upload(bucket, pattern(600_000, seed: 4), declared: true)
            await bucket.close()
        }
        #expect(session.state.withLock { $0.isDone })
    }

    @Test func theLastRequestTellsTheChecksums() async throws {
        let service = service(Session([]))
        let bytes = pattern(600_000, seed: 4)
        try await onLoop {
            let bucket = bucket(service)
            _ = try await upload(bucket, bytes, declared: true)
            await bucket.close()
        }
        let hashes = service.log.map { $0.fields["x-goog-hash"] }.filter { $0 != nil }
        #expect(hashes == ["crc32c=\(crc(bytes)),md5=\(Base64.encode(digest(.md5, bytes)))"])
    }

    @Test func anUploadByOneRequestIsNeverStoredTwice() async throws {
        let stored = Lock<[UInt8]?>(nil)
        let attempts = Atomic<Int>(0)
        let service = FakeService { request in
            if request.method == "GET" {
                return stored.withLock { stored in
                    stored.map { .json(object($0, generation: 4)) }
                        ?? FakeService.Response(status: 404)
                }
            }
            let isFirst = attempts.add(1, ordering: .relaxed).newValue == 1
            if !isFirst { return FakeService.Response(status: 412) }
            stored.withLock { $0 = [1, 2, 3] }
            return .cut
        }
        try await onLoop {
            let bucket = bucket(service)
            let upload = try await bucket.filledUpload(
                "n", [1, 2, 3], ObjectAttributes(contentType: "a/b"))
            _ = try await upload.finish()
            let result = try await upload.commit(Preconditions())
            #expect(result.metadata.generation == 4 && !result.replaced)
            await bucket.close()
        }
        #expect(attempts.load(ordering: .relaxed) == 2)
    }

    /// Another client has stored the same bytes meanwhile: with another type, or identically with the first attempt.
    @Test(arguments: ["c/d", "a/b"], [false, true])
    func theObjectOfAnotherUploadIsNotRecognisedAsOwn(type: String, isLost: Bool) async throws {
        let generation = Atomic<Int>(0)
        let attempts = Atomic<Int>(0)
        let service = FakeService { request in
            let now = generation.load(ordering: .relaxed)
            if request.method == "GET" {
                return now == 0
                    ? FakeService.Response(status: 404)
                    : .json(object([1, 2, 3], generation: now, custom: #"{"x_testbench_u": "m"}"#))
            }
            let attempt = attempts.add(1, ordering: .relaxed).newValue
            if attempt == 1 {
                generation.store(4, ordering: .relaxed)
                if isLost { return .cut }
            }
            guard request.query["ifGenerationMatch"] == "\(now)", attempt > 1 else {
                return FakeService.Response(status: 412)
            }
            generation.store(5, ordering: .relaxed)
            return .json(object([1, 2, 3], generation: 5).replacing("a/b", with: type))
        }
        try await onLoop {
            let bucket = bucket(service)
            let upload = try await bucket.filledUpload(
                "n", [1, 2, 3], ObjectAttributes(contentType: type))
            _ = try await upload.finish()
            let result = try await upload.commit(Preconditions())
            #expect(result.metadata.generation == (isLost && type == "a/b" ? 4 : 5))
            #expect(result.metadata.attributes.contentType == type)
            await bucket.close()
        }
    }
}
