import HTTPClient
import OpenSSL
import Wire

extension S3Bucket {
    public func capabilities() async throws(BucketError) -> Capabilities {
        let decides = try await decidesConditions()
        let changes = try await decidesChanges()
        var capabilities = S3Bucket.mostCapabilities(decidesConditions: decides)
        capabilities.pinnedPatches = changes.copies
        capabilities.atomicDeletions = changes.deletions
        capabilities.copies = changes.sources
        capabilities.atomicCopies = changes.sources && changes.copies
        return capabilities
    }

    /// The maximum capabilities of a service.
    /// - Parameter decides: Whether it evaluates the conditions of writes.
    public static func mostCapabilities(decidesConditions decides: Bool) -> Capabilities {
        // A streamed request has its conditions in its header. A copy compares only the bytes, so one of two concurrent
        // patches may undo the other.
        var capabilities = Capabilities(
            atomicUploads: decides, atomicPatches: false, pinnedPatches: decides,
            atomicDeletions: decides, lateConditions: false, durable: true)
        // Session states are written conditionally.
        capabilities.uploadSessions = decides
        capabilities.parts = decides
        capabilities.minimumPart = decides ? minimumPart : 0
        capabilities.copies = decides
        capabilities.atomicCopies = decides
        return capabilities
    }

    /// The changes for which the service compares `If-Match` with the object's entity tag.
    struct ConditionalChanges: Equatable {
        var copies: Bool
        /// Whether a copy compares `x-amz-copy-source-if-match` with the source's entity tag.
        var sources: Bool
        var deletions: Bool

        static let none = ConditionalChanges(copies: false, sources: false, deletions: false)
        static let all = ConditionalChanges(copies: true, sources: true, deletions: true)
    }

    /// Whether the service evaluates the conditions of copies and deletions (AWS: since 2025). Tested with a temporary
    /// object.
    func decidesChanges() async throws(BucketError) -> ConditionalChanges {
        if let known = changes.withLock({ $0 }) { return known }
        guard try await decidesConditions() else { return .none }
        let name = S3Bucket.probeName()
        let body = Array("probe".utf8)
        let made = try await call(ClientRequest("PUT", target(name), body: .bytes(body), isRepeatable: true))
        // Don't cache: permissions can change.
        guard (200...299).contains(made.status), let etag = S3Head(made.fields).etag else {
            return .none
        }
        if let tagged = taggedMD5(S3Head(made.fields)) {
            let md5 = Digest(.md5)
            md5.update(body.span.bytes)
            if md5.finish() != tagged { tagsAreMD5.store(false, ordering: .relaxed) }
        }
        let other = "00000000000000000000000000000000"
        func copy(_ match: String, source: String? = nil) async throws(BucketError) -> CollectedResponse {
            let request = ClientRequest("PUT", target(name), isRepeatable: true)
            request.fields.append("x-amz-copy-source", copySource(name))
            if let source { request.fields.append("x-amz-copy-source-if-match", "\"\(source)\"") }
            request.fields.append("x-amz-metadata-directive", "REPLACE")
            WriteCondition(match: match).append(to: &request.fields)
            return try await call(request)
        }
        func delete(_ match: String?) async throws(BucketError) -> CollectedResponse {
            let request = ClientRequest("DELETE", target(name), isRepeatable: true)
            WriteCondition(match: match).append(to: &request.fields)
            return try await call(request)
        }
        var found = ConditionalChanges.none
        if try await copy(other).status == 412 {
            let copied = try await copy(etag)
            found.copies = copied.status == 200 && S3Bucket.copiedTag(copied) != nil
        }
        found.sources = try await copy(etag, source: other).status == 412
        found.deletions = try await delete(other).status == 412
        if found.deletions {
            found.deletions = [200, 204].contains(try await delete(etag).status)
        }
        if !found.deletions { _ = try await delete(nil) }
        changes.withLock { $0 = found }
        return found
    }

    static func probeName() -> String {
        probe + "\(Hexadecimal.encode((0..<16).map { _ in .random(in: 0...255) }))"
    }

    /// The prefix of probe objects. One can remain if the service ignores conditions and its deletion is not permitted.
    private static let probe = ".sluice-probe-"

    /// Whether an object is a remaining probe, which lists hide.
    static func isProbe(_ name: String) -> Bool {
        name.utf8.count == probe.utf8.count + 32 && name.hasPrefix(probe)
    }

    /// Whether the service evaluates the conditions of writes. If unknown, it is tested by a write to an unused name
    /// whose condition can't hold. A service that evaluates conditions stores nothing.
    func decidesConditions() async throws(BucketError) -> Bool {
        if let known = conditions.withLock({ $0 }) { return known }
        let name = S3Bucket.probeName()
        let request = ClientRequest("PUT", target(name), body: .bytes([]), isRepeatable: true)
        request.fields.append("if-match", "\"00000000000000000000000000000000\"")
        let response = try await call(request)
        let found: Bool
        switch response.status {
        case 404, 412:
            let failure = S3ErrorResponse(response)
            if failure.code == "NoSuchBucket" { throw failure.error("the conditional write") }
            found = true
        case 200...299:
            found = false
            _ = try await call(ClientRequest("DELETE", target(name), isRepeatable: true))
        case 400, 405, 501: found = false
        // Unknown without write permission. Don't cache: permissions can change.
        case 401, 403: return false
        default: throw S3ErrorResponse(response).error("the conditional write")
        }
        conditions.withLock { $0 = found }
        return found
    }

    struct WriteCondition: Equatable {
        /// The required entity tag of the existing object.
        var match: String?
        /// Whether no object may exist.
        var isNew = false

        func append(to fields: inout HeaderFields) {
            if let match { fields.append("if-match", "\"\(match)\"") }
            if isNew { fields.append("if-none-match", "*") }
        }

        var isEmpty: Bool { match == nil && !isNew }

        /// Whether a successful write replaces an object; nil if unknown.
        var replaces: Bool? { isNew ? false : match != nil ? true : nil }
    }

    /// Converts preconditions to one that the service can evaluate: one entity tag, or that no object exists.
    /// - Throws: `.preconditionFailed` if they do not hold now.
    func writeCondition(_ name: String, _ preconditions: Preconditions) async throws(BucketError)
        -> WriteCondition
    {
        if preconditions.isEmpty { return WriteCondition() }
        let decides = try await decidesConditions()
        if decides, preconditions.meanNew { return WriteCondition(isNew: true) }
        let existing: ObjectMetadata?
        switch preconditions.pin {
        case .object(let object) where decides: existing = object
        case .absent where decides: existing = nil
        default: existing = try await find(name)
        }
        guard preconditions.evaluate(existing, reading: false) == nil else {
            throw BucketError(.preconditionFailed)
        }
        guard decides else { return WriteCondition() }
        return existing.map { WriteCondition(match: $0.etag) } ?? WriteCondition(isNew: true)
    }
}

extension Preconditions {
    /// Whether the preconditions only require that no object exists.
    fileprivate var meanNew: Bool {
        guard generation == 0 || ifNoneMatch == .any else { return false }
        return ifMatch == nil && (generation ?? 0) == 0 && (metageneration ?? 0) == 0
            && (ifNoneMatch == nil || ifNoneMatch == .any)
    }
}
