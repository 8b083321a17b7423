import Glibc
import Synchronization
import System

/// Makes changes durable, many with one sync ("group commit"): a batch is collected while another waits for the disk.
///
/// A batch writes its blobs and syncs them and their directory. One transaction then adds them to the index and checks
/// each change's preconditions. No change is confirmed before the transaction is on stable storage.
///
/// Safety: `pendingGarbage`, `unlinked` and all that ``drain()`` calls belong to its thread; the queue has a lock.
final class DirectoryCommitter: @unchecked Sendable {
    private struct Queue {
        var changes: [DirectoryChange] = []
        var isDraining = false
    }
    /// The location of a change's bytes.
    private enum Placement {
        case none
        case inline(UploadBuffer)
        case blob(Int64)
        case failed(BucketError)
    }

    private static let full = BucketError(
        .insufficientStorage, "less than \(reserve >> 10) KiB are left beside what the index needs")
    static let maximumBatch = 256
    /// The maximum size of content stored in the index, which needs no file and only one sync per batch.
    static let maximumInline = 4096
    /// The log pages that trigger a checkpoint: 16 MiB.
    static let checkpointPages = 4096
    /// The number of garbage rows that are deleted together, after one sync of their blobs' directories.
    static let garbageBatch = 1024

    /// The free space that uploads must leave besides that for a checkpoint. Without any, not even a deletion could be
    /// written.
    static let reserve: UInt64 = 1 << 20
    private static let pageSize = 4096

    private let state: DirectoryState
    private let clock: @Sendable () -> Int64
    private let queue = Lock(Queue())
    let batches = Atomic<Int>(0)
    /// Which events are recorded, from the next batch on.
    let filter = Lock<EventFilter?>(nil)
    let observers = Lock<[any EventObserver]>([])
    private let failing = Atomic<Bool>(false)
    private var directory: OpenDirectory?
    /// Blobs without a row, and the numbers of blobs that were not created. The next transaction adds them to the
    /// garbage table, so that none is forgotten before its removal is durable.
    private var pendingGarbage: [Int64] = []
    /// Removed blobs whose garbage rows still exist.
    private var unlinked: [Int64] = []

    init(_ state: DirectoryState, clock: @escaping @Sendable () -> Int64) {
        self.state = state
        self.clock = clock
    }

    /// Whether the last write failed because of the store rather than the request.
    var isFailing: Bool { failing.load(ordering: .relaxed) }

    /// Queues a change, and returns whether the caller must run ``drain()``.
    func add(_ change: DirectoryChange) -> Bool {
        queue.withLock { queue in
            queue.changes.append(change)
            defer { queue.isDraining = true }
            return !queue.isDraining
        }
    }

    func drain() {
        while true {
            let batch = queue.withLock { queue in
                let count = min(queue.changes.count, DirectoryCommitter.maximumBatch)
                let batch = Array(queue.changes[..<count])
                queue.changes.removeFirst(count)
                queue.isDraining = count > 0
                return batch
            }
            if batch.isEmpty { return }
            perform(batch)
        }
    }

    private func perform(_ batch: [DirectoryChange]) {
        batches.wrappingAdd(1, ordering: .relaxed)
        let directory: OpenDirectory
        let writer: IndexWriter
        do throws(BucketError) {
            directory = try state.currentForWriting()
            if directory !== self.directory {
                self.directory = directory
                pendingGarbage = []
                unlinked = []
            }
            writer = try directory.openWriter()
        } catch {
            failing.store(true, ordering: .relaxed)
            self.directory = nil
            for change in batch {
                change.kind.discard()
                change.completion(.failure(error))
            }
            return
        }
        // The next start may find a failed transaction in the log until another has replaced it. Write before any
        // result is returned from the index, also for a batch that only reads.
        if isFailing { writer.touch() }
        let placements = place(batch, directory, writer, hasRoom: makeRoom(directory, writer))
        var transaction = DirectoryTransaction(directory: directory, writer: writer, clock: clock)
        var results = transact(batch, placements, &transaction)
        unplace(batch, placements, &results, directory.files)
        directory.usage.withLock { $0 = writer.usage }
        directory.index.publish(batch.flatMap(\.names))
        if let events = writer.events { tell(events, directory) }
        note(results)
        let released = transaction.released
        let isFirst = batch.contains { $0.kind.freesSpace }
        if isFirst { collect(released, directory) }
        for (change, result) in zip(batch, results) { change.completion(result) }
        if !isFirst { collect(released, directory) }
        if writer.pagesInLog >= DirectoryCommitter.checkpointPages { checkpoint(directory, writer) }
    }

