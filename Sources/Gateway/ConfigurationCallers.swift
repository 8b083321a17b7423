import Identity
import Wire

extension Configuration {
    /// Whose certificates clients of the TLS listener may show.
    public struct Clients: Sendable, Equatable {
        /// A PEM file; nil where clients are not asked.
        public var authorities: String?
        public var isRequired = false
        /// A PEM file.
        public var revoked: String?
        /// `spiffe`, `dns` or `subject`.
        public var uid = "spiffe"
        /// nil for `certificates`.
        public var group: String?
    }

    /// Who issues tokens. ``tokenIssuer`` tells which of its four kinds counts.
    public struct Issuer: Sendable, Equatable {
        public let name: String
        /// A project of Firebase.
        public var firebase: String?
        public var kubernetes = Kubernetes()
        public var oidc = OIDC()
        public var jwks = JWKS()
        /// The claim that is `request.auth.uid`; nil for the kind's own.
        public var uid: String?
        /// nil for the issuer's name.
        public var group: String?
        /// A PEM file in place of the system's.
        public var authorities: String?

        public init(name: String) { self.name = name }
    }

    /// Tokens of service accounts.
    public struct Kubernetes: Sendable, Equatable {
        public var audience: String?
        /// Both nil: the cluster that the process runs in.
        public var issuer: String?
        /// A URL or a file.
        public var keys: String?
    }

    /// An OpenID provider with a discovery document.
    public struct OIDC: Sendable, Equatable {
        public var issuer: String?
        public var audiences: [String] = []
    }

    /// An issuer whose keys are at a known place.
    public struct JWKS: Sendable, Equatable {
        public var issuer: String?
        public var audiences: [String] = []
        /// A URL or a file.
        public var keys: String?
    }

    /// The token of one caller.
    public struct Token: Sendable, Equatable {
        public let name: String
        /// 64 hexadecimal digits.
        public var sha256: String?
        /// nil for the token's name.
        public var group: String?

        public init(name: String) { self.name = name }

        /// What is wrong with a name for a token; nil where nothing is.
        public static func fault(in name: String) -> String? { fault(ofName: name) }

        static let exampleDigest = String(repeating: "0", count: 64)
    }

    /// What each caller of a group may use; 0 is no limit.
    public struct CallerGroup: Sendable, Equatable {
        /// `default` stands for every group that is not named.
        public let name: String
        /// Each second.
        public var requests = 0
        /// Bytes each second.
        public var bytesIn: UInt64 = 0
        public var bytesOut: UInt64 = 0
        /// At once.
        public var transfers = 0

        public init(name: String) { self.name = name }
    }

    /// Signed links.
    public struct Links: Sendable, Equatable {
        /// A file of keys; nil where links are switched off.
        public var keys: String?
        /// Nanoseconds.
        public var maximumLifetime: UInt64 = 7 * 86_400_000_000_000
    }

    /// Nanoseconds of a text such as `15m`; nil where it is none.
    public static func duration(_ text: String) -> UInt64? { Units.durations.value(text) }

    static let clientSettings: [Setting<Configuration>] = [
        .path(
            "listen.https.clients.authorities", \.https.clients.authorities,
            "PEM file of the authorities whose certificates clients may show; null asks for none. Read again when it changes."
        ),
        .flag(
            "listen.https.clients.required", \.https.clients.isRequired,
            "Whether a client without a certificate is refused."),
        .path(
            "listen.https.clients.revoked", \.https.clients.revoked,
            "PEM file of revocation lists, one of each of those authorities; read again when it changes."
        ),
        .choice(
            "listen.https.clients.uid", ["spiffe", "dns", "subject"], \.https.clients.uid,
            "What of a certificate is request.auth.uid: its SPIFFE URI, its first DNS name, or its subject."
        ),
        .word(
            "listen.https.clients.group", \.https.clients.group,
            "The group of callers that certificates belong to; null is 'certificates'."),
    ]

    static let linkSettings: [Setting<Configuration>] = [
        .path(
            "links.keys", \.links.keys,
            "File of keys that sign links, the newest first; null switches signed links off. Read again when it changes."
        ),
        .duration(
            "links.maximumLifetime", 1_000_000_000...30 * 86_400_000_000_000,
            \.links.maximumLifetime, "How long a link may be valid at most."),
    ]
}

extension Configuration.Issuer: ConfigurationEntry {
    static let section = "issuers"
    static var all: WritableKeyPath<Configuration, [Self]> { \.issuers }
    static let example = "{ firebase: { project: my-project } }"

