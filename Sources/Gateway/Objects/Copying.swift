import Buckets
import HTTPServer
import System
import Wire

/// A copy or a move. A class because it is large, so that other operations stay small.
final class CopyRequest {
    let source: ObjectName
    /// The source's bucket.
    let bucket: Bucket
    /// Whether the source is deleted after the copy.
    let removesSource: Bool
    /// The generation that the source must have; nil for any.
    let sourceGeneration: Int64?
    /// The preconditions of the source.
    let sourceConditions: Conditions
    /// The preconditions of the new object's name.
    let conditions: Conditions
    /// The changes of the source's properties, in the body.
    let changes: PatchRequest
    /// The new object's properties instead of the source's; nil to keep those.
    let attributes: ObjectAttributes?

    init(
        _ source: ObjectName, in bucket: Bucket, removesSource: Bool, sourceGeneration: Int64?,
        sourceConditions: Conditions = .none, _ conditions: Conditions, _ changes: PatchRequest,
        attributes: ObjectAttributes? = nil
    ) {
        self.source = source
        self.bucket = bucket
        self.removesSource = removesSource
        self.sourceGeneration = sourceGeneration
        self.sourceConditions = sourceConditions
        self.conditions = conditions
        self.changes = changes
        self.attributes = attributes
    }
}

extension OperationHandler {
    /// Copies or moves an object. The rules decide a `get` of the source and a `create` of the new object, and for a move
    /// also a `delete` of the source. All decisions are pinned to the versions that they were based on.
    func copy(_ name: ObjectName, _ request: CopyRequest) async throws(Problem) -> OperationResult {
        let sources = SourceAuthorizer(self, request)
        var source = CurrentObject.unknown
        try await sources.authorize(&source)
        if request.bucket === bucket, BytewiseString.areEqual(name.value, request.source.value) {
            throw Problem(.invalidArgument, "An object can't be copied onto itself. PATCH changes its properties.")
        }
        let conditions = try request.conditions.get()
        try await bucket.require(conditions, \.atomicUploads)
        if request.removesSource { try await requireMoves(request) }
        if let problem = request.changes.problem { throw problem }
        let text = try await context.collect(limit: AttributePatch.maximumBytes)
        let patch = text.isEmpty ? AttributePatch() : try request.changes.decode(text)
        // Whether an attempt has failed because the source or the target was changed. Both are then looked up.
        var isContested = false
        let (result, remaining) = try await undisturbed(name) { () async throws(Problem) in
            if isContested { source = .unknown }
            let object = try await sources.object(&source)
            var plan = CopyPlan(
                object, try copied(request.attributes ?? object.attributes, patch), removesSource: request.removesSource
            )
            authorizer.proposal.attributes = plan.attributes
            authorizer.proposal.size = object.size
            authorizer.proposal.md5 = object.md5
            authorizer.proposal.crc32c = object.crc32c
            authorizer.proposal.isComplete = true
            if isContested { plan.existing = try await bucket.current(name) }
            try await authorizer.authorize(&plan.existing, name)
            plan.preconditions = try await bucket.pinned(conditions, to: plan.existing, \.atomicUploads)
            do throws(Problem) {
                return try await performed(plan, name, request)
            } catch {
                guard error.code == .preconditionFailed || error.code == .objectNotFound else { throw error }
                isContested = true
                return nil
            }
        }
        if let remaining { try await remove(remaining, request) }
        return .stored(result)
    }

    /// Checks that the store can delete the copied version and no other. Otherwise each move would leave two objects.
    private func requireMoves(_ request: CopyRequest) async throws(Problem) {
        let capabilities = try await request.bucket.capabilities()
        guard capabilities.atomicMoves || capabilities.atomicDeletions else {
            throw Problem(
                .notImplemented, "The source's store can't delete the copied version alone. Nothing was copied.")
        }
    }

    /// Deletes the source of a move, if it is still the copied object.
    private func remove(_ object: ObjectMetadata, _ request: CopyRequest) async throws(Problem) {
        do throws(Problem) {
            try await request.bucket.delete(request.source, Preconditions().pinned(to: .object(object)))
        } catch {
            if error.code == .objectNotFound { return }
            throw Problem(
                error.code, "The object was copied, but the source could not be deleted: both exist.",
                cause: error.cause ?? error.detail)
        }
    }

    /// The properties of a copy: those of the source with the request's changes, without download tokens. The store
    /// may add those that depend on the parts of the source.
    private func copied(_ attributes: ObjectAttributes, _ patch: AttributePatch) throws(Problem) -> ObjectAttributes {
        var attributes = patch.applied(to: attributes)
        attributes.system = SystemMetadata(s3: attributes.system.s3?.withoutParts)
        if patch.addsCustomMetadata { try ObjectAttributes.checkSize(attributes.customMetadata) }
        return attributes
    }

