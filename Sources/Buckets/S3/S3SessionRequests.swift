import HTTPClient
import OpenSSL
import Wire
import XML

/// The requests of an upload session to S3, besides those for hidden objects. Tests implement an in-memory service.
protocol S3SessionRequests: CloudSessionStore, CloudPartsService {
    var sizes: S3PartSizes { get }

    /// A generation for a new object, greater than `previous`.
    func newGeneration(after previous: Int64) -> Int64

    func makeSpool() async throws(BucketError) -> SessionSpool

    /// Begins a multipart upload of an object with the session's mark and, if known, `facts`. Returns its id.
    func beginUpload(_ state: CloudSessionState, generation: Int64, _ facts: ContentFacts?)
        async throws(BucketError) -> String

    func sendPart(_ name: String, _ part: S3PartAddress, _ spool: SessionSpool) async throws(S3PartFailure) -> String

    /// Makes the object of these parts visible. Can be repeated.
    func complete(
        _ name: String, _ upload: String, _ parts: [S3TransferState.Part], _ condition: S3Bucket.WriteCondition
    ) async -> S3Completion

    /// Frees the parts of an upload, which need not exist.
    func abortUpload(_ name: String, _ upload: String) async throws(BucketError)

    /// Frees uploads other than `known` without parts, begun since `time`, in milliseconds since 1970.
    /// - Returns: Whether none is left that may be another session's.
    func abortLost(_ name: String, since time: Int64, known: String?) async -> Bool

    /// The object and the mark of its session; nil if there is no object.
    func findMarked(_ name: String) async throws(BucketError) -> (
        object: ObjectMetadata, mark: UInt64?
    )?

    /// The condition that the service evaluates with the write. Throws `.preconditionFailed` if it does not hold now.
    func writeCondition(_ name: String, _ preconditions: Preconditions)
        async throws(BucketError) -> S3Bucket.WriteCondition

    /// - Returns: Whether no request can still be executed after this.
    func writePiece(_ name: String, _ spool: SessionSpool) async throws(BucketError) -> Bool

    func readPiece(_ name: String, _ size: UInt64, into spool: SessionSpool) async throws(BucketError)
}

struct S3PartAddress {
    var upload: String
    var number: UInt16
    var cancellation: S3PartCancellation
}

/// Cancels the request that sends a part. Confined to its loop.
final class S3PartCancellation {
    private(set) var isCancelled = false
    private var action: (() -> Void)?

    func cancel() {
        isCancelled = true
        action.take()?()
    }

    /// Sets how the current request is cancelled; nil if there is none.
    func set(_ action: (() -> Void)?) { self.action = action }
}

/// Why a part was not stored.
struct S3PartFailure: Error {
    var cause: BucketError
    var isUploadGone = false
}

/// The result of the request that makes an object visible.
enum S3Completion {
    case stored(String)
    /// The service does not know the upload, possibly because an earlier request has completed it.
    case gone
    /// - Parameter isFinal: Whether the request was certainly not executed, and will not be.
    case failed(BucketError, isFinal: Bool)
}

/// The part sizes of an upload in several requests.
struct S3PartSizes: Sendable, Equatable {
    /// In bytes.
    var minimum: UInt64
    /// In bytes.
    var maximum: UInt64
    var count: UInt64 = 10_000
    /// The maximum tail in the session's state in bytes: 64 KiB. Longer tails are hidden objects.
    var inlineTail: UInt64 = 64 << 10
    /// The maximum number of those objects. More are merged.
    var pieces = 64

