import Foundation
import Synchronization
import Wire

extension StorageReference {
    // MARK: Uploads

    /// Uploads bytes, replacing any object there.
    /// - Parameters:
    ///   - data: The object.
    ///   - metadata: Its metadata; a type that is not set is that of the path's extension.
    ///   - completion: Called at the end with the object's metadata or the error.
    @discardableResult
    public func putData(
        _ data: Data, metadata: StorageMetadata? = nil,
        completion: (@Sendable (StorageMetadata?, StorageError?) -> Void)? = nil
    ) -> StorageUploadTask {
        put(.data(data), metadata, nil, completion)
    }

    /// Uploads a file, replacing any object there. Memory does not grow with the file. A file that changes meanwhile is an
    /// error: no object is made of two versions.
    /// - Parameters:
    ///   - file: The file.
    ///   - metadata: Its metadata; a type that is not set is that of the path's or the file's extension.
    ///   - completion: Called at the end with the object's metadata or the error.
    @discardableResult
    public func putFile(
        from file: URL, metadata: StorageMetadata? = nil,
        completion: (@Sendable (StorageMetadata?, StorageError?) -> Void)? = nil
    ) -> StorageUploadTask {
        var metadata = metadata ?? StorageMetadata()
        if metadata.contentType == nil, let type = MediaTypes.type(of: file.lastPathComponent[...])
        {
            metadata.contentType = type
        }
        return put(.file(path: file.path), metadata, nil, completion)
    }

    /// Continues an upload that another process has begun, from the offset that the gateway reports. If the gateway does not
    /// know the upload any more, it begins again.
    /// - Parameters:
    ///   - data: ``StorageUploadTask/resumptionData`` of that upload. It is of this object.
    ///   - file: The same file; if it has changed since, the upload fails.
    @discardableResult
    public func resumeUpload(
        from data: StorageUploadResumptionData, file: URL, metadata: StorageMetadata? = nil,
        completion: (@Sendable (StorageMetadata?, StorageError?) -> Void)? = nil
    ) -> StorageUploadTask {
        put(.file(path: file.path), metadata, data, completion)
    }

    private func put(
        _ source: UploadSource, _ metadata: StorageMetadata?,
        _ saved: StorageUploadResumptionData?,
        _ completion: (@Sendable (StorageMetadata?, StorageError?) -> Void)?
    ) -> StorageUploadTask {
        StorageUploadTask.start(self, source, metadata ?? StorageMetadata(), from: saved) {
            completion?($0.value, $0.error)
        }
    }

    /// Uploads bytes and waits for the end. If the task that waits is cancelled, so is the upload.
    /// - Parameter onProgress: Called for each progress.
    @discardableResult
    public func putDataAsync(
        _ data: Data, metadata: StorageMetadata? = nil,
        onProgress: (@Sendable (Progress?) -> Void)? = nil
    ) async throws(StorageError) -> StorageMetadata {
        try await wait(onProgress) { putData(data, metadata: metadata, completion: $0) }
    }

    /// Uploads a file and waits for the end. If the task that waits is cancelled, so is the upload.
    /// - Parameter onProgress: Called for each progress.
    @discardableResult
    public func putFileAsync(
        from file: URL, metadata: StorageMetadata? = nil,
        onProgress: (@Sendable (Progress?) -> Void)? = nil
    ) async throws(StorageError) -> StorageMetadata {
        try await wait(onProgress) { putFile(from: file, metadata: metadata, completion: $0) }
    }

    // MARK: Downloads

    /// Downloads the object into memory.
    /// - Parameters:
    ///   - maxSize: The maximum size in bytes; a larger object is the error `downloadSizeExceeded`.
    ///   - completion: Called at the end with the bytes or the error.
    @discardableResult
    public func getData(
        maxSize: Int64, completion: @escaping @Sendable (Data?, StorageError?) -> Void
    ) -> StorageDownloadTask {
        StorageDownloadTask.start(self) { (download: Download) throws(StorageError) -> Data in
            try await download.data(maxSize: maxSize)
        } _: {
            completion($0.value, $0.error)
        }
    }

    /// Downloads the object into memory, and cancels that if the task that waits is cancelled.
    /// - Parameter maxSize: The maximum size in bytes; a larger object is the error `downloadSizeExceeded`.
    public func data(maxSize: Int64) async throws(StorageError) -> Data {
        try await wait(nil) { getData(maxSize: maxSize, completion: $0) }
    }

    /// Downloads the object to a file, replacing it. The file appears when the download is complete and verified: the bytes
    /// go to another file in the same folder first.
    /// - Parameter completion: Called at the end with `file` or the error.
    @discardableResult
    public func write(
        toFile file: URL, completion: (@Sendable (URL?, StorageError?) -> Void)? = nil
    ) -> StorageDownloadTask {
        StorageDownloadTask.start(self) { (download: Download) throws(StorageError) -> URL in
            try await download.write(to: file)
        } _: {
            completion?($0.value, $0.error)
        }
    }

    /// Downloads the object to a file and waits for the end. If the task that waits is cancelled, so is the download.
    /// - Parameter onProgress: Called for each progress.
    @discardableResult
    public func writeAsync(
        toFile file: URL, onProgress: (@Sendable (Progress?) -> Void)? = nil
    ) async throws(StorageError) -> URL {
        try await wait(onProgress) { write(toFile: file, completion: $0) }
    }

    // MARK: Waiting

    private func wait<Value: Sendable, Transfer: StorageTask>(
        _ onProgress: (@Sendable (Progress?) -> Void)?,
        _ start: (@escaping @Sendable (Value?, StorageError?) -> Void) -> Transfer
    ) async throws(StorageError) -> Value {
        let running = Mutex<(task: Transfer?, isCancelled: Bool)>((nil, false))
        let result: Result<Value, StorageError> = await withTaskCancellationHandler {
            await withCheckedContinuation { continuation in
                let task = start { value, error in
                    continuation.resume(
                        returning: value.map { .success($0) } ?? .failure(error ?? .cancelled))
                }
                if let onProgress { task.observe(.progress) { onProgress($0.progress) } }
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

extension Result where Failure == StorageError {
    fileprivate var value: Success? { try? get() }

    fileprivate var error: StorageError? {
        if case .failure(let error) = self { error } else { nil }
    }
}
