import EventLoop
import HTTPClient
import Wire

/// Bytes on their way to a session: those that can be sent again are in memory or in a spool.
enum GCSHeldBytes: Sendable {
    case memory([UInt8])
    case spool(Spool)
    /// So many that were sent and not kept here.
    case gone(UInt64)

    var count: UInt64 {
        switch self {
        case .memory(let bytes): UInt64(bytes.count)
        case .spool(let spool): spool.count
        case .gone(let count): count
        }
    }
}

/// A resumable upload: the service keeps what is sent and makes the object with the last request. Confined to its loop.
///
/// Its address is a secret that needs no other credentials: it appears in no error.
///
/// Safety: confined to its loop.
final class GCSSession: @unchecked Sendable {
    /// What is not the end of the object comes in multiples of this: 256 KiB.
    static let quantum: UInt64 = 256 * 1024

    private let requests: GCSRequests
    private let pool: BlockingPool
    private let name: String
    private let target: String
    /// Bytes that the service has said it keeps.
    private(set) var persisted: UInt64 = 0
    /// The request that is being sent.
    private var current: ClientExchange?

    private init(_ requests: GCSRequests, _ pool: BlockingPool, _ name: String, target: String) {
        self.requests = requests
        self.name = name
        self.pool = pool
        self.target = target
    }

    /// Begins a session. Its preconditions are decided when it ends.
    static func start(
        _ requests: GCSRequests, _ pool: BlockingPool, _ name: String,
        _ attributes: ObjectAttributes, _ conditions: GCSConditions
    ) async throws(BucketError) -> GCSSession {
        let query = [("uploadType", "resumable"), ("name", name)] + conditions.query
        // A session that is begun twice leaves one that is never used, and no object.
        var request = ClientRequest(
            "POST", requests.uploads(query),
            body: .bytes(GCSObject.resource(name, attributes, nil)), isRepeatable: true)
        request.fields.append("content-type", "application/json; charset=UTF-8")
        request.fields.append("x-upload-content-type", attributes.mediaType)
        let response = try await requests.call(request)
        guard response.status == 200 || response.status == 201 else {
            let failure = requests.failure(response)
            throw failure.code == .objectNotFound
                ? BucketError(.unavailable, "the bucket does not exist") : failure
        }
        guard let target = response.fields["location"].flatMap(GCSSession.target) else {
            throw BucketError(.unavailable, "the service begins an upload without an address")
        }
        return GCSSession(requests, pool, name, target: target)
    }

