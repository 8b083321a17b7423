import Wire

/// The errors of S3's authentication. Their codes and messages are those of AWS, which clients compare.
extension Problem {
    // MARK: Where a credential is

    static func onlyOneMechanism(cause: String) -> Problem {
        s3(.invalidArgument, 400, "InvalidArgument", "Only one auth mechanism allowed", cause: cause)
    }

    /// Signature Version 2 and 4A. s3cmd compares the message and signs again with Version 4.
    static func unsupportedSignature(cause: String) -> Problem {
        s3(
            .unsupportedScheme, 400, "InvalidRequest",
            "The authorization mechanism you have provided is not supported. Please use AWS4-HMAC-SHA256.",
            cause: cause)
    }

    static let unsupportedAuthorization = s3(
        .unsupportedScheme, 400, "InvalidArgument", "Unsupported Authorization Type",
        members: [("ArgumentName", "Authorization")])

    // MARK: Syntax

    /// The region that a client should sign for.
    private static func regionMember(_ region: String?) -> [(name: StaticString, value: String)] {
        guard let region else { return [] }
        return [("Region", region)]
    }

    static func malformedAuthorization(_ what: String, region: String? = nil) -> Problem {
        s3(
            .tokenMalformed, 400, "AuthorizationHeaderMalformed", "The authorization header is malformed; \(what)",
            members: regionMember(region))
    }

    static func malformedQuery(_ what: String, region: String? = nil) -> Problem {
        s3(
            .tokenMalformed, 400, "AuthorizationQueryParametersError", what,
            members: regionMember(region))
    }

    // MARK: Time

    static let noDate = s3(
        .tokenMalformed, 403, "AccessDenied", "AWS authentication requires a valid Date or x-amz-date header")

    static func skewed(_ time: Int64, now: Int64) -> Problem {
        s3(
            time < now ? .tokenExpired : .tokenNotYetValid, 403, "RequestTimeTooSkewed",
            "The difference between the request time and the current time is too large.",
            cause: "the request is \(time < now ? "older" : "newer") than \(S3Verifier.maximumSkew) s",
            members: [
                ("RequestTime", S3Time.stamp(time)), ("ServerTime", S3Time.text(now)),
                ("MaxAllowedSkewMilliseconds", "\(S3Verifier.maximumSkew * 1000)"),
            ])
    }

    static func expired(_ expires: Int64, now: Int64) -> Problem {
        s3(
            .tokenExpired, 403, "AccessDenied", "Request has expired",
            members: [("Expires", S3Time.text(expires)), ("ServerTime", S3Time.text(now))])
    }

    static func notYetValid(now: Int64) -> Problem {
        s3(
            .tokenNotYetValid, 403, "AccessDenied", "Request is not valid yet",
            members: [("ServerTime", S3Time.text(now))])
    }

    // MARK: Keys and signatures

    static func unknownAccessKey(_ id: String) -> Problem {
        s3(
            .unknownToken, 403, "InvalidAccessKeyId",
            "The AWS Access Key Id you provided does not exist in our records.", members: [("AWSAccessKeyId", id)])
    }

    static func invalidToken(cause: String) -> Problem {
        s3(
            .unknownToken, 400, "InvalidToken", "The provided token is malformed or otherwise invalid.", cause: cause)
    }

    static let expiredToken = s3(.tokenExpired, 400, "ExpiredToken", "The provided token has expired.")

    static func notSigned(_ names: String) -> Problem {
        s3(
            .badSignature, 403, "AccessDenied", "There were headers present in the request which were not signed",
            cause: "not signed: \(names.prefix(200))", members: [("HeadersNotSigned", names)])
    }

    /// - Parameter members: Never the signature that was computed: the error would sign for anyone.
    static func signatureMismatch(
        cause: String, _ members: [(name: StaticString, value: String)] = []
    ) -> Problem {
        s3(
            .badSignature, 403, "SignatureDoesNotMatch",
            "The request signature we calculated does not match the signature you provided. "
                + "Check your key and signing method.",
            cause: cause, members: members)
    }

    // MARK: Payloads

    static let noPayloadHash = s3(
        .invalidArgument, 400, "InvalidRequest", "Missing required header for this request: x-amz-content-sha256")

    static let incompleteBody = s3(
        .invalidArgument, 400, "IncompleteBody", "The request body terminated unexpectedly")

    static func malformedChunks(_ what: String) -> Problem {
        s3(
            .invalidArgument, 400, "IncompleteBody", "The request body terminated unexpectedly",
            cause: "aws-chunked: \(what)")
    }

    static func wrongDecodedLength(declared: UInt64) -> Problem {
        s3(
            .invalidArgument, 400, "IncompleteBody",
            "You did not provide the number of bytes specified by the x-amz-decoded-content-length HTTP header",
            cause: "aws-chunked: \(declared) bytes were declared")
    }

    static func malformedTrailer(_ what: String) -> Problem {
        s3(
            .invalidArgument, 400, "MalformedTrailerError",
            "The request contained trailing data that was not well-formed or did not conform to our published schema.",
            cause: "aws-chunked: \(what)")
    }
}

/// The formats of dates in S3's protocol.
enum S3Time {
    /// The length of ``stamp(_:)`` in bytes.
    static let stampBytes = 16

    /// `20130524T000000Z`.
    static func stamp(_ seconds: Int64) -> String {
        HTTPDate.rfc3339(milliseconds: seconds * 1000).utf8.prefix(19)
            .filter { ASCII.isDigit($0) || $0 == UInt8(ascii: "T") }
            .reduce(into: "") { $0.unicodeScalars.append(Unicode.Scalar($1)) } + "Z"
    }

    /// `2013-05-24T00:00:00Z`.
    static func text(_ seconds: Int64) -> String {
        String(HTTPDate.rfc3339(milliseconds: seconds * 1000).prefix(19)) + "Z"
    }

    /// Parses exactly the form of ``stamp(_:)``: seconds since 1970, or nil.
    static func parse(_ text: Span<UInt8>) -> Int64? {
        guard text.count == stampBytes, text[8] == UInt8(ascii: "T"), text[15] == UInt8(ascii: "Z"),
            let day = Decimal.parse(text.extracting(0..<8)), let clock = Decimal.parse(text.extracting(9..<15))
        else { return nil }
        var date = CivilDate(year: Int(day / 10_000), month: Int(day / 100 % 100), day: Int(day % 100))
        (date.hour, date.minute, date.second) = (Int(clock / 10_000), Int(clock / 100 % 100), Int(clock % 100))
        return date.seconds
    }
}
