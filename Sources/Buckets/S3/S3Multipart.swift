import HTTPClient
import System
import Wire
import XML

/// A multipart upload, whose parts become visible together. Confined to its loop.
final class S3Multipart {
    /// nil until the first part is sent.
    var generation: Int64?
    private let bucket: S3Bucket
    private let name: String
    private let size: UInt64?
    /// Whether the service rejected the upload because the credentials do not permit writing.
    private(set) var isForbidden = false
    /// nil before the upload has begun.
    private(set) var id: String?
    private var opened: String?
    private var tags: [String] = []
    private var sent: UInt64 = 0
    private var part: S3Part?
    private var isGivenUp = false
    /// Whether the completion may still be in progress.
    private var isUndecided = false
    /// Whether closing the bucket waits for this upload.
    private var isOpen = false
    /// The number of requests that may have begun an upload, but have no response with its id.
    private var lost = 0
    /// The uploads that those requests may have begun.
    private var orphans: [String] = []

    init(_ bucket: S3Bucket, _ name: String, size: UInt64?) {
        self.bucket = bucket
        self.name = name
        self.size = size
    }

    /// The size of the next part. For an object of known length, all parts but the last have equal size. Otherwise it
    /// doubles with every tenth of the parts. Either way 10,000 parts hold 5 TiB.
    var nextLength: UInt64 {
        S3Multipart.length(
            ofPart: tags.count + 1, size: size, minimum: bucket.settings.minimumPart,
            limit: bucket.settings.singleLimit, parts: bucket.settings.maximumParts, sent: sent)
    }

    static func length(
        ofPart number: Int, size: UInt64?, minimum: UInt64, limit: UInt64, parts: Int, sent: UInt64
    ) -> UInt64 {
        guard let size else {
            return min(minimum << UInt64((number - 1) * 10 / parts), limit)
        }
        let parts = UInt64(parts)
        let equal = (size + parts - 1) / parts
        // Rounds up to whole MiB. Some services require equal parts.
        let rounded = ((equal + (1 << 20) - 1) >> 20) << 20
        return min(max(minimum, rounded), size - sent)
    }

    var hasParts: Bool { !tags.isEmpty }

    /// Sends a buffered file as a part, with retries, and clears the file.
    func send(_ spool: Spool, _ fields: HeaderFields) async throws(BucketError) {
        try await create(fields)
        let part = S3Part(bucket, target(), spool)
        self.part = part
        defer { self.part = nil }
        if isGivenUp { part.cancel() }
        add(try await part.send(), spool.count)
        try checkCount()
        await bucket.pool.run { spool.clear() }
    }

    func cancel() {
        isGivenUp = true
        part?.cancel()
    }

    func copy(_ source: HeaderFields, _ range: Range<UInt64>, _ fields: HeaderFields)
        async throws(BucketError)
    {
        try await create(fields)
        let request = ClientRequest("PUT", target(), fields: source, isRepeatable: true)
        request.waitLimit = S3Bucket.silenceLimit
        request.fields.append("x-amz-copy-source-range", "bytes=\(range.lowerBound)-\(range.upperBound - 1)")
        var response = try await bucket.call(request)
        if response.status == 200, let tag = XMLReader.first("ETag", in: response.body) {
            response.fields = HeaderFields()
            response.fields.append("etag", S3Head.unquoted(tag))
        }
        add(try S3Part.tag(of: response), range.upperBound - range.lowerBound)
        try checkCount()
    }

    /// Begins the upload, unless it has begun.
    func create(_ fields: HeaderFields) async throws(BucketError) {
        if id != nil { return }
        if !isOpen {
            isOpen = true
            bucket.cleaning.begin()
        }
        let begun = bucket.now()
        let request = ClientRequest("POST", bucket.target(name, "uploads="), fields: fields)
        // If the repetition begins a second upload, that one is found and aborted later.
        request.confirmsRepetition = { response in
            if response.map({ S3ErrorResponse($0).isRejection }) != true { self.lost += 1 }
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

    private func add(_ tag: String, _ length: UInt64) {
        tags.append(tag)
        sent += length
    }

    private func checkCount() throws(BucketError) {
        let most = bucket.settings.maximumParts
        if tags.count == most, size == nil || sent < size ?? 0 {
            throw BucketError(.unsupported, "upload: the object is larger than \(most) parts hold")
        }
    }

    /// Completes the upload. `confirm`: whether the request may be repeated although it may have succeeded.
    func complete(
        _ condition: S3Bucket.WriteCondition,
        _ confirm: @escaping (CollectedResponse?) async -> Bool
    ) async throws(BucketError) -> CollectedResponse {
        let request = S3Multipart.completion(
            bucket.target(name, query), tags.enumerated().map { (number: $0 + 1, etag: $1) }, condition)
        request.confirmsRepetition = confirm
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

    static func completion(
        _ target: String, _ parts: [(number: Int, etag: String)], _ condition: S3Bucket.WriteCondition
    ) -> ClientRequest {
        var body = "<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">"
        for (number, etag) in parts {
            let escaped = etag.utf8.map { byte in
                switch byte {
                case UInt8(ascii: "&"): "&amp;"
                case UInt8(ascii: "<"): "&lt;"
                default: String(Character(Unicode.Scalar(byte)))
                }
            }.joined()
            body += "<Part><PartNumber>\(number)</PartNumber><ETag>\"\(escaped)\"</ETag></Part>"
        }
        body += "</CompleteMultipartUpload>"
        let request = ClientRequest("POST", target, body: .bytes(Array(body.utf8)))
        request.waitLimit = S3Bucket.silenceLimit
        request.fields.append("content-type", "application/xml")
        condition.append(to: &request.fields)
        return request
    }

    /// The upload's id; nil if the response to ``create(_:)`` does not report an upload of `name`.
    static func id(of response: CollectedResponse, _ name: String) -> String? {
        // rclone uses a shorter element name.
        for result in ["InitiateMultipartUploadResult", "InitiateMultipartUpload"] {
            if let id = XMLReader.first("UploadId", of: result, in: response.body), !id.isEmpty {
                return isAbout(name, result, response.body) ? id : nil
            }
        }
        return nil
    }

    /// The object's entity tag; nil if the response to ``complete(_:_:)`` does not report that `name` was stored.
    static func tag(of response: CollectedResponse, _ name: String) -> String? {
        let result = "CompleteMultipartUploadResult"
        guard response.status == 200, isAbout(name, result, response.body) else { return nil }
        return XMLReader.first("ETag", of: result, in: response.body).map(S3Head.unquoted)
    }

    /// Whether a document names this object, plainly or percent-encoded, or no object.
    static func isAbout(_ name: String, _ owner: String, _ body: [UInt8]) -> Bool {
        guard let key = XMLReader.first("Key", of: owner, in: body) else { return true }
        if BytewiseString.areEqual(key, name) { return true }
        guard let decoded = try? PercentEncoding.decode(Array(key.utf8)[...]) else { return false }
        return decoded.elementsEqual(name.utf8)
    }

    /// Discards the parts in the background, unless a completion may still be in progress.
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
