import EventLoop
import HTTPClient
import Synchronization
import Wire

/// A bucket of Google Cloud Storage, by its JSON API.
///
/// The entity tag is the generation in decimal: it stands for the bytes, as Google's own, which changes with each patch,
/// does not. Conditions on tags and dates, which the API has not, are decided on the metadata and pinned to the
/// generation that they were decided on.
public final class GCSBucket: BucketDriver {
    /// What a bucket is and how it is reached.
    public struct Settings: Sendable, Equatable {
        /// The bucket's name at Google's.
        public var bucket: String
        /// The service's origin, its time-outs and limits.
        public var upstream: UpstreamSettings
        /// Where access tokens come from.
        public var credentials: GoogleCredentials.Source
        /// The project that is billed, for buckets whose requesters pay.
        public var userProject: String?
        /// Where uploads of unknown length wait, at most 16 MiB each, in files without names.
        public var spoolDirectory: String

        /// - Parameters:
        ///   - endpoint: nil for `STORAGE_EMULATOR_HOST` where that is set (requests are anonymous then), and for Google's
        ///     own otherwise.
        ///   - credentials: nil for Application Default Credentials.
        ///   - environment: `STORAGE_EMULATOR_HOST`, `TMPDIR`.
        public init(
            bucket: String, endpoint: Origin? = nil, credentials: GoogleCredentials.Source? = nil,
            userProject: String? = nil,
            environment: [String: String] = processEnvironment()
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

    /// How often a change is decided anew because another came between.
    static let attempts = 8
    /// Pages of hidden names that one list asks for at most.
    private static let maximumPages = 64
    /// Bytes of a page of a list: 8 MiB; a thousand of the longest names with all that must be escaped need less.
    private static let maximumPageBytes = 8 << 20

    let settings: Settings
    let requests: GCSRequests
    let pool: BlockingPool
    let cleaning = BackgroundTasks()
    let known = GCSMetadataCache()
    private let isClosed = Atomic<Bool>(false)

    /// Connects to nothing yet.
    /// - Parameters:
    ///   - pool: Where hashing and file work is done that could hold up a loop. It must outlive the bucket.
    ///   - observer: Told of every request, also of those for credentials.
    public init(
        _ settings: Settings, pool: BlockingPool,
        environment: [String: String] = processEnvironment(),
        observer: (any UpstreamObserver)? = nil
    ) {
        self.settings = settings
        self.pool = pool
        requests = GCSRequests(
            bucket: settings.bucket, userProject: settings.userProject,
            upstream: Upstream(settings.upstream, observer: observer),
            credentials: GoogleCredentials(
                settings.credentials, scope: .storage, pool: pool, environment: environment,
                observer: observer))
    }

    /// The upstream, for readiness and metrics.
    public var upstream: Upstream { requests.upstream }

    public func capabilities() async throws(BucketError) -> Capabilities {
        Capabilities(
            atomicUploads: true, atomicPatches: true, atomicDeletions: true, lateConditions: false,
            durable: true)
    }

    func checkOpen() throws(BucketError) {
        if isClosed.load(ordering: .relaxed) {
            throw BucketError(.unavailable, "the bucket was closed")
        }
    }

    public func stat(_ name: String) async throws(BucketError) -> ObjectMetadata {
        try await stat(name, generation: nil)
    }

    /// The metadata of one generation, which must be the current one where the bucket keeps no others.
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
        // To clear custom metadata its keys must be known: the hidden one stays.
        return try await change(name, preconditions, needsObject: patch.clearCustomMetadata) {
            (conditions, state) throws(BucketError) in
            switch state {
            case .unknown, .found: break
            case .interrupted(nil): throw BucketError(.objectNotFound)
            case .interrupted(let object?):
                // What was asked for is there, be it by the request that broke off.
                if patch.applied(to: object.attributes) == object.attributes { return object }
            }
            let body = GCSObject.patch(patch, current: state.object?.attributes)
            var request = ClientRequest(
                "PATCH", requests.object(name, conditions.query), body: .bytes(body),
                isRepeatable: conditions.metageneration != nil)
            request.fields.append("content-type", "application/json")
            let attempts = GCSRequests.Attempts()
            let response = try await requests.call(request, attempts)
            if response.status == 412, attempts.count > 1, let pinned = conditions.metageneration {
                // An earlier attempt may be what has changed the object.
                if let now = try await find(name), now.generation == conditions.generation,
                    now.metageneration == pinned + 1,
                    patch.applied(to: now.attributes) == now.attributes
                {
                    return now
                }
            }
            guard response.status == 200 else { throw requests.failure(response) }
            // Some servers answer with less than an object.
            if let metadata = try? requests.metadata(response, of: name) { return metadata }
            return try await stat(name)
        }
    }

