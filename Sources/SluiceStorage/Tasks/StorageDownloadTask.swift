import Foundation

/// A download.
///
/// Safety: it adds nothing to its superclass.
public final class StorageDownloadTask: StorageTask, StorageTaskManagement, @unchecked Sendable {
    static func start<Value: Sendable>(
        _ reference: StorageReference, _ completion: Completion<Value>,
        _ body: @escaping @Sendable (Download) async throws(StorageError) -> Value
    ) -> StorageDownloadTask {
        let task = StorageDownloadTask(reference)
        completion.observe(task)
        Task.detached(executorPreference: Workers.shared) {
            task.begin()
            let result: Result<Value, StorageError>
            do throws(StorageError) {
                try reference.check()
                result = .success(try await body(Download(task)))
            } catch {
                result = .failure(error)
            }
            task.end(result, nil, completion)
        }
        return task
    }
}
