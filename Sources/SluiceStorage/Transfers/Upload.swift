import Foundation
import Wire

/// One upload: a small one in one request, a larger one in pieces of a session of draft-ietf-httpbis-resumable-upload.
struct Upload {
    /// The largest upload that is sent in one request, in bytes: 256 KiB.
    static let smallSize: Int64 = 256 << 10
    /// For how long the removal of a session is tried, in seconds.
    private static let removalTime: TimeInterval = 5

    let task: StorageUploadTask
    let reader: UploadReader
    let requests: Requests
    /// The fields of the object's metadata.
    let fields: [(name: String, value: String)]
    private let saved: StorageUploadResumptionData?

    /// - Parameters:
    ///   - metadata: nil for the saved metadata, or for none.
    ///   - saved: An earlier upload to continue.
    init(
        _ task: StorageUploadTask, _ source: UploadSource, _ metadata: StorageMetadata?,
        from saved: StorageUploadResumptionData?
    ) throws(StorageError) {
        self.task = task
        self.saved = saved
        requests = Requests(storage: task.reference.storage, control: task.control)
        if let saved, metadata == nil {
            fields = saved.fields.map { ($0.name, $0.value) }
        } else {
            fields = try (metadata ?? StorageMetadata()).fields(
                type: MediaTypes.type(of: task.reference.name[...]))
        }
        reader = try UploadReader(source)
        guard let saved else { return }
        guard saved.bucket == task.reference.bucket,
            BytewiseString.areEqual(saved.path, task.reference.fullPath)
        else {
            throw StorageError(.invalidArgument, "The resumption data is of another object.")
        }
        if let file = reader.file, file.state != saved.file { throw file.changed }
    }

    /// Transfers everything.
    /// - Returns: The metadata of the stored object, whose size and checksum are those of the source.
    func run() async throws(StorageError) -> StorageMetadata {
        if saved == nil, reader.size <= Upload.smallSize { return try await sendAtOnce() }
        var session = UploadSession(self, saved?.session)
        do throws(StorageError) {
            let stored = try await session.run()
            task.save(nil)
            return stored
        } catch {
            // A failed upload of a file can be continued later; one that was cancelled or is of a changed file can't.
            let canContinue =
                error.code != .cancelled && reader.file.map { (try? $0.check()) != nil } ?? false
            if !canContinue {
                task.save(nil)
                if let url = session.url { await remove(url) }
            }
            throw error
        }
    }

    /// The request that begins an upload.
    func creation() throws(StorageError) -> HTTPRequest {
        var request = HTTPRequest("PUT", try task.reference.url())
        request.fields = fields
        return request
    }

    private func sendAtOnce() async throws(StorageError) -> StorageMetadata {
        let body = try reader.read(0..<reader.size)
        let sum = CRC32C(body)
        var request = try creation()
        request.body = body
        request.fields.append(("Repr-Digest", "crc32c=:\(sum.base64):"))
        var retries = Retries(requests.storage.maxUploadRetryTime)
        while true {
            if try await task.checkpoint() { retries.succeeded() }
            switch try await requests.attempt(request, &retries) {
            case .failure(let failure): try await retries.failed(failure, task.control)
            case .response(let response):
                if retries.isRetry, let stored = try await storedBefore(response, sum) {
                    return stored
                }
                if let stored = try accept(response, sum) { return stored }
                let error =
                    [200, 201].contains(response.status)
                    ? Requests.malformed : Requests.error(response)
                try await retries.failed(Failure(error: error), task.control)
            }
        }
    }

    // MARK: Outcomes

    /// The stored object, if the response is that of a complete upload.
    /// - Returns: nil if the upload has to be tried again: the response is damaged, or the bytes were on their way.
    func accept(_ response: HTTPResponse, _ sum: CRC32C) throws(StorageError) -> StorageMetadata? {
        guard [200, 201].contains(response.status) else {
            let error = Requests.error(response)
            if error.code == .nonMatchingChecksum { return nil }
            throw error
        }
        guard let stored = StorageMetadata(json: response.body, of: task.reference.fullPath) else {
            return nil
        }
        guard stored.size == Int64(sum.count), stored.crc32c ?? sum.base64 == sum.base64 else {
            throw StorageError(
                .nonMatchingChecksum,
                "The stored object is not what was sent: it was replaced, or it is damaged."
            )
        }
        let hasPairs = fields.contains {
            BytewiseString.areEqual($0.name, StorageMetadata.pairsField)
        }
        if hasPairs, stored.customMetadata == nil {
            throw StorageError(
                .internalError,
                "The object is stored without its custom metadata: the gateway is too old.")
        }
        return finish(stored)
    }

    private func finish(_ stored: StorageMetadata) -> StorageMetadata {
        task.progressed(to: stored.size, of: stored.size, stored)
        return stored
    }

    /// The object that an earlier attempt has stored whose response was lost, if a denial or conflict suggests that: a rule
    /// that permits the creation of an object denies its repetition.
    func storedBefore(_ response: HTTPResponse, _ sum: CRC32C) async throws(StorageError)
        -> StorageMetadata?
    {
        guard [403, 409, 412].contains(response.status) else { return nil }
        let request = HTTPRequest("GET", try task.reference.url("?metadata"))
        let path = task.reference.fullPath
        let found: StorageMetadata?
        do throws(StorageError) {
            found = try await requests.call(request) { StorageMetadata(json: $0.body, of: path) }
        } catch {
            if error.code == .cancelled { throw error }
            // What the upload itself has got is reported.
            return nil
        }
        guard let found, found.size == Int64(sum.count), found.crc32c == sum.base64 else {
            return nil
        }
        return finish(found)
    }

    /// Removes an upload at the gateway, as far as that succeeds in time.
    private func remove(_ session: URL) async {
        let requests = Requests(storage: requests.storage, control: TransferControl())
        _ = try? await requests.call(
            HTTPRequest("DELETE", session), [204], retryTime: Upload.removalTime
        ) { _ in () }
    }
}
