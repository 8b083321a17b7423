import Foundation
import Wire

/// One upload: a small one in one request, a larger one in pieces of a session of draft-ietf-httpbis-resumable-upload.
struct Upload {
    /// The largest upload that is sent in one request, in bytes: 256 KiB.
    static let smallSize: Int64 = 256 << 10

    let task: StorageUploadTask
    private let source: UploadSource
    private let metadata: StorageMetadata
    let requests: Requests

    init(_ task: StorageUploadTask, _ source: UploadSource, _ metadata: StorageMetadata) {
        self.task = task
        self.source = source
        self.metadata = metadata
        requests = Requests(storage: task.reference.storage, control: task.control)
    }

    /// Transfers everything.
    /// - Parameter saved: An earlier upload to continue.
    /// - Returns: The metadata of the stored object, whose size and checksum are those of the source.
    func run(from saved: StorageUploadResumptionData?) async throws(StorageError)
        -> StorageMetadata
    {
        let reader = try UploadReader(source)
        defer { reader.close() }
        if let saved {
            guard saved.bucket == task.reference.bucket, saved.path == task.reference.fullPath
            else {
                throw StorageError(.invalidArgument, "The resumption data is of another object.")
            }
            guard reader.state == saved.file else {
                throw UploadReader.changed("The file")
            }
        }
        if saved == nil, reader.size <= Upload.smallSize { return try await sendAtOnce(reader) }
        var session = UploadSession(self, reader, saved?.session)
        do throws(StorageError) {
            let stored = try await session.run()
            task.save(nil)
            return stored
        } catch {
            // A failed upload can be continued later; one that was cancelled or is of a changed file can't.
            let isOver = error.code == .cancelled || (try? reader.check()) == nil
            if isOver {
                task.save(nil)
                if let url = session.url { Upload.discard(url, requests.storage) }
            }
            throw error
        }
    }

    /// The request that begins an upload.
    func creation() throws(StorageError) -> GatewayRequest {
        var request = GatewayRequest("PUT", try task.reference.url())
        request.fields = try metadata.fields(type: MediaTypes.type(of: task.reference.name[...]))
        return request
    }

    private func sendAtOnce(_ reader: UploadReader) async throws(StorageError) -> StorageMetadata {
        let body = try reader.read(0..<reader.size)
        var sum = CRC32C()
        sum.update(body)
        var request = try creation()
        request.body = body
        request.fields.append(("Repr-Digest", "crc32c=:\(sum.base64):"))
        var retries = Retries(requests.storage.maxUploadRetryTime)
        while true {
            if try await task.checkpoint() { retries.succeeded() }
            switch try await requests.attempt(request, &retries) {
            case .failure(let failure): try await retries.failed(failure, task.control)
            case .response(let response):
                if let stored = try accept(response, sum) { return stored }
                let error =
                    [200, 201].contains(response.status)
                    ? Requests.malformed : Requests.error(response)
                try await retries.failed(Failure(error: error), task.control)
            }
        }
    }

    /// The stored object, if the response is that of a complete upload.
    /// - Returns: nil if the upload has to be tried again: the response is damaged, or the bytes were on their way.
    func accept(_ response: HTTPResponse, _ sum: CRC32C) throws(StorageError) -> StorageMetadata? {
        guard [200, 201].contains(response.status) else {
            let error = Requests.error(response)
            if error.code == .nonMatchingChecksum { return nil }
            throw error
        }
        guard let stored = StorageMetadata(json: response.body),
            stored.path == task.reference.fullPath
        else { return nil }
        guard stored.size == Int64(sum.count), stored.crc32c ?? sum.base64 == sum.base64 else {
            throw StorageError(
                .nonMatchingChecksum,
                "The stored object is not what was sent: it was replaced, or it is damaged."
            )
        }
        task.progressed(to: stored.size, of: stored.size, stored)
        return stored
    }

    /// Removes an upload at the gateway, as far as that succeeds at once.
    private static func discard(_ session: URL, _ storage: Storage) {
        Task.detached {
            var retries = Retries(10)
            let requests = Requests(storage: storage, control: TransferControl())
            _ = try? await requests.attempt(GatewayRequest("DELETE", session), &retries)
        }
    }
}
