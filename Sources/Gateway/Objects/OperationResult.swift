import Buckets
import HTTPServer

/// The result of an operation, to be rendered by a dialect.
enum OperationResult {
    /// The response has bytes of an object.
    case content(ObjectMetadata, ObjectContent)
    /// The object's metadata.
    case metadata(ObjectMetadata)
    /// The client's copy of the object is current (`304 Not Modified`).
    case notModified(ObjectMetadata)
    indirect case stored(CommitResult)
    /// The state of an upload session that has not created an object.
    indirect case session(UploadReport)
    /// The state of an upload in parts.
    indirect case parts(PartsReport)
    case patched(ObjectMetadata)
    case deleted
    /// The result of each deletion, in the request's order: nil if it succeeded.
    indirect case deletions([(name: String, problem: Problem?)])
    indirect case page(ListPage, ListRequest)
    /// The link to sign, and its keys.
    indirect case link(SignedLink, LinkKeys)
    indirect case response(Response)
    /// Uploads in parts, ordered by name and token.
    case uploads([ListedUpload])
}

/// Bytes of an object.
struct ObjectContent {
    /// The selected bytes.
    var range: Range<UInt64>
    /// Whether the client requested a range.
    var isPart: Bool
    var body: ResponseBody
}
