import Foundation
import Synchronization
import TestSupport
import Testing

@testable import SluiceStorage

/// What the library makes of responses, from a service that responds as each test defines.
@Suite final class OutcomeTests: Sendable {
    /// They run as long as the test.
    private let services = Mutex<[FakeService]>([])

    private func start(_ handler: @escaping FakeService.Handler) -> (FakeService, Storage) {
        let service = FakeService(handler)
        services.withLock { $0.append(service) }
        let storage = Storage(url: "http://127.0.0.1:\(service.port)", bucket: "photos")
        storage.maxOperationRetryTime = 20
        storage.maxUploadRetryTime = 5
        return (service, storage)
    }

    private static func metadata(_ path: String, size: Int64, crc32c: String = "")
        -> FakeService.Response
    {
        .json(
            #"{"bucket": "photos", "fullPath": "\#(path)", "size": \#(size), "generation": 7, "#
                + #""crc32c": "\#(crc32c)"}"#)
    }

    private static func problem(_ status: Int, _ code: String) -> FakeService.Response {
        .json(#"{"title": "No", "code": "\#(code)"}"#, status)
    }

    private func code(_ body: () async throws -> Void) async -> StorageErrorCode? {
        do { try await body() } catch { return (error as? StorageError)?.reason }
        return nil
    }

    /// The response to a move is lost, and the repeated one finds no source.
    @Test(arguments: ["mnG7TA==", "AAAAAA==", ""])
    func aRepeatedMove(sum: String) async throws {
        let moves = Mutex(0)
        let (service, storage) = start { request in
            guard request.method == "POST" else {
                return request.path == "/b/photos/o/a"
                    ? Self.metadata("a", size: 5, crc32c: "mnG7TA==") : Self.metadata("b", size: 5, crc32c: sum)
            }
            let count = moves.withLock { moves in
                moves += 1
                return moves
            }
            return count == 1 ? .cut : Self.problem(404, "object-not-found")
        }
        let (source, target) = (storage.reference(withPath: "a"), storage.reference(withPath: "b"))
        let found = await code { try await source.move(to: target) }
        // Anything else at the target was there before.
        #expect(found == (sum == "mnG7TA==" ? nil : .objectNotFound))
        #expect(service.log.map(\.method) == ["GET", "POST", "POST", "GET"])
        #expect(service.log[1].target == "/b/photos/o/b?moveFrom=a&sourceGeneration=7")
    }

    /// Only deletions that may succeed later are repeated.
    @Test func deletionsThatFail() async throws {
        let (service, storage) = start { request in
            let isFirst = request.text.contains("denied")
            return .json(
                isFirst
                    ? #"{"results": [{"status": 204}, {"status": 403, "code": "denied", "detail": "No"}, "#
                        + #"{"status": 503, "code": "x"}, {"status": 404, "code": "object-not-found"}]}"#
                    : #"{"results": [{"status": 204}]}"#)
        }
        let references = ["a", "denied", "later", "absent"].map(storage.reference(withPath:))
        let failures = try await storage.delete(references)
        #expect(failures.mapValues(\.reason) == [references[1]: .unauthorized])
        #expect(service.log.last?.text == #"{"objects":[{"name":"later"}]}"#)
        #expect(service.log.count == 2)
        // A response without the result of each one is malformed.
        storage.maxOperationRetryTime = 0.1
        #expect(await code { try await storage.delete([references[0], references[2]]) } == .retryLimitExceeded)
    }

    /// A rule that permits only new objects denies the repetition of an upload whose response was lost.
    @Test(arguments: [403, 409, 412])
    func aRepeatedUploadThatIsDenied(status: Int) async throws {
        let bytes = Data("hello".utf8)
        let sum = CRC32C(Array(bytes)).base64
        let puts = Mutex(0)
        let stored = Mutex(sum)
        let (service, storage) = start { request in
            guard request.method == "PUT" else {
                return Self.metadata("a", size: 5, crc32c: stored.withLock { $0 })
            }
            let count = puts.withLock { puts in
                puts += 1
                return puts
            }
            return count % 2 == 1 ? .cut : Self.problem(status, "x")
        }
        let reference = storage.reference(withPath: "a")
        #expect(try await reference.putDataAsync(bytes).generation == 7)
        #expect(service.log.map(\.method) == ["PUT", "PUT", "GET"])
        // Another object is there.
        stored.withLock { $0 = "AAAAAA==" }
        let error = await #expect(throws: StorageError.self) {
            try await reference.putDataAsync(bytes)
        }
        #expect(error?.status == status)
    }

    @Test func aResponseOfAnotherObject() async throws {
        let (_, storage) = start { request in
            request.query["delimiter"] == nil
                ? Self.metadata("b", size: 1)
                : .json(#"{"prefixes": [], "items": [{"fullPath": "b/x"}]}"#)
        }
        storage.maxOperationRetryTime = 1
        let reference = storage.reference(withPath: "a")
        for operation: () async throws -> Void in [
            { _ = try await reference.getMetadata() },
            { _ = try await reference.updateMetadata(StorageMetadata()) },
            { _ = try await reference.list(maxResults: 1) },
        ] {
            #expect(await code(operation) == .retryLimitExceeded)
        }
    }

    @Test func aRepeatedDeletion() async throws {
        let responses = Mutex([
            FakeService.Response.cut, Self.problem(404, "object-not-found"), .cut,
            Self.problem(404, "bucket-not-found"), Self.problem(404, "object-not-found"),
        ])
        let (_, storage) = start { _ in responses.withLock { $0.removeFirst() } }
        storage.maxOperationRetryTime = 120
        let reference = storage.reference(withPath: "a")
        #expect(await code { try await reference.delete() } == nil)
        #expect(await code { try await reference.delete() } == .bucketNotFound)
        #expect(await code { try await reference.delete() } == .objectNotFound)
    }

    /// `pause` is in seconds. A pause ends with the retry time at the latest.
    @Test(arguments: [
        ("nan", 0.0), ("-1", 0), ("inf", 0), ("0", 0), ("2", 2), ("99999999999999999999999", 9),
    ])
    func pausesThatAreAskedFor(value: String, pause: Double) async throws {
        let count = Mutex(0)
        let (_, storage) = start { _ in
            let isFirst = count.withLock { count in
                count += 1
                return count == 1
            }
            return isFirst
                ? FakeService.Response(status: 503, fields: [("Retry-After", value)])
                : Self.metadata("a", size: 0)
        }
        storage.maxOperationRetryTime = 10
        let begun = ContinuousClock.now
        #expect(try await storage.reference(withPath: "a").getMetadata().generation == 7)
        let spent = begun.duration(to: .now)
        #expect(spent >= .seconds(pause) && spent < .seconds(60))
    }

    @Test func aCredentialThatNeverComes() async throws {
        let (service, storage) = start { _ in Self.metadata("a", size: 0) }
        storage.maxOperationRetryTime = 1
        storage.credentials = .bearer {
            try await Task.sleep(for: .seconds(3600))
            return "t"
        }
        let reference = storage.reference(withPath: "a")
        #expect(await code { _ = try await reference.getMetadata() } == .retryLimitExceeded)
        let waiting = Task { try await reference.getMetadata() }
        waiting.cancel()
        #expect(await code { _ = try await waiting.value } == .cancelled)
        #expect(service.log.isEmpty)
    }

    @Test func headerFields() async throws {
        let (service, storage) = start { _ in Self.metadata("a", size: 0) }
        let reference = storage.reference(withPath: "a")
        storage.configuration.headerFields = [
            "X-Team": "maps", "Authorization": "Basic x", "Accept-Encoding": "gzip",
        ]
        _ = try await reference.getMetadata()
        storage.credentials = .token("t")
        _ = try await reference.getMetadata()
        let fields = service.log.map(\.fields)
        #expect(fields.map { $0["x-team"] } == ["maps", "maps"])
        #expect(fields.map { $0["authorization"] } == ["Basic x", "Bearer t"])
        #expect(fields.map { $0["accept-encoding"] } == ["identity", "identity"])
        for name in ["", "a b", "Host", "content-length", "x\r\ny"] {
            storage.configuration.headerFields = [name: "x"]
            #expect(await code { _ = try await reference.getMetadata() } == .invalidArgument)
        }
        storage.configuration.headerFields = ["x": "a\r\nb: c"]
        #expect(await code { _ = try await reference.getMetadata() } == .invalidArgument)
        #expect(service.log.count == 2)
    }

    @Test func aLinkElsewhere() async throws {
        let (_, storage) = start { _ in .json(#"{"path": "@example.com/b/photos/o/a"}"#) }
        #expect(
            await code { _ = try await storage.reference(withPath: "a").downloadURL() }
                == .invalidArgument)
    }

    @Test func metadataThatCanNotBe() throws {
        func parse(_ text: String) -> StorageMetadata? {
            StorageMetadata(json: Array(text.utf8), of: "a")
        }
        let start = #"{"bucket": "b", "fullPath": "a", "generation": 1, "size": "#
        #expect(parse(start + "1}")?.size == 1)
        #expect(parse(start + "-1}") == nil && parse(start + "1") == nil && parse("[]") == nil)
        let metadata = StorageMetadata()
        metadata.customMetadata = ["a": String(repeating: "x", count: 8000)]
        _ = try metadata.values.fields(type: nil)
        metadata.customMetadata = ["a": String(repeating: "\u{1}", count: 8000)]
        let error = #expect(throws: StorageError.self) { try metadata.values.fields(type: nil) }
        #expect(error?.reason == .invalidArgument)
    }

    /// Functions with `async` do not need the queue for callbacks, which nobody may run.
    @Test func aQueueThatNobodyRuns() async throws {
        let bytes = Data("hello".utf8)
        let sum = CRC32C(Array(bytes)).base64
        let (_, storage) = start { _ in Self.metadata("a", size: 5, crc32c: sum) }
        let queue = DispatchQueue(label: "stopped")
        queue.suspend()
        defer { queue.resume() }
        storage.callbackQueue = queue
        let progress = Mutex<[Double]>([])
        try await storage.reference(withPath: "a").putDataAsync(bytes) { value in
            progress.withLock { $0.append(value?.fractionCompleted ?? -1) }
        }
        #expect(progress.withLock { $0 } == [1])
    }
}
