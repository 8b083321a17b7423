import Foundation
import Synchronization
import Wire

/// An upload.
///
/// Safety: what it adds to its superclass is behind a lock.
public final class StorageUploadTask: StorageTask, StorageTaskManagement, @unchecked Sendable {
    private let saved = Mutex<StorageUploadResumptionData?>(nil)

    /// The data that another process needs to continue this upload, with ``StorageReference/resumeUpload(from:file:)``. It is there
    /// before the first progress. It is nil before the upload has begun at the gateway, for small uploads and bytes in
    /// memory, and after the end, unless the upload can be continued: it stays after failures such as `retryLimitExceeded`,
    /// but not if the upload was cancelled or its file has changed. It is enough to continue an upload of an
    /// anonymous caller: keep it secret.
    public var resumptionData: StorageUploadResumptionData? { saved.withLock { $0 } }

    func save(_ data: StorageUploadResumptionData?) { saved.withLock { $0 = data } }

    static func start(
        _ reference: StorageReference, _ source: UploadSource, _ metadata: MetadataValues?,
        from saved: StorageUploadResumptionData? = nil, _ completion: Completion<StorageMetadata>
    ) -> StorageUploadTask {
        let task = StorageUploadTask(reference, total: source.knownSize)
        task.save(saved)
        completion.observe(task)
        Task.detached(executorPreference: Workers.shared) {
            task.begin()
            let result: Result<StorageMetadata, StorageError>
            do throws(StorageError) {
                try reference.check()
                let upload = try Upload(task, source, metadata, from: saved)
                result = .success(try await upload.run())
            } catch {
                result = .failure(error)
            }
            task.end(result, try? result.get(), completion)
        }
        return task
    }
}

/// The data to continue an upload in another process; see ``StorageUploadTask/resumptionData``.
public struct StorageUploadResumptionData: Sendable, Codable, Equatable, CustomStringConvertible,
    CustomReflectable
{
    /// The bucket's name.
    public let bucket: String
    /// The object's path.
    public let path: String
    /// The path of the upload at the gateway, with the query of one in parts.
    let session: String
    let file: FileState
    /// The fields of the object's metadata, if the upload has to begin again.
    let fields: [Field]
    /// Of an upload in parts the size of all parts but the last, in bytes; otherwise nil.
    var partSize: Int64?

    /// Whether the upload is in parts.
    package var isInParts: Bool { partSize != nil }

    /// The object without the upload's URL, which is a secret.
    public var description: String { "an upload to gs://\(bucket)/\(path)" }

    /// Shows no more by reflection.
    public var customMirror: Mirror {
        Mirror(self, children: ["bucket": bucket, "path": path])
    }

    struct Field: Sendable, Codable, Equatable {
        let name: String
        let value: String
    }
}
