import HTTPClient
import Wire
import XML

extension S3Bucket {
    /// Copies the object onto itself with new properties: the service has no other way to change them. It compares the
    /// bytes but not the properties, so the later of two concurrent patches may undo the earlier one. The result is
    /// always what ``AttributePatch/applied(to:)`` computes from the object that the preconditions were checked
    /// against.
    public func patch(_ name: String, _ patch: AttributePatch, _ preconditions: Preconditions)
        async throws(BucketError) -> ObjectMetadata
    {
        let (existing, stored) = try await head(name)
        guard preconditions.evaluate(existing, reading: false) == nil else {
            throw BucketError(.preconditionFailed)
        }
        var condition = WriteCondition()
        let isInParts = existing.size > settings.singleLimit
        if isInParts || changes.withLock({ $0?.copies }) ?? true, try await decidesConditions() {
            condition.match = existing.etag
        }
        let new = existing.patched(patch, now: now())
        var fields = HeaderFields(reserving: 512)
        S3Fields.append(new.attributes, to: &fields)
        S3Fields.append(
            generation: new.generation, metageneration: new.metageneration, updated: new.updated,
            md5: new.md5, crc32c: new.crc32c, to: &fields)
        S3Bucket.keep(stored, in: &fields)
        var source = HeaderFields()
        source.append("x-amz-copy-source", copySource(name))
        source.append("x-amz-copy-source-if-match", "\"\(existing.etag)\"")
        let failure: BucketError
        do throws(BucketError) {
            let response =
                isInParts
                ? try await copyInParts(existing, fields, source, condition)
                : try await copy(existing, fields, source, condition)
            if response.status == 200, let etag = S3Bucket.copiedTag(response) {
                return new.with(md5: new.md5, etag: etag)
            }
            let refused = S3ErrorResponse(response)
            if refused.code == "NoSuchKey" { throw BucketError(.objectNotFound) }
            failure = refused.error("patch")
        } catch {
            if error.code == .objectNotFound { throw error }
            failure = error
        }
        // The response is missing, or a repeated request's.
        if let found = try? await find(name), found.generation == new.generation,
            found.metageneration == new.metageneration, found.updated == new.updated
        {
            return found
        }
        throw failure
    }

    private func copy(
        _ object: ObjectMetadata, _ fields: HeaderFields, _ source: HeaderFields, _ condition: WriteCondition
    ) async throws(BucketError) -> CollectedResponse {
        let request = ClientRequest("PUT", target(object.name), fields: fields)
        request.confirmsRepetition = confirmation(unchanged: object)
        request.waitLimit = S3Bucket.silenceLimit
        request.fields.append("x-amz-metadata-directive", "REPLACE")
        for name: StaticString in ["x-amz-copy-source", "x-amz-copy-source-if-match"] {
            if let value = source[name] { request.fields.append(name, value) }
        }
        condition.append(to: &request.fields)
        return try await call(request)
    }

    private func copyInParts(
        _ object: ObjectMetadata, _ fields: HeaderFields, _ source: HeaderFields, _ condition: WriteCondition
    ) async throws(BucketError) -> CollectedResponse {
        let parts = S3Multipart(self, object.name, size: object.size)
        do throws(BucketError) {
            var start: UInt64 = 0
            while start < object.size {
                let end = min(start + max(parts.nextLength, settings.singleLimit), object.size)
                try await parts.copy(source, start..<end, fields)
                start = end
            }
            let response = try await parts.complete(condition, confirmation(unchanged: object))
            parts.abort()
            return response
        } catch {
            parts.abort()
            throw error
        }
    }

    /// Whether a change may be repeated: the service rejected it, or the object is unchanged.
    func confirmation(unchanged object: ObjectMetadata) -> (CollectedResponse?) async -> Bool {
        { [self] response in
            if let response, S3ErrorResponse(response).isRejection { return true }
            return (try? await stat(object.name))?.isSame(as: object) ?? false
        }
    }

    /// The entity tag in the response to a copy; nil if there is none.
    static func copiedTag(_ response: CollectedResponse) -> String? {
        (XMLReader.first("ETag", of: "CopyObjectResult", in: response.body)
            ?? XMLReader.first("ETag", of: "CompleteMultipartUploadResult", in: response.body)).map(S3Head.unquoted)
    }

    func copySource(_ name: String) -> String {
        "/\(settings.bucket)/\(PercentEncoding.encodePath(name))"
    }

    /// Keeps properties that a copy would lose, by sending fields of the object's response unchanged.
    private static func keep(_ stored: HeaderFields, in fields: inout HeaderFields) {
        for name: StaticString in [
            "expires", "x-amz-storage-class", "x-amz-website-redirect-location",
        ] {
            if let value = stored[name] { fields.append(name, value) }
        }
        if let algorithm = stored["x-amz-server-side-encryption"], algorithm != "AES256" {
            fields.append("x-amz-server-side-encryption", algorithm)
            for name: StaticString in [
                "x-amz-server-side-encryption-aws-kms-key-id",
                "x-amz-server-side-encryption-bucket-key-enabled",
            ] {
                if let value = stored[name] { fields.append(name, value) }
            }
        }
    }
}

extension ObjectMetadata {
    /// Whether neither the bytes nor the properties differ.
    func isSame(as other: ObjectMetadata) -> Bool {
        (generation, metageneration, updated, etag)
            == (other.generation, other.metageneration, other.updated, other.etag)
    }

    func with(md5: [UInt8]?, etag: String) -> ObjectMetadata {
        ObjectMetadata(
            name: name, generation: generation, metageneration: metageneration, size: size, created: created,
            updated: updated, md5: md5, crc32c: crc32c, etag: etag, attributes: attributes)
    }
}