    /// The size of a part. With a known length all parts but the last have equal size, unless more than a twentieth of
    /// the numbers was skipped. Otherwise the size doubles with every tenth of the numbers.
    /// - Parameters:
    ///   - number: From 1 to ``count``.
    ///   - sent: The number of bytes in the parts before it.
    func size(ofPart number: UInt64, length: UInt64?, sent: UInt64) -> UInt64 {
        guard let length else {
            let tenth = (number - 1) * 10 / count
            return min(minimum << min(tenth, 20), maximum)
        }
        func share(_ bytes: UInt64, _ parts: UInt64) -> UInt64 {
            // A twentieth of the numbers is for those skipped after interruptions.
            let usable = max(1, parts - parts / 20)
            let equal = bytes / usable + (bytes % usable == 0 ? 0 : 1)
            // Whole MiB.
            return equal > minimum ? ((equal + (1 << 20) - 1) >> 20) << 20 : minimum
        }
        let rest = length > sent ? length - sent : 0
        return min(max(share(length, count), share(rest, count - number + 1)), maximum)
    }
}

extension S3Bucket: S3SessionRequests {
    var sizes: S3PartSizes {
        S3PartSizes(
            minimum: settings.minimumPart, maximum: settings.singleLimit,
            count: UInt64(settings.maximumParts))
    }

    func makeSpool() async throws(BucketError) -> SessionSpool {
        try await SessionSpool.make(in: settings.temporaryDirectory, pool)
    }

    func beginUpload(_ state: CloudSessionState, generation: Int64, _ facts: ContentFacts?)
        async throws(BucketError) -> String
    {
        var fields = HeaderFields(reserving: 512)
        S3Fields.append(state.attributes, to: &fields)
        S3Fields.append(
            generation: generation, md5: facts?.md5, crc32c: facts?.crc32c, to: &fields)
        fields.append(S3Bucket.markField, String(state.mark, radix: 16))
        let multipart = S3Multipart(self, state.name, size: nil)
        try await multipart.create(fields)
        guard let id = multipart.id else {
            throw BucketError(.internal, "an upload in parts without an id")
        }
        return id
    }

    private static let markField: StaticString = "x-amz-meta-sluice-commit"

    func uploadTarget(_ name: String, _ upload: String, _ part: String = "") -> String {
        target(name, "\(part)uploadId=\(PercentEncoding.encodeSegment(upload))")
    }

    func sendPart(_ name: String, _ address: S3PartAddress, _ spool: SessionSpool) async throws(S3PartFailure) -> String
    {
        let part = S3Part(self, uploadTarget(name, address.upload, "partNumber=\(address.number)&"), spool.file)
        if address.cancellation.isCancelled { part.cancel() }
        address.cancellation.set { part.cancel() }
        defer { address.cancellation.set(nil) }
        do throws(BucketError) { return try await part.send() } catch {
            throw S3PartFailure(cause: error, isUploadGone: part.isUploadGone)
        }
    }

    func complete(
        _ name: String, _ upload: String, _ parts: [S3TransferState.Part],
        _ condition: WriteCondition
    ) async -> S3Completion {
        let request = S3Multipart.completion(
            uploadTarget(name, upload), parts.map { (number: Int($0.number), etag: $0.etag) }, condition)
        // The service no longer knows the upload if the first request has succeeded.
        request.isRepeatable = true
        let response: CollectedResponse
        do throws(BucketError) { response = try await call(request) } catch {
            return .failed(error, isFinal: !error.mayHaveChanged)
        }
        if let etag = S3Multipart.tag(of: response, name) { return .stored(etag) }
        let failure = S3ErrorResponse(response)
        if failure.code == "NoSuchUpload" { return .gone }
        let isFinal = failure.isRejection || (400...499).contains(failure.status)
        return .failed(failure.error("upload"), isFinal: isFinal && failure.status != 408)
    }

    func abortUpload(_ name: String, _ upload: String) async throws(BucketError) {
        let request = ClientRequest("DELETE", uploadTarget(name, upload), isRepeatable: true)
        let response = try await call(request)
        if [200, 204, 404].contains(response.status) { return }
        throw S3ErrorResponse(response).error("the end of an upload in parts")
    }

