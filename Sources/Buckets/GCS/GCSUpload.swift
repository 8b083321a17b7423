import HTTPClient
import System

extension GCSBucket {
    public func beginUpload(_ name: String, _ plan: UploadPlan) async throws(BucketError)
        -> any Upload
    {
        try checkOpen()
        return try GCSUpload(self, name, plan)
    }
}

/// An upload to Cloud Storage. A small body is held in memory and stored by one request, which can be repeated. A
/// larger body goes to a resumable session, whose last bytes are held back until the commit.
///
/// Safety: confined to its loop.
final class GCSUpload: Upload, @unchecked Sendable {
    /// The maximum size of a body of known length in memory, which a session would hold back anyway.
    private static let knownInMemory = GCSSession.quantum
    /// The maximum size of a body of unknown length in memory: 64 KiB.
    private static let unknownInMemory: UInt64 = 64 * 1024
    /// The maximum number of bytes hashed on the loop, which takes about 20 µs. More are hashed on the pool.
    private static let hashedInline = 16 * 1024

    private let bucket: GCSBucket
    private let name: String
    private var plan: UploadPlan
    private let limit: UInt64
    /// The body, if it is small.
    private var bytes: [UInt8] = []
    /// The request body that stores a small object. Set by the first commit.
    private var body: GCSMultipart?
    private var stream: GCSStream?
    private var facts: ContentFacts?
    private var isEnded = false
    /// Looks up the existing object while the body arrives, unless that has been done.
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

    var isOpen: Bool { !isEnded }

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

    private static func conditions(
        _ preconditions: Preconditions, _ existing: CurrentObject,
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
        // A body in memory is always accepted.
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

    func keep(_ checksum: S3Properties.Checksum) -> Bool {
        guard stream == nil, body == nil else { return false }
        plan.attributes.keep(checksum)
        return true
    }

    func commit(_ preconditions: Preconditions) async throws(BucketError) -> CommitResult {
        guard let facts, !isEnded else { throw BucketError(.internal, "commit without finish") }
        let result: CommitResult
        if let stream {
            // The conditions of a session were fixed when it began.
            guard preconditions == plan.preconditions else {
                abort()
                throw BucketError(.preconditionFailed)
            }
            isEnded = true
            let replaced = await hadObject(preconditions)
            do throws(BucketError) {
                result = CommitResult(metadata: try await stream.commit(), replaced: replaced)
            } catch {
                guard error.mayHaveChanged, let stored = await stored(facts, await generationBefore)
                else { throw error }
                result = CommitResult(metadata: stored, replaced: replaced)
            }
        } else {
            isEnded = true
            do throws(BucketError) {
                result = try await insert(facts, preconditions)
            } catch {
                // Nothing was stored, and the body is still in memory.
                if error.code == .preconditionFailed { isEnded = false } else { body = nil }
                throw error
            }
            body = nil
        }
        bucket.known.keep(result.metadata)
        return result
    }

    func abort() {
        if isEnded { return }
        isEnded = true
        before?.cancel()
        bytes = []
        body = nil
        stream?.abort()
    }

    /// Whether there was an object before, as far as known.
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

    /// The generation that the upload replaces; 0 for none, nil if unknown.
    private var generationBefore: Int64? {
        get async {
            if let generation = plan.preconditions.generation { return generation }
            switch plan.existing {
            case .absent: return 0
            case .object(let known): return known.generation
            case .unknown:
                guard case .success(let object)? = await before?.value else { return nil }
                return object?.generation ?? 0
            }
        }
    }

    /// The object that this upload stored without a confirmation; nil if there is none or it can't be determined.
    /// - Parameter before: The generation before the upload; 0 for none, nil if unknown.
    private func stored(_ facts: ContentFacts, _ before: Int64?) async -> ObjectMetadata? {
        guard let before, let now = try? await bucket.find(name), now.generation != before,
            isOwn(now, facts)
        else { return nil }
        return now
    }

    /// Whether an object equals the one that this upload stores, and is unchanged since.
    private func isOwn(_ object: ObjectMetadata, _ facts: ContentFacts) -> Bool {
        object.metageneration == 1 && object.size == facts.size && object.crc32c == facts.crc32c
            && object.attributes.areStored(from: plan.attributes)
    }

    // MARK: One request

    /// Stores the body with one request, pinned to the existing object so that a repetition can't store it twice. If
    /// another change intervenes, the conditions are evaluated again.
    private func insert(_ facts: ContentFacts, _ preconditions: Preconditions) async throws(BucketError) -> CommitResult
    {
        let body = body ?? GCSMultipart(name, plan.attributes, facts, bytes)
        self.body = body
        bytes = []
        if let conditions = GCSConditions(preconditions), conditions.generation != nil {
            let metadata = try await insert(
                body, facts, conditions, before: conditions.generation)
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
                // Credentials may permit creating but not reading. One unpinned attempt then stores the object.
                guard preconditions.isEmpty else { throw error }
                let metadata = try await insert(body, facts, .none, before: nil)
                return CommitResult(metadata: metadata, replaced: false)
            }
        }
        for attempt in 1...GCSBucket.attempts {
            if preconditions.evaluate(object, reading: false) != nil {
                throw BucketError(.preconditionFailed)
            }
            var conditions = GCSConditions(pinnedTo: object)
            if preconditions.metageneration == nil { conditions.metageneration = nil }
            // Without conditions the last concurrent upload wins. After two lost races the request is not pinned.
            if preconditions.isEmpty, attempt > 2 { conditions = .none }
            do throws(BucketError) {
                let metadata = try await insert(body, facts, conditions, before: object?.generation ?? 0)
                return CommitResult(metadata: metadata, replaced: object != nil)
            } catch {
                if error.code != .preconditionFailed { throw error }
            }
            object = try await bucket.find(name)
        }
        throw BucketError(.overloaded, "the object is being changed by others again and again")
    }

    /// - Parameter before: The existing generation; 0 for none, nil if it is not known.
    private func insert(
        _ body: GCSMultipart, _ facts: ContentFacts, _ conditions: GCSConditions, before: Int64?
    ) async throws(BucketError) -> ObjectMetadata {
        let requests = bucket.requests
        let query = [("uploadType", "multipart"), ("name", name)] + conditions.query
        let request = ClientRequest(
            "POST", requests.uploads(query), body: .bytes(body.bytes), isRepeatable: conditions.generation != nil)
        request.fields.append("content-type", body.contentType)
        let attempts = GCSRequests.Attempts()
        do throws(BucketError) {
            let response = try await requests.call(request, attempts)
            if response.status == 404 { throw requests.missingBucket }
            let outcome = Result { () throws(BucketError) in
                try requests.metadata(response, of: name)
            }
            let isLost = if case .failure = outcome { response.status == 200 } else { false }
            if isLost || response.status == 412 && attempts.count > 1, let now = try await bucket.find(name),
                now.generation != conditions.generation, isOwn(now, facts)
            {
                // An earlier attempt has stored this object, or the response was truncated.
                return now
            }
            return try outcome.get()
        } catch {
            guard error.isUnsettled(after: attempts), let now = await stored(facts, before) else {
                throw error
            }
            return now
        }
    }
}

/// The body of a single-request upload (RFC 2387): the resource, then the bytes. The service verifies the digests.
struct GCSMultipart {
    let contentType: String
    let bytes: [UInt8]

    init(
        _ name: String, _ attributes: ObjectAttributes, _ facts: ContentFacts, _ content: [UInt8],
        mark: UInt64? = nil
    ) {
        let resource = GCSObject.resource(name, attributes, facts, mark: mark)
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
