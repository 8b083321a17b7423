import EventLoop
import HTTPClient
import OpenSSL
import Wire

extension S3Bucket {
    public func open(_ name: String, _ plan: ReadPlan) async throws(BucketError) -> any ObjectReader
    {
        let response = try await send(request(name, plan))
        switch response.status {
        case 200, 206: return try reader(name, response)
        case 304, 416:
            // The answer does not describe the object.
            response.body.close()
            return S3Reader(self, try await stat(name), nil, covers: 0..<0)
        default: throw try await fault(response, "read")
        }
    }

    private func request(_ name: String, _ plan: ReadPlan) -> ClientRequest {
        var fields = HeaderFields()
        if let range = plan.range, range != .suffix(0) { fields.append("range", range.field) }
        if case .tags(let tags) = plan.conditions.ifNoneMatch, plan.conditions.ifMatch == nil {
            fields.append("if-none-match", tags.map { "\"\($0)\"" }.joined(separator: ", "))
        }
        return get(name, fields)
    }

    private func reader(_ name: String, _ response: ClientResponse) throws(BucketError) -> S3Reader
    {
        let head = S3Head(response.fields)
        let covered: Range<UInt64>
        let size: UInt64
        // Some services say 200 and give a part.
        if let part = head.part {
            (covered, size) = (part.range, part.size)
        } else if response.status == 200, let length = response.contentLength,
            length <= S3Head.largestSize
        {
            (covered, size) = (0..<length, length)
        } else {
            response.body.close()
            throw BucketError(.unavailable, "read: the service does not say how long it is")
        }
        return S3Reader(
            self, head.metadata(name, size: size, isAWS: isAWS), response, covers: covered)
    }

    /// The bytes of a range of one version of an object.
    fileprivate func bytes(of object: ObjectMetadata, _ range: Range<UInt64>)
        async throws(BucketError) -> ClientResponse
    {
        var fields = HeaderFields()
        fields.append("if-match", "\"\(object.etag)\"")
        if range.upperBound - range.lowerBound < object.size {
            fields.append("range", "bytes=\(range.lowerBound)-\(range.upperBound - 1)")
        }
        let response = try await send(get(object.name, fields))
        let head = S3Head(response.fields)
        switch response.status {
        case 200 where head.part?.range == range && head.etag ?? object.etag == object.etag,
            206 where head.part?.range == range && head.etag ?? object.etag == object.etag:
            return response
        case 200
        where head.part == nil && range == 0..<object.size
            && head.etag ?? object.etag == object.etag
            && response.contentLength == object.size:
            return response
        case 200, 206, 416:
            response.body.close()
            throw BucketError(
                .unavailable, "read: the service does not give the range it was asked for")
        case 404, 412:
            response.body.close()
            throw BucketError(.unavailable, "read: the object was replaced meanwhile")
        default: throw try await fault(response, "read")
        }
    }

    private func get(_ name: String, _ fields: HeaderFields) -> ClientRequest {
        var request = ClientRequest("GET", target(name), fields: fields)
        request.isBulk = true
        askForChecksum(&request.fields)
        return request
    }

    /// The error of a response that is none of those that were expected.
    private func fault(_ response: ClientResponse, _ what: String) async throws(BucketError)
        -> BucketError
    {
        let body: [UInt8]
        do throws(ClientError) {
            body = try await response.collect(limit: 1 << 16)
        } catch {
            // The status says enough.
            body = []
        }
        let fault = S3Fault(
            CollectedResponse(status: response.status, fields: response.fields, body: body))
        if fault.status == 404, fault.code != "NoSuchBucket" { return BucketError(.objectNotFound) }
        return fault.error(what)
    }
}

/// An object that was opened: the head of the answer is there, its body waits.
private final class S3Reader: ObjectReader {
    let metadata: ObjectMetadata
    private let bucket: S3Bucket
    private let covered: Range<UInt64>
    /// nil where it was taken, or there never was one that holds bytes.
    private var response: ClientResponse?

    init(
        _ bucket: S3Bucket, _ metadata: ObjectMetadata, _ response: ClientResponse?,
        covers covered: Range<UInt64>
    ) {
        self.bucket = bucket
        self.metadata = metadata
        self.response = response
        self.covered = covered
    }

    deinit { close() }

    func bytes(_ range: Range<UInt64>) async throws(BucketError) -> any ByteSource {
        guard range.upperBound <= metadata.size else {
            throw BucketError(.internal, "bytes of \(range) of \(metadata.size)")
        }
        let response: ClientResponse
        if let first = self.response, range == covered {
            self.response = nil
            response = first
        } else {
            close()
            if range.isEmpty { return NoBytes() }
            response = try await bucket.bytes(of: metadata, range)
        }
        let isWhole = range == 0..<metadata.size
        let length = range.upperBound - range.lowerBound
        guard isWhole && metadata.crc32c != nil || response.contentLength != length
        else {
            return response.body
        }
        return S3Download(
            response.body, length: length, crc32c: isWhole ? metadata.crc32c : nil)
    }

    func close() {
        response?.body.close()
        response = nil
    }
}

/// A body of no bytes.
private final class NoBytes: ByteSource {
    func read(into buffer: inout MutableRawSpan) -> SourceRead { .end }
    func whenReadable(_ resume: @escaping () -> Void) { resume() }
    func close() {}
}

/// A body whose length, and checksum where it is known, are verified before its end is told.
private final class S3Download: ByteSource {
    private let body: any ByteSource
    private var rest: UInt64
    private var crc32c = CRC32C()
    private let wanted: UInt32?

    init(_ body: any ByteSource, length: UInt64, crc32c: UInt32?) {
        self.body = body
        rest = length
        wanted = crc32c
    }

    func read(into buffer: inout MutableRawSpan) throws -> SourceRead {
        let outcome = try body.read(into: &buffer)
        switch outcome {
        case .bytes(let count):
            guard UInt64(count) <= rest else {
                throw BucketError(.unavailable, "read: more bytes come than were announced")
            }
            rest -= UInt64(count)
            if let wanted {
                crc32c.update(buffer.bytes.extracting(first: count))
                // Before the last bytes are passed on: whoever gets them all believes them.
                if rest == 0, crc32c.value != wanted {
                    throw BucketError(.unavailable, "read: the bytes do not have their checksum")
                }
            }
        case .end where rest > 0:
            throw BucketError(.unavailable, "read: fewer bytes come than were announced")
        case .end, .wait: break
        }
        return outcome
    }

    func whenReadable(_ resume: @escaping () -> Void) { body.whenReadable(resume) }

    func close() { body.close() }
}
