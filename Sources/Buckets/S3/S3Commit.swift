import HTTPClient
import Wire

/// The request that makes an upload visible, and how its result is determined if the response is missing.
extension S3Upload {
    func store(_ facts: ContentFacts, _ preconditions: Preconditions)
        async throws(BucketError) -> CommitResult
    {
        if case .single(let body, let begun, let generation) = mode {
            if preconditions != plan.preconditions,
                try await bucket.writeCondition(name, preconditions) != begun
            {
                throw BucketError(
                    .preconditionFailed, "the upload was begun with other preconditions")
            }
            let replaced = await replaces(begun)
            let tail = held
            var result = try await settled(generation, facts, md5: plan.md5, crc32c: plan.crc32c) {
                () async throws(BucketError) in
                do { try await body.writeAll(tail) } catch {
                    // The response has the cause.
                }
                return try await body.response()
            }
            result.replaced = replaced
            return result
        }
        let condition = try await bucket.writeCondition(name, preconditions)
        let replaced = await replaces(condition)
        var result: CommitResult
        if let generation = multipart.generation {
            let multipart = multipart
            result = try await settledAgain(
                condition, generation, facts, md5: plan.md5, crc32c: plan.crc32c
            ) { (condition) async throws(BucketError) in
                try await multipart.complete(
                    condition, bucket.confirmation(name, generation, condition))
            }
        } else {
            let generation = newGeneration()
            let fields = objectFields(generation, md5: facts.md5, crc32c: facts.crc32c)
            result = try await settledAgain(
                condition, generation, facts, md5: facts.md5, crc32c: facts.crc32c
            ) { (condition) async throws(BucketError) in
                let request = ClientRequest(
                    "PUT", bucket.target(name), fields: fields, body: .bytes(held))
                condition.append(to: &request.fields)
                request.confirmsRepetition = bucket.confirmation(name, generation, condition)
                return try await bucket.call(request)
            }
        }
        result.replaced = replaced
        return result
    }

    /// Whether the commit replaces an object. Looked up before the commit, so that the upload itself is not found. If
    /// unknown, the object counts as new: permission to write does not imply permission to read.
    private func replaces(_ condition: S3Bucket.WriteCondition) async -> Bool {
        if let replaced = condition.replaces { return replaced }
        switch plan.existing {
        case .absent: return false
        case .object: return true
        case .unknown:
            if let lookup { return (try? await lookup.value.get()) ?? nil != nil }
            return (try? await bucket.find(name)) ?? nil != nil
        }
    }

    private var before: S3Bucket.State? {
        get async {
            switch plan.existing {
            case .absent: return S3Bucket.State()
            case .object(let object): return S3Bucket.State(object: object)
            case .unknown:
                guard let lookup, case .success(let object) = await lookup.value else { return nil }
                return S3Bucket.State(object: object)
            }
        }
    }

    /// Sends the request that makes the object visible and determines its result. Repeats it once if the result is
    /// unknown, nothing has changed, and the service can make the store conditional on that.
    private func settledAgain(
        _ condition: S3Bucket.WriteCondition, _ generation: Int64, _ facts: ContentFacts,
        md5: [UInt8]?,
        crc32c: UInt32?,
        _ request: (S3Bucket.WriteCondition) async throws(BucketError) -> CollectedResponse
    ) async throws(BucketError) -> CommitResult {
        // Whether the service or a proxy reported overload without saying that nothing was done.
        var isBusy = false
        var retryAfter: String?
        do throws(BucketError) {
            return try await settled(generation, facts, md5: md5, crc32c: crc32c) {
                () async throws(BucketError) in
                let response = try await request(condition)
                isBusy = [429, 503].contains(response.status) && !S3ErrorResponse(response).isRejection
                retryAfter = response.fields["retry-after"]
                return response
            }
        } catch {
            // After a timeout, the completion of a multipart upload may be in progress, so don't repeat it.
            let isOver = error.code == .timedOut && multipart.generation == nil
            guard condition.isEmpty, error.code == .unavailable || isOver || isBusy, let before = await before,
                await bucket.upstream.mayTryAgain(after: 1, retryAfter: retryAfter),
                let found = try? await bucket.state(name), found.object?.etag == before.object?.etag,
                found.object?.generation == before.object?.generation, (try? await bucket.decidesConditions()) == true
            else { throw error }
            let pinned = S3Bucket.WriteCondition(match: before.object?.etag, isNew: before.object == nil)
            do throws(BucketError) {
                return try await settled(generation, facts, md5: md5, crc32c: crc32c) {
                    () async throws(BucketError) in try await request(pinned)
                }
            } catch let second {
                // The client did not set this condition.
                throw second.code == .preconditionFailed ? error : second
            }
        }
    }

