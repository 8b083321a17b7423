import Foundation
import Wire

extension StorageReference {
    /// The gateway responds after the copy. Between buckets, and in a cloud service, a large object takes long: 1 hour.
    private static let copyTime: TimeInterval = 3600

    /// Copies the object. The gateway copies it; no bytes pass through this program.
    ///
    /// The copy has the object's properties, but none of its download tokens. It replaces an object of its name.
    /// - Parameters:
    ///   - target: The copy, in a bucket of the same gateway. Both are accessed with the source's credentials.
    ///   - metadata: Properties of the copy that differ: those that were set are changed, and those that were set to nil are
    ///     removed.
    /// - Returns: The metadata of the copy.
    /// - Throws: ``StorageError``: `bucketMismatch` for another gateway, `objectNotFound` without a source, `unauthorized` if
    ///   the rules deny `get` here or `create` there.
    @discardableResult
    public func copy(to target: StorageReference, metadata: StorageMetadata? = nil) async throws(StorageError)
        -> StorageMetadata
    {
        let request = try copyRequest("copyFrom", to: target, metadata)
        return try await operation { requests throws(StorageError) in
            try await requests.call(request, [200, 201]) { StorageMetadata(json: $0.body, of: target.fullPath) }
        }
    }

    /// Moves the object: copies it as ``copy(to:metadata:)`` does, and deletes the version that was copied.
    ///
    /// Within a bucket in a directory this is one change. Otherwise the copy comes first: if the deletion fails, both objects
    /// exist, and the error says so.
    /// - Parameter target: The new name, in a bucket of the same gateway. Both are accessed with the source's credentials.
    /// - Returns: The metadata at the new name.
    /// - Throws: ``StorageError``: `bucketMismatch` for another gateway, `objectNotFound` without a source, `unauthorized` if
    ///   the rules deny `get` or `delete` here or `create` there.
    @discardableResult
    public func move(to target: StorageReference) async throws(StorageError) -> StorageMetadata {
        let source = try await getMetadata()
        let request = try copyRequest("moveFrom", to: target, nil, "&sourceGeneration=\(source.generation)")
        do throws(StorageError) {
            return try await operation { requests throws(StorageError) in
                try await requests.call(request, [200, 201]) { StorageMetadata(json: $0.body, of: target.fullPath) }
            }
        } catch {
            // The response to an attempt that has moved it may be lost.
            guard error.reason == .objectNotFound, let moved = try? await target.getMetadata(),
                moved.hasBytes(of: source)
            else { throw error }
            return moved
        }
    }

    private func copyRequest(
        _ parameter: String, to target: StorageReference, _ metadata: StorageMetadata?, _ condition: String = ""
    ) throws(StorageError) -> HTTPRequest {
        guard storage.isAtGateway(of: target.storage) else {
            throw StorageError(.bucketMismatch, "The source and the target of a copy must be at one gateway.")
        }
        // Checks the source's name.
        _ = try url()
        var source = PercentEncoding.encodeSegment(fullPath)
        if !storage.isSameBucket(as: target.storage) {
            source += "&sourceBucket=\(PercentEncoding.encodeSegment(bucket))"
        }
        var request = HTTPRequest("POST", try target.url("?\(parameter)=\(source)\(condition)"))
        request.workTime = StorageReference.copyTime
        if let metadata {
            request.fields = [("Content-Type", "application/merge-patch+json")]
            request.body = metadata.values.patch
        }
        return request
    }
}

extension StorageMetadata {
    /// Whether size and hashes are the same, and at least one hash is known for both.
    fileprivate func hasBytes(of other: StorageMetadata) -> Bool {
        let pairs = [(crc32c, other.crc32c), (md5Hash, other.md5Hash)].filter { $0.0 != nil && $0.1 != nil }
        return size == other.size && !pairs.isEmpty && pairs.allSatisfy { $0.0 == $0.1 }
    }
}

extension Storage {
    /// The maximum number of deletions in a request.
    private static let deletionsPerRequest = 1000

