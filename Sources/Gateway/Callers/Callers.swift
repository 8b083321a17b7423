import HTTPClient
import HTTPServer
import Identity
import System
import Wire

/// Authentication, caller limits and signed links.
public final class Callers: Sendable {
    /// nil if `Authorization` is ignored.
    let authenticator: Authenticator?
    let limits: CallerLimits
    /// nil if signed links are switched off. Replaced when the key file changes.
    private let linkKeys: Lock<LinkKeys?>
    /// The maximum lifetime of a link in seconds, counted from the time of signing.
    let maximumLifetime: Int64
    /// Verifies the signatures of S3 clients; nil if they are not served.
    public let s3: S3Verifier?

    public init(
        authenticator: Authenticator? = nil, limits: CallerLimits = CallerLimits([]),
        linkKeys: LinkKeys? = nil, maximumLifetime: Int64 = 7 * 86_400, s3: S3Verifier? = nil
    ) {
        self.authenticator = authenticator
        self.limits = limits
        self.linkKeys = Lock(linkKeys)
        self.maximumLifetime = maximumLifetime
        self.s3 = s3
    }

    /// Whether the source of a caller's credential is still configured.
    func isConfigured(_ principal: Principal) -> Bool {
        if principal.kind == .accessKey { return s3?.keys.isConfigured(principal) ?? false }
        return authenticator?.isConfigured(principal) ?? (principal.kind == .certificate)
    }

    /// In development mode, serves requests for loopback hosts only. Otherwise a web page from another host could act
    /// as any caller, if that host's name is changed to resolve to this machine (DNS rebinding).
    /// - Throws: ``Problem``: 421 (RFC 9110, section 15.5.20).
    func checkHost(_ head: RequestHead) throws(Problem) {
        guard authenticator?.acceptsUnsigned == true else { return }
        if let host = head.authority, Origin("http://\(host)")?.isLoopback == true { return }
        throw Problem(
            .misdirectedRequest,
            "In development mode the host must be localhost, 127.0.0.1 or [::1].")
    }

    var links: LinkKeys? { linkKeys.withLock { $0 } }

    /// Replaces the keys. Links signed with a removed key become invalid.
    public func replace(_ keys: LinkKeys?) { linkKeys.withLock { $0 = keys } }

    /// The predefined groups, besides the configured ones.
    public static let anonymousGroup = "anonymous"
    public static let linkGroup = "links"
    public static let developmentGroup = "development"
    public static let certificateGroup = "certificates"
}

extension Callers {
    /// All callers are anonymous and without limits.
    public static let unknown = Callers()
}

extension RequestContext {
    /// Whether the client sent any credential.
    var hasCredential: Bool { exchange.identity != nil || fields.contains("authorization") }

    /// Identifies the caller by `Authorization`, by the client certificate, or by both.
    /// - Throws: ``Problem``: 401 for an invalid credential, 503 if the keys for its verification are not available.
    func identify(_ callers: Callers) async throws(Problem) {
        let client = exchange.identity as? ClientIdentity
        let principal: Principal
        if let token = try await shown(callers) {
            principal = token
            caller.identify(token, certificate: client)
        } else if let client {
            principal = try self.principal(client)
            caller.identify(principal)
        } else {
            return
        }
        record.principal = principal.uid
        record.group = principal.group
    }

    /// Checks that the client certificate is still valid and trusted, since a connection may outlive both.
    /// - Throws: ``Problem``: 401 for every request, since a new connection would be rejected.
    func checkCertificate() throws(Problem) {
        guard let client = exchange.identity as? ClientIdentity else { return }
        if now >= client.notAfter {
            throw Problem(
                .certificateExpired, "Connect again with a valid certificate.",
                cause: "the certificate of \(client.subject) has expired", field: Problem.challenge)
        }
        if !exchange.isIdentityCurrent {
            throw Problem(
                .certificateUntrusted, "The certificate is no longer trusted.",
                cause: "the certificate of \(client.subject) was revoked, or its authority is gone",
                field: Problem.challenge)
        }
    }

    private func principal(_ client: ClientIdentity) throws(Problem) -> Principal {
        switch client.principal {
        case .success(let principal): return principal
        case .failure(let error):
            throw Problem(
                .unauthenticated, "The certificate has no usable name.",
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

    /// The key of the caller's limits.
    var callerKey: CallerLimits.Key {
        CallerLimits.Key(
            group: record.group, source: caller.principal?.source ?? "",
            caller: caller.principal?.uid ?? CallerLimits.network(of: exchange.peer))
    }

    /// Counts the request against its caller's limits.
    /// - Throws: ``Problem``: 429.
    func admit(_ callers: Callers) throws(Problem) {
        guard let limits = callers.limits.limits(of: record.group) else { return }
        let key = callerKey
        let direction: CallerLimits.Direction =
            switch exchange.head.method {
            case "GET": .outgoing
            case "PUT", "POST", "PATCH": .incoming
            default: .none
            }
        do throws(CallerLimits.LimitExceeded) {
            lease = try callers.limits.begin(key, limits, direction)
        } catch {
            record.limit = error.limit
            throw Problem(
                .tooManyRequests, "Try again in \(error.retryAfter) s.",
                cause: "the limit of \(error.limit.rawValue) of group \(record.group)",
                field: ("retry-after", "\(error.retryAfter)"))
        }
    }

    /// The response to a failed request. It counts against the limits by address, to slow down guessing of tokens,
    /// links and paths.
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
    /// The challenge of a 401 response if no token was sent or the token was rejected (RFC 9110, section 11.6.1).
    static var challenge: (name: StaticString, value: String) { ("www-authenticate", "Bearer") }

    /// The problem for a credential that is invalid, or that can't be verified yet (RFC 6750, section 3.1).
    convenience init(_ error: CredentialError) {
        if error.code == .unavailable {
            self.init(
                .keysUnavailable, "The issuer's keys are not available yet.", cause: error.cause,
                field: ("retry-after", "5"))
            return
        }
        let code = Code(rawValue: error.code.rawValue) ?? .unauthenticated
        // A credential of another scheme is not an invalid token.
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
