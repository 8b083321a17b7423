import Foundation
import Synchronization
import TestSupport
import Testing

@testable import SluiceStorage

/// Uploads and downloads at a service whose failures each test scripts.
@Suite struct SessionTests {
    /// One object of a service, and the session that uploads it.
    private final class Upload: Sendable {
        let bytes = Mutex<[UInt8]>([])

        func respond(_ request: FakeService.Request) -> FakeService.Response {
            let isSession = request.fields["upload-complete"] == "?0"
            switch request.method {
            case "PUT" where isSession:
                bytes.withLock { $0 = [] }
                return FakeService.Response(
                    status: 201, fields: [("Location", "/b/photos/u/QUFB")])
            case "PUT": bytes.withLock { $0 = request.body }
            case "PATCH": bytes.withLock { $0 += request.body }
            case "DELETE": return FakeService.Response(status: 204)
            default: break
            }
            let isOffset = request.method == "HEAD" || request.method == "PATCH" && isSession
            return isOffset ? offset : metadata
        }

        private var offset: FakeService.Response {
            let count = bytes.withLock { $0.count }
            return FakeService.Response(status: 204, fields: [("Upload-Offset", "\(count)")])
        }

        private var metadata: FakeService.Response {
            let bytes = bytes.withLock { $0 }
            return .json(
                #"{"bucket": "photos", "fullPath": "a", "size": \#(bytes.count), "generation": 7, "#
                    + #""crc32c": "\#(CRC32C(bytes).base64)"}"#)
        }
    }

    private final class Session: Sendable {
        let upload = Upload()
        let reference: StorageReference
        private let service: FakeService

        /// - Parameter fault: Returns another response than that of a gateway, before (`isDone` is false) or after the
        ///   request is executed.
        init(
            _ fault:
                @escaping @Sendable (FakeService.Request, _ isDone: Bool) ->
                FakeService.Response?
        ) {
            service = FakeService { [upload] request in
                if let response = fault(request, false) { return response }
                let response = upload.respond(request)
                return fault(request, true) ?? response
            }
            let storage = Storage(url: "http://127.0.0.1:\(service.port)", bucket: "photos")
            storage.uploadChunkSizeBytes = 300_000
            storage.maxUploadRetryTime = 5
            storage.maxOperationRetryTime = 2
            reference = storage.reference(withPath: "a")
        }

        /// The methods of the requests so far.
        var log: [String] { service.log.map(\.method) }
    }

