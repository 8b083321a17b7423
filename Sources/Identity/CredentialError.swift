import Wire

/// Why a credential is refused.
public struct CredentialError: Error, Sendable, Equatable, CustomStringConvertible {
    /// What the caller is told.
    public enum Code: String, Sendable, CaseIterable {
        /// It is no credential that could be read, or one that says what no credential may.
        case malformed = "token-malformed"
        /// Another scheme than `Bearer` and `Firebase`.
        case unsupportedScheme = "unsupported-scheme"
        /// Its issuer is not configured.
        case unknownIssuer = "unknown-issuer"
        /// It is for somebody else.
        case wrongAudience = "wrong-audience"
        /// Its time is over.
        case expired = "token-expired"
        /// Its time has not come.
        case notYetValid = "token-not-yet-valid"
        /// No key of its issuer has signed it.
        case badSignature = "bad-signature"
        /// It is not a JSON Web Token, and not one of the static ones.
        case unknownToken = "unknown-token"
        /// The keys are not there yet: nobody knows, and it is no fault of the caller's.
        case unavailable
    }
    /// What the caller is told.
    public var code: Code
    /// For the log. Of the token it has nothing but issuer and `kid`, each as at most 200 bytes of visible ASCII.
    public var cause: String

    public init(_ code: Code, _ cause: String) {
        self.code = code
        self.cause = cause
    }

    public var description: String { "\(code.rawValue): \(cause)" }
}