    static let settings: [Setting<Self>] = [
        .name(
            "firebase.project", "a project", \.firebase,
            "Tokens of the users of a Firebase project."),
        .text(
            "kubernetes.audience", \.kubernetes.audience,
            "Tokens of Kubernetes' service accounts for this audience, which a projected volume asks for."
        ),
        .text(
            "kubernetes.issuer", \.kubernetes.issuer,
            "The cluster's issuer; null is the cluster that the process runs in."),
        .keys(
            "kubernetes.keys", \.kubernetes.keys,
            "Where the cluster's keys are; null is found out from the issuer, or from the cluster."),
        .text(
            "oidc.issuer", \.oidc.issuer,
            "An OpenID provider: its keys are found by its discovery document."),
        .list(
            "oidc.audiences", "audiences", \.oidc.audiences,
            "Tokens are for one of them; at least one is needed."),
        .text("jwks.issuer", \.jwks.issuer, "An issuer whose keys are at a known place."),
        .list(
            "jwks.audiences", "audiences", \.jwks.audiences,
            "Tokens are for one of them; at least one is needed."),
        .keys("jwks.keys", \.jwks.keys, "Where its keys are."),
        .text(
            "uid", \.uid,
            "The claim that is request.auth.uid; null is sub, and user_id for Firebase."),
        .word("group", \.group, "The group of callers; null is the issuer's name."),
        .path(
            "authorities", \.authorities, "PEM file, in place of the system's, for fetching keys."),
    ]

    /// The kinds that keys of the file describe.
    var kinds: [String] {
        let given: [(String, Bool)] = [
            ("firebase", firebase != nil), ("kubernetes", kubernetes != .init()),
            ("oidc", oidc != .init()), ("jwks", jwks != .init()),
        ]
        return given.filter(\.1).map(\.0)
    }

    /// What is verified; nil where something is missing.
    public var tokenIssuer: TokenIssuer? {
        var issuer: TokenIssuer
        if let firebase {
            issuer = .firebase(name: name, project: firebase, group: group ?? name)
        } else if let audience = kubernetes.audience {
            issuer = .kubernetes(
                name: name, audience: audience, issuer: kubernetes.issuer, keys: kubernetes.keys,
                group: group ?? name)
        } else if let url = oidc.issuer {
            issuer = TokenIssuer(
                name: name, keys: .discovery, issuer: url, audiences: oidc.audiences,
                group: group ?? name)
        } else if let iss = jwks.issuer, let keys = jwks.keys {
            issuer = TokenIssuer(
                name: name, keys: keys.contains("://") ? .url(keys) : .file(keys), issuer: iss,
                audiences: jwks.audiences, group: group ?? name)
        } else {
            return nil
        }
        if let uid { issuer.uidClaim = uid }
        issuer.certificateAuthorities = authorities
        return issuer
    }
}

extension Configuration.Token: ConfigurationEntry {
    static let section = "tokens"
    static var all: WritableKeyPath<Configuration, [Self]> { \.tokens }
    static let example = "{ sha256: DIGEST }"

    static let settings: [Setting<Self>] = [
        .digest(
            "sha256", \.sha256,
            "SHA-256 of the token, which 'sluice token new' makes; the entry's name is request.auth.uid."
        ),
        .word("group", \.group, "The group of callers; null is the token's name."),
    ]

    /// What is compared; nil where the digest is missing.
    public var staticToken: StaticToken? {
        guard let sha256, let digest = Hexadecimal.decode(sha256.utf8) else { return nil }
        return StaticToken(name: name, sha256: digest, group: group ?? name)
    }
}

extension Configuration.CallerGroup: ConfigurationEntry {
    /// The name of the limits of every group that has none of its own.
    static let otherwise = "default"
    static let section = "callers"
    static var all: WritableKeyPath<Configuration, [Self]> { \.callers }
    static let example = "{ requests: 100 }"

    static let settings: [Setting<Self>] = [
        .integer(
            "requests", 0...1_000_000, \.requests,
            "Requests each second of each caller of the group; 0 is no limit. Over it 429."),
        .bytes(
            "bytesIn", 0...UInt64(1) << 40, \.bytesIn,
            "Bytes of uploads each second of each caller; 0 is no limit. Over it they wait."),
        .bytes(
            "bytesOut", 0...UInt64(1) << 40, \.bytesOut,
            "Bytes of answers to GET each second of each caller; 0 is no limit. Over it they wait."),
        .integer(
            "transfers", 0...1_000_000, \.transfers,
            "Requests at once of each caller; 0 is no limit. Over it 429."),
    ]
}

