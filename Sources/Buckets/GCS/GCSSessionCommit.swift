import HTTPClient
import Wire

/// The commit of an upload session: one request makes the object visible, pinned to the generation that it replaces.
///
/// A small object is stored by one upload. A larger one is finished under a hidden name, where the service compares its
/// digests, and is then copied to its name, which moves no bytes. Of two such requests of one session, in one gateway or
/// two, only one can succeed. The object carries the session's mark, by which the other one recognizes it.
struct GCSSessionCommit {
    let bucket: GCSBucket
    let file: CloudSessionFile
    let facts: ContentFacts
    let preconditions: Preconditions
    /// Seconds since 1970.
    let until: Int64

    /// The result of a request that makes the object visible.
    private enum Outcome {
        case stored(ObjectMetadata)
        /// The name has another session's object. This session has stored none.
        case overtaken
    }

    /// - Parameter state: The claimed state.
    func run(_ state: CloudSessionState) async throws(SessionError) -> CommitResult {
        if let intent = state.intent { return try await resume(state, intent) }
        var isIntended = false
        for _ in 0..<GCSBucket.attempts {
            let object = try await inStore { () throws(BucketError) in
                try await bucket.find(state.name)
            }
            guard preconditions.evaluate(object, reading: false) == nil else {
                if isIntended { try await file.update { $0.intent = nil } }
                throw .store(BucketError(.preconditionFailed))
            }
            let intent = CloudSessionState.Intent(generation: object?.generation ?? 0, etag: nil)
            let intended = try await file.update { $0.intent = intent }
            isIntended = true
            var conditions = GCSConditions(pinnedTo: object)
            if preconditions.metageneration == nil { conditions.metageneration = nil }
            if case .stored(let made) = try await store(intended, conditions) {
                return try await record(made, replacing: intent)
            }
        }
        throw .store(
            BucketError(.overloaded, "the object is being changed by others again and again"))
    }

    /// Completes a commit whose result is not known. It was decided, so that preconditions are not evaluated again.
    private func resume(_ state: CloudSessionState, _ intent: CloudSessionState.Intent)
        async throws(SessionError) -> CommitResult
    {
        if let made = try await marked(state) { return try await record(made, replacing: intent) }
        var conditions = GCSConditions.none
        conditions.generation = intent.generation
        if case .stored(let made) = try await store(state, conditions, isResumed: true) {
            return try await record(made, replacing: intent)
        }
        // The object may have been stored, and replaced since. To store it again could make a second generation.
        throw .store(BucketError(.preconditionFailed, "the object was replaced during the commit"))
    }

    /// Writes the result to the state, also if another gateway has claimed it, and removes the hidden object.
    private func record(_ made: ObjectMetadata, replacing intent: CloudSessionState.Intent)
        async throws(SessionError) -> CommitResult
    {
        let result = CommitResult(metadata: made, replaced: intent.generation != 0)
        let until = until
        let state = try await file.update { state in
            state.end = .committed(CommittedObject(result))
            state.expires = until
            state.tail = []
        }
        bucket.known.keep(made)
        // If this fails, the sweep removes it.
        if state.gcsTransfer.session != nil {
            try? await bucket.deleteHidden(HiddenName.data(file.id).text)
        }
        return result
    }

    /// The object, if this session has stored it.
    private func marked(_ state: CloudSessionState) async throws(SessionError) -> ObjectMetadata? {
        try await inStore { () throws(BucketError) in
            let requests = bucket.requests
            let response = try await requests.call(
                ClientRequest("GET", requests.object(state.name)))
            if response.status == 404, requests.failure(response).code == .objectNotFound {
                return nil
            }
            let metadata = try requests.metadata(response, of: state.name)
            guard let json = try? JSONReader.parse(response.body),
                GCSObject.isMarked(json, state.mark)
            else { return nil }
            return metadata
        }
    }

    // MARK: Requests

