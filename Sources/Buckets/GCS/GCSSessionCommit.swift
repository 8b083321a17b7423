import HTTPClient
import Wire

/// The commit of an upload session: one request makes the object visible, pinned to the generation that it replaces.
///
/// The bytes first become a hidden object, whose digests the service compares. Its generation is written to the state.
/// Then it is moved to its name, which deletes the hidden object in the same step and copies no bytes. Thus the object
/// can't become visible twice, even if it is removed or responses are lost: a second request, from this or another
/// gateway, finds nothing to move, and recognizes the object by the session's mark.
struct GCSSessionCommit {
    let bucket: GCSBucket
    let file: CloudSessionFile
    let facts: ContentFacts
    let preconditions: Preconditions
    /// Seconds since 1970.
    let until: Int64

    private enum Outcome {
        case stored(ObjectMetadata)
        /// The name has another session's object; this session has stored none.
        case overtaken
        /// The hidden object was moved earlier, and the resulting object was replaced or removed.
        case replaced
    }

    func run(_ state: CloudSessionState) async throws(SessionError) -> CommitResult {
        var source = state.intent?.source
        if let intent = state.intent, let source {
            // Already decided: do not evaluate preconditions again.
            var conditions = GCSConditions.none
            conditions.generation = intent.generation
            try await join(state, isFirst: false)
            let made = try await move(source, state, conditions)
            if let made { return try await record(made, replacing: intent) }
        }
        for _ in 0..<GCSBucket.attempts {
            let object = try await inStore { () throws(BucketError) in
                try await bucket.find(state.name)
            }
            guard preconditions.evaluate(object, reading: false) == nil else {
                try await withdraw(source)
                throw .store(BucketError(.preconditionFailed))
            }
            let hidden: CloudSessionState.Source
            if let source {
                hidden = source
            } else if state.isInParts {
                hidden = .parts
            } else {
                hidden = try await upload(state)
            }
            let intent = CloudSessionState.Intent(generation: object?.generation ?? 0, etag: nil, source: hidden)
            let intended = try await file.update {
                $0.intent = intent
                $0.fixParts()
            }
            if source == nil { try await join(intended, isFirst: !state.hasFixedParts) }
            source = hidden
            var conditions = GCSConditions(pinnedTo: object)
            if preconditions.metageneration == nil { conditions.metageneration = nil }
            if let made = try await move(hidden, intended, conditions) {
                return try await record(made, replacing: intent)
            }
        }
        throw .store(BucketError(.overloaded, "the object is being changed by others again and again"))
    }

    /// Withdraws the intent: the session has stored no object.
    private func withdraw(_ source: CloudSessionState.Source?) async throws(SessionError) {
        guard let source else { return }
        try await file.update { $0.intent = nil }
        // Keep a resumable session's object: it can be used again. The sweep repeats a failed deletion.
        if source.piece != nil { try? await bucket.deleteHidden(source.name(of: file.id)) }
    }

    /// Writes the result to the state, even if another gateway has claimed it.
    private func record(_ made: ObjectMetadata, replacing intent: CloudSessionState.Intent)
        async throws(SessionError) -> CommitResult
    {
        let result = CommitResult(metadata: made, replaced: intent.generation != 0)
        let until = until
        try await file.update { state in
            state.end = .committed(CommittedObject(result))
            state.expires = until
            state.tail = []
        }
        bucket.known.keep(made)
        return result
    }

    /// The result of an earlier commit that has stored the object; nil if none has.
    func settle(_ state: CloudSessionState) async throws(SessionError) -> CommitResult? {
        guard let intent = state.intent, let made = try await marked(state) else { return nil }
        // If another gateway has claimed the state, the object's mark still identifies the result.
        return (try? await record(made, replacing: intent))
            ?? CommitResult(metadata: made, replaced: intent.generation != 0)
    }

    /// The current object, if this session has stored it.
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

    // MARK: The hidden object

    private func upload(_ state: CloudSessionState) async throws(SessionError)
        -> CloudSessionState.Source
    {
        do throws(BucketError) {
            guard let target = state.gcsTransfer.session else { return try await insert(state) }
            return try await finish(target, state)
        } catch {
            // The service may also reject the length if it keeps more bytes.
            let isRejected = error.code == .unsupported && state.gcsTransfer.session != nil
            if error.isOfOtherBytes || isRejected { throw .otherBytes }
            // Another gateway may have finished and moved it: the state has or will have the result.
            if try await marked(state) != nil { throw .superseded }
            throw .store(error)
        }
    }

