import Buckets
import System

// The driver's operations, with their errors as problems.
extension Bucket {
    /// The guarantees of the store.
    func capabilities() async throws(Problem) -> Capabilities {
        do throws(BucketError) {
            return try await driver.capabilities()
        } catch {
            throw Problem(error)
        }
    }

    /// The metadata of the current object.
    func stat(_ name: ObjectName) async throws(Problem) -> ObjectMetadata {
        do throws(BucketError) {
            return try await driver.stat(name.value)
        } catch {
            throw Problem(error)
        }
    }

    /// The current object, or `.absent` if there is none.
    func current(_ name: ObjectName) async throws(Problem) -> CurrentObject {
        do throws(BucketError) {
            return .object(try await driver.stat(name.value))
        } catch {
            if error.code == .objectNotFound { return .absent }
            throw Problem(error)
        }
    }

    /// Opens the current object for reading through the cache.
    /// - Parameter mustAsk: Whether the store must be asked which version is current.
    func open(_ name: ObjectName, _ plan: ReadPlan, in cache: CachedBucket, mustAsk: Bool) async throws(Problem)
        -> CachedRead
    {
        do throws(BucketError) {
            return try await cache.open(name.value, plan, mustAsk: mustAsk)
        } catch {
            throw Problem(error)
        }
    }

    /// The metadata of the current object, from the cache.
    /// - Parameter mustAsk: Whether the store must be asked which version is current.
    func stat(_ name: ObjectName, in cache: CachedBucket, mustAsk: Bool) async throws(Problem)
        -> (ObjectMetadata, CacheOutcome)
    {
        do throws(BucketError) {
            return try await cache.stat(name.value, mustAsk: mustAsk)
        } catch {
            throw Problem(error)
        }
    }

    /// Makes a change of an object, and has the cache forget what it knows of it.
    func changing<Result>(_ name: String, _ change: () async throws(Problem) -> Result) async throws(Problem) -> Result
    {
        guard let cache else { return try await change() }
        return try await cache.change(name, change)
    }

    /// Opens the current object for reading.
    func open(_ name: ObjectName, _ plan: ReadPlan) async throws(Problem) -> any ObjectReader {
        do throws(BucketError) {
            return try await driver.open(name.value, plan)
        } catch {
            throw Problem(error)
        }
    }

    /// The bytes of an opened object; nil if they have to be waited for.
    func readyBytes(of reader: any ObjectReader, _ range: Range<UInt64>)
        throws(Problem) -> (any ByteSource)?
    {
        do throws(BucketError) {
            return try reader.readyBytes(range)
        } catch {
            throw Problem(error)
        }
    }

    /// The bytes of an opened object.
    func bytes(of reader: any ObjectReader, _ range: Range<UInt64>)
        async throws(Problem) -> any ByteSource
    {
        do throws(BucketError) {
            return try await reader.bytes(range)
        } catch {
            throw Problem(error)
        }
    }

    /// One page of a list, as the store returns it.
    func list(_ query: ListQuery, after: String?) async throws(Problem) -> ListPage {
        do throws(BucketError) {
            return try await driver.list(query, after: after)
        } catch {
            throw Problem(error)
        }
    }

    /// Begins an upload. It is not visible until ``commit(_:_:)``.
    func beginUpload(_ name: ObjectName, _ plan: UploadPlan) async throws(Problem) -> any Upload {
        do throws(BucketError) {
            return try await driver.beginUpload(name.value, plan)
        } catch {
            throw Problem(error)
        }
    }

    /// The size and digests of an upload, after all its bytes were written.
    func finish(_ upload: any Upload) async throws(Problem) -> ContentFacts {
        do throws(BucketError) {
            return try await upload.finish()
        } catch {
            throw Problem(error)
        }
    }

    /// Makes an upload visible.
    /// - Throws: ``Problem``: `precondition-failed` if the conditions do not hold. The upload may still be open then.
    func commit(_ upload: any Upload, _ conditions: Preconditions) async throws(Problem)
        -> CommitResult
    {
        let result: CommitResult
        do throws(BucketError) {
            result = try await upload.commit(conditions)
        } catch {
            throw Problem(error)
        }
        changed(.stored(result.metadata))
        return result
    }

