import EventLoop
import HTTPClient

extension GCSBucket {
    public func beginUpload(_ name: String, _ plan: UploadPlan) async throws(BucketError)
        -> any Upload
    {
        try checkOpen()
        return try GCSUpload(self, name, plan)
    }
}

/// An upload to Google's. A small body stays in memory and is stored by one request, which can be repeated; a larger one
/// goes to a resumable session, whose last bytes are held back until the commit.
///
/// Safety: confined to its loop.
final class GCSUpload: Upload, @unchecked Sendable {
    /// A body of known length is kept in memory up to here: what a session would hold back anyway.
    private static let knownInMemory = GCSSession.quantum
    /// A body of unknown length is: 64 KiB.
    private static let unknownInMemory: UInt64 = 64 * 1024
    /// Bytes that are hashed on the loop rather than on the pool (about 20 µs).
    private static let hashedInline = 16 * 1024

    private let bucket: GCSBucket
    private let name: String
    private let plan: UploadPlan
    private let limit: UInt64
    /// The body, as long as it is small.
    private var bytes: [UInt8] = []
    private var stream: GCSStream?
    private var facts: ContentFacts?
    private var isEnded = false
    /// What there is before the upload: looked for while the body comes, where nobody has looked.
    private var before: Task<Result<ObjectMetadata?, BucketError>, Never>?

    init(_ bucket: GCSBucket, _ name: String, _ plan: UploadPlan) throws(BucketError) {
        guard let loop = EventLoop.current else {
            throw BucketError(.internal, "an upload belongs on a loop")
        }
        self.bucket = bucket
        self.name = name
        self.plan = plan
        limit = plan.size == nil ? Self.unknownInMemory : Self.knownInMemory
        if plan.existing == .unknown, plan.preconditions.generation == nil {
            before = Task(executorPreference: loop) {
                await Result { () async throws(BucketError) in try await bucket.find(name) }
            }
        }
        if let size = plan.size {
            if size > limit { stream = makeStream() } else { bytes.reserveCapacity(Int(size)) }
        }
    }

    deinit { abort() }

    private func makeStream() -> GCSStream {
        let (name, plan, bucket) = (name, plan, bucket)
        let before = before
        return GCSStream(bucket, plan) { () async throws(BucketError) in
            let conditions = try await GCSUpload.conditions(
                plan.preconditions, plan.existing, before)
            return try await GCSSession.start(
                bucket.requests, bucket.pool, name, plan.attributes, conditions)
        }
    }

    /// What a session is bound to, decided when it begins.
    private static func conditions(
        _ preconditions: Preconditions, _ existing: Existing,
        _ before: Task<Result<ObjectMetadata?, BucketError>, Never>?
    ) async throws(BucketError) -> GCSConditions {
        if let conditions = GCSConditions(preconditions) { return conditions }
        let object: ObjectMetadata?
        switch existing {
        case .absent: object = nil
        case .object(let known): object = known
        case .unknown: object = try await before?.value.get()
        }
        guard preconditions.evaluate(object, reading: false) == nil else {
            throw BucketError(.preconditionFailed)
        }
        return GCSConditions(pinnedTo: object)
    }

    func write(_ span: RawSpan) throws -> Int {
        precondition(facts == nil, "write after finish")
        if let stream { return try stream.write(span) }
        if bytes.count + span.byteCount <= limit {
            span.withUnsafeBytes { bytes.append(contentsOf: $0) }
            return span.byteCount
        }
        if plan.size != nil { throw BucketError(.internal, "more bytes than were declared") }
        let stream = makeStream()
        self.stream = stream
        stream.begin(with: bytes)
        bytes = []
        return try stream.write(span)
    }

    func whenWritable(_ resume: @escaping () -> Void) {
        // What stays in memory is always taken.
        stream?.whenWritable(resume)
    }

    func finish() async throws(BucketError) -> ContentFacts {
        if isEnded { throw BucketError(.internal, "finish after abort") }
        let facts: ContentFacts
        if let stream {
            facts = try await stream.finish()
        } else {
            let digests = ContentDigests(plan)
            let bytes = bytes
            if bytes.count > Self.hashedInline {
                await bucket.pool.run { digests.update(bytes.span.bytes) }
            } else {
                digests.update(bytes.span.bytes)
            }
            facts = digests.facts()
        }
        self.facts = facts
        return facts
    }

    func commit(_ preconditions: Preconditions) async throws(BucketError) -> CommitResult {
        guard let facts, !isEnded else { throw BucketError(.internal, "commit without finish") }
        let result: CommitResult
        if let stream {
            // A session has decided at its beginning what it is bound to.
            guard preconditions == plan.preconditions else {
                throw BucketError(.preconditionFailed)
            }
            isEnded = true
            let replaced = await hadObject(preconditions)
            let metadata = try await stream.commit()
            result = CommitResult(metadata: metadata, replaced: replaced)
        } else {
            isEnded = true
            result = try await insert(facts, preconditions)
        }
        bucket.known.keep(result.metadata)
        return result
    }

