import Buckets
import HTTPServer
import System
import Wire

extension OperationHandler {
    /// Streams the body into an upload, which becomes visible after a second decision with its actual facts.
    func upload(_ name: ObjectName, _ request: UploadRequest) async throws(Problem)
        -> OperationResult
    {
        do throws(Problem) {
            return try await receivedUpload(name, request)
        } catch {
            request.body?.stop()
            throw error
        }
    }

    private func receivedUpload(_ name: ObjectName, _ request: UploadRequest)
        async throws(Problem) -> OperationResult
    {
        let (plan, conditions, existing) = try await prepare(name, request)
        let upload = try await bucket.beginUpload(name, plan)
        let staging = self.staging(upload, isBounded: request.size != nil)
        defer { staging.end() }
        let facts: ContentFacts
        let result: CommitResult
        do throws(Problem) {
            facts = try await receive(request, into: upload, staging)
            result = try await commit(facts, name, conditions, known: existing) {
                (pins) throws(Problem) in
                guard upload.isOpen else { throw OperationHandler.overtaken }
                return try await bucket.commit(upload, pins)
            }
        } catch {
            if upload.isOpen { upload.abort() }
            throw error
        }
        try await bucket.confirm(result, facts)
        return .stored(result)
    }

    /// Decides with the facts in the head.
    /// - Returns: The parameters of the store's upload, the conditions, and the existing object if it was looked up.
    /// - Throws: ``Problem`` for a denial that the body can't change, and for conditions that don't hold.
    func prepare(_ name: ObjectName, _ request: UploadRequest) async throws(Problem)
        -> (UploadPlan, Preconditions, CurrentObject)
    {
        var existing = CurrentObject.unknown
        authorizer.proposal = request.proposal
        let missing = try await authorizer.evaluate(&existing, name)
        let conditions = try request.conditions.get()
        try await bucket.require(conditions, \.atomicUploads)
        var plan = request.plan
        plan.isDecided = missing == .nothing
        plan.wantsMD5 = request.digests.md5 != nil || missing != .nothing
        plan.preconditions = conditions.pinned(to: existing)
        plan.existing = existing
        // Don't reveal whether the object exists until the caller is authorized.
        if missing == .nothing, !conditions.isEmpty {
            // Report a condition that does not hold before the body is received. The commit evaluates it again.
            if plan.existing == .unknown { plan.existing = try await bucket.current(name) }
            try conditions.check(plan.existing)
        }
        return (plan, conditions, existing)
    }

    /// Decides with the actual facts and commits. If the object changed meanwhile, both are repeated.
    /// - Parameters:
    ///   - known: The existing object before the body arrived, if it was looked up.
    ///   - commit: Makes the object visible under these conditions, as long as the store has its bytes.
    func commit(
        _ facts: ContentFacts, _ name: ObjectName, _ conditions: Preconditions, known: CurrentObject,
        _ commit: (Preconditions) async throws(Problem) -> CommitResult
    ) async throws(Problem) -> CommitResult {
        authorizer.proposal.size = facts.size
        authorizer.proposal.md5 = facts.md5
        authorizer.proposal.crc32c = facts.crc32c
        authorizer.proposal.isComplete = true
        var existing = known
        // The object may have changed during the upload. Read it again if the store accepts new conditions now.
        var isStale = known != .unknown
        if isStale { isStale = try await bucket.capabilities().lateConditions }
        return try await undisturbed(name) { () async throws(Problem) in
            if isStale { existing = try await bucket.current(name) }
            isStale = true
            try await authorizer.authorize(&existing, name)
            let pins = try await bucket.pinned(conditions, to: existing, \.atomicUploads)
            do throws(Problem) {
                return try await bucket.changing(name.value) { () async throws(Problem) in try await commit(pins) }
            } catch {
                guard error.code == .preconditionFailed, pins != conditions else { throw error }
                return nil
            }
        }
    }

    /// Counts the bytes on their way to the store.
    /// - Parameter isBounded: Whether the body's length is declared. The rules have decided on it then.
    func staging(_ upload: any Upload, isBounded: Bool) -> StagingSink {
        let principal = context.caller.principal
        let name = principal?.uid ?? CallerLimits.network(of: context.exchange.peer)
        let caller = "\(context.record.group)\0\(principal?.source ?? "")\0\(name)"
        return StagingSink(
            upload, bucket.staged, caller: BytewiseString(caller), bucket.stagingLimits
        ) {
            [unowned authorizer] in
            isBounded ? nil : authorizer.largestUpload()
        }
    }

    /// Receives the body and verifies its length and digests.
    private func receive(
        _ request: UploadRequest, into upload: any Upload, _ staging: StagingSink
    ) async throws(Problem) -> ContentFacts {
        if context.exchange.head.hasBody {
            defer { context.record.bytesIn = staging.count }
            do throws(BodyError) {
                let sink = context.lease?.pacing(staging) ?? staging
                let limit = min(request.size ?? .max, bucket.maximumObjectSize)
                if let body = request.body {
                    try await body.receive(into: sink, limit: limit)
                } else {
                    _ = try await context.exchange.receive(into: sink, limit: limit)
                }
            } catch {
                if case .tooLarge = error, let size = request.size {
                    throw Problem(SessionError.lengthMismatch(declared: size))
                }
                throw try await rejection(of: error)
            }
        }
        // A body without a length of its own may differ from `Upload-Length`.
        if let size = request.size, size != context.record.bytesIn {
            throw Problem(SessionError.lengthMismatch(declared: size))
        }
        let facts = try await bucket.finish(upload)
        if facts.size != context.record.bytesIn {
            throw Problem(.invalidArgument, "The body does not have its declared length.")
        }
        try request.digests.verify(facts, "nothing was stored")
        try request.body?.trailer?.verify(facts, "nothing was stored")
        if let checksum = request.body?.checksum { _ = upload.keep(checksum) }
        return facts
    }

    /// Why a body was not received completely.
    func rejection(of error: BodyError) async throws(Problem) -> Problem {
        switch error {
        case .sink(let beyond as StagingSink.BeyondRules):
            // No rule allows this size. The policy provides the reason.
            authorizer.proposal.size = beyond.bytes + 1
            _ = try await authorizer.evaluate()
            return Problem(
                .unauthorized, Problem.denied,
                cause: "the body has more than the \(beyond.bytes) bytes that the rules can allow")
        case .sink(let limit as StagedBytes.LimitExceeded):
            let cause = "\(limit.bytes) bytes are the limit of the \(limit.limit.rawValue)"
            return limit.limit == .caller
                ? Problem(
                    .tooManyRequests, "Too many bytes of the caller's uploads are not stored yet.",
                    cause: cause, field: ("retry-after", "1"))
                : Problem(
                    .overloaded, "Too many bytes of uploads are not stored yet.", cause: cause,
                    field: ("retry-after", "1"))
        case .sink(let problem as Problem): return problem
        case .sink(let error as SessionError): return Problem(error)
        default: return Problem(error, limit: bucket.maximumObjectSize)
        }
    }
}
