import ClientCommands
import Foundation
import SluiceStorage
import Wire

/// Shared by the verbs that transfer objects.
struct Transfers: Sendable {
    let gateways: Gateways
    let report: Report
    let jobs: Jobs
    /// The targets of `put`, `get`, `cp` and `mv`. `sync` has each name once.
    let targets = Targets()
    private let upload: FileUpload
    private let download: FileDownload
    let stream: StreamTransfer

    init(_ options: TransferOptions, _ connection: ConnectionOptions) throws {
        let report = Report(json: options.output.json, quiet: options.output.quiet)
        try self.init(report, jobs: options.jobs, connection)
    }

    /// - Parameter count: How many jobs run at a time.
    init(_ report: Report, jobs count: Int, _ connection: ConnectionOptions) throws {
        gateways = try Gateways(connection, jobs: count)
        self.report = report
        let slots = TransferSlots(count)
        jobs = Jobs(report: report, slots: slots)
        let state = StateDirectory()
        upload = FileUpload(state: state, slots: slots)
        stream = StreamTransfer(state: state)
        download = FileDownload(pieceSize: gateways.pieceSize)
    }

    /// Runs a verb: `produce` submits its jobs.
    /// - Returns: The exit status.
    func run(
        _ produce: ((Job) async throws -> Void) async throws -> Void
    ) async -> Int32 {
        do {
            try await jobs.run(produce)
        } catch is Stopped {
            report.warn("The rest was not tried: it would fail in the same way.")
        } catch {
            report.failed(ClientError(error, about: "list"), "list", "")
        }
        return report.end()
    }

    /// Runs `body` for an argument. Its failure does not end the command.
    func each(_ argument: String, _ action: String, _ body: () async throws -> Void) async throws {
        try await report.each([argument], action) { _ in try await body() }
    }

    // MARK: Jobs

    /// Warns once that interrupted uploads start over.
    private func warnWithoutState() {
        guard upload.state == nil else { return }
        report.warnOnce(
            "There is no directory for the state of uploads that belongs to this user alone: an interrupted one begins again. Set HOME or XDG_STATE_HOME."
        )
    }

    func uploadJob(_ path: String, _ size: Int64?, to reference: StorageReference, _ metadata: StorageMetadata) -> Job {
        warnWithoutState()
        return Job(action: "upload", source: path, target: RemoteObject.text(reference), size: size) {
            [upload] in
            try await upload.run(path, to: reference, metadata, $0).size
        }
    }

    func downloadJob(_ object: RemoteObject, to path: String) -> Job {
        Job(action: "download", source: object.text, target: path, size: object.listed?.size) {
            [download] progress in
            let reader = try await object.open()
            progress.setSize(reader.metadata.size)
            return try await download.run(reader, to: path, progress).size
        }
    }

    /// Downloads to a file below a directory. Fails if the name can't be that of a file.
    func downloadJob(_ object: RemoteObject, to relative: String, below directory: String) -> Job {
        Job(
            action: "download", source: object.text, target: LocalPath.path(directory, relative),
            size: object.listed?.size
        ) { [download] progress in
            try LocalFiles.check(relative)
            let reader = try await object.open()
            progress.setSize(reader.metadata.size)
            return try await download.run(reader, to: relative, below: directory, progress).size
        }
    }

    /// - Parameter isMove: Whether the source is deleted after it.
    func copyJob(_ object: RemoteObject, to target: StorageReference, isMove: Bool = false) -> Job {
        Job(
            action: isMove ? "move" : "copy", source: object.text,
            target: RemoteObject.text(target), size: object.listed?.size
        ) { [stream] progress in
            guard !object.hasEmptySegments else {
                throw ClientError(.failure, "\(object.text): a name with an empty segment can't be copied.")
            }
            if object.isAtGateway(of: target),
                let size = try await ObjectCopy.atGateway(object, to: target, isMove, stream)
            {
                return size
            }
            // The complete metadata: a list has only a part of it.
            let reader = try await StorageReader(object.reference)
            progress.setSize(reader.metadata.size)
            try await ObjectCopy.run(reader, to: target, progress, stream)
            if isMove {
                try await ObjectCopy.deleteSource(object, reader.metadata.generation)
            }
            return reader.metadata.size
        }
    }

    func deleteJob(_ reference: StorageReference) -> Job {
        Job(action: "delete", source: RemoteObject.text(reference)) { _ in
            try await reference.delete()
            return 0
        }
    }

