import EventLoop
import Identity
import Wire

/// How callers are told from each other, and what they may use.
public final class Callers: Sendable {
    /// nil where nobody looks at `Authorization`.
    let authenticator: Authenticator?
    let limits: CallerLimits
    /// nil where signed links are switched off. They are replaced when their file changes.
    private let linkKeys: Lock<LinkKeys?>
    /// Seconds that a link may be valid.
    let maximumLifetime: Int64

    public init(
        authenticator: Authenticator? = nil, limits: CallerLimits = CallerLimits([]),
        linkKeys: LinkKeys? = nil, maximumLifetime: Int64 = 7 * 86_400
    ) {
        self.authenticator = authenticator
        self.limits = limits
        self.linkKeys = Lock(linkKeys)
        self.maximumLifetime = maximumLifetime
    }

    var links: LinkKeys? { linkKeys.withLock { $0 } }

    /// Puts other keys into effect: links of keys that are gone are not valid any more.
    public func replace(_ keys: LinkKeys?) { linkKeys.withLock { $0 = keys } }

    /// The groups that metrics tell apart besides those of the configuration.
    public static let anonymousGroup = "anonymous"
    public static let linkGroup = "links"
    public static let developmentGroup = "development"
    public static let certificateGroup = "certificates"
}

extension Callers {
    /// Nobody is told from anybody.
    public static let unknown = Callers()
}

extension Call {
    /// Whether the client shows anything at all.
    var hasCredential: Bool { exchange.identity != nil || fields.contains("authorization") }

    /// Finds out who calls: by `Authorization`, by the client's certificate, or by both.
    /// - Throws: ``Problem``: 401 for a credential that is wrong, 503 where keys are not there to tell.
    func identify(_ callers: Callers) async throws(Problem) {
        let client = exchange.identity as? ClientIdentity
        var shown = try await shown(callers)
        if let client {
            if let token = shown {
                shown = token.adding(certificate: client.certificate)
            } else {
                shown = try principal(client)
            }
        }
        guard let principal = shown else { return }
        caller.principal = principal
        record.principal = principal.uid
        record.group = principal.group
    }

    /// A connection may outlive the certificate that it was made with, and the trust in it.
    /// - Throws: ``Problem``: 401, for whatever is asked: a new connection would not come about.
    func checkCertificate() throws(Problem) {
        guard let client = exchange.identity as? ClientIdentity else { return }
        if now >= client.notAfter {
            throw Problem(
                .certificateExpired, "Show a certificate that is valid now.",
                cause: "the certificate of \(client.subject) has expired", field: Problem.challenge)
        }
        if !exchange.isIdentityCurrent {
            throw Problem(
                .certificateUntrusted, "The certificate is not accepted any more.",
                cause: "the certificate of \(client.subject) was revoked, or its authority is gone",
                field: Problem.challenge)
        }
    }

    private func principal(_ client: ClientIdentity) throws(Problem) -> Principal {
        switch client.principal {
        case .success(let principal): return principal
        case .failure(let error):
            throw Problem(
                .unauthenticated, "The certificate has no name that counts here.",
                cause: error.cause, field: Problem.challenge)
        }
    }

    private func shown(_ callers: Callers) async throws(Problem) -> Principal? {
        guard let authenticator = callers.authenticator else { return nil }
        do throws(CredentialError) {
            return try await authenticator.authenticate(fields)
        } catch {
            throw Problem(error)
        }
    }

    /// Acts with the decision of whoever signed the link that the query is.
    /// - Throws: ``Problem``: `link-expired` or `invalid-link`.
    func follow(
        _ action: Action, _ bucket: GatewayBucket, _ query: ArraySlice<UInt8>, _ callers: Callers
    ) throws(Problem) {
        guard let keys = callers.links, let name = action.name else {
            throw Problem(.invalidLink, "No link leads here.", cause: "no link can be for this")
        }
        let (link, key) = try SignedLink.verified(
            method: exchange.head.method, bucket: bucket.name, name: name.value, query: query, keys,
            now: now)
        if case .upload(_, let request) = action { try link.check(request) }
        record.principal = "link:\(key)"
        record.group = Callers.linkGroup
        isPermitted = true
    }

    /// Counts the request among those of its caller.
    /// - Throws: ``Problem``: 429.
    func admit(_ callers: Callers) throws(Problem) {
        guard let limits = callers.limits.limits(of: record.group) else { return }
        let key = CallerLimits.Key(
            group: record.group, source: caller.principal?.source ?? "",
            caller: caller.principal?.uid ?? CallerLimits.network(of: exchange.peer))
        let direction: CallerLimits.Direction =
            switch exchange.head.method {
            case "GET": .outgoing
            case "PUT", "POST", "PATCH": .incoming
            default: .none
            }
        do throws(CallerLimits.Refusal) {
            lease = try callers.limits.begin(key, limits, direction)
        } catch {
            record.limit = error.limit
            throw Problem(
                .tooManyRequests, "Try again in \(error.retryAfter) s.",
                cause: "the limit of \(error.limit.rawValue) of group \(record.group)",
                field: ("retry-after", "\(error.retryAfter)"))
        }
    }

    /// The answer to a request that failed: whoever guesses tokens, links or paths is counted too, by address.
    func counted(_ problem: Problem, _ callers: Callers) -> Problem {
        if lease != nil || record.limit != nil { return problem }
        do throws(Problem) {
            try admit(callers)
            return problem
        } catch {
            return error
        }
    }
}

extension Problem {
    /// What an answer of 401 asks for where nothing was wrong with a token (RFC 9110, section 11.6.1).
    static var challenge: (name: StaticString, value: String) { ("www-authenticate", "Bearer") }

    /// A credential that is wrong, or that nobody can tell yet (RFC 6750, section 3.1).
    convenience init(_ error: CredentialError) {
        if error.code == .unavailable {
            self.init(
                .keysUnavailable, "The issuer's keys are not here yet.", cause: error.cause,
                field: ("retry-after", "5"))
            return
        }
        let code = Code(rawValue: error.code.rawValue) ?? .unauthenticated
        // Whoever tried it in another way was not wrong about a token.
        if error.code == .unsupportedScheme {
            self.init(code, "\(code.title).", cause: error.cause, field: Problem.challenge)
            return
        }
        self.init(
            code, "\(code.title).", cause: error.cause,
            field: (
                "www-authenticate",
                "Bearer error=\"invalid_token\", error_description=\"\(error.code.rawValue)\""
            ))
    }
}
