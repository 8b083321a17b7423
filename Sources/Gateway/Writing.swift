import Buckets
import EventLoop
import HTTPServer
import Wire

extension Call {
    /// `PUT`: streams the body into an upload that nobody sees before it is decided again with the true facts.
    func upload(_ name: ObjectName, _ request: UploadRequest, _ bucket: GatewayBucket)
        async throws(Problem) -> Answer
    {
        var existing = Existing.unknown
        proposal = request.proposal
        let missing = try await ask(&existing, name, bucket)
        let conditions = try await writeConditions(bucket, \.atomicUploads)
        var plan = request.plan
        plan.isDecided = missing == .nothing
        plan.wantsMD5 = request.digests.md5 != nil || missing != .nothing
        plan.preconditions = conditions.pinned(to: existing)
        plan.existing = existing
        // Who may not be allowed yet is not told what is there either.
        if missing == .nothing, !conditions.isEmpty {
            // A condition that does not hold already is answered before the body comes. The commit decides it again.
            if plan.existing == .unknown { plan.existing = try await look(name, bucket) }
            try check(conditions, plan.existing)
        }
        let upload = try await begin(name, plan, bucket)
        let facts: ContentFacts
        let pins: Preconditions
        do throws(Problem) {
            facts = try await receive(request, into: upload, bucket)
            proposal.size = facts.size
            proposal.md5 = facts.md5
            proposal.crc32c = facts.crc32c
            // The body took its time: what is there now counts, where the store can still be told.
            if existing != .unknown, try await capabilities(bucket).lateConditions {
                existing = try await look(name, bucket)
            }
            try await decide(&existing, name, bucket)
            pins = try await pinned(conditions, to: existing, bucket, \.atomicUploads)
        } catch {
            upload.abort()
            throw error
        }
        let result: CommitResult
        do throws(BucketError) {
            result = try await upload.commit(pins)
        } catch {
            guard error.code == .preconditionFailed, pins != conditions else {
                throw Problem(error)
            }
            // Somebody was faster. What there is now may be denied, or be another than the client asked for.
            existing = try await look(name, bucket)
            try await decide(&existing, name, bucket)
            try check(conditions, existing)
            throw Call.overtaken
        }
        try await confirm(result, facts, bucket)
        var answer = Answer(
            status: result.replaced ? 200 : 201, json: result.metadata.json(bucket: bucket.name))
        answer.head.fields.append("etag", result.metadata.quotedETag)
        result.metadata.appendGenerations(to: &answer.head.fields)
        answer.head.fields.append(
            "location", "/b/\(bucket.name)/o/\(PercentEncoding.encodePath(name.value))")
        return answer
    }

    private func begin(_ name: ObjectName, _ plan: UploadPlan, _ bucket: GatewayBucket)
        async throws(Problem) -> any Upload
    {
        do throws(BucketError) {
            return try await bucket.driver.beginUpload(name.value, plan)
        } catch {
            throw Problem(error)
        }
    }

    /// Takes the body and verifies its length and digests.
    private func receive(
        _ request: UploadRequest, into upload: any Upload, _ bucket: GatewayBucket
    ) async throws(Problem) -> ContentFacts {
        if exchange.head.hasBody {
            let sink = CountingSink(upload)
            do throws(BodyError) {
                _ = try await exchange.receive(
                    into: lease?.pacing(sink) ?? sink, limit: bucket.maximumObjectSize)
                record.bytesIn = sink.count
            } catch {
                record.bytesIn = sink.count
                throw Problem(error, limit: bucket.maximumObjectSize)
            }
        }
        let facts: ContentFacts
        do throws(BucketError) {
            facts = try await upload.finish()
        } catch {
            throw Problem(error)
        }
        if facts.size != request.size ?? facts.size || facts.size != record.bytesIn {
            throw Problem(.invalidArgument, "The body does not have its declared length.")
        }
        if let algorithm = request.digests.mismatch(facts) {
            throw Problem(
                .checksumMismatch,
                "The \(algorithm) of the received bytes is another; nothing was stored.")
        }
        return facts
    }