    /// Deletes listed objects of one bucket with one request. An object that was replaced since it was listed is kept, and one
    /// that does not exist any more counts as deleted.
    /// - Parameter onDeleted: Called for each object that is deleted.
    func deleteJob(_ objects: [StorageListedObject], onDeleted: @escaping @Sendable () -> Void = {}) -> Job {
        let texts = objects.map { RemoteObject.text($0.reference) }
        let more = objects.count > 1 ? " and \(objects.count - 1) more" : ""
        return Job(action: "delete", source: texts[0] + more) { [report] _ in
            let failures = try await ObjectDeletion.run(objects)
            for (object, text) in zip(objects, texts) {
                if let error = failures[object.reference] {
                    report.failed(ClientError(error, about: text), "delete", text)
                } else {
                    report.done("delete", text, size: 0)
                    onDeleted()
                }
            }
            return nil
        }
    }
}

/// Deletes objects of one bucket.
enum ObjectDeletion {
    /// The number of objects that a request deletes.
    static let batch = 1000

    /// - Returns: The objects that were not deleted.
    static func run(_ objects: [StorageListedObject]) async throws(StorageError) -> [StorageReference: StorageError] {
        guard let storage = objects.first?.reference.storage else { return [:] }
        do throws(StorageError) {
            return try await storage.deleteVersions(objects.map { ($0.reference, $0.generation) })
        } catch {
            guard error.isUnknownRequest else { throw error }
        }
        // An older gateway.
        var failures: [StorageReference: StorageError] = [:]
        for object in objects {
            do throws(StorageError) {
                if let generation = object.generation {
                    try await object.reference.delete(ifGeneration: generation)
                } else {
                    try await object.reference.delete()
                }
            } catch {
                if !error.hasProblem("object-not-found") { failures[object.reference] = error }
            }
        }
        return failures
    }
}

extension StorageError {
    /// Whether the gateway does not know this kind of request, because it is older than this program.
    fileprivate var isUnknownRequest: Bool { status == 405 }
}

/// Copies one object from bucket to bucket.
enum ObjectCopy {
    /// Has the gateway copy or move an object.
    /// - Returns: The size; nil if the gateway is too old.
    static func atGateway(
        _ object: RemoteObject, to target: StorageReference, _ isMove: Bool, _ stream: StreamTransfer
    ) async throws(StorageError) -> Int64? {
        await stream.removeEarlier(target)
        do throws(StorageError) {
            let copy =
                isMove ? try await object.reference.move(to: target) : try await object.reference.copy(to: target)
            return copy.size
        } catch {
            guard error.isUnknownRequest else { throw error }
            return nil
        }
    }

    /// Deletes the version that was copied.
    static func deleteSource(_ object: RemoteObject, _ generation: Int64) async throws {
        do throws(StorageError) {
            try await object.reference.delete(ifGeneration: generation)
        } catch {
            // Someone else, or a repeated request, has deleted the object since it was copied.
            if error.hasProblem("object-not-found") { return }
            guard error.status == 501 else { throw error }
            throw cannotDelete(object.text, "copied, but not deleted")
        }
    }

    /// - Parameter outcome: The result.
    static func cannotDelete(_ source: String, _ outcome: String) -> ClientError {
        var failure = ClientError(
            .failure,
            "\(source): \(outcome): its store can't make sure that only what was copied is deleted. Use 'sluice cp', and then 'sluice rm'."
        )
        failure.isFinal = true
        return failure
    }

    /// The copy has the bytes, the type and all other properties of the source that can be set.
    static func run(
        _ opened: StorageReader, to target: StorageReference, _ progress: TransferProgress, _ stream: StreamTransfer
    ) async throws {
        let source = opened.metadata
        let metadata = StorageMetadata()
        if let type = source.contentType { metadata.contentType = type }
        if let value = source.cacheControl { metadata.cacheControl = value }
        if let value = source.contentDisposition { metadata.contentDisposition = value }
        if let value = source.contentEncoding { metadata.contentEncoding = value }
        if let value = source.contentLanguage { metadata.contentLanguage = value }
        if let pairs = source.customMetadata { metadata.customMetadata = pairs }
        var reader = opened
        let stored = try await stream.run(to: target, metadata, progress) {
            () throws(StorageError) in
            try await reader.next(maximum: min(1 << 20, target.storage.uploadChunkSizeBytes))
        }
        let isSame =
            stored.size == source.size && (stored.crc32c ?? source.crc32c) == (source.crc32c ?? stored.crc32c)
            && (stored.md5Hash ?? source.md5Hash) == (source.md5Hash ?? stored.md5Hash)
        guard isSame else {
            throw ClientError(
                .conflict, "\(RemoteObject.text(target)): the copy is not what was read. Run the same command again.")
        }
        guard source.customMetadata == nil || stored.customMetadata != nil else {
            throw ClientError(.failure, "\(RemoteObject.text(target)): stored without its custom metadata.")
        }
    }
}
