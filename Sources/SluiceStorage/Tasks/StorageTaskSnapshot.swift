import Foundation

/// A report of a task.
public enum StorageTaskStatus: Int, Sendable, Hashable {
    /// No known event.
    case unknown
    /// The task begins, or resumes after a pause.
    case resume
    /// More bytes were transferred.
    case progress
    /// The task has stopped until it is resumed.
    case pause
    /// The task has ended, and everything is transferred and verified.
    case success
    /// The task has ended with an error.
    case failure
}

/// The state of a task at a point in time.
///
/// Safety: all properties are immutable, and the progress is an object of this snapshot alone, which nothing changes.
public final class StorageTaskSnapshot: CustomStringConvertible, @unchecked Sendable {
    /// The task.
    public let task: StorageTask
    /// The subject of the task.
    public let reference: StorageReference
    /// The metadata of the object: of a download from its beginning on, of an upload after its success.
    public let metadata: StorageMetadata?
    /// Bytes: of an upload those that the gateway has confirmed.
    /// It is never nil; it is optional as in the Storage SDK for Apple platforms.
    public let progress: Progress?
    /// Why the task has failed: a ``StorageError``.
    public let error: Error?
    /// The event.
    public let status: StorageTaskStatus

    /// The status, the bytes and the error.
    public var description: String {
        let bytes = "\(progress?.completedUnitCount ?? 0) of \(progress?.totalUnitCount ?? 0) bytes"
        return "<\(status): \(bytes)\(error.map { ", \($0)" } ?? "")>"
    }

    init(
        _ task: StorageTask, _ status: StorageTaskStatus, _ metadata: StorageMetadata?,
        completed: Int64, total: Int64, _ error: StorageError?
    ) {
        self.task = task
        self.status = status
        self.metadata = metadata
        self.error = error
        reference = task.reference
        // Of an empty object everything is transferred: one unit of one, so that the fraction is 1 and not 0. Progress of it
        // is reported at the end of an upload and from the beginning of a download.
        let isWhole = total == 0 && (status == .success || status == .progress)
        let progress = Progress.discreteProgress(totalUnitCount: isWhole ? 1 : total)
        progress.completedUnitCount = isWhole ? 1 : completed
        self.progress = progress
    }
}
