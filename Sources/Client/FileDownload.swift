import ClientCommands
import Foundation
import SluiceStorage
import Wire

/// Downloads objects to files.
struct FileDownload: Sendable {
    /// Bytes in one request.
    let pieceSize: Int64

    /// Downloads to `target`, which appears when it is complete and verified. Its time becomes that of the object. An
    /// earlier download of the same version continues.
    func run(_ opened: StorageReader, to target: String, _ progress: TransferProgress) async throws
        -> StorageMetadata
    {
        if FileKind(target) == .directory {
            throw ClientError(.local, "\(target): a directory is in the way of the file.")
        }
        let directory = LocalPath.parent(target)
        if !directory.isEmpty { try FileDownload.makeDirectory(directory) }
        var file = try PartFile(for: target, of: opened.reference)
        do {
            var reader = opened
            let known = try file.begin(reader.metadata, isFresh: false)
            while reader.offset < known {
                reader.skip(try file.read(reader.offset..<min(known, reader.offset + 1 << 20)))
            }
            progress.resumed(at: known)
            while let piece = try await reader.next(maximum: pieceSize) {
                try file.write(piece, at: reader.offset - Int64(piece.count))
                progress.set(reader.offset)
            }
            try file.finish(modified: reader.metadata.updated)
            return reader.metadata
        } catch {
            // What a later download can use is kept.
            let status = ClientError(error, about: target).status
            let isUsable = status == .network || status == .denied
            if isUsable, PartFile.canContinue(opened.metadata) {
                file.keep()
            } else {
                file.discard()
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
