import Buckets
import HTTPServer
import System
import Wire

/// A request as its dialect has parsed it: what to do in a bucket, with all parameters.
enum ObjectOperation {
    /// Returns the object's bytes.
    case download(ObjectName, ReadRequest)
    /// Returns the object's metadata.
    case stat(ObjectName, Conditions)
    /// Returns the object's metadata, with the bytes of a part.
    case statPart(ObjectName, Conditions, number: Int)
    case upload(ObjectName, UploadRequest)
    /// An upload whose properties are at the beginning of its body: they become the operation that is performed.
    case describedUpload(ObjectName, (RequestContext) async throws(Problem) -> ObjectOperation)
    /// An operation that is in the request's body, with the object's name and perhaps the caller's credential.
    case form((RequestContext) async throws(Problem) -> ObjectOperation)
    /// An upload in several requests begins.
    indirect case createSession(ObjectName, UploadRequest, SessionCreation)
    /// Such an upload is continued, or asked about.
    indirect case session(SessionRequest)
    /// An upload in parts begins, is continued or asked about.
    indirect case parts(ObjectName, PartsRequest)
    indirect case patch(ObjectName, PatchRequest)
    /// Deletes the object. If `isIdempotent`, it succeeds too if there is none.
    case delete(ObjectName, Conditions, isIdempotent: Bool = false)
    /// Copies or moves an object to this name.
    case copy(ObjectName, CopyRequest)
    /// Deletes many objects, each with its own result.
    case deleteMany(DeletionRequest)
    /// Returns the object's metadata, with a download token that is made if there is none.
    case statWithToken(ObjectName, Conditions)
    /// Changes the tokens of the object's download URLs.
    case changeTokens(ObjectName, TokenChange)
    case list(ListRequest)
    /// Waits for changes of the bucket.
    case watch(WatchRequest)
    /// Makes a signed link to the object.
    indirect case sign(ObjectName, SignRequest)
    /// Returns a response that depends on no object.
    case fixed(FixedResponse)
    /// Lists the caller's uploads in parts.
    case listUploads(UploadListRequest)

    /// The object of the operation; nil for a list, and for an upload session that is not looked up yet.
    var name: ObjectName? {
        switch self {
        case .download(let name, _), .stat(let name, _), .upload(let name, _), .patch(let name, _),
            .delete(let name, _, _), .sign(let name, _), .createSession(let name, _, _),
            .describedUpload(let name, _), .statWithToken(let name, _), .changeTokens(let name, _),
            .copy(let name, _), .parts(let name, _), .statPart(let name, _, _):
            name
        case .list, .watch, .session, .deleteMany, .fixed, .listUploads, .form: nil
        }
    }

    /// The access that the operation needs, for a policy to decide on.
    func access(in bucket: Bucket) -> RequestedAccess {
        switch self {
        case .download(let name, _), .stat(let name, _), .sign(let name, _),
            .statWithToken(let name, _), .statPart(let name, _, _):
            RequestedAccess(.get, bucket: bucket.name, name)
        case .upload(let name, _), .createSession(let name, _, _), .describedUpload(let name, _), .copy(let name, _),
            .parts(let name, _):
            RequestedAccess(.create, bucket: bucket.name, name)
        // Its own name is decided on when it is known.
        case .session, .form: RequestedAccess(.create, bucket: bucket.name, name: "")
        case .patch(let name, _), .changeTokens(let name, _):
            RequestedAccess(.update, bucket: bucket.name, name)
        case .delete(let name, _, _): RequestedAccess(.delete, bucket: bucket.name, name)
        // Each name is decided on by itself.
        case .deleteMany: RequestedAccess(.delete, bucket: bucket.name, name: "")
        case .list(let request): RequestedAccess(.list, bucket: bucket.name, name: request.folder)
        case .watch(let request): RequestedAccess(.list, bucket: bucket.name, name: request.folder)
        case .fixed(let fixed): fixed.access
        case .listUploads(let request): RequestedAccess(.list, bucket: bucket.name, name: request.folder)
        }
    }
}

/// A response that depends on no object.
final class FixedResponse {
    let access: RequestedAccess
    /// Whether the rules decide on the access. Otherwise the response is for every caller.
    let isDecided: Bool
    let response: Response

    init(_ response: Response, _ access: RequestedAccess, isDecided: Bool) {
        self.response = response
        self.access = access
        self.isDecided = isDecided
    }
}

/// The preconditions of a request. If they are malformed, this is reported only after authorization. A class because
/// they are large, and most requests share ``none``.
final class Conditions: Sendable {
    static let none = Conditions(.success(Preconditions()))
    private let parsed: Result<Preconditions, Problem>

    init(_ parsed: Result<Preconditions, Problem>) { self.parsed = parsed }

    /// - Throws: ``Problem`` if they are malformed.
    func get() throws(Problem) -> Preconditions { try parsed.get() }

    func map(_ transform: (Preconditions) -> Preconditions) -> Conditions {
        self === Conditions.none ? self : Conditions(parsed.map(transform))
    }
}

/// The requested bytes of an object.
struct ReadRequest {
    var range = RangeRequest()
    var conditions = Conditions.none

