import Buckets
import HTTPServer
import Wire

/// An error that only one dialect has. The log has the problem's code.
package struct DialectError: Sendable {
    /// The HTTP status code.
    var status: Int
    /// The dialect's code, such as `SignatureDoesNotMatch`.
    var code: StaticString
    /// Further elements of the response.
    var members: [(name: StaticString, value: String)] = []
}

/// A request's failure: the problem details for the client (RFC 9457), and the cause for the log.
///
/// A class, so that functions that can throw it only need space for a reference.
public final class Problem: Error, Sendable {
    /// The stable codes. Each has a status and a title.
    public enum Code: String, Sendable, CaseIterable {
        case invalidName = "invalid-name"
        case invalidArgument = "invalid-argument"
        case checksumMismatch = "checksum-mismatch"
        case unauthenticated
        case tokenMalformed = "token-malformed"
        case unsupportedScheme = "unsupported-scheme"
        case unknownIssuer = "unknown-issuer"
        case wrongAudience = "wrong-audience"
        case tokenExpired = "token-expired"
        case tokenNotYetValid = "token-not-yet-valid"
        case badSignature = "bad-signature"
        case unknownToken = "unknown-token"
        case certificateExpired = "certificate-expired"
        case certificateUntrusted = "certificate-untrusted"
        case unauthorized
        case invalidLink = "invalid-link"
        case linkExpired = "link-expired"
        case objectNotFound = "object-not-found"
        case bucketNotFound = "bucket-not-found"
        case notFound = "not-found"
        case methodNotAllowed = "method-not-allowed"
        case requestTimeout = "request-timeout"
        case preconditionFailed = "precondition-failed"
        case payloadTooLarge = "payload-too-large"
        case misdirectedRequest = "misdirected-request"
        case unsupportedMediaType = "unsupported-media-type"
        case rangeNotSatisfiable = "range-not-satisfiable"
        case tooManyRequests = "too-many-requests"
        case `internal`
        case notImplemented = "not-implemented"
        case upstreamUnavailable = "upstream-unavailable"
        case overloaded
        case keysUnavailable = "keys-unavailable"
        case upstreamTimeout = "upstream-timeout"
        case insufficientStorage = "insufficient-storage"
        case uploadNotFound = "upload-not-found"
        case uploadOffsetMismatch = "upload-offset-mismatch"
        case uploadLengthMismatch = "upload-length-mismatch"
        case uploadConflict = "upload-conflict"
        case tooManyUploads = "too-many-uploads"
        case watchExpired = "watch-expired"

        /// The HTTP status code.
        public var status: Int {
            switch self {
            case .invalidName, .invalidArgument, .checksumMismatch, .uploadLengthMismatch: 400
            case .unauthenticated, .tokenMalformed, .unsupportedScheme, .unknownIssuer,
                .wrongAudience,
                .tokenExpired, .tokenNotYetValid, .badSignature, .unknownToken, .certificateExpired,
                .certificateUntrusted:
                401
            case .unauthorized, .invalidLink, .linkExpired: 403
            case .objectNotFound, .bucketNotFound, .notFound, .uploadNotFound: 404
            case .methodNotAllowed: 405
            case .requestTimeout: 408
            case .uploadOffsetMismatch, .uploadConflict: 409
            case .watchExpired: 410
            case .preconditionFailed: 412
            case .payloadTooLarge: 413
            case .unsupportedMediaType: 415
            case .rangeNotSatisfiable: 416
            case .misdirectedRequest: 421
            case .tooManyRequests, .tooManyUploads: 429
            case .internal: 500
            case .notImplemented: 501
            case .upstreamUnavailable: 502
            case .overloaded, .keysUnavailable: 503
            case .upstreamTimeout: 504
            case .insufficientStorage: 507
            }
        }

        /// The title, the same for every problem of this code.
        public var title: String {
            switch self {
            case .invalidName: "The object's name is not valid"
            case .invalidArgument: "An argument is not valid"
            case .checksumMismatch: "The bytes do not have the digest that was given"
            case .unauthenticated: "The caller is not known"
            case .tokenMalformed: "The token can't be read"
            case .unsupportedScheme: "The scheme of Authorization is not supported"
            case .unknownIssuer: "The token's issuer is not known here"
            case .wrongAudience: "The token has the wrong audience"
            case .tokenExpired: "The token has expired"
            case .tokenNotYetValid: "The token is not valid yet"
            case .badSignature: "The token's signature is not valid"
            case .unknownToken: "The token is not known here"
            case .certificateExpired: "The client's certificate has expired"
            case .certificateUntrusted: "The client's certificate is no longer trusted"
            case .unauthorized: "The caller may not do this"
            case .invalidLink: "The link is not valid"
            case .linkExpired: "The link has expired"
            case .objectNotFound: "There is no such object"
            case .bucketNotFound: "There is no such bucket"
            case .notFound: "There is nothing at this path"
            case .methodNotAllowed: "The method is not possible here"
            case .requestTimeout: "The request's body arrived too slowly"
            case .preconditionFailed: "A precondition failed"
            case .payloadTooLarge: "The body is too large"
            case .unsupportedMediaType: "The body's type is not supported"
            case .rangeNotSatisfiable: "The range lies outside of the object"
            case .misdirectedRequest: "The host is not served here"
            case .tooManyRequests: "Too many requests"
            case .internal: "The gateway failed"
            case .notImplemented: "This is not supported here"
            case .upstreamUnavailable: "The bucket's store can't be used now"
            case .overloaded: "The gateway has too much to do now"
            case .keysUnavailable: "Tokens can't be verified now"
            case .upstreamTimeout: "The bucket's store took too long"
            case .insufficientStorage: "The bucket's store is full"
            case .uploadNotFound: "There is no such upload"
            case .uploadOffsetMismatch: "The upload has a different offset"
            case .uploadLengthMismatch: "The upload has a different length"
            case .uploadConflict: "The upload was continued or ended by another request"
            case .watchExpired: "The watch must begin with a new list"
            case .tooManyUploads: "The caller has too many unfinished uploads"
            }
        }

