import ClientCommands
import Foundation
import SluiceStorage
import Wire

/// Downloads objects to files.
struct FileDownload: Sendable {
    /// Bytes in one request.
    let pieceSize: Int64

    /// Downloads to a file, which appears when it is complete and verified. It gets the object's modification time. An earlier
    /// download of the same version continues.
    /// - Parameter target: A link is followed.
    func run(_ opened: StorageReader, to target: String, _ progress: TransferProgress) async throws
        -> StorageMetadata
    {
        let directory = LocalPath.parent(target)
        if !directory.isEmpty { try TargetDirectory.make(directory) }
        let file = try PartFile(for: target, of: opened.reference)
        return try await run(opened, file, progress)
    }

    /// The same for a file below a directory. Links there are not followed.
    func run(
        _ opened: StorageReader, to relative: String, below base: String,
        _ progress: TransferProgress
    ) async throws -> StorageMetadata {
        let directory = try TargetDirectory(of: relative, below: base)
        // The path is valid while the file is open.
        defer { withExtendedLifetime(directory) {} }
        let file = try PartFile(
            below: directory.path, LocalPath.last(relative), shown: LocalPath.path(base, relative),
            of: opened.reference)
        return try await run(opened, file, progress)
    }

    private func run(
        _ opened: StorageReader, _ part: PartFile, _ progress: TransferProgress
    ) async throws -> StorageMetadata {
        var file = part
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
            // Bytes that a later download can use are kept.
            let status = ClientError(error, about: "").status
            let isUsable = status == .network || status == .denied
            if isUsable, PartFile.canContinue(opened.metadata) {
                file.keep()
            } else {
                file.discard()
            }
            throw error
        }
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