    /// Changes only the metadata.
    func patch(_ name: ObjectName, _ patch: AttributePatch, _ conditions: Preconditions)
        async throws(Problem) -> ObjectMetadata
    {
        let object = try await changing(name.value) { () async throws(Problem) in
            do throws(BucketError) {
                return try await driver.patch(name.value, patch, conditions)
            } catch {
                throw Problem(error)
            }
        }
        changed(.patched(object))
        return object
    }

    /// Copies an object within the store.
    /// - Throws: ``Problem``: `precondition-failed` if the source or the target differs from the plan.
    func copy(to name: ObjectName, _ plan: CopyPlan) async throws(Problem) -> CommitResult {
        guard let driver = driver as? any CopyingDriver else {
            throw Problem(BucketError(.internal, "the store does not copy"))
        }
        func copy() async throws(Problem) -> CommitResult {
            do throws(BucketError) {
                return try await driver.copy(to: name.value, plan)
            } catch {
                throw Problem(error)
            }
        }
        let result = try await changing(name.value) { () async throws(Problem) in
            plan.removesSource ? try await changing(plan.source.name, copy) : try await copy()
        }
        changed(.stored(result.metadata))
        if plan.removesSource { changed(.deleted(name: plan.source.name)) }
        return result
    }

    /// Deletes the object.
    func delete(_ name: ObjectName, _ conditions: Preconditions) async throws(Problem) {
        try await changing(name.value) { () async throws(Problem) in
            do throws(BucketError) {
                try await driver.delete(name.value, conditions)
            } catch {
                throw Problem(error)
            }
        }
        changed(.deleted(name: name.value))
    }

    /// Compares the size and digests that the store reports with those received. If they differ and the stored bytes
    /// are known to come from this upload, the object is deleted.
    func confirm(_ result: CommitResult, _ facts: ContentFacts) async throws(Problem) {
        let object = result.metadata
        // A digest that one side does not have says nothing: the parts of an upload have none of the whole.
        func agree<Value: Equatable>(_ one: Value?, _ other: Value?) -> Bool {
            one == nil || other == nil || one == other
        }
        if object.size == facts.size, agree(object.md5, facts.md5), agree(object.crc32c, facts.crc32c) { return }
        var cause = "the store has other bytes than were received: generation \(object.generation)"
        var conditions = Preconditions()
        conditions.generation = object.generation
        do throws(BucketError) {
            guard result.isKnownAsOwn else {
                throw BucketError(.unavailable, "it may be another's")
            }
            try await driver.delete(object.name, conditions)
            cache?.forget(object.name)
            changed(.deleted(name: object.name))
            cause += ", deleted"
        } catch {
            cause += ", still there: \(error)"
        }
        throw Problem(
            .upstreamUnavailable, "The bucket's store did not keep what was sent.", cause: cause)
    }
}

extension Bucket {
    /// Checks that the store can evaluate the conditions of a write atomically with it.
    /// - Parameter isAtomic: The capability that the conditions need.
    /// - Throws: ``Problem``: `not-implemented` if the store does not have it.
    func require(_ conditions: Preconditions, _ isAtomic: KeyPath<Capabilities, Bool>)
        async throws(Problem)
    {
        if conditions.isEmpty { return }
        guard try await capabilities()[keyPath: isAtomic] else {
            throw Problem(.notImplemented, "The bucket's store can't decide preconditions with this write.")
        }
    }

    /// The conditions that make a decision which has read `existing` still valid at the time of the change.
    /// - Parameter isAtomic: The capability that they need.
    func pinned(
        _ conditions: Preconditions, to existing: CurrentObject,
        _ isAtomic: KeyPath<Capabilities, Bool>
    ) async throws(Problem) -> Preconditions {
        if existing == .unknown { return conditions }
        try conditions.check(existing)
        guard try await capabilities()[keyPath: isAtomic] else {
            throw Problem(
                .notImplemented,
                "The bucket's store can't make this write only if the object that was read is still there.")
        }
        return conditions.pinned(to: existing)
    }
}

extension Preconditions {
    /// Checks the conditions of a write against the existing object.
    /// - Throws: ``Problem`` with `precondition-failed`.
    func check(_ existing: CurrentObject) throws(Problem) {
        let object: ObjectMetadata? =
            switch existing {
            case .unknown, .absent: nil
            case .object(let found): found
            }
        if evaluate(object, reading: false) != nil {
            // For clients of S3, an object that must match is missing.
            throw Problem(
                BucketError(comparesS3Tags && ifMatch != nil && object == nil ? .objectNotFound : .preconditionFailed))
        }
    }
}
