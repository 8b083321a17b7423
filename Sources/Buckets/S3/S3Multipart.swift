import HTTPClient
import System
import Wire
import XML

/// A multipart upload, whose parts become visible together. Confined to its loop.
final class S3Multipart {
    /// The maximum number of parts that the protocol allows.
    static let maximumParts = 10_000
    /// The maximum number of attempts to send a buffered part.
    private static let attempts = 4
    /// The upper bound of the first delay between attempts: 100 ms. It doubles with each attempt.
    private static let retryDelay: UInt64 = 100_000_000

    /// The bytes read from a file at a time: 32 KiB.
    private static let step = 32 * 1024

    /// nil until the first part is sent.
    var generation: Int64?
    private let bucket: S3Bucket
    private let name: String
    private let size: UInt64?
    /// Whether the service rejected the upload because the credentials do not permit writing.
    private(set) var isForbidden = false
    private var id: String?
    /// The id in ``S3Bucket/openUploads``.
    private var opened: String?
    private var tags: [String] = []
    private var sent: UInt64 = 0
    /// The request that sends the current part.
    private var body: S3Body?
    private var isGivenUp = false
    /// Whether the completion may still be in progress.
    private var isUndecided = false
    /// Whether closing the bucket waits for the end of this upload.
    private var isOpen = false
    /// The number of requests that may have begun an upload, but whose response with its id is missing.
    private var lost = 0
    /// The ids of uploads that those requests may have begun.
    private var orphans: [String] = []

    init(_ bucket: S3Bucket, _ name: String, size: UInt64?) {
        self.bucket = bucket
        self.name = name
        self.size = size
    }

    /// The size of the next part. For an object of known length, all parts but the last have equal size. Otherwise the
    /// size doubles every 1,000 parts. In both cases 10,000 parts hold 5 TiB.
    var nextLength: UInt64 {
        S3Multipart.length(
            ofPart: tags.count + 1, size: size, minimum: bucket.settings.minimumPart,
            limit: bucket.settings.singleLimit, sent: sent)
    }

    static func length(
        ofPart number: Int, size: UInt64?, minimum: UInt64, limit: UInt64, sent: UInt64
    ) -> UInt64 {
        guard let size else { return min(minimum << UInt64((number - 1) / 1000), limit) }
        let parts = UInt64(maximumParts)
        let equal = (size + parts - 1) / parts
        // Rounds up to whole MiB. Some services require equal parts.
        let rounded = ((equal + (1 << 20) - 1) >> 20) << 20
        return min(max(minimum, rounded), size - sent)
    }

    /// Whether any part was sent.
    var hasParts: Bool { !tags.isEmpty }

    /// Sends a buffered file as a part, with retries, and then clears the file.
    func send(_ spool: Spool, _ fields: HeaderFields) async throws(BucketError) {
        try await create(fields)
        var attempt = 1
        while true {
            do throws(BucketError) {
                let body = try await bucket.stream(
                    "PUT", target(), HeaderFields(), length: spool.count)
                self.body = body
                defer { self.body = nil }
                if isGivenUp { body.cancel() }
                try await copy(spool, to: body)
                let response = try await body.response()
                let failure = S3ErrorResponse(response)
                if response.status >= 500 || failure.isRefusal || response.status == 429
                    || body.isSignedAnew, attempt < S3Multipart.attempts
                {
                    throw failure.error("upload")
                }
                try add(response, spool.count)
                return await bucket.pool.run { spool.clear() }
            } catch {
                guard !isGivenUp, error.isRetryable, error.code != .insufficientStorage,
                    attempt < S3Multipart.attempts
                else { throw error }
            }
            await sleep(.random(in: 0...(S3Multipart.retryDelay << UInt64(attempt - 1))))
            attempt += 1
        }
    }

    /// Cancels the part that is being sent.
    func cancel() {
        isGivenUp = true
        body?.cancel()
    }

