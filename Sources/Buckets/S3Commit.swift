import HTTPClient
import Wire

/// The request that makes an upload visible, and what is known when its answer is missing.
extension S3Upload {
    /// Stores the object where the preconditions hold.
    func store(_ facts: ContentFacts, _ preconditions: Preconditions)
        async throws(BucketError) -> CommitResult
    {
        if case .single(let body, let begun, let generation) = mode {
            if preconditions != plan.preconditions,
                try await bucket.guarding(name, preconditions) != begun
            {
                throw BucketError(
                    .preconditionFailed, "the upload was begun with other preconditions")
            }
            let replaced = await replaces(begun)
            let tail = held
            var result = try await settled(generation, facts, md5: plan.md5, crc32c: plan.crc32c) {
                () async throws(BucketError) in
                do { try await body.writeAll(tail) } catch {
                    // The response says why.
                }
                return try await body.response()
            }
            result.replaced = replaced
            return result
        }
        let guarding = try await bucket.guarding(name, preconditions)
        let replaced = await replaces(guarding)
        var result: CommitResult
        if let generation = multipart.generation {
            let multipart = multipart
            result = try await settledAgain(
                guarding, generation, facts, md5: plan.md5, crc32c: plan.crc32c
            ) { (guarding) async throws(BucketError) in
                try await multipart.complete(
                    guarding, bucket.confirmation(name, generation, guarding))
            }
        } else {
            let generation = newGeneration()
            let fields = objectFields(generation, md5: facts.md5, crc32c: facts.crc32c)
            result = try await settledAgain(
                guarding, generation, facts, md5: facts.md5, crc32c: facts.crc32c
            ) { (guarding) async throws(BucketError) in
                var request = ClientRequest(
                    "PUT", bucket.target(name), fields: fields, body: .bytes(held))
                guarding.append(to: &request.fields)
                request.confirmsRepetition = bucket.confirmation(name, generation, guarding)
                return try await bucket.call(request)
            }
        }
        result.replaced = replaced
        return result
    }

    /// Whether an object is there that the commit replaces; asked before the commit, so that it is not that one.
    /// Where nobody can tell, it counts as new: who may write need not be allowed to read.
    private func replaces(_ guarding: S3Bucket.Guard) async -> Bool {
        if let replaced = guarding.replaces { return replaced }
        switch plan.existing {
        case .absent: return false
        case .object: return true
        case .unknown:
            if let lookup { return (try? await lookup.value.get()) ?? nil != nil }
            return (try? await bucket.find(name)) ?? nil != nil
        }
    }

    /// What was there before the commit, where somebody has looked.
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

    /// The object after the request that makes it visible, which may be sent once more where nobody can tell how it
    /// ended, nothing has changed, and the service can be told to store it only if that is still so.
    private func settledAgain(
        _ guarding: S3Bucket.Guard, _ generation: Int64, _ facts: ContentFacts, md5: [UInt8]?,
        crc32c: UInt32?,
        _ request: (S3Bucket.Guard) async throws(BucketError) -> CollectedResponse
    ) async throws(BucketError) -> CommitResult {
        do throws(BucketError) {
            return try await settled(generation, facts, md5: md5, crc32c: crc32c) {
                () async throws(BucketError) in try await request(guarding)
            }
        } catch {
            // Parts that are put together for longer than anybody waits may still be.
            let isOver = error.code == .timedOut && multipart.generation == nil
            guard guarding.isEmpty, error.code == .unavailable || isOver,
                let before = await before, let found = try? await bucket.state(name),
                found.object?.etag == before.object?.etag,
                found.object?.generation == before.object?.generation,
                (try? await bucket.decidesConditions()) == true
            else { throw error }
            let pinned = S3Bucket.Guard(
                match: before.object?.etag, isNew: before.object == nil)
            do throws(BucketError) {
                return try await settled(generation, facts, md5: md5, crc32c: crc32c) {
                    () async throws(BucketError) in try await request(pinned)
                }
            } catch let second {
                // Nobody asked for that condition.
                throw second.code == .preconditionFailed ? error : second
            }
        }
    }

