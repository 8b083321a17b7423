import Glibc
import HTTPClient
import System
import Wire

/// Access tokens for Google's services: fetched at the first use, renewed before expiry, shared by all loops.
///
/// One renewal runs at a time. The old token is used while it is valid, even if a renewal fails. Tokens, keys and
/// assertions appear in no error and no description.
public final class GoogleCredentials: Sendable {
    /// The source of tokens.
    public enum Source: Sendable, Equatable {
        /// Requests carry no credentials.
        case anonymous
        /// The token that emulators accept from an administrator.
        case emulatorOwner
        /// A key file of a service account, gcloud's application-default login, or workload identity federation.
        case file(String)
        /// The metadata server of the machine or the cluster (workload identity).
        case metadataServer
        /// Application Default Credentials: `GOOGLE_APPLICATION_CREDENTIALS`, gcloud's file, or the metadata server.
        case automatic
    }
    /// The scope of a token.
    public enum Scope: String, Sendable {
        /// Objects of Cloud Storage.
        case storage = "https://www.googleapis.com/auth/devstorage.read_write"
        /// Documents of Firestore.
        case datastore = "https://www.googleapis.com/auth/datastore"
    }

    /// How long a failure is reported again without another attempt if there is no valid token: 1 s.
    private static let failureHold: UInt64 = 1_000_000_000
    /// The pause after a failed renewal while the old token is valid: 10 s.
    private static let renewalPause: UInt64 = 10_000_000_000
    /// A token is not used in its last 10 s, because requests take time.
    private static let margin: UInt64 = 10_000_000_000

    private struct State {
        var token: GoogleToken?
        /// Monotonic nanoseconds.
        var usableUntil: UInt64 = 0
        var renewalDue: UInt64 = 0
        var failure: ClientError?
    }
    /// The source, once it is known.
    public let source: Source
    private let fetcher: GoogleTokenFetcher
    private let clock: @Sendable () -> UInt64
    private let state = Refreshing(State())

    /// Creates the credentials without reading a file or opening a connection.
    /// - Parameters:
    ///   - environment: `GOOGLE_APPLICATION_CREDENTIALS`, `CLOUDSDK_CONFIG`, `HOME`, `GCE_METADATA_HOST`.
    ///   - pool: Reads files.
    ///   - observer: Receives records of the requests to token endpoints.
    ///   - clock: Monotonic nanoseconds.
    public init(
        _ source: Source, scope: Scope, pool: BlockingPool,
        environment: [BytewiseString: String] = Environment.variables(), observer: (any UpstreamObserver)? = nil,
        clock: @escaping @Sendable () -> UInt64 = EventLoop.monotonicNow
    ) {
        self.source = source
        self.clock = clock
        fetcher = GoogleTokenFetcher(
            source: source, scope: scope.rawValue, environment: environment, pool: pool, observer: observer)
    }

    /// The `Authorization` field for a request; nil if requests are anonymous.
    /// - Throws: ``ClientError`` with the cause if there is no token.
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

    /// Discards the value of ``authorization()``, which the service has rejected.
    public func reject(_ authorization: String) {
        state.withState { state in
            guard let token = state.token, authorization == "Bearer \(token.value)" else { return }
            state.token = nil
            state.usableUntil = 0
            state.renewalDue = 0
        }
    }

    /// Fetches a token in its own task, because the waiting request may be cancelled.
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
                    state.renewalDue = now + (now < state.usableUntil ? Self.renewalPause : Self.failureHold)
                }
            }
        }
    }
}

struct GoogleToken: Sendable, CustomStringConvertible {
    var value: String
    /// Nanoseconds.
    var lifetime: UInt64

    var description: String { "<redacted>" }
}