    /// Tells the observers what was recorded. It can be read already.
    private func tell(_ events: EventTable, _ directory: OpenDirectory) {
        directory.eventBounds.withLock { $0 = events.knownBounds }
        guard var recorded = events.takeCommitted() else { return }
        recorded.history = directory.history
        for observer in observers.withLock({ $0 }) { observer.recorded(recorded) }
    }

    /// Checkpoints: moves the log into the index.
    private func checkpoint(_ directory: OpenDirectory, _ writer: IndexWriter) {
        // Release snapshots before, so that the whole log is moved, and after, so that the log starts over.
        directory.index.releaseSnapshots()
        writer.checkpoint()
        directory.index.releaseSnapshots()
    }

    /// Whether an upload leaves enough free space. If space is short, the log is checkpointed first.
    private func makeRoom(_ directory: OpenDirectory, _ writer: IndexWriter) -> Bool {
        func needed() -> UInt64 {
            DirectoryCommitter.reserve + UInt64(writer.pagesInLog * DirectoryCommitter.pageSize)
        }
        if directory.files.freeBytes() >= needed() { return true }
        checkpoint(directory, writer)
        let inIndex = UInt64(writer.freePages() * DirectoryCommitter.pageSize)
        return directory.files.freeBytes() + inIndex >= needed()
    }

    private func note(_ results: [Result<DirectoryChange.Outcome, BucketError>]) {
        for result in results {
            switch result {
            case .success: failing.store(false, ordering: .relaxed)
            case .failure(let error): if error.isRetryable { failing.store(true, ordering: .relaxed) }
            }
        }
    }

    // MARK: Blobs

    /// Writes or moves all blobs of a batch and syncs them. A failure affects only its own change.
    private func place(
        _ batch: [DirectoryChange], _ directory: OpenDirectory, _ writer: IndexWriter,
        hasRoom: Bool
    ) -> [Placement] {
        let files = directory.files
        var placements: [Placement] = []
        var written: [(Int, Int32)] = []
        var shards: Set<Int64> = []
        for change in batch {
            if !hasRoom && change.kind.needsRoom {
                change.kind.discard()
                placements.append(.failed(DirectoryCommitter.full))
                continue
            }
            if case .beginSession = change.kind {
                placements.append(makePart(directory, writer, &shards))
                continue
            }
            guard let content = change.kind.content else {
                placements.append(.none)
                continue
            }
            if case .memory(let buffer) = content, buffer.count <= DirectoryCommitter.maximumInline {
                placements.append(.inline(buffer))
                continue
            }
            let blob = writer.nextBlob
            writer.nextBlob += 1
            do throws(BucketError) {
                switch content {
                case .memory(let buffer):
                    let descriptor = try buffer.withBytes { bytes throws(BucketError) in
                        try files.writeBlob(blob, bytes)
                    }
                    File.startWriteback(descriptor, from: 0, count: UInt64(buffer.count))
                    written.append((placements.count, descriptor))
                case .staged(let file): try file.place(in: directory, as: blob)
                }
                shards.insert(blob / DirectoryFiles.idsPerShard)
                placements.append(.blob(blob))
            } catch {
                content.discard()
                forget(blob, files)
                placements.append(.failed(error))
            }
        }
        for (index, descriptor) in written {
            // Read errno before close, which can change it.
            let code = fdatasync(descriptor) == 0 ? 0 : errno
            close(descriptor)
            if code != 0 {
                fail(
                    &placements[index], BucketError("fdatasync", files.path + "/blobs", code), files
                )
            }
        }
        for shard in shards {
            do throws(BucketError) { try files.syncShard(shard) } catch {
                for index in placements.indices {
                    guard case .blob(let blob) = placements[index],
                        blob / DirectoryFiles.idsPerShard == shard
                    else { continue }
                    fail(&placements[index], error, files)
                }
            }
        }
        return placements
    }

