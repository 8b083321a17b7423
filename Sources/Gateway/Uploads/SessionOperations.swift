import Buckets
import HTTPServer
import System
import Wire

extension OperationHandler {
    /// Begins an upload in several requests. The request's body is the first part, or the whole object.
    func createSession(
        _ name: ObjectName, _ request: UploadRequest, _ creation: SessionCreation
    ) async throws(Problem) -> OperationResult {
        let upload = try await begin(name, request, creation)
        let token = UploadToken(dialect: creation.dialect, bucket: bucket.name, id: upload.id)
        var report = upload.report(.created, in: bucket)
        report.url = creation.url(uploads.keys.seal(token))
        report.name = name.value
        context.upload = report
        creation.announce?(report)
        do throws(Problem) {
            if creation.hasObjectBytes, context.exchange.head.hasBody {
                // Unknown until the append ends. Another request may learn of a higher one meanwhile.
                context.upload?.offset = nil
                let append = AppendRequest(
                    offset: 0, length: request.size, digests: creation.bodyDigests,
                    sha1: creation.bodySHA1, isLast: creation.isLast, progress: creation.progress)
                upload.state.offset = try await self.append(append, to: upload)
            }
            if creation.isLast || upload.isWhole { return try await finish(upload) }
        } catch {
            if error.code == .uploadNotFound { uploads.ended(upload.id, nil) }
            await forget(upload, creation, after: error)
            throw error
        }
        report.offset = upload.state.offset
        context.upload = report
        return .session(report)
    }

    /// Removes a session whose creation failed, if no client knows its URL or it would use up the exceeded limit.
    private func forget(
        _ upload: OpenUpload, _ creation: SessionCreation, after problem: Problem
    ) async {
        let isOverLimit = problem.code == .tooManyUploads || problem.code == .insufficientStorage
        let outlives = creation.dialect.outlivesFailures
        guard creation.announce == nil, !outlives || isOverLimit || context.exchange.isClientGone
        else { return }
        context.upload =
            outlives
            ? UploadReport(isComplete: true, maximumSize: bucket.maximumObjectSize) : nil
        try? await upload.session.cancel()
        uploads.ended(upload.id, .cancelled)
    }

    /// Appends to an upload, completes or cancels it, or reports its offset.
    func session(_ request: SessionRequest) async throws(Problem) -> OperationResult {
        if case .append = request.action, request.dialect.endsAtLength, !context.hasBytes {
            // It may end the upload, as another gateway may at the same time.
            return try await repeatedly { () throws(Problem) in try await perform(request) }
        }
        return try await perform(request)
    }

    private func perform(_ request: SessionRequest) async throws(Problem) -> OperationResult {
        let upload = try await open(request)
        do throws(Problem) { return try await perform(request, upload) } catch {
            // The service may have lost it since, and then it does not count any more.
            if error.code == .uploadNotFound { uploads.ended(upload.id, nil) }
            throw error
        }
    }

    private func perform(_ request: SessionRequest, _ upload: OpenUpload) async throws(Problem)
        -> OperationResult
    {
        switch request.action {
        case .report:
            if upload.isWhole {
                // The gateway was stopped or the store failed between the last byte and the commit.
                _ = try await finish(upload)
                do throws(SessionError) { upload.state = try await upload.session.state() } catch {
                    throw Problem(error)
                }
            }
            let report = upload.report(.status, in: bucket)
            context.upload = report
            if request.dialect.reportsEnd, upload.state.end != nil, !upload.isCancelled {
                return try replay(upload, upload.state)
            }
            return .session(report)
        case .cancel: return try await cancel(upload)
        case .finish(let offset):
            context.upload = upload.report(.appended, in: bucket)
            if upload.state.end == nil { try requireOrigin(upload.context) }
            if upload.state.end == nil, let offset, offset != upload.state.offset {
                throw Problem(SessionError.offsetMismatch(durable: upload.state.offset), offset: offset)
            }
            return try await finish(upload)
        case .append(var append):
            context.upload = UploadReport(
                kind: .appended, isCancelled: upload.isCancelled, expires: upload.id.expires,
                maximumSize: bucket.maximumObjectSize)
            if let end = upload.state.end { return try await again(append, upload, after: end) }
            try requireOrigin(upload.context)
            if request.dialect.overlaps {
                context.upload?.offset = upload.state.offset
                append.skip(to: upload.state.offset)
            }
            if append.isLast, !append.isVerified, !context.hasBytes {
                try complete(append, upload)
            } else {
                do throws(Problem) {
                    upload.state.offset = try await self.append(append, to: upload)
                } catch {
                    // Another gateway may have ended it.
                    guard let end = upload.state.end else { throw error }
                    uploads.ended(upload.id, nil)
                    return try await again(append, upload, after: end)
                }
                upload.state.length = upload.state.length ?? append.length
            }
            if append.isLast || upload.isWhole { return try await finish(upload) }
            let report = upload.report(.appended, in: bucket)
            context.upload = report
            return .session(report)
        }
    }

