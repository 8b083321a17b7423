import HTTPClient
import System
import Wire

/// Bytes for a session. They can be sent again unless they are gone.
enum ReplayBuffer: Sendable {
    case memory([UInt8])
    case spool(Spool)
    /// The number of bytes that were sent and dropped.
    case gone(UInt64)

    var count: UInt64 {
        switch self {
        case .memory(let bytes): UInt64(bytes.count)
        case .spool(let spool): spool.count
        case .gone(let count): count
        }
    }
}

/// A resumable upload: the service keeps the bytes so far and creates the object after the last request. The session's
/// URL is a secret that authorizes requests, so it appears in no error.
///
/// Safety: confined to its loop.
final class GCSSession: @unchecked Sendable {
    /// All requests but the last carry a multiple of this size: 256 KiB.
    static let quantum: UInt64 = 256 * 1024

    private let requests: GCSRequests
    private let pool: BlockingPool
    private let name: String
    /// The path and query of its URL.
    let target: String
    /// The number of bytes confirmed by the service.
    private(set) var persisted: UInt64
    /// Whether another process may also send bytes, so that the service may keep more than this one has sent.
    private let isShared: Bool
    private var current: ClientExchange?

    private init(
        _ requests: GCSRequests, _ pool: BlockingPool, _ name: String, target: String, persisted: UInt64, isShared: Bool
    ) {
        self.requests = requests
        self.name = name
        self.pool = pool
        self.target = target
        self.persisted = persisted
        self.isShared = isShared
    }

    /// Continues a session of this or another process for the object `name`, with `persisted` bytes known to be kept.
    convenience init(_ bucket: GCSBucket, _ name: String, target: String, persisted: UInt64) {
        self.init(
            bucket.requests, bucket.pool, name, target: target, persisted: persisted,
            isShared: true)
    }

    /// Begins a session. Its preconditions are evaluated at the end. `mark` is the value of ``GCSObject/markKey``.
    static func start(
        _ requests: GCSRequests, _ pool: BlockingPool, _ name: String,
        _ attributes: ObjectAttributes, _ conditions: GCSConditions, mark: UInt64? = nil
    ) async throws(BucketError) -> GCSSession {
        let query = [("uploadType", "resumable"), ("name", name)] + conditions.query
        // A repeated request leaves an unused session, but no object.
        let request = ClientRequest(
            "POST", requests.uploads(query),
            body: .bytes(GCSObject.resource(name, attributes, nil, mark: mark)),
            isRepeatable: true)
        request.fields.append("content-type", "application/json; charset=UTF-8")
        request.fields.append("x-upload-content-type", attributes.mediaType)
        let response = try await requests.call(request)
        guard response.status == 200 || response.status == 201 else {
            let failure = requests.failure(response)
            throw failure.code == .objectNotFound ? requests.missingBucket : failure
        }
        guard let target = response.fields["location"].flatMap(GCSSession.target) else {
            throw BucketError(.unavailable, "the service begins an upload without an address")
        }
        return GCSSession(
            requests, pool, name, target: target, persisted: 0, isShared: mark != nil)
    }

    /// The path and query of a session's URL. Requests go to the configured origin, whatever host the URL names: behind
    /// a proxy or a private endpoint that host is unknown, and no other host may be contacted.
    static func target(_ location: String) -> String? {
        var rest = location.utf8[...]
        if let scheme = ["https://", "http://"].first(where: location.asciiLowercased().hasPrefix) {
            rest = rest.dropFirst(scheme.utf8.count)
            guard let slash = rest.firstIndex(of: UInt8(ascii: "/")), slash > rest.startIndex else {
                return nil
            }
            rest = rest[slash...]
        }
        guard rest.first == UInt8(ascii: "/"), rest.allSatisfy(ASCII.isVisible) else { return nil }
        return String(rest)
    }

    // MARK: One request

    enum Outcome {
        case kept(UInt64)
        case complete(ObjectMetadata)
        /// How much the service has processed is unknown. Query it after the `Retry-After`.
        case unknown(BucketError, retryAfter: String?)
    }

    private func request(_ range: String, _ body: RequestBody = .none) -> ClientRequest {
        let request = ClientRequest("PUT", target, body: body, isRepeatable: false)
        request.fields.append("content-range", "bytes \(range)")
        return request
    }

    /// Throws if the service will not create the object.
    private func outcome(_ status: Int, _ fields: HeaderFields, _ body: [UInt8])
        throws(BucketError) -> Outcome
    {
        switch status {
        case 200, 201:
            do throws(BucketError) {
                return .complete(try requests.metadata(status, body, of: name))
            } catch {
                // The response was truncated. The object exists, and a query of the session returns it again.
                return .unknown(error, retryAfter: nil)
            }
        case 308: return .kept(try GCSSession.kept(fields["range"]))
        case 408, 429, 500...599: return .unknown(requests.failure(status, body), retryAfter: fields["retry-after"])
        case 404, 410: throw BucketError(.unavailable, "the service has forgotten the upload")
        default: throw requests.failure(status, body)
        }
    }

