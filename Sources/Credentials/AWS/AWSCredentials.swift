import System
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
    /// Whether AWS accepts them for a while after they have expired: those of an instance, whose metadata service may be
    /// disturbed.
    var mayOutliveExpiry = false

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
package struct AWSCredentialsError: Error {
    /// Names what was tried and never a secret.
    package var cause: String
}

/// Provides the current credentials, and renews those that expire: ahead of the expiry, one renewal at a time, with growing
/// pauses between renewals that bring nothing better.
///
/// Credentials that are still valid are used while a renewal fails. Those of an instance are used beyond their expiry
/// while the metadata service has no others, as AWS's SDKs do: AWS accepts them then.
public final class AWSCredentialProvider: Sendable {
    /// Seconds before the expiry with which a renewal begins, while the old ones are still used.
    static let renewalLead: Int64 = 300
    /// Seconds before the expiry with which they count as expired.
    static let safetyMargin: Int64 = 15
    /// Seconds after a renewal that brought nothing better, while there are credentials to use; doubled each time.
    static let retryPause: Int64 = 10
    /// The most that ``retryPause`` grows to.
    static let maximumRetryPause: Int64 = 300
    /// Seconds for which a failure is reported again without another fetch, where there are no credentials to use.
    static let failureHold: Int64 = 1
    /// Seconds between renewals of credentials that are used beyond their expiry, drawn at random.
    static let extensionSeconds: ClosedRange<Int64> = 300...600
    /// Seconds between renewals because the service refuses credentials.
    static let suspicionPause: Int64 = 30

    fileprivate struct State {
        var credentials: AWSCredentials?
        /// Until when they are used, in seconds since 1970.
        var usableUntil = Int64.min
        /// When the next renewal may begin.
        var renewalDue = Int64.min
        /// Renewals in a row that brought nothing better.
        var fruitless = 0
        /// Why there are none.
        var failure: AWSCredentialsError?
        /// Whether the service has refused the credentials since they were fetched.
        var isSuspect = false
        /// Until when a refusal renews nothing.
        var trustedUntil = Int64.min
    }
    private let state = Refreshing(State())
    private let clock: @Sendable () -> Int64
    private let fetch: @Sendable () async -> Result<AWSCredentials, AWSCredentialsError>

    /// - Parameters:
    ///   - clock: Seconds since 1970.
    ///   - fetch: Gets new credentials; runs on the loop of the request that needs them.
    package init(
        clock: @escaping @Sendable () -> Int64 = SystemClock.seconds,
        fetch: @escaping @Sendable () async -> Result<AWSCredentials, AWSCredentialsError>
    ) {
        self.clock = clock
        self.fetch = fetch
    }

    /// The credentials to sign with now.
    /// - Throws: ``AWSCredentialsError`` where there are none, or the last ones have expired and can't be renewed.
    package func current() async throws(AWSCredentialsError) -> AWSCredentials {
        var hasWaited = false
        while true {
            let now = clock()
            let (outcome, begins) = state.begin { state, _ in
                state.decide(now, takesFailure: hasWaited)
            }
            if begins { renew() }
            if let outcome { return try outcome.get() }
            await state.wait()
            hasWaited = true
        }
    }

    /// The service refuses the credentials: the next request fetches new ones, and takes these again where there are none.
    /// It may be a right that is missing, so that is done once in ``suspicionPause``.
    /// - Returns: Whether what was refused may be tried with others.
    package func refused(_ credentials: AWSCredentials) -> Bool {
        let now = clock()
        return state.withState { state in
            guard state.credentials == credentials, !state.isSuspect else { return true }
            guard now >= state.trustedUntil else { return false }
            state.trustedUntil = now + Self.suspicionPause
            state.isSuspect = true
            return true
        }
    }

    /// Fetches in a task of its own: the end of one request must not end what others wait for.
    private func renew() {
        Task(executorPreference: EventLoop.current) { [self] in
            let fetched = await fetch()
            let now = clock()
            state.end { state in
                state.take(fetched, now)
                // What was refused once may have lacked the right to one thing.
                state.isSuspect = false
            }
        }
    }
}

extension AWSCredentialProvider.State {
    /// What to use now, and whether a renewal is due; without an outcome it must be waited for.
    /// - Parameter takesFailure: Whether the failure of the last renewal counts however long ago it was.
    fileprivate func decide(_ now: Int64, takesFailure: Bool) -> (
        result: Result<AWSCredentials, AWSCredentialsError>?, wantsRefresh: Bool
    ) {
        if isSuspect { return (nil, true) }
        if let credentials, now < usableUntil { return (.success(credentials), now >= renewalDue) }
        if let failure, takesFailure || now < renewalDue { return (.failure(failure), false) }
        return (nil, true)
    }

    /// Takes the outcome of a renewal, and decides when the next one begins.
    fileprivate mutating func take(
        _ fetched: Result<AWSCredentials, AWSCredentialsError>, _ now: Int64
    ) {
        typealias Provider = AWSCredentialProvider
        failure = nil
        switch fetched {
        case .success(let new):
            credentials = new
            guard let expires = new.expires else {
                (usableUntil, renewalDue, fruitless) = (.max, .max, 0)
                return
            }
            usableUntil = expires - Provider.safetyMargin
            if expires - Provider.renewalLead > now {
                (renewalDue, fruitless) = (expires - Provider.renewalLead, 0)
                return
            }
        case .failure(let error): failure = error
        }
        fruitless += 1
        let isGiven = failure == nil
        if let credentials, now < usableUntil || isGiven || credentials.mayOutliveExpiry {
            if credentials.expires == nil {
                renewalDue = .max
                return
            }
            let grown = Provider.retryPause << Int64(min(fruitless - 1, 8))
            let pause = min(grown, Provider.maximumRetryPause)
            renewalDue = now + .random(in: (pause + 1) / 2...pause)
            // The last moment at which a renewal is sure to be tried.
            if now < usableUntil {
                renewalDue = min(renewalDue, usableUntil)
                return
            }
            // What the source gives as its current ones is for the service to judge, whatever the clocks say.
            if credentials.mayOutliveExpiry {
                renewalDue = now + .random(in: Provider.extensionSeconds)
            }
            usableUntil = renewalDue + Provider.renewalLead
        } else {
            renewalDue = now + Provider.failureHold
        }
    }
}
