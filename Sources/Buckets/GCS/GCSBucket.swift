import Credentials
import HTTPClient
import Synchronization
import System
import Wire

/// A bucket of Google Cloud Storage, accessed through its JSON API.
///
/// The entity tag is the generation in decimal, which identifies the bytes; Google's own tag changes with each patch.
/// Conditions on tags and dates, which the API lacks, are evaluated here, and the change is pinned to the generation.
public final class GCSBucket: CopyingDriver {
    /// The bucket and how it is accessed.
    public struct Settings: Sendable, Equatable {
        /// The name of the bucket in Cloud Storage.
        public var bucket: String
        /// The origin, timeouts and limits of the service.
        public var upstream: UpstreamSettings
        /// The source of access tokens.
        public var credentials: GoogleCredentials.Source
        /// The project that is billed, for requester-pays buckets.
        public var userProject: String?
        /// The directory of the unnamed files that buffer uploads, at most 16 MiB each.
        public var spoolDirectory: String

        /// - Parameters:
        ///   - endpoint: nil for `STORAGE_EMULATOR_HOST` if it is set, without credentials, otherwise Google's
        ///     endpoint.
        ///   - credentials: nil for Application Default Credentials.
        ///   - environment: `STORAGE_EMULATOR_HOST` and `TMPDIR` are read.
        public init(
            bucket: String, endpoint: Origin? = nil, credentials: GoogleCredentials.Source? = nil,
            userProject: String? = nil, environment: [BytewiseString: String] = Environment.variables()
        ) {
            let emulator = environment["STORAGE_EMULATOR_HOST"].flatMap { host in
                Origin(host.contains("://") ? host : "http://" + host)
            }
            let isEmulated = endpoint == nil && emulator != nil
            let origin =
                endpoint ?? emulator ?? Origin(.https, host: "storage.googleapis.com")
            self.bucket = bucket
            upstream = UpstreamSettings(name: "bucket \(bucket)", origin: origin)
            self.credentials = credentials ?? (isEmulated ? .anonymous : .automatic)
            self.userProject = userProject
            let directory = environment["TMPDIR"].flatMap { $0.isEmpty ? nil : $0 }
            spoolDirectory = directory ?? "/tmp"
        }
    }

    /// The maximum number of evaluations of a change while other changes intervene.
    static let attempts = 8
    /// The maximum number of service pages for one list page.
    static let maximumPages = 64
    /// The maximum size of a list page: 8 MiB. A thousand of the longest names with all escapes need less.
    static let maximumPageBytes = 8 << 20
    /// The maximum size of a list page with custom metadata: 32 MiB.
    private static let maximumMetadataPageBytes = 32 << 20

    /// The limit for a silent copy, in nanoseconds: 5 minutes.
    static let silenceLimit: UInt64 = 300_000_000_000

    let settings: Settings
    let requests: GCSRequests
    let pool: BlockingPool
    let cleaning = BackgroundTasks()
    let known = GCSMetadataCache()
    /// Whether the service has uploads in parts; nil if unknown.
    let partsSupport: Lock<Bool?>
    private let isClosed = Atomic<Bool>(false)
    private let openSessions = Lock<CloudSessions?>(nil)

    /// The upload sessions in use. They refer to the bucket until it is closed.
    var sessions: CloudSessions {
        openSessions.withLock { open in
            if let open { return open }
            let made = CloudSessions(
                self, clock: SystemClock.microseconds, work: cleaning)
            open = made
            return made
        }
    }

    /// Creates the bucket without opening a connection.
    /// - Parameters:
    ///   - pool: For hashing and file access that could block a loop. It must outlive the bucket.
    ///   - observer: Notified of every request, including those for credentials.
    public init(
        _ settings: Settings, pool: BlockingPool, environment: [BytewiseString: String] = Environment.variables(),
        observer: (any UpstreamObserver)? = nil
    ) {
        self.settings = settings
        self.pool = pool
        let host = settings.upstream.origin.host
        partsSupport = Lock(host.hasSuffix(".googleapis.com") ? true : nil)
        requests = GCSRequests(
            bucket: settings.bucket, userProject: settings.userProject,
            upstream: Upstream(settings.upstream, observer: observer),
            credentials: GoogleCredentials(
                settings.credentials, scope: .storage, pool: pool, environment: environment, observer: observer))
    }

    /// The upstream, for readiness and metrics.
    public var upstream: Upstream { requests.upstream }

