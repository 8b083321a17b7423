import HTTPClient
import Wire

extension S3Bucket {
    public func capabilities() async throws(BucketError) -> Capabilities {
        let decides = try await decidesConditions()
        // What is streamed in one request has its conditions in the head of it.
        // A deletion's `If-Match` is known to be decided by AWS; many services pass over it.
        return Capabilities(
            atomicUploads: decides, atomicPatches: false, atomicDeletions: decides && isAWS,
            lateConditions: false, durable: true)
    }

    /// How the names begin of what is stored where the service passes over a condition, and may not be deleted again.
    private static let probe = ".sluice-probe-"

    /// Whether an object is left of a look at what the service does with conditions: lists do not show it.
    static func isProbe(_ name: String) -> Bool {
        name.utf8.count == probe.utf8.count + 32 && name.hasPrefix(probe)
    }

    /// Whether the service decides the conditions of a write. Where that is not known it is given one that can't hold,
    /// on a name that nobody has: a service that knows conditions stores nothing.
    func decidesConditions() async throws(BucketError) -> Bool {
        if let known = conditions.withLock({ $0 }) { return known }
        let name =
            S3Bucket.probe + "\(Hexadecimal.encode((0..<16).map { _ in .random(in: 0...255) }))"
        var request = ClientRequest("PUT", target(name), body: .bytes([]), isRepeatable: true)
        request.fields.append("if-match", "\"00000000000000000000000000000000\"")
        let response = try await call(request)
        let found: Bool
        switch response.status {
        case 404, 412:
            let fault = S3Fault(response)
            if fault.code == "NoSuchBucket" { throw fault.error("the conditional write") }
            found = true
        case 200...299:
            found = false
            _ = try await call(ClientRequest("DELETE", target(name), isRepeatable: true))
        case 400, 405, 501: found = false
        // Who may not write is not told; nothing is kept, for rights can be given.
        case 401, 403: return false
        default: throw S3Fault(response).error("the conditional write")
        }
        conditions.withLock { $0 = found }
        return found
    }

    /// What a write must be sent with, so that the service decides.
    struct Guard: Equatable {
        /// The entity tag that must still be there.
        var match: String?
        /// Whether there must be nothing.
        var isNew = false

        func append(to fields: inout HeaderFields) {
            if let match { fields.append("if-match", "\"\(match)\"") }
            if isNew { fields.append("if-none-match", "*") }
        }

        var isEmpty: Bool { match == nil && !isNew }

        /// Whether an object is replaced where the write succeeds; nil where that is open.
        var replaces: Bool? { isNew ? false : match != nil ? true : nil }
    }

    /// Turns preconditions into what the service can decide: one entity tag, or that there is nothing.
    /// - Throws: `.preconditionFailed` where they do not hold now.
    func guarding(_ name: String, _ preconditions: Preconditions) async throws(BucketError) -> Guard
    {
        if preconditions.isEmpty { return Guard() }
        let decides = try await decidesConditions()
        if decides, preconditions.meanNew { return Guard(isNew: true) }
        let existing: ObjectMetadata?
        switch preconditions.pin {
        case .object(let object) where decides: existing = object
        case .absent where decides: existing = nil
        default: existing = try await find(name)
        }
        guard preconditions.evaluate(existing, reading: false) == nil else {
            throw BucketError(.preconditionFailed)
        }
        guard decides else { return Guard() }
        return existing.map { Guard(match: $0.etag) } ?? Guard(isNew: true)
    }
}

extension Preconditions {
    /// Whether all that is asked is that there is nothing.
    fileprivate var meanNew: Bool {
        guard generation == 0 || ifNoneMatch == .any else { return false }
        return ifMatch == nil && (generation ?? 0) == 0 && (metageneration ?? 0) == 0
            && (ifNoneMatch == nil || ifNoneMatch == .any)
    }
}
