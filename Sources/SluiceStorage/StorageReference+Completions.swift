import Foundation

/// The same operations with a completion, which is called on the storage's ``Storage/callbackQueue``.
extension StorageReference {
    /// ``getMetadata()`` with a completion.
    public func getMetadata(
        completion: @escaping @Sendable (StorageMetadata?, StorageError?) -> Void
    ) {
        run(completion) { () throws(StorageError) in try await getMetadata() }
    }

    /// ``updateMetadata(_:)`` with a completion.
    public func updateMetadata(
        _ metadata: StorageMetadata,
        completion: @escaping @Sendable (StorageMetadata?, StorageError?) -> Void
    ) {
        run(completion) { () throws(StorageError) in try await updateMetadata(metadata) }
    }

    /// ``delete()`` with a completion.
    public func delete(completion: @escaping @Sendable (StorageError?) -> Void) {
        let ended: @Sendable (Void?, StorageError?) -> Void = { _, error in completion(error) }
        run(ended) { () throws(StorageError) in try await delete() }
    }

    /// ``downloadURL(expiresIn:)`` with a completion.
    public func downloadURL(completion: @escaping @Sendable (URL?, StorageError?) -> Void) {
        run(completion) { () throws(StorageError) in try await downloadURL() }
    }

    /// ``list(maxResults:)`` with a completion.
    public func list(
        maxResults: Int64,
        completion: @escaping @Sendable (StorageListResult?, StorageError?) -> Void
    ) {
        run(completion) { () throws(StorageError) in try await list(maxResults: maxResults) }
    }

    /// ``list(maxResults:pageToken:)`` with a completion.
    public func list(
        maxResults: Int64, pageToken: String,
        completion: @escaping @Sendable (StorageListResult?, StorageError?) -> Void
    ) {
        run(completion) { () throws(StorageError) in
            try await list(maxResults: maxResults, pageToken: pageToken)
        }
    }

    /// ``listAll()`` with a completion.
    public func listAll(
        completion: @escaping @Sendable (StorageListResult?, StorageError?) -> Void
    ) {
        run(completion) { () throws(StorageError) in try await listAll() }
    }

    private func run<Value: Sendable>(
        _ completion: @escaping @Sendable (Value?, StorageError?) -> Void,
        _ body: @escaping @Sendable () async throws(StorageError) -> Value
    ) {
        let queue = storage.callbackQueue
        Task.detached {
            do throws(StorageError) {
                let value = try await body()
                queue.async { completion(value, nil) }
            } catch {
                queue.async { completion(nil, error) }
            }
        }
    }
}
