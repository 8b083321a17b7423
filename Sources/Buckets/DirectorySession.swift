import EventLoop
import Glibc
import Synchronization

/// One opening of a bucket directory: it ends when the directory is closed, or vanishes underneath.
///
/// Safety: `writer` is touched by the committer's thread alone once the session has been handed out.
final class DirectorySession: @unchecked Sendable {
    let files: DirectoryFiles
    let index: DirectoryIndex
    private let identity: DirectoryFiles.Identity
    private let indexPath: String
    /// nil after a failure that the connection may not have survived.
    var writer: IndexWriter?

    /// Locks and opens everything, and removes what an earlier process left behind.
    init(_ path: String, create: Bool, readers: Int) throws(BucketError) {
        files = try DirectoryFiles(path, create: create)
        indexPath = path + "/" + DirectoryFiles.index
        if create { try files.createIndex() }
        let writer = try IndexWriter(indexPath)
        files.removeLeftovers(from: writer.nextBlob)
        do throws(SQLiteError) {
            try DirectorySession.collectGarbage(files, writer)
            index = try DirectoryIndex(indexPath, readers: readers)
        } catch { throw error.bucketError }
        identity = try files.identity()
        self.writer = writer
    }

    /// Removes blobs that an earlier process gave up, and their rows once that is durable.
    private static func collectGarbage(_ files: DirectoryFiles, _ writer: IndexWriter)
        throws(SQLiteError)
    {
        let removed = try writer.garbage().filter { files.removeBlob($0) }
        let shards = Set(removed.map { $0 / DirectoryFiles.idsPerShard })
        let current = writer.nextBlob / DirectoryFiles.idsPerShard
        guard !removed.isEmpty, (try? files.syncRemovals(in: shards, current: current)) != nil
        else { return }
        try writer.beginTransaction()
        for blob in removed { try writer.removeGarbage(blob) }
        try writer.commit()
    }

    /// The highest numbers that writers of this session have given out, saved or not.
    private var givenOut: (blob: Int64, generation: Int64) = (0, 0)

    /// Gives up the writer after a failure that its connection may not have survived. The batch that holds it may try
    /// its other changes with it, and come here again.
    func drop(_ failed: IndexWriter) {
        givenOut.blob = max(givenOut.blob, failed.nextBlob)
        givenOut.generation = max(givenOut.generation, failed.lastGeneration)
        writer = nil
    }

    /// The writer, opened anew where a failure took it. It goes on counting where the last one stopped: a number that
    /// was given out is never given out again.
    func openWriter() throws(BucketError) -> IndexWriter {
        if let writer { return writer }
        let opened = try IndexWriter(indexPath)
        opened.nextBlob = max(opened.nextBlob, givenOut.blob)
        opened.lastGeneration = max(opened.lastGeneration, givenOut.generation)
        writer = opened
        return opened
    }

    /// Whether the path still leads to the files that were opened.
    func checkIdentity() throws(BucketError) {
        if try files.identity() != identity {
            throw BucketError(.unavailable, "\(indexPath) was replaced by another file")
        }
    }
}

/// Which session a bucket has now, if any.
final class DirectoryState: Sendable {
    private enum State {
        case open(DirectorySession)
        /// The directory vanished; the next use tries to open it again.
        case lost
        case closed
    }

    /// How long a lookup may trust that the directory is where it was: 100 ms.
    private static let trust: UInt64 = 100_000_000

    private let path: String
    private let readers: Int
    private let state: Lock<State>
    /// How often the directory came back; held while it is opened.
    private let reopenings = Lock(0)
    private let checked = Atomic<UInt64>(EventLoop.monotonicNow())

    init(_ path: String, readers: Int) throws(BucketError) {
        self.path = path
        self.readers = readers
        state = Lock(.open(try DirectorySession(path, create: true, readers: readers)))
    }

    /// The session for a lookup; nil where it must be opened again, which blocks: ``reopen()``.
    func current() throws(BucketError) -> DirectorySession? {
        guard let session = try opened() else { return nil }
        let now = EventLoop.current?.now ?? EventLoop.monotonicNow()
        if now &- checked.load(ordering: .relaxed) > DirectoryState.trust {
            checked.store(now, ordering: .relaxed)
            do throws(BucketError) { try session.checkIdentity() } catch {
                lose(session)
                return nil
            }
        }
        return session
    }

    /// The session for a batch of writes. Blocks.
    func currentForWriting() throws(BucketError) -> DirectorySession {
        var session = try opened()
        if let held = session {
            do throws(BucketError) { try held.checkIdentity() } catch {
                lose(held)
                session = nil
            }
        }
        let usable = if let session { session } else { try reopen() }
        try usable.files.checkWritable()
        return usable
    }

    /// Opens a directory that had vanished. Blocks.
    func reopen() throws(BucketError) -> DirectorySession {
        try reopenings.withLock { count throws(BucketError) in
            if let session = try opened() { return session }
            let session = try DirectorySession(path, create: false, readers: readers)
            let kept = state.withLock { state in
                guard case .lost = state else { return false }
                state = .open(session)
                return true
            }
            if !kept { throw BucketError(.unavailable, "the bucket is closed") }
            count += 1
            return session
        }
    }

    /// Gives up a session whose directory is not the one that was opened.
    func lose(_ session: DirectorySession) {
        state.withLock { state in
            if case .open(let held) = state, held === session { state = .lost }
        }
        session.files.releaseLock()
    }

    /// Ends the session for good. The caller is the committer's thread.
    func close() {
        let last = state.withLock { state in
            defer { state = .closed }
            if case .open(let session) = state { return Optional(session) }
            return nil
        }
        guard let last else { return }
        if (try? last.checkIdentity()) != nil {
            last.index.releaseSnapshots()
            last.writer?.finish()
        }
        last.writer = nil
        last.files.releaseLock()
    }

    private func opened() throws(BucketError) -> DirectorySession? {
        try state.withLock { state throws(BucketError) in
            switch state {
            case .open(let session): session
            case .lost: nil
            case .closed: throw BucketError(.unavailable, "the bucket is closed")
            }
        }
    }
}
