import Wire

/// The fields of a request that its authentication reads, found in one pass.
struct ShownFields {
    private(set) var authorization: [UInt8] = []
    private(set) var hash: [UInt8] = []
    private var amzDate: [UInt8] = []
    private var date: [UInt8] = []
    private var token: [UInt8] = []
    /// How often each occurs.
    private(set) var authorizations = 0
    private(set) var hashes = 0
    private var amzDates = 0
    private var dates = 0
    private var tokens = 0

    init(_ fields: HeaderFields) {
        self = fields.read { reader in
            var shown = ShownFields()
            while let (name, value) = reader.next() { shown.take(name, value) }
            return shown
        }
    }

    private init() {}

    /// Whether a field's name begins with `x-amz-`.
    static func isOfAmazon(_ name: UnsafeBufferPointer<UInt8>) -> Bool {
        name.count > 6 && name[0] == UInt8(ascii: "x") && name[1] == UInt8(ascii: "-")
            && name[2] == UInt8(ascii: "a") && name[3] == UInt8(ascii: "m") && name[4] == UInt8(ascii: "z")
            && name[5] == UInt8(ascii: "-")
    }

    /// Whether there is a field that takes part in a signature: `Authorization` or `x-amz-…`.
    static func isSigning(_ fields: HeaderFields) -> Bool {
        fields.read { reader in
            while let (name, _) = reader.next() {
                if isOfAmazon(name) || name.matches("authorization") { return true }
            }
            return false
        }
    }

    @inline(__always)
    private mutating func take(_ name: UnsafeBufferPointer<UInt8>, _ value: UnsafeBufferPointer<UInt8>) {
        switch name.count {
        case 4 where name.matches("date"):
            dates += 1
            date = Array(value)
        case 10 where name.matches("x-amz-date"):
            amzDates += 1
            amzDate = Array(value)
        case 13 where name.matches("authorization"):
            authorizations += 1
            authorization = Array(value)
        case 20 where name.matches("x-amz-content-sha256"):
            hashes += 1
            hash = Array(value)
        case 20 where name.matches("x-amz-security-token"):
            tokens += 1
            token = Array(value)
        default: break
        }
    }

    /// The time of `x-amz-date`, else of `Date`, in seconds since 1970, and as it is signed.
    /// - Throws: ``Problem``: `AccessDenied` if there is none, or several, or it is malformed.
    func time(now: Int64) throws(Problem) -> (seconds: Int64, stamp: [UInt8]) {
        guard amzDates + dates > 0, amzDates <= 1, amzDates == 1 || dates == 1 else { throw .noDate }
        let text = amzDates == 1 ? amzDate : date
        if let seconds = S3Time.parse(text.span) { return (seconds, text) }
        // Some clients write the zone as an offset.
        let isOffset = text.suffix(5).elementsEqual("-0000".utf8) || text.suffix(5).elementsEqual("+0000".utf8)
        let date = isOffset ? text.dropLast(5) + Array("GMT".utf8) : text[...]
        guard let seconds = HTTPDate.parse(date, now: now) else { throw .noDate }
        return (seconds, Array(S3Time.stamp(seconds).utf8))
    }

    /// The session token; nil if there is none.
    /// - Throws: ``Problem``: `InvalidToken` if there are several.
    func sessionToken() throws(Problem) -> [UInt8]? {
        guard tokens <= 1 else { throw .invalidToken(cause: "several session tokens") }
        return tokens == 1 ? token : nil
    }
}

/// The signature in a presigned URL.
struct PresignedQuery {
    let credential: S3Credential
    let signedNames: SignedNames
    let signature: [UInt8]
    let stamp: [UInt8]
    /// The time of signing, in seconds since 1970.
    let time: Int64
    /// In seconds.
    let lifetime: Int64
    let token: [UInt8]?

    /// - Throws: ``Problem``: `AuthorizationQueryParametersError` if a parameter is missing or malformed.
    init(_ query: S3Query) throws(Problem) {
        guard !query.isAmbiguous, let algorithm = query.value(.algorithm), let credential = query.value(.credential),
            let signature = query.value(.signature), let date = query.value(.date),
            let names = query.value(.signedHeaders), let expires = query.value(.expires)
        else {
            throw .malformedQuery(
                "Query-string authentication version 4 requires the X-Amz-Algorithm, X-Amz-Credential, "
                    + "X-Amz-Signature, X-Amz-Date, X-Amz-SignedHeaders, and X-Amz-Expires parameters, once each.")
        }
        guard algorithm.span.equals(AuthorizationField.algorithm) else {
            if ASCII.hasPrefix(algorithm.span, "AWS4-ECDSA-") {
                throw .unsupportedSignature(cause: "Signature Version 4A in the query")
            }
            throw .malformedQuery("X-Amz-Algorithm only supports \"AWS4-HMAC-SHA256\"")
        }
        guard let credential = S3Credential(credential) else {
            throw .malformedQuery(
                "Error parsing the X-Amz-Credential parameter; the Credential is mal-formed; "
                    + "expecting \"<YOUR-AKID>/YYYYMMDD/REGION/SERVICE/aws4_request\".")
        }
        guard let time = S3Time.parse(date.span) else {
            throw .malformedQuery("X-Amz-Date must be in the ISO8601 Long Format \"yyyyMMdd'T'HHmmss'Z'\"")
        }
        guard date[..<8].elementsEqual(credential.day) else {
            throw .malformedQuery("Invalid credential date. This date is not the same as X-Amz-Date.")
        }
        guard let lifetime = Decimal.saturating(expires.span) else {
            throw .malformedQuery(
                expires.first == UInt8(ascii: "-")
                    ? "X-Amz-Expires must be non-negative" : "X-Amz-Expires should be a number")
        }
        guard (1...UInt64(S3Verifier.maximumLifetime)).contains(lifetime) else {
            throw .malformedQuery(
                lifetime == 0
                    ? "X-Amz-Expires must be at least one second"
                    : "X-Amz-Expires must be less than a week (in seconds); that is, the given X-Amz-Expires must be "
                        + "less than 604800 seconds")
        }
        guard let names = SignedNames(names), !signature.isEmpty else {
            throw .malformedQuery("X-Amz-SignedHeaders is not a list of field names, or X-Amz-Signature is empty.")
        }
        self.credential = credential
        signedNames = names
        self.signature = signature
        stamp = date
        self.time = time
        self.lifetime = Int64(lifetime)
        token = query.value(.securityToken)
    }
}