    /// Creates the empty file of a new upload session. It is a blob from the start: the commit moves no file, and
    /// exactly one row always refers to it.
    private func makePart(_ directory: OpenDirectory, _ writer: IndexWriter, _ shards: inout Set<Int64>) -> Placement {
        let blob = writer.nextBlob
        writer.nextBlob += 1
        do throws(BucketError) {
            close(try directory.files.writeBlob(blob, UnsafeRawBufferPointer(start: nil, count: 0)))
            shards.insert(blob / DirectoryFiles.idsPerShard)
            return .blob(blob)
        } catch {
            forget(blob, directory.files)
            return .failed(error)
        }
    }

    private func fail(_ placement: inout Placement, _ error: BucketError, _ files: DirectoryFiles) {
        if case .blob(let blob) = placement { forget(blob, files) }
        placement = .failed(error)
    }

    /// Removes a blob without a row in the index or the log.
    private func forget(_ blob: Int64, _ files: DirectoryFiles) {
        _ = files.removeBlob(blob)
        pendingGarbage.append(blob)
    }

    /// Moves the staged files of failed preconditions back, so that they can be committed again.
    private func unplace(
        _ batch: [DirectoryChange], _ placements: [Placement],
        _ results: inout [Result<DirectoryChange.Outcome, BucketError>], _ files: DirectoryFiles
    ) {
        for (index, change) in batch.enumerated() {
            guard case .failure(let error) = results[index], error.code == .preconditionFailed,
                case .put(.staged(let file), _, _) = change.kind, case .blob(let blob) = placements[index]
            else { continue }
            do throws(BucketError) {
                try files.unplaceBlob(blob, staged: file.id)
            } catch {
                results[index] = .failure(error)
            }
        }
    }

    /// Removes the files of blobs in the garbage table.
    private func collect(_ blobs: [Int64], _ directory: OpenDirectory) {
        for blob in blobs where directory.files.removeBlob(blob) { unlinked.append(blob) }
    }

    // MARK: The transaction

    /// Performs a batch in one transaction, or if that fails as a whole, in one transaction per change.
    private func transact(
        _ batch: [DirectoryChange], _ placements: [Placement], _ transaction: inout DirectoryTransaction
    ) -> [Result<DirectoryChange.Outcome, BucketError>] {
        if let results = try? attempt(batch[...], placements[...], &transaction) { return results }
        var results: [Result<DirectoryChange.Outcome, BucketError>] = []
        for index in batch.indices {
            let change = batch[index...index]
            let placement = placements[index...index]
            do throws(SQLiteError) {
                do throws(SQLiteError) {
                    results += try attempt(change, placement, &transaction)
                } catch {
                    // The disk is full. A checkpoint makes the log's space reusable.
                    guard error.bucketError.code == .insufficientStorage else { throw error }
                    transaction.directory.index.releaseSnapshots()
                    transaction.writer.checkpoint()
                    transaction.directory.index.releaseSnapshots()
                    results += try attempt(change, placement, &transaction)
                }
            } catch {
                let isFull = error.bucketError.code == .insufficientStorage
                if case .blob(let blob) = placements[index] {
                    // After a commit whose sync failed, the next start may find the row in the log. Keep its bytes
                    // until another transaction has replaced it. A commit that did not fit is not in the log.
                    if isFull {
                        forget(blob, transaction.directory.files)
                    } else {
                        pendingGarbage.append(blob)
                    }
                }
                if !isFull { transaction.directory.drop(transaction.writer) }
                results.append(.failure(error.bucketError))
            }
        }
        return results
    }

