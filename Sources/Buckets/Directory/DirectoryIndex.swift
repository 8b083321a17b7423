import Glibc
import Synchronization
import System
import Wire

struct IndexEntry: Sendable {
    let row: IndexRow
    /// The bytes in the index, if they were requested.
    var content: [UInt8]?

    var isComplete: Bool { content != nil || !row.isInline }
}

/// Recently requested objects of one reader, so that a hot lookup needs no SQLite step. Each name maps to one slot,
/// which keeps the last object: at most 512 entries and 2 MiB of contents.
struct IndexCache {
    private static let slotCount = 512
    /// Objects with more custom and system metadata than this, in bytes, are not cached. They can have more than 8 KiB.
    private static let maximumPairs = 512
    private var entries: [IndexEntry?] = []

    static func slot(_ name: String) -> Int { BytewiseString.hash(of: name, below: slotCount) }

    func entry(_ name: String, _ slot: Int) -> IndexEntry? {
        guard !entries.isEmpty, let entry = entries[slot],
            BytewiseString.areEqual(entry.row.metadata.name, name)
        else { return nil }
        return entry
    }

    mutating func store(_ entry: IndexEntry, _ slot: Int) {
        if entry.row.metadata.attributes.pairBytes > IndexCache.maximumPairs { return }
        if entries.isEmpty { entries = Array(repeating: nil, count: IndexCache.slotCount) }
        entries[slot] = entry
    }

    mutating func drop(_ slot: Int) {
        if !entries.isEmpty { entries[slot] = nil }
    }
}

/// The read connections of an open index. A lookup uses a free connection on its own thread.
final class DirectoryIndex: Sendable {
    /// The maximum size of all page caches together: 8 MiB, but at least 512 KiB each.
    private static let cacheKiB = 8192

    /// Counts transactions. A reader with an older snapshot takes a new one.
    private let version = Atomic<UInt64>(1)
    private let readers: [IndexReader]
    /// Separate connections for lists, which take longer.
    private let listers: [IndexReader]

    init(_ path: String, readers count: Int) throws(SQLiteError) {
        var made: [IndexReader] = []
        for reader in 0..<max(1, count) + 2 {
            let cache = reader < 2 ? 512 : max(512, DirectoryIndex.cacheKiB / max(1, count))
            made.append(try IndexReader(path, cacheKiB: cache))
        }
        listers = Array(made[..<2])
        readers = Array(made[2...])
    }

    /// The current object, with its bytes if they are requested and in the index.
    func lookup(_ name: String, withContent: Bool) throws(SQLiteError) -> IndexEntry? {
        try withReader(readers) { reader, cache throws(SQLiteError) in
            let slot = IndexCache.slot(name)
            if let entry = cache.entry(name, slot), !withContent || entry.isComplete {
                return entry
            }
            try reader.refresh(version.load(ordering: .acquiring))
            guard var entry = try reader.lookup(name) else { return nil }
            if withContent && !entry.isComplete {
                entry.content = try reader.content(entry.row.metadata.generation)
            }
            cache.store(entry, slot)
            return entry
        }
    }

    func list(_ query: ListQuery, after: String?) throws(SQLiteError) -> (ListPage, steps: Int) {
        try withReader(listers) { reader, _ throws(SQLiteError) in
            try reader.refresh(version.load(ordering: .acquiring))
            return try reader.list(query, after: after)
        }
    }

    func events(after sequence: Int64, limit: Int) throws(SQLiteError) -> [BucketEvent] {
        try withReader(listers) { reader, _ throws(SQLiteError) in
            try reader.refresh(version.load(ordering: .acquiring))
            return try reader.events(after: sequence, limit: limit)
        }
    }

    /// Reads with a connection for what takes longer than a lookup, from a snapshot as of the last commit.
    func read<Result: Sendable>(_ body: (IndexReader) throws(SQLiteError) -> Result) throws(SQLiteError) -> Result {
        try withReader(listers) { reader, _ throws(SQLiteError) in
            try reader.refresh(version.load(ordering: .acquiring))
            return try body(reader)
        }
    }

