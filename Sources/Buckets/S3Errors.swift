import HTTPClient

/// What the service says went wrong.
struct S3Fault {
    var status: Int
    /// The code in the answer's XML; empty where there is none, as in every answer to `HEAD`.
    var code: String
    /// Where the bucket is, if the answer tells.
    var region: String?

    init(_ response: CollectedResponse) {
        status = response.status
        code = S3Fault.code(in: response.body) ?? ""
        region = response.fields["x-amz-bucket-region"]
    }

    /// The code of an error document, which may also come with 200; nil where the body is none.
    static func code(in body: [UInt8]) -> String? {
        var isError = false
        var code: String?
        try? S3XML.read(body) { parent, name, text in
            if parent == "Error", name == "Code", code == nil {
                isError = true
                code = String(text.prefix(64))
            }
        }
        return isError ? code : nil
    }

    /// Whether the service itself says that it has done nothing, and may do it later. A status alone may be that of a
    /// proxy, which can't know; an internal error may come after the deed.
    var isRefusal: Bool {
        [429, 503].contains(status)
            && [
                "SlowDown", "SlowDownRead", "SlowDownWrite", "ServiceUnavailable",
                "TooManyRequests",
                "RequestLimitExceeded", "Throttling", "ThrottlingException",
            ].contains(code)
    }

    /// Whether it may be that the credentials are no longer those that count.
    var refusesCredentials: Bool {
        [
            "ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "InvalidToken",
            "InvalidAccessKeyId",
        ].contains(code)
    }

    /// Code and status, as far as they came.
    var said: String { code.isEmpty ? "status \(status)" : "\(code), status \(status)" }

    /// The error for whoever asked. `what` says what was tried.
    func error(_ what: String) -> BucketError {
        switch (status, code) {
        case (_, "NoSuchBucket"):
            return BucketError(.unavailable, "\(what): the bucket does not exist (\(said))")
        case (301, _), (307, _), (_, "AuthorizationHeaderMalformed"),
            (_, "IllegalLocationConstraintException"):
            let place = region.map { ": it is in \($0)" } ?? ""
            return BucketError(
                .unavailable,
                "\(what): the bucket is at another endpoint or region\(place) (\(said))")
        case (_, "InvalidAccessKeyId"), (_, "SignatureDoesNotMatch"), (_, "ExpiredToken"),
            (_, "InvalidToken"), (_, "TokenRefreshRequired"), (401, _):
            return BucketError(
                .unavailable, "\(what): the service refuses the credentials: \(said)")
        case (_, "RequestTimeTooSkewed"):
            return BucketError(.unavailable, "\(what): this machine's clock is wrong (\(said))")
        case (403, _):
            return BucketError(
                .unavailable,
                "\(what): the service refuses the credentials the right to it: \(said)")
        case (_, "MetadataTooLarge"):
            return BucketError(
                .unsupported,
                "\(what): the custom metadata is more than the service holds (\(said))")
        case (_, "KeyTooLongError"):
            return BucketError(.unsupported, "\(what): the name is longer than the service allows")
        case (507, _), (_, "QuotaExceeded"), (_, "XMinioStorageFull"):
            return BucketError(.insufficientStorage, "\(what): \(said)")
        case (412, _), (_, "PreconditionFailed"), (_, "ConditionalRequestConflict"),
            (_, "OperationAborted"):
            return BucketError(.preconditionFailed, "\(what): \(said)")
        case (503, _), (429, _), (_, "SlowDown"), (_, "ServiceUnavailable"):
            return BucketError(.overloaded, "\(what): the service is busy: \(said)")
        case (408, _), (504, _), (_, "RequestTimeout"):
            return BucketError(.timedOut, "\(what): \(said)")
        case (501, _), (405, _), (_, "NotImplemented"):
            return BucketError(.unsupported, "\(what): the service does not do this: \(said)")
        default: return BucketError(.unavailable, "\(what): the service answers \(said)")
        }
    }
}
