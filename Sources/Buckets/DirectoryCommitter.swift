import EventLoop
import Glibc
import Synchronization

/// Makes changes durable, many with one sync ("group commit"): while one batch waits for the disk, the next gathers.
///
/// A batch writes its blobs, syncs them and their directory, and then names them in one transaction in which each
/// change meets its preconditions. Nobody is answered before the transaction is on stable storage.
///
/// Safety: `doomed`, `unlinked` and everything ``drain()`` calls belong to the one thread that runs ``drain()``; the
/// queue has a lock.
final class DirectoryCommitter: @unchecked Sendable {
    private struct Queue {
        var changes: [DirectoryChange] = []
        var isDraining = false
    }
    /// Where a change's bytes are, for the transaction to name.
    private enum Placement {
        case none
        case inline(UploadBuffer)
        case blob(Int64)
        case failed(BucketError)
    }

    private static let full = BucketError(
        .insufficientStorage, "less than \(reserve >> 10) KiB are left beside what the index needs")
    /// Changes of one batch.
    static let maximumBatch = 256
    /// Bytes up to which content goes into the index: no file, and one sync for all of a batch.
    static let maximumInline = 4096
    /// Pages of the log at which it is moved into the index: 16 MiB.
    static let checkpointPages = 4096
    /// Removed blobs whose rows leave the garbage table together, after one sync of their directories.
    static let garbageBatch = 1024

    /// Room that uploads leave on the disk, beside what the log will need when it moves into the index: with none at
    /// all, not even a deletion could be written.
    static let reserve: UInt64 = 1 << 20
    private static let pageSize = 4096

    private let state: DirectoryState
    private let clock: @Sendable () -> Int64
    private let queue = Lock(Queue())
    /// Batches so far.
    let batches = Atomic<Int>(0)
    /// Whether the last write failed because of the store.
    private let failing = Atomic<Bool>(false)
    private var session: DirectorySession?
    /// Blobs that no row names, and numbers of blobs that did not come into being: the next transaction gives them up,
    /// so that none is forgotten while its removal is not durable.
    private var doomed: [Int64] = []
    /// Blobs that are removed but still in the garbage table.
    private var unlinked: [Int64] = []

    init(_ state: DirectoryState, clock: @escaping @Sendable () -> Int64) {
        self.state = state
        self.clock = clock
    }

    /// Whether the last write failed because of the store rather than because of the request.
    var isFailing: Bool { failing.load(ordering: .relaxed) }

    /// Queues a change.
    /// - Returns: Whether ``drain()`` has to be run.
    func add(_ change: DirectoryChange) -> Bool {
        queue.withLock { queue in
            queue.changes.append(change)
            defer { queue.isDraining = true }
            return !queue.isDraining
        }
    }

