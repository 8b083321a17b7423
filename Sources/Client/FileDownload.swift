import ClientCommands
import Foundation
import SluiceStorage
import Wire

/// Downloads objects to files.
struct FileDownload: Sendable {
    /// The largest object whose download is not remembered, in bytes: 4 MiB.
    static let smallSize: Int64 = 4 << 20

    private struct Version: Codable, Sendable {
        let generation: Int64
        let size: Int64
    }

    let state: StateDirectory?
    /// Bytes in one request.
    let pieceSize: Int64

    /// Downloads to `target`, which appears when it is complete and verified. Its time becomes that of the object.
    func run(_ opened: StorageReader, to target: String, _ progress: TransferProgress) async throws
        -> StorageMetadata
    {
        if FileKind(target) == .directory {
            throw ClientError(.local, "\(target): a directory is in the way of the file.")
        }
        let reference = opened.reference
        let key = ["get", try reference.objectURL().absoluteString, FileUpload.absolute(target)]
        let directory = LocalPath.parent(target)
        let part =
            (directory.isEmpty ? "" : directory == "/" ? "/" : directory + "/")
            + LocalFiles.partPrefix
            + StateDirectory.name(key) + LocalFiles.partSuffix
        if !directory.isEmpty { try FileDownload.makeDirectory(directory) }
        let isLarge = opened.metadata.size > FileDownload.smallSize
        let saved = isLarge ? state?.state(key, of: Version.self) : nil
        let file = try PartFile(part)
        do {
            let version = Version(
                generation: opened.metadata.generation, size: opened.metadata.size)
            let known = saved?.load()
            var reader = opened
            if let known, known.generation == version.generation, known.size == version.size {
                try file.verify(&reader, progress)
            } else {
                try file.truncate()
                saved?.save(version)
            }
            progress.set(reader.offset)
            while let piece = try await reader.next(maximum: pieceSize) {
                try file.write(piece)
                progress.set(reader.offset)
            }
            try file.finish(target, reader.metadata.updated)
            saved?.remove()
            return reader.metadata
        } catch {
            // Only what a later download can use is kept.
            let code = (error as? StorageError)?.code
            let isUsable =
                saved != nil && code != .nonMatchingChecksum
                && (error as? StorageError)?.status != 412 && !(error is ClientError)
            if !isUsable {
                unlink(part)
                saved?.remove()
            }
            throw error
        }
    }

    /// Makes a directory and those above it.
    private static func makeDirectory(_ path: String) throws {
        if mkdir(path, 0o777) == 0 { return }
        let code = errno
        if code == EEXIST {
            guard FileKind(path) == .directory else { throw ClientError(path, ENOTDIR) }
            return
        }
        let parent = LocalPath.parent(path)
        if code == ENOENT, !parent.isEmpty, parent != path {
            try makeDirectory(parent)
            if mkdir(path, 0o777) == 0 || errno == EEXIST { return }
        }
        throw ClientError(path, code)
    }
}

/// The file of an unfinished download, which this process alone writes.
private final class PartFile: Sendable {
    private let path: String
    private let descriptor: Int32

    init(_ path: String) throws {
        self.path = path
        guard let descriptor = LockedFile.open(path, creates: true) else {
            guard errno != EWOULDBLOCK else {
                throw ClientError(
                    .conflict, "\(path): another sluice downloads this file. Wait for its end.")
            }
            throw ClientError(path, errno)
        }
        self.descriptor = descriptor
    }

    deinit { close(descriptor) }

    /// Reads the bytes that are there already, so that they are verified with the others.
    func verify(_ reader: inout StorageReader, _ progress: TransferProgress) throws {
        let file = FileHandle(fileDescriptor: descriptor, closeOnDealloc: false)
        try file.seek(toOffset: 0)
        while let bytes = try file.read(upToCount: 1 << 20), !bytes.isEmpty {
            guard reader.offset + Int64(bytes.count) <= reader.metadata.size else {
                throw ClientError(
                    .conflict, "\(path) is larger than the object. Run the same command again.")
            }
            reader.skip(Array(bytes))
        }
        progress.resumed(at: reader.offset)
    }

    func truncate() throws {
        guard ftruncate(descriptor, 0) == 0 else { throw ClientError(path, errno) }
    }

    func write(_ bytes: [UInt8]) throws {
        try FileWriting.write(bytes, descriptor, path)
    }

    /// Gives the file its name.
    func finish(_ target: String, _ modified: Date?) throws {
        if let modified {
            let seconds = modified.timeIntervalSince1970
            let time = timespec(
                tv_sec: Int(seconds.rounded(.down)),
                tv_nsec: Int((seconds - seconds.rounded(.down)) * 1e9))
            let times = [time, time]
            _ = futimens(descriptor, times)
        }
        guard rename(path, target) == 0 else { throw ClientError(target, errno) }
    }
}

/// Writes everything, or throws.
enum FileWriting {
    static func write(_ bytes: [UInt8], _ descriptor: Int32, _ path: String) throws {
        var offset = 0
        while offset < bytes.count {
            let count = bytes.withUnsafeBytes {
                Glibc.write(descriptor, $0.baseAddress! + offset, $0.count - offset)
            }
            if count >= 0 {
                offset += count
            } else if errno != EINTR {
                throw ClientError(path, errno)
            }
        }
    }
}
