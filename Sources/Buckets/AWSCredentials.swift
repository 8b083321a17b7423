import EventLoop
import Wire

/// What requests are signed with. Its description shows no secret.
public struct AWSCredentials: Sendable, Equatable, CustomStringConvertible,
    CustomDebugStringConvertible, CustomReflectable
{
    /// Names the key; no secret, but of no interest to others.
    public var accessKey: String
    /// The secret.
    public var secretKey: String
    /// Sent along where the credentials are temporary. A secret.
    public var sessionToken: String?
    /// Seconds since 1970; nil where they never expire.
    public var expires: Int64?

    public init(
        accessKey: String, secretKey: String, sessionToken: String? = nil, expires: Int64? = nil
    ) {
        self.accessKey = accessKey
        self.secretKey = secretKey
        self.sessionToken = sessionToken
        self.expires = expires
    }

    public var description: String { "<redacted>" }
    /// The same.
    public var debugDescription: String { description }
    /// Shows nothing.
    public var customMirror: Mirror { Mirror(self, children: []) }
}

/// Where credentials come from.
public enum AWSCredentialSource: Sendable, Equatable {
    /// Requests are not signed.
    case anonymous
    /// As configured.
    case fixed(AWSCredentials)
    /// `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`.
    case environment
    /// `~/.aws/credentials` and `~/.aws/config`, or the files that `AWS_SHARED_CREDENTIALS_FILE` and `AWS_CONFIG_FILE` name;
    /// without a name the profile of `AWS_PROFILE`, or `default`.
    case profile(String?)
    /// A file in the form of `~/.aws/credentials`; without a name of a profile as above.
    case file(String, profile: String?)
    /// A token that STS takes for credentials: `AWS_WEB_IDENTITY_TOKEN_FILE` and `AWS_ROLE_ARN`.
    case webIdentity
    /// The endpoint of a container's agent: `AWS_CONTAINER_CREDENTIALS_RELATIVE_URI` or `…_FULL_URI`.
    case container
    /// The metadata service of an EC2 instance (IMDSv2).
    case instance
    /// The first of these that has any: environment, web identity, profile, container, instance.
    case standard
}

/// Why there are no credentials.
struct AWSCredentialsError: Error {
    /// Names what was tried and never a secret.
    var cause: String
}

/// Gives the current credentials, and renews those that expire: ahead of it, one renewal at a time. Where a renewal
/// fails, those that are still valid are kept.
public final class AWSCredentialProvider: Sendable {
    /// Seconds before the expiry with which a renewal begins, while the old ones are still used.
    static let renewalLead: Int64 = 300
    /// Seconds before the expiry with which they count as expired.
    static let safetyMargin: Int64 = 15
    /// Seconds between renewals that fail, while the old ones are valid.
    static let retryPause: Int64 = 10
    /// Seconds between renewals because the service refuses credentials.
    static let suspicionPause: Int64 = 30

    private struct State {
        var credentials: AWSCredentials?
        /// Whether the service has refused the credentials since they were fetched.
        var isSuspect = false
        /// Until when a refusal renews nothing.
        var trustedUntil = Int64.min
        var isRenewing = false
        var retryAt: Int64 = 0
        /// Told how the renewal ended; nil where it had ended already.
        var waiters: [CheckedContinuation<Result<AWSCredentials, AWSCredentialsError>?, Never>] = []
    }
    private let state = Lock(State())
    private let clock: @Sendable () -> Int64
    private let fetch: @Sendable () async -> Result<AWSCredentials, AWSCredentialsError>

    /// - Parameters:
    ///   - clock: Seconds since 1970.
    ///   - fetch: Gets new credentials; runs on the loop of the request that needs them.
    init(
        clock: @escaping @Sendable () -> Int64 = AWSTime.now,
        fetch: @escaping @Sendable () async -> Result<AWSCredentials, AWSCredentialsError>
    ) {
        self.clock = clock
        self.fetch = fetch
    }

    /// The credentials to sign with now.
    /// - Throws: ``AWSCredentialsError`` where there are none, or the last ones have expired and can't be renewed.
    func current() async throws(AWSCredentialsError) -> AWSCredentials {
        let now = clock()
        enum Step {
            case use(AWSCredentials, renewing: Bool)
            case renew
            case wait
        }
        let step: Step = state.withLock { state in
            if let credentials = state.credentials, !state.isSuspect {
                guard let expires = credentials.expires else {
                    return .use(credentials, renewing: false)
                }
                if now < expires - Self.safetyMargin {
                    let isDue =
                        now >= expires - Self.renewalLead && now >= state.retryAt
                        && !state.isRenewing
                    if isDue { state.isRenewing = true }
                    return .use(credentials, renewing: isDue)
                }
            }
            if state.isRenewing { return .wait }
            state.isRenewing = true
            return .renew
        }
        switch step {
        case .use(let credentials, let isRenewing):
            if isRenewing {
                Task(executorPreference: EventLoop.current) { _ = await self.renew() }
            }
            return credentials
        case .renew: return try await renew().get()
        case .wait:
            let outcome = await withCheckedContinuation { waiter in
                let isRenewing = state.withLock {
                    if $0.isRenewing { $0.waiters.append(waiter) }
                    return $0.isRenewing
                }
                if !isRenewing { waiter.resume(returning: nil) }
            }
            guard let outcome else { return try await current() }
            return try outcome.get()
        }
    }

    /// The service refuses the credentials: the next request fetches new ones, and takes these again where there are none.
    /// It may be a right that is missing, so that is done once in ``suspicionPause``.
    /// - Returns: Whether what was refused may be tried with others.
    func refused(_ credentials: AWSCredentials) -> Bool {
        let now = clock()
        return state.withLock { state in
            guard state.credentials == credentials, !state.isSuspect else { return true }
            guard now >= state.trustedUntil else { return false }
            state.trustedUntil = now + Self.suspicionPause
            state.isSuspect = true
            return true
        }
    }

    private func renew() async -> Result<AWSCredentials, AWSCredentialsError> {
        // Its own task: the end of one request must not end what others wait for.
        let fetched = await Task(executorPreference: EventLoop.current) { await self.fetch() }.value
        let now = clock()
        let (waiters, outcome) = state.withLock { state in
            var outcome = fetched
            switch fetched {
            case .success(let credentials): state.credentials = credentials
            case .failure:
                state.retryAt = now + Self.retryPause
                // What was refused once may have lacked the right to one thing.
                if state.isSuspect, let kept = state.credentials,
                    now < (kept.expires ?? .max) - Self.safetyMargin
                {
                    outcome = .success(kept)
                }
            }
            state.isRenewing = false
            state.isSuspect = false
            defer { state.waiters = [] }
            return (state.waiters, outcome)
        }
        for waiter in waiters { waiter.resume(returning: outcome) }
        return outcome
    }
}