    /// The object after the request that makes it visible. Where its answer is missing, or may be that of a repetition,
    /// the object itself tells by its generation.
    private func settled(
        _ generation: Int64, _ facts: ContentFacts, md5: [UInt8]?, crc32c: UInt32?,
        _ request: () async throws(BucketError) -> CollectedResponse
    ) async throws(BucketError) -> CommitResult {
        let failure: BucketError
        var answer: CollectedResponse?
        var etag: String?
        // Whether the object may be there all the same.
        var isOpen = true
        do throws(BucketError) {
            let response = try await request()
            if (200...299).contains(response.status), S3Fault.code(in: response.body) == nil {
                etag = storedTag(response)
                answer = response
            }
            failure = S3Fault(response).error("upload")
            isOpen =
                response.status < 400 || response.status >= 500
                || [404, 408, 409, 412].contains(response.status)
        } catch {
            failure = error
        }
        if let answer, let etag {
            return CommitResult(
                metadata: try await stored(
                    answer, etag, generation, facts, md5: md5, crc32c: crc32c))
        }
        if isOpen, let found = try? await bucket.find(name) {
            if found.generation == generation { return CommitResult(metadata: found) }
            if let answer, await isPlainlyStored(found, answer, facts) {
                // There is nothing to compare an md5 with, and it costs more than all else that is done with the bytes.
                bucket.tellsMD5.store(false, ordering: .relaxed)
                return CommitResult(metadata: found, isKnownAsOwn: false)
            }
        }
        throw failure
    }

    /// The entity tag of what the answer says is stored; nil where it does not say so: it may come from anything.
    private func storedTag(_ response: CollectedResponse) -> String? {
        multipart.generation == nil
            ? S3Head(response.fields).etag : S3Multipart.tag(of: response)
    }

    /// Whether what is there after an answer without an entity tag was stored by it: a plain file server, which keeps no
    /// generation of ours, says that it has made or replaced a file, or there is another one than before.
    private func isPlainlyStored(
        _ found: ObjectMetadata, _ answer: CollectedResponse, _ facts: ContentFacts
    ) async -> Bool {
        guard !bucket.isSigned, multipart.generation == nil, found.size == facts.size else {
            return false
        }
        if answer.status == 201 || answer.status == 204 { return true }
        guard let before = await before else { return false }
        return before.object?.isSame(as: found) != true
    }

    /// The object that the service says is stored.
    private func stored(
        _ response: CollectedResponse, _ etag: String, _ generation: Int64, _ facts: ContentFacts,
        md5: [UInt8]?, crc32c: UInt32?
    ) async throws(BucketError) -> ObjectMetadata {
        let head = S3Head(response.fields)
        let tagged = head.taggedMD5(isAWS: bucket.isAWS)
        if multipart.generation == nil {
            bucket.tellsMD5.store(tagged != nil, ordering: .relaxed)
            if let tagged, let md5 = facts.md5, tagged != md5 { try await remove(generation) }
        }
        return ObjectMetadata(
            name: name, generation: generation, metageneration: 1, size: facts.size,
            created: generation / 1000, updated: generation / 1000, md5: md5 ?? tagged,
            crc32c: crc32c, etag: etag, attributes: plan.attributes)
    }

    /// Removes an object whose bytes are not those that were sent, if it is still that one.
    private func remove(_ generation: Int64) async throws(BucketError) {
        var ours = Preconditions()
        ours.generation = generation
        var cause = "upload: the service has other bytes than were sent"
        do throws(BucketError) {
            try await bucket.delete(name, ours)
            cause += ", deleted"
        } catch {
            cause += ", still there: \(error)"
        }
        throw BucketError(.unavailable, cause)
    }
}

extension S3Bucket {
    /// Whether an object is there, which can be told apart from not knowing.
    struct State {
        var object: ObjectMetadata?
    }

    func state(_ name: String) async throws(BucketError) -> State {
        State(object: try await find(name))
    }

    /// Whether a write may be sent again: where the service has refused it, or where it has no effect yet and its
    /// condition still holds. Without one it could come after, and replace, what others have stored meanwhile.
    func confirmation(_ name: String, _ generation: Int64, _ guarding: Guard)
        -> (CollectedResponse?) async -> Bool
    {
        { [self] answer in
            if let answer, S3Fault(answer).isRefusal { return true }
            guard let found = try? await state(name), found.object?.generation != generation else {
                return false
            }
            return guarding.isNew
                ? found.object == nil
                : guarding.match != nil && found.object?.etag == guarding.match
        }
    }
}
