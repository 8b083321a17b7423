import Buckets
import HTTPServer
import System
import Wire

extension OperationHandler {
    /// The driver of uploads in parts.
    /// - Throws: ``SessionError/store(_:)`` with `.unsupported` if the store never has them.
    func partsDriver() throws(SessionError) -> any PartsDriver {
        guard let driver = bucket.driver as? any PartsDriver else {
            throw .store(BucketError(.unsupported, "the store has no uploads in parts"))
        }
        return driver
    }

    /// Reports the error of a session as a problem. A session that the store does not know is no longer counted.
    private func reported<Value>(
        _ id: UploadSessionID, _ body: () async throws(SessionError) -> Value
    ) async throws(Problem) -> Value {
        do throws(SessionError) { return try await body() } catch { throw lost(error, id) }
    }

    /// Begins or continues an upload in parts.
    func parts(_ name: ObjectName, _ request: PartsRequest) async throws(Problem) -> OperationResult {
        switch request.action {
        case .create(let upload, let url): return try await createParts(name, upload, request.dialect, url)
        case .put(let number, let size, let digests): return try await put(number, size, digests, name, request)
        case .list(let number, let limit):
            let (token, _) = try token(request, name)
            let parts = try await listed(try await openParts(token, name), after: number, limit: limit)
            return .parts(.listed(parts, isLast: parts.count < limit))
        case .complete(let conditions, let decode):
            let selection = try decode(try await context.collect(limit: PartsRequest.maximumList))
            return try await complete(selection, try conditions.get(), name, request)
        case .cancel:
            let (token, _) = try token(request, name)
            let upload = try await openParts(token, name)
            try await reported(token.id) { () throws(SessionError) in
                try await uncancelled { () throws(SessionError) in try await upload.cancel() }
            }
            uploads.ended(token.id, .cancelled)
            return .deleted
        }
    }

    private func createParts(
        _ name: ObjectName, _ request: UploadRequest, _ dialect: UploadDialect, _ url: (String) -> String
    ) async throws(Problem) -> OperationResult {
        guard request.digests.md5 == nil, request.digests.others.isEmpty else {
            throw Problem(.invalidArgument, "Of an upload in parts, only the crc32c is verified as a whole.")
        }
        let capabilities = try await bucket.capabilities()
        guard capabilities.parts else {
            throw Problem(.notImplemented, "The bucket's store has no uploads in parts.")
        }
        var creation = SessionCreation(dialect: dialect, isLast: false) { $0 }
        creation.hasObjectBytes = false
        let upload = try await begin(name, request, creation)
        guard let session = upload.session as? any PartsUpload else {
            throw Problem(BucketError(.internal, "the store has begun another upload"))
        }
        let token = PartsToken(
            upload.id, dialect: dialect, bucket: bucket.name, name: name.value, creator: upload.context.caller?.principal.identity,
            key: session.key)
        if context.exchange.isClientGone {
            // Nobody knows its URL.
            try? await session.cancel()
            uploads.ended(upload.id, .cancelled)
        }
        let location = url(uploads.keys.seal(token))
        return .parts(.created(url: location, expires: upload.state.expires, minimumPart: capabilities.minimumPart))
    }

    /// The token of a request, if its caller may continue the upload.
    /// - Throws: ``Problem``: `upload-not-found`, `unauthenticated`.
    private func token(_ request: PartsRequest, _ name: ObjectName) throws(Problem) -> (PartsToken, owner: [UInt8]?) {
        guard let token = uploads.keys.openParts(request.token) else {
            throw Problem(uploadNotFound: "the token is not one of these keys")
        }
        guard token.dialect == request.dialect, token.isOf(bucket: bucket.name, name: name.value), token.id.expires > context.now else {
            throw Problem(uploadNotFound: "the token is another object's, or expired")
        }
        if token.isAnonymous { return (token, nil) }
        try requireCreator(request.dialect) { token.isOf(creator: $0) }
        return (token, context.caller.principal?.identity)
    }

    private func openParts(_ token: PartsToken, _ name: ObjectName) async throws(Problem) -> any PartsUpload {
        try await reported(token.id) { () throws(SessionError) in
            try await partsDriver().openParts(token.id, name.value, key: token.key)
        }
    }

    private func listed(_ upload: any PartsUpload, after number: Int, limit: Int) async throws(Problem) -> [Part] {
        try await reported(upload.id) { () throws(SessionError) in
            try await upload.parts(after: number, limit: limit)
        }
    }

