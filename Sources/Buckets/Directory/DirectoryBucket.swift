import Glibc
import System

/// A bucket in a local directory: blobs in files, and a SQLite index. The embedded default.
///
/// An object becomes visible in one transaction, after its bytes are on stable storage. Whenever the process ends, each
/// name has its old or its new object, and the bytes of an index entry always exist. Any valid UTF-8 name works. A lock
/// file ensures that only one process uses a directory at a time.
///
///     index.sqlite   names, metadata, generations, and contents of at most 4 KiB
///     blobs/N/ID     contents of more than 4 KiB, and the bytes of upload sessions
///     staging/ID     uploads in progress of more than 32 KiB
///     lock           held while the bucket is open
public final class DirectoryBucket: CopyingDriver {
    public func capabilities() -> Capabilities {
        var all = Capabilities.all
        all.uploadSessions = true
        all.parts = true
        all.copies = true
        all.atomicCopies = true
        all.atomicMoves = true
        return all
    }

    /// Whether a directory has visible files but none of a bucket's. A bucket there would not serve them.
    public static func hasForeignFiles(_ path: String) -> Bool {
        DirectoryFiles.hasForeignFiles(path)
    }

    /// Free space that suffices for every upload, however long the log is: 64 MiB.
    private static let ampleRoom: UInt64 = 64 << 20

    let pool: BlockingPool
    let state: DirectoryState
    let committer: DirectoryCommitter
    /// The committer's only thread, owned by the bucket: the committer must not end its own thread.
    private let thread = BlockingPool(threads: 1)
    let clock: @Sendable () -> Int64
    /// How long a session's call waits for the append that it stops, in nanoseconds.
    let stopLimit: UInt64
    /// Work that ``close()`` waits for: appends until their bytes are durable.
    let appends = BackgroundTasks()
    let sessions = SessionRegistry<DirectoryUploadSession>()
    let partsUploads = SessionRegistry<DirectoryParts>()

    /// Opens or creates the bucket and removes the leftovers of an earlier process. Blocks for some milliseconds. Only
    /// the first opening of an index without object counts reads the whole index.
    /// - Parameters:
    ///   - path: The directory. Missing parent directories are created for the owner only (mode 0700).
    ///   - pool: For hashing and file access that could block a loop. It must outlive the bucket.
    ///   - readers: The number of concurrent lookups; one per loop is recommended.
    ///   - clock: Microseconds since 1970.
    ///   - stopLimit: How long a session's call waits for the append that it stops, in nanoseconds.
    ///   - filter: The events that are recorded from the first change on.
    /// - Throws: ``BucketError`` if the directory can't be used, is in use, or is not a bucket.
    public init(
        path: String, pool: BlockingPool, readers: Int = Processors.available(),
        clock: @escaping @Sendable () -> Int64 = SystemClock.microseconds, stopLimit: UInt64 = 30_000_000_000,
        recording filter: EventFilter? = nil
    ) throws(BucketError) {
        self.stopLimit = stopLimit
        self.pool = pool
        self.clock = clock
        state = try DirectoryState(path, readers: readers)
        committer = DirectoryCommitter(state, clock: clock)
        committer.filter.withLock { $0 = filter }
    }

    /// The bucket's content as of the last write; nil if the directory was removed or replaced.
    public var usage: DirectoryUsage? { state.usage }

    /// The number of write batches so far. Shows how well writes share their syncs.
    var batches: Int { committer.batches.load(ordering: .relaxed) }

    /// The open directory. Reopens it if it was lost.
    func openDirectory() async throws(BucketError) -> OpenDirectory {
        if let directory = try state.current() { return directory }
        let state = state
        // On the committer's thread, so that work on the old files ends before leftovers are removed.
        return try await thread.run { () throws(BucketError) in try state.reopen() }
    }

    public func stat(_ name: String) async throws(BucketError) -> ObjectMetadata {
        let directory = try await openDirectory()
        do throws(SQLiteError) {
            if let entry = try directory.index.lookup(name, withContent: false) {
                return entry.row.metadata
            }
        } catch { throw error.bucketError }
        throw BucketError(.objectNotFound)
    }