    /// Compares what the store says it has with what was received. Other bytes than those may not stay, where they are
    /// known to be this upload's.
    private func confirm(
        _ result: CommitResult, _ facts: ContentFacts, _ bucket: GatewayBucket
    ) async throws(Problem) {
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
            try await bucket.driver.delete(object.name, conditions)
            cause += ", deleted"
        } catch {
            cause += ", still there: \(error)"
        }
        throw Problem(
            .upstreamUnavailable, "The bucket's store did not keep what was sent.", cause: cause)
    }

    /// `PATCH`: changes metadata alone.
    func patch(_ name: ObjectName, _ bucket: GatewayBucket) async throws(Problem) -> Answer {
        var existing = Existing.unknown
        _ = try await ask(&existing, name, bucket)
        let conditions = try await writeConditions(bucket, \.atomicPatches)
        try requireJSON()
        for (name, isGiven) in [
            ("Content-MD5", fields.contains("content-md5")),
            ("Content-Digest", fields.contains("content-digest")),
            ("Repr-Digest", fields.contains("repr-digest")),
        ] where isGiven {
            throw Problem(
                .invalidArgument, "\(name) is verified of an upload only, not of a patch.")
        }
        let text: [UInt8]
        do throws(BodyError) {
            text = try await exchange.collect(limit: AttributePatch.maximumBytes)
        } catch {
            throw Problem(error, limit: UInt64(AttributePatch.maximumBytes))
        }
        record.bytesIn = UInt64(text.count)
        let patch = try AttributePatch(mergePatch: text)
        let object = try await apply(patch, name, conditions, bucket)
        var answer = Answer(status: 200, json: object.json(bucket: bucket.name))
        answer.head.fields.append("etag", object.quotedETag)
        object.appendGenerations(to: &answer.head.fields)
        return answer
    }

    /// The rules may have read what is there, and where custom metadata is added its limit is on what is there
    /// afterwards. So the patch is pinned to the version that was read, and tried again where another came between.
    private func apply(
        _ patch: AttributePatch, _ name: ObjectName, _ conditions: Preconditions,
        _ bucket: GatewayBucket
    ) async throws(Problem) -> ObjectMetadata {
        proposal.patch = patch
        for _ in 0..<Call.attempts {
            var existing = Existing.unknown
            try await decide(&existing, name, bucket)
            var isPinned = existing != .unknown
            if !isPinned, patch.addsCustomMetadata {
                existing = try await look(name, bucket)
                // Where the store can't pin, the look for the limit's sake alone is as good as it gets.
                isPinned = try await capabilities(bucket).atomicPatches
            }
            if case .absent = existing { throw Problem(BucketError(.objectNotFound)) }
            let pins =
                isPinned
                ? try await pinned(conditions, to: existing, bucket, \.atomicPatches) : conditions
            if patch.addsCustomMetadata, case .object(let current) = existing {
                try ObjectAttributes.checkSize(
                    patch.applied(to: current.attributes).customMetadata)
            }
            do throws(BucketError) {
                return try await bucket.driver.patch(name.value, patch, pins)
            } catch {
                guard error.code == .preconditionFailed, pins != conditions else {
                    throw Problem(error)
                }
            }
        }
        throw Call.overtaken
    }

    /// How often a change is decided anew because another came between.
    private static let attempts = 16

    private func requireJSON() throws(Problem) {
        guard let type = fields["content-type"] else { return }
        let essence = type.prefix { $0 != ";" }.filter { $0 != " " && $0 != "\t" }.lowercased()
        if essence == "application/json" || essence == "application/merge-patch+json" { return }
        let accepted = "application/merge-patch+json, application/json"
        throw Problem(
            .unsupportedMediaType, "A patch is one of \(accepted).",
            field: ("accept-patch", accepted))
    }

    /// `DELETE`.
    func delete(_ name: ObjectName, _ bucket: GatewayBucket) async throws(Problem) -> Answer {
        for _ in 0..<Call.attempts {
            var existing = Existing.unknown
            try await decide(&existing, name, bucket)
            if case .absent = existing { throw Problem(BucketError(.objectNotFound)) }
            let conditions = try await writeConditions(bucket, \.atomicDeletions)
            let pins = try await pinned(conditions, to: existing, bucket, \.atomicDeletions)
            do throws(BucketError) {
                try await bucket.driver.delete(name.value, pins)
                return Answer(status: 204)
            } catch {
                guard error.code == .preconditionFailed, pins != conditions else {
                    throw Problem(error)
                }
            }
        }
        throw Call.overtaken
    }
}

/// Counts what a sink takes.
private final class CountingSink: ByteSink {
    private let sink: any ByteSink
    private(set) var count: UInt64 = 0

    init(_ sink: any ByteSink) { self.sink = sink }

    func write(_ bytes: RawSpan) throws -> Int {
        let taken = try sink.write(bytes)
        count += UInt64(taken)
        return taken
    }

    func whenWritable(_ resume: @escaping () -> Void) { sink.whenWritable(resume) }
}
