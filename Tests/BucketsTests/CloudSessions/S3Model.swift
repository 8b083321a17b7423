import HTTPClient
import OpenSSL
import System
import Wire

@testable import Buckets

/// S3 in memory: multipart uploads and conditional writes. All requests of a test's gateways go to one model.
final class S3Model: Sendable {
    struct Object {
        var bytes: [UInt8]
        var etag: String
        var mark: UInt64?
        var generation: Int64
    }
    struct Upload {
        var name: String
        var mark: UInt64
        var generation: Int64
        var parts: [UInt16: (etag: String, bytes: [UInt8])] = [:]
    }
    struct State {
        var objects: [String: Object] = [:]
        var uploads: [String: Upload] = [:]
        /// How often the object of a session was made, by its mark.
        var made: [UInt64: Int] = [:]
        var next = 0
    }
    let state = Lock(State())
    /// Seconds since 1970.
    let now = Lock<Int64>(1_000_000)

    /// What is left besides objects of clients.
    var leftovers: [String] {
        state.withLock { state in
            state.uploads.map { "upload \($0.key) of \($0.value.name)" }
                + state.objects.keys.filter { $0.hasPrefix(HiddenName.reserved) }
        }
    }

    /// A gateway that sends its requests through `send`.
    func gateway(_ send: @escaping S3ModelGateway.Send) -> S3ModelGateway {
        S3ModelGateway(self, send)
    }
}

/// What happens to a request.
enum S3ModelFault: Sendable, CaseIterable {
    case none
    /// It is not executed, and the gateway sees a broken connection.
    case before
    /// It is executed, and the gateway sees a broken connection.
    case after
    /// The gateway sees a broken connection, and it is executed later, or never.
    case late
}

/// One gateway process that uses the model.
///
/// Safety: its state has a lock.
final class S3ModelGateway: S3SessionRequests, @unchecked Sendable {
    /// Decides what happens to a request. `late` executes it later.
    typealias Send = (_ what: String, _ late: @escaping () -> Void) async -> S3ModelFault

    private let model: S3Model
    private let send: Send
    private let generations = Lock<Int64>(0)
    private let lost = Lock<[String]>([])
    /// Whether the process was killed: nothing that it sends arrives.
    let isDead = Lock(false)
    private static let pool = BlockingPool(threads: 1)

    init(_ model: S3Model, _ send: @escaping Send) {
        self.model = model
        self.send = send
    }

    /// Whether lists ignore where they should start, and always return the first page.
    var repeatsLists = false
    /// Whether lost multipart uploads are too young to be told from those of others.
    var leavesLost = false
    /// The streamed parts of sessions and uploads in parts.
    fileprivate(set) var streams: [S3ModelPart] = []
    /// Whether streamed parts fail before their end.
    var failsStreams = false
    /// Whether lists of parts ignore where they should start.
    var repeatsParts = false
    /// The maximum number of parts in a page.
    var partsPage = 2
    /// Whether lists go on forever, in order, with names that are no session's.
    var listsForever = false
    /// How long a call of a session waits for the append that it stops, in nanoseconds.
    var stopLimit: UInt64 = 30_000_000_000

    private(set) lazy var service = CloudSessions(
        S3SessionService(self), clock: { [model] in model.now.withLock { $0 } * 1_000_000 },
        stopLimit: stopLimit)

    var sizes: S3PartSizes = {
        var sizes = S3PartSizes(minimum: 20_000, maximum: 1 << 30)
        sizes.inlineTail = 4_000
        sizes.pieces = 2
        return sizes
    }()

    private func request<Result>(
        _ what: String, _ execute: @escaping (inout S3Model.State) -> Result
    ) async throws(BucketError) -> Result {
        let model = model
        func run() -> Result { model.state.withLock { execute(&$0) } }
        var failure = BucketError(.unavailable, "\(what): a fault of the test")
        failure.mayHaveChanged = true
        if isDead.withLock({ $0 }) { throw failure }
        let fault = await send(what) { _ = run() }
        if isDead.withLock({ $0 }) { throw failure }
        switch fault {
        case .none:
            let result = run()
            return result
        case .before, .late: throw failure
        case .after:
            _ = run()
            throw failure
        }
    }

    private static func etag(_ bytes: [UInt8], _ suffix: String = "") -> String {
        let digest = Digest(.md5)
        digest.update(bytes.span.bytes)
        return Hexadecimal.encode(digest.finish()) + suffix
    }

    func newGeneration(after previous: Int64) -> Int64 {
        generations.withLock { last in
            last = max(last, previous, Int64.random(in: 0..<1 << 40)) + 1
            return last
        }
    }

    func makeSpool() async throws(BucketError) -> SessionSpool {
        try await SessionSpool.make(in: "/tmp", S3ModelGateway.pool)
    }