    /// Makes the copy: by the store itself if it can, otherwise by reading and storing the bytes.
    /// - Returns: The result, and the source if it must still be deleted.
    private func performed(_ plan: CopyPlan, _ name: ObjectName, _ request: CopyRequest)
        async throws(Problem) -> (CommitResult, ObjectMetadata?)
    {
        guard request.bucket === bucket else {
            var copy = plan
            copy.removesSource = false
            return (try await streamedCopy(copy, to: name, request), plan.removesSource ? plan.source : nil)
        }
        let capabilities = try await bucket.capabilities()
        let remaining = plan.removesSource && !capabilities.atomicMoves ? plan.source : nil
        var plan = plan
        if remaining != nil { plan.removesSource = false }
        if capabilities.copies && (plan.preconditions.isEmpty || capabilities.atomicCopies) {
            return (try await bucket.copy(to: name, plan), remaining)
        }
        return (try await streamedCopy(plan, to: name, request), remaining)
    }

    /// Copies the bytes through the gateway: between buckets, and in stores that can't copy under these conditions.
    private func streamedCopy(_ plan: CopyPlan, to name: ObjectName, _ request: CopyRequest)
        async throws(Problem) -> CommitResult
    {
        let object = plan.source
        let reader = try await request.bucket.open(request.source, ReadPlan())
        guard reader.metadata.generation == object.generation, reader.metadata.etag == object.etag else {
            reader.close()
            throw Problem(BucketError(.preconditionFailed))
        }
        let bytes = try await request.bucket.bytes(of: reader, 0..<object.size)
        defer { bytes.close() }
        var upload = UploadPlan(
            plan.attributes, size: object.size, preconditions: plan.preconditions, existing: plan.existing)
        upload.md5 = object.md5
        upload.crc32c = object.crc32c
        upload.wantsMD5 = object.md5 != nil
        let target = try await bucket.beginUpload(name, upload)
        let staging = self.staging(target, isBounded: true)
        defer { staging.end() }
        let facts: ContentFacts
        do throws(Problem) {
            try await move(bytes, into: staging)
            facts = try await bucket.finish(target)
            guard facts.size == object.size, facts.crc32c == object.crc32c ?? facts.crc32c,
                object.md5 == nil || facts.md5 == object.md5
            else { throw Problem(BucketError(.unavailable, "the bytes of the source differ from its digests")) }
        } catch {
            if target.isOpen { target.abort() }
            throw error
        }
        let result: CommitResult
        do throws(Problem) {
            result = try await bucket.changing(name.value) { () async throws(Problem) in
                try await bucket.commit(target, plan.preconditions)
            }
        } catch {
            if target.isOpen { target.abort() }
            throw error
        }
        try await bucket.confirm(result, facts)
        return result
    }

    /// Moves all bytes of a source into a sink.
    func move(_ source: any ByteSource, into sink: any ByteSink) async throws(Problem) {
        var buffer = [UInt8](repeating: 0, count: 64 * 1024)
        while true {
            try await context.giveWay()
            let read: SourceRead
            do {
                var span = buffer.mutableSpan
                var bytes = span.mutableBytes
                read = try source.read(into: &bytes)
            } catch {
                throw Problem(error as? BucketError ?? BucketError(.unavailable, "\(error)"))
            }
            switch read {
            case .end: return
            case .wait: await suspend { waiter in source.whenReadable { waiter.resume() } }
            case .bytes(let count):
                var offset = 0
                while offset < count {
                    let taken: Int
                    do {
                        taken = try sink.write(buffer.span.bytes.extracting(offset..<count))
                    } catch {
                        throw try await rejection(of: .sink(error))
                    }
                    offset += taken
                    if offset < count { await suspend { waiter in sink.whenWritable { waiter.resume() } } }
                }
            }
        }
    }
}

/// Authorizes what a copy or a move does to its source. Confined to the request's loop.
struct SourceAuthorizer {
    private let request: CopyRequest
    /// In bytes.
    private let maximumSize: UInt64
    private let authorizers: [Authorizer]

    init(_ handler: OperationHandler, _ request: CopyRequest) {
        let bucket = request.bucket
        self.request = request
        maximumSize = handler.bucket.maximumObjectSize
        let kinds: [RequestedAccess.Kind] = request.removesSource ? [.get, .delete] : [.get]
        authorizers = kinds.map { kind in
            Authorizer(
                handler.context, bucket, RequestedAccess(kind, bucket: bucket.name, request.source), nil,
                parameters: handler.authorizer.parameters)
        }
    }

    /// Evaluates the policy with the source, which is looked up if a decision depends on it.
    func authorize(_ source: inout CurrentObject) async throws(Problem) {
        for authorizer in authorizers { try await authorizer.authorize(&source, request.source) }
    }

    /// The authorized source. It is looked up if it is not known.
    func object(_ source: inout CurrentObject) async throws(Problem) -> ObjectMetadata {
        if source == .unknown {
            try await authorize(&source)
            if source == .unknown { source = try await request.bucket.current(request.source) }
        }
        guard case .object(let object) = source else { throw Problem(BucketError(.objectNotFound)) }
        if let generation = request.sourceGeneration, generation != object.generation {
            throw Problem(BucketError(.preconditionFailed))
        }
        if try request.sourceConditions.get().evaluate(object, reading: true) != nil {
            throw Problem(BucketError(.preconditionFailed))
        }
        if object.size > maximumSize { throw Problem(BodyError.tooLarge, limit: maximumSize) }
        return object
    }
}