    private func copy(_ spool: Spool, to body: S3Body) async throws(BucketError) {
        var offset: UInt64 = 0
        while offset < spool.count {
            let start = offset
            let bytes: [UInt8]
            do throws(BucketError) {
                bytes = try await bucket.pool.run { () throws(BucketError) in
                    try spool.read(at: start, limit: S3Multipart.step)
                }
            } catch {
                body.cancel()
                throw error
            }
            do { try await body.writeAll(bytes) } catch {
                // The response has the cause.
                return
            }
            offset += UInt64(bytes.count)
        }
    }

    /// Copies a range of an existing object within the service.
    func copy(_ source: HeaderFields, _ range: Range<UInt64>, _ fields: HeaderFields)
        async throws(BucketError)
    {
        try await create(fields)
        var request = ClientRequest("PUT", target(), fields: source, isRepeatable: true)
        request.waitLimit = S3Bucket.silenceLimit
        request.fields.append(
            "x-amz-copy-source-range", "bytes=\(range.lowerBound)-\(range.upperBound - 1)")
        var response = try await bucket.call(request)
        if response.status == 200, let tag = XMLReader.first("ETag", in: response.body) {
            response.fields = HeaderFields()
            response.fields.append("etag", S3Head.unquoted(tag))
        }
        try add(response, range.upperBound - range.lowerBound)
    }

    /// Begins the upload, unless it has begun.
    func create(_ fields: HeaderFields) async throws(BucketError) {
        if id != nil { return }
        if !isOpen {
            isOpen = true
            bucket.cleaning.begin()
        }
        let begun = bucket.now()
        var request = ClientRequest("POST", bucket.target(name, "uploads="), fields: fields)
        // If the repetition begins a second upload, that one is found and aborted later.
        request.confirmsRepetition = { response in
            if response.map({ S3ErrorResponse($0).isRefusal }) != true { self.lost += 1 }
            return true
        }
        let response: CollectedResponse
        do throws(BucketError) { response = try await bucket.call(request) } catch {
            lost += 1
            abortLost(since: begun)
            throw error
        }
        guard response.status == 200, let id = S3Multipart.id(of: response, name) else {
            let failure = S3ErrorResponse(response)
            isForbidden = failure.status == 403 && failure.code == "AccessDenied"
            if failure.status < 400 || failure.status >= 500 { lost += 1 }
            abortLost(since: begun)
            throw failure.error("upload in parts")
        }
        self.id = id
        opened = id
        bucket.openUploads.withLock { _ = $0.insert(BytewiseString(id)) }
        if lost > 0 {
            orphans = await bucket.orphans(of: name, besides: id, since: begun, atMost: lost)
        }
    }

    /// Finds and aborts uploads begun by requests without a response, in the background.
    private func abortLost(since begun: Int64) {
        guard lost > 0, let loop = EventLoop.current else { return }
        let (bucket, name, lost) = (bucket, name, lost)
        self.lost = 0
        bucket.cleaning.run(on: loop) {
            let found = await bucket.orphans(of: name, besides: nil, since: begun, atMost: lost)
            await bucket.abort(orphans: found, of: name)
        }
    }

    private var query: String { "uploadId=\(PercentEncoding.encodeSegment(id ?? ""))" }

    private func target() -> String {
        bucket.target(name, "partNumber=\(tags.count + 1)&\(query)")
    }

    private func add(_ response: CollectedResponse, _ length: UInt64) throws(BucketError) {
        guard (200...299).contains(response.status), S3ErrorResponse.code(in: response.body) == nil,
            let etag = S3Head(response.fields).etag
        else { throw S3ErrorResponse(response).error("upload of a part") }
        tags.append(etag)
        sent += length
        if tags.count == S3Multipart.maximumParts, size == nil || sent < size ?? 0 {
            throw BucketError(.unsupported, "upload: the object is larger than 10,000 parts hold")
        }
    }