    func beginUpload(_ state: CloudSessionState, generation: Int64, _ facts: ContentFacts?)
        async throws(BucketError) -> String
    {
        let earlier = lost.withLock { lost in
            defer { lost = [] }
            return lost
        }
        let made = Lock<String?>(nil)
        do throws(BucketError) {
            return try await request("create") { model in
                for id in earlier where model.uploads[id]?.parts.isEmpty == true {
                    model.uploads[id] = nil
                }
                model.next += 1
                let id = "upload-\(model.next)"
                model.uploads[id] = S3Model.Upload(
                    name: state.name, mark: state.mark, generation: generation)
                made.withLock { $0 = id }
                return id
            }
        } catch {
            if let id = made.withLock({ $0 }) { lost.withLock { $0.append(id) } }
            lost.withLock { $0 += earlier }
            throw error
        }
    }

    func sendPart(_ name: String, _ part: S3PartAddress, _ spool: SessionSpool)
        async throws(S3PartFailure) -> String
    {
        do throws(BucketError) {
            let bytes = try await spool.read(at: 0, limit: Int(spool.count))
            let etag = S3ModelGateway.etag(bytes)
            let (upload, number) = (part.upload, part.number)
            let isThere = try await request("part \(number)") { model in
                guard model.uploads[upload] != nil else { return false }
                model.uploads[upload]?.parts[number] = (etag, bytes)
                return true
            }
            if isThere { return etag }
        } catch {
            throw S3PartFailure(cause: error)
        }
        throw S3PartFailure(
            cause: BucketError(.unavailable, "no such upload"), isUploadGone: true)
    }

    func complete(
        _ name: String, _ upload: String, _ parts: [S3TransferState.Part],
        _ condition: S3Bucket.WriteCondition
    ) async -> S3Completion {
        do throws(BucketError) {
            return try await request("complete") { model in
                guard let found = model.uploads[upload] else { return .gone }
                let holds =
                    condition.isNew
                    ? model.objects[name] == nil
                    : condition.match == nil || model.objects[name]?.etag == condition.match
                guard holds else {
                    return .failed(BucketError(.preconditionFailed), isFinal: true)
                }
                var bytes: [UInt8] = []
                for part in parts {
                    guard let stored = found.parts[part.number], stored.etag == part.etag else {
                        return .failed(BucketError(.internal, "InvalidPart"), isFinal: true)
                    }
                    bytes += stored.bytes
                }
                model.uploads[upload] = nil
                let etag = S3ModelGateway.etag(bytes, "-\(parts.count)")
                model.objects[name] = S3Model.Object(
                    bytes: bytes, etag: etag, mark: found.mark, generation: found.generation)
                model.made[found.mark, default: 0] += 1
                return .stored(etag)
            }
        } catch {
            return .failed(error, isFinal: false)
        }
    }

    func abortUpload(_ name: String, _ upload: String) async throws(BucketError) {
        try await request("abort") { $0.uploads[upload] = nil }
    }

    func abortLost(_ name: String, since time: Int64, known: String?) async -> Bool {
        if leavesLost { return false }
        let removed: Void? = try? await request("abort lost") { model in
            model.uploads = model.uploads.filter { id, upload in
                id == known || upload.name != name || !upload.parts.isEmpty
            }
        }
        return removed != nil
    }

    func findMarked(_ name: String) async throws(BucketError) -> (
        object: ObjectMetadata, mark: UInt64?
    )? {
        try await request("head") { model in
            guard let found = model.objects[name] else { return nil }
            let object = ObjectMetadata(
                name: name, generation: found.generation, metageneration: 1,
                size: UInt64(found.bytes.count), created: found.generation / 1000,
                updated: found.generation / 1000, md5: nil, crc32c: nil, etag: found.etag,
                attributes: ObjectAttributes())
            return (object, found.mark)
        }
    }

    func writeCondition(_ name: String, _ preconditions: Preconditions)
        async throws(BucketError) -> S3Bucket.WriteCondition
    {
        guard let generation = preconditions.generation, generation != 0 else {
            return S3Bucket.WriteCondition(isNew: preconditions.generation == 0)
        }
        let found = try await request("condition") { $0.objects[name] }
        guard let found, found.generation == generation else {
            throw BucketError(.preconditionFailed)
        }
        return S3Bucket.WriteCondition(match: found.etag)
    }

    func writePiece(_ name: String, _ spool: SessionSpool) async throws(BucketError) -> Bool {
        let bytes = try await spool.read(at: 0, limit: Int(spool.count))
        try await request("piece") { model in
            model.objects[name] = S3Model.Object(
                bytes: bytes, etag: S3ModelGateway.etag(bytes), generation: 0)
        }
        return true
    }

    func readPiece(_ name: String, _ size: UInt64, into spool: SessionSpool)
        async throws(BucketError)
    {
        let bytes = try await request("read piece") { $0.objects[name]?.bytes }
        guard let bytes, bytes.count == Int(size) else { throw BucketError(.objectNotFound) }
        try await spool.append(bytes)
    }