    /// Finishes the resumable session. The service compares the digests.
    private func finish(_ target: String, _ state: CloudSessionState) async throws(BucketError)
        -> CloudSessionState.Source
    {
        let name = HiddenName.data(file.id).text
        // An earlier commit may have finished it.
        var hidden = try await bucket.find(name)
        if hidden == nil {
            let upload = GCSSession(
                bucket, name, target: target, persisted: state.gcsTransfer.sent)
            if state.gcsTransfer.isAhead { hidden = try await upload.update() }
            if hidden == nil { hidden = try await upload.finish(.memory(state.tail), facts) }
        }
        // The service has compared the digests, unless it is an emulator.
        guard let hidden, hidden.size == facts.size, hidden.crc32c ?? facts.crc32c == facts.crc32c else {
            throw BucketError(otherBytes: "the service has made an object of other bytes")
        }
        return CloudSessionState.Source(piece: nil, generation: hidden.generation)
    }

    /// Stores less than 256 KiB, too little for a resumable session. The random name is used by no other request.
    private func insert(_ state: CloudSessionState) async throws(BucketError)
        -> CloudSessionState.Source
    {
        let piece = UInt64.random(in: 0 ... .max)
        let name = HiddenName.tail(file.id, number: piece).text
        let requests = bucket.requests
        let body = GCSMultipart(name, state.attributes, facts, state.tail, mark: state.mark)
        let query = [("uploadType", "multipart"), ("name", name), ("ifGenerationMatch", "0")]
        let request = ClientRequest("POST", requests.uploads(query), body: .bytes(body.bytes), isRepeatable: true)
        request.fields.append("content-type", body.contentType)
        let response = try await requests.call(request)
        if response.status == 404 { throw requests.missingBucket }
        if response.status == 412, let made = try await bucket.find(name) {
            // The first attempt has stored it.
            return CloudSessionState.Source(piece: piece, generation: made.generation)
        }
        let made = try requests.metadata(response, of: name)
        return CloudSessionState.Source(piece: piece, generation: made.generation)
    }

    /// Joins the parts of an upload in parts to the hidden object, unless an earlier attempt has done it. The service
    /// does that once, so the object has one generation, which need not be known.
    /// - Parameter isFirst: Whether there can be no earlier attempt.
    private func join(_ state: CloudSessionState, isFirst: Bool) async throws(SessionError) {
        guard case .gcsParts(let transfer) = state.transfer else { return }
        let (requests, name) = (bucket.requests, HiddenName.data(file.id).text)
        let request = S3Multipart.completion(
            requests.xml(name, GCSParts.query(transfer.upload)),
            transfer.parts.map { (number: Int($0.number), etag: $0.etag) }, S3Bucket.WriteCondition())
        request.isRepeatable = true
        if let userProject = requests.userProject { request.fields.append("x-goog-user-project", userProject) }
        let response = try await inStore { () throws(BucketError) in try await requests.call(request) }
        if S3Multipart.tag(of: response, name) == nil {
            let failure = S3ErrorResponse(response)
            guard response.status == 404, failure.code == "NoSuchUpload" else {
                if (400...499).contains(response.status), ![401, 403, 408, 429].contains(response.status) {
                    // A part was replaced, for example. Other parts can be selected.
                    try await file.update { $0.freeParts() }
                }
                throw .store(failure.error("upload"))
            }
            if isFirst, try await inStore({ () throws(BucketError) in try await bucket.find(name) }) == nil {
                throw await file.endWithoutParts()
            }
        }
        try await describe(name, state)
    }

