import ClientCommands
import Foundation
import SluiceStorage
import Synchronization
import Wire

/// Makes one side equal to the other. Both are read in the order of names, and transfers begin while they are read.
struct Synchronization: Sendable {
    private struct Counts {
        var checked = 0
        var transferred = 0
        var bytes: Int64 = 0
        var deleted = 0
    }
    private final class Totals: Sendable {
        let counts = Mutex(Counts())
    }
    /// A failure of one side as a whole.
    private struct SideFailure: Error {
        let side: SyncSide
        let cause: any Error
    }

    let transfers: Transfers
    let source: SyncSide
    let target: SyncSide
    /// Whether entries that only the target has are removed.
    let removes: Bool
    let isDry: Bool
    /// Whether it is one of several runs: what has vanished since it was listed is no failure.
    let isRepeated: Bool
    /// Whether an empty source empties the target.
    var mayEmpty = false
    private let totals = Totals()

    init(
        transfers: Transfers, source: SyncSide, target: SyncSide, removes: Bool, isDry: Bool, isRepeated: Bool
    ) {
        self.isRepeated = isRepeated
        self.transfers = transfers
        self.source = source
        self.target = target
        self.removes = removes
        self.isDry = isDry
    }

    /// A dry run prints its actions in the order of names.
    private var jobs: Jobs {
        isDry ? Jobs(report: transfers.report, slots: TransferSlots(1)) : transfers.jobs
    }

    /// Whether the source had nothing in it.
    var isEmpty: Bool { totals.counts.withLock { $0.checked } == 0 }

    /// - Returns: The exit status.
    func run() async -> Int32 {
        var surplus: [SyncEntry] = []
        do {
            try await jobs.run { submit in
                surplus = try await compare(submit)
            }
            if removes { try await remove(surplus) }
        } catch is Stopped {
            transfers.report.warn("The rest was not tried: it would fail in the same way.")
        } catch {
            let failure = error as? SideFailure
            let side = text(failure?.side ?? target)
            transfers.report.failed(
                ClientError(failure?.cause ?? error, about: side), "list", side)
        }
        summarize()
        return transfers.report.end()
    }

    private func text(_ side: SyncSide) -> String {
        switch side {
        case .local(let path): path
        case .remote(let reference): RemoteObject.text(reference)
        }
    }

    // MARK: Comparing

    /// Submits the transfers and comparisons.
    /// - Returns: The entries that only the target has.
    private func compare(_ submit: (Job) async throws -> Void) async throws -> [SyncEntry] {
        var wanted = try entries(source)
        var present = try entries(target)
        var surplus: [SyncEntry] = []
        var new = try await next(&wanted, of: source)
        var old = try await next(&present, of: target)
        while new != nil || old != nil {
            if let found = old,
                new.map({ BytewiseString(found.relative) < BytewiseString($0.relative) }) ?? true
            {
                if removes, !wanted.hasLeftOut(found.relative) { surplus.append(found) }
                old = try await next(&present, of: target)
            } else if let entry = new {
                let same = old.flatMap { $0.relative == entry.relative ? $0 : nil }
                totals.counts.withLock { $0.checked += 1 }
                try await submit(try job(entry, same))
                if same != nil { old = try await next(&present, of: target) }
                new = try await next(&wanted, of: source)
            }
        }
        return surplus
    }

    private func next(_ entries: inout SyncEntries, of side: SyncSide) async throws -> SyncEntry? {
        do { return try await entries.next() } catch {
            throw SideFailure(side: side, cause: error)
        }
    }

    private func entries(_ side: SyncSide) throws -> SyncEntries {
        switch side {
        case .remote(let folder): return SyncEntries(folder)
        case .local(let path):
            if FileKind(path) == .absent { return SyncEntries(LocalFiles()) }
            let files = LocalFiles(path)
            transfers.show(files)
            return SyncEntries(files)
        }
    }

    /// The transfer of an entry to the target; nil if the target is up to date.
    private func job(_ entry: SyncEntry, _ old: SyncEntry?) throws -> Job {
        let transfer = tolerant(counted(try transferJob(entry)))
        guard let old else { return transfer }
        if let size = entry.size, let present = old.size, size != present { return transfer }
        return transfer.performing { progress in
            try await SyncComparison.isSame(entry, old) ? nil : try await transfer.perform(progress)
        }
    }

    private func transferJob(_ entry: SyncEntry) throws -> Job {
        switch (entry.place, target) {
        case (.file(let file), .remote(let folder)):
            return transfers.uploadJob(file.path, file.size, to: folder.child(file.relative), StorageMetadata())
        case (.object(let object), .local(let directory)):
            let remote = RemoteObject(reference: object.reference, listed: object, relative: entry.relative)
            return transfers.downloadJob(remote, to: entry.relative, below: directory)
        case (.object(let object), .remote(let folder)):
            let remote = RemoteObject(reference: object.reference, listed: object, relative: entry.relative)
            return transfers.copyJob(remote, to: folder.child(entry.relative))
        case (.file, .local):
            throw ClientError(.failure, "Both sides are local.")
        }
    }

    /// A job that ends without a result if its source has vanished in one of several runs.
    private func tolerant(_ job: Job) -> Job {
        guard isRepeated else { return job }
        return job.performing { progress in
            do { return try await job.perform(progress) } catch let error as StorageError
                where error.reason == .objectNotFound
            {
                return nil
            }
        }
    }