    func readHidden(_ name: String) async throws(BucketError) -> HiddenObject? {
        try await request("read") { model in
            model.objects[name].map { HiddenObject(bytes: $0.bytes, version: $0.etag) }
        }
    }

    func writeHidden(_ name: String, _ bytes: [UInt8], replacing version: String?)
        async throws(BucketError) -> String?
    {
        try await request(version == nil ? "create state" : "write") { model in
            guard model.objects[name]?.etag == version else { return nil }
            let etag = S3ModelGateway.etag(bytes)
            model.objects[name] = S3Model.Object(bytes: bytes, etag: etag, generation: 0)
            return etag
        }
    }

    func deleteHidden(_ name: String) async throws(BucketError) {
        try await request("delete") { $0.objects[name] = nil }
    }

    func listHidden(_ prefix: String, after name: String?) async throws(BucketError) -> [String] {
        if listsForever {
            let next = (name.flatMap { Int($0.dropFirst(prefix.count)) } ?? 1_000_000_000) + 1
            return (next..<next + 10).map { "\(prefix)\($0)" }
        }
        let name = repeatsLists ? nil : name
        return try await request("list") { model in
            Array(
                model.objects.keys.filter { $0.hasPrefix(prefix) && $0 > name ?? "" }.sorted()
                    .prefix(1000))
        }
    }
}

extension S3ModelGateway: CloudPartsService {
    var minimumPart: UInt64 { 5_000 }
    var maximumPart: UInt64 { 1 << 30 }

    var setsProperties: Bool { false }

    func newUpload(_ id: UploadSessionID, _ state: CloudSessionState) async throws(BucketError)
        -> CloudSessionState.Transfer
    {
        let generation = newGeneration(after: 0)
        let upload = try await beginUpload(state, generation: generation, nil)
        return .s3(S3TransferState(upload: upload, generation: generation))
    }

    func streamPart(_ part: CloudPartAddress, _ plan: PartPlan) async throws(BucketError) -> any CloudPartStream {
        let part = S3ModelPart(self, part)
        streams.append(part)
        return part
    }

    func storePart(_ part: CloudPartAddress, _ bytes: [UInt8], _ facts: ContentFacts) async throws(CloudPartFailure)
        -> String
    {
        let etag = S3ModelGateway.etag(bytes)
        let (upload, number) = (part.upload.upload, UInt16(part.number))
        let isThere: Bool
        do throws(BucketError) {
            isThere = try await request("part \(number)") { model in
                guard model.uploads[upload] != nil else { return false }
                model.uploads[upload]?.parts[number] = (etag, bytes)
                return true
            }
        } catch {
            throw .store(error)
        }
        if !isThere { throw .uploadGone }
        return etag
    }

    func listParts(_ upload: CloudUploadAddress, after number: Int, limit: Int) async throws(CloudPartFailure)
        -> CloudPartsPage
    {
        let (number, limit) = (repeatsParts ? 0 : number, min(limit, partsPage))
        let page: CloudPartsPage?
        do throws(BucketError) {
            page = try await request("list parts") { model in
                guard let found = model.uploads[upload.upload] else { return nil }
                let all = found.parts.filter { $0.key > number }.sorted { $0.key < $1.key }
                let parts = all.prefix(limit).map {
                    Part(
                        number: Int($0.key), size: UInt64($0.value.bytes.count), etag: $0.value.etag, crc32c: nil,
                        updated: 0)
                }
                return CloudPartsPage(parts: parts, isLast: all.count <= limit)
            }
        } catch {
            throw .store(error)
        }
        guard let page else { throw .uploadGone }
        return page
    }
}

/// A part that is sent when its bytes are complete.
///
/// Safety: confined to its loop.
final class S3ModelPart: CloudPartStream, @unchecked Sendable {
    private let gateway: S3ModelGateway
    private let part: CloudPartAddress
    private var bytes: [UInt8] = []
    private var resume: (() -> Void)?
    private(set) var isCancelled = false

    var number: Int { part.number }

    init(_ gateway: S3ModelGateway, _ part: CloudPartAddress) {
        self.gateway = gateway
        self.part = part
    }

    func write(_ bytes: RawSpan) throws -> Int {
        if isCancelled || gateway.failsStreams { throw BucketError(.unavailable, "a fault of the test") }
        bytes.withUnsafeBytes { self.bytes += $0 }
        return bytes.byteCount
    }

    func whenWritable(_ resume: @escaping () -> Void) {
        self.resume = resume
        EventLoop.current?.execute { [self] in self.resume?() }
    }

    func end(_ last: [UInt8], _ facts: ContentFacts) async throws(CloudPartFailure) -> String {
        try await gateway.storePart(part, bytes + last, facts)
    }

    func cancel() { isCancelled = true }
}
