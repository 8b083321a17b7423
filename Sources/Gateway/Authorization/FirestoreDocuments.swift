import Buckets
import Credentials
import HTTPClient
import SecurityRules
import System
import Wire

/// Looks up Firestore documents for `firestore.get` and `firestore.exists` in rules, with the REST API.
public final class FirestoreDocuments: Sendable {
    /// The maximum size of a document's JSON: 8 MiB. Firestore limits the document itself to 1 MiB.
    private static let maximumBytes = 8 << 20

    private let project: String
    private let upstream: Upstream
    private let credentials: GoogleCredentials

    /// Opens no connection yet.
    /// - Parameters:
    ///   - project: The project whose database `(default)` is read.
    ///   - endpoint: If nil, `FIRESTORE_EMULATOR_HOST` is used if it is set (requests then have the emulator's owner
    ///     rights), otherwise Google's endpoint.
    ///   - credentials: If nil, Application Default Credentials are used.
    ///   - pool: Reads credentials files.
    ///   - adjust: Changes the upstream's timeouts and limits, whose defaults suit a waiting decision.
    public init(
        project: String, endpoint: Origin? = nil, credentials: GoogleCredentials.Source? = nil,
        pool: BlockingPool, environment: [BytewiseString: String] = Environment.variables(),
        observer: (any UpstreamObserver)? = nil, adjust: (inout UpstreamSettings) -> Void = { _ in }
    ) {
        let emulator = environment["FIRESTORE_EMULATOR_HOST"].flatMap { Origin("http://" + $0) }
        let isEmulated = endpoint == nil && emulator != nil
        let origin = endpoint ?? emulator ?? Origin(.https, host: "firestore.googleapis.com")
        var settings = UpstreamSettings(name: "firestore", origin: origin)
        settings.connectTimeout = 2_000_000_000
        settings.firstByteTimeout = 5_000_000_000
        settings.progressTimeout = 5_000_000_000
        settings.attempts = 2
        adjust(&settings)
        self.project = project
        upstream = Upstream(settings, observer: observer)
        self.credentials = GoogleCredentials(
            credentials ?? (isEmulated ? .emulatorOwner : .automatic), scope: .datastore,
            pool: pool, environment: environment, observer: observer)
    }

    /// Looks up a document.
    /// - Parameter path: The path in the rules, such as `/databases/(default)/documents/users/alice`.
    /// - Returns: The result for the rules, and the cause of a failure for the log.
    public func look(_ path: DocumentPath) async -> (lookup: Lookup, failure: String?) {
        do throws(ClientError) {
            return (try await find(path), nil)
        } catch {
            return (.failed, error.cause)
        }
    }

    private func find(_ path: DocumentPath) async throws(ClientError) -> Lookup {
        let segments = path.segments.map(PercentEncoding.encodeSegment)
        let project = PercentEncoding.encodeSegment(project)
        let request = ClientRequest("GET", "/v1/projects/\(project)/" + segments.joined(separator: "/"))
        let credentials = credentials
        request.authorize = { (request) throws(ClientError) in
            if let value = try await credentials.authorization() {
                request.fields.append("authorization", value)
            }
        }
        var response = try await upstream.call(request, limit: Self.maximumBytes)
        if response.status == 401, let rejected = try await credentials.authorization() {
            credentials.reject(rejected)
            response = try await upstream.call(request, limit: Self.maximumBytes)
        }
        let json = try? JSONReader.parse(response.body)
        let message = json?["error"]?["message"]?.text ?? ""
        switch response.status {
        case 200:
            guard let json, let fields = FirestoreValue.fields(json["fields"]) else {
                throw ClientError(.malformed, "the response is not a document")
            }
            return .present(fields)
        // 404 can also mean that the database or the project does not exist.
        case 404 where !message.hasPrefix("The database") && !message.hasPrefix("Project"):
            return .absent
        default:
            throw ClientError(.unreachable, "status \(response.status) \(message)")
        }
    }

    /// Closes the connections.
    public func close() async { await upstream.close() }
}
