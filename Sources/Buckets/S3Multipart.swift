import EventLoop
import HTTPClient
import Wire

/// An object that is stored in parts, which become visible together. Confined to its loop.
final class S3Multipart {
    /// What the protocol allows.
    static let maximumParts = 10_000
    /// How often a part that waits in a file is sent at most.
    private static let attempts = 4
    /// The bound of the first pause between attempts, which doubles: 100 ms.
    private static let retryDelay: UInt64 = 100_000_000

    /// Bytes that are read from a file at a time: 32 KiB.
    private static let step = 32 * 1024

    /// nil until the first part is due.
    var generation: Int64?
    private let bucket: S3Bucket
    private let name: String
    private let size: UInt64?
    /// Whether the service says that these credentials may not write here.
    private(set) var isForbidden = false
    private var id: String?
    private var tags: [String] = []
    private var sent: UInt64 = 0
    /// The part of a file that is under way.
    private var body: S3Body?
    private var isGivenUp = false
    /// Whether nobody knows if the parts are being put together.
    private var isUndecided = false
    /// Whether whoever closes the bucket waits for the end of this.
    private var isOpen = false

    init(_ bucket: S3Bucket, _ name: String, size: UInt64?) {
        self.bucket = bucket
        self.name = name
        self.size = size
    }

    /// Bytes of the next part. Of an object of known length all parts but the last are equal; otherwise they double
    /// every 1,000 parts, so that both ways 10,000 parts hold 5 TiB.
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
        // Whole MiB, as some services want equal parts to be.
        let rounded = ((equal + (1 << 20) - 1) >> 20) << 20
        return min(max(minimum, rounded), size - sent)
    }

    /// Whether any part was sent.
    var hasParts: Bool { !tags.isEmpty }

    /// Sends what waits in a file as a part, again where that fails, and empties the file.
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
                if response.status >= 500 || response.status == 429 || body.isSignedAnew,
                    attempt < S3Multipart.attempts
                {
                    throw S3Fault(response).error("upload")
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

    /// Ends the sending of a file early.
    func cancel() {
        isGivenUp = true
        body?.cancel()
    }

    private func copy(_ spool: Spool, to body: S3Body) async throws(BucketError) {
        var offset: UInt64 = 0
        while offset < spool.count {
            let place = offset
            let bytes: [UInt8]
            do throws(BucketError) {
                bytes = try await bucket.pool.run { () throws(BucketError) in
                    try spool.read(at: place, limit: S3Multipart.step)
                }
            } catch {
                body.cancel()
                throw error
            }
            do { try await body.writeAll(bytes) } catch {
                // The response says why.
                return
            }
            offset += UInt64(bytes.count)
        }
    }

    /// Copies a range of an object as it is in the service.
    func copy(_ source: HeaderFields, _ range: Range<UInt64>, _ fields: HeaderFields)
        async throws(BucketError)
    {
        try await create(fields)
        var request = ClientRequest("PUT", target(), fields: source, isRepeatable: true)
        request.patience = S3Bucket.patience
        request.fields.append(
            "x-amz-copy-source-range", "bytes=\(range.lowerBound)-\(range.upperBound - 1)")
        var response = try await bucket.call(request)
        if response.status == 200, let tag = S3XML.first("ETag", in: response.body) {
            response.fields = HeaderFields()
            response.fields.append("etag", S3Head.unquoted(tag))
        }
        try add(response, range.upperBound - range.lowerBound)
    }

    /// Begins the upload where it is not begun.
    func create(_ fields: HeaderFields) async throws(BucketError) {
        if id != nil { return }
        if !isOpen {
            isOpen = true
            bucket.cleaning.begin()
        }
        var request = ClientRequest("POST", bucket.target(name, "uploads="), fields: fields)
        // Begun twice, one of them would be left behind; after an internal error that is the lesser evil.
        request.confirmsRepetition = { answer in
            guard let fault = answer.map({ S3Fault($0) }) else { return false }
            return fault.isRefusal || fault.status == 500 && !fault.code.isEmpty
        }
        let response = try await bucket.call(request)
        guard response.status == 200, let id = S3XML.first("UploadId", in: response.body) else {
            let fault = S3Fault(response)
            isForbidden = fault.status == 403 && fault.code == "AccessDenied"
            throw fault.error("upload in parts")
        }
        self.id = id
    }

    private var query: String { "uploadId=\(S3Bucket.encodeQuery(id ?? ""))" }

    private func target() -> String {
        bucket.target(name, "partNumber=\(tags.count + 1)&\(query)")
    }

    private func add(_ response: CollectedResponse, _ length: UInt64) throws(BucketError) {
        guard (200...299).contains(response.status), S3Fault.code(in: response.body) == nil,
            let etag = S3Head(response.fields).etag
        else { throw S3Fault(response).error("upload of a part") }
        tags.append(etag)
        sent += length
        if tags.count == S3Multipart.maximumParts, size == nil || sent < size ?? 0 {
            throw BucketError(.unsupported, "upload: the object is larger than 10,000 parts hold")
        }
    }

    /// Puts the parts together: the object becomes visible.
    /// - Parameter confirm: Whether it may be sent again although it may have been done.
    func complete(
        _ guarding: S3Bucket.Guard, _ confirm: @escaping (CollectedResponse?) async -> Bool
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
        request.patience = S3Bucket.patience
        request.fields.append("content-type", "application/xml")
        guarding.append(to: &request.fields)
        let response: CollectedResponse
        do throws(BucketError) {
            response = try await bucket.call(request)
            isUndecided = false
        } catch {
            // It may still be under way.
            isUndecided = error.code == .timedOut
            throw error
        }
        if S3Multipart.tag(of: response) != nil {
            id = nil
            end()
        }
        return response
    }

    /// The entity tag of what an answer to ``complete(_:_:)`` says is stored; nil where it does not say so.
    static func tag(of response: CollectedResponse) -> String? {
        guard response.status == 200 else { return nil }
        return S3XML.first("ETag", of: "CompleteMultipartUploadResult", in: response.body)
            .map(S3Head.unquoted)
    }

    /// Has the service forget the parts of an object that was not put together, in the background; not where it may
    /// still be at that.
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
        if isOpen { bucket.cleaning.end() }
        isOpen = false
    }
}

/// Waits on the calling loop.
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