    /// Sends the request and determines its result. Without a response, or after a repetition, the object's generation
    /// decides.
    private func settled(
        _ generation: Int64, _ facts: ContentFacts, md5: [UInt8]?, crc32c: UInt32?,
        _ request: () async throws(BucketError) -> CollectedResponse
    ) async throws(BucketError) -> CommitResult {
        let failure: BucketError
        var success: CollectedResponse?
        var etag: String?
        // Whether the object may have been stored despite the failure.
        var isOpen = true
        do throws(BucketError) {
            let response = try await request()
            if (200...299).contains(response.status), S3ErrorResponse.code(in: response.body) == nil {
                etag = storedTag(response)
                success = response
            }
            failure = S3ErrorResponse(response).error("upload")
            isOpen =
                response.status < 400 || response.status >= 500
                || [404, 408, 409, 412].contains(response.status)
        } catch {
            failure = error
        }
        // Whether the service has verified a digest sent with the object.
        let isProven = bucket.isSigned && multipart.generation == nil && (md5 != nil || crc32c != nil)
        if let success, let etag {
            return CommitResult(
                metadata: try await stored(success, etag, generation, facts, md5: md5, crc32c: crc32c, isProven))
        }
        if isOpen, let found = try? await bucket.find(name) {
            if found.generation == generation {
                return CommitResult(metadata: try await checked(found, facts, isProven))
            }
            if let success, await isPlainlyStored(found, success, facts) {
                // There is no md5 to compare with, so later uploads need not compute it.
                bucket.tellsMD5.store(false, ordering: .relaxed)
                return CommitResult(
                    metadata: try await checked(found, facts, false, isOwn: false),
                    isKnownAsOwn: false)
            }
        }
        throw failure
    }

    /// The entity tag of the stored object; nil if there is none. Any server may send such a response.
    private func storedTag(_ response: CollectedResponse) -> String? {
        multipart.generation == nil ? S3Head(response.fields).etag : S3Multipart.tag(of: response, name)
    }

    /// Whether an object without an entity tag in the response was stored by this upload to a plain file server, which
    /// keeps no generation: the status reports a created or replaced file, or the object differs from the previous one.
    private func isPlainlyStored(
        _ found: ObjectMetadata, _ response: CollectedResponse, _ facts: ContentFacts
    ) async -> Bool {
        guard !bucket.isSigned, multipart.generation == nil, found.size == facts.size else {
            return false
        }
        if response.status == 201 || response.status == 204 { return true }
        guard let before = await before else { return false }
        return before.object?.isSame(as: found) != true
    }

    private func stored(
        _ response: CollectedResponse, _ etag: String, _ generation: Int64, _ facts: ContentFacts,
        md5: [UInt8]?, crc32c: UInt32?, _ isProven: Bool
    ) async throws(BucketError) -> ObjectMetadata {
        var tagged: [UInt8]?
        // A multipart object's entity tag is computed from its parts' tags.
        if multipart.generation == nil {
            tagged = bucket.taggedMD5(S3Head(response.fields))
            bucket.tellsMD5.store(tagged != nil, ordering: .relaxed)
        }
        let object = ObjectMetadata(
            name: name, generation: generation, metageneration: 1, size: facts.size, created: generation / 1000,
            updated: generation / 1000, md5: tagged ?? md5, crc32c: crc32c, etag: etag, attributes: plan.attributes)
        return try await checked(object, facts, isProven)
    }

    /// The object with the md5 of the sent bytes, if known. If the entity tag differs from it, the object is read back,
    /// because a tag of 32 hexadecimal digits need not be an md5.
    /// - Parameters:
    ///   - isProven: Whether the service has accepted a digest of the bytes.
    ///   - isOwn: Whether the object is known to be this upload's, so that it may be deleted if its bytes differ.
    /// - Throws: `.unavailable` if the service has other bytes, or if that can't be determined.
    private func checked(
        _ object: ObjectMetadata, _ facts: ContentFacts, _ isProven: Bool, isOwn: Bool = true
    ) async throws(BucketError) -> ObjectMetadata {
        guard let reported = object.md5, let sent = facts.md5, reported != sent else {
            return object
        }
        // Each part was verified when it was sent.
        if multipart.generation != nil { return object.with(md5: plan.md5, etag: object.etag) }
        let found: (isSame: Bool, etag: String?)
        do throws(BucketError) {
            found = try await bucket.readBack(name, isOwn ? object.generation : nil, facts)
        } catch {
            guard isProven else {
                throw BucketError(
                    .unavailable,
                    "upload: the entity tag is not the md5 of what was sent, and reading it back failed: "
                        + error.cause)
            }
            found = (true, nil)
        }
        if found.isSame {
            bucket.tagsAreMD5.store(false, ordering: .relaxed)
            bucket.tellsMD5.store(false, ordering: .relaxed)
            return object.with(md5: sent, etag: found.etag ?? object.etag)
        }
        var cause = "upload: the service has other bytes than were sent"
        if isOwn {
            let failure = await remove(found.etag ?? object.etag)
            cause += failure.map { ", still there: \($0)" } ?? ", deleted"
        }
        throw BucketError(.unavailable, cause)
    }

    /// Removes a stored object whose bytes differ from those sent, unless it was replaced. Returns any error.
    private func remove(_ etag: String) async -> BucketError? {
        var damaged = Preconditions()
        damaged.ifMatch = .tags([etag])
        do throws(BucketError) {
            try await bucket.delete(name, damaged)
            return nil
        } catch {
            return error
        }
    }
}

extension S3Bucket {
    struct State {
        var object: ObjectMetadata?
    }

    func state(_ name: String) async throws(BucketError) -> State {
        State(object: try await find(name))
    }

    /// Whether a write may be repeated: the service rejected it, or it has had no effect and its condition still holds.
    /// Without a condition, it could replace an object that was stored meanwhile.
    func confirmation(_ name: String, _ generation: Int64, _ condition: WriteCondition)
        -> (CollectedResponse?) async -> Bool
    {
        { [self] response in
            if let response, S3ErrorResponse(response).isRejection { return true }
            guard let found = try? await state(name), found.object?.generation != generation else {
                return false
            }
            return condition.isNew
                ? found.object == nil : condition.match != nil && found.object?.etag == condition.match
        }
    }
}