extension ConfigurationReader {
    mutating func checkCallers() {
        checkClients()
        for issuer in result.issuers {
            let path = "issuers.\(issuer.name)"
            guard isRead(path), let fault = Self.fault(of: issuer) else { continue }
            report(SettingError(message: "issuer '\(issuer.name)' \(fault)"), at: path)
        }
        for issuer in result.issuers {
            let iss = issuer.tokenIssuer?.issuer
            let twin = result.issuers.first {
                $0.name < issuer.name && iss != nil && $0.tokenIssuer?.issuer == iss
            }
            guard let twin else { continue }
            report(
                SettingError(message: "'\(twin.name)' and '\(issuer.name)' are the same issuer"),
                at: "issuers.\(issuer.name)")
        }
        for token in result.tokens where token.sha256 == nil && isRead("tokens.\(token.name)") {
            report(
                SettingError(message: "token '\(token.name)' has no 'sha256'"),
                at: "tokens.\(token.name)")
        }
        for token in result.tokens {
            let twin = result.tokens.first {
                $0.name < token.name && $0.staticToken?.sha256 == token.staticToken?.sha256
                    && token.staticToken != nil
            }
            guard let twin else { continue }
            report(
                SettingError(message: "'\(twin.name)' and '\(token.name)' are the same token"),
                at: "tokens.\(token.name)")
        }
        let groups = result.groups.union([
            Callers.anonymousGroup, Configuration.CallerGroup.otherwise,
        ])
        for group in result.callers where !groups.contains(group.name) {
            let path = "callers.\(group.name)"
            guard isRead(path), isRead("issuers"), isRead("tokens") else { continue }
            var error = SettingError(message: "no caller is of group '\(group.name)'")
            error.suggestion = Spelling.nearest(to: group.name, among: groups.sorted())
            report(error, at: path)
        }
        if let file = result.links.keys, let reason = Self.whyUnreadable(file) {
            report(
                SettingError(message: "'links.keys': \(file) can't be read: \(reason)"),
                at: "links.keys")
        }
    }

    private func isRead(_ path: String) -> Bool {
        broken.allSatisfy { $0 != "" && $0 != path && !$0.hasPrefix(path + ".") }
    }

    private mutating func checkClients() {
        let clients = result.https.clients
        let path = "listen.https.clients"
        if clients.authorities == nil {
            let others = [
                ("required", clients.isRequired), ("revoked", clients.revoked != nil),
            ]
            for (key, isGiven) in others where isGiven {
                report(
                    SettingError(
                        message: "'\(path).\(key)' is of no use without '\(path).authorities'"),
                    at: "\(path).\(key)")
            }
        } else if result.https.address == nil {
            report(
                SettingError(
                    message: "'\(path).authorities' is of no use without 'listen.https.address'"),
                at: "\(path).authorities")
        }
        for (key, file) in [("authorities", clients.authorities), ("revoked", clients.revoked)] {
            guard let file, let reason = Self.whyUnreadable(file) else { continue }
            report(
                SettingError(message: "'\(path).\(key)': \(file) can't be read: \(reason)"),
                at: "\(path).\(key)")
        }
    }

    private static func fault(of issuer: Configuration.Issuer) -> String? {
        let kinds = issuer.kinds
        if kinds.count > 1 {
            let all = kinds.map { "'\($0)'" }.joined(separator: " and ")
            return "is of more than one kind: \(all)"
        }
        switch kinds.first {
        case nil: return "needs one of 'firebase', 'kubernetes', 'oidc' and 'jwks'"
        case "kubernetes":
            if issuer.kubernetes.audience == nil {
                return "needs 'kubernetes.audience': without it every pod's own token would do"
            }
            if issuer.kubernetes.keys != nil, issuer.kubernetes.issuer == nil {
                return "has 'kubernetes.keys' but no 'kubernetes.issuer'"
            }
        case "oidc":
            if issuer.oidc.issuer == nil { return "needs 'oidc.issuer'" }
            if issuer.oidc.audiences.isEmpty { return "needs 'oidc.audiences'" }
        case "jwks":
            if issuer.jwks.issuer == nil { return "needs 'jwks.issuer'" }
            if issuer.jwks.keys == nil { return "needs 'jwks.keys'" }
            if issuer.jwks.audiences.isEmpty { return "needs 'jwks.audiences'" }
        default: break
        }
        if let fault = issuer.tokenIssuer?.fault { return "can't be used: \(fault)" }
        for file in [issuer.authorities, issuer.jwks.keys, issuer.kubernetes.keys] {
            guard let file, !file.contains("://"), let reason = whyUnreadable(file) else {
                continue
            }
            return "names \(file), which can't be read: \(reason)"
        }
        return nil
    }
}
