import Buckets
import Wire

/// A request on an upload in parts. The same for every dialect.
struct PartsRequest {
    enum Action {
        /// Begins an upload. `url` returns its URL for its token.
        case create(UploadRequest, url: (String) -> String)
        /// Stores the request's body as a part.
        case put(Int, PartContent)
        /// Stores an object, or these bytes of it, as a part.
        case copy(Int, CopyRequest, ClosedRange<UInt64>?)
        /// Lists the parts after a number.
        case list(after: Int, limit: Int)
        /// Creates the object. The closure parses the body; without parts, it is of all parts. Conditions replace those
        /// of the creation, unless they are ``Conditions/none``.
        case complete(Conditions, @Sendable ([UInt8]) throws(Problem) -> PartsSelection)
        case cancel
    }
    var dialect = UploadDialect.parts
    /// The token as in the URL; empty for a creation.
    var token: ArraySlice<UInt8>
    var action: Action
    /// For a creation: ``SessionCreation/metadata``.
    var metadata: String?

    /// The maximum size of the body of a completion in bytes.
    static let maximumList = 4 << 20
    /// The least size of each part but the last in bytes: 5 MiB.
    static let minimumPart: UInt64 = 5 << 20
    /// The maximum size of a part in bytes: 5 GiB.
    static let maximumPart: UInt64 = 5 << 30
}

/// The bytes of a part in a request's body.
struct PartContent {
    /// In bytes.
    var size: UInt64
    var digests: ExpectedDigests
    /// The checksum to keep with the part.
    var checksum: ChecksumAlgorithm?
    /// The part of the request's body that is the content; nil if all of it is.
    var body: (any UploadBody)?
}

/// The parts of the object that a completion creates.
struct PartsSelection {
    /// Ordered by number; empty for all.
    var parts: [SelectedPart] = []
    /// The size that the object must have, in bytes.
    var size: UInt64?
    /// The checksums that the parts must have, by number.
    var checksums: [Int: PartChecksum] = [:]
    /// The checksum that the object must have.
    var checksum: S3Properties.Checksum?
    /// The checksum to keep with the object.
    var kept: SelectedChecksum?

    /// Whether an object may be of these parts. It is known not to be if its tag has another number of them, or if its
    /// store keeps a tag of the parts.
    func isOf(_ object: ObjectMetadata) -> Bool {
        if let count = object.partCount, !parts.isEmpty, count != parts.count { return false }
        guard let tag = object.attributes.system.s3?.tag else { return true }
        let digests = parts.compactMap { $0.etag.flatMap { Hexadecimal.decode($0.utf8) } }
        guard digests.count == parts.count, !parts.isEmpty else { return true }
        return BytewiseString.areEqual(tag, S3Properties.tag(ofParts: digests, count: parts.count))
    }
}

/// A request for the caller's uploads in parts.
final class UploadListRequest {
    let dialect: UploadDialect
    let prefix: String

    init(_ dialect: UploadDialect, prefix: String) {
        self.dialect = dialect
        self.prefix = prefix
    }

    /// The folder that the list reveals, without the final slash.
    var folder: String {
        let slash = prefix.utf8.lastIndex(of: UInt8(ascii: "/"))
        return slash.map { String(prefix[..<$0]) } ?? ""
    }
}

/// An upload in parts.
struct ListedUpload {
    var name: String
    var token: String
    /// Milliseconds since 1970.
    var created: Int64
}

/// The state of an upload in parts.
enum PartsReport {
    /// `expires` is in seconds since 1970, `minimumPart` in bytes.
    case created(url: String, expires: Int64, minimumPart: UInt64)
    case kept(Part)
    /// `isLast`: whether no part follows.
    case listed([Part], isLast: Bool)
}