    /// The age in seconds from which an upload without parts counts as unused: 10 s. If it is used, its next request
    /// fails, and it is begun again.
    private static let partTime: Int64 = 10

    func abortLost(_ name: String, since time: Int64, known: String?) async -> Bool {
        guard let found = await uploads(of: name, besides: known, since: time) else { return false }
        // One is the lost request's. Of several, some may be another session's, which will soon have a part.
        let lost = found.count == 1 ? found : found.filter { $0.age >= S3Bucket.partTime }
        await abort(orphans: lost.map(\.id), of: name)
        return lost.count == found.count
    }

    func findMarked(_ name: String) async throws(BucketError) -> (
        object: ObjectMetadata, mark: UInt64?
    )? {
        do throws(BucketError) {
            let (object, fields) = try await head(name)
            let mark = fields[S3Bucket.markField].flatMap { UInt64($0, radix: 16) }
            return (object, mark)
        } catch {
            if error.code == .objectNotFound { return nil }
            throw error
        }
    }

    // MARK: Hidden objects

    func readHidden(_ name: String) async throws(BucketError) -> HiddenObject? {
        let response = try await call(ClientRequest("GET", target(name)), limit: CloudSessionState.maximumBytes)
        if response.status == 404, S3ErrorResponse(response).code != "NoSuchBucket" { return nil }
        guard response.status == 200, let etag = S3Head(response.fields).etag else {
            throw S3ErrorResponse(response).error("the state of an upload")
        }
        return HiddenObject(bytes: response.body, version: etag)
    }

    func writeHidden(_ name: String, _ bytes: [UInt8], replacing version: String?) async throws(BucketError) -> String?
    {
        // If the first request was executed, the condition of a repetition does not hold.
        let request = ClientRequest("PUT", target(name), body: .bytes(bytes), isRepeatable: true)
        WriteCondition(match: version, isNew: version == nil).append(to: &request.fields)
        // Some services otherwise store a partial body when a connection breaks.
        let digest = Digest(.md5)
        digest.update(bytes.span.bytes)
        request.fields.append("content-md5", Base64.encode(digest.finish()))
        let response = try await call(request)
        let failure = S3ErrorResponse(response)
        switch response.status {
        case 200...299:
            guard let etag = S3Head(response.fields).etag else { break }
            return etag
        case 404 where failure.code != "NoSuchBucket", 409, 412: return nil
        default: break
        }
        throw failure.error("the state of an upload")
    }

    func deleteHidden(_ name: String) async throws(BucketError) {
        let response = try await call(ClientRequest("DELETE", target(name), isRepeatable: true))
        if [200, 204, 404].contains(response.status) { return }
        throw S3ErrorResponse(response).error("the removal of an upload's state")
    }

    func listHidden(_ prefix: String, after name: String?) async throws(BucketError) -> [String] {
        let page = try await page(
            prefix, delimited: false, limit: 1000, name.map { .after($0) } ?? .beginning, withProperties: false)
        return page.items
    }

    func writePiece(_ name: String, _ spool: SessionSpool) async throws(BucketError) -> Bool {
        // A part's request with another target.
        let part = S3Part(self, target(name), spool.file)
        _ = try await part.send()
        return part.requests == 1
    }

    func readPiece(_ name: String, _ size: UInt64, into spool: SessionSpool)
        async throws(BucketError)
    {
        let before = spool.count
        let reader = try await open(name, ReadPlan())
        defer { reader.close() }
        let source = try await reader.bytes(0..<min(size, reader.metadata.size))
        defer { source.close() }
        // Half a step, because a copy is on its way to the file.
        var buffer = [UInt8](repeating: 0, count: CloudAppend.step / 2)
        while let count = try await source.next(into: &buffer) {
            try await spool.append(Array(buffer[..<count]))
        }
        guard spool.count - before == size else {
            throw BucketError(.unavailable, "a piece of an upload has another size")
        }
    }
}