    /// The driver's plan for the read. Not inlined, so that the task does not reserve memory for its parts.
    /// - Throws: ``Problem`` if the conditions are malformed.
    @inline(never)
    func plan() throws(Problem) -> ReadPlan {
        ReadPlan(range: range.range, conditions: try conditions.get(), part: range.part)
    }
}

/// A request for a part of an object.
struct RangeRequest {
    /// The requested part; nil for the whole object.
    var range: ByteRange?
    /// The strong entity tag of `If-Range`: any other object is sent as a whole. nil for no condition.
    var entityTag: String?
    /// Whether ``entityTag`` is one of S3 (``ObjectMetadata/s3Tag``).
    var comparesS3Tags = false
    /// Whether the range is ignored for an empty object.
    var ignoresEmpty = false
    /// The number of the part to send, from 1, instead of a range.
    var part: Int?

    /// Selects the bytes to send.
    func select(from object: ObjectMetadata) -> ByteRange.Selection {
        if let part {
            guard let range = object.partRange(part) else { return .unsatisfiable }
            return range.isEmpty ? .whole : .part(range)
        }
        guard let range, !(ignoresEmpty && object.size == 0) else { return .whole }
        if let entityTag, entityTag != (comparesS3Tags ? object.s3Tag : object.etag) { return .whole }
        return range.select(size: object.size)
    }
}

/// The facts of an upload before its body. A class because it is large, so that other operations stay small.
final class UploadRequest {
    let attributes: ObjectAttributes
    let digests: ExpectedDigests
    /// The declared size in bytes, if any.
    let size: UInt64?
    let conditions: Conditions
    /// The part of the request's body that is the object; nil if all of it is.
    let body: (any UploadBody)?

    init(
        _ attributes: ObjectAttributes, _ digests: ExpectedDigests, size: UInt64?,
        _ conditions: Conditions, body: (any UploadBody)? = nil
    ) {
        self.attributes = attributes
        self.digests = digests
        self.size = size
        self.conditions = conditions
        self.body = body
    }

    /// The driver's plan for the upload.
    var plan: UploadPlan {
        var plan = UploadPlan(attributes, size: size, digests: digests.algorithms)
        plan.md5 = digests.md5
        plan.crc32c = digests.crc32c
        return plan
    }

    /// The proposed object, as far as it is known before the body.
    var proposal: ProposedObject {
        var proposal = ProposedObject()
        proposal.attributes = attributes
        proposal.size = size
        proposal.md5 = digests.md5
        proposal.crc32c = digests.crc32c
        return proposal
    }
}

/// The part of a request's body that is an object. Confined to the request's loop.
protocol UploadBody: AnyObject {
    /// Moves the object's bytes into `sink`.
    /// - Parameter limit: The maximum number of bytes.
    func receive(into sink: any ByteSink, limit: UInt64) async throws(BodyError)

    /// The upload has failed: the rest is not needed.
    func stop()

    /// The digests that followed the object's bytes; nil if there are none.
    var trailer: ExpectedDigests? { get }

    /// The checksum that followed the object's bytes, to be kept with the object; nil if there is none.
    var checksum: S3Properties.Checksum? { get }
}

extension UploadBody {
    var trailer: ExpectedDigests? { nil }

    var checksum: S3Properties.Checksum? { nil }
}

/// A change of metadata. The changes are in the body.
struct PatchRequest {
    var conditions = Conditions.none
    /// Why the body can't be read, if the head already shows it. It is reported only after authorization.
    var problem: Problem?
    /// Parses the body.
    var decode: @Sendable ([UInt8]) throws(Problem) -> AttributePatch
}

/// A request to sign a link. The link's properties are in the body.
struct SignRequest {
    /// nil if signed links are not configured.
    var keys: LinkKeys?
    /// The maximum lifetime in seconds.
    var maximumLifetime: Int64
    /// Parses the body, given the maximum lifetime in seconds.
    var decode: @Sendable ([UInt8], Int64) throws(Problem) -> LinkRequest
}

/// The requested page of a list.
final class ListRequest {
    let query: ListQuery
    /// The name after which the page begins; nil for the first page.
    let after: String?
    /// The folder that the list reveals: the prefix up to its last `/`, without the slash.
    let folder: String
    /// Whether the properties of all items are shown. Otherwise only those of items that the caller may `get`.
    let showsAll: Bool
    /// Whether the response has the number of the newest change of a watched bucket.
    let wantsSequence: Bool
    /// That number, read before the page.
    var sequence: Int64?

    init(_ query: ListQuery, after: String?, showsAll: Bool = false, wantsSequence: Bool = false) {
        self.wantsSequence = wantsSequence
        self.query = query
        self.showsAll = showsAll
        self.after = after
        folder = ListRequest.folder(of: query.prefix)
    }

    /// A prefix up to its last `/`, without the slash.
    static func folder(of prefix: String) -> String {
        let slash = prefix.utf8.lastIndex(of: UInt8(ascii: "/"))
        return slash.map { String(prefix[..<$0]) } ?? ""
    }
}
