import Buckets
import HTTPServer
import System
import Wire

extension OperationHandler {
    /// Streams the body into an upload. It becomes visible only after a second decision with the actual size and
    /// digests.
    func upload(_ name: ObjectName, _ request: UploadRequest) async throws(Problem)
        -> OperationResult
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
        let upload = try await bucket.beginUpload(name, plan)
        let staging = self.staging(upload)
        defer { staging.end() }
        let facts: ContentFacts
        let result: CommitResult
        do throws(Problem) {
            facts = try await receive(request, into: upload, staging)
            authorizer.proposal.size = facts.size
            authorizer.proposal.md5 = facts.md5
            authorizer.proposal.crc32c = facts.crc32c
            result = try await commit(upload, name, conditions, existing)
        } catch {
            if upload.isOpen { upload.abort() }
            throw error
        }
        try await bucket.confirm(result, facts)
        return .stored(result)
    }

    /// Authorizes the upload with its actual size and digests and commits it. If the object changed meanwhile, the
    /// upload is authorized and committed again, as long as the store keeps its bytes.
    /// - Parameter known: The existing object before the body, if it was looked up.
    private func commit(
        _ upload: any Upload, _ name: ObjectName, _ conditions: Preconditions,
        _ known: CurrentObject
    ) async throws(Problem) -> CommitResult {
        var existing = known
        // The object may have changed while the body was received. Read it again if the store accepts new conditions
        // now.
        var isStale = known != .unknown
        if isStale { isStale = try await bucket.capabilities().lateConditions }
        return try await undisturbed(name) { () async throws(Problem) in
            if isStale { existing = try await bucket.current(name) }
            isStale = true
            try await authorizer.authorize(&existing, name)
            let pins = try await bucket.pinned(conditions, to: existing, \.atomicUploads)
            guard upload.isOpen else { throw OperationHandler.overtaken }
            do throws(Problem) {
                return try await bucket.commit(upload, pins)
            } catch {
                guard error.code == .preconditionFailed, pins != conditions else { throw error }
                return nil
            }
        }
    }

    /// Counts the bytes on their way to the store.
    private func staging(_ upload: any Upload) -> StagingSink {
        let principal = context.caller.principal
        let name = principal?.uid ?? CallerLimits.network(of: context.exchange.peer)
        var key = Array(context.record.group.utf8)
        for part in [principal?.source ?? "", name] {
            key.append(0)
            key.append(contentsOf: part.utf8)
        }
        return StagingSink(upload, bucket.staged, caller: key, bucket.stagingLimits) {
            [unowned authorizer] in
            authorizer.largestUpload()
        }
    }

    /// Receives the body and verifies its length and digests.
    private func receive(
        _ request: UploadRequest, into upload: any Upload, _ staging: StagingSink
    ) async throws(Problem) -> ContentFacts {
        if context.exchange.head.hasBody {
            defer { context.record.bytesIn = staging.count }
            do throws(BodyError) {
                _ = try await context.exchange.receive(
                    into: context.lease?.pacing(staging) ?? staging,
                    limit: bucket.maximumObjectSize)
            } catch {
                throw try await refused(error)
            }
        }
        let facts = try await bucket.finish(upload)
        if facts.size != request.size ?? facts.size || facts.size != context.record.bytesIn {
            throw Problem(.invalidArgument, "The body does not have its declared length.")
        }
        if let algorithm = request.digests.mismatch(facts) {
            throw Problem(
                .checksumMismatch,
                "The \(algorithm) of the received bytes is another; nothing was stored.")
        }
        return facts
    }

    /// Why a body was not received completely.
    private func refused(_ error: BodyError) async throws(Problem) -> Problem {
        switch error {
        case .sink(let beyond as StagingSink.BeyondRules):
            // No rule allows this size. The policy provides the reason.
            authorizer.proposal.size = beyond.bytes + 1
            _ = try await authorizer.evaluate()
            return Problem(
                .unauthorized, "The caller may not do this.",
                cause: "the body has more than the \(beyond.bytes) bytes that the rules can allow")
        case .sink(let refusal as StagedBytes.Refusal):
            let cause = "\(refusal.bytes) bytes are the limit of the \(refusal.limit.rawValue)"
            return refusal.limit == .caller
                ? Problem(
                    .tooManyRequests, "Too many bytes of the caller's uploads are not stored yet.",
                    cause: cause, field: ("retry-after", "1"))
                : Problem(
                    .overloaded, "Too many bytes of uploads are not stored yet.", cause: cause,
                    field: ("retry-after", "1"))
        default: return Problem(error, limit: bucket.maximumObjectSize)
        }
    }
}
