import ClientCommands
import Foundation
import SluiceStorage
import Wire

/// A verb that can be performed.
protocol Verb: ClientCommand {
    /// - Returns: The exit status.
    /// - Throws: ``ClientError`` for what ends the whole command.
    func perform() async throws -> Int32
    /// Whether the same command continues after an interruption, rather than starting over.
    var canContinue: Bool { get }
}

extension Verb {
    var canContinue: Bool { false }
}

extension Put: Verb {
    var canContinue: Bool { sources != ["-"] }

    func perform() async throws -> Int32 {
        let transfers = try Transfers(self.transfers, connection)
        let target = try transfers.gateways.remote(target)
        let metadata = try properties.metadata()
        if sources == ["-"] {
            return try await transfers.putStandardInput(try target.object(), metadata)
        }
        return await transfers.run { submit in
            try await transfers.uploads(sources, to: target, metadata, isRecursive: recursive.recursive, submit)
        }
    }
}

extension PropertyOptions {
    /// The metadata of new objects.
    func metadata() throws -> StorageMetadata {
        let metadata = StorageMetadata()
        if let contentType { metadata.contentType = contentType }
        if let cacheControl { metadata.cacheControl = cacheControl }
        guard !pairs.isEmpty else { return metadata }
        // Keys: names of the user.
        var custom: [String: String] = [:]
        for pair in pairs {
            let parts = pair.utf8.split(separator: UInt8(ascii: "="), maxSplits: 1, omittingEmptySubsequences: false)
            custom[String(decoding: parts[0], as: UTF8.self)] = String(decoding: parts[1], as: UTF8.self)
        }
        metadata.customMetadata = custom
        return metadata
    }
}

extension Transfers {
    /// Submits the uploads of files and directories.
    func uploads(
        _ files: [String], to target: RemotePath, _ metadata: StorageMetadata, isRecursive: Bool,
        _ submit: (Job) async throws -> Void
    ) async throws {
        let folder = try target.folder()
        let isFolder = target.isFolder || files.count > 1
        if !isRecursive {
            report.display?.expect(files: files.count, bytes: files.reduce(0) { $0 + (LocalFiles.size($1) ?? 0) })
        }
        for file in files {
            try await each(file, "upload") {
                switch FileKind(file) {
                case .absent: throw ClientError(file, errno)
                case .directory:
                    guard isRecursive else {
                        throw ClientError(.local, "\(file): a directory. Add -R, or use 'sluice sync'.")
                    }
                    let base = files.count > 1 ? folder.child(try lastSegment(file)) : folder
                    try await uploads(below: file, to: base, metadata) { job in
                        try await submit(
                            files.count > 1 ? targets.claim(job, of: job.source) : job)
                    }
                case .regular, .other:
                    let reference = isFolder ? folder.child(try lastSegment(file)) : folder
                    guard !reference.fullPath.isEmpty else {
                        throw ClientError(.failure, "\(file): the target has no name.")
                    }
                    let size = LocalFiles.size(file)
                    if isRecursive { report.display?.expect(files: 1, bytes: size ?? 0) }
                    let job = uploadJob(file, size, to: reference, metadata)
                    try await submit(files.count > 1 ? targets.claim(job, of: file) : job)
                }
            }
        }
    }

    private func uploads(
        below directory: String, to folder: StorageReference, _ metadata: StorageMetadata,
        _ submit: (Job) async throws -> Void
    ) async throws {
        let found = LocalFiles(directory)
        show(found)
        report.display?.expect(files: found.files.count, bytes: found.files.reduce(0) { $0 + $1.size })
        for file in found.files {
            let job = uploadJob(file.path, file.size, to: folder.child(file.relative), metadata)
            try await submit(job)
        }
    }

    /// Reports what could not be read, and what was left out.
    func show(_ found: LocalFiles) {
        for error in found.unreadable { report.failed(error, "upload", "") }
        for text in found.warnings { report.warn(text) }
    }

    private func lastSegment(_ path: String) throws -> String {
        let segment = LocalPath.name(path)
        guard !segment.utf8.contains(where: { $0 == 0x0a || $0 == 0x0d }) else {
            throw ClientError(.failure, "\(path): the name of an object can't have a line break. Rename the file.")
        }
        return segment
    }

    /// Uploads standard input.
    func putStandardInput(_ target: StorageReference, _ metadata: StorageMetadata) async throws
        -> Int32
    {
        await run { [stream] submit in
            try await submit(
                Job(action: "upload", source: "-", target: RemoteObject.text(target)) { progress in
                    try await stream.run(to: target, metadata, progress) {
                        () throws(StorageError) in try StandardInput.next()
                    }.size
                })
        }
    }
}

/// Standard input in pieces.
private enum StandardInput {
    /// nil at the end.
    static func next() throws(StorageError) -> [UInt8]? {
        try wait()
        return try FilePieces.next(STDIN_FILENO, "Standard input")
    }

    /// Waits for bytes or the end.
    private static func wait() throws(StorageError) {
        var polled = [STDIN_FILENO, Interruption.descriptor].map {
            pollfd(fd: $0, events: Int16(POLLIN), revents: 0)
        }
        while poll(&polled, 2, -1) < 0, errno == EINTR {}
        if polled[1].revents != 0 { throw StorageError(.cancelled, "Interrupted.") }
    }
}