    /// A resumable session's conditions are fixed. If they don't hold, the service discards the session.
    static let promised: Capabilities = {
        var promised = Capabilities(
            atomicUploads: true, atomicPatches: true, atomicDeletions: true, lateConditions: false, durable: true)
        promised.reopensSmallUploads = true
        promised.uploadSessions = true
        promised.copies = true
        promised.atomicCopies = true
        return promised
    }()

    public func capabilities() async throws(BucketError) -> Capabilities {
        var capabilities = GCSBucket.promised
        // Without it the service is used all the same.
        if (try? await hasParts()) == true {
            capabilities.parts = true
            capabilities.minimumPart = GCSBucket.minimumPart
        }
        return capabilities
    }

    func checkOpen() throws(BucketError) {
        if isClosed.load(ordering: .relaxed) {
            throw BucketError(.unavailable, "the bucket was closed")
        }
    }

    public func stat(_ name: String) async throws(BucketError) -> ObjectMetadata {
        try await stat(name, generation: nil)
    }

    /// The metadata of one generation: the current one, unless the bucket keeps noncurrent versions.
    func stat(_ name: String, generation: Int64?) async throws(BucketError) -> ObjectMetadata {
        try checkOpen()
        let query = generation.map { [("generation", String($0))] } ?? []
        let request = ClientRequest("GET", requests.object(name, query))
        return try requests.metadata(try await requests.call(request), of: name)
    }

    // MARK: Changes

    public func patch(_ name: String, _ patch: AttributePatch, _ preconditions: Preconditions)
        async throws(BucketError) -> ObjectMetadata
    {
        try checkOpen()
        // Clearing custom metadata needs the existing keys, because system metadata is kept.
        return try await change(name, preconditions, needsObject: patch.clearCustomMetadata) {
            (conditions, state) throws(BucketError) in
            switch state {
            case .unknown, .found: break
            case .interrupted(nil): throw BucketError(.objectNotFound)
            case .interrupted(let object?):
                // The object already has the wanted properties, possibly from the interrupted request.
                if patch.applied(to: object.attributes) == object.attributes { return object }
            }
            let body = GCSObject.patch(patch, current: state.object?.attributes)
            let request = ClientRequest(
                "PATCH", requests.object(name, conditions.query), body: .bytes(body),
                isRepeatable: conditions.metageneration != nil)
            request.fields.append("content-type", "application/json")
            let attempts = GCSRequests.Attempts()
            let response: CollectedResponse
            do throws(BucketError) {
                response = try await requests.call(request, attempts)
                guard response.status == 200 else { throw requests.failure(response) }
            } catch {
                // An earlier attempt may have changed the object.
                guard
                    error.isUnsettled(after: attempts)
                        || error.code == .preconditionFailed && attempts.count > 1,
                    let pinned = conditions.metageneration, let now = try? await find(name),
                    now.generation == conditions.generation, now.metageneration == pinned + 1,
                    patch.applied(to: now.attributes) == now.attributes
                else { throw error }
                return now
            }
            // Some servers return an incomplete object.
            if let metadata = try? requests.metadata(response, of: name) { return metadata }
            return try await stat(name)
        }
    }

    public func delete(_ name: String, _ preconditions: Preconditions) async throws(BucketError) {
        try checkOpen()
        try await change(name, preconditions, needsObject: false) {
            (conditions, state) throws(BucketError) in
            // The interrupted request has removed the object.
            if case .interrupted(nil) = state { return }
            let request = ClientRequest(
                "DELETE", requests.object(name, conditions.query), isRepeatable: conditions.generation != nil)
            let attempts = GCSRequests.Attempts()
            do throws(BucketError) {
                let response = try await requests.call(request, attempts)
                if response.status == 404, attempts.count > 1 { return }
                guard response.status == 200 || response.status == 204 else {
                    throw requests.failure(response)
                }
            } catch {
                // An earlier attempt may have removed the object.
                guard error.isUnsettled(after: attempts), conditions.generation != nil,
                    case .success(nil) = await Result(of: { () async throws(BucketError) in
                        try await self.find(name)
                    })
                else { throw error }
            }
        }
    }

    private enum State {
        /// Not looked up: the service evaluates all conditions.
        case unknown
        case found(ObjectMetadata)
        /// Looked up after a request with an unknown result.
        case interrupted(ObjectMetadata?)

        var object: ObjectMetadata? {
            switch self {
            case .unknown: nil
            case .found(let object): object
            case .interrupted(let object): object
            }
        }
    }