    /// A job that is only printed if nothing is to be changed, and counted otherwise.
    private func counted(_ job: Job) -> Job {
        Job(action: job.action, source: job.source, target: job.target, size: job.size) {
            [transfers, isDry, totals] progress in
            if isDry {
                if transfers.report.isText {
                    let target = job.target.map { " -> \(Output.shown($0))" } ?? ""
                    transfers.report.say("\(job.action) \(Output.shown(job.source))\(target)")
                } else {
                    transfers.report.done(job.action, job.source, job.target, size: job.size)
                }
                totals.counts.withLock { $0.transferred += job.action == "delete" ? 0 : 1 }
                return nil
            }
            let size = try await job.perform(progress)
            totals.counts.withLock { counts in
                if job.action == "delete" {
                    counts.deleted += 1
                } else {
                    counts.transferred += 1
                    counts.bytes += size ?? 0
                }
            }
            return size
        }
    }

    // MARK: Removing

    private func remove(_ surplus: [SyncEntry]) async throws {
        guard !surplus.isEmpty else { return }
        guard !transfers.report.hasFailed else {
            return transfers.report.warn("Nothing was removed, because something has failed.")
        }
        // The name of the source may be mistyped, or its volume not be mounted.
        guard mayEmpty || !isEmpty else {
            let cause = ClientError(
                .notFound,
                "\(text(source)): there is nothing in it, so nothing was removed. Check the name; 'sluice rm -R' empties a folder."
            )
            throw SideFailure(side: source, cause: cause)
        }
        try await jobs.run { submit in
            var batch: [StorageListedObject] = []
            for entry in surplus {
                switch entry.place {
                case .object(let object) where isDry:
                    try await submit(counted(transfers.deleteJob(object.reference)))
                case .object(let object):
                    batch.append(object)
                    guard batch.count == ObjectDeletion.batch else { continue }
                    try await submit(deleteJob(batch))
                    batch = []
                case .file(let file):
                    try await submit(counted(deleteJob(file)))
                }
            }
            if !batch.isEmpty { try await submit(deleteJob(batch)) }
        }
        guard case .local(let directory) = target, !isDry else { return }
        for entry in surplus { removeEmptyFolders(directory, entry.relative) }
    }

    private func deleteJob(_ objects: [StorageListedObject]) -> Job {
        transfers.deleteJob(objects) { [totals] in totals.counts.withLock { $0.deleted += 1 } }
    }

    private func deleteJob(_ file: LocalFile) -> Job {
        Job(action: "delete", source: file.path) { _ in
            guard LocalFiles.isUnchanged(file) else {
                throw ClientError(.conflict, "\(file.path): it has changed meanwhile, and was not removed.")
            }
            guard unlink(file.path) == 0 || errno == ENOENT else { throw ClientError(file.path, errno) }
            return 0
        }
    }

    /// Removes the directories that a removed file has left empty.
    private func removeEmptyFolders(_ directory: String, _ relative: String) {
        var folder = LocalPath.parent(relative)
        while !folder.isEmpty, rmdir("\(directory)/\(folder)") == 0 {
            folder = LocalPath.parent(folder)
        }
    }

    private func summarize() {
        let counts = totals.counts.withLock { $0 }
        var json = JSONWriter(reserving: 128)
        json.beginObject()
        json.member("action", "summary")
        json.member("checked", Int64(counts.checked))
        json.member("transferred", Int64(counts.transferred))
        json.member("bytes", counts.bytes)
        json.member("deleted", Int64(counts.deleted))
        json.endObject()
        transfers.report.print(json)
        let removed = counts.deleted > 0 ? ", \(counts.deleted) removed" : ""
        let size = Text.size(counts.bytes)
        transfers.report.display?.print(
            "\(counts.checked) checked, \(counts.transferred) transferred (\(size))\(removed)")
    }
}

/// Whether two entries of one name have the same bytes.
enum SyncComparison {
    static func isSame(_ new: SyncEntry, _ old: SyncEntry) async throws -> Bool {
        switch (new.place, old.place) {
        case (.file(let file), .object(let listed)):
            let object = try await complete(listed)
            // Some stores have whole seconds.
            return try isSame(file, object) { updated in
                let isWhole = updated == updated.rounded(.down)
                return updated >= (isWhole ? file.modified.rounded(.down) : file.modified)
            }
        case (.object(let listed), .file(let file)):
            let object = try await complete(listed)
            return try isSame(file, object) { $0 <= file.modified + 0.001 }
        case (.object(let first), .object(let second)):
            let (new, old) = (try await complete(first), try await complete(second))
            guard new.size == old.size else { return false }
            if let new = new.crc32c, let old = old.crc32c { return new == old }
            if let new = new.md5Hash, let old = old.md5Hash { return new == old }
            guard let new = new.updated, let old = old.updated else { return false }
            return new <= old
        case (.file, .file): return false
        }
    }

    /// An object with its size: the rules may hide it in lists.
    private static func complete(_ object: StorageListedObject) async throws -> StorageListedObject {
        if object.size != nil { return object }
        return StorageListedObject(object.reference, try await object.reference.getMetadata())
    }

    /// - Parameter isNewEnough: Decides by the object's time if there is no hash.
    private static func isSame(
        _ file: LocalFile, _ object: StorageListedObject, _ isNewEnough: (Double) -> Bool
    ) throws -> Bool {
        guard file.size == object.size else { return false }
        if let checksum = StorageChecksum(object) { return try checksum.matches(fileAt: file.path) }
        guard let updated = object.updated else { return false }
        return isNewEnough(updated.timeIntervalSince1970)
    }
}