    func cancel(_ upload: OpenUpload) async throws(Problem) -> OperationResult {
        let remembers = upload.context.dialect.remembersCancelling
        if remembers {
            context.upload = upload.report(.cancelled, in: bucket)
            if upload.isCancelled { return .session(upload.report(.cancelled, in: bucket)) }
            if let end = upload.state.end { throw ended(end) }
        }
        do throws(SessionError) {
            if remembers {
                try await upload.session.close(OpenUpload.cancelled, until: resultUntil)
            } else {
                try await upload.session.cancel()
            }
        } catch {
            throw Problem(error)
        }
        uploads.ended(upload.id, .cancelled)
        let report = UploadReport(kind: .cancelled, isCancelled: remembers)
        context.upload = remembers ? report : context.upload
        return .session(report)
    }

    /// The result of an upload that has ended, for a request that repeats its end.
    private func again(
        _ append: AppendRequest, _ upload: OpenUpload, after end: SessionState.End
    ) async throws(Problem) -> OperationResult {
        let size = upload.state.offset
        let dialect = upload.context.dialect
        context.upload?.offset = size
        context.upload?.isComplete = dialect.reportsEnd
        if dialect.overlaps {
            guard append.isLast else { throw ended(end) }
            return try await finish(upload)
        }
        if case .committed = end, append.offset != size {
            throw Problem(SessionError.offsetMismatch(durable: size), offset: append.offset)
        }
        guard append.isLast || dialect.endsAtLength, append.offset == size,
            append.length ?? size == size
        else { throw ended(end) }
        if try await receivesBytes() {
            throw dialect.endsAtLength ? problem(.lengthExceeded(limit: size), append, upload) : ended(end)
        }
        return try await finish(upload)
    }

    /// Whether the request's body has bytes. If its length is not known, it is received until the first one.
    private func receivesBytes() async throws(Problem) -> Bool {
        guard context.hasBytes, context.exchange.head.contentLength == nil else {
            return context.hasBytes
        }
        do throws(BodyError) {
            _ = try await context.exchange.collect(limit: 0)
            return false
        } catch {
            if case .tooLarge = error { return true }
            throw Problem(error, limit: 0)
        }
    }

    /// The problem of a request for an upload that has ended. Only an upload that was stored is called complete.
    private func ended(_ end: SessionState.End) -> Problem {
        switch end {
        case .committed:
            return Problem(
                .uploadConflict, "The upload is complete.",
                type: "https://iana.org/assignments/http-problem-types#completed-upload")
        case .closed(OpenUpload.cancelled): return Problem(.uploadConflict, "The upload was cancelled.")
        case .closed(let record):
            let refusal = Problem(record: record)
            guard refusal.code != .internal else { return refusal }
            return Problem(
                .uploadConflict,
                "The upload was refused: \(refusal.code.rawValue). \(refusal.detail)")
        }
    }

    // MARK: The end

    /// Evaluates the current rules with the complete body, and commits the object. If the upload was committed before,
    /// also by another gateway at the same time, the result is the same.
    /// - Parameter selection: The parts of the object, for an upload in parts, at least one.
    func finish(_ upload: OpenUpload, _ selection: PartsSelection? = nil) async throws(Problem) -> OperationResult {
        context.outlivesClient = true
        await uploads.finishing.take(upload.id.text)
        defer { uploads.finishing.end(upload.id.text) }
        return try await repeatedly { () throws(Problem) in try await finishOnce(upload, selection) }
    }

    private func finishOnce(_ upload: OpenUpload, _ selection: PartsSelection?) async throws(Problem)
        -> OperationResult
    {
        let state: SessionState
        var known: ContentFacts?
        do throws(SessionError) {
            let session = upload.session
            state = try await uncancelled { () throws(SessionError) in try await session.state() }
            if state.end == nil {
                if let selection, let session = upload.session as? any PartsUpload {
                    try await session.select(selection.parts, checksum: selection.kept)
                }
                known = try await upload.session.finish()
            }
        } catch {
            throw Problem(error)
        }
        guard let facts = known else { return try replay(upload, state) }
        context.upload?.offset = facts.size
        if selection != nil {
            if facts.size > bucket.maximumObjectSize {
                throw Problem(BodyError.tooLarge, limit: bucket.maximumObjectSize)
            }
            upload.state.offset = facts.size
        }
        if let size = selection?.size, size != facts.size {
            throw Problem(SessionError.lengthMismatch(declared: size))
        }
        guard facts.size == upload.state.offset else {
            throw Problem(SessionError.offsetMismatch(durable: facts.size), offset: upload.state.offset)
        }
        if let length = state.length, length != facts.size {
            throw Problem(SessionError.lengthMismatch(declared: length))
        }
        let result: CommitResult
        do throws(Problem) {
            result = try await commit(upload, state, facts)
        } catch {
            guard error.isFinal, upload.context.dialect.endsRefused else { throw error }
            if let stored = try await refuse(upload, error) { return stored }
            throw error
        }
        context.upload?.isComplete = true
        uploads.ended(upload.id, result.isRepeated ? nil : .finished)
        do throws(Problem) {
            try await bucket.confirm(result, facts)
        } catch {
            // A repeated request must not report an object that is not there.
            try? await upload.session.cancel()
            throw error
        }
        return .stored(result)
    }

