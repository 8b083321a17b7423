import SecurityRules
import Wire

/// A caller whose identity was verified. Immutable, and shared by all requests that it makes.
public final class Principal: Sendable {
    /// How it was verified.
    public enum Kind: String, Sendable {
        /// By a JSON Web Token.
        case token
        /// By a token whose hash is configured.
        case staticToken = "static-token"
        /// By the certificate of its connection.
        case certificate
        /// By a signed link.
        case link
        /// Not at all: the development mode takes its word.
        case development
    }

    /// Bytes of a ``uid``: what a SPIFFE ID may have (SPIFFE-ID, section 2.3).
    public static let uidBytes = 1...2048
    /// The claim that only Sluice itself sets; a token's own claim of this name is left out.
    static let certificateClaim = "certificate"

    /// How it was verified.
    public let kind: Kind
    /// `request.auth.uid`; ``uidBytes`` long.
    public let uid: String
    /// `request.auth`, made once.
    public let caller: Caller
    /// The configured name of the issuer or the static token, or what else vouches for the caller.
    public let source: String
    /// The configured group, for limits and metrics.
    public let group: String
    /// Seconds since 1970; `Int64.max` for never.
    public let expires: Int64

    private init(
        _ kind: Kind, _ uid: String, _ caller: Caller, source: String, group: String, expires: Int64
    ) {
        self.kind = kind
        self.uid = uid
        self.caller = caller
        self.source = source
        self.group = group
        self.expires = expires
    }

    /// - Parameters:
    ///   - uid: ``uidBytes`` long.
    ///   - claims: `request.auth.token`.
    public convenience init(
        kind: Kind, uid: String, claims: [BytewiseString: Value], source: String, group: String,
        expires: Int64
    ) {
        self.init(
            kind, uid, Caller(uid: uid, token: claims), source: source, group: group,
            expires: expires)
    }

    /// The same of claims that were made of a token's own text.
    convenience init(
        kind: Kind, uid: String, claims: SlicedValue, source: String, group: String,
        expires: Int64
    ) {
        self.init(
            kind, uid, Caller(uid: uid, token: claims), source: source, group: group,
            expires: expires)
    }

    /// The same, its `request.auth.token.certificate` set: the connection has shown both.
    public func adding(certificate: Value) -> Principal {
        Principal(
            kind, uid, caller.adding(Principal.certificateClaim, certificate), source: source,
            group: group, expires: expires)
    }
}
