import Foundation
import Wire

/// The requests of an upload, whatever its bytes come from, and what their responses mean: one `PUT`, or a session of
/// draft-ietf-httpbis-resumable-upload.
struct UploadRequests {
    /// The meaning of a response.
    enum Step {
        /// A session has begun at this URL.
        case begun(URL)
        /// The gateway has all bytes before this offset.
        case offset(Int64)
        /// The object is stored.
        case stored(StorageMetadata)
        /// The gateway does not know the session any more: it has expired, or the gateway has lost its keys.
        case gone(StorageError)
        /// The next attempt may succeed, after a query of the offset.
        case failed(Failure)
    }

    /// How often an upload is restarted that the gateway no longer knows.
    static let repetitions = 5
    /// The time limit for the removal of a session, in seconds.
    private static let removalTime: TimeInterval = 5

    let reference: StorageReference
    let requests: Requests
    /// The fields of the object's metadata.
    let fields: [(name: String, value: String)]

    /// The request that begins an upload.
    func creation() throws(StorageError) -> HTTPRequest {
        var request = HTTPRequest("PUT", try reference.url())
        request.fields = fields
        return request
    }

    // MARK: Sessions

    /// Begins a session.
    /// - Parameters:
    ///   - size: The size of the object; nil if it is not known yet.
    ///   - sum: The checksum of the object; nil if it is not known yet.
    ///   - ending: The checksum of the object, if an earlier attempt may have stored it.
    func create(size: Int64?, _ sum: CRC32C?, ending: CRC32C?, _ retries: inout Retries)
        async throws(StorageError) -> Step
    {
        var request = try creation()
        request.fields.append(("Upload-Complete", "?0"))
        if let size { request.fields.append(("Upload-Length", String(size))) }
        if let sum { request.fields.append(("Repr-Digest", "crc32c=:\(sum.base64):")) }
        let response: HTTPResponse
        switch try await requests.attempt(request, &retries) {
        case .failure(let failure): return .failed(failure)
        case .response(let found): response = found
        }
        guard response.status == 201 else {
            if let ending, let stored = try await storedBefore(response, ending) {
                return .stored(stored)
            }
            throw Requests.error(response)
        }
        guard let location = response["location"] else { return .malformed }
        return .begun(try requests.storage.endpoint.session(location))
    }

    /// Queries the offset of a session.
    /// - Parameter size: The offset is at most this.
    func ask(_ session: URL, size: Int64, _ retries: inout Retries) async throws(StorageError)
        -> Step
    {
        let response: HTTPResponse
        switch try await requests.attempt(HTTPRequest("HEAD", session), &retries) {
        case .failure(let failure): return .failed(failure)
        case .response(let found): response = found
        }
        switch response.status {
        case 200, 204:
            guard let offset = response["upload-offset"].flatMap(Int64.init),
                (0...size).contains(offset)
            else { return .malformed }
            return .offset(offset)
        case 404: return .gone(Requests.error(response))
        default: throw Requests.error(response)
        }
    }

    /// Sends a piece.
    /// - Parameters:
    ///   - sum: The piece's checksum.
    ///   - ending: The checksum of the object, if the piece is the last one: it ends the upload. Without bytes it gets the
    ///     result again of an upload that is complete.
    func send(
        _ piece: [UInt8], _ sum: CRC32C, at offset: Int64, of session: URL, ending: CRC32C?, _ retries: inout Retries
    ) async throws(StorageError) -> Step {
        var request = HTTPRequest("PATCH", session)
        request.fields = [
            ("Content-Type", "application/partial-upload"), ("Upload-Offset", String(offset)),
            ("Upload-Complete", ending == nil ? "?0" : "?1"),
            ("Content-Digest", "crc32c=:\(sum.base64):"),
        ]
        request.body = piece
        let response: HTTPResponse
        switch try await requests.attempt(request, &retries) {
        case .failure(let failure): return .failed(failure)
        case .response(let found): response = found
        }
        switch (response.status, ending) {
        case (204, nil):
            let end = offset + Int64(piece.count)
            return response["upload-offset"] == String(end) ? .offset(end) : .malformed
        case (200...201, let ending?): return try accept(response, ending).map { .stored($0) } ?? .malformed
        case (404, _): return .gone(Requests.error(response))
        case (409, _): return .failed(Failure(error: Requests.error(response)))
        case (400, _) where response["upload-complete"] == "?0":
            // The piece was damaged in transit.
            let error = Requests.error(response)
            guard error.reason == .nonMatchingChecksum else { throw error }
            return .failed(Failure(error: error))
        case (400, _) where Requests.error(response).hasProblem("upload-length-mismatch"):
            // The last piece was truncated in transit.
            return .failed(Failure(error: Requests.error(response)))
        default: throw Requests.error(response)
        }
    }

