import Gateway
import Identity
import Wire

extension Configuration {
    /// Client certificates on the TLS listener.
    public struct Clients: Sendable, Equatable {
        /// A PEM file; nil if client certificates are not requested.
        public var authorities: String?
        public var isRequired = false
        /// A PEM file.
        public var revoked: String?
        /// `spiffe`, `dns` or `subject`.
        public var uid = "spiffe"
        /// The caller group; nil for `certificates`.
        public var group: String?
    }

    /// An issuer of tokens. One of the four kinds must be configured; see ``tokenIssuer``.
    public struct Issuer: Sendable, Equatable {
        public let name: String
        /// A Firebase project.
        public var firebase: String?
        public var kubernetes = Kubernetes()
        public var oidc = OIDC()
        public var jwks = JWKS()
        /// The claim that becomes `request.auth.uid`; nil for the kind's default.
        public var uid: String?
        /// Text before that claim in `request.auth.uid`; nil for none.
        public var uidPrefix: String?
        /// nil for the issuer's name.
        public var group: String?
        /// A PEM file that replaces the system's authorities.
        public var authorities: String?

        public init(name: String) { self.name = name }
    }

    /// Tokens of service accounts.
    public struct Kubernetes: Sendable, Equatable {
        public var audience: String?
        /// If both are nil: the cluster that the process runs in.
        public var issuer: String?
        /// A URL or a file.
        public var keys: String?
    }

    /// An OpenID provider with a discovery document.
    public struct OIDC: Sendable, Equatable {
        public var issuer: String?
        public var audiences: [String] = []
    }

    /// An issuer whose keys are at a known URL or in a file.
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
        /// The caller group; nil for the token's name.
        public var group: String?

        public init(name: String) { self.name = name }

        /// Why a token can't have this name; nil if it can.
        public static func fault(in name: String) -> String? { fault(ofName: name) }

        static let exampleDigest = String(repeating: "0", count: 64)
    }

    /// Signed links.
    public struct Links: Sendable, Equatable {
        /// A key file; nil if signed links are switched off.
        public var keys: String?
        /// Nanoseconds.
        public var maximumLifetime: UInt64 = 7 * 86_400_000_000_000
    }

    /// Parses a duration such as `15m` to nanoseconds; nil if the text is not a duration.
    public static func duration(_ text: String) -> UInt64? { Units.durations.value(text) }

    static let clientSettings: [Setting<Configuration>] = [
        .path(
            "listen.https.clients.authorities", \.https.clients.authorities,
            "PEM file with the authorities for client certificates; null asks clients for no "
                + "certificate. Reloaded when it changes."
        ),
        .flag(
            "listen.https.clients.required", \.https.clients.isRequired,
            "Whether clients without a certificate are rejected."),
        .path(
            "listen.https.clients.revoked", \.https.clients.revoked,
            "PEM file with revocation lists, one for each of these authorities. Reloaded when it changes."),
        .choice(
            "listen.https.clients.uid", ["spiffe", "dns", "subject"], \.https.clients.uid,
            "The part of a certificate that becomes request.auth.uid: its SPIFFE URI, its first DNS "
                + "name, or its subject."
        ),
        .word(
            "listen.https.clients.group", \.https.clients.group,
            "The caller group of clients with a certificate; null is 'certificates'."),
    ]

    static let linkSettings: [Setting<Configuration>] = [
        .path(
            "links.keys", \.links.keys,
            "File with the keys for signed links, the newest first; null switches signed links off. "
                + "Reloaded when it changes."
        ),
        .duration(
            "links.maximumLifetime", 1_000_000_000...30 * 86_400_000_000_000,
            \.links.maximumLifetime, "Maximum lifetime of a signed link."),
    ]
}

extension Configuration.Issuer: ConfigurationEntry {
    static let section = "issuers"
    static var all: WritableKeyPath<Configuration, [Self]> { \.issuers }
    static let example = "{ firebase: { project: my-project } }"

    static let settings: [Setting<Self>] = [
        .name(
            "firebase.project", "a project", \.firebase,
            "Firebase project whose users' tokens are accepted."),
        .text(
            "kubernetes.audience", \.kubernetes.audience,
            "Audience of Kubernetes service account tokens, as requested in a pod's projected volume."),
        .text(
            "kubernetes.issuer", \.kubernetes.issuer,
            "The cluster's issuer; null is the cluster in which the process runs."),
        .keys(
            "kubernetes.keys", \.kubernetes.keys,
            "Where the cluster's keys are; with null they are found through the issuer, or through the cluster."
        ),
        .text(
            "oidc.issuer", \.oidc.issuer,
            "An OpenID provider. Its keys are found through its discovery document."),
        .list(
            "oidc.audiences", "audiences", \.oidc.audiences,
            "Accepted audiences; at least one is required."),
        .text(
            "jwks.issuer", \.jwks.issuer, "An issuer whose keys are at a known URL or in a file."),
        .list(
            "jwks.audiences", "audiences", \.jwks.audiences,
            "Accepted audiences; at least one is required."),
        .keys("jwks.keys", \.jwks.keys, "The URL or file of its keys."),
        .text(
            "uid", \.uid,
            "The claim that becomes request.auth.uid; null is sub, and user_id for Firebase."),
        .text(
            "uidPrefix", \.uidPrefix,
            "Text before that claim in request.auth.uid, to distinguish users of different issuers."),
        .word("group", \.group, "The caller group; null is the issuer's name."),
        .path(
            "authorities", \.authorities,
            "PEM file with the authorities for fetching keys; null is the system's."),
    ]

