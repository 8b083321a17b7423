import HTTPClient
import OpenSSL
import Wire
import XML

extension S3Bucket: PartReadingDriver {
    public func partRange(_ number: Int, of object: ObjectMetadata) async throws(BucketError) -> Range<UInt64>? {
        let request = ClientRequest("HEAD", target(object.name, "partNumber=\(number)"))
        request.fields.append("if-match", "\"\(object.etag)\"")
        let response = try await send(request)
        response.body.close()
        switch response.status {
        case 200, 206:
            let head = S3Head(response.fields)
            // moto responds with the tag of the part, and without its range.
            guard let part = head.part, part.size == object.size, head.etag == object.etag else { return nil }
            return part.range
        case 412 where try await stat(object.name).etag == object.etag:
            // moto compares the tag of the part.
            return nil
        case 404, 412: throw BucketError(.unavailable, "the object was replaced while its part was looked up")
        case 400, 416: return nil
        default:
            let failure = CollectedResponse(status: response.status, fields: response.fields, body: [])
            throw S3ErrorResponse(failure).error("stat of a part")
        }
    }
}

extension S3Bucket {
    /// Whether requests to this bucket can name objects of the other one: both are of the same service, and are used with
    /// the same credentials.
    private func sharesService(with other: S3Bucket) -> Bool {
        (settings.endpoint, settings.region, settings.credentials)
            == (other.settings.endpoint, other.settings.region, other.settings.credentials)
    }

    /// Whether the service copies the requested bytes to a part, and reports their md5 as its tag like that of other
    /// parts. SeaweedFS copies them, but parts of other bytes can have the same tag. Tested once, with a temporary object.
    private func copiesParts() async throws(BucketError) -> Bool {
        if let known = partCopies.withLock({ $0 }) { return known }
        guard try await capabilities().copies else { return false }
        if isAWS { return true }
        let name = S3Bucket.probeName()
        let bytes = Array("probe".utf8)
        let made = try await call(ClientRequest("PUT", target(name), body: .bytes(bytes), isRepeatable: true))
        // Don't cache: permissions can change.
        guard (200...299).contains(made.status) else { return false }
        let begun = try await call(ClientRequest("POST", target(name, "uploads=")))
        var found: Bool?
        if let upload = S3Multipart.id(of: begun, name) {
            let query = "uploadId=\(PercentEncoding.encodeSegment(upload))"
            let request = ClientRequest("PUT", target(name, "partNumber=1&\(query)"), isRepeatable: true)
            request.fields.append("x-amz-copy-source", copySource(name))
            request.fields.append("x-amz-copy-source-range", "bytes=1-2")
            let copied = try await call(request)
            let md5 = Digest(.md5)
            md5.update(Array("ro".utf8).span.bytes)
            found = S3Bucket.copiedPartTag(copied) == Hexadecimal.encode(md5.finish())
            _ = try await call(ClientRequest("DELETE", target(name, query), isRepeatable: true))
        }
        _ = try await call(ClientRequest("DELETE", target(name), isRepeatable: true))
        if let found { partCopies.withLock { $0 = found } }
        return found ?? false
    }

    /// The entity tag in the response to a copy of a part; nil if there is none.
    private static func copiedPartTag(_ response: CollectedResponse) -> String? {
        guard response.status == 200 else { return nil }
        return XMLReader.first("ETag", of: "CopyPartResult", in: response.body).map(S3Head.unquoted)
    }

    /// Copies by `UploadPartCopy`, if the service can be trusted with it. If it rejects the request, the part's bytes are
    /// sent.
    func copyPart(_ part: CloudPartAddress, _ source: PartSource) async throws(CloudPartFailure) -> String? {
        guard let bucket = source.bucket as? S3Bucket, bucket === self || sharesService(with: bucket),
            !source.range.isEmpty
        else { return nil }
        let response: CollectedResponse
        do throws(BucketError) {
            guard try await copiesParts() else { return nil }
            let request = ClientRequest("PUT", target(part), isRepeatable: true)
            request.waitLimit = S3Bucket.silenceLimit
            request.fields.append("x-amz-copy-source", bucket.copySource(source.object.name))
            request.fields.append("x-amz-copy-source-if-match", "\"\(source.object.etag)\"")
            if source.range != 0..<source.object.size {
                let (first, last) = (source.range.lowerBound, source.range.upperBound - 1)
                request.fields.append("x-amz-copy-source-range", "bytes=\(first)-\(last)")
            }
            response = try await call(request)
        } catch {
            throw .store(error)
        }
        try checkUpload(response)
        switch response.status {
        case 200 where S3ErrorResponse.code(in: response.body) == nil: return S3Bucket.copiedPartTag(response)
        case 400, 403, 405, 501: return nil
        case 404: throw .store(BucketError(.objectNotFound))
        case 412: throw .store(BucketError(.preconditionFailed))
        default: throw .store(S3ErrorResponse(response).error("copy to a part"))
        }
    }
}