    public func open(_ name: String, _ plan: ReadPlan) async throws(BucketError) -> any ObjectReader {
        // A blob that was just replaced can be removed between lookup and open. Another lookup finds the new one.
        var missing: Int64 = 0
        for _ in 0..<8 {
            let directory = try await openDirectory()
            let found: IndexEntry?
            do throws(SQLiteError) {
                found = try directory.index.lookup(name, withContent: true)
            } catch { throw error.bucketError }
            guard let found else { throw BucketError(.objectNotFound) }
            let row = found.row
            guard let blob = row.blob else {
                return DirectoryReader(row.metadata, .memory(found.content ?? []), pool)
            }
            if let descriptor = try directory.files.openBlob(blob) {
                return DirectoryReader(row.metadata, .file(descriptor), pool)
            }
            missing = blob
            do throws(BucketError) { try directory.checkIdentity() } catch { state.lose(directory) }
        }
        throw BucketError(.unavailable, "blob \(missing) of an object is missing")
    }

    public func beginUpload(_ name: String, _ plan: UploadPlan) async throws(BucketError)
        -> any Upload
    {
        let directory = try await openDirectory()
        guard let loop = EventLoop.current else {
            throw BucketError(.internal, "an upload belongs on a loop")
        }
        return DirectoryUpload(self, directory, loop, name, plan)
    }

    public func patch(_ name: String, _ patch: AttributePatch, _ preconditions: Preconditions)
        async throws(BucketError) -> ObjectMetadata
    {
        guard let metadata = try await change(name, .patch(patch), preconditions).metadata else {
            throw BucketError(.internal, "a patch without an object")
        }
        return metadata
    }

    public func delete(_ name: String, _ preconditions: Preconditions) async throws(BucketError) {
        _ = try await change(name, .delete, preconditions)
    }

    public func copy(to name: String, _ plan: CopyPlan) async throws(BucketError) -> CommitResult {
        let outcome = try await change(name, .copy(plan), plan.preconditions)
        guard let metadata = outcome.metadata else { throw BucketError(.internal, "a copy without an object") }
        return CommitResult(metadata: metadata, replaced: outcome.replaced)
    }

    public func list(_ query: ListQuery, after: String?) async throws(BucketError) -> ListPage {
        try await listMeasured(query, after: after).0
    }

    /// A page, and its cost in steps of SQLite's virtual machine.
    package func listMeasured(_ query: ListQuery, after: String?) async throws(BucketError)
        -> (ListPage, steps: Int)
    {
        let directory = try await openDirectory()
        do throws(SQLiteError) {
            return try await pool.run { () throws(SQLiteError) in
                try directory.index.list(query, after: after)
            }
        } catch { throw error.bucketError }
    }

    public func checkHealth() async throws(BucketError) {
        let directory = try await openDirectory()
        let free = try await pool.run { () throws(BucketError) in
            try directory.checkIdentity()
            try directory.files.probe()
            return directory.files.freeBytes()
        }
        // After a failure, or with little free space, only a successful write proves that the store works.
        if committer.isFailing || free < DirectoryBucket.ampleRoom {
            _ = try await change("", .probe, Preconditions())
        }
    }

    public func close() async {
        await appends.finish()
        let (committer, state) = (committer, state)
        await withCheckedContinuation { done in
            thread.submit {
                committer.drain()
                state.close()
                done.resume()
            }
        }
    }

    func change(_ name: String, _ kind: DirectoryChange.Kind, _ preconditions: Preconditions)
        async throws(BucketError) -> DirectoryChange.Outcome
    {
        let outcome = await withCheckedContinuation { waiter in
            let change = DirectoryChange(name: name, kind: kind, preconditions: preconditions) {
                waiter.resume(returning: $0)
            }
            let committer = committer
            if committer.add(change) { thread.submit { committer.drain() } }
        }
        return try outcome.get()
    }

    /// Queues a change that nobody waits for.
    func submit(_ kind: DirectoryChange.Kind) {
        let committer = committer
        let change = DirectoryChange(name: "", kind: kind, preconditions: Preconditions()) { _ in }
        if committer.add(change) { thread.submit { committer.drain() } }
    }
}