    /// Deletes objects, 1,000 with each request. An object that does not exist counts as deleted.
    /// - Parameter references: Objects of this bucket.
    /// - Returns: The objects that were not deleted, with their errors; empty if all were deleted. The rules decide for each one.
    /// - Throws: ``StorageError`` if a request as a whole failed, `bucketMismatch` for an object of another bucket.
    @discardableResult
    public func delete(_ references: [StorageReference]) async throws(StorageError) -> [StorageReference: StorageError]
    {
        try await deleteVersions(references.map { ($0, nil) })
    }

    /// Deletes versions of objects: nil for any version. A version that was replaced is an error with status 412.
    package func deleteVersions(_ objects: [(reference: StorageReference, generation: Int64?)])
        async throws(StorageError)
        -> [StorageReference: StorageError]
    {
        for (reference, _) in objects {
            guard isSameBucket(as: reference.storage) else {
                throw StorageError(.bucketMismatch, "\(reference) is not in the bucket '\(bucket)'.")
            }
            // Checks the name.
            _ = try reference.url()
        }
        let url = try endpoint.list("delete")
        return try await reference().operation { requests throws(StorageError) in
            var failures: [StorageReference: StorageError] = [:]
            for start in stride(from: 0, to: objects.count, by: Storage.deletionsPerRequest) {
                let end = min(objects.count, start + Storage.deletionsPerRequest)
                try await requests.delete(objects[start..<end], url, &failures)
            }
            return failures
        }
    }

    /// Whether both are one bucket at one address.
    func isSameBucket(as other: Storage) -> Bool { self === other || endpoint == other.endpoint }

    /// Whether both are buckets at one address.
    package func isAtGateway(of other: Storage) -> Bool { endpoint.isAtGateway(of: other.endpoint) }
}

extension Requests {
    /// Deletes the objects of one request. Those that failed for a reason that may pass are tried again.
    fileprivate func delete(
        _ objects: ArraySlice<(reference: StorageReference, generation: Int64?)>, _ url: URL,
        _ failures: inout [StorageReference: StorageError]
    ) async throws(StorageError) {
        var (left, retries) = (Array(objects), Retries(storage.maxOperationRetryTime))
        while true {
            var request = HTTPRequest("POST", url)
            request.fields = [("Content-Type", "application/json")]
            request.body = Requests.deletions(left)
            let errors = try await call(request) { Requests.deletionErrors($0, count: left.count) }
            var again: [(reference: StorageReference, generation: Int64?)] = []
            var last: StorageError?
            for (object, error) in zip(left, errors) {
                failures[object.reference] = error
                guard let error, let status = error.status, Requests.isTemporary(status) else { continue }
                again.append(object)
                last = error
            }
            guard let last else { return }
            if again.count < left.count { retries.succeeded() }
            do throws(StorageError) {
                try await retries.failed(Failure(error: last), control)
            } catch {
                // The others have their results.
                guard error.reason == .retryLimitExceeded else { throw error }
                return
            }
            left = again
        }
    }

    private static func deletions(_ objects: [(reference: StorageReference, generation: Int64?)]) -> [UInt8] {
        var json = JSONWriter(reserving: 64 * objects.count)
        json.beginObject()
        json.key("objects")
        json.beginArray()
        for (reference, generation) in objects {
            json.beginObject()
            json.member("name", reference.fullPath)
            if let generation { json.member("generation", String(generation)) }
            json.endObject()
        }
        json.endArray()
        json.endObject()
        return json.bytes
    }

    /// The error of each deletion, nil for those that succeeded; nil if the response is malformed.
    private static func deletionErrors(_ response: HTTPResponse, count: Int) -> [StorageError?]? {
        guard let results = (try? JSONReader.parse(response.body))?["results"]?.elements, results.count == count
        else { return nil }
        var errors: [StorageError?] = []
        for result in results {
            guard let status = result["status"]?.integer else { return nil }
            let error = status == 204 ? nil : error(Int(status), result, response["x-request-id"])
            errors.append(error.flatMap { $0.hasProblem("object-not-found") ? nil : $0 })
        }
        return errors
    }
}
