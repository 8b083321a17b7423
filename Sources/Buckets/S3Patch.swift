import HTTPClient
import Wire

extension S3Bucket {
    /// Copies the object onto itself with other properties: the service has no other way to change them.
    ///
    /// The bytes are compared by the service, the properties are not: of two patches at once, the later may undo the
    /// earlier one.
    public func patch(_ name: String, _ patch: AttributePatch, _ preconditions: Preconditions)
        async throws(BucketError) -> ObjectMetadata
    {
        let (existing, stored) = try await head(name)
        guard preconditions.evaluate(existing, reading: false) == nil else {
            throw BucketError(.preconditionFailed)
        }
        var guarding = Guard()
        if try await decidesConditions() { guarding.match = existing.etag }
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
                existing.size > settings.singleLimit
                ? try await copyInParts(existing, fields, source, guarding)
                : try await copy(existing, fields, source, guarding)
            if response.status == 200, let etag = S3Bucket.copiedTag(response) {
                return new.tagged(etag)
            }
            let fault = S3Fault(response)
            if fault.code == "NoSuchKey" { throw BucketError(.objectNotFound) }
            failure = fault.error("patch")
        } catch {
            if error.code == .objectNotFound { throw error }
            failure = error
        }
        // The answer may be missing, or be that of a repetition.
        if let found = try? await find(name), found.generation == new.generation,
            found.metageneration == new.metageneration, found.updated == new.updated
        {
            return found
        }
        throw failure
    }

    private func copy(
        _ object: ObjectMetadata, _ fields: HeaderFields, _ source: HeaderFields, _ guarding: Guard
    ) async throws(BucketError) -> CollectedResponse {
        var request = ClientRequest("PUT", target(object.name), fields: fields)
        request.confirmsRepetition = confirmation(unchanged: object)
        request.patience = S3Bucket.patience
        request.fields.append("x-amz-metadata-directive", "REPLACE")
        for name: StaticString in ["x-amz-copy-source", "x-amz-copy-source-if-match"] {
            if let value = source[name] { request.fields.append(name, value) }
        }
        guarding.append(to: &request.fields)
        return try await call(request)
    }

    private func copyInParts(
        _ object: ObjectMetadata, _ fields: HeaderFields, _ source: HeaderFields, _ guarding: Guard
    ) async throws(BucketError) -> CollectedResponse {
        let parts = S3Multipart(self, object.name, size: object.size)
        do throws(BucketError) {
            var start: UInt64 = 0
            while start < object.size {
                let end = min(start + max(parts.nextLength, settings.singleLimit), object.size)
                try await parts.copy(source, start..<end, fields)
                start = end
            }
            let response = try await parts.complete(guarding, confirmation(unchanged: object))
            parts.abort()
            return response
        } catch {
            parts.abort()
            throw error
        }
    }

    /// Whether a change of an object may be sent again: where the service has refused it, or the object is still the one
    /// that was to be changed.
    func confirmation(unchanged object: ObjectMetadata) -> (CollectedResponse?) async -> Bool {
        { [self] answer in
            if let answer, S3Fault(answer).isRefusal { return true }
            return (try? await stat(object.name))?.isSame(as: object) ?? false
        }
    }

    /// The entity tag of what an answer says was made by a copy; nil where it does not say so.
    private static func copiedTag(_ response: CollectedResponse) -> String? {
        (S3XML.first("ETag", of: "CopyObjectResult", in: response.body)
            ?? S3XML.first("ETag", of: "CompleteMultipartUploadResult", in: response.body))
            .map(S3Head.unquoted)
    }

    private func copySource(_ name: String) -> String {
        "/\(settings.bucket)/\(PercentEncoding.encodePath(name))"
    }

    /// What a copy would lose: fields of the answer about an object that are sent again as they are.
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
    /// Whether neither its bytes nor its properties were changed.
    func isSame(as other: ObjectMetadata) -> Bool {
        (generation, metageneration, updated, etag)
            == (other.generation, other.metageneration, other.updated, other.etag)
    }

    /// The same object with the entity tag that a copy has.
    fileprivate func tagged(_ etag: String) -> ObjectMetadata {
        ObjectMetadata(
            name: name, generation: generation, metageneration: metageneration, size: size,
            created: created, updated: updated, md5: md5, crc32c: crc32c, etag: etag,
            attributes: attributes)
    }
}