    /// Changes an object under its conditions, which are sent unchanged if the service can evaluate them. Otherwise
    /// they are evaluated here, and the change is pinned to that state, and repeated if another change intervened.
    /// After an unpinned request with an unknown result, the object is looked up and the remaining change is pinned.
    private func change<Outcome>(
        _ name: String, _ preconditions: Preconditions, needsObject: Bool,
        _ make: (GCSConditions, State) async throws(BucketError) -> Outcome
    ) async throws(BucketError) -> Outcome {
        var isInterrupted = false
        if !needsObject, let conditions = GCSConditions(preconditions) {
            do throws(BucketError) {
                return try await make(conditions, .unknown)
            } catch {
                // A missing object is reported as not found, even if a condition does not hold.
                if error.code == .preconditionFailed { _ = try await stat(name) }
                guard conditions.metageneration == nil,
                    [.unavailable, .timedOut, .overloaded].contains(error.code),
                    await upstream.mayTryAgain(after: 1)
                else { throw error }
                isInterrupted = true
            }
        }
        for _ in 0..<GCSBucket.attempts {
            let object = isInterrupted ? try await find(name) : try await stat(name)
            if let object, preconditions.evaluate(object, reading: false) != nil {
                throw BucketError(.preconditionFailed)
            }
            do throws(BucketError) {
                return try await make(
                    GCSConditions(pinnedTo: object),
                    isInterrupted ? .interrupted(object) : object.map { .found($0) } ?? .unknown)
            } catch {
                if error.code != .preconditionFailed { throw error }
            }
        }
        throw BucketError(.overloaded, "the object is being changed by others again and again")
    }

    // MARK: Other operations

    public func list(_ query: ListQuery, after: String?) async throws(BucketError) -> ListPage {
        try checkOpen()
        var list = CloudList(query, after: after)
        if list.isHidden { return ListPage() }
        var parameters = [
            ("prefix", query.prefix), ("maxResults", String(min(query.limit + 1, 1000))),
            ("fields", "items(\(GCSListPage.members(of: query))),prefixes,nextPageToken"),
        ]
        if query.delimited { parameters.append(("delimiter", "/")) }
        // The offset is inclusive. Entries already shown are dropped.
        if case .after(let name) = list.start { parameters.append(("startOffset", name)) }
        let pageBytes = query.withS3Tags ? GCSBucket.maximumMetadataPageBytes : GCSBucket.maximumPageBytes
        var token: String?
        for _ in 0..<GCSBucket.maximumPages {
            let paged = parameters + (token.map { [("pageToken", $0)] } ?? [])
            let response = try await requests.call(ClientRequest("GET", requests.objects(paged)), limit: pageBytes)
            guard response.status == 200 else { throw bucketFailure(response) }
            // Parsing several megabytes would block the loop.
            let page = await pool.run { [body = response.body] in
                GCSListPage(body, withProperties: query.withProperties)
            }
            guard let page else {
                throw BucketError(.unavailable, "a page of the list is not a list in JSON")
            }
            guard page.next == nil || page.next != token else {
                throw BucketError(.unavailable, "a page of the list is followed by itself")
            }
            token = page.next
            list.add(
                items: page.items, prefixes: page.prefixes, properties: page.properties,
                isLast: token == nil)
            if token == nil || list.isFull { return list.page }
        }
        list.cut()
        guard let end = list.page.end, after.map({ $0 < end }) ?? true else {
            throw BucketError(.unavailable, "list: \(GCSBucket.maximumPages) pages in a row have nothing to show")
        }
        return list.page
    }

    /// The error of a request about the bucket, for which 404 means that the bucket does not exist.
    func bucketFailure(_ response: CollectedResponse) -> BucketError {
        let failure = requests.failure(response)
        guard failure.code == .objectNotFound else { return failure }
        return requests.missingBucket
    }

    public func checkHealth() async throws(BucketError) {
        try checkOpen()
        let query = [("maxResults", "1"), ("fields", "nextPageToken")]
        let response = try await requests.call(
            ClientRequest("GET", requests.objects(query)), limit: GCSBucket.maximumPageBytes)
        if response.status != 200 { throw bucketFailure(response) }
    }

    public func close() async {
        guard !isClosed.exchange(true, ordering: .relaxed) else { return }
        openSessions.withLock { $0.take() }?.close()
        await cleaning.finish()
        await requests.upstream.close()
    }
}
