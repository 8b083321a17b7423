import Foundation
import Synchronization
import TestSupport
import Testing
import Wire

@testable import SluiceStorage

/// Uploads in parts to a service whose failures each test scripts.
@Suite struct PartsUploadTests {
    private static let mebibyte = 1 << 20
    /// Four parts and a half, of 1 MiB.
    private static let size = 9 << 19

    /// A gateway with one upload in parts at a time.
    private final class FakeParts: Sendable {
        struct State {
            var parts: [Int: [UInt8]] = [:]
            var object: [UInt8]?
            /// The numbers of the parts that were sent, in order.
            var sent: [Int] = []
            var selections: [String] = []
            var hasCRC = true
            /// The most parts in one page of the list.
            var page = 1000
        }
        let state = Mutex(State())

        func respond(_ request: FakeService.Request) -> FakeService.Response {
            let query = request.query
            return state.withLock { state in
                switch (request.method, query["parts"]) {
                case ("POST", ""):
                    state.parts = [:]
                    return .json(
                        #"{"url": "http://elsewhere/b/photos/o/a?parts=QUFB", "minimumPartSize": "5"}"#, 201,
                        [("Location", "http://elsewhere/b/photos/o/a?parts=QUFB")])
                case ("PUT", "QUFB"):
                    let number = Int(query["part"]!)!
                    state.sent.append(number)
                    state.parts[number] = request.body
                    return .json(json(number, request.body, true))
                case ("GET", "QUFB"):
                    if state.object != nil { return PartsUploadTests.problem(409, "upload-conflict") }
                    let after = Int(query["after"]!)!
                    let all = state.parts.keys.sorted().filter { $0 > after }
                    let page = all.prefix(state.page)
                    let texts = page.map { json($0, state.parts[$0]!, state.hasCRC) }.joined(separator: ",")
                    let next = page.count < all.count ? #", "after": \#(page.last!)"# : ""
                    return .json(#"{"parts": [\#(texts)]\#(next)}"#)
                case ("POST", "QUFB"):
                    state.selections.append(request.text)
                    state.object = state.object ?? state.parts.sorted { $0.key < $1.key }.flatMap(\.value)
                    return metadata(state.object!, 201)
                case ("DELETE", "QUFB"): return FakeService.Response(status: 204)
                default:
                    return state.object.map { metadata($0) } ?? PartsUploadTests.problem(404, "object-not-found")
                }
            }
        }

        private func json(_ number: Int, _ bytes: [UInt8], _ hasCRC: Bool) -> String {
            let crc = hasCRC ? #", "crc32c": "\#(CRC32C(bytes).base64)""# : ""
            let etag = PartsUploadTests.etag(bytes)
            return #"{"part": \#(number), "size": "\#(bytes.count)", "etag": "\#(etag)"\#(crc)}"#
        }

        private func metadata(_ bytes: [UInt8], _ status: Int = 200) -> FakeService.Response {
            .json(
                #"{"bucket": "photos", "fullPath": "a", "size": \#(bytes.count), "generation": 7, "#
                    + #""crc32c": "\#(CRC32C(bytes).base64)"}"#, status)
        }
    }

    private static func etag(_ bytes: [UInt8]) -> String {
        var md5 = MD5()
        md5.update(bytes)
        return Hexadecimal.encode(Base64.decode(Array(md5.base64().utf8)[...])!)
    }

    private static func problem(_ status: Int, _ code: String) -> FakeService.Response {
        .json(#"{"title": "No", "code": "\#(code)"}"#, status)
    }

    private final class Fixture: Sendable {
        typealias Fault = @Sendable (FakeService.Request, _ isDone: Bool) -> FakeService.Response?
        let gateway = FakeParts()
        let reference: StorageReference
        let path: String
        let bytes = Array(pattern(PartsUploadTests.size))
        let began = Mutex<[StorageUploadResumptionData]>([])
        let progress = Mutex<[[Int64]]>([])
        private let service: FakeService
        private let folder = TemporaryDirectory()

        /// - Parameter fault: Returns another response than that of a gateway, before (`isDone` is false) or after the
        ///   request is executed.
        init(retryTime: TimeInterval = 5, _ fault: @escaping Fault = { _, _ in nil }) {
            service = FakeService { [gateway] request in
                if let response = fault(request, false) { return response }
                let response = gateway.respond(request)
                return fault(request, true) ?? response
            }
            let storage = Storage(url: "http://127.0.0.1:\(service.port)", bucket: "photos")
            storage.maxUploadRetryTime = retryTime
            storage.maxOperationRetryTime = retryTime
            reference = storage.reference(withPath: "a")
            path = folder.write("file", bytes)
        }

        /// Uploads the file in parts of 1 MiB.
        @discardableResult
        func put(
            _ slots: TransferSlots = TransferSlots(1), from saved: StorageUploadResumptionData? = nil
        ) async throws(StorageError) -> StorageMetadata? {
            let file = try LocalFile(path)
            // The caller has a slot.
            _ = slots.tryAcquire()
            return try await reference.operation { requests throws(StorageError) in
                var upload = PartsUpload(
                    requests: UploadRequests(
                        reference: reference, requests: requests, fields: [("Content-Type", "text/x-a")]),
                    file: file, slots: slots)
                upload.leastPartSize = 1 << 20
                return try await upload.run(
                    saved, { data in began.withLock { $0.append(data) } },
                    { done, present in progress.withLock { $0.append([done, present]) } })
            }
        }

        func part(_ number: Int) -> [UInt8] {
            Array(bytes[(number - 1) << 20..<min(bytes.count, number << 20)])
        }

        /// The data of an upload of which the gateway has these parts.
        func saved(_ parts: [Int: [UInt8]]) throws -> StorageUploadResumptionData {
            gateway.state.withLock { $0.parts = parts }
            return StorageUploadResumptionData(
                bucket: "photos", path: "a", session: "/b/photos/o/a?parts=QUFB",
                file: try #require(FileState(path: path)), fields: [], partSize: 1 << 20)
        }

        var log: [FakeService.Request] { service.log }
        var methods: [String] { service.log.map(\.method) }
        var object: [UInt8]? { gateway.state.withLock { $0.object } }
        var sent: [Int] { gateway.state.withLock { $0.sent } }
    }

    /// Counts from 1.
    private final class Counter: Sendable {
        private let count = Mutex(0)
        func next() -> Int {
            count.withLock { count in
                count += 1
                return count
            }
        }
    }

    // MARK: The course

    @Test func aFileInParts() async throws {
        let fixture = Fixture()
        let stored = try #require(try await fixture.put())
        #expect(stored.size == Int64(Self.size) && fixture.object == fixture.bytes)
        #expect(fixture.methods == ["POST"] + Array(repeating: "PUT", count: 5) + ["POST"])
        #expect(fixture.sent == [1, 2, 3, 4, 5])
        let first = fixture.log[0]
        #expect(first.target == "/b/photos/o/a?parts" && first.fields["upload-length"] == "\(Self.size)")
        #expect(first.fields["content-type"] == "text/x-a")
        let digest = "crc32c=:\(CRC32C(fixture.part(5)).base64):"
        #expect(fixture.log[5].fields["content-digest"] == digest)
        let selection = fixture.gateway.state.withLock { $0.selections }
        let items = (1...5).map { #"{"part":\#($0),"etag":"\#(Self.etag(fixture.part($0)))"}"# }
        #expect(selection == [#"{"parts":[\#(items.joined(separator: ","))]}"#])
        #expect(fixture.progress.withLock { $0.map { $0[0] } } == [0, 1, 2, 3, 4, 4.5].map { Int64($0 * 1_048_576) })
        #expect(fixture.began.withLock { $0.map(\.partSize) } == [1 << 20])
    }

    /// Free slots are used for further parts, and no others.
    @Test(arguments: [1, 3, 8]) func slots(_ limit: Int) async throws {
        let gate = Gate()
        let running = Mutex((now: 0, most: 0))
        let fixture = Fixture { request, isDone in
            guard request.method == "PUT" else { return nil }
            running.withLock { running in
                running.now += isDone ? -1 : 1
                running.most = max(running.most, running.now)
            }
            if !isDone { gate.pass() }
            return nil
        }
        let slots = TransferSlots(limit)
        let put = Task { try await fixture.put(slots) }
        await eventually { running.withLock { $0.now } == min(limit, 5) }
        gate.open()
        #expect(try await put.value?.size == Int64(Self.size))
        #expect(running.withLock { $0.most } == min(limit, 5) && fixture.object == fixture.bytes)
        // All but the caller's slot are free again.
        #expect((0..<limit).filter { _ in slots.tryAcquire() }.count == limit - 1)
    }

    /// A transfer that waits gets the slot of a part before another part.
    @Test func aTransferThatWaits() async throws {
        let slots = TransferSlots(1)
        #expect(slots.tryAcquire() && !slots.tryAcquire())
        let waiting = Task { await slots.acquire() }
        slots.release()
        await waiting.value
        #expect(!slots.tryAcquire())
        slots.release()
        #expect(slots.tryAcquire())
    }

    @Test func sizesOfParts() throws {
        let folder = TemporaryDirectory()
        func partSize(_ size: Int64, minimum: Int64) throws -> Int64 {
            let path = folder.write("sparse", [])
            #expect(truncate(path, off_t(size)) == 0)
            let reference = Storage(url: "http://127.0.0.1:1", bucket: "b").reference(withPath: "a")
            let requests = Requests(storage: reference.storage, control: TransferControl())
            return PartsUpload(
                requests: UploadRequests(reference: reference, requests: requests, fields: []),
                file: try LocalFile(path), slots: TransferSlots(1)
            ).partSize(minimum: minimum)
        }
        #expect(try partSize(65 << 20, minimum: 0) == 16 << 20)
        #expect(try partSize(65 << 20, minimum: 20_000_001) == 20_000_001)
        // 10,000 parts of 16 MiB.
        #expect(try partSize(10_000 << 24, minimum: 0) == 16 << 20)
        #expect(try partSize(10_000 << 24 + 1, minimum: 0) == 17 << 20)
    }

    // MARK: Faults

    /// What fails is sent again, alone.
    @Test(arguments: [0, 503, 429, 400, 200]) func aPartThatFails(_ status: Int) async throws {
        let attempts = Counter()
        let fixture = Fixture { request, isDone in
            guard request.query["part"] == "3", !isDone, attempts.next() == 1 else { return nil }
            switch status {
            case 0: return .cut
            case 200: return .json(#"{"part": 3, "size": "1048576", "etag": "x", "crc32c": "AAAAAA=="}"#)
            default: return Self.problem(status, "checksum-mismatch")
            }
        }
        try await fixture.put(TransferSlots(2))
        #expect(fixture.methods.filter { $0 == "PUT" }.count == 6 && fixture.sent.sorted() == [1, 2, 3, 4, 5])
        #expect(fixture.object == fixture.bytes)
    }

    @Test func aPartThatIsStoredWithOtherBytes() async throws {
        let fixture = Fixture(retryTime: 0) { request, isDone in
            guard request.query["part"] == "2", isDone else { return nil }
            return .json(#"{"part": 2, "size": "1048576", "etag": "x", "crc32c": "AAAAAA=="}"#)
        }
        let error = await #expect(throws: StorageError.self) { try await fixture.put() }
        #expect(error?.reason == .nonMatchingChecksum && fixture.methods == ["POST", "PUT", "PUT"])
    }

    @Test func anObjectWithOtherBytes() async throws {
        let fixture = Fixture { request, isDone in
            guard request.method == "POST", isDone, request.query["parts"] != "" else { return nil }
            return .json(
                #"{"bucket": "photos", "fullPath": "a", "size": \#(Self.size), "generation": 7, "crc32c": "AAAAAA=="}"#)
        }
        let error = await #expect(throws: StorageError.self) { try await fixture.put() }
        #expect(error?.reason == .nonMatchingChecksum)
    }

    @Test(arguments: [400, 404, 405, 501]) func aGatewayWithoutParts(_ status: Int) async throws {
        let fixture = Fixture { request, _ in Self.problem(status, "x") }
        #expect(try await fixture.put() == nil)
        #expect(fixture.methods == ["POST"] && fixture.began.withLock { $0.isEmpty })
    }

    @Test func aDenial() async throws {
        let fixture = Fixture { request, _ in Self.problem(403, "denied") }
        let error = await #expect(throws: StorageError.self) { try await fixture.put() }
        #expect(error?.reason == .unauthorized && fixture.methods == ["POST"])
    }

    @Test func aFileThatChanges() async throws {
        let path = Mutex("")
        let fixture = Fixture { request, isDone in
            if request.query["part"] == "2", !isDone {
                let file = FileHandle(forWritingAtPath: path.withLock { $0 })!
                file.seekToEndOfFile()
                file.write(Data("more".utf8))
            }
            return nil
        }
        path.withLock { $0 = fixture.path }
        let error = await #expect(throws: StorageError.self) { try await fixture.put() }
        guard case .changedFile? = error?.cause else {
            Issue.record("\(String(describing: error))")
            return
        }
        // Nobody can continue it.
        #expect(fixture.methods.last == "DELETE" && fixture.object == nil)
    }

    @Test func aCancelledUploadIsRemoved() async throws {
        let gate = Gate()
        let fixture = Fixture { request, _ in
            if request.method == "PUT" { gate.pass() }
            return nil
        }
        defer { gate.open() }
        let put = Task { try await fixture.put(TransferSlots(2)) }
        await eventually { fixture.methods.count == 3 }
        put.cancel()
        let error = await #expect(throws: StorageError.self) { try await put.value }
        #expect(error?.reason == .cancelled && fixture.methods.last == "DELETE")
    }

    /// The end is requested again.
    @Test func aLostEnd() async throws {
        let ends = Counter()
        let fixture = Fixture { request, isDone in
            request.method == "POST" && isDone && ends.next() == 2 ? .cut : nil
        }
        #expect(try await fixture.put()?.generation == 7)
        #expect(fixture.gateway.state.withLock { Set($0.selections).count == 1 && $0.selections.count == 2 })
    }

    /// The gateway has created the object and forgotten the upload, and its response is lost.
    @Test func anEndThatIsForgotten() async throws {
        let ends = Counter()
        let fixture = Fixture { request, isDone in
            guard request.query["parts"] == "QUFB", request.method == "POST" else { return nil }
            if isDone { return .cut }
            return ends.next() == 1 ? nil : Self.problem(404, "upload-not-found")
        }
        #expect(try await fixture.put()?.generation == 7)
        #expect(fixture.methods.suffix(3) == ["POST", "POST", "GET"])
    }

    @Test func anUploadThatIsForgotten() async throws {
        let parts = Counter()
        let fixture = Fixture { request, isDone in
            request.method == "PUT" && !isDone && parts.next() == 3 ? Self.problem(404, "upload-not-found") : nil
        }
        #expect(try await fixture.put()?.generation == 7)
        #expect(fixture.sent == [1, 2, 1, 2, 3, 4, 5] && fixture.began.withLock { $0.count } == 2)
    }

    // MARK: Continuation

    /// Only those parts are sent that the gateway does not have with the file's bytes.
    @Test(arguments: [true, false]) func partsThatAreThere(_ hasCRC: Bool) async throws {
        let fixture = Fixture()
        let saved = try fixture.saved([
            1: fixture.part(1), 2: Array(repeating: 0, count: Self.mebibyte), 3: fixture.part(3),
            4: Array(fixture.part(4).dropLast()), 5: fixture.part(5),
        ])
        fixture.gateway.state.withLock { ($0.hasCRC, $0.page) = (hasCRC, 2) }
        #expect(try await fixture.put(from: saved)?.generation == 7)
        #expect(fixture.object == fixture.bytes && fixture.sent == [2, 4] && fixture.began.withLock { $0.isEmpty })
        #expect(fixture.methods == ["GET", "GET", "GET", "PUT", "PUT", "POST"])
        #expect(fixture.progress.withLock { $0.last } == [Int64(Self.size), 5 << 19])
    }

    /// The program was killed before it could forget the upload.
    @Test func anUploadThatHasEnded() async throws {
        let fixture = Fixture()
        let saved = try fixture.saved([:])
        fixture.gateway.state.withLock { $0.object = fixture.bytes }
        #expect(try await fixture.put(from: saved)?.generation == 7)
        #expect(fixture.methods == ["GET", "POST", "GET"] && fixture.sent.isEmpty)
    }

    /// The result of an upload that has ended is repeated, although its object was deleted since.
    @Test func anUploadWhoseObjectIsGone() async throws {
        let gets = Counter()
        let fixture = Fixture { request, isDone in
            request.method == "GET" && !isDone && gets.next() == 2 ? Self.problem(404, "object-not-found") : nil
        }
        let saved = try fixture.saved([:])
        fixture.gateway.state.withLock { $0.object = fixture.bytes }
        try await fixture.put(from: saved)
        #expect(fixture.methods.prefix(4) == ["GET", "POST", "GET", "POST"] && fixture.sent == [1, 2, 3, 4, 5])
    }

    @Test func anEarlierUploadThatIsForgotten() async throws {
        let fixture = Fixture { request, _ in
            request.method == "GET" ? Self.problem(404, "upload-not-found") : nil
        }
        let saved = try fixture.saved([1: fixture.part(1)])
        try await fixture.put(from: saved)
        #expect(fixture.sent == [1, 2, 3, 4, 5] && fixture.began.withLock { $0.count } == 1)
    }

    @Test func anEarlierUploadOfAnotherFile() async throws {
        let fixture = Fixture()
        let saved = try fixture.saved([:])
        try Data("other".utf8).write(to: URL(filePath: fixture.path))
        let error = await #expect(throws: StorageError.self) { try await fixture.put(from: saved) }
        guard case .changedFile? = error?.cause else {
            Issue.record("\(String(describing: error))")
            return
        }
        #expect(fixture.methods.isEmpty)
    }

    // MARK: The real gateway

    /// Through putFileInParts, with the default sizes, and damage on the way.
    @Test func withTheGateway() async throws {
        let gateway = try await GatewayProcess()
        let proxy = FaultProxy(gateway.port) { number in
            switch number {
            case 2: FaultProxy.Fault(cutsRequest: 3_000_000)
            case 3: FaultProxy.Fault(flipsRequest: 5_000_000)
            default: .none
            }
        }
        let reference = gateway.storage(proxy).reference(withPath: "large.png")
        let size = 40 << 20
        let file = gateway.file("file", size: size)
        let metadata = StorageMetadata()
        metadata.customMetadata = ["Place": "Oslo"]
        let slots = TransferSlots(3)
        #expect(slots.tryAcquire())
        let stored = try #require(
            try await reference.putFileInParts(file.path, metadata: metadata, slots))
        #expect(stored.contentType == "image/png" && stored.customMetadata == ["Place": "Oslo"])
        #expect(try await reference.data(maxSize: Int64(size)) == pattern(size))
        // POST, three parts, two of them twice, POST.
        #expect(proxy.connections >= 7)
    }
}