    /// Performs batches until nothing waits.
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
        let session: DirectorySession
        let writer: IndexWriter
        do throws(BucketError) {
            session = try state.currentForWriting()
            if session !== self.session {
                self.session = session
                doomed = []
                unlinked = []
            }
            writer = try session.openWriter()
        } catch {
            failing.store(true, ordering: .relaxed)
            self.session = nil
            for change in batch {
                change.kind.discard()
                change.answer(.failure(error))
            }
            return
        }
        let placements = place(batch, session, writer, hasRoom: makeRoom(session, writer))
        var transaction = DirectoryTransaction(session: session, writer: writer, clock: clock)
        let results = transact(batch, placements, &transaction)
        session.index.publish(batch.map(\.name))
        note(results)
        for (change, result) in zip(batch, results) { change.answer(result) }
        collect(transaction.released, session)
        if writer.pagesInLog >= DirectoryCommitter.checkpointPages { checkpoint(session, writer) }
    }

    /// Moves the log into the index.
    private func checkpoint(_ session: DirectorySession, _ writer: IndexWriter) {
        // Readers let go before, so that the log's end can be reached, and after, so that it can start over.
        session.index.releaseSnapshots()
        writer.checkpoint()
        session.index.releaseSnapshots()
    }

    /// Whether an upload leaves enough of the disk; with little left, the log is moved into the index first.
    private func makeRoom(_ session: DirectorySession, _ writer: IndexWriter) -> Bool {
        func needed() -> UInt64 {
            DirectoryCommitter.reserve + UInt64(writer.pagesInLog * DirectoryCommitter.pageSize)
        }
        if session.files.freeBytes() >= needed() { return true }
        checkpoint(session, writer)
        let inIndex = UInt64(writer.freePages() * DirectoryCommitter.pageSize)
        return session.files.freeBytes() + inIndex >= needed()
    }

    private func note(_ results: [Result<DirectoryChange.Outcome, BucketError>]) {
        for result in results {
            switch result {
            case .success: failing.store(false, ordering: .relaxed)
            case .failure(let error):
                if error.isRetryable { failing.store(true, ordering: .relaxed) }
            }
        }
    }

    // MARK: Blobs

    /// Writes or moves all blobs of a batch to their places and syncs them. A failure stays with its change.
    private func place(
        _ batch: [DirectoryChange], _ session: DirectorySession, _ writer: IndexWriter,
        hasRoom: Bool
    )
        -> [Placement]
    {
        let files = session.files
        var placements: [Placement] = []
        var written: [(Int, Int32)] = []
        var shards: Set<Int64> = []
        for change in batch {
            if !hasRoom && change.kind.needsRoom {
                change.kind.discard()
                placements.append(.failed(DirectoryCommitter.full))
                continue
            }
            guard case .put(let content, let facts, _) = change.kind, facts.size > 0 else {
                placements.append(.none)
                continue
            }
            if case .memory(let buffer) = content, buffer.count <= DirectoryCommitter.maximumInline
            {
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
                    File.startWriteback(descriptor, from: 0, count: facts.size)
                    written.append((placements.count, descriptor))
                case .staged(let file): try file.place(in: session, as: blob)
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
            // Read before close, which may change it.
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

    private func fail(_ placement: inout Placement, _ error: BucketError, _ files: DirectoryFiles) {
        if case .blob(let blob) = placement { forget(blob, files) }
        placement = .failed(error)
    }

    /// Removes a blob that no row names and no log can.
    private func forget(_ blob: Int64, _ files: DirectoryFiles) {
        _ = files.removeBlob(blob)
        doomed.append(blob)
    }

    /// Removes the files of blobs that a transaction has put into the garbage table.
    private func collect(_ blobs: [Int64], _ session: DirectorySession) {
        for blob in blobs where session.files.removeBlob(blob) { unlinked.append(blob) }
    }

    // MARK: The transaction

    /// Performs a batch in one transaction; where that fails as a whole, each change in one of its own, so that only
    /// those fail that must.
    private func transact(
        _ batch: [DirectoryChange], _ placements: [Placement],
        _ transaction: inout DirectoryTransaction
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
                    // A full disk: the log's own space can be used again once it has been moved into the index.
                    guard error.bucketError.code == .insufficientStorage else { throw error }
                    transaction.session.index.releaseSnapshots()
                    transaction.writer.checkpoint()
                    transaction.session.index.releaseSnapshots()
                    results += try attempt(change, placement, &transaction)
                }
            } catch {
                let isFull = error.bucketError.code == .insufficientStorage
                if case .blob(let blob) = placements[index] {
                    // A commit that failed at its sync may still be found in the log by the next start: until another
                    // transaction has taken its place, the row it wrote must find its bytes. One that did not fit
                    // into the log has no end there; its bytes make room for the next change.
                    if isFull {
                        forget(blob, transaction.session.files)
                    } else {
                        doomed.append(blob)
                    }
                }
                if !isFull { transaction.session.drop(transaction.writer) }
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
        let collected =
            unlinked.count >= DirectoryCommitter.garbageBatch ? takeUnlinked(transaction) : []
        do throws(SQLiteError) {
            try writer.beginTransaction()
            for blob in collected { try writer.removeGarbage(blob) }
            for blob in doomed { try transaction.release(blob) }
            var results: [Result<DirectoryChange.Outcome, BucketError>] = []
            for (change, placement) in zip(changes, placements) {
                results.append(try apply(change, placement, &transaction))
            }
            try writer.commit()
            doomed = []
            return results
        } catch {
            writer.rollback()
            transaction.released = releasedBefore
            unlinked += collected
            throw error
        }
    }

    /// The removed blobs, once their removal is durable: their rows may go then.
    private func takeUnlinked(_ transaction: DirectoryTransaction) -> [Int64] {
        let shards = Set(unlinked.map { $0 / DirectoryFiles.idsPerShard })
        let current = transaction.writer.nextBlob / DirectoryFiles.idsPerShard
        do throws(BucketError) {
            try transaction.session.files.syncRemovals(in: shards, current: current)
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
        case (.probe, _):
            transaction.writer.touch()
            return .success(DirectoryChange.Outcome())
        }
    }
}
