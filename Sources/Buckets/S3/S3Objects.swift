import HTTPClient
import OpenSSL
import Synchronization
import Wire

extension S3Bucket {
    public func stat(_ name: String) async throws(BucketError) -> ObjectMetadata {
        try await head(name).metadata
    }

    /// The object's metadata and the fields it was read from.
    func head(_ name: String) async throws(BucketError) -> (
        metadata: ObjectMetadata, fields: HeaderFields
    ) {
        let request = ClientRequest("HEAD", target(name))
        askForChecksum(&request.fields)
        let response = try await send(request)
        response.body.close()
        switch response.status {
        case 200:
            let head = S3Head(response.fields)
            guard let size = head.contentLength else {
                throw BucketError(.unavailable, "stat: the service does not say how long it is")
            }
            try checkTag(head, "stat")
            let object = metadata(head, name, size: size)
            try checkEmpty(object, "stat")
            return (object, response.fields)
        case 404: throw BucketError(.objectNotFound)
        default:
            throw S3ErrorResponse(CollectedResponse(status: response.status, fields: response.fields, body: [])).error(
                "stat")
        }
    }

    /// Verifies the checksum of an empty object, whose bytes are never read.
    func checkEmpty(_ object: ObjectMetadata, _ what: String) throws(BucketError) {
        if object.size == 0, let crc32c = object.crc32c, crc32c != CRC32C().value {
            throw BucketError(.unavailable, "\(what): the service says that the object is empty")
        }
    }

    func metadata(_ head: consuming S3Head, _ name: String, size: UInt64) -> ObjectMetadata {
        head.metadata(name, size: size, isAWS: isAWS, tagsAreMD5: tagsAreMD5.load(ordering: .relaxed))
    }

    /// The md5 in an entity tag, if this service's tags are md5s.
    func taggedMD5(_ head: borrowing S3Head) -> [UInt8]? {
        tagsAreMD5.load(ordering: .relaxed) ? head.taggedMD5(isAWS: isAWS) : nil
    }

    /// Rejects a response without an entity tag. Unsigned requests accept it, because a plain file server may send it.
    func checkTag(_ head: borrowing S3Head, _ what: String) throws(BucketError) {
        if isSigned, head.etag == nil {
            throw BucketError(.unavailable, "\(what): the response has no entity tag")
        }
    }

    /// Requests the stored checksum. Unsigned requests stay unchanged for plain file servers.
    func askForChecksum(_ fields: inout HeaderFields) {
        if isSigned { fields.append("x-amz-checksum-mode", "ENABLED") }
    }

    public func delete(_ name: String, _ preconditions: Preconditions) async throws(BucketError) {
        let existing = try await stat(name)
        guard preconditions.evaluate(existing, reading: false) == nil else {
            throw BucketError(.preconditionFailed)
        }
        let request = ClientRequest("DELETE", target(name))
        request.confirmsRepetition = confirmation(unchanged: existing)
        if !preconditions.isEmpty, changes.withLock({ $0?.deletions }) ?? true,
            try await decidesConditions()
        {
            request.fields.append("if-match", "\"\(existing.etag)\"")
        }
        let failure: BucketError
        var isAbsent = false
        do throws(BucketError) {
            let response = try await call(request)
            if response.status == 204 || response.status == 200 && response.body.isEmpty { return }
            // A response with a body may be an error, or from another server. Look at the object to find out.
            isAbsent = response.status == 404
            failure = S3ErrorResponse(response).error("delete")
        } catch {
            failure = error
        }
        // The response is missing, or a repeated request's. Look whether the object is gone.
        let found = try? await state(name)
        if let found, found.object == nil {
            if isAbsent { throw BucketError(.objectNotFound) }
            return
        }
        if let found, failure.isRetryable, found.object?.isSame(as: existing) == false { return }
        throw failure
    }
}
