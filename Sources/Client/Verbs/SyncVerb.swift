import ClientCommands
import Foundation
import SluiceStorage
import Wire

extension Sync: Verb {
    var canContinue: Bool { true }

    func perform() async throws -> Int32 {
        let sync = try synchronization()
        guard watch else { return await sync.run() }
        guard case .remote(let folder) = sync.source else {
            throw ClientError(.failure, "--watch waits for changes of a remote source: \(source) is a local directory.")
        }
        return try await follow(folder)
    }

    private func synchronization() throws -> Synchronization {
        let transfers = try Transfers(self.transfers, connection)
        let (source, target) = try transfers.gateways.locations(self.source, self.target)
        let sync = Synchronization(
            transfers: transfers, source: try SyncSide(source, transfers), target: try SyncSide(target, transfers),
            removes: delete, isDry: dryRun, isRepeated: watch)
        if case (.remote(let new), .remote(let old)) = (sync.source, sync.target), new.overlaps(old) {
            throw ClientError(
                .failure,
                "\(RemoteObject.text(new)) and \(RemoteObject.text(old)): one contains the other. Name two separate folders."
            )
        }
        if case .local(let path) = source, FileKind(path) != .directory {
            throw ClientError(.local, "\(path): not a directory.")
        }
        return sync
    }

    /// Synchronises at once and after changes of the folder, until an error of the watch. Changes during a run are one
    /// reason for the next.
    private func follow(_ folder: StorageReference) async throws -> Int32 {
        let (reasons, reason) = AsyncThrowingStream.makeStream(of: Void.self, bufferingPolicy: .bufferingNewest(1))
        let watch = Task {
            do {
                var changes = FollowedChanges(folder)
                // The first element comes before the first run, so that nothing is missed between the two.
                while try await changes.next() != nil { reason.yield() }
                reason.finish()
            } catch {
                reason.finish(throwing: error)
            }
        }
        defer { watch.cancel() }
        // A source that is empty at first may be a mistake. One that becomes empty was emptied.
        var hasSeen = false
        for try await _ in reasons {
            var sync = try synchronization()
            sync.mayEmpty = hasSeen
            let status = await sync.run()
            hasSeen = hasSeen || !sync.isEmpty
            if status != 0 {
                // Not only after the next change.
                Task {
                    try await Task.sleep(nanoseconds: Sync.retryPause)
                    reason.yield()
                }
            }
            // Each run reads both sides.
            try await Task.sleep(nanoseconds: Sync.pause)
        }
        return 0
    }

    /// The pause between two runs in nanoseconds, 1 s, and after one with errors: 10 s.
    private static let pause: UInt64 = 1_000_000_000, retryPause: UInt64 = 10_000_000_000
}

/// One side of a `sync`.
enum SyncSide: Sendable {
    case local(String)
    case remote(StorageReference)

    init(_ location: Location, _ transfers: Transfers) throws {
        switch location {
        case .local(let path): self = .local(path)
        case .remote(let path): self = .remote(try path.folder())
        case .standard: throw ClientError(.failure, "'-' can't be synchronised: name a folder or a directory.")
        }
    }
}

/// A file or an object on one side.
struct SyncEntry: Sendable {
    enum Place: Sendable {
        case file(LocalFile)
        case object(StorageListedObject)
    }
    /// Below the folder or directory.
    let relative: String
    let place: Place

    var size: Int64? {
        switch place {
        case .file(let file): file.size
        case .object(let object): object.size
        }
    }
}

/// The entries of one side, in the order of their names' bytes.
struct SyncEntries {
    private enum Source {
        case files([LocalFile], Int)
        case objects(RemoteObjects, StorageReference)
    }
    private var source: Source
    /// Names that exist, but are no files.
    private let leftOut: [String]

    init(_ files: LocalFiles) {
        source = .files(files.files, 0)
        leftOut = files.leftOut
    }

    init(_ folder: StorageReference) {
        source = .objects(RemoteObjects(folder, isRecursive: true), folder)
        leftOut = []
    }

    /// Whether this name was left out, or one of the folders that it is in.
    func hasLeftOut(_ relative: String) -> Bool {
        leftOut.contains { "\(relative)/".hasPrefix("\($0)/") }
    }

    mutating func next() async throws -> SyncEntry? {
        switch source {
        case .files(let files, let index):
            guard index < files.count else { return nil }
            source = .files(files, index + 1)
            return SyncEntry(relative: files[index].relative, place: .file(files[index]))
        case .objects(var objects, let folder):
            guard let object = try await objects.next() else { return nil }
            source = .objects(objects, folder)
            return SyncEntry(
                relative: RemoteObjects.relative(object.reference, below: folder),
                place: .object(object))
        }
    }
}
