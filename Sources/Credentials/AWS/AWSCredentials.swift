import System
import Wire

/// The credentials for signing requests. Its description shows no secret.
public struct AWSCredentials: Sendable, Equatable, CustomStringConvertible,
    CustomDebugStringConvertible, CustomReflectable
{
    /// The key's identifier. Not a secret, but not shown to clients.
    public var accessKey: String
    /// The secret.
    public var secretKey: String
    /// The session token of temporary credentials. A secret.
    public var sessionToken: String?
    /// The expiry in seconds since 1970; nil if they never expire.
    public var expires: Int64?
    /// Whether AWS accepts them after their expiry while an instance's metadata service is unavailable.
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
    /// The same as ``description``.
    public var debugDescription: String { description }
    /// Hides all values.
    public var customMirror: Mirror { Mirror(self, children: []) }
}

/// A source of credentials.
public enum AWSCredentialSource: Sendable, Equatable {
    /// Requests are not signed.
    case anonymous
    /// Static credentials from the configuration.
    case fixed(AWSCredentials)
    /// `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`.
    case environment
    /// `~/.aws/credentials` and `~/.aws/config`, or the files in `AWS_SHARED_CREDENTIALS_FILE` and `AWS_CONFIG_FILE`.
    /// Without a name, the profile of `AWS_PROFILE`, or `default`.
    case profile(String?)
    /// A file in the format of `~/.aws/credentials`. Without a name, the profile is chosen as above.
    case file(String, profile: String?)
    /// A token that STS exchanges for credentials: `AWS_WEB_IDENTITY_TOKEN_FILE` and `AWS_ROLE_ARN`.
    case webIdentity
    /// The endpoint of a container agent: `AWS_CONTAINER_CREDENTIALS_RELATIVE_URI` or `…_FULL_URI`.
    case container
    /// The metadata service of an EC2 instance (IMDSv2).
    case instance
    /// The first source that has credentials: environment, web identity, profile, container, instance.
    case standard
}

/// Why credentials are missing.
package struct AWSCredentialsError: Error {
    /// The sources that were tried. Contains no secret.
    package var cause: String
}

/// Provides the current credentials and renews them before they expire. One renewal runs at a time.
///
/// Valid credentials are used while a renewal fails. Expired credentials of an instance are used while the metadata
/// service has no new ones, as in the SDKs of AWS, because AWS accepts them then.
public final class AWSCredentialProvider: Sendable {
    /// How long before the expiry a renewal begins, in seconds.
    static let renewalLead: Int64 = 300
    /// How long before the expiry credentials count as expired, in seconds.
    static let safetyMargin: Int64 = 15
    /// The pause in seconds after an unsuccessful renewal while there are usable credentials. It doubles each time.
    static let retryPause: Int64 = 10
    static let maximumRetryPause: Int64 = 300
    /// How long a failure is reported again without another fetch if there are no usable credentials, in seconds.
    static let failureHold: Int64 = 1
    /// The random pause between renewals while expired credentials are used, in seconds.
    static let extensionSeconds: ClosedRange<Int64> = 300...600
    /// The minimum pause between renewals caused by rejected credentials, in seconds.
    static let suspicionPause: Int64 = 30

    fileprivate struct State {
        var credentials: AWSCredentials?
        /// Seconds since 1970.
        var usableUntil = Int64.min
        var renewalDue = Int64.min
        /// Consecutive unsuccessful renewals.
        var fruitless = 0
        var failure: AWSCredentialsError?
        /// Whether the service has rejected the credentials since they were fetched.
        var isSuspect = false
        /// The time until which rejections cause no renewal.
        var trustedUntil = Int64.min
    }
    private let state = Refreshing(State())
    private let clock: @Sendable () -> Int64
    private let fetch: @Sendable () async -> Result<AWSCredentials, AWSCredentialsError>

    /// - Parameters:
    ///   - clock: Seconds since 1970.
    ///   - fetch: Fetches new credentials, on the loop of the request that needs them.
    package init(
        clock: @escaping @Sendable () -> Int64 = SystemClock.seconds,
        fetch: @escaping @Sendable () async -> Result<AWSCredentials, AWSCredentialsError>
    ) {
        self.clock = clock
        self.fetch = fetch
    }

    /// The credentials to sign with.
    /// - Throws: ``AWSCredentialsError`` if there are none, or they have expired and can't be renewed.
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

    /// Reports that the service has rejected the credentials. The next request fetches new ones, or uses these again if
    /// there are none. At most once in ``suspicionPause``, because the cause may be a missing permission.
    /// - Returns: Whether the request may be repeated with other credentials.
    package func reject(_ credentials: AWSCredentials) -> Bool {
        let now = clock()
        return state.withState { state in
            guard state.credentials == credentials, !state.isSuspect else { return true }
            guard now >= state.trustedUntil else { return false }
            state.trustedUntil = now + Self.suspicionPause
            state.isSuspect = true
            return true
        }
    }

    /// Fetches in a separate task, because other requests may wait for the result when this one ends.
    private func renew() {
        Task(executorPreference: EventLoop.current) { [self] in
            let fetched = await fetch()
            let now = clock()
            state.end { state in
                state.take(fetched, now)
                // The request that was rejected may only have lacked a permission.
                state.isSuspect = false
            }
        }
    }
}

extension AWSCredentialProvider.State {
    /// The current result, and whether a renewal is due. Without a result, the caller must wait for the renewal.
    /// - Parameter takesFailure: Whether the failure of the last renewal counts regardless of its age.
    fileprivate func decide(_ now: Int64, takesFailure: Bool) -> (
        result: Result<AWSCredentials, AWSCredentialsError>?, wantsRefresh: Bool
    ) {
        if isSuspect { return (nil, true) }
        if let credentials, now < usableUntil { return (.success(credentials), now >= renewalDue) }
        if let failure, takesFailure || now < renewalDue { return (.failure(failure), false) }
        return (nil, true)
    }

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
            // The last time at which a renewal is certainly tried.
            if now < usableUntil {
                renewalDue = min(renewalDue, usableUntil)
                return
            }
            // The service decides whether the source's current credentials are valid, because clocks can differ.
            if credentials.mayOutliveExpiry {
                renewalDue = now + .random(in: Provider.extensionSeconds)
            }
            usableUntil = renewalDue + Provider.renewalLead
        } else {
            renewalDue = now + Provider.failureHold
        }
    }
}
