import Foundation

/// The same operations with a completion, which is called on the storage's ``Storage/callbackQueue``.
extension StorageReference {
    /// ``getMetadata()`` with a completion.
    public func getMetadata(
        completion: @escaping (StorageMetadata?, Error?) -> Void
    ) {
        run(completion) { [self] () throws(StorageError) in try await getMetadata() }
    }

    /// ``updateMetadata(_:)`` with a completion.
    public func updateMetadata(
        _ metadata: StorageMetadata, completion: ((StorageMetadata?, Error?) -> Void)?
    ) {
        let values = metadata.values
        run(completion) { [self] () throws(StorageError) in try await updateMetadata(values) }
    }

    /// ``delete()`` with a completion.
    public func delete(completion: ((Error?) -> Void)?) {
        run(completion.map { completion in { (_: Void?, error: Error?) in completion(error) } }) {
            [self] () throws(StorageError) in try await delete()
        }
    }

    /// ``downloadURL(expiresIn:)`` with a completion.
    public func downloadURL(completion: @escaping (URL?, Error?) -> Void) {
        run(completion) { [self] () throws(StorageError) in try await downloadURL() }
    }

    /// ``list(maxResults:)`` with a completion.
    public func list(
        maxResults: Int64,
        completion: @escaping (StorageListResult?, Error?) -> Void
    ) {
        run(completion) { [self] () throws(StorageError) in try await list(maxResults: maxResults) }
    }

    /// ``list(maxResults:pageToken:)`` with a completion.
    public func list(
        maxResults: Int64, pageToken: String,
        completion: @escaping (StorageListResult?, Error?) -> Void
    ) {
        run(completion) { [self] () throws(StorageError) in
            try await list(maxResults: maxResults, pageToken: pageToken)
        }
    }

    /// ``listAll()`` with a completion.
    public func listAll(
        completion: @escaping (StorageListResult?, Error?) -> Void
    ) {
        run(completion) { [self] () throws(StorageError) in try await listAll() }
    }

    private func run<Value: Sendable>(
        _ completion: ((Value?, Error?) -> Void)?, _ body: @escaping @Sendable () async throws(StorageError) -> Value
    ) {
        let handler = completion.map { Handler(call: $0) }
        let queue = storage.callbackQueue
        Task.detached {
            let result: Result<Value, StorageError>
            do throws(StorageError) {
                result = .success(try await body())
            } catch {
                result = .failure(error)
            }
            guard let handler else { return }
            queue.async {
                switch result {
                case .success(let value): handler.call(value, nil)
                case .failure(let error): handler.call(nil, error)
                }
            }
        }
    }
}

/// A closure of the application, as it goes from the caller's thread to the callback queue.
///
/// Safety: the closure need not be `Sendable`, as in the Storage SDK for Apple platforms, so that code written for it compiles. It is called on
/// ``Storage/callbackQueue``, which the application chooses: what it captures must be used there alone, or be safe otherwise.
struct Handler<Call>: @unchecked Sendable {
    let call: Call
}
