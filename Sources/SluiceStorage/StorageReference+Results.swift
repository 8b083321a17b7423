import Foundation

/// The operations with a `Result` completion on ``Storage/callbackQueue``. Its error is a ``StorageError``.
extension StorageReference {
    /// `putData` with a result.
    @discardableResult
    public func putData(
        _ data: Data, metadata: StorageMetadata? = nil,
        completion: @escaping (Result<StorageMetadata, Error>) -> Void
    ) -> StorageUploadTask {
        putData(data, metadata: metadata, completion: pair(completion))
    }

    /// `putFile` with a result.
    @discardableResult
    public func putFile(
        from file: URL, metadata: StorageMetadata? = nil,
        completion: @escaping (Result<StorageMetadata, Error>) -> Void
    ) -> StorageUploadTask {
        putFile(from: file, metadata: metadata, completion: pair(completion))
    }

    /// `getData` with a result.
    @discardableResult
    public func getData(
        maxSize: Int64, completion: @escaping (Result<Data, Error>) -> Void
    ) -> StorageDownloadTask {
        getData(maxSize: maxSize, completion: pair(completion))
    }

    /// `write` with a result.
    @discardableResult
    public func write(
        toFile file: URL, completion: @escaping (Result<URL, Error>) -> Void
    ) -> StorageDownloadTask {
        write(toFile: file, completion: pair(completion))
    }

    /// ``downloadURL(expiresIn:)`` with a result.
    public func downloadURL(completion: @escaping (Result<URL, Error>) -> Void) {
        downloadURL(completion: pair(completion))
    }

    /// ``getMetadata()`` with a result.
    public func getMetadata(completion: @escaping (Result<StorageMetadata, Error>) -> Void) {
        getMetadata(completion: pair(completion))
    }

    /// ``updateMetadata(_:)`` with a result.
    public func updateMetadata(
        _ metadata: StorageMetadata,
        completion: @escaping (Result<StorageMetadata, Error>) -> Void
    ) {
        updateMetadata(metadata, completion: pair(completion))
    }

    /// ``list(maxResults:)`` with a result.
    public func list(
        maxResults: Int64, completion: @escaping (Result<StorageListResult, Error>) -> Void
    ) {
        list(maxResults: maxResults, completion: pair(completion))
    }

    /// ``list(maxResults:pageToken:)`` with a result.
    public func list(
        maxResults: Int64, pageToken: String,
        completion: @escaping (Result<StorageListResult, Error>) -> Void
    ) {
        list(maxResults: maxResults, pageToken: pageToken, completion: pair(completion))
    }

    /// ``listAll()`` with a result.
    public func listAll(completion: @escaping (Result<StorageListResult, Error>) -> Void) {
        listAll(completion: pair(completion))
    }

    private func pair<Value>(_ completion: @escaping (Result<Value, Error>) -> Void) -> (
        Value?, Error?
    ) -> Void {
        { value, error in
            if let value {
                completion(.success(value))
            } else {
                completion(.failure(error ?? StorageError(.internalError, "There is no result.")))
            }
        }
    }
}
