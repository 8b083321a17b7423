import HTTPClient
import OpenSSL
import System
import Wire

extension S3Bucket {
    public func open(_ name: String, _ plan: ReadPlan) async throws(BucketError) -> any ObjectReader {
        let response = try await send(request(name, plan))
        switch response.status {
        case 206 where plan.part != nil && response.fields["content-range"].flatMap({ ContentRange($0) }) == nil:
            // moto says "bytes 0--1/0" of an empty object.
            response.body.close()
            return try await open(name, ReadPlan(conditions: plan.conditions))
        case 200, 206: return try reader(name, response, part: plan.part)
        case 304, 416:
            // This response does not describe the object.
            response.body.close()
            return S3Reader(self, try await stat(name), nil, covers: 0..<0)
        default: throw await failure(response, "read")
        }
    }

    private func request(_ name: String, _ plan: ReadPlan) -> ClientRequest {
        var fields = HeaderFields()
        if let range = plan.range, range != .suffix(0) { fields.append("range", range.field) }
        if case .tags(let tags) = plan.conditions.ifNoneMatch, plan.conditions.ifMatch == nil {
            fields.append("if-none-match", tags.map { "\"\($0)\"" }.joined(separator: ", "))
        }
        return get(name, fields, query: plan.part.map { "partNumber=\($0)" } ?? "")
    }

    /// - Parameter part: The requested part.
    private func reader(_ name: String, _ response: ClientResponse, part: Int?) throws(BucketError) -> S3Reader {
        let tagsAreMD5 = tagsAreMD5.load(ordering: .relaxed)
        if response.status == 200,
            let object = heads.object(name, response, tagsAreMD5: tagsAreMD5)
        {
            return S3Reader(self, object, response, covers: 0..<object.size)
        }
        let head = S3Head(response.fields)
        let covered: Range<UInt64>
        let size: UInt64
        // Some services send a part with status 200.
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
        do throws(BucketError) { try checkTag(head, "read") } catch {
            response.body.close()
            throw error
        }
        // Without an entity tag a further request can't be pinned to the same bytes.
        let isPinned = head.etag != nil
        let isWhole = response.status == 200 && head.part == nil
        var object = metadata(head, name, size: size)
        do throws(BucketError) { try checkEmpty(object, "read") } catch {
            response.body.close()
            throw error
        }
        if let part, !isWhole { object = object.with(part: part, covered) }
        if isPinned, isWhole { heads.keep(object, response, tagsAreMD5: tagsAreMD5) }
        return S3Reader(self, object, response, covers: covered, isPinned: isPinned)
    }

    /// Requests a range of one version of an object, with at most `attempts` attempts.
    fileprivate func bytes(of object: ObjectMetadata, _ range: Range<UInt64>, attempts: Int = .max)
        async throws(ResumingSource.Fault) -> ClientResponse
    {
        var fields = HeaderFields()
        fields.append("if-match", "\"\(object.etag)\"")
        if range.upperBound - range.lowerBound < object.size {
            fields.append("range", "bytes=\(range.lowerBound)-\(range.upperBound - 1)")
        }
        let request = get(object.name, fields)
        request.attempts = attempts
        let response: ClientResponse
        do throws(BucketError) {
            response = try await send(request)
        } catch {
            throw ResumingSource.Fault(cause: error, isTemporary: true)
        }
        let head = S3Head(response.fields)
        let isSame = head.etag ?? object.etag == object.etag
        switch response.status {
        case 200 where head.part?.range == range && isSame, 206 where head.part?.range == range && isSame:
            return response
        case 200
        where head.part == nil && range == 0..<object.size && isSame
            && response.contentLength == object.size:
            return response
        case 200, 206, 416:
            response.body.close()
            throw ResumingSource.Fault(
                cause: BucketError(.unavailable, "read: the service does not give the range it was asked for"),
                isTemporary: false)
        case 404, 412:
            response.body.close()
            throw ResumingSource.Fault(
                cause: BucketError(.replaced, "read: the object was replaced meanwhile"), isTemporary: false)
        default:
            let isTemporary = response.status >= 500 || [408, 429].contains(response.status)
            throw ResumingSource.Fault(cause: await failure(response, "read"), isTemporary: isTemporary)
        }
    }

