import Foundation

/// A download.
///
/// Safety: it adds nothing to its superclass.
public final class StorageDownloadTask: StorageTask, @unchecked Sendable {
    static func start<Value: Sendable>(
        _ reference: StorageReference,
        _ body: @escaping @Sendable (Download) async throws(StorageError) -> Value,
        _ completion: @escaping @Sendable (Result<Value, StorageError>) -> Void
    ) -> StorageDownloadTask {
        let task = StorageDownloadTask(reference)
        Task.detached {
            task.begin()
            let result: Result<Value, StorageError>
            do throws(StorageError) {
                result = .success(try await body(Download(task)))
            } catch {
                result = .failure(error)
            }
            task.end(result, nil, completion)
        }
        return task
    }
}
