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
        let failure: BucketError
        do throws(BucketError) {
            let response = try await copy(existing, to: name, fields, condition, confirmation(unchanged: existing))
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

    /// Copies an object's bytes, if its entity tag is still the same, with new properties: by one request, or in parts
    /// if it is larger than ``Settings/singleLimit``.
    /// - Parameter confirm: Whether the last request may be repeated although it may have succeeded.
    private func copy(
        _ object: ObjectMetadata, to name: String, _ fields: HeaderFields, _ condition: WriteCondition,
        _ confirm: @escaping (CollectedResponse?) async -> Bool
    ) async throws(BucketError) -> CollectedResponse {
        let source = copySource(object.name)
        let match = "\"\(object.etag)\""
        if object.size <= settings.singleLimit {
            let request = ClientRequest("PUT", target(name), fields: fields)
            request.confirmsRepetition = confirm
            request.waitLimit = S3Bucket.silenceLimit
            request.fields.append("x-amz-metadata-directive", "REPLACE")
            request.fields.append("x-amz-copy-source", source)
            request.fields.append("x-amz-copy-source-if-match", match)
            condition.append(to: &request.fields)
            return try await call(request)
        }
        var sourceFields = HeaderFields()
        sourceFields.append("x-amz-copy-source", source)
        sourceFields.append("x-amz-copy-source-if-match", match)
        let parts = S3Multipart(self, name, size: object.size)
        do throws(BucketError) {
            var start: UInt64 = 0
            while start < object.size {
                let end = min(start + max(parts.nextLength, settings.singleLimit), object.size)
                try await parts.copy(sourceFields, start..<end, fields)
                start = end
            }
            let response = try await parts.complete(condition, confirm)
            parts.abort()
            return response
        } catch {
            parts.abort()
            throw error
        }
    }

    // MARK: Copies

    public func copy(to name: String, _ plan: CopyPlan) async throws(BucketError) -> CommitResult {
        let source = plan.source
        let attributes = plan.attributes(keepsTag: false)
        let condition = try await writeCondition(name, plan.preconditions)
        let replaced: Bool =
            switch (condition.replaces, plan.existing) {
            case (let known?, _): known
            case (nil, .absent): false
            case (nil, .object): true
            case (nil, .unknown): (try? await find(name)) ?? nil != nil
            }
        let generation = newGeneration()
        var fields = HeaderFields(reserving: 512)
        S3Fields.append(attributes, to: &fields)
        S3Fields.append(
            generation: generation, metageneration: 1, updated: generation / 1000, md5: source.md5,
            crc32c: source.crc32c, to: &fields)
        let failure: BucketError
        do throws(BucketError) {
            let response = try await copy(
                source, to: name, fields, condition, confirmation(name, generation, condition))
            if response.status == 200, let etag = S3Bucket.copiedTag(response) {
                let object = ObjectMetadata(
                    name: name, generation: generation, metageneration: 1, size: source.size,
                    created: generation / 1000, updated: generation / 1000, md5: source.md5, crc32c: source.crc32c,
                    etag: etag, attributes: attributes)
                return CommitResult(metadata: object, replaced: replaced)
            }
            let refused = S3ErrorResponse(response)
            if refused.code == "NoSuchKey" { throw BucketError(.objectNotFound) }
            failure = refused.error("copy")
        } catch {
            if error.code == .objectNotFound { throw error }
            failure = error
        }
        // The response is missing, or a repeated request's.
        if let found = try? await find(name), found.generation == generation {
            return CommitResult(metadata: found, replaced: replaced)
        }
        throw failure
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
