import Buckets

/// A request on an upload in parts. The same for every dialect.
struct PartsRequest {
    enum Action {
        /// Begins an upload. `url` returns its URL for its token.
        case create(UploadRequest, url: (String) -> String)
        /// Stores the request's body as a part.
        case put(Int, size: UInt64, ExpectedDigests)
        /// Lists the parts after a number.
        case list(after: Int, limit: Int)
        /// Creates the object. The closure parses the body; without parts, it is of all parts. Conditions replace those
        /// of the creation, unless they are ``Conditions/none``.
        case complete(Conditions, @Sendable ([UInt8]) throws(Problem) -> [SelectedPart])
        case cancel
    }
    var dialect = UploadDialect.parts
    /// The token as in the URL; empty for a creation.
    var token: ArraySlice<UInt8>
    var action: Action

    /// The maximum size of the body of a completion in bytes.
    static let maximumList = 4 << 20
    /// The maximum size of a part in bytes: 5 GiB.
    static let maximumPart: UInt64 = 5 << 30
}

/// The state of an upload in parts.
enum PartsReport {
    /// `expires` is in seconds since 1970, `minimumPart` in bytes.
    case created(url: String, expires: Int64, minimumPart: UInt64)
    case kept(Part)
    /// `isLast`: whether no part follows.
    case listed([Part], isLast: Bool)
}
