import EventLoop
import Glibc

/// A bucket in a local directory: blobs as files, one SQLite index beside them. The embedded default.
///
/// An object becomes visible in one transaction, after its bytes are on stable storage. Whenever the process ends, each
/// name has its old or its new object, and an index entry always has its bytes. Any name that is valid UTF-8 works.
/// One process at a time uses a directory: a lock file sees to it.
///
///     index.sqlite   names, metadata, generations, and contents of at most 4 KiB
///     blobs/N/ID     contents of more than 4 KiB
///     staging/ID     uploads under way of more than 32 KiB
///     lock           held while the bucket is open
public final class DirectoryBucket: BucketDriver {
    public func capabilities() -> Capabilities { .all }

    /// Free bytes with which no upload is refused, however long the log is: 64 MiB.
    private static let ampleRoom: UInt64 = 64 << 20

    let pool: BlockingPool
    private let state: DirectoryState
    private let committer: DirectoryCommitter
    /// The committer's one thread. Here rather than in the committer, so that it never ends itself.
    private let thread = BlockingPool(threads: 1)

    /// Opens the bucket, makes it where there is none, and collects what an earlier process left. Blocks for some
    /// milliseconds, however many objects there are.
    /// - Parameters:
    ///   - path: The directory. Missing directories on the way are made, for their owner alone (mode 0700).
    ///   - pool: Where hashing and file work is done that could hold up a loop. It must outlive the bucket.
    ///   - readers: Lookups that can run at once; one a loop is right.
    ///   - clock: Microseconds since 1970.
    /// - Throws: ``BucketError`` where the directory can't be used, is in use, or is not a bucket.
    public init(
        path: String, pool: BlockingPool, readers: Int = Processors.available(),
        clock: @escaping @Sendable () -> Int64 = DirectoryBucket.systemClock
    ) throws(BucketError) {
        self.pool = pool
        state = try DirectoryState(path, readers: readers)
        committer = DirectoryCommitter(state, clock: clock)
    }

    /// The system's clock, in microseconds since 1970.
    @Sendable public static func systemClock() -> Int64 {
        var time = timespec()
        clock_gettime(CLOCK_REALTIME, &time)
        return Int64(time.tv_sec) * 1_000_000 + Int64(time.tv_nsec) / 1000
    }

    /// Batches of writes so far: how well they share their syncs.
    var batches: Int { committer.batches.load(ordering: .relaxed) }

    private func session() async throws(BucketError) -> DirectorySession {
        if let session = try state.current() { return session }
        let state = state
        // On the committer's thread: what an old session has begun is over before leftovers are collected.
        return try await thread.run { () throws(BucketError) in try state.reopen() }
    }

    public func stat(_ name: String) async throws(BucketError) -> ObjectMetadata {
        let session = try await session()
        do throws(SQLiteError) {
            if let entry = try session.index.lookup(name, withContent: false) {
                return entry.row.metadata
            }
        } catch { throw error.bucketError }
        throw BucketError(.objectNotFound)
    }

    public func open(_ name: String, _ plan: ReadPlan) async throws(BucketError) -> any ObjectReader
    {
        // A blob that was just replaced may be gone between lookup and opening: the next lookup knows its successor.
        var missing: Int64 = 0
        for _ in 0..<8 {
            let session = try await session()
            let found: IndexEntry?
            do throws(SQLiteError) {
                found = try session.index.lookup(name, withContent: true)
            } catch { throw error.bucketError }
            guard let found else { throw BucketError(.objectNotFound) }
            let row = found.row
            guard let blob = row.blob else {
                return DirectoryReader(row.metadata, .memory(found.content ?? []), pool)
            }
            if let descriptor = try session.files.openBlob(blob) {
                return DirectoryReader(row.metadata, .file(descriptor), pool)
            }
            missing = blob
            do throws(BucketError) { try session.checkIdentity() } catch { state.lose(session) }
        }
        throw BucketError(.unavailable, "blob \(missing) of an object is missing")
    }

    public func beginUpload(_ name: String, _ plan: UploadPlan) async throws(BucketError)
        -> any Upload
    {
        let session = try await session()
        guard let loop = EventLoop.current else {
            throw BucketError(.internal, "an upload belongs on a loop")
        }
        return DirectoryUpload(self, session, loop, name, plan)
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

    public func list(_ query: ListQuery, after: String?) async throws(BucketError) -> ListPage {
        try await listMeasured(query, after: after).0
    }

    /// A page and its cost in steps of SQLite's machine.
    package func listMeasured(_ query: ListQuery, after: String?) async throws(BucketError)
        -> (ListPage, steps: Int)
    {
        let session = try await session()
        do throws(SQLiteError) {
            return try await pool.run { () throws(SQLiteError) in
                try session.index.list(query, after: after)
            }
        } catch { throw error.bucketError }
    }

    public func checkHealth() async throws(BucketError) {
        let session = try await session()
        let free = try await pool.run { () throws(BucketError) in
            try session.checkIdentity()
            try session.files.probe()
            return session.files.freeBytes()
        }
        // After a fault, or with little room left, only a write that succeeds shows that all is well.
        if committer.isFailing || free < DirectoryBucket.ampleRoom {
            _ = try await change("", .probe, Preconditions())
        }
    }

    public func close() async {
        let (committer, state) = (committer, state)
        await withCheckedContinuation { done in
            thread.submit {
                committer.drain()
                state.close()
                done.resume()
            }
        }
    }

    /// Hands a change to the committer and waits for its answer.
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
}
