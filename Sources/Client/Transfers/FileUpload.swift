import ClientCommands
import Foundation
import SluiceStorage
import Wire

/// Uploads files.
struct FileUpload: Sendable {
    /// The largest file that is sent in one request, in bytes; its upload is not remembered.
    private static let smallSize: Int64 = 256 << 10

    private struct Saved: Codable, Sendable {
        let file: FileState
        /// The metadata that was wanted, each property as `KEY=VALUE`.
        let properties: [String]
        let upload: StorageUploadResumptionData
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
        await StreamTransfer(state: state).removeEarlier(reference)
        let file = URL(fileURLWithPath: path)
        let key = ["put", try reference.objectURL().absoluteString, FileUpload.absolute(path)]
        if found.st_size == 0 { return try await stream(path, to: reference, metadata, progress) }
        guard found.st_size > FileUpload.smallSize, let present = FileState(path: path),
            let saved = state?.state(key, of: Saved.self)
        else {
            return try await Interruption.deferred {
                try await reference.putFileAsync(from: file, metadata: metadata) {
                    progress.set($0?.completedUnitCount ?? 0)
                }
            }
        }
        let last = saved.load()
        let properties = FileUpload.properties(metadata)
        let isSame =
            last.map {
                $0.file == present && $0.properties.elementsEqual(properties, by: ==)
            } ?? false
        if let last, !isSame { await reference.removeUpload(last.upload) }
        let isSaved = Once<StorageUploadResumptionData>()
        let isFirst = Once<Bool>()
        let stored: Result<StorageMetadata, StorageError> = await withCheckedContinuation { done in
            let ended: (StorageMetadata?, Error?) -> Void = { stored, error in
                done.resume(returning: stored.map { .success($0) } ?? .failure(error as! StorageError))
            }
            let task =
                if isSame, let last {
                    reference.resumeUpload(
                        from: last.upload, file: file, completion: ended)
                } else {
                    reference.putFile(from: file, metadata: metadata, completion: ended)
                }
            task.observe(.progress) { [weak task] snapshot in
                let done = snapshot.progress!.completedUnitCount
                // The first offset is the number of bytes that the gateway already has.
                if isSame, isFirst.isFirst(true) { progress.resumed(at: done) }
                progress.set(done)
                guard let upload = task?.resumptionData, isSaved.isFirst(upload) else { return }
                saved.save(Saved(file: present, properties: properties, upload: upload))
            }
        }
        switch stored {
        case .success(let metadata):
            saved.remove()
            return metadata
        case .failure(let error):
            if !FileUpload.canContinue(error) {
                // The library has kept it, because the file is unchanged.
                if let upload = saved.load()?.upload { await reference.removeUpload(upload) }
                saved.remove()
            }
            throw error
        }
    }

    /// Whether the same command may succeed later: after a failure of the network, or with another credential.
    private static func canContinue(_ error: StorageError) -> Bool {
        error.reason == .unauthenticated || ClientError(error, about: "").status == .network
    }

    /// Uploads a file of size 0. Files in /proc have content nevertheless.
    private func stream(
        _ path: String, to reference: StorageReference, _ metadata: StorageMetadata, _ progress: TransferProgress
    ) async throws -> StorageMetadata {
        let descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK)
        guard descriptor >= 0 else { throw ClientError(path, errno) }
        defer { close(descriptor) }
        let metadata = StorageMetadata(metadata)
        if metadata.contentType == nil,
            let type = MediaTypes.type(of: LocalPath.name(path)[...])
        {
            metadata.contentType = type
        }
        return try await StreamTransfer(state: state).run(to: reference, metadata, progress) {
            () throws(StorageError) in
            if let piece = try FilePieces.next(descriptor, path) { return piece }
            var found = stat()
            guard fstat(descriptor, &found) == 0, found.st_size == 0 else {
                throw StorageError(.changedFile, "\(path) has changed while it was read.")
            }
            return nil
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

/// Reads a file of unknown size, piece by piece.
enum FilePieces {
    /// Bytes in one piece.
    private static let size = 256 << 10

    /// - Parameter name: For the error.
    /// - Returns: nil at the end.
    static func next(_ descriptor: Int32, _ name: String) throws(StorageError) -> [UInt8]? {
        var data = [UInt8](repeating: 0, count: size)
        while true {
            let count = data.withUnsafeMutableBytes { read(descriptor, $0.baseAddress, $0.count) }
            if count > 0 { return Array(data.prefix(count)) }
            if count == 0 { return nil }
            guard errno == EINTR else {
                let code = errno
                throw StorageError(.file(code), "\(name) can't be read: \(String(cString: strerror(code))).")
            }
        }
    }
}
