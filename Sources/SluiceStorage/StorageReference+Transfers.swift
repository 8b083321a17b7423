import Foundation
import Synchronization
import Wire

extension StorageReference {
    // MARK: Uploads

    /// Uploads bytes, replacing any object there.
    /// - Parameters:
    ///   - data: The object.
    ///   - metadata: Its metadata. The default content type is derived from the path's extension.
    ///   - completion: Called at the end with the object's metadata or the error.
    @discardableResult
    public func putData(
        _ data: Data, metadata: StorageMetadata? = nil,
        completion: ((StorageMetadata?, Error?) -> Void)? = nil
    ) -> StorageUploadTask {
        StorageUploadTask.start(self, .data(data), metadata?.values, queued(completion))
    }

    /// Uploads a file, replacing any object there. Memory does not grow with the file. A file that changes meanwhile is an
    /// error: no object is made of two versions.
    /// - Parameters:
    ///   - file: The file.
    ///   - metadata: Its metadata. The default content type is derived from the path's or the file's extension.
    ///   - completion: Called at the end with the object's metadata or the error.
    @discardableResult
    public func putFile(
        from file: URL, metadata: StorageMetadata? = nil,
        completion: ((StorageMetadata?, Error?) -> Void)? = nil
    ) -> StorageUploadTask {
        putFile(from: file, metadata?.values, queued(completion))
    }

    private func putFile(
        from file: URL, _ metadata: MetadataValues?, _ completion: Completion<StorageMetadata>
    ) -> StorageUploadTask {
        var metadata = metadata ?? MetadataValues()
        if metadata.contentType == nil, let type = MediaTypes.type(of: file.lastPathComponent[...]) {
            metadata.contentType = type
        }
        return StorageUploadTask.start(self, .file(path: file.path), metadata, completion)
    }

    /// Continues an upload that another process has begun, from the offset that the gateway reports. If the gateway does not
    /// know the upload any more, it begins again.
    /// - Parameters:
    ///   - data: ``StorageUploadTask/resumptionData`` of that upload. It is of this object.
    ///   - file: The same file; if it has changed since, the upload fails.
    ///   - metadata: The metadata if the upload has to start over; nil to keep the earlier upload's metadata.
    ///   - completion: Called at the end with the object's metadata or the error.
    @discardableResult
    public func resumeUpload(
        from data: StorageUploadResumptionData, file: URL, metadata: StorageMetadata? = nil,
        completion: ((StorageMetadata?, Error?) -> Void)? = nil
    ) -> StorageUploadTask {
        StorageUploadTask.start(self, .file(path: file.path), metadata?.values, from: data, queued(completion))
    }

    /// Uploads bytes and waits for the end. If the task that waits is cancelled, so is the upload.
    /// - Parameter onProgress: Called for each progress, within the transfer and not on ``Storage/callbackQueue``.
    @discardableResult
    public func putDataAsync(
        _ data: Data, metadata: StorageMetadata? = nil,
        onProgress: ((Progress?) -> Void)? = nil
    ) async throws(StorageError) -> StorageMetadata {
        let values = metadata?.values
        return try await wait(onProgress) { StorageUploadTask.start(self, .data(data), values, $0) }
    }

    /// Uploads a file and waits for the end. If the task that waits is cancelled, so is the upload.
    /// - Parameter onProgress: Called for each progress, within the transfer and not on ``Storage/callbackQueue``.
    @discardableResult
    public func putFileAsync(
        from file: URL, metadata: StorageMetadata? = nil,
        onProgress: ((Progress?) -> Void)? = nil
    ) async throws(StorageError) -> StorageMetadata {
        let values = metadata?.values
        return try await wait(onProgress) { putFile(from: file, values, $0) }
    }

    // MARK: Downloads

    /// Downloads the object into memory.
    /// - Parameters:
    ///   - maxSize: The maximum size in bytes; a larger object is the error `downloadSizeExceeded`.
    ///   - completion: Called at the end with the bytes or the error.
    @discardableResult
    public func getData(
        maxSize: Int64, completion: @escaping (Data?, Error?) -> Void
    ) -> StorageDownloadTask {
        getData(maxSize, queued(completion))
    }

    private func getData(_ maxSize: Int64, _ completion: Completion<Data>) -> StorageDownloadTask {
        StorageDownloadTask.start(self, completion) {
            (download: Download) throws(StorageError) -> Data in
            try await download.data(maxSize: maxSize)
        }
    }

    /// Downloads the object into memory. Cancelling the waiting task cancels the download.
    /// - Parameter maxSize: The maximum size in bytes; a larger object is the error `downloadSizeExceeded`.
    public func data(maxSize: Int64) async throws(StorageError) -> Data {
        try await wait(nil) { getData(maxSize, $0) }
    }

    /// Downloads the object to a file, replacing it. The file appears when the download is complete and verified: the bytes
    /// go to another file in the same folder first, from which an interrupted download of a large object continues, also in
    /// another process. A link is followed. A file can't be named like such a one, `.sluice-….part`.
    /// - Parameter completion: Called at the end with `file` or the error.
    @discardableResult
    public func write(
        toFile file: URL, completion: ((URL?, Error?) -> Void)? = nil
    ) -> StorageDownloadTask {
        write(to: file, queued(completion))
    }

    private func write(to file: URL, _ completion: Completion<URL>) -> StorageDownloadTask {
        StorageDownloadTask.start(self, completion) {
            (download: Download) throws(StorageError) -> URL in
            try await download.write(to: file)
        }
    }

    /// Downloads the object to a file and waits for the end. If the task that waits is cancelled, so is the download.
    /// - Parameter onProgress: Called for each progress, within the transfer and not on ``Storage/callbackQueue``.
    @discardableResult
    public func writeAsync(
        toFile file: URL, onProgress: ((Progress?) -> Void)? = nil
    ) async throws(StorageError) -> URL {
        try await wait(onProgress) { write(to: file, $0) }
    }

    // MARK: Waiting

    private func queued<Value: Sendable>(_ completion: ((Value?, Error?) -> Void)?)
        -> Completion<Value>
    {
        guard let completion else { return .none }
        let handler = Handler(call: completion)
        return .queued { result in
            switch result {
            case .success(let value): handler.call(value, nil)
            case .failure(let error): handler.call(nil, error)
            }
        }
    }

    private func wait<Value: Sendable>(
        _ onProgress: ((Progress?) -> Void)?,
        _ start: (Completion<Value>) -> StorageTask
    ) async throws(StorageError) -> Value {
        let handler = onProgress.map { Handler(call: $0) }
        let progress = handler.map { handler in
            { @Sendable (progress: Progress?) in handler.call(progress) }
        }
        let running = Mutex<(task: StorageTask?, isCancelled: Bool)>((nil, false))
        let result: Result<Value, StorageError> = await withTaskCancellationHandler {
            await withCheckedContinuation { continuation in
                let task = start(
                    .direct(progress: progress) { continuation.resume(returning: $0) })
                let isCancelled = running.withLock { running in
                    running.task = task
                    return running.isCancelled
                }
                if isCancelled { task.cancel() }
            }
        } onCancel: {
            let task = running.withLock { running in
                running.isCancelled = true
                return running.task
            }
            task?.cancel()
        }
        return try result.get()
    }
}