    /// Completes the upload, which makes the object visible.
    /// - Parameter confirm: Whether the request may be repeated although it may have succeeded.
    func complete(
        _ condition: S3Bucket.WriteCondition,
        _ confirm: @escaping (CollectedResponse?) async -> Bool
    ) async throws(BucketError) -> CollectedResponse {
        var body = "<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">"
        for (index, tag) in tags.enumerated() {
            let escaped = tag.utf8.map { byte in
                switch byte {
                case UInt8(ascii: "&"): "&amp;"
                case UInt8(ascii: "<"): "&lt;"
                default: String(Character(Unicode.Scalar(byte)))
                }
            }.joined()
            body += "<Part><PartNumber>\(index + 1)</PartNumber><ETag>\"\(escaped)\"</ETag></Part>"
        }
        body += "</CompleteMultipartUpload>"
        var request = ClientRequest(
            "POST", bucket.target(name, query), body: .bytes(Array(body.utf8)))
        request.confirmsRepetition = confirm
        request.waitLimit = S3Bucket.silenceLimit
        request.fields.append("content-type", "application/xml")
        condition.append(to: &request.fields)
        let response: CollectedResponse
        do throws(BucketError) {
            response = try await bucket.call(request)
            isUndecided = false
        } catch {
            // The completion may still be in progress.
            isUndecided = error.code == .timedOut
            throw error
        }
        if S3Multipart.tag(of: response, name) != nil {
            id = nil
            end()
        }
        return response
    }

    /// The upload id in a response to ``create(_:)``; nil if the response does not report an upload of `name`.
    private static func id(of response: CollectedResponse, _ name: String) -> String? {
        // rclone uses a shorter element name.
        for result in ["InitiateMultipartUploadResult", "InitiateMultipartUpload"] {
            if let id = XMLReader.first("UploadId", of: result, in: response.body), !id.isEmpty {
                return isAbout(name, result, response.body) ? id : nil
            }
        }
        return nil
    }

    /// The entity tag in a response to ``complete(_:_:)``; nil if the response does not report that `name` was stored.
    static func tag(of response: CollectedResponse, _ name: String) -> String? {
        let result = "CompleteMultipartUploadResult"
        guard response.status == 200, isAbout(name, result, response.body) else { return nil }
        return XMLReader.first("ETag", of: result, in: response.body).map(S3Head.unquoted)
    }

    /// Whether a document names this object, plainly or percent-encoded, or names none.
    static func isAbout(_ name: String, _ owner: String, _ body: [UInt8]) -> Bool {
        guard let key = XMLReader.first("Key", of: owner, in: body) else { return true }
        if BytewiseString.areEqual(key, name) { return true }
        guard let decoded = try? PercentEncoding.decode(Array(key.utf8)[...]) else { return false }
        return decoded.elementsEqual(name.utf8)
    }

    /// Asks the service to discard the parts, in the background, unless a completion may still be in progress.
    func abort() {
        defer { end() }
        guard id != nil, !isUndecided, let loop = EventLoop.current else { return }
        let (bucket, target) = (bucket, bucket.target(name, query))
        id = nil
        bucket.cleaning.run(on: loop) {
            _ = try? await bucket.call(ClientRequest("DELETE", target, isRepeatable: true))
        }
    }

    deinit { end() }

    private func end() {
        if let opened { bucket.openUploads.withLock { _ = $0.remove(BytewiseString(opened)) } }
        opened = nil
        if !orphans.isEmpty, let loop = EventLoop.current {
            let (bucket, name, orphans) = (bucket, name, orphans)
            bucket.cleaning.run(on: loop) { await bucket.abort(orphans: orphans, of: name) }
        }
        orphans = []
        if isOpen { bucket.cleaning.end() }
        isOpen = false
    }
}

/// Suspends on the calling loop.
private func sleep(_ nanoseconds: UInt64) async {
    guard let loop = EventLoop.current else { return }
    var timer: LoopTimer?
    await withCheckedContinuation { waiter in
        let armed = LoopTimer { waiter.resume() }
        timer = armed
        loop.arm(armed, after: nanoseconds)
    }
    _ = timer
}