    func abort() {
        if isEnded { return }
        isEnded = true
        before?.cancel()
        bytes = []
        stream?.abort()
    }

    /// Whether there was an object before, as far as it could be found out.
    private func hadObject(_ preconditions: Preconditions) async -> Bool {
        if let generation = preconditions.generation { return generation != 0 }
        switch plan.existing {
        case .absent: return false
        case .object: return true
        case .unknown:
            guard case .success(let object)? = await before?.value else { return false }
            return object != nil
        }
    }

    // MARK: One request

    /// Stores the body with one request. It is pinned to what is there, so that it can be repeated and never stores twice;
    /// where another change comes between, the conditions are decided anew.
    private func insert(_ facts: ContentFacts, _ preconditions: Preconditions)
        async throws(BucketError) -> CommitResult
    {
        let body = GCSMultipart(name, plan.attributes, facts, bytes)
        bytes = []
        if let conditions = GCSConditions(preconditions), conditions.generation != nil {
            let metadata = try await insert(body, facts, conditions)
            return CommitResult(metadata: metadata, replaced: conditions.generation != 0)
        }
        var object: ObjectMetadata?
        switch plan.existing {
        case .absent: object = nil
        case .object(let known): object = known
        case .unknown:
            do throws(BucketError) {
                if let before { object = try await before.value.get() }
            } catch {
                // Who may only create can't look; then it is stored once, without a second attempt.
                guard preconditions.isEmpty else { throw error }
                let metadata = try await insert(body, facts, .none)
                return CommitResult(metadata: metadata, replaced: false)
            }
        }
        for attempt in 1...GCSBucket.attempts {
            if preconditions.evaluate(object, reading: false) != nil {
                throw BucketError(.preconditionFailed)
            }
            var conditions = GCSConditions(pinnedTo: object)
            if preconditions.metageneration == nil { conditions.metageneration = nil }
            // Among many that ask for nothing, the last one wins, and none has to win a race.
            if preconditions.isEmpty, attempt > 2 { conditions = .none }
            do throws(BucketError) {
                let metadata = try await insert(body, facts, conditions)
                return CommitResult(metadata: metadata, replaced: object != nil)
            } catch {
                if error.code != .preconditionFailed { throw error }
            }
            object = try await bucket.find(name)
        }
        throw BucketError(.overloaded, "the object is being changed by others again and again")
    }

    private func insert(
        _ body: GCSMultipart, _ facts: ContentFacts, _ conditions: GCSConditions
    ) async throws(BucketError) -> ObjectMetadata {
        let requests = bucket.requests
        let query = [("uploadType", "multipart"), ("name", name)] + conditions.query
        var request = ClientRequest(
            "POST", requests.uploads(query), body: .bytes(body.bytes),
            isRepeatable: conditions.generation != nil)
        request.fields.append("content-type", body.contentType)
        let attempts = GCSRequests.Attempts()
        let response = try await requests.call(request, attempts)
        let stored = Result { () throws(BucketError) in try requests.metadata(response, of: name) }
        let isLost = if case .failure = stored { response.status == 200 } else { false }
        if isLost || response.status == 412 && attempts.count > 1,
            let now = try await bucket.find(name),
            now.generation != conditions.generation, now.metageneration == 1,
            now.size == facts.size, now.crc32c == facts.crc32c,
            now.attributes.areStored(from: plan.attributes)
        {
            // What stands in the way is what an earlier attempt has stored; or the answer had lost its end.
            return now
        }
        if response.status == 404 { throw BucketError(.unavailable, "the bucket does not exist") }
        return try stored.get()
    }
}

/// The body of an upload by one request (RFC 2387): the resource, then the bytes. The service verifies the digests.
struct GCSMultipart {
    let contentType: String
    let bytes: [UInt8]

    init(
        _ name: String, _ attributes: ObjectAttributes, _ facts: ContentFacts, _ content: [UInt8]
    ) {
        let resource = GCSObject.resource(name, attributes, facts)
        let boundary = "sluice-\(UInt64.random(in: 0 ... .max))-\(UInt64.random(in: 0 ... .max))"
        var bytes: [UInt8] = []
        bytes.reserveCapacity(content.count + resource.count + 512)
        bytes += "--\(boundary)\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n".utf8
        bytes += resource
        bytes += "\r\n--\(boundary)\r\nContent-Type: \(attributes.mediaType)\r\n".utf8
        bytes += "Content-Transfer-Encoding: binary\r\n\r\n".utf8
        bytes += content
        bytes += "\r\n--\(boundary)--\r\n".utf8
        self.bytes = bytes
        contentType = "multipart/related; boundary=\(boundary)"
    }
}
