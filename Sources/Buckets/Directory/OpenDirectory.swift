import Glibc
import Synchronization
import System

/// The number of objects in a directory and the bytes of their contents.
public struct DirectoryUsage: Equatable, Sendable {
    /// The number of objects.
    public private(set) var objects: Int64
    /// The bytes of their contents, without metadata, upload sessions and the file system's overhead.
    public private(set) var bytes: Int64

    mutating func add(_ row: IndexRow) {
        objects += 1
        bytes += Int64(row.metadata.size)
    }

    mutating func subtract(_ row: IndexRow) {
        objects -= 1
        bytes -= Int64(row.metadata.size)
    }
}

/// The open files and connections of a bucket directory, until it is closed, removed or replaced.
///
/// Safety: after initialization, `writer` is only used on the committer's thread.
final class OpenDirectory: @unchecked Sendable {
    let files: DirectoryFiles
    let index: DirectoryIndex
    private let identity: DirectoryFiles.Identity
    private let indexPath: String
    /// nil after a failure that may have damaged the connection.
    var writer: IndexWriter?
    /// As of the last batch.
    let usage: Lock<DirectoryUsage>
    /// Distinguishes the directories that the process has opened.
    let history = OpenDirectory.histories.add(1, ordering: .relaxed).newValue
    private static let histories = Atomic<UInt64>(0)
    /// As of the last batch; nil before the first one that looked at them.
    let eventBounds = Lock<EventBounds?>(nil)

    /// Locks and opens all files, and removes the leftovers of an earlier process.
    init(_ path: String, create: Bool, readers: Int) throws(BucketError) {
        files = try DirectoryFiles(path, create: create)
        indexPath = path + "/" + DirectoryFiles.index
        if create { try files.createIndex() }
        let writer = try IndexWriter(indexPath)
        files.removeLeftovers(from: writer.nextBlob)
        do throws(SQLiteError) {
            try OpenDirectory.collectGarbage(files, writer)
            index = try DirectoryIndex(indexPath, readers: readers)
        } catch { throw error.bucketError }
        identity = try files.identity()
        usage = Lock(writer.usage)
        self.writer = writer
    }

    /// Removes the blobs in the garbage table, and then their rows once the removal is durable.
    private static func collectGarbage(_ files: DirectoryFiles, _ writer: IndexWriter)
        throws(SQLiteError)
    {
        let removed = try writer.garbage().filter { files.removeBlob($0) }
        let shards = Set(removed.map { $0 / DirectoryFiles.idsPerShard })
        let current = writer.nextBlob / DirectoryFiles.idsPerShard
        guard !removed.isEmpty, (try? files.syncRemovals(in: shards, current: current)) != nil else { return }
        try writer.beginTransaction()
        for blob in removed { try writer.removeGarbage(blob) }
        try writer.commit()
    }

    /// The highest numbers that writers of this directory have assigned, saved or not.
    private var givenOut: (blob: Int64, generation: Int64) = (0, 0)

    /// Discards the writer after a failure that may have damaged its connection. The current batch may retry its other
    /// changes with the discarded writer, and call this again.
    func drop(_ failed: IndexWriter) {
        givenOut.blob = max(givenOut.blob, failed.nextBlob)
        givenOut.generation = max(givenOut.generation, failed.lastGeneration)
        writer = nil
    }

    /// The writer, reopened after a failure. It continues the numbers, so that none is assigned twice.
    func openWriter() throws(BucketError) -> IndexWriter {
        if let writer { return writer }
        let opened = try IndexWriter(indexPath)
        opened.nextBlob = max(opened.nextBlob, givenOut.blob)
        opened.lastGeneration = max(opened.lastGeneration, givenOut.generation)
        writer = opened
        return opened
    }

    /// Checks that the path still leads to the open files.
    func checkIdentity() throws(BucketError) {
        if try files.identity() != identity {
            throw BucketError(.unavailable, "\(indexPath) was replaced by another file")
        }
    }
}

final class DirectoryState: Sendable {
    private enum State {
        case open(OpenDirectory)
        /// Removed or replaced. The next use tries to open it again.
        case lost
        case closed
    }

    /// How long a lookup relies on the last check of the path, in nanoseconds: 100 ms.
    private static let trust: UInt64 = 100_000_000

    private let path: String
    private let readers: Int
    private let state: Lock<State>
    /// The number of reopenings. The lock is held while the directory is being opened.
    private let reopenings = Lock(0)
    private let checked = Atomic<UInt64>(EventLoop.monotonicNow())

    init(_ path: String, readers: Int) throws(BucketError) {
        self.path = path
        self.readers = readers
        state = Lock(.open(try OpenDirectory(path, create: true, readers: readers)))
    }

    /// The open directory for a lookup; nil if ``reopen()`` is needed, which blocks.
    func current() throws(BucketError) -> OpenDirectory? {
        guard let directory = try opened() else { return nil }
        let now = EventLoop.current?.now ?? EventLoop.monotonicNow()
        if now &- checked.load(ordering: .relaxed) > DirectoryState.trust {
            checked.store(now, ordering: .relaxed)
            do throws(BucketError) { try directory.checkIdentity() } catch {
                lose(directory)
                return nil
            }
        }
        return directory
    }

    /// The open directory for a batch of writes. Blocks.
    func currentForWriting() throws(BucketError) -> OpenDirectory {
        var directory = try opened()
        if let held = directory {
            do throws(BucketError) { try held.checkIdentity() } catch {
                lose(held)
                directory = nil
            }
        }
        let usable = if let directory { directory } else { try reopen() }
        try usable.files.checkWritable()
        return usable
    }

    func reopen() throws(BucketError) -> OpenDirectory {
        try reopenings.withLock { count throws(BucketError) in
            if let directory = try opened() { return directory }
            let directory = try OpenDirectory(path, create: false, readers: readers)
            let kept = state.withLock { state in
                guard case .lost = state else { return false }
                state = .open(directory)
                return true
            }
            if !kept { throw BucketError(.unavailable, "the bucket is closed") }
            count += 1
            return directory
        }
    }

    /// nil if the directory was lost or is closed.
    var usage: DirectoryUsage? {
        state.withLock { state in if case .open(let directory) = state { directory.usage.withLock { $0 } } else { nil }
        }
    }

    func lose(_ directory: OpenDirectory) {
        state.withLock { state in
            if case .open(let held) = state, held === directory { state = .lost }
        }
        directory.files.releaseLock()
    }

    /// Closes the directory permanently, on the committer's thread.
    func close() {
        let last = state.withLock { state in
            defer { state = .closed }
            if case .open(let directory) = state { return Optional(directory) }
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

    private func opened() throws(BucketError) -> OpenDirectory? {
        try state.withLock { state throws(BucketError) in
            switch state {
            case .open(let directory): directory
            case .lost: nil
            case .closed: throw BucketError(.unavailable, "the bucket is closed")
            }
        }
    }
}