    private func get(_ name: String, _ fields: HeaderFields, query: String = "") -> ClientRequest {
        var fields = fields
        askForChecksum(&fields)
        return ClientRequest("GET", target(name, query), fields: fields, isBulk: true)
    }

    /// Reads an object back, and returns whether it has the sent bytes, and its entity tag.
    /// - Parameter generation: The upload's generation, which the object must have; nil if the service has none.
    /// - Throws: ``BucketError`` if it can't be read or was replaced.
    func readBack(_ name: String, _ generation: Int64?, _ facts: ContentFacts)
        async throws(BucketError) -> (isSame: Bool, etag: String?)
    {
        let response = try await send(get(name, HeaderFields()))
        guard response.status == 200 else { throw await failure(response, "read") }
        let head = S3Head(response.fields)
        guard generation == nil || head.generation == generation else {
            response.body.close()
            throw BucketError(.unavailable, "read: the object was replaced meanwhile")
        }
        var crc32c = CRC32C()
        var count: UInt64 = 0
        try await response.body.readAll { bytes throws(BucketError) in
            crc32c.update(bytes)
            count += UInt64(bytes.byteCount)
        }
        return (count == facts.size && crc32c.value == facts.crc32c, head.etag)
    }

    private func failure(_ response: ClientResponse, _ what: String) async -> BucketError {
        let body: [UInt8]
        do throws(ClientError) {
            body = try await response.collect(limit: 1 << 16)
        } catch {
            // The status is sufficient.
            body = []
        }
        let error = S3ErrorResponse(CollectedResponse(status: response.status, fields: response.fields, body: body))
        if error.status == 404, error.code != "NoSuchBucket" { return BucketError(.objectNotFound) }
        return error.error(what)
    }
}

extension S3Bucket: PinnedReads {
    public func reader(of object: ObjectMetadata) -> (any ObjectReader)? {
        S3Head.isSubstitute(object.etag, size: object.size) ? nil : S3Reader(self, object, nil, covers: 0..<0)
    }
}

/// An opened object: the response header has arrived, and its body has not been read.
private final class S3Reader: ObjectReader {
    let metadata: ObjectMetadata
    private let bucket: S3Bucket
    private let covered: Range<UInt64>
    /// Whether further requests can be pinned to the same bytes.
    private let isPinned: Bool
    /// nil after its body was handed out, or without a body.
    private var response: ClientResponse?

    init(
        _ bucket: S3Bucket, _ metadata: ObjectMetadata, _ response: ClientResponse?,
        covers covered: Range<UInt64>, isPinned: Bool = true
    ) {
        self.bucket = bucket
        self.metadata = metadata
        self.response = response
        self.covered = covered
        self.isPinned = isPinned
    }

    deinit { close() }

    func readyBytes(_ range: Range<UInt64>) throws(BucketError) -> (any ByteSource)? {
        guard range == covered, range.upperBound <= metadata.size else { return nil }
        let count = range.upperBound - range.lowerBound
        if count > ResumingSource.verifiedAhead { return response.take().map { source($0, range) } }
        guard var first = response,
            let body = try ResumingSource.arrived(count, of: &first, crc32c: checksum(of: range))
        else { return nil }
        response = nil
        return body
    }