    /// Tries to remove a session in time.
    /// - Returns: Whether the gateway does not have it any more.
    @discardableResult
    func remove(_ session: URL) async -> Bool {
        let requests = Requests(storage: requests.storage, control: TransferControl())
        do throws(StorageError) {
            try await requests.call(
                HTTPRequest("DELETE", session), [204], retryTime: UploadRequests.removalTime
            ) { _ in () }
            return true
        } catch {
            return error.status == 404
        }
    }

    // MARK: Outcomes

    /// The stored object, if the response reports a complete upload.
    /// - Returns: nil if the upload has to be tried again: the response is damaged, or the bytes were on their way.
    func accept(_ response: HTTPResponse, _ sum: CRC32C) throws(StorageError) -> StorageMetadata? {
        guard [200, 201].contains(response.status) else {
            let error = Requests.error(response)
            if error.reason == .nonMatchingChecksum { return nil }
            throw error
        }
        guard let stored = StorageMetadata(json: response.body, of: reference.fullPath) else {
            return nil
        }
        guard stored.size == Int64(sum.count), stored.crc32c ?? sum.base64 == sum.base64 else {
            throw StorageError(
                .nonMatchingChecksum,
                "The stored object is not what was sent: it was replaced, or it is damaged."
            )
        }
        let hasPairs = fields.contains {
            BytewiseString.areEqual($0.name, MetadataValues.pairsField)
        }
        if hasPairs, stored.customMetadata == nil {
            throw StorageError(
                .internalError, "The object is stored without its custom metadata: the gateway is too old.")
        }
        return stored
    }

    /// The object that an earlier attempt has stored whose response was lost, if a denial or conflict suggests that: a rule
    /// that permits the creation of an object denies its repetition.
    func storedBefore(_ response: HTTPResponse, _ sum: CRC32C) async throws(StorageError)
        -> StorageMetadata?
    {
        guard [403, 409, 412].contains(response.status) else { return nil }
        return try await stored(sum)
    }

    /// The object that is there, if it has this checksum. If it can't be read, what the upload itself has got is reported.
    func stored(_ sum: CRC32C) async throws(StorageError) -> StorageMetadata? {
        let found: StorageMetadata?
        do throws(StorageError) {
            found = try await current()
        } catch {
            if error.reason == .cancelled { throw error }
            return nil
        }
        guard let found, found.size == Int64(sum.count), found.crc32c == sum.base64 else {
            return nil
        }
        return found
    }

    /// Whether the object is there that a session has stored: a session's result is repeated without a look at the object.
    func isThere(_ stored: StorageMetadata) async throws(StorageError) -> Bool {
        do throws(StorageError) {
            return try await current().generation == stored.generation
        } catch {
            // A caller that may not read the object can't find out.
            if [403, 404].contains(error.status) { return false }
            throw error
        }
    }

    private func current() async throws(StorageError) -> StorageMetadata {
        let path = reference.fullPath
        return try await requests.call(HTTPRequest("GET", try reference.url("?metadata"))) {
            StorageMetadata(json: $0.body, of: path)
        }
    }
}

extension UploadRequests.Step {
    /// The response can't be understood.
    fileprivate static var malformed: Self { .failed(Failure(error: Requests.malformed)) }
}