    private func attempt(
        _ changes: ArraySlice<DirectoryChange>, _ placements: ArraySlice<Placement>,
        _ transaction: inout DirectoryTransaction
    ) throws(SQLiteError) -> [Result<DirectoryChange.Outcome, BucketError>] {
        let writer = transaction.writer
        let releasedBefore = transaction.released
        let collected = unlinked.count >= DirectoryCommitter.garbageBatch ? takeUnlinked(transaction) : []
        do throws(SQLiteError) {
            try writer.beginTransaction(recording: filter.withLock { $0 })
            for blob in collected { try writer.removeGarbage(blob) }
            for blob in pendingGarbage { try transaction.release(blob) }
            var results: [Result<DirectoryChange.Outcome, BucketError>] = []
            for (change, placement) in zip(changes, placements) {
                results.append(try apply(change, placement, &transaction))
            }
            try writer.commit()
            pendingGarbage = []
            return results
        } catch {
            writer.rollback()
            transaction.released = releasedBefore
            unlinked += collected
            throw error
        }
    }

    /// Blobs whose removal is durable, so that their rows can be deleted.
    private func takeUnlinked(_ transaction: DirectoryTransaction) -> [Int64] {
        let shards = Set(unlinked.map { $0 / DirectoryFiles.idsPerShard })
        let current = transaction.writer.nextBlob / DirectoryFiles.idsPerShard
        do throws(BucketError) {
            try transaction.directory.files.syncRemovals(in: shards, current: current)
        } catch {
            return []
        }
        defer { unlinked = [] }
        return unlinked
    }

    private func apply(
        _ change: DirectoryChange, _ placement: Placement, _ transaction: inout DirectoryTransaction
    ) throws(SQLiteError) -> Result<DirectoryChange.Outcome, BucketError> {
        switch (change.kind, placement) {
        case (_, .failed(let error)): return .failure(error)
        case (.put(_, let facts, let attributes), .inline(let buffer)):
            return try buffer.withBytes { bytes throws(SQLiteError) in
                try transaction.put(change, facts, attributes, blob: nil, content: bytes)
            }
        case (.put(_, let facts, let attributes), .blob(let blob)):
            return try transaction.put(change, facts, attributes, blob: blob, content: nil)
        case (.put(_, let facts, let attributes), .none):
            return try transaction.put(change, facts, attributes, blob: nil, content: nil)
        case (.patch(let patch), _): return try transaction.patch(change, patch)
        case (.delete, _): return try transaction.delete(change)
        case (.copy(let plan), _): return try transaction.copy(change, plan)
        case (.beginSession(let row), .blob(let blob)):
            return try transaction.begin(row, blob: blob)
        case (.beginSession, _):
            return .failure(BucketError(.internal, "an upload session without a file"))
        case (.session(let request, let directory), let placement):
            var blob: Int64?
            if case .blob(let placed) = placement { blob = placed }
            return try transaction.apply(request, change, directory: directory, blob: blob)
        case (.probe, _):
            transaction.writer.touch()
            return .success(DirectoryChange.Outcome())
        case (.settleEvents(let request), _): return try transaction.apply(request)
        case (.startEvents, _):
            var outcome = DirectoryChange.Outcome()
            outcome.eventBounds = try transaction.writer.eventTable().bounds
            return .success(outcome)
        case (.trimEvents(let time, let maximum, let limit), _):
            var outcome = DirectoryChange.Outcome()
            outcome.count = try transaction.writer.eventTable().trim(before: time, keeping: maximum, limit: limit)
            return .success(outcome)
        }
    }
}
