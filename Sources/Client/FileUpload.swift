import ClientCommands
import Foundation
import SluiceStorage
import Wire

/// Uploads files.
struct FileUpload: Sendable {
    /// The largest file that is sent in one request, in bytes; its upload is not remembered.
    private static let smallSize: Int64 = 256 << 10

    private struct Saved: Codable, Sendable {
        let size: Int64
        let modified: Double
        /// When bytes or attributes changed. Programs can't set it.
        let changed: Double
        let number: UInt64
        /// The metadata that was wanted, each property as `KEY=VALUE`.
        let properties: [String]
        let upload: StorageUploadResumptionData
    }

    private static func seconds(_ time: timespec) -> Double {
        Double(time.tv_sec) + Double(time.tv_nsec) / 1e9
    }

    let state: StateDirectory?

    /// Uploads a file, from where an earlier upload of it was interrupted.
    func run(
        _ path: String, to reference: StorageReference, _ metadata: StorageMetadata,
        _ progress: TransferProgress
    ) async throws -> StorageMetadata {
        var found = stat()
        guard stat(path, &found) == 0 else { throw ClientError(path, errno) }
        guard found.st_mode & S_IFMT == S_IFREG else {
            throw ClientError(.local, "\(path): not a regular file.")
        }
        guard access(path, R_OK) == 0 else { throw ClientError(path, errno) }
        let file = URL(fileURLWithPath: path)
        let size = Int64(found.st_size)
        guard size > FileUpload.smallSize else {
            return try await reference.putFileAsync(from: file, metadata: metadata)
        }
        let modified = FileUpload.seconds(found.st_mtim)
        let changed = FileUpload.seconds(found.st_ctim)
        let number = UInt64(found.st_ino)
        let key = ["put", try reference.objectURL().absoluteString, FileUpload.absolute(path)]
        let saved = state?.state(key, of: Saved.self)
        let last = saved?.load()
        let properties = FileUpload.properties(metadata)
        let isSame =
            last.map {
                $0.size == size && $0.modified == modified && $0.changed == changed
                    && $0.number == number
                    && $0.properties.elementsEqual(properties, by: ==)
            } ?? false
        let isSaved = Once<StorageUploadResumptionData>()
        let isFirst = Once<Bool>()
        let stored: Result<StorageMetadata, StorageError> = await withCheckedContinuation { done in
            let ended: @Sendable (StorageMetadata?, StorageError?) -> Void = { stored, error in
                done.resume(returning: stored.map { .success($0) } ?? .failure(error!))
            }
            let task =
                if isSame, let last {
                    reference.resumeUpload(
                        from: last.upload, file: file, completion: ended)
                } else {
                    reference.putFile(from: file, metadata: metadata, completion: ended)
                }
            task.observe(.progress) { [weak task] snapshot in
                let done = snapshot.progress.completedUnitCount
                // The first offset is what the gateway had already.
                if isSame, isFirst.isFirst(true) { progress.resumed(at: done) }
                progress.set(done)
                guard let upload = task?.resumptionData, isSaved.isFirst(upload) else { return }
                saved?.save(
                    Saved(
                        size: size, modified: modified, changed: changed, number: number,
                        properties: properties, upload: upload))
            }
        }
        switch stored {
        case .success(let metadata):
            saved?.remove()
            return metadata
        case .failure(let error):
            // A failure of the network leaves an upload that can be continued.
            if ClientError(error, about: path).status != .network { saved?.remove() }
            throw error
        }
    }

    private static func properties(_ metadata: StorageMetadata) -> [String] {
        let pairs = metadata.customMetadata ?? [:]
        return [
            "contentType=\(metadata.contentType ?? "")",
            "cacheControl=\(metadata.cacheControl ?? "")",
        ]
            + pairs.map { "\(Meta.custom)\($0.key)=\($0.value)" }
            .sorted { BytewiseString($0) < BytewiseString($1) }
    }

    /// The path from the root.
    static func absolute(_ path: String) -> String {
        if path.hasPrefix("/") { return path }
        return FileManager.default.currentDirectoryPath + "/" + path
    }
}