    /// The number of bytes confirmed by a 308: `bytes=0-N`, or 0 without the field.
    static func kept(_ field: String?) throws(BucketError) -> UInt64 {
        guard let field else { return 0 }
        guard field.hasPrefix("bytes=0-"), let last = Decimal.parse(Array(field.utf8)[8...]),
            last < .max
        else {
            throw BucketError(.unavailable, "the service tells a range of the upload that is none")
        }
        return last + 1
    }

    private func start(_ request: ClientRequest) -> ClientExchange {
        let exchange = requests.upstream.start(request)
        current = exchange
        return exchange
    }

    func giveUp() { current?.cancel() }

    private func outcome(of exchange: ClientExchange) async throws(BucketError) -> Outcome {
        let response: ClientResponse
        let body: [UInt8]
        do throws(ClientError) {
            response = try await exchange.response()
            body = try await response.collect(limit: GCSRequests.maximumResponse)
        } catch {
            if error.code == .cancelled { throw BucketError(error) }
            return .unknown(BucketError(error), retryAfter: nil)
        }
        return try outcome(response.status, response.fields, body)
    }

    /// Queries the session's state, once. ``deliver(_:_:_:)`` retries.
    private func query() async throws(BucketError) -> Outcome {
        let request = request("*/*")
        request.isRepeatable = true
        return try await outcome(of: start(request))
    }

    // MARK: Streaming

    struct Stream {
        let exchange: ClientExchange
        let pipe: RequestBodyPipe
    }

    /// Begins to stream `count` bytes, a multiple of ``quantum``. ``settle(_:_:)`` must follow.
    func beginStream(_ count: UInt64) -> Stream {
        let pipe = RequestBodyPipe(length: count)
        let range = "\(persisted)-\(persisted + count - 1)/*"
        return Stream(exchange: start(request(range, .pipe(pipe))), pipe: pipe)
    }

    /// The response after all bytes were written, or after the pipe stopped accepting them.
    func response(to stream: Stream) async throws(BucketError) -> Outcome {
        try await outcome(of: stream.exchange)
    }

    /// Ensures that the service keeps all bytes of a stream. Missing bytes are sent again; throws if they are gone.
    func settle(_ outcome: Outcome, _ held: ReplayBuffer) async throws(BucketError) {
        try await deliver(held, at: persisted, nil, outcome)
    }

    static let endedEarly = BucketError(.unavailable, "the service has ended an upload that was not complete")

    // MARK: Bytes that can be sent again

    /// Sends bytes until the service keeps them all. `offset` is set if they do not follow the confirmed ones.
    func send(_ held: ReplayBuffer, at offset: UInt64? = nil) async throws(BucketError) {
        try await deliver(held, at: offset ?? persisted, nil, nil)
    }

    /// Queries how many bytes the service keeps (``persisted``). Returns the object if the session has created it.
    func update() async throws(BucketError) -> ObjectMetadata? {
        var failures = 0
        while true {
            switch try await query() {
            case .kept(let count):
                persisted = count
                return nil
            case .complete(let metadata): return metadata
            case .unknown(let error, let retryAfter):
                failures += 1
                guard await mayTryAgain(failures, retryAfter) else { throw error }
            }
        }
    }

    /// Sends the last bytes, which creates the object. The service compares `facts`, those of the whole object, with
    /// its own. Throws `.preconditionFailed` if the session's conditions do not hold.
    func finish(_ held: ReplayBuffer, _ facts: ContentFacts) async throws(BucketError)
        -> ObjectMetadata
    {
        let start = facts.size - held.count
        guard let metadata = try await deliver(held, at: start, facts, nil) else {
            throw BucketError(.internal, "a commit without an object")
        }
        return metadata
    }

