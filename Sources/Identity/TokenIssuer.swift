import HTTPClient
import OpenSSL
import System
import Wire

/// An issuer of tokens, and the requirements for its tokens.
public struct TokenIssuer: Sendable, Equatable {
    /// Where the keys are.
    public enum Keys: Sendable, Equatable {
        /// At the URL in `ISSUER/.well-known/openid-configuration` (OpenID Connect Discovery 1.0, section 4).
        case discovery
        /// A key set (RFC 7517, section 5) at a URL.
        case url(String)
        /// A key set in a file, which is read again when it changes.
        case file(String)
        /// The API server of the cluster that this pod runs in.
        case cluster
    }
    /// Additional requirements of one kind of issuer.
    public enum Profile: Sendable, Equatable {
        /// None.
        case general
        /// Firebase: `user_id` takes precedence over ``TokenIssuer/uidClaim``, and `auth_time` must be in the past.
        case firebase
    }

    /// The configured name.
    public var name: String
    /// Where the keys are.
    public var keys: Keys
    /// `iss`, compared by bytes; nil only for ``Keys/cluster``, whose API server provides it.
    public var issuer: String?
    /// `aud` must contain one of these. Never empty.
    public var audiences: [String]
    /// The claim that is the `uid`. `email` and `phone_number` must also be verified (`…_verified`).
    public var uidClaim = "sub"
    /// The prefix of each `uid`.
    public var uidPrefix = ""
    /// The group of its principals.
    public var group: String
    public var profile = Profile.general
    /// A PEM file that replaces the system's certificate authorities when keys are fetched.
    public var certificateAuthorities: String?

    /// - Parameter group: By default the name.
    public init(
        name: String, keys: Keys, issuer: String?, audiences: [String], group: String? = nil
    ) {
        self.name = name
        self.keys = keys
        self.issuer = issuer
        self.audiences = audiences
        self.group = group ?? name
    }

    /// ID tokens of the users of a Firebase project.
    public static func firebase(name: String, project: String, group: String? = nil) -> TokenIssuer {
        var issuer = TokenIssuer(
            name: name,
            keys: .url(
                "https://www.googleapis.com/service_accounts/v1/jwk/securetoken@system.gserviceaccount.com"
            ), issuer: "https://securetoken.google.com/\(project)", audiences: [project],
            group: group)
        issuer.profile = .firebase
        return issuer
    }

    /// Projected tokens of service accounts; the `uid` is `system:serviceaccount:NAMESPACE:NAME`. If `issuer` or `keys`
    /// (a URL or a file) is nil, the API server provides it.
    public static func kubernetes(
        name: String, audience: String, issuer: String? = nil, keys: String? = nil, group: String? = nil
    ) -> TokenIssuer {
        let source: Keys =
            switch keys {
            case let keys? where keys.hasPrefix("https://") || keys.hasPrefix("http://"):
                .url(keys)
            case let keys?: .file(keys)
            case nil: .cluster
            }
        return TokenIssuer(name: name, keys: source, issuer: issuer, audiences: [audience], group: group)
    }

    /// Why the issuer can't be used; nil if it can. Keys are fetched over https, or over http from loopback addresses.
    public var fault: String? {
        if audiences.isEmpty || audiences.contains("") { return "an audience is missing" }
        if uidClaim.isEmpty { return "the claim that is the uid is missing" }
        if issuer == "" || issuer == nil && keys != .cluster { return "the issuer is missing" }
        switch keys {
        case .discovery: return TokenIssuer.fault(of: issuer ?? "", "the issuer")
        case .url(let url): return TokenIssuer.fault(of: url, "the URL of the keys")
        case .file(let path): return path.isEmpty ? "the file of the keys is missing" : nil
        case .cluster: return nil
        }
    }

    static func fault(of url: String, _ what: String) -> String? {
        guard let (origin, _) = Origin.cut(url) else { return "\(what) is not a URL" }
        return origin.scheme == .https || origin.isLoopback
            ? nil : "\(what) is not https (http is for loopback addresses alone)"
    }
}
