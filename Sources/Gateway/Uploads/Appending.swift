import Buckets
import HTTPServer
import System
import Wire

extension OperationHandler {
    /// Appends the request's body to an upload and makes it durable, even if the body is incomplete.
    /// - Returns: The durable offset.
    /// - Throws: ``Problem``. The context's report then has the offset, if it is known.
    func append(_ request: AppendRequest, to upload: OpenUpload) async throws(Problem) -> UInt64 {
        uploads.ledger.appends(upload.id)
        defer {
            uploads.ledger.appended(
                upload.id, received: context.upload?.offset ?? upload.state.offset)
        }
        do throws(Problem) {
            let offset = try await receive(request, upload)
            count(upload, .stored)
            context.upload?.offset = offset
            return offset
        } catch {
            failed(error, upload)
            // Received bytes that do not count are no longer staged.
            if upload.state.length == nil, let offset = context.upload?.offset {
                try? stage(offset, upload)
            }
            throw error
        }
    }

    /// Checks an append without bytes that completes an upload, without a request to the store.
    func complete(_ request: AppendRequest, _ upload: OpenUpload) throws(Problem) {
        do throws(Problem) {
            _ = try plan(request, upload)
            count(upload, .stored)
        } catch {
            failed(error, upload)
            throw error
        }
    }

    /// Counts a failed append, and reports the offset if the problem has it.
    private func failed(_ problem: Problem, _ upload: OpenUpload) {
        if let member = problem.members.first(where: { "\($0.name)" == "expected-offset" }) {
            context.upload?.offset = UInt64(clamping: member.value)
        }
        switch problem.code {
        case .uploadConflict, .uploadOffsetMismatch: count(upload, .conflict)
        case .requestTimeout: count(upload, .cut)
        case .invalidArgument where context.exchange.isClientGone: count(upload, .cut)
        default: count(upload, .refused)
        }
    }

    private func count(_ upload: OpenUpload, _ result: UploadStatistics.AppendResult) {
        bucket.uploads.statistics.appended(bucket.name, upload.context.dialect, result)
    }

    /// The plan of an append for the store.
    /// - Throws: ``Problem`` if the offset is not the upload's, or the declared lengths contradict each other or are too
    ///   large. The store compares them with the session again.
    private func plan(_ request: AppendRequest, _ upload: OpenUpload) throws(Problem) -> AppendPlan {
        let durable = upload.state.offset
        guard request.offset == durable else {
            throw Problem(SessionError.offsetMismatch(durable: durable), offset: request.offset)
        }
        let head = context.exchange.head
        let body = head.hasBody ? head.contentLength : 0
        if let body, request.isLast, body < request.skipped { throw endsTooEarly(request) }
        let size = body.map { $0 - min($0, request.skipped) }
        var plan = AppendPlan(
            at: request.offset, size: size, length: request.length, isAllOrNothing: request.isVerified)
        if let length = request.length, !upload.context.dialect.overlaps,
            length != upload.state.length ?? length || length < request.offset
        {
            throw Problem(SessionError.lengthMismatch(declared: upload.state.length ?? length))
        }
        if let size {
            let (end, isOverflow) = request.offset.addingReportingOverflow(size)
            let length = request.length ?? (request.isLast ? end : .max)
            guard !isOverflow, end <= length else {
                throw problem(.lengthExceeded(limit: length), request, upload)
            }
            if request.isLast, end < length {
                throw Problem(SessionError.lengthMismatch(declared: length))
            }
            if request.isLast, !upload.context.dialect.overlaps { plan.length = end }
            if end > bucket.maximumObjectSize {
                throw Problem(BodyError.tooLarge, limit: bucket.maximumObjectSize)
            }
        }
        if let length = request.length, length > bucket.maximumObjectSize {
            throw Problem(BodyError.tooLarge, limit: bucket.maximumObjectSize)
        }
        return plan
    }

    /// Begins to append. If appends of the dialect may overlap, bytes that were stored meanwhile are skipped.
    /// - Returns: The append, and the declared length.
    private func begin(_ request: inout AppendRequest, _ upload: OpenUpload)
        async throws(Problem) -> (any SessionAppend, UInt64?)
    {
        for attempt in 1... {
            let plan = try plan(request, upload)
            let length = upload.state.length ?? plan.length
            // The reservation may have lapsed.
            if let length { try stage(length, upload) }
            do throws(SessionError) {
                guard let session = upload.session as? any UploadSession else { throw .notFound }
                return (try await session.append(plan), length)
            } catch {
                // The store has not accepted the length, so the received bytes count.
                if upload.state.length == nil { try? stage(upload.state.offset, upload) }
                if case .finished = error, let state = try? await upload.session.state() { upload.state = state }
                guard case .offsetMismatch(let durable) = error, upload.context.dialect.overlaps,
                    durable > request.offset, attempt < OperationHandler.attempts
                else { throw problem(error, request, upload) }
                request.skip(to: durable)
                upload.state.offset = durable
            }
        }
        preconditionFailure("the last attempt returns or throws")
    }