    /// - Parameters:
    ///   - held: Bytes that the service may have in part.
    ///   - start: Their offset.
    ///   - facts: The facts of the whole object, if these are its last bytes.
    ///   - first: The result of the first request with these bytes, if any.
    @discardableResult
    private func deliver(
        _ held: ReplayBuffer, at start: UInt64, _ facts: ContentFacts?, _ first: Outcome?
    ) async throws(BucketError) -> ObjectMetadata? {
        let end = start + held.count
        if facts == nil, first == nil, persisted >= end { return nil }
        var failures = 0
        var outcome = first
        while true {
            var isSent = true
            if case .unknown(let error, let retryAfter)? = outcome {
                failures += 1
                guard await mayTryAgain(failures, retryAfter) else {
                    // The session may have created the object. Query once, regardless of the requested delay.
                    if facts != nil, case .complete(let metadata)? = try? await query() {
                        return metadata
                    }
                    throw error
                }
                outcome = try await query()
                isSent = false
            }
            switch outcome {
            case .unknown: continue
            case .complete(let metadata):
                guard facts != nil else { throw GCSSession.endedEarly }
                return metadata
            case .kept(let count):
                if isShared, facts != nil, count > end {
                    throw BucketError(otherBytes: "the service keeps \(count) bytes of the upload, not \(end)")
                }
                guard count >= persisted, count <= end || isShared else {
                    throw BucketError(
                        .unavailable,
                        "the service keeps \(count) bytes of the upload, where it kept \(persisted)"
                    )
                }
                let isProgress = count >= persisted + GCSSession.quantum
                persisted = count
                if facts == nil, count >= end { return nil }
                if isProgress {
                    failures = 0
                } else if isSent {
                    failures += 1
                    guard await mayTryAgain(failures, nil) else {
                        throw BucketError(.unavailable, "the service keeps \(count) of \(end) bytes")
                    }
                }
            case nil: break
            }
            guard (start...end).contains(persisted) else {
                throw BucketError(otherBytes: "the service keeps \(persisted) bytes of the upload, not \(start)")
            }
            outcome = try await sendOnce(held, from: persisted - start, facts)
        }
    }

    private func mayTryAgain(_ failures: Int, _ retryAfter: String?) async -> Bool {
        await requests.upstream.mayTryAgain(after: failures, retryAfter: retryAfter)
    }

    private func sendOnce(_ held: ReplayBuffer, from offset: UInt64, _ facts: ContentFacts?)
        async throws(BucketError) -> Outcome
    {
        let size = facts.map { String($0.size) } ?? "*"
        let count = held.count - offset
        let range =
            count == 0 ? "*/\(size)" : "\(persisted)-\(persisted + count - 1)/\(size)"
        func begin(_ body: RequestBody) -> ClientExchange {
            let request = request(range, body)
            if let facts { request.fields.append("x-goog-hash", GCSObject.hashField(facts)) }
            return start(request)
        }
        if count == 0 { return try await outcome(of: begin(.none)) }
        switch held {
        case .memory(let bytes): return try await outcome(of: begin(.bytes(Array(bytes[Int(offset)...]))))
        case .spool(let spool):
            let pipe = RequestBodyPipe(length: count)
            let exchange = begin(.pipe(pipe))
            do throws(BucketError) {
                try await feed(pipe, from: spool, at: offset)
            } catch {
                exchange.cancel()
                throw error
            }
            return try await outcome(of: exchange)
        case .gone:
            throw BucketError(
                .unavailable,
                "the service lacks \(count) bytes of the upload that are not held any more")
        }
    }

    /// Writes a spool's bytes to the pipe until the end, or until the pipe stops; the response then has the cause.
    private func feed(_ pipe: RequestBodyPipe, from spool: Spool, at start: UInt64)
        async throws(BucketError)
    {
        var offset = start
        while offset < spool.count {
            let start = offset
            let bytes = try await pool.run { () throws(BucketError) in
                try spool.read(at: start, limit: UploadBuffer.limit)
            }
            let isTaken = await pipe.writeAll(bytes.count) {
                try pipe.write(bytes.span.bytes.extracting(droppingFirst: $0))
            }
            guard isTaken else { return }
            offset += UInt64(bytes.count)
        }
    }

    func cancel() async { _ = try? await discard() }

    /// Asks the service to discard the upload. Throws if it may still keep the bytes.
    func discard() async throws(BucketError) {
        let request = ClientRequest("DELETE", target, isRepeatable: true)
        let response: CollectedResponse
        do throws(ClientError) {
            response = try await requests.upstream.call(request)
        } catch {
            throw BucketError(error)
        }
        // 499 confirms it. With the others there is nothing to discard.
        guard [200, 201, 204, 400, 404, 410, 499].contains(response.status) else {
            throw requests.failure(response)
        }
    }
}

extension RequestBodyPipe {
    /// Writes `count` bytes, waiting while the pipe is full. `write` writes from an offset and returns their number.
    /// - Returns: Whether all bytes were accepted. If not, the response has the cause.
    func writeAll(_ count: Int, _ write: (Int) throws -> Int) async -> Bool {
        var offset = 0
        while offset < count {
            guard let taken = try? write(offset) else { return false }
            offset += taken
            if taken == 0 {
                await withCheckedContinuation { waiter in whenWritable { waiter.resume() } }
            }
        }
        return true
    }
}
