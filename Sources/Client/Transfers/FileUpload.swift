import ClientCommands
import Foundation
import SluiceStorage
import Synchronization
import Wire

/// Uploads files.
final class FileUpload: Sendable {
    /// The largest file that is sent in one request, in bytes; its upload is not remembered.
    private static let smallSize: Int64 = 256 << 10

    private struct Saved: Codable, Sendable {
        let file: FileState
        /// The metadata that was wanted, each property as `KEY=VALUE`.
        let properties: [String]
        let upload: StorageUploadResumptionData
    }

    let state: StateDirectory?
    /// The job of an upload has one of them.
    let slots: TransferSlots
    /// The identities of the buckets that have no uploads in parts.
    private let withoutParts = Mutex<Set<BytewiseString>>([])

    init(state: StateDirectory?, slots: TransferSlots) {
        self.state = state
        self.slots = slots
    }

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
        let (file, size) = (URL(fileURLWithPath: path), Int64(found.st_size))
        let key = ["put", try reference.objectURL().absoluteString, FileUpload.absolute(path)]
        if size == 0 { return try await stream(path, to: reference, metadata, progress) }
        guard size > FileUpload.smallSize, let present = FileState(path: path),
            let saved = state?.state(key, of: Saved.self)
        else {
            return try await Interruption.deferred {
                if let stored = try await inParts(path, size, to: reference, metadata, from: nil, progress) {
                    return stored
                }
                return try await reference.putFileAsync(from: file, metadata: metadata) {
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
        let earlier = isSame ? last?.upload : nil
        @Sendable func save(_ upload: StorageUploadResumptionData) {
            saved.save(Saved(file: present, properties: properties, upload: upload))
        }
        do throws(StorageError) {
            let stored =
                if let whole = try await inParts(path, size, to: reference, metadata, from: earlier, progress, save) {
                    whole
                } else {
                    try await inPieces(file, to: reference, metadata, from: earlier, progress, save)
                }
            saved.remove()
            return stored
        } catch {
            if !FileUpload.canContinue(error) {
                // The library has kept it, because the file is unchanged.
                if let upload = saved.load()?.upload { await reference.removeUpload(upload) }
                saved.remove()
            }
            throw error
        }
    }

    /// Uploads a large file in parts.
    /// - Returns: nil if the file is small, there is only one slot, an upload in pieces was begun, or the bucket has none in
    ///   parts.
    private func inParts(
        _ path: String, _ size: Int64, to reference: StorageReference, _ metadata: StorageMetadata,
        from earlier: StorageUploadResumptionData?, _ progress: TransferProgress,
        _ save: (StorageUploadResumptionData) -> Void = { _ in }
    ) async throws(StorageError) -> StorageMetadata? {
        let bucket = BytewiseString(reference.bucketIdentity)
        let isLarge = size > StorageReference.partsFileSize && slots.limit > 1
        guard earlier?.isInParts ?? (isLarge && !withoutParts.withLock { $0.contains(bucket) }) else { return nil }
        let stored = try await reference.putFileInParts(
            path, metadata: metadata, from: earlier, slots, began: save,
            onProgress: { progress.set($0, before: $1) })
        if stored == nil { withoutParts.withLock { _ = $0.insert(bucket) } }
        return stored
    }

    /// Uploads a file in pieces, one after another.
    private func inPieces(
        _ file: URL, to reference: StorageReference, _ metadata: StorageMetadata,
        from earlier: StorageUploadResumptionData?, _ progress: TransferProgress,
        _ save: @escaping @Sendable (StorageUploadResumptionData) -> Void
    ) async throws(StorageError) -> StorageMetadata {
        let isSaved = Once<StorageUploadResumptionData>()
        let isFirst = Once<Bool>()
        let stored: Result<StorageMetadata, StorageError> = await withCheckedContinuation { done in
            let ended: (StorageMetadata?, Error?) -> Void = { stored, error in
                done.resume(returning: stored.map { .success($0) } ?? .failure(error as! StorageError))
            }
            let task =
                if let earlier {
                    reference.resumeUpload(from: earlier, file: file, completion: ended)
                } else {
                    reference.putFile(from: file, metadata: metadata, completion: ended)
                }
            task.observe(.progress) { [weak task] snapshot in
                let done = snapshot.progress!.completedUnitCount
                // The first offset is the number of bytes that the gateway already has.
                if earlier != nil, isFirst.isFirst(true) { progress.resumed(at: done) }
                progress.set(done)
                guard let upload = task?.resumptionData, isSaved.isFirst(upload) else { return }
                save(upload)
            }
        }
        return try stored.get()
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