    /// Ends an upload that can't be stored any more.
    /// - Returns: The result of another gateway's commit meanwhile, which may be the object decided about here.
    private func refuse(_ upload: OpenUpload, _ problem: Problem) async throws(Problem)
        -> OperationResult?
    {
        let (session, record, until) = (upload.session, problem.record, resultUntil)
        do throws(SessionError) {
            try await session.close(record, until: until)
        } catch {
            if case .finished = error {
                // Without an end, the request is repeated.
                guard let state = try? await session.state(), state.end != nil else {
                    throw Problem(error)
                }
                return try replay(upload, state)
            }
        }
        context.upload?.isComplete = true
        if !upload.context.dialect.outlivesFailures { try? await session.cancel() }
        uploads.ended(upload.id, .refused)
        return nil
    }

    /// The time until which a session that ends now reports its result, in seconds since 1970.
    private var resultUntil: Int64 { context.now + uploads.settings.resultLifetime }

    /// Decides and commits like an upload in one request, with the session's creator as the caller.
    private func commit(_ upload: OpenUpload, _ state: SessionState, _ facts: ContentFacts)
        async throws(Problem) -> CommitResult
    {
        let saved = upload.context
        try requireOrigin(saved)
        if facts.crc32c == nil, saved.digests.crc32c != nil {
            throw Problem(.notImplemented, "The bucket's store does not report the crc32c of parts.")
        }
        if let algorithm = saved.digests.mismatch(facts) {
            throw Problem(
                .checksumMismatch,
                "The \(algorithm) of the received bytes is another; nothing was stored.")
        }
        context.caller.become(saved.caller)
        let access = RequestedAccess(.create, bucket: bucket.name, upload.name)
        let authorizer = Authorizer(context, bucket, access, saved.link, parameters: saved.parameters)
        authorizer.proposal.attributes = state.attributes
        let handler = OperationHandler(context: context, authorizer: authorizer, bucket: bucket)
        let (session, until) = (upload.session, resultUntil)
        let result = try await handler.commit(
            facts, upload.name, saved.conditions, known: .unknown
        ) { (pins) throws(Problem) in
            do throws(SessionError) {
                return try await session.commit(facts, pins, resultUntil: until)
            } catch {
                let problem = Problem(error)
                if problem.code == .preconditionFailed, saved.conditions.comparesS3Tags, saved.conditions.ifMatch != nil
                {
                    // A missing object is reported as such.
                    try saved.conditions.check(try await bucket.current(upload.name))
                }
                throw problem
            }
        }
        if !result.isRepeated { bucket.changed(.stored(result.metadata)) }
        return result
    }

    /// The result of an upload that has ended.
    private func replay(_ upload: OpenUpload, _ state: SessionState) throws(Problem)
        -> OperationResult
    {
        uploads.ended(upload.id, nil)
        context.upload?.offset = state.offset
        context.upload?.isComplete = true
        switch state.end {
        case .committed(let result): return .stored(result)
        case .closed(let record)? where record != OpenUpload.cancelled: throw Problem(record: record)
        case let end?: throw ended(end)
        case nil: throw Problem(SessionError.notFound)
        }
    }
}

extension Problem {
    /// Whether this problem is final, so that the upload can never be stored. A failed store may recover, and a
    /// disconnected client may return.
    fileprivate var isFinal: Bool {
        guard self !== RequestContext.clientGone else { return false }
        switch code {
        case .checksumMismatch, .unauthenticated, .unauthorized, .invalidArgument, .invalidLink,
            .linkExpired, .preconditionFailed, .payloadTooLarge:
            return true
        default: return false
        }
    }

    /// The record of a session that this problem has closed.
    fileprivate var record: [UInt8] {
        var json = JSONWriter(reserving: 128)
        json.beginObject()
        json.member("code", code.rawValue)
        json.member("detail", detail)
        json.endObject()
        return json.bytes
    }

    /// Restores the problem from its ``record``.
    fileprivate convenience init(record: [UInt8]) {
        guard let json = try? JSONReader.parse(record),
            let code = json["code"]?.text.flatMap(Code.init), let detail = json["detail"]?.text
        else {
            self.init(
                .internal, "The request id leads to the cause.",
                cause: "the record of a refused upload can't be read: it has \(record.count) bytes")
            return
        }
        self.init(
            code, detail, cause: "the upload was refused before", field: code.status == 401 ? Problem.challenge : nil)
    }
}
