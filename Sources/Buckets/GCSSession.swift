import EventLoop
import HTTPClient
import Wire

/// Bytes that can be sent again: in memory, or in a spool.
enum GCSHeldBytes: Sendable {
    case memory([UInt8])
    case spool(Spool)

    var count: UInt64 {
        switch self {
        case .memory(let bytes): UInt64(bytes.count)
        case .spool(let spool): spool.count
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
    /// How often held bytes are sent at most.
    private static let attempts = 4

    private let requests: GCSRequests
    private let pool: BlockingPool
    private let target: String
    /// Bytes that the service has said it keeps.
    private(set) var persisted: UInt64 = 0
    /// The request that is being sent.
    private var current: ClientExchange?

    private init(_ requests: GCSRequests, _ pool: BlockingPool, target: String) {
        self.requests = requests
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
        let origin = requests.upstream.settings.origin
        guard let location = response.fields["location"],
            let target = GCSSession.target(location, origin)
        else {
            throw BucketError(
                .unavailable, "the service begins an upload at another host than \(origin)")
        }
        return GCSSession(requests, pool, target: target)
    }

    /// The path and query of a session's address.
    /// - Returns: nil where its host is not the one that was asked.
    static func target(_ location: String, _ origin: Origin) -> String? {
        for prefix in ["https://\(origin.authority)/", "http://\(origin.authority)/"]
        where location.lowercased().hasPrefix(prefix) {
            let target = location.utf8.dropFirst(prefix.utf8.count - 1)
            return target.allSatisfy(ASCII.isVisible) ? String(target) : nil
        }
        return nil
    }

    // MARK: One request

    /// What a request of the session came to.
    private enum Outcome {
        /// The service keeps so many bytes from the start.
        case kept(UInt64)
        case complete(ObjectMetadata)
        /// Whether the request was acted on is not known.
        case unknown(BucketError)
    }

    private func request(_ range: String, _ body: RequestBody = .none) -> ClientRequest {
        var request = ClientRequest("PUT", target, body: body, isRepeatable: false)
        request.fields.append("content-range", "bytes \(range)")
        return request
    }

    private func outcome(_ status: Int, _ fields: HeaderFields, _ body: [UInt8])
        throws(BucketError) -> Outcome
    {
        switch status {
        case 200, 201: return .complete(try requests.metadata(status, body))
        case 308: return .kept(try GCSSession.kept(fields["range"]))
        case 408, 429, 500...599: return .unknown(requests.failure(status, body))
        case 404, 410: throw BucketError(.unavailable, "the service has forgotten the upload")
        default: throw requests.failure(status, body)
        }
    }

    /// Bytes that a 308 says are kept: `bytes=0-N`, or none at all.
    static func kept(_ field: String?) throws(BucketError) -> UInt64 {
        guard let field else { return 0 }
        guard field.hasPrefix("bytes=0-"), let last = UInt64(field.dropFirst(8)), last < .max else {
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
            return .unknown(BucketError(error))
        }
        return try outcome(response.status, response.fields, body)
    }

    /// Asks what the service has.
    private func query() async throws(BucketError) -> Outcome {
        var request = request("*/*")
        request.isRepeatable = true
        let response: CollectedResponse
        do throws(ClientError) {
            response = try await requests.upstream.call(request, limit: GCSRequests.maximumAnswer)
        } catch {
            throw BucketError(error)
        }
        return try outcome(response.status, response.fields, response.body)
    }

    // MARK: Bytes that are sent once

    /// A request under way, and what its bytes are written to.
    struct Stream {
        let exchange: ClientExchange
        let pipe: RequestBodyPipe
    }

    /// Begins to send the next `count` bytes, a multiple of ``quantum``.
    func beginStream(_ count: UInt64) -> Stream {
        let pipe = RequestBodyPipe(length: count)
        let range = "\(persisted)-\(persisted + count - 1)/*"
        return Stream(exchange: start(request(range, .pipe(pipe))), pipe: pipe)
    }

    /// Waits until the service keeps all that was written.
    /// - Throws: ``BucketError`` where it keeps less: the bytes can't be had again.
    func endStream(_ stream: Stream) async throws(BucketError) {
        var outcome = try await outcome(of: stream.exchange)
        if case .unknown = outcome, stream.pipe.written == stream.pipe.length {
            outcome = try await query()
        }
        let end = persisted + stream.pipe.length
        switch outcome {
        case .kept(end): persisted = end
        case .kept(let count):
            throw BucketError(
                .unavailable, "the service keeps \(count) of \(end) bytes of the upload")
        case .complete: throw GCSSession.endedEarly
        case .unknown(let error): throw error
        }
    }

    private static let endedEarly = BucketError(
        .unavailable, "the service has ended an upload that was not complete")

    // MARK: Bytes that can be sent again

    /// Sends held bytes, the next after those that are kept, until the service keeps them all.
    /// - Parameter total: Bytes of the whole object where these are its last: the object is made then.
    /// - Returns: The object where `total` is given.
    /// - Throws: ``BucketError``: `.preconditionFailed` where the conditions of the session do not hold.
    @discardableResult
    func send(_ held: GCSHeldBytes, total: UInt64?) async throws(BucketError) -> ObjectMetadata? {
        let start = persisted
        let end = start + held.count
        var failure = BucketError(.unavailable, "the service keeps less than it is sent")
        for _ in 0..<GCSSession.attempts {
            var outcome = try await sendOnce(held, from: persisted - start, total)
            if case .unknown(let error) = outcome {
                failure = error
                outcome = try await query()
            }
            switch outcome {
            case .complete(let metadata):
                guard total != nil else { throw GCSSession.endedEarly }
                return metadata
            case .kept(let count):
                guard (start...end).contains(count) else {
                    throw BucketError(
                        .unavailable, "the service keeps \(count) bytes, where it kept \(start)")
                }
                persisted = count
                if total == nil, count == end { return nil }
            case .unknown(let error): failure = error
            }
        }
        throw failure
    }

    private func sendOnce(_ held: GCSHeldBytes, from offset: UInt64, _ total: UInt64?)
        async throws(BucketError) -> Outcome
    {
        let size = total.map { String($0) } ?? "*"
        let count = held.count - offset
        if count == 0 { return try await outcome(of: start(request("*/\(size)"))) }
        let range = "\(persisted)-\(persisted + count - 1)/\(size)"
        switch held {
        case .memory(let bytes):
            let rest = Array(bytes[Int(offset)...])
            return try await outcome(of: start(request(range, .bytes(rest))))
        case .spool(let spool):
            let pipe = RequestBodyPipe(length: count)
            let exchange = start(request(range, .pipe(pipe)))
            do throws(BucketError) {
                try await feed(pipe, from: spool, at: offset)
            } catch {
                exchange.cancel()
                throw error
            }
            return try await outcome(of: exchange)
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
