import Foundation
import Wire

/// One upload: a small one in one request, a larger one in pieces of a session of draft-ietf-httpbis-resumable-upload.
struct Upload {
    /// The largest upload that is sent in one request, in bytes: 256 KiB.
    static let smallSize: Int64 = 256 << 10

    let task: StorageUploadTask
    let reader: UploadReader
    let requests: UploadRequests
    private let saved: StorageUploadResumptionData?

    /// - Parameters:
    ///   - metadata: nil for the saved metadata, or for none.
    ///   - saved: An earlier upload to continue.
    init(
        _ task: StorageUploadTask, _ source: UploadSource, _ metadata: MetadataValues?,
        from saved: StorageUploadResumptionData?
    ) throws(StorageError) {
        if let saved {
            guard saved.bucket == task.reference.bucket, saved.path == task.reference.fullPath else {
                // It does not belong to this task, whose object it is not.
                task.save(nil)
                throw StorageError(
                    .invalidArgument, "The resumption data belongs to another object.")
            }
        }
        self.task = task
        self.saved = saved
        let fields =
            if let saved, metadata == nil {
                saved.fields.map { (name: $0.name, value: $0.value) }
            } else {
                try (metadata ?? MetadataValues()).fields(
                    type: MediaTypes.type(of: task.reference.name[...]))
            }
        requests = UploadRequests(reference: task.reference, requests: Requests(task), fields: fields)
        reader = try UploadReader(source)
    }

    var storage: Storage { task.reference.storage }

    /// Transfers everything.
    /// - Returns: The metadata of the stored object, whose size and checksum are those of the source.
    func run() async throws(StorageError) -> StorageMetadata {
        let isSmall = saved == nil && reader.size <= Upload.smallSize
        let stored = try await isSmall ? sendAtOnce() : sendInPieces()
        task.progressed(to: stored.size, of: stored.size, stored)
        return stored
    }

    private func sendInPieces() async throws(StorageError) -> StorageMetadata {
        // A URL that is none begins a new upload.
        let url = saved.flatMap { try? storage.endpoint.session($0.session) }
        var session = UploadSession(self, url)
        do throws(StorageError) {
            try checkFile()
            let stored = try await session.run()
            task.save(nil)
            return stored
        } catch {
            // A failed upload of a file can be continued later; one that was cancelled or is of a changed file can't.
            let canContinue = error.reason != .cancelled && reader.file != nil && (try? checkFile()) != nil
            if !canContinue {
                task.save(nil)
                if let url = session.url { await requests.remove(url) }
            }
            throw error
        }
    }

    /// - Throws: ``StorageError`` if the file has changed since the upload began.
    private func checkFile() throws(StorageError) {
        guard let file = reader.file else { return }
        try file.check()
        if let saved, file.state != saved.file { throw file.changed }
    }

    private func sendAtOnce() async throws(StorageError) -> StorageMetadata {
        let body = try reader.read(0..<reader.size)
        let sum = CRC32C(body)
        var request = try requests.creation()
        request.body = body
        request.fields.append(("Repr-Digest", "crc32c=:\(sum.base64):"))
        var retries = Retries(storage.maxUploadRetryTime)
        while true {
            if try await task.checkpoint() { retries.succeeded() }
            switch try await requests.requests.attempt(request, &retries) {
            case .failure(let failure): try await retries.failed(failure, task.control)
            case .response(let response):
                if retries.hasFailed,
                    let stored = try await requests.storedBefore(response, sum)
                {
                    return stored
                }
                if let stored = try requests.accept(response, sum) { return stored }
                let error =
                    [200, 201].contains(response.status)
                    ? Requests.malformed : Requests.error(response)
                try await retries.failed(Failure(error: error), task.control)
            }
        }
    }
}
