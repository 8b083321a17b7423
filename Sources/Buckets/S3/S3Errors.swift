import HTTPClient
import Wire
import XML

struct S3ErrorResponse {
    var status: Int
    /// The code in the XML; empty if there is none, as in every response to `HEAD`.
    var code: String
    /// The region of the bucket, if the response names it.
    var region: String?
    /// Whether the body is not an S3 error.
    var isForeign: Bool

    init(_ response: CollectedResponse) {
        status = response.status
        code = S3ErrorResponse.code(in: response.body) ?? ""
        region = response.fields["x-amz-bucket-region"]
        isForeign =
            code.isEmpty && !response.body.isEmpty
            && !response.fields.contains("x-amz-request-id")
    }

    /// The code of an error document, which can come with status 200; nil for other bodies.
    static func code(in body: [UInt8]) -> String? {
        var isError = false
        var code: String?
        try? XMLReader.read(body) { parent, name, text in
            if parent == "Error", name == "Code", code == nil {
                isError = true
                code = String(text.prefix(64))
            }
        }
        return isError ? code : nil
    }

    /// Whether the service itself says that it has done nothing and may do it later. A status is not sufficient,
    /// because a proxy may have sent it, nor is an internal error, which can occur after the change. A copy or a
    /// completion can report the error with status 200.
    var isRejection: Bool {
        if isConflict { return true }
        return [200, 429, 503].contains(status)
            && [
                "SlowDown", "SlowDownRead", "SlowDownWrite", "ServiceUnavailable", "TooManyRequests",
                "RequestLimitExceeded", "Throttling", "ThrottlingException",
            ].contains(code)
    }

    /// Whether a concurrent request for the same object prevented this one. The service has done nothing.
    private var isConflict: Bool {
        [200, 409].contains(status) && ["ConditionalRequestConflict", "OperationAborted"].contains(code)
    }

    /// Whether the credentials may have been replaced by others.
    var refusesCredentials: Bool {
        [
            "ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "InvalidToken",
            "InvalidAccessKeyId",
        ].contains(code)
    }

    var said: String { code.isEmpty ? "status \(status)" : "\(code), status \(status)" }

    func error(_ what: String) -> BucketError {
        let hint =
            isForeign && status < 500
            ? ", and not as S3 does: is the endpoint another web server?" : ""
        switch (status, code) {
        case (_, "NoSuchBucket"):
            return BucketError(.unavailable, "\(what): the bucket does not exist (\(said))")
        case (301, _), (307, _), (_, "AuthorizationHeaderMalformed"),
            (_, "IllegalLocationConstraintException"):
            let location = region.map { ": it is in \($0)" } ?? ""
            return BucketError(
                .unavailable, "\(what): the bucket is at another endpoint or region\(location) (\(said))")
        case (_, "SignatureDoesNotMatch"):
            return BucketError(
                .unavailable,
                "\(what): the signature does not match: the secret access key is wrong, or a proxy changes requests "
                    + "(\(said))")
        case (_, "InvalidAccessKeyId"), (_, "ExpiredToken"),
            (_, "InvalidToken"), (_, "TokenRefreshRequired"), (401, _):
            return BucketError(
                .unavailable, "\(what): the service refuses the credentials: \(said)")
        case (_, "RequestTimeTooSkewed"):
            return BucketError(.unavailable, "\(what): this machine's clock is wrong (\(said))")
        case (403, _):
            return BucketError(
                .unavailable, "\(what): the service refuses the credentials the right to it: \(said)\(hint)")
        case (_, "MetadataTooLarge"):
            return BucketError(
                .unsupported,
                "\(what): the custom metadata is more than the service holds (\(said))")
        case (_, "KeyTooLongError"):
            return BucketError(.unsupported, "\(what): the name is longer than the service allows")
        case (507, _), (_, "QuotaExceeded"), (_, "XMinioStorageFull"):
            return BucketError(.insufficientStorage, "\(what): \(said)")
        case (412, _), (_, "PreconditionFailed"): return BucketError(.preconditionFailed, "\(what): \(said)")
        case (_, "ConditionalRequestConflict"), (_, "OperationAborted"):
            return BucketError(.overloaded, "\(what): other requests change the object at the same time: \(said)")
        case (503, _), (429, _), (_, "SlowDown"), (_, "ServiceUnavailable"):
            return BucketError(.overloaded, "\(what): the service is busy: \(said)")
        case (408, _), (504, _), (_, "RequestTimeout"): return BucketError(.timedOut, "\(what): \(said)")
        case (501, _), (405, _), (_, "NotImplemented"):
            return BucketError(.unsupported, "\(what): the service does not do this: \(said)")
        default: return BucketError(.unavailable, "\(what): the service responds with \(said)\(hint)")
        }
    }
}