    private func receive(_ request: AppendRequest, _ upload: OpenUpload) async throws(Problem)
        -> UInt64
    {
        var request = request
        let (append, length) = try await begin(&request, upload)
        let exchange = context.exchange
        append.whenStopped { exchange.stopReceiving(SessionError.superseded) }
        if let progress = request.progress { append.whenDurable(progress) }
        let sink = SessionSink(append, request) { [self] count in
            if length == nil { try stage(request.offset + count, upload) }
        }
        let whole = SkippingSink(sink, request.skipped)
        defer { context.record.bytesIn = sink.count }
        do throws(BodyError) {
            if exchange.head.hasBody {
                let rest = bucket.maximumObjectSize - min(request.offset, bucket.maximumObjectSize)
                let (limit, isOverflow) = rest.addingReportingOverflow(request.skipped)
                let bytes: any ByteSink = request.skipped > 0 ? whole : sink
                _ = try await exchange.receive(
                    into: context.lease?.pacing(bytes) ?? bytes, limit: isOverflow ? .max : limit)
            }
        } catch {
            throw await ended(append, by: error, request, upload)
        }
        if let name = sink.mismatch(request) {
            await append.discard()
            context.upload?.offset = request.offset
            throw Problem(
                .checksumMismatch,
                "The \(name) of the received bytes is another; none of them counts.")
        }
        do throws(SessionError) {
            let offset = try await append.end()
            if whole.rest == 0 || !request.isLast { return offset }
        } catch {
            throw Problem(error)
        }
        throw endsTooEarly(request)
    }

    /// The result of a last part that ends before the durable offset.
    private func endsTooEarly(_ request: AppendRequest) -> Problem {
        Problem(
            SessionError.offsetMismatch(durable: request.offset),
            offset: request.offset - request.skipped)
    }

    /// Records `bytes` as the staged size of the upload.
    private func stage(_ bytes: UInt64, _ upload: OpenUpload) throws(Problem) {
        do throws(UploadLedger.LimitExceeded) {
            try bucket.uploads.ledger.set(upload.id, bytes: bytes, sessionLimits(upload.context.dialect))
        } catch {
            // Bytes are arriving and can't wait. The client's next attempt finds the corrected count.
            if let driver = bucket.driver as? any SessionDriver {
                let (uploads, name) = (bucket.uploads, bucket.name)
                let owner = error == .bucketBytes ? nil : upload.context.owner
                Task(executorPreference: EventLoop.current) {
                    await uploads.refresh(name, driver, owner: owner)
                }
            }
            throw Problem(error)
        }
    }

    /// Ends an append whose body was incomplete, and possibly the session.
    /// - Returns: The problem for the client.
    private func ended(
        _ append: any SessionAppend, by error: BodyError, _ request: AppendRequest,
        _ upload: OpenUpload
    ) async -> Problem {
        var problem = Problem(error, limit: bucket.maximumObjectSize)
        var isOver = false
        switch error {
        case .tooLarge: isOver = true
        case .sink(let failure as SessionError):
            if case .lengthExceeded = failure { isOver = true }
            problem = self.problem(failure, request, upload)
        case .sink(let error as Problem): problem = error
        case .clientGone, .timedOut, .sink: break
        }
        if isOver {
            await abandon(append, upload)
            return problem
        }
        do throws(SessionError) {
            if !request.isVerified {
                context.upload?.offset = try await append.end()
            } else {
                await append.discard()
                context.upload?.offset = request.offset
            }
        } catch {
            return Problem(error)
        }
        return problem
    }

    /// Converts a session's error to the problem that the upload's dialect reports.
    func problem(_ error: SessionError, _ request: AppendRequest, _ upload: OpenUpload)
        -> Problem
    {
        if case .lengthExceeded(let limit) = error, upload.context.dialect.endsAtLength {
            return Problem(.payloadTooLarge, "The upload has at most \(limit) bytes.")
        }
        return Problem(error, offset: request.offset)
    }

    /// Ends the upload, or only this append, because the body exceeds the upload's length.
    private func abandon(_ append: any SessionAppend, _ upload: OpenUpload) async {
        await append.discard()
        if upload.context.dialect.endsAtLength {
            context.upload?.offset = (try? await upload.session.state())?.offset
            return
        }
        try? await upload.session.cancel()
        bucket.uploads.ended(upload.id, .refused)
        context.upload = UploadReport(
            isComplete: true, maximumSize: bucket.maximumObjectSize)
    }
}
