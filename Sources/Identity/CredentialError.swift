import Wire

/// Why a credential is rejected.
public struct CredentialError: Error, Sendable, Equatable, CustomStringConvertible {
    /// The kind of failure, for the response.
    public enum Code: String, Sendable, CaseIterable {
        /// It can't be parsed, or has a claim or header that is not allowed.
        case malformed = "token-malformed"
        /// Its scheme is neither `Bearer` nor `Firebase`.
        case unsupportedScheme = "unsupported-scheme"
        /// Its issuer is not configured.
        case unknownIssuer = "unknown-issuer"
        /// It has the wrong audience.
        case wrongAudience = "wrong-audience"
        /// It has expired.
        case expired = "token-expired"
        /// It is not valid yet.
        case notYetValid = "token-not-yet-valid"
        /// No key of its issuer matches the signature.
        case badSignature = "bad-signature"
        /// It is neither a JSON Web Token nor a static token.
        case unknownToken = "unknown-token"
        /// The issuer's keys have not been fetched yet, so it can't be verified.
        case unavailable
    }
    /// The code in the response.
    public var code: Code
    /// For the log. Of the token it contains only the issuer and `kid`, each at most 200 bytes of visible ASCII.
    public var cause: String

    public init(_ code: Code, _ cause: String) {
        self.code = code
        self.cause = cause
    }

    public var description: String { "\(code.rawValue): \(cause)" }
}
