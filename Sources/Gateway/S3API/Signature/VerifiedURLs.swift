import Wire

/// A presigned URL whose signature was verified with nothing but its host signed.
final class VerifiedURL: Sendable {
    private let method: String
    private let target: RequestTarget
    private let authority: String
    /// ``S3Query/others``.
    let others: QueryParameters
    let authentication: S3Authentication
    /// The seconds since 1970 at which the URL counts.
    let valid: ClosedRange<Int64>

    init(
        _ request: S3SignedRequest, authority: String, _ authentication: S3Authentication, valid: ClosedRange<Int64>
    ) {
        method = request.method
        target = request.target
        self.authority = authority
        others = request.query.others
        self.authentication = authentication
        self.valid = valid
    }

    func isEqual(method: String, _ target: RequestTarget, authority: String?) -> Bool {
        guard let authority, self.target.bytes == target.bytes else { return false }
        return BytewiseString.areEqual(self.method, method) && BytewiseString.areEqual(self.authority, authority)
    }
}

/// The presigned URLs that clients use again and again, such as for ranges of an object. A signature is a function of the
/// request and the key, so that of an equal request needs no second computation; times and sources are checked each time.
///
/// Each URL has one place, by its hash. It takes the place when it comes twice without another new one in between, so URLs
/// that are used once displace none and cost no memory.
struct VerifiedURLs {
    /// What is known of a URL.
    enum Finding {
        case new
        /// It was seen before, and is not verified yet.
        case repeated
        case verified(VerifiedURL)
    }
    private struct Place {
        /// The hash of the last URL without a place.
        var last = 0
        var url: VerifiedURL?
    }

    private static let count = 512
    /// The sizes of a target that are kept, in bytes. A presigned one is never shorter.
    private static let sizes = 192...4096
    /// The maximum number of parameters besides the credential.
    static let maximumParameters = 16
    private var places: [Place] = []

    static func mayKeep(_ method: HTTPMethod?, _ target: RequestTarget) -> Bool {
        (method == .get || method == .head) && sizes.contains(target.bytes.count) && target.query != nil
    }

    static func hash(_ method: String, _ target: RequestTarget) -> Int {
        var hasher = Hasher()
        hasher.combine(method.utf8.count)
        // The signature is at the end.
        target.bytes.withUnsafeBytes { hasher.combine(bytes: UnsafeRawBufferPointer(rebasing: $0.suffix(96))) }
        return hasher.finalize()
    }

    mutating func find(_ hash: Int, method: String, _ target: RequestTarget, authority: String?) -> Finding {
        if places.isEmpty { places = Array(repeating: Place(), count: VerifiedURLs.count) }
        let place = VerifiedURLs.place(hash)
        if let url = places[place].url, url.isEqual(method: method, target, authority: authority) {
            return .verified(url)
        }
        if places[place].last == hash { return .repeated }
        places[place].last = hash
        return .new
    }

    mutating func insert(_ hash: Int, _ url: VerifiedURL) {
        if places.isEmpty { return }
        places[VerifiedURLs.place(hash)].url = url
    }

    private static func place(_ hash: Int) -> Int { Int(UInt(bitPattern: hash) % UInt(count)) }
}