    /// The kinds whose keys are set.
    var kinds: [String] {
        let given: [(String, Bool)] = [
            ("firebase", firebase != nil), ("kubernetes", kubernetes != .init()),
            ("oidc", oidc != .init()), ("jwks", jwks != .init()),
        ]
        return given.filter(\.1).map(\.0)
    }

    /// The issuer as the verifier needs it; nil if a key is missing.
    public var tokenIssuer: TokenIssuer? {
        var issuer: TokenIssuer
        if let firebase {
            issuer = .firebase(name: name, project: firebase, group: group ?? name)
        } else if let audience = kubernetes.audience {
            issuer = .kubernetes(
                name: name, audience: audience, issuer: kubernetes.issuer, keys: kubernetes.keys, group: group ?? name)
        } else if let url = oidc.issuer {
            issuer = TokenIssuer(
                name: name, keys: .discovery, issuer: url, audiences: oidc.audiences, group: group ?? name)
        } else if let iss = jwks.issuer, let keys = jwks.keys {
            issuer = TokenIssuer(
                name: name, keys: keys.contains("://") ? .url(keys) : .file(keys), issuer: iss,
                audiences: jwks.audiences, group: group ?? name)
        } else {
            return nil
        }
        if let uid { issuer.uidClaim = uid }
        if let uidPrefix { issuer.uidPrefix = uidPrefix }
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
            "SHA-256 of the token, as printed by 'sluice token new'. The entry's name becomes request.auth.uid."),
        .word("group", \.group, "The caller group; null is the token's name."),
    ]

    /// The token as the verifier needs it; nil if the digest is missing.
    public var staticToken: StaticToken? {
        guard let sha256, let digest = Hexadecimal.decode(sha256.utf8) else { return nil }
        return StaticToken(name: name, sha256: digest, group: group ?? name)
    }
}

extension CallerGroup: ConfigurationEntry {
    static let section = "callers"
    static var all: WritableKeyPath<Configuration, [Self]> { \.callers }
    static let example = "{ requests: 100 }"

    static let settings: [Setting<Self>] = [
        .integer(
            "requests", 0...1_000_000, \.requests,
            "Requests per second of each caller in the group; over it status 429. 0 is no limit."),
        .bytes(
            "bytesIn", 0...UInt64(1) << 40, \.bytesIn,
            "Uploaded bytes per second of each caller; over it uploads are slowed down. 0 is no limit."),
        .bytes(
            "bytesOut", 0...UInt64(1) << 40, \.bytesOut,
            "Bytes per second of responses to GET for each caller; over it they are slowed down. 0 is no limit."),
        .integer(
            "transfers", 0...1_000_000, \.transfers,
            "Concurrent requests of each caller; over it status 429. 0 is no limit."),
    ]
}

extension Configuration {
    /// The groups of callers with an identity.
    public var groups: Set<BytewiseString> {
        var groups: Set<BytewiseString> = [
            BytewiseString(Callers.linkGroup), BytewiseString(Callers.developmentGroup),
        ]
        groups.insert(https.clients.group ?? Callers.certificateGroup)
        for issuer in issuers { groups.insert(issuer.group ?? issuer.name) }
        for token in tokens { groups.insert(token.group ?? token.name) }
        return groups.union(s3.groups)
    }
}

extension ConfigurationReader {
    mutating func checkCallers() {
        checkClients()
        readS3Groups()
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
                $0.name < token.name && $0.staticToken?.sha256 == token.staticToken?.sha256 && token.staticToken != nil
            }
            guard let twin else { continue }
            report(
                SettingError(message: "'\(twin.name)' and '\(token.name)' are the same token"),
                at: "tokens.\(token.name)")
        }
        checkGroups()
        for (key, file) in [
            ("links.keys", result.links.keys), ("uploads.keys", result.uploads.keys),
        ] {
            guard let file, let reason = Self.whyUnreadable(file) else { continue }
            report(SettingError(message: "'\(key)': \(file) can't be read: \(reason)"), at: key)
        }
    }

    /// Reports limits of a group that no caller can belong to: they would never apply.
    private mutating func checkGroups() {
        let own = result.issuers.map { $0.group ?? $0.name } + result.tokens.map { $0.group ?? $0.name }
        let certificates = result.https.clients.group ?? Callers.certificateGroup
        var missing: [BytewiseString: String] = [:]
        if result.https.clients.authorities == nil {
            missing[certificates] = "listen.https.clients.authorities"
        }
        if result.links.keys == nil { missing[Callers.linkGroup] = "links.keys" }
        for group in own { missing[group] = nil }
        let groups =
            result.groups.subtracting(missing.keys).map(\.text) + [
                Callers.anonymousGroup, CallerGroup.otherwise,
            ]
        for group in result.callers where !groups.contains(group.name) {
            let path = "callers.\(group.name)"
            let sources = ["issuers", "tokens", "links", "listen.https.clients"]
            guard isRead(path), sources.allSatisfy(isRead) else { continue }
            let key = missing[group.name]
            var error = SettingError(
                message: "no caller is of group '\(group.name)'"
                    + (key.map { ": '\($0)' is not set" } ?? ""))
            if key == nil {
                error.suggestion = Spelling.nearest(to: group.name, among: groups.sorted())
            }
            report(error, at: path)
        }
    }

    private func isRead(_ path: String) -> Bool {
        broken.allSatisfy { $0 != "" && $0.text != path && !$0.text.hasPrefix(path + ".") }
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
                        message: "'\(path).\(key)' requires '\(path).authorities'"),
                    at: "\(path).\(key)")
            }
        } else if result.https.address == nil {
            report(
                SettingError(
                    message: "'\(path).authorities' requires 'listen.https.address'"),
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