    private static func problem(_ status: Int, _ code: String = "x") -> FakeService.Response {
        .json(#"{"title": "No", "code": "\#(code)"}"#, status)
    }

    /// Counts from 1.
    private final class Counter: Sendable {
        private let count = Mutex(0)
        var value: Int { count.withLock { $0 } }
        func next() -> Int {
            count.withLock { count in
                count += 1
                return count
            }
        }
    }

    // MARK: Uploads

    /// The response to an upload is lost, and the upload paused before it is sent again.
    @Test func aPauseAfterALostResponse() async throws {
        let gate = Gate()
        let puts = Counter()
        let paused = Mutex<StorageUploadTask?>(nil)
        let session = Session { request, isDone in
            guard request.method == "PUT" else { return nil }
            guard isDone else { return puts.next() == 1 ? nil : Self.problem(412) }
            gate.pass()
            paused.withLock { $0?.pause() }
            return .cut
        }
        let task = session.reference.putData(Data("hello".utf8))
        paused.withLock { $0 = task }
        gate.open()
        await eventually { task.snapshot.status == .pause }
        task.resume()
        for await _ in task.snapshots {}
        #expect(task.snapshot.status == .success && task.snapshot.metadata?.generation == 7)
        #expect(session.log == ["PUT", "PUT", "GET"])
        paused.withLock { $0 = nil }
    }

    /// A pause while the library looks whether the object is stored.
    @Test func aPauseWhileTheObjectIsLookedFor() async throws {
        let gate = Gate()
        let puts = Counter()
        let paused = Mutex<StorageUploadTask?>(nil)
        let isDown = Mutex(true)
        let session = Session { request, isDone in
            if request.method == "GET" {
                guard isDown.withLock({ $0 }) else { return nil }
                gate.pass()
                paused.withLock { $0?.pause() }
                return .cut
            }
            if isDone { return .cut }
            return puts.next() == 1 ? nil : Self.problem(403)
        }
        let task = session.reference.putData(Data("hello".utf8))
        paused.withLock { $0 = task }
        gate.open()
        await eventually { [.pause, .failure].contains(task.snapshot.status) }
        #expect(session.log == ["PUT", "PUT", "GET"])
        isDown.withLock { $0 = false }
        task.resume()
        for await _ in task.snapshots {}
        #expect(task.snapshot.status == .success)
        paused.withLock { $0 = nil }
    }

    private func file(_ folder: TemporaryDirectory, _ size: Int) -> URL {
        URL(filePath: folder.write("file", Array(pattern(size))))
    }

    @Test func resumptionDataIsThereAtTheFirstProgress() async throws {
        let gate = Gate()
        let session = Session { request, isDone in
            if request.method == "PUT", !isDone { gate.pass() }
            return nil
        }
        let folder = TemporaryDirectory()
        let task = session.reference.putFile(from: file(folder, 700_000))
        let seen = Mutex<[Bool]>([])
        task.observeDirectly { [weak task] _ in
            seen.withLock { $0.append(task?.resumptionData != nil) }
        }
        gate.open()
        for await _ in task.snapshots {}
        #expect(task.snapshot.status == .success)
        #expect(seen.withLock { $0.first } == true && session.log.count == 4)
    }

    /// An upload that begins again is no failure of the connection.
    @Test func anExpiredSessionWithoutARetryTime() async throws {
        let requests = Counter()
        let session = Session { request, isDone in
            request.method == "HEAD" && !isDone && requests.next() == 1
                ? Self.problem(404, "upload-not-found") : nil
        }
        session.reference.storage.maxUploadRetryTime = 0
        let folder = TemporaryDirectory()
        let path = file(folder, 700_000)
        let saved = StorageUploadResumptionData(
            bucket: "photos", path: "a", session: "/b/photos/u/QUFC",
            file: try #require(FileState(path: path.path)), fields: [])
        let task = session.reference.resumeUpload(from: saved, file: path)
        for await _ in task.snapshots {}
        #expect(task.snapshot.status == .success)
        #expect(session.log == ["HEAD", "PUT", "PATCH", "PATCH", "PATCH"])
    }

    // MARK: Streams

    private func put(_ session: Session, _ size: Int) async throws(StorageError) -> StorageMetadata {
        var rest = pattern(size)[...]
        return try await session.reference.putStream { () throws(StorageError) in
            defer { rest = rest.dropFirst(100_000) }
            return rest.isEmpty ? nil : Array(rest.prefix(100_000))
        }
    }

    /// A response that is not that to the request, and a session that expires before it has any bytes.
    @Test func aStreamThatIsDisturbed() async throws {
        let pieces = Counter()
        let session = Session { request, isDone in
            guard request.method == "PATCH", isDone else { return nil }
            switch pieces.next() {
            case 1: return Self.problem(404, "upload-not-found")
            case 2: return FakeService.Response(status: 204, fields: [("Upload-Offset", "0")])
            default: return nil
            }
        }
        #expect(try await put(session, 700_000).size == 700_000)
        #expect(session.upload.bytes.withLock { Data($0) } == pattern(700_000))
        #expect(session.log == ["PUT", "PATCH", "PUT", "PATCH", "HEAD", "PATCH", "PATCH"])
    }

    /// The gateway has stored the object and forgotten the session, and its response is lost.
    @Test func aStreamWhoseEndIsLost() async throws {
        let pieces = Counter()
        let session = Session { request, isDone in
            switch request.method {
            case "PATCH" where isDone && pieces.next() == 3: .cut
            case "HEAD": Self.problem(404, "upload-not-found")
            default: nil
            }
        }
        #expect(try await put(session, 700_000).generation == 7)
        #expect(session.log == ["PUT", "PATCH", "PATCH", "PATCH", "HEAD", "GET"])
    }

    @Test func aStreamThatIsCancelled() async throws {
        let gate = Gate()
        let session = Session { request, isDone in
            if request.method == "PATCH" { gate.pass() }
            return nil
        }
        defer { gate.open() }
        session.reference.storage.maxUploadRetryTime = 600
        let upload = Task { try await put(session, 700_000) }
        await eventually { session.log.contains("PATCH") }
        upload.cancel()
        let error = await #expect(throws: StorageError.self) { try await upload.value }
        #expect(error?.reason == .cancelled)
        // The session is removed.
        #expect(session.log == ["PUT", "PATCH", "DELETE"])
    }

    // MARK: Downloads

    /// Serves an object of ten bytes. `metadata` is what it says of it besides.
    private func service(
        _ metadata: String, generation: @escaping @Sendable () -> Int = { 7 }
    ) -> (FakeService, StorageReference) {
        let service = FakeService { request in
            guard let range = request.fields["range"] else {
                return .json(
                    #"{"bucket": "photos", "fullPath": "a", "size": 10, "#
                        + #""generation": \#(generation()), \#(metadata)}"#)
            }
            guard request.fields["x-object-generation-match"] == "7" else {
                return Self.problem(412)
            }
            let ends = range.dropFirst(6).split(separator: "-").compactMap { Int($0) }
            return FakeService.Response(
                status: 206,
                fields: [
                    ("Content-Range", "bytes \(ends[0])-\(ends[1])/10"),
                    ("X-Object-Generation", "7"),
                ], body: Array(0..<10)[ends[0]...ends[1]].map { UInt8($0) })
        }
        let storage = Storage(url: "http://127.0.0.1:\(service.port)", bucket: "photos")
        storage.maxDownloadRetryTime = 3
        return (service, storage.reference(withPath: "a"))
    }

    @Test func anObjectThatIsReplacedAgainAndAgain() async throws {
        let generations = Counter()
        let (service, reference) = service(#""crc32c": "x""#) { 7 + generations.next() }
        let error = await #expect(throws: StorageError.self) {
            try await reference.data(maxSize: 10)
        }
        #expect(error?.message.contains("replaced") == true)
        #expect(service.log.count == 22)
    }

    @Test func aReaderWithoutALimit() async throws {
        let sum = CRC32C((0..<10).map { UInt8($0) }).base64
        let (_service, reference) = service(#""crc32c": "\#(sum)""#)
        var reader = try await StorageReader(reference)
        #expect(try await reader.next(maximum: 4) == [0, 1, 2, 3])
        #expect(try await reader.next(maximum: .max) == [4, 5, 6, 7, 8, 9])
        #expect(try await reader.next() == nil)
        #expect(try await reader.next() == nil)
        _ = _service
    }

    @Test func aReaderAfterAMismatch() async throws {
        let (_service, reference) = service(#""md5Hash": "x""#)
        var reader = try await StorageReader(reference)
        _ = try await reader.next()
        for _ in 0..<2 {
            do throws(StorageError) {
                _ = try await reader.next()
                Issue.record("no error")
            } catch {
                #expect(error.reason == .nonMatchingChecksum)
            }
        }
        _ = _service
    }

    // MARK: Timers

    @Test func timersEndWithTheirWait() async {
        weak var left: Waiter?
        do {
            let waiter = Waiter()
            left = waiter
            waiter.wake()
            await waiter.wait(atMost: 3600)
        }
        await eventually { left == nil }
    }
}