    /// Makes a finished transaction visible to every lookup that ends after this call.
    func publish(_ names: [String]) {
        // The order matters: a lookup that still sees the old rows holds its reader's cache, so its entry is dropped
        // afterwards. Later lookups see the new version and take a new snapshot.
        version.wrappingAdd(1, ordering: .releasing)
        let slots = names.map { IndexCache.slot($0) }
        for reader in readers {
            reader.cache.withLock { cache in for slot in slots { cache.drop(slot) } }
        }
    }

    /// Ends all snapshots, so that a checkpoint can process the whole log.
    func releaseSnapshots() {
        for reader in readers + listers { reader.cache.withLock { _ in reader.release() } }
    }

    private func withReader<Result: Sendable>(
        _ pool: [IndexReader],
        _ body: (IndexReader, inout IndexCache) throws(SQLiteError) -> Result
    ) throws(SQLiteError) -> Result {
        // A thread prefers the same reader each time, and tries the next if it is in use.
        let first = Int(truncatingIfNeeded: UInt(pthread_self()) >> 12 &* 0x9e37_79b9) & 0xffff
        for step in 0..<pool.count {
            let reader = pool[(first + step) % pool.count]
            let result = try reader.cache.withLockIfAvailable { cache throws(SQLiteError) in
                try reader.run(&cache, body)
            }
            if let result { return result }
        }
        let reader = pool[first % pool.count]
        return try reader.cache.withLock { cache throws(SQLiteError) in
            try reader.run(&cache, body)
        }
    }
}

/// A read connection with its prepared statements. It keeps its snapshot (read transaction) until something is written,
/// which saves four locking calls per lookup.
///
/// Safety: everything is accessed only with `cache` held.
final class IndexReader: @unchecked Sendable {
    /// Held while this reader is in use.
    let cache = Lock(IndexCache())
    let connection: SQLiteConnection
    private let begin: SQLiteStatement
    private let end: SQLiteStatement
    private let lookupStatement: SQLiteStatement
    private let contentStatement: SQLiteStatement
    /// Names from a start name.
    let seek: SQLiteStatement
    /// The same with ``IndexSchema/listedColumns``.
    let seekListed: SQLiteStatement
    private var snapshot: UInt64 = 0

    init(_ path: String, cacheKiB: Int) throws(SQLiteError) {
        connection = try SQLiteConnection(path, cacheKiB: cacheKiB)
        begin = try SQLiteStatement(connection, "BEGIN")
        end = try SQLiteStatement(connection, "COMMIT")
        lookupStatement = try SQLiteStatement(connection, IndexSchema.lookup)
        contentStatement = try SQLiteStatement(connection, IndexSchema.content)
        let rest = "FROM objects WHERE name >= ?1 ORDER BY name"
        seek = try SQLiteStatement(connection, "SELECT name \(rest)")
        seekListed = try SQLiteStatement(
            connection, "SELECT \(IndexSchema.listedColumns) \(rest)")
    }

    /// Runs `body`. Releases the snapshot on failure.
    func run<Result>(
        _ cache: inout IndexCache,
        _ body: (IndexReader, inout IndexCache) throws(SQLiteError) -> Result
    ) throws(SQLiteError) -> Result {
        do throws(SQLiteError) {
            return try body(self, &cache)
        } catch {
            release()
            throw error
        }
    }

    /// Ensures a snapshot at least as new as `version`.
    func refresh(_ version: UInt64) throws(SQLiteError) {
        if snapshot == version { return }
        release()
        try begin.run()
        snapshot = version
    }

    func release() {
        guard snapshot != 0 else { return }
        snapshot = 0
        try? end.run()
    }

    func lookup(_ name: String) throws(SQLiteError) -> IndexEntry? {
        lookupStatement.bind(1, name)
        defer { lookupStatement.reset() }
        guard try lookupStatement.step() else { return nil }
        return IndexEntry(row: IndexSchema.row(lookupStatement, name))
    }

    func content(_ generation: Int64) throws(SQLiteError) -> [UInt8] {
        contentStatement.bind(1, generation)
        defer { contentStatement.reset() }
        return try contentStatement.step() ? contentStatement.blob(0) ?? [] : []
    }
}
