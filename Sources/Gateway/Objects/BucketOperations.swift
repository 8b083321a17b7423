import Buckets
import System

// What a driver does, with its errors as problems.
extension Bucket {
    /// What the store can promise.
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

    /// The current object, or that there is none.
    func current(_ name: ObjectName) async throws(Problem) -> CurrentObject {
        do throws(BucketError) {
            return .object(try await driver.stat(name.value))
        } catch {
            if error.code == .objectNotFound { return .absent }
            throw Problem(error)
        }
    }

    /// Opens the current object for reading.
    func open(_ name: ObjectName, _ plan: ReadPlan) async throws(Problem) -> any ObjectReader {
        do throws(BucketError) {
            return try await driver.open(name.value, plan)
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

    /// One page of a list, as the store has it.
    func list(_ query: ListQuery, after: String?) async throws(Problem) -> ListPage {
        do throws(BucketError) {
            return try await driver.list(query, after: after)
        } catch {
            throw Problem(error)
        }
    }

    /// Begins an upload that nobody sees until ``commit(_:_:)``.
    func beginUpload(_ name: ObjectName, _ plan: UploadPlan) async throws(Problem) -> any Upload {
        do throws(BucketError) {
            return try await driver.beginUpload(name.value, plan)
        } catch {
            throw Problem(error)
        }
    }

    /// The facts of an upload's bytes, which have all been written.
    func finish(_ upload: any Upload) async throws(Problem) -> ContentFacts {
        do throws(BucketError) {
            return try await upload.finish()
        } catch {
            throw Problem(error)
        }
    }

    /// Makes an upload visible.
    /// - Throws: ``Problem``: `precondition-failed` where the conditions do not hold; the upload may still be open then.
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

    /// Changes metadata alone.
    func patch(_ name: ObjectName, _ patch: AttributePatch, _ conditions: Preconditions)
        async throws(Problem) -> ObjectMetadata
    {
        let object: ObjectMetadata
        do throws(BucketError) {
            object = try await driver.patch(name.value, patch, conditions)
        } catch {
            throw Problem(error)
        }
        changed(.patched(object))
        return object
    }

    /// Removes the object.
    func delete(_ name: ObjectName, _ conditions: Preconditions) async throws(Problem) {
        do throws(BucketError) {
            try await driver.delete(name.value, conditions)
        } catch {
            throw Problem(error)
        }
        changed(.deleted(name: name.value))
    }

    /// Compares what the store says it has with what was received. Other bytes than those are deleted, if they are known
    /// to be this upload's.
    func confirm(_ result: CommitResult, _ facts: ContentFacts) async throws(Problem) {
        let object = result.metadata
        if object.size == facts.size,
            object.md5 == nil || facts.md5 == nil || object.md5 == facts.md5,
            object.crc32c ?? facts.crc32c == facts.crc32c
        {
            return
        }
        var cause = "the store has other bytes than were received: generation \(object.generation)"
        var conditions = Preconditions()
        conditions.generation = object.generation
        do throws(BucketError) {
            guard result.isKnownAsOwn else {
                throw BucketError(.unavailable, "it may be another's")
            }
            try await driver.delete(object.name, conditions)
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
    /// The conditions of a write, which the store must be able to decide together with it.
    /// - Parameter isAtomic: What the store must promise for them.
    /// - Throws: ``Problem``: `not-implemented` where it does not.
    func require(_ conditions: Preconditions, _ isAtomic: KeyPath<Capabilities, Bool>)
        async throws(Problem)
    {
        if conditions.isEmpty { return }
        guard try await capabilities()[keyPath: isAtomic] else {
            throw Problem(
                .notImplemented, "The bucket's store can't decide preconditions with this write.")
        }
    }

    /// The conditions with which a decision that read `existing` still holds when the change is made.
    /// - Parameter isAtomic: What the store must promise for that.
    func pinned(
        _ conditions: Preconditions, to existing: CurrentObject,
        _ isAtomic: KeyPath<Capabilities, Bool>
    ) async throws(Problem) -> Preconditions {
        if existing == .unknown { return conditions }
        try conditions.check(existing)
        guard try await capabilities()[keyPath: isAtomic] else {
            throw Problem(
                .notImplemented,
                "The rules read the object that is there, and the bucket's store can't see to it that it stays."
            )
        }
        return conditions.pinned(to: existing)
    }
}

extension Preconditions {
    /// Checks that they hold for a write to what is there.
    /// - Throws: ``Problem`` with `precondition-failed`.
    func check(_ existing: CurrentObject) throws(Problem) {
        let object: ObjectMetadata? =
            switch existing {
            case .unknown, .absent: nil
            case .object(let found): found
            }
        if evaluate(object, reading: false) != nil {
            throw Problem(BucketError(.preconditionFailed))
        }
    }
}
