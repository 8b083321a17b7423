import Buckets
import HTTPServer
import Wire

extension OperationHandler {
    /// Changes only the metadata.
    func patch(_ name: ObjectName, _ request: PatchRequest) async throws(Problem)
        -> OperationResult
    {
        var existing = CurrentObject.unknown
        _ = try await authorizer.evaluate(&existing, name)
        let conditions = try request.conditions.get()
        try await bucket.require(conditions, \.atomicPatches)
        if let problem = request.problem { throw problem }
        let text = try await context.collect(limit: AttributePatch.maximumBytes)
        let patch = try request.decode(text)
        return .patched(try await apply(patch, name, conditions))
    }

    /// Authorizes and applies a patch. The rules may have read the object, and the limit of custom metadata applies to
    /// the result. So the patch is pinned to the version that was read, and repeated if the object changed meanwhile.
    private func apply(_ patch: AttributePatch, _ name: ObjectName, _ conditions: Preconditions)
        async throws(Problem) -> ObjectMetadata
    {
        authorizer.proposal.patch = patch
        return try await undisturbed(name) { () async throws(Problem) in
            var existing = CurrentObject.unknown
            try await authorizer.authorize(&existing, name)
            var isPinned = existing != .unknown
            // If the rules allowed the patch without reading `resource`, they allow it for every object.
            let isOfResult = !isPinned || authorizer.isAllowedByResult(existing)
            if !isPinned, patch.addsCustomMetadata {
                existing = try await bucket.current(name)
                // If the store can't pin, a concurrent patch can exceed the limit of custom metadata.
                isPinned = try await bucket.capabilities().pinnedPatches
            }
            if case .absent = existing { throw Problem(BucketError(.objectNotFound)) }
            let pins =
                isPinned
                ? try await bucket.pinned(conditions, to: existing, isOfResult ? \.pinnedPatches : \.atomicPatches)
                : conditions
            if patch.addsCustomMetadata, case .object(let current) = existing {
                try ObjectAttributes.checkSize(
                    patch.applied(to: current.attributes).customMetadata)
            }
            do throws(Problem) {
                return try await bucket.patch(name, patch, pins)
            } catch {
                guard error.code == .preconditionFailed, pins != conditions else { throw error }
                return nil
            }
        }
    }

    /// Deletes the object.
    /// - Parameter isIdempotent: Whether it succeeds if there is no object, whatever the conditions.
    func delete(_ name: ObjectName, _ conditions: Conditions, isIdempotent: Bool = false) async throws(Problem)
        -> OperationResult
    {
        do throws(Problem) {
            return try await deleteExisting(name, conditions, isIdempotent: isIdempotent)
        } catch {
            guard isIdempotent, error.code == .objectNotFound else { throw error }
            return .deleted
        }
    }

    private func deleteExisting(_ name: ObjectName, _ conditions: Conditions, isIdempotent: Bool)
        async throws(Problem) -> OperationResult
    {
        try await undisturbed(name) { () async throws(Problem) in
            var existing = CurrentObject.unknown
            try await authorizer.authorize(&existing, name)
            // A store reports a missing object as a condition that fails.
            if isIdempotent, existing == .unknown, conditions !== Conditions.none {
                existing = try await bucket.current(name)
            }
            if case .absent = existing { throw Problem(BucketError(.objectNotFound)) }
            let conditions = try conditions.get()
            try await bucket.require(conditions, \.atomicDeletions)
            let pins = try await bucket.pinned(conditions, to: existing, \.atomicDeletions)
            do throws(Problem) {
                try await bucket.delete(name, pins)
                return .deleted
            } catch {
                guard error.code == .preconditionFailed, pins != conditions else { throw error }
                return nil
            }
        }
    }

    /// Makes a change pinned to the version that was decided on, and repeats it if the object changed meanwhile.
    ///
    /// After the first failure it waits for its turn, and so do all later changes of the object. Each change then sees
    /// the result of the previous one.
    /// - Parameter attempt: Decides and makes the change. It returns nil if the object changed meanwhile.
    /// - Throws: ``Problem``; ``overtaken`` if clients of the store keep changing the object.
    func undisturbed<Result>(
        _ name: ObjectName, _ attempt: () async throws(Problem) -> Result?
    ) async throws(Problem) -> Result {
        let turns = bucket.turns
        if !turns.isTaken(name.value), let result = try await attempt() { return result }
        await turns.take(name.value)
        defer { turns.end(name.value) }
        for _ in 0..<OperationHandler.attempts {
            if context.exchange.isClientGone { throw RequestContext.clientGone }
            if let result = try await attempt() { return result }
        }
        throw OperationHandler.overtaken
    }

    /// How often a change that holds its turn is repeated.
    static let attempts = 16

    /// The problem after the last repetition.
    static let overtaken = Problem(
        .overloaded, "The object is being changed by others; try again.",
        cause: "the object that was decided on was changed meanwhile", field: ("retry-after", "1"))
}
