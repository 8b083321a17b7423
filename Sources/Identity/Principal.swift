import OpenSSL
import Wire

/// A caller with a verified identity. Immutable, and shared by all of its requests.
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
        /// By an access key, which signs requests (AWS Signature Version 4).
        case accessKey = "access-key"
        /// Not verified: the development mode accepts any claim.
        case development
    }

    /// The permitted length of a ``uid`` in bytes, which is a SPIFFE ID's (SPIFFE-ID, section 2.3).
    public static let uidBytes = 1...2048
    /// The maximum number of levels of arrays and objects within a claim.
    package static let maximumClaimDepth = 16

    /// How it was verified.
    public let kind: Kind
    /// `request.auth.uid`; ``uidBytes`` long.
    public let uid: String
    /// nil without claims. An object with at most ``maximumClaimDepth`` levels and only finite numbers.
    package let claims: JSONDocument?
    /// The certificate that verified the identity.
    package let certificate: PeerCertificate?
    /// The caller as presented to an authorization policy.
    package let derived = DerivedValue()
    /// The source of the identity: the configured name of the issuer or static token, or another kind of credential.
    public let source: String
    /// The configured group, for limits and metrics.
    public let group: String
    /// Seconds since 1970; `Int64.max` for never.
    public let expires: Int64

    /// - Parameter uid: ``uidBytes`` long.
    package init(
        kind: Kind, uid: String, claims: JSONDocument? = nil, certificate: PeerCertificate? = nil,
        source: String, group: String, expires: Int64
    ) {
        self.kind = kind
        self.uid = uid
        self.claims = claims
        self.certificate = certificate
        self.source = source
        self.group = group
        self.expires = expires
    }
}
