import Glibc
import HTTPClient
import System
import Wire

/// Access tokens for Google's services: fetched when they are first wanted, renewed ahead of their end, and shared by
/// all loops.
///
/// One renewal runs at a time. While the old token is valid it stays in use, also where a renewal fails. Tokens, keys and
/// assertions appear in no error and no description.
public final class GoogleCredentials: Sendable {
    /// Where tokens come from.
    public enum Source: Sendable, Equatable {
        /// Requests carry no credentials.
        case anonymous
        /// The word that emulators take from an administrator.
        case emulatorOwner
        /// A key file of a service account, a file of `gcloud auth application-default login`, or one of workload
        /// identity federation.
        case file(String)
        /// The metadata server of the machine or the cluster (workload identity).
        case metadataServer
        /// Application Default Credentials: the file that `GOOGLE_APPLICATION_CREDENTIALS` names, the file of gcloud,
        /// the metadata server.
        case automatic
    }
    /// What a token is for, as Google's scopes name it.
    public enum Scope: String, Sendable {
        /// Objects of Cloud Storage.
        case storage = "https://www.googleapis.com/auth/devstorage.read_write"
        /// Documents of Firestore.
        case datastore = "https://www.googleapis.com/auth/datastore"
    }

    /// How long a failure without any valid token is reported again without a new attempt: one second.
    private static let failureHold: UInt64 = 1_000_000_000
    /// How long after a failed renewal the old token is used without another attempt: ten seconds.
    private static let renewalPause: UInt64 = 10_000_000_000
    /// A token is not used in its last seconds: requests take their time.
    private static let margin: UInt64 = 10_000_000_000

    private struct State {
        var token: GoogleToken?
        /// Monotonic nanoseconds.
        var usableUntil: UInt64 = 0
        var renewalDue: UInt64 = 0
        var failure: ClientError?
    }
    /// The source that tokens are fetched from, once it is known.
    public let source: Source
    private let fetcher: GoogleTokenFetcher
    private let clock: @Sendable () -> UInt64
    private let state = Refreshing(State())

    /// Reads and connects to nothing yet.
    /// - Parameters:
    ///   - environment: `GOOGLE_APPLICATION_CREDENTIALS`, `CLOUDSDK_CONFIG`, `HOME`, `GCE_METADATA_HOST`.
    ///   - pool: Where files are read.
    ///   - observer: Told of requests to token endpoints.
    ///   - clock: Monotonic nanoseconds.
    public init(
        _ source: Source, scope: Scope, pool: BlockingPool,
        environment: [BytewiseString: String] = Environment.variables(),
        observer: (any UpstreamObserver)? = nil,
        clock: @escaping @Sendable () -> UInt64 = EventLoop.monotonicNow
    ) {
        self.source = source
        self.clock = clock
        fetcher = GoogleTokenFetcher(
            source: source, scope: scope.rawValue, environment: environment, pool: pool,
            observer: observer)
    }

    /// The value of the `Authorization` field for a request that is sent now; nil where requests are anonymous.
    /// - Throws: ``ClientError`` where no token can be had; its cause says why in words.
    public func authorization() async throws(ClientError) -> String? {
        switch source {
        case .anonymous: return nil
        case .emulatorOwner: return "Bearer owner"
        case .file, .metadataServer, .automatic: break
        }
        while true {
            let now = clock()
            let ((usable, failure), begins) = state.begin { state, _ in
                let usable = now < state.usableUntil ? state.token : nil
                let isHeld = now < state.renewalDue && (usable != nil || state.failure != nil)
                return ((usable, isHeld ? state.failure : nil), !isHeld)
            }
            if begins { renew() }
            if let usable { return "Bearer \(usable.value)" }
            if let failure { throw failure }
            await state.wait()
            if Task.isCancelled { throw ClientError(.cancelled, "the caller went away") }
        }
    }

    /// The service did not accept what ``authorization()`` gave: it is not used again.
    public func reject(_ authorization: String) {
        state.withState { state in
            guard let token = state.token, authorization == "Bearer \(token.value)" else { return }
            state.token = nil
            state.usableUntil = 0
            state.renewalDue = 0
        }
    }

    /// Fetches a token in a task of its own: who waits for it may go away.
    private func renew() {
        Task.immediate(executorPreference: EventLoop.current) {
            let outcome: Result<GoogleToken, ClientError>
            do throws(ClientError) {
                outcome = .success(try await fetcher.fetch())
            } catch {
                outcome = .failure(error)
            }
            let now = clock()
            state.end { state in
                switch outcome {
                case .success(let token):
                    state.token = token
                    state.failure = nil
                    state.usableUntil = now + token.lifetime - min(Self.margin, token.lifetime / 2)
                    state.renewalDue = now + token.lifetime / 5 * 4
                case .failure(let error):
                    state.failure = error
                    state.renewalDue =
                        now + (now < state.usableUntil ? Self.renewalPause : Self.failureHold)
                }
            }
        }
    }
}

/// An access token and how long it is valid from now on.
struct GoogleToken: Sendable, CustomStringConvertible {
    var value: String
    /// Nanoseconds.
    var lifetime: UInt64

    var description: String { "<redacted>" }
}