        /// The registered type (RFC 9457, section 4.2); nil for the default.
        var type: StaticString? {
            switch self {
            case .uploadOffsetMismatch:
                "https://iana.org/assignments/http-problem-types#mismatching-upload-offset"
            case .uploadLengthMismatch:
                "https://iana.org/assignments/http-problem-types#inconsistent-upload-length"
            default: nil
            }
        }
    }
    /// The code, which determines the status.
    public let code: Code
    /// A sentence for the client, without internal details.
    public let detail: String
    /// The cause, for the log only.
    public let cause: String?
    /// The fields that the status requires, such as `Allow`, `Content-Range`, `WWW-Authenticate` or `Retry-After`.
    package let field: (name: StaticString, value: String)?
    /// Members of the problem besides the usual ones.
    let members: [(name: StaticString, value: Int64)]
    /// The registered type; nil for the default.
    let type: StaticString?
    /// The error as the request's dialect reports it; nil if the code says it.
    let dialect: DialectError?

    /// - Parameters:
    ///   - type: The registered type, if it is not the code's.
    ///   - dialect: The error as the request's dialect reports it, if the code does not say it.
    package init(
        _ code: Code, _ detail: String, cause: String? = nil,
        field: (name: StaticString, value: String)? = nil,
        members: [(name: StaticString, value: Int64)] = [], type: StaticString? = nil, dialect: DialectError? = nil
    ) {
        self.members = members
        self.type = type ?? code.type
        self.dialect = dialect
        self.code = code
        self.detail = detail
        self.cause = cause
        self.field = field
    }

    /// The problem of a denial by the rules.
    static let denied = "The caller may not do this."
    /// The problem of a denial of an anonymous caller, if a rule has read the caller.
    static let deniedAnonymous = "Credentials are missing or not valid."

    static let notFound = Problem(.notFound, "Objects are at /b/BUCKET/o/NAME, lists at /b/BUCKET/o.")

    /// - Parameter allow: The methods of the resource, for `Allow`.
    package static func methodNotAllowed(_ allow: String) -> Problem {
        Problem(.methodNotAllowed, "The methods possible here are \(allow).", field: ("allow", allow))
    }

    /// The problem of an invalid name.
    convenience init(_ error: NameError) {
        switch error.limit {
        case .denied, .notAllowed:
            // Don't reveal the patterns to the client.
            self.init(
                .invalidName, "The object's name is not one of this bucket's.",
                cause: error.description)
        default: self.init(.invalidName, error.description)
        }
    }

    /// The problem of a store's error.
    convenience init(_ error: BucketError) {
        let code: Code
        let detail: String
        switch error.code {
        case .objectNotFound: (code, detail) = (.objectNotFound, "The bucket has no such object.")
        case .preconditionFailed: (code, detail) = (.preconditionFailed, "The object is not as the request wants it.")
        case .insufficientStorage: (code, detail) = (.insufficientStorage, "Nothing was stored.")
        case .overloaded:
            self.init(
                .overloaded, "The gateway or the bucket's store has too much to do now.",
                cause: error.cause, field: ("retry-after", "1"))
            return
        case .unavailable, .replaced:
            (code, detail) = (.upstreamUnavailable, "Try again later.")
        case .timedOut:
            (code, detail) = (.upstreamTimeout, "Try again later.")
        case .unsupported:
            (code, detail) = (.notImplemented, "The bucket's store can't do what was asked.")
        case .internal: (code, detail) = (.internal, "The request id leads to the cause.")
        }
        self.init(code, detail, cause: error.cause.isEmpty ? nil : error.cause)
    }

    /// The problem of a body that was not received completely.
    package convenience init(_ error: BodyError, limit: UInt64) {
        switch error {
        case .clientGone:
            self.init(.invalidArgument, "The body broke off.", cause: "the client went away")
        case .tooLarge:
            self.init(.payloadTooLarge, "The body may have at most \(limit) bytes.")
        case .timedOut: self.init(.requestTimeout, "Send the body faster.")
        case .sink(let error as BucketError): self.init(error)
        case .sink(let error): self.init(.internal, "The request id leads to the cause.", cause: "\(error)")
        }
    }

    /// `application/problem+json`.
    /// - Parameter status: nil for the code's status.
    package func json(requestId: String, status: Int? = nil) -> [UInt8] {
        var json = JSONWriter(reserving: 256)
        json.beginObject()
        if let type { json.member("type", "\(type)") }
        json.member("status", Int64(status ?? code.status))
        json.member("code", code.rawValue)
        json.member("title", code.title)
        json.member("detail", detail)
        json.member("instance", requestId)
        for member in members { json.member(member.name, member.value) }
        json.endObject()
        return json.bytes
    }
}
