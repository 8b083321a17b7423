import Buckets
import HTTPServer

/// What an operation came to, for a dialect to render.
enum OperationResult {
    /// Bytes of an object follow.
    case content(ObjectMetadata, ObjectContent)
    /// The object's metadata.
    case metadata(ObjectMetadata)
    /// The object is the one that the client has.
    case notModified(ObjectMetadata)
    case stored(CommitResult)
    case patched(ObjectMetadata)
    case deleted
    case page(ListPage, ListRequest)
    /// A link, and the keys that sign it.
    case link(SignedLink, LinkKeys)
}

/// Bytes of an object.
struct ObjectContent {
    /// Which of them.
    var range: Range<UInt64>
    /// Whether a part was asked for.
    var isPart: Bool
    var body: ResponseBody
}