    // MARK: Receiving

    private func put(
        _ number: Int, _ size: UInt64, _ digests: ExpectedDigests, _ name: ObjectName, _ request: PartsRequest
    ) async throws(Problem) -> OperationResult {
        if size > min(PartsRequest.maximumPart, bucket.maximumObjectSize) {
            throw Problem(BodyError.tooLarge, limit: min(PartsRequest.maximumPart, bucket.maximumObjectSize))
        }
        let (token, creator) = try token(request, name)
        let upload = try await openParts(token, name)
        let entry = UploadLedger.Entry(
            bucket: bucket.name, dialect: request.dialect, owner: context.callerKey, creator: creator, bytes: 0,
            expires: token.id.expires, parts: UploadLedger.PartCount(declared: nil))
        if uploads.ledger.adopt(token.id, entry) { uploads.statistics.takenOver(bucket.name) }
        do throws(UploadLedger.LimitExceeded) {
            try uploads.ledger.begins(token.id, partOf: size, sessionLimits)
        } catch {
            throw Problem(error)
        }
        var isKept = false
        defer { uploads.ledger.ended(token.id, part: number, size: size, isKept: isKept) }
        do throws(Problem) {
            let part = try await receive(number, size, digests, upload)
            isKept = true
            uploads.statistics.appended(bucket.name, request.dialect, .stored)
            return .parts(.kept(part))
        } catch {
            let isCut = error.code == .requestTimeout || context.exchange.isClientGone
            let isConflict = error.code == .uploadConflict
            uploads.statistics.appended(bucket.name, request.dialect, isCut ? .cut : isConflict ? .conflict : .refused)
            throw error
        }
    }

    private func receive(_ number: Int, _ size: UInt64, _ digests: ExpectedDigests, _ upload: any PartsUpload)
        async throws(Problem) -> Part
    {
        let part = try await reported(upload.id) { () throws(SessionError) in
            try await upload.beginPart(
                number, PartPlan(size: size, md5: digests.md5, digests: Set(digests.others.keys)))
        }
        do throws(Problem) {
            if context.exchange.head.hasBody { try await receiveBody(part, size) }
            let facts = try await reported(upload.id) { () throws(SessionError) in try await part.finish() }
            if let algorithm = digests.mismatch(facts) {
                throw Problem(
                    .checksumMismatch, "The \(algorithm) of the received bytes is another; the part was not stored.")
            }
        } catch {
            part.abort()
            throw error
        }
        return try await reported(upload.id) { () throws(SessionError) in try await part.keep() }
    }

    private func receiveBody(_ part: any PartUpload, _ size: UInt64) async throws(Problem) {
        do throws(BodyError) {
            let sink = context.lease?.pacing(part) ?? part
            context.record.bytesIn = try await context.exchange.receive(into: sink, limit: size)
        } catch {
            if case .sink(let failure as SessionError) = error { throw Problem(failure) }
            throw Problem(error, limit: size)
        }
    }

    // MARK: The end

    /// Creates the object of these parts, or of all, which must be numbered from 1 without gaps.
    private func complete(
        _ selection: [SelectedPart], _ conditions: Preconditions, _ name: ObjectName, _ request: PartsRequest
    ) async throws(Problem) -> OperationResult {
        context.outlivesClient = true
        let (token, _) = try token(request, name)
        let session = try await openParts(token, name)
        let state = try await state(of: session, request.dialect, end: .completion) { () async throws(SessionError) in
            try await uncancelled { () async throws(SessionError) in try await session.state() }
        }
        let upload = try found(session, state, request.dialect, name.value)
        if !conditions.isEmpty { upload.context.conditions = conditions }
        if state.end != nil { return try await finish(upload) }
        return try await finish(upload, selection.isEmpty ? try await allParts(session) : selection)
    }

    private func allParts(_ upload: any PartsUpload) async throws(Problem) -> [SelectedPart] {
        let parts = try await listed(upload, after: 0, limit: PartPlan.maximumNumber)
        guard !parts.isEmpty, parts.last?.number == parts.count else {
            throw Problem(
                .invalidArgument, "The parts are not numbered from 1 without gaps: list them in the body.")
        }
        return parts.map { SelectedPart($0.number, etag: $0.etag) }
    }
}
