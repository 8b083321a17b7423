import Buckets
import Wire

/// A request as its dialect has parsed it: what to do in a bucket, with all parameters.
enum ObjectOperation {
    /// The object's bytes.
    case download(ObjectName, ReadRequest)
    /// The object's metadata.
    case stat(ObjectName, Conditions)
    case upload(ObjectName, UploadRequest)
    case patch(ObjectName, PatchRequest)
    case delete(ObjectName, Conditions)
    case list(ListRequest)
    /// A link to the object.
    case sign(ObjectName, SignRequest)

    /// The object that it is about; nil for a list.
    var name: ObjectName? {
        switch self {
        case .download(let name, _), .stat(let name, _), .upload(let name, _), .patch(let name, _),
            .delete(let name, _), .sign(let name, _):
            name
        case .list: nil
        }
    }

    /// The access that the operation needs, for a policy to decide on.
    func access(in bucket: Bucket) -> RequestedAccess {
        switch self {
        case .download(let name, _), .stat(let name, _), .sign(let name, _):
            RequestedAccess(.get, bucket: bucket.name, name: name.value)
        case .upload(let name, _): RequestedAccess(.create, bucket: bucket.name, name: name.value)
        case .patch(let name, _): RequestedAccess(.update, bucket: bucket.name, name: name.value)
        case .delete(let name, _): RequestedAccess(.delete, bucket: bucket.name, name: name.value)
        case .list(let request): RequestedAccess(.list, bucket: bucket.name, name: request.folder)
        }
    }
}

/// A request's conditions as its dialect has read them. A malformed one is reported only once the caller is authorized.
typealias Conditions = Result<Preconditions, Problem>

/// Which bytes of an object are wanted.
struct ReadRequest {
    var range = RangeRequest()
    var conditions = Conditions.success(Preconditions())
}

/// A part of an object.
struct RangeRequest {
    /// nil for the whole.
    var range: ByteRange?
    /// The strong entity tag that the object must have for the part to be sent; any other object is sent whole. nil for
    /// any object.
    var entityTag: String?

    /// What is sent of an object.
    func select(from object: ObjectMetadata) -> ByteRange.Selection {
        guard let range else { return .whole }
        if let entityTag, entityTag != object.etag { return .whole }
        return range.select(size: object.size)
    }
}

/// What is known of an upload before its body. It is large, and a class so that only uploads make room for it.
final class UploadRequest {
    let attributes: ObjectAttributes
    let digests: ExpectedDigests
    /// Bytes, if declared.
    let size: UInt64?
    let conditions: Conditions

    init(
        _ attributes: ObjectAttributes, _ digests: ExpectedDigests, size: UInt64?,
        _ conditions: Conditions
    ) {
        self.attributes = attributes
        self.digests = digests
        self.size = size
        self.conditions = conditions
    }

    /// What the store gets when the upload begins.
    var plan: UploadPlan {
        var plan = UploadPlan(attributes, size: size, digests: Set(digests.others.keys))
        plan.md5 = digests.md5
        plan.crc32c = digests.crc32c
        return plan
    }

    /// What a policy can know before the body.
    var proposal: ProposedObject {
        var proposal = ProposedObject()
        proposal.attributes = attributes
        proposal.size = size
        proposal.md5 = digests.md5
        proposal.crc32c = digests.crc32c
        return proposal
    }
}

/// A change of metadata, which is in the body.
struct PatchRequest {
    var conditions = Conditions.success(Preconditions())
    /// Why the body can't be read, if its fields already say so. It is reported only once the caller is authorized.
    var refusal: Problem?
    /// Reads the body.
    var decode: @Sendable ([UInt8]) throws(Problem) -> AttributePatch
}

/// A link to be signed; the body says what for.
struct SignRequest {
    /// nil where signed links are switched off.
    var keys: LinkKeys?
    /// Seconds.
    var maximumLifetime: Int64
    /// Reads the body, given the longest lifetime of a link in seconds.
    var decode: @Sendable ([UInt8], Int64) throws(Problem) -> LinkRequest
}

/// Which page of which list.
final class ListRequest {
    let query: ListQuery
    /// Where the last page ended; nil for the first.
    let after: String?
    /// The folder that is revealed: the prefix up to its last `/`, without it.
    let folder: String

    init(_ query: ListQuery, after: String?) {
        self.query = query
        self.after = after
        let slash = query.prefix.utf8.lastIndex(of: UInt8(ascii: "/"))
        folder = slash.map { String(query.prefix[..<$0]) } ?? ""
    }
}