    public func delete(_ name: String, _ preconditions: Preconditions) async throws(BucketError) {
        try checkOpen()
        try await change(name, preconditions, needsObject: false) {
            (conditions, state) throws(BucketError) in
            // The request that broke off has removed it.
            if case .interrupted(nil) = state { return }
            let request = ClientRequest(
                "DELETE", requests.object(name, conditions.query),
                isRepeatable: conditions.generation != nil)
            let attempts = GCSRequests.Attempts()
            let response = try await requests.call(request, attempts)
            if response.status == 404, attempts.count > 1 { return }
            guard response.status == 200 || response.status == 204 else {
                throw requests.failure(response)
            }
        }
    }

    /// What is known of an object that is to be changed.
    private enum State {
        /// Nobody has looked: the service decides all conditions.
        case unknown
        case found(ObjectMetadata)
        /// It was found so, or not at all, after a request whose end is not known.
        case interrupted(ObjectMetadata?)

        var object: ObjectMetadata? {
            switch self {
            case .unknown: nil
            case .found(let object): object
            case .interrupted(let object): object
            }
        }
    }

    /// Makes a change of an object with its conditions: as they are where the service decides them all, and otherwise
    /// pinned to the object that they were decided on, again where another change came between. A request that nothing
    /// pins is not sent again as it is: where its end is not known the object is looked at, and what is still to do is
    /// pinned.
    private func change<Outcome>(
        _ name: String, _ preconditions: Preconditions, needsObject: Bool,
        _ make: (GCSConditions, State) async throws(BucketError) -> Outcome
    ) async throws(BucketError) -> Outcome {
        var isInterrupted = false
        if !needsObject, let conditions = GCSConditions(preconditions) {
            do throws(BucketError) {
                return try await make(conditions, .unknown)
            } catch {
                // A missing object is not found, whatever the conditions.
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

    // MARK: The rest

    public func list(_ query: ListQuery, after: String?) async throws(BucketError) -> ListPage {
        try checkOpen()
        var list = CloudList(query, after: after)
        if list.isHidden { return ListPage() }
        var parameters = [
            ("prefix", query.prefix), ("maxResults", String(min(query.limit + 1, 1000))),
            ("fields", "items(name),prefixes,nextPageToken"),
        ]
        if query.delimited { parameters.append(("delimiter", "/")) }
        // Inclusive: what is shown already is left out again.
        if case .after(let name) = list.start { parameters.append(("startOffset", name)) }
        var token: String?
        for _ in 0..<GCSBucket.maximumPages {
            let paged = parameters + (token.map { [("pageToken", $0)] } ?? [])
            let response = try await requests.call(
                ClientRequest("GET", requests.objects(paged)), limit: GCSBucket.maximumPageBytes)
            guard response.status == 200 else { throw bucketFailure(response) }
            guard let page = GCSListPage(response.body) else {
                throw BucketError(.unavailable, "a page of the list is not JSON")
            }
            guard page.next == nil || page.next != token else {
                throw BucketError(.unavailable, "a page of the list is followed by itself")
            }
            token = page.next
            list.add(items: page.items, prefixes: page.prefixes, isLast: token == nil)
            if token == nil || list.isFull { return list.page }
        }
        list.cut()
        return list.page
    }

    /// What the failure of a request about the bucket means: there a 404 is the bucket's.
    private func bucketFailure(_ response: CollectedResponse) -> BucketError {
        let failure = requests.failure(response)
        guard failure.code == .objectNotFound else { return failure }
        return BucketError(.unavailable, "Cloud Storage has no bucket '\(settings.bucket)'")
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
        await cleaning.finish()
        await requests.upstream.close()
    }
}