    func bytes(_ range: Range<UInt64>) async throws(BucketError) -> any ByteSource {
        guard range.upperBound <= metadata.size else {
            throw BucketError(.internal, "bytes of \(range) of \(metadata.size)")
        }
        if let ready = try readyBytes(range) { return ready }
        var response: ClientResponse
        if let first = self.response, range == covered {
            self.response = nil
            response = first
        } else {
            close()
            if range.isEmpty { return EmptySource.shared }
            do throws(ResumingSource.Fault) {
                response = try await bucket.bytes(of: metadata, range)
            } catch {
                throw error.cause
            }
        }
        let count = range.upperBound - range.lowerBound
        guard count <= ResumingSource.verifiedAhead else { return source(response, range) }
        let expected = checksum(of: range)
        if let body = try ResumingSource.arrived(count, of: &response, crc32c: expected) {
            return body
        }
        return BytesSource(try await source(response, range).collect(Int(count)))
    }

    /// nil if unknown.
    private func checksum(of range: Range<UInt64>) -> UInt32? {
        range == 0..<metadata.size ? metadata.crc32c : nil
    }

    /// The bytes of a response, continued by further requests if it breaks off.
    private func source(_ response: ClientResponse, _ range: Range<UInt64>) -> ResumingSource {
        ResumingSource(
            response.body, range, crc32c: checksum(of: range), bucket.upstream
        ) { [bucket, metadata, isPinned] (rest) throws(ResumingSource.Fault) in
            guard isPinned else {
                throw ResumingSource.Fault(
                    cause: BucketError(.unavailable, "read: the object broke off, and has no entity tag"),
                    isTemporary: false)
            }
            return try await bucket.bytes(of: metadata, rest, attempts: 1).body
        }
    }

    func close() {
        response?.body.close()
        response = nil
    }
}

extension ByteSource {
    /// Reads to the end and closes, yielding to the loop's other work at intervals. Throws if the bytes break off.
    fileprivate func readAll(_ take: (RawSpan) throws(BucketError) -> Void)
        async throws(BucketError)
    {
        defer { close() }
        var buffer = [UInt8](repeating: 0, count: 32 * 1024)
        var sinceYield = 0
        while true {
            if Task.isCancelled {
                throw BucketError(.unavailable, "read: the reader is gone")
            }
            guard let count = try await next(into: &buffer) else { return }
            try take(buffer.span.bytes.extracting(first: count))
            sinceYield += count
            if sinceYield >= 1 << 20 {
                sinceYield = 0
                await Task.yield()
            }
        }
    }

    /// Reads at most `limit` bytes into one buffer of this size and closes.
    /// - Throws: ``BucketError`` if the bytes break off, there are more, or the task is cancelled.
    func collect(_ limit: Int) async throws(BucketError) -> [UInt8] {
        defer { close() }
        // The last byte stays unused, so that the source can report its end.
        var bytes = [UInt8](repeating: 0, count: limit + 1)
        var count = 0
        while true {
            switch try readOnce(into: &bytes, from: count) {
            case .bytes(let more): count += more
            case .wait:
                await becomeReadable()
                if Task.isCancelled {
                    throw BucketError(.unavailable, "read: the reader is gone")
                }
            case .end:
                bytes.removeLast(bytes.count - count)
                return bytes
            }
            if count > limit { throw BucketError(.internal, "read: more than \(limit) bytes") }
        }
    }

    /// Waits for the next bytes. Returns the number of bytes in the buffer; nil at the end.
    func next(into buffer: inout [UInt8]) async throws(BucketError) -> Int? {
        while true {
            switch try readOnce(into: &buffer, from: 0) {
            case .end: return nil
            case .bytes(let count): return count
            case .wait: await becomeReadable()
            }
        }
    }

    private func becomeReadable() async {
        await withCheckedContinuation { waiter in whenReadable { waiter.resume() } }
    }

    private func readOnce(into buffer: inout [UInt8], from start: Int) throws(BucketError)
        -> SourceRead
    {
        do {
            return try buffer.withUnsafeMutableBytes { bytes in
                var rest = UnsafeMutableRawBufferPointer(rebasing: bytes[start...]).mutableBytes
                return try read(into: &rest)
            }
        } catch let error as ClientError {
            throw BucketError(error)
        } catch {
            throw error as? BucketError ?? BucketError(.unavailable, "read: \(error)")
        }
    }
}