    /// The path and query of a session's address. They are asked for at the configured origin, whatever host the address
    /// names: behind a proxy or a private endpoint it is one that we do not know, and no other may be asked.
    static func target(_ location: String) -> String? {
        var rest = location.utf8[...]
        if let scheme = ["https://", "http://"].first(where: location.lowercased().hasPrefix) {
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

    /// What a request of the session came to.
    enum Outcome {
        /// The service keeps so many bytes from the start.
        case kept(UInt64)
        case complete(ObjectMetadata)
        /// Whether the request was acted on, or how much of it, is not known. After the `Retry-After` it may be asked.
        case unknown(BucketError, retryAfter: String?)
    }

    private func request(_ range: String, _ body: RequestBody = .none) -> ClientRequest {
        var request = ClientRequest("PUT", target, body: body, isRepeatable: false)
        request.fields.append("content-range", "bytes \(range)")
        return request
    }

    /// - Throws: ``BucketError`` where the service says that there will be no object.
    private func outcome(_ status: Int, _ fields: HeaderFields, _ body: [UInt8])
        throws(BucketError) -> Outcome
    {
        switch status {
        case 200, 201:
            do throws(BucketError) {
                return .complete(try requests.metadata(status, body, of: name))
            } catch {
                // An answer that was cut short: the object is there, and the session tells of it again.
                return .unknown(error, retryAfter: nil)
            }
        case 308: return .kept(try GCSSession.kept(fields["range"]))
        case 408, 429, 500...599:
            return .unknown(requests.failure(status, body), retryAfter: fields["retry-after"])
        case 404, 410: throw BucketError(.unavailable, "the service has forgotten the upload")
        default: throw requests.failure(status, body)
        }
    }

    /// Bytes that a 308 says are kept: `bytes=0-N`, or none at all.
    static func kept(_ field: String?) throws(BucketError) -> UInt64 {
        guard let field else { return 0 }
        guard field.hasPrefix("bytes=0-"), let last = UInt64(digits: field.dropFirst(8)),
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

    /// Ends the request that is being sent: nobody wants the upload any more.
    func giveUp() { current?.cancel() }

    private func outcome(of exchange: ClientExchange) async throws(BucketError) -> Outcome {
        let response: ClientResponse
        let body: [UInt8]
        do throws(ClientError) {
            response = try await exchange.response()
            body = try await response.collect(limit: GCSRequests.maximumAnswer)
        } catch {
            if error.code == .cancelled { throw BucketError(error) }
            return .unknown(BucketError(error), retryAfter: nil)
        }
        return try outcome(response.status, response.fields, body)
    }

    /// Asks what the service has, once: who delivers asks again.
    private func query() async throws(BucketError) -> Outcome {
        var request = request("*/*")
        request.isRepeatable = true
        return try await outcome(of: start(request))
    }

    // MARK: Bytes that are sent as they come

    /// A request under way, and what its bytes are written to.
    struct Stream {
        let exchange: ClientExchange
        let pipe: RequestBodyPipe
    }

    /// Begins to send the next `count` bytes, a multiple of ``quantum``. ``settle(_:_:)`` is to follow.
    func beginStream(_ count: UInt64) -> Stream {
        let pipe = RequestBodyPipe(length: count)
        let range = "\(persisted)-\(persisted + count - 1)/*"
        return Stream(exchange: start(request(range, .pipe(pipe))), pipe: pipe)
    }

    /// The answer to a stream whose bytes were all written, or are no longer taken.
    func answer(to stream: Stream) async throws(BucketError) -> Outcome {
        try await outcome(of: stream.exchange)
    }

    /// Has the service keep all bytes of a stream that has had its answer: what it lacks is sent again.
    /// - Throws: ``BucketError`` where it lacks bytes that are not held any more.
    func settle(_ outcome: Outcome, _ held: GCSHeldBytes) async throws(BucketError) {
        try await deliver(held, nil, outcome)
    }

    private static let endedEarly = BucketError(
        .unavailable, "the service has ended an upload that was not complete")

    // MARK: Bytes that can be sent again

    /// Sends held bytes, the next after those that are kept, until the service keeps them all.
    func send(_ held: GCSHeldBytes) async throws(BucketError) {
        try await deliver(held, nil, nil)
    }

    /// Sends the last bytes, with which the object appears.
    /// - Parameter facts: Of the whole object: the service compares them with what it has got.
    /// - Throws: ``BucketError``: `.preconditionFailed` where the conditions of the session do not hold.
    func finish(_ held: GCSHeldBytes, _ facts: ContentFacts) async throws(BucketError)
        -> ObjectMetadata
    {
        guard let metadata = try await deliver(held, facts, nil) else {
            throw BucketError(.internal, "a commit without an object")
        }
        return metadata
    }

    /// - Parameters:
    ///   - held: Begins behind the bytes that are kept.
    ///   - facts: Of the whole object, where these are its last bytes.
    ///   - first: What the first request with them has come to, where there was one.
    @discardableResult
    private func deliver(_ held: GCSHeldBytes, _ facts: ContentFacts?, _ first: Outcome?)
        async throws(BucketError) -> ObjectMetadata?
    {
        let start = persisted
        let end = start + held.count
        var failures = 0
        var outcome = first
        while true {
            var isSent = true
            if case .unknown(let error, let retryAfter)? = outcome {
                failures += 1
                guard await mayTryAgain(failures, retryAfter) else { throw error }
                outcome = try await query()
                isSent = false
            }
            switch outcome {
            case .unknown: continue
            case .complete(let metadata):
                guard facts != nil else { throw GCSSession.endedEarly }
                return metadata
            case .kept(let count):
                guard (persisted...end).contains(count) else {
                    throw BucketError(
                        .unavailable,
                        "the service keeps \(count) bytes of the upload, where it kept \(persisted)"
                    )
                }
                let isProgress = count >= persisted + GCSSession.quantum
                persisted = count
                if facts == nil, count == end { return nil }
                if isProgress {
                    failures = 0
                } else if isSent {
                    failures += 1
                    guard await mayTryAgain(failures, nil) else {
                        throw BucketError(
                            .unavailable, "the service keeps \(count) of \(end) bytes")
                    }
                }
            case nil: break
            }
            outcome = try await sendOnce(held, from: persisted - start, facts)
        }
    }

    private func mayTryAgain(_ failures: Int, _ retryAfter: String?) async -> Bool {
        await requests.upstream.mayTryAgain(after: failures, retryAfter: retryAfter)
    }

    private func sendOnce(_ held: GCSHeldBytes, from offset: UInt64, _ facts: ContentFacts?)
        async throws(BucketError) -> Outcome
    {
        let size = facts.map { String($0.size) } ?? "*"
        let count = held.count - offset
        let range =
            count == 0 ? "*/\(size)" : "\(persisted)-\(persisted + count - 1)/\(size)"
        func begin(_ body: RequestBody) -> ClientExchange {
            var request = request(range, body)
            if let facts { request.fields.append("x-goog-hash", GCSObject.hashField(facts)) }
            return start(request)
        }
        if count == 0 { return try await outcome(of: begin(.none)) }
        switch held {
        case .memory(let bytes):
            return try await outcome(of: begin(.bytes(Array(bytes[Int(offset)...]))))
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

    /// Writes a spool's bytes, until there are no more or none are taken any more: the response says why.
    private func feed(_ pipe: RequestBodyPipe, from spool: Spool, at start: UInt64)
        async throws(BucketError)
    {
        var offset = start
        while offset < spool.count {
            let place = offset
            let bytes = try await pool.run { () throws(BucketError) in
                try spool.read(at: place, limit: UploadBuffer.limit)
            }
            let isTaken = await pipe.writeAll(bytes.count) {
                try pipe.write(bytes.span.bytes.extracting(droppingFirst: $0))
            }
            guard isTaken else { return }
            offset += UInt64(bytes.count)
        }
    }

    /// Has the service forget the upload.
    func cancel() async {
        let request = ClientRequest("DELETE", target, isRepeatable: true)
        _ = try? await requests.upstream.call(request)
    }
}

extension RequestBodyPipe {
    /// Waits for room until `count` bytes were written.
    /// - Parameter write: Writes what begins at an offset.
    /// - Returns: Whether they were all taken; where not, the response says why.
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