    /// Sets the properties of the hidden object: the beginning of the upload knows no parts, and the XML API can't
    /// express them all. Each attempt sets the same ones, since the selected parts are fixed. The name is this session's
    /// alone and has one object ever, so no other object can be changed.
    /// - Throws: ``SessionError/otherBytes`` if the service has another size or crc32c than the selection.
    private func describe(_ name: String, _ state: CloudSessionState) async throws(SessionError) {
        let body = GCSObject.resource(nil, state.attributes, nil, mark: state.mark)
        let request = ClientRequest("PATCH", bucket.requests.object(name), body: .bytes(body), isRepeatable: true)
        request.fields.append("content-type", "application/json")
        let hidden = try await inStore { () throws(BucketError) in
            let response = try await bucket.requests.call(request)
            // An earlier attempt may have moved it.
            if response.status == 404 { return ObjectMetadata?.none }
            return try bucket.requests.metadata(response, of: name)
        }
        guard let hidden else { return }
        var isRight = hidden.size == state.offset
        if let checksum = state.attributes.system.s3?.checksum, !checksum.isComposite, checksum.algorithm == .crc32c,
            let crc32c = hidden.crc32c
        {
            isRight = isRight && checksum.value == crc32c.bigEndianBytes
        }
        if isRight { return }
        // The parts are joined, so that no others can be selected.
        _ = await file.endWithoutParts()
        try? await bucket.deleteHidden(name)
        throw .otherBytes
    }

    // MARK: The object

    /// Moves the hidden object to its name; nil if the name has another object and this session has stored none.
    private func move(
        _ source: CloudSessionState.Source, _ state: CloudSessionState, _ conditions: GCSConditions
    ) async throws(SessionError) -> ObjectMetadata? {
        switch try await outcome(source, state, conditions) {
        case .stored(let made): return made
        case .overtaken: return nil
        case .replaced:
            throw .store(
                BucketError(.preconditionFailed, "the object was stored, and replaced or deleted"))
        }
    }

    private func outcome(
        _ source: CloudSessionState.Source, _ state: CloudSessionState, _ conditions: GCSConditions
    ) async throws(SessionError) -> Outcome {
        let (requests, hidden) = (bucket.requests, source.name(of: file.id))
        var query = conditions.query
        if source != .parts { query.append(("ifSourceGenerationMatch", String(source.generation))) }
        var request = ClientRequest("POST", requests.move(hidden, to: state.name, query), isRepeatable: true)
        do throws(BucketError) {
            let response = try await requests.call(request)
            return .stored(try requests.metadata(response, of: state.name))
        } catch {
            if let known = try await whatBecame(of: source, state, error) { return known }
        }
        // An emulator without moves. If it deletes the object too early, a repeated commit makes it again.
        request = ClientRequest("POST", requests.rewrite(hidden, to: state.name, query), isRepeatable: true)
        do throws(BucketError) {
            let response = try await requests.call(request)
            guard response.status == 200, let json = try? JSONReader.parse(response.body),
                json["done"] == .boolean(true), let resource = json["resource"]
            else { throw requests.failure(response) }
            let made = try requests.metadata(resource, of: state.name)
            try? await bucket.deleteHidden(hidden)
            return .stored(made)
        } catch {
            if let known = try await whatBecame(of: source, state, error) { return known }
            throw .store(error)
        }
    }

    /// The state of the hidden object after a failed move; nil if the service does not support moves.
    private func whatBecame(
        of source: CloudSessionState.Source, _ state: CloudSessionState, _ error: BucketError
    ) async throws(SessionError) -> Outcome? {
        // An earlier attempt or another gateway may have moved it.
        if let made = try await marked(state) { return .stored(made) }
        guard [.preconditionFailed, .objectNotFound, .unsupported].contains(error.code) else {
            throw .store(error)
        }
        let name = source.name(of: file.id)
        let left = try await inStore { () throws(BucketError) in try await bucket.find(name) }
        guard let left, source == .parts || left.generation == source.generation else { return .replaced }
        return error.code == .preconditionFailed ? .overtaken : nil
    }
}

extension CloudSessionState {
    /// Keeps the selected parts, which a request will join.
    fileprivate mutating func fixParts() {
        guard case .gcsParts(var state) = transfer else { return }
        state.isFixed = true
        transfer = .gcsParts(state)
    }

    /// Lets other parts be selected, since the service has rejected the request.
    fileprivate mutating func freeParts() {
        guard case .gcsParts(var state) = transfer else { return }
        state.isFixed = false
        transfer = .gcsParts(state)
        intent = nil
    }
}

extension CloudSessionState.Source {
    /// The object of joined parts.
    static let parts = CloudSessionState.Source(piece: nil, generation: 0)

    func name(of id: UploadSessionID) -> String {
        (piece.map { HiddenName.tail(id, number: $0) } ?? .data(id)).text
    }
}