    private func store(
        _ state: CloudSessionState, _ conditions: GCSConditions, isResumed: Bool = false
    ) async throws(SessionError) -> Outcome {
        guard let target = state.gcsTransfer.session else {
            return try await insert(state, conditions)
        }
        let hidden: ObjectMetadata
        do throws(BucketError) {
            hidden = try await finish(target, state, isResumed: isResumed)
        } catch {
            // The service may also reject the length, if it keeps more bytes.
            if error.isOfOtherBytes || error.code == .unsupported { throw .otherBytes }
            // Another gateway may have completed the commit.
            if let made = try await marked(state) { return .stored(made) }
            throw .store(error)
        }
        return try await copy(hidden, state, conditions)
    }

    /// Finishes the hidden object. The service compares its digests.
    /// - Parameter isResumed: Whether the hidden object may be finished already.
    private func finish(_ target: String, _ state: CloudSessionState, isResumed: Bool)
        async throws(BucketError) -> ObjectMetadata
    {
        let name = HiddenName.data(file.id).text
        let upload = GCSSession(
            bucket, name, target: target, persisted: state.gcsTransfer.sent)
        var hidden: ObjectMetadata?
        if state.gcsTransfer.isAhead || isResumed { hidden = try await upload.update() }
        let made: ObjectMetadata
        if let hidden {
            made = hidden
        } else {
            made = try await upload.finish(.memory(state.tail), facts)
        }
        // The service has compared the digests, unless it is an emulator.
        guard made.size == facts.size, made.crc32c ?? facts.crc32c == facts.crc32c else {
            throw BucketError(otherBytes: "the service has made an object of other bytes")
        }
        return made
    }

    private func insert(_ state: CloudSessionState, _ conditions: GCSConditions)
        async throws(SessionError) -> Outcome
    {
        let requests = bucket.requests
        let body = GCSMultipart(
            state.name, state.attributes, facts, state.tail, mark: state.mark)
        let query = [("uploadType", "multipart"), ("name", state.name)] + conditions.query
        var request = ClientRequest(
            "POST", requests.uploads(query), body: .bytes(body.bytes), isRepeatable: true)
        request.fields.append("content-type", body.contentType)
        return try await settle(state, request) { (response) throws(BucketError) in
            if response.status == 404 { throw requests.missingBucket }
            return try requests.metadata(response, of: state.name)
        }
    }

    /// Copies the hidden object to its name.
    private func copy(
        _ hidden: ObjectMetadata, _ state: CloudSessionState, _ conditions: GCSConditions
    ) async throws(SessionError) -> Outcome {
        let requests = bucket.requests
        var token: String?
        // Within a bucket the first response is the last one. A service that copies bytes needs several.
        while true {
            var query = conditions.query
            query.append(("ifSourceGenerationMatch", String(hidden.generation)))
            if let token { query.append(("rewriteToken", token)) }
            let request = ClientRequest(
                "POST", requests.rewrite(hidden.name, to: state.name, query), isRepeatable: true)
            var next: String?
            let outcome = try await settle(state, request) { (response) throws(BucketError) in
                guard response.status == 200, let json = try? JSONReader.parse(response.body) else {
                    throw requests.failure(response)
                }
                next = json["done"] == .boolean(true) ? nil : json["rewriteToken"]?.text
                if next != nil { return hidden }
                guard let resource = json["resource"] else {
                    throw BucketError(.unavailable, "the service has copied an object without it")
                }
                return try requests.metadata(resource, of: state.name)
            }
            guard let next, next != token else { return outcome }
            token = next
        }
    }

    /// Sends a request that makes the object visible.
    /// - Parameter parse: The object of a response.
    private func settle(
        _ state: CloudSessionState, _ request: ClientRequest,
        _ parse: (CollectedResponse) throws(BucketError) -> ObjectMetadata
    ) async throws(SessionError) -> Outcome {
        let attempts = GCSRequests.Attempts()
        do throws(BucketError) {
            return .stored(try parse(try await bucket.requests.call(request, attempts)))
        } catch {
            // An earlier attempt, or another gateway, may have stored it.
            if let made = try await marked(state) { return .stored(made) }
            guard error.code == .preconditionFailed else { throw .store(error) }
            if attempts.count == 1 { return .overtaken }
            throw .store(error)
        }
    }
}
