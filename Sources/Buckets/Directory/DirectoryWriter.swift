import CSQLite

/// The only connection that changes the index. Confined to the committer's thread.
final class IndexWriter {
    private let connection: SQLiteConnection
    private let begin: SQLiteStatement
    private let end: SQLiteStatement
    private let lookupStatement: SQLiteStatement
    private let putStatement: SQLiteStatement
    private let patchStatement: SQLiteStatement
    private let deleteStatement: SQLiteStatement
    private let putContent: SQLiteStatement
    private let getContent: SQLiteStatement
    private let deleteContent: SQLiteStatement
    private let putGarbage: SQLiteStatement
    private let deleteGarbage: SQLiteStatement
    private let saveState: SQLiteStatement
    private let logPages = UnsafeMutablePointer<Int32>.allocate(capacity: 1)

    private var sessionTable: SessionTable?
    /// nil if no events were ever wanted, and none must be continued.
    private(set) var events: EventTable?
    /// nil if there are neither copies nor uploads in parts. The second one is as of the last commit.
    private var extended: ExtendedIndex?
    private var savedExtended: ExtendedIndex?

    /// The lowest blob id that no transaction has used.
    var nextBlob: Int64
    /// The highest assigned generation.
    var lastGeneration: Int64
    private var saved: (Int64, Int64)
    /// The usage after this transaction, and after the last one.
    private(set) var usage: DirectoryUsage
    private var savedUsage: DirectoryUsage

    init(_ path: String) throws(BucketError) {
        do throws(SQLiteError) {
            connection = try SQLiteConnection(path, cacheKiB: 2048)
        } catch {
            throw error.code & 0xff == SQLITE_NOTADB ? IndexSchema.foreign(path) : error.bucketError
        }
        try IndexSchema.prepare(connection, path)
        let connection = connection
        do throws(SQLiteError) {
            func make(_ sql: String) throws(SQLiteError) -> SQLiteStatement {
                try SQLiteStatement(connection, sql)
            }
            begin = try make("BEGIN IMMEDIATE")
            end = try make("COMMIT")
            lookupStatement = try make(IndexSchema.lookup)
            putStatement = try make(
                """
                INSERT OR REPLACE INTO objects(name, \(IndexSchema.columns))
                VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16)
                """)
            patchStatement = try make(
                """
                UPDATE objects SET metageneration = ?2, updated = ?3, content_type = ?4,
                cache_control = ?5, content_disposition = ?6, content_encoding = ?7,
                content_language = ?8, custom = ?9, system = ?10 WHERE name = ?1
                """)
            deleteStatement = try make("DELETE FROM objects WHERE name = ?1")
            putContent = try make("INSERT INTO contents VALUES (?1, ?2)")
            getContent = try make(IndexSchema.content)
            deleteContent = try make("DELETE FROM contents WHERE generation = ?1")
            putGarbage = try make("INSERT OR IGNORE INTO garbage VALUES (?1)")
            deleteGarbage = try make("DELETE FROM garbage WHERE blob = ?1")
            saveState = try make("UPDATE state SET next_blob = ?1, last_generation = ?2, objects = ?3, bytes = ?4")
            nextBlob = try connection.integer("SELECT next_blob FROM state")
            lastGeneration = try connection.integer("SELECT last_generation FROM state")
            saved = (nextBlob, lastGeneration)
            usage = DirectoryUsage(
                objects: try connection.integer("SELECT objects FROM state"),
                bytes: try connection.integer("SELECT bytes FROM state"))
            savedUsage = usage
            extended = try ExtendedIndex(existingIn: connection)
            savedExtended = extended
            if try connection.integer(EventTable.isContinued) > 0 { events = try EventTable(connection) }
            logPages.initialize(to: 0)
            // Replaces SQLite's automatic checkpoints, so that the committer chooses the time.
            sqlite3_wal_hook(
                connection.handle,
                { counter, _, _, pages in
                    counter?.assumingMemoryBound(to: Int32.self).pointee = pages
                    return SQLITE_OK
                }, logPages)
        } catch {
            logPages.deallocate()
            throw error.bucketError
        }
    }

    deinit {
        sqlite3_wal_hook(connection.handle, nil, nil)
        logPages.deallocate()
    }

    // MARK: Transactions

    /// Begins a transaction that changes no object.
    func beginTransaction() throws(SQLiteError) { try begin.run() }

    /// - Parameter filter: Which events of the transaction are recorded.
    func beginTransaction(recording filter: EventFilter?) throws(SQLiteError) {
        try begin.run()
        if filter != nil { _ = try eventTable() }
        try events?.begin(filter)
    }

    /// Commits, and saves changed counters. The transaction is on stable storage on return.
    func commit() throws(SQLiteError) {
        let hasChanged = saved != (nextBlob, lastGeneration) || usage != savedUsage
        if hasChanged {
            saveState.bind(1, nextBlob)
            saveState.bind(2, lastGeneration)
            saveState.bind(3, usage.objects)
            saveState.bind(4, usage.bytes)
            try saveState.run()
        }
        try events?.save(hasChanged)
        try end.run()
        events?.commit()
        saved = (nextBlob, lastGeneration)
        savedUsage = usage
        savedExtended = extended
    }

    func rollback() {
        usage = savedUsage
        extended = savedExtended
        events?.rollback()
        // Some failures have already caused a rollback.
        if sqlite3_get_autocommit(connection.handle) == 0 { try? connection.execute("ROLLBACK") }
    }

    /// The pages in the write-ahead log that are not in the index.
    var pagesInLog: Int { Int(logPages.pointee) }

    /// Unused pages in the index, which will be reused.
    func freePages() -> Int {
        Int((try? connection.integer("PRAGMA freelist_count")) ?? 0)
    }

    /// Forces the next ``commit()`` to write.
    func touch() { saved = (-1, -1) }

    /// Moves the log's pages into the index, as far as readers permit.
    func checkpoint() {
        var (all, moved): (Int32, Int32) = (-1, -1)
        let code = sqlite3_wal_checkpoint_v2(connection.handle, nil, SQLITE_CHECKPOINT_PASSIVE, &all, &moved)
        if code == SQLITE_OK && all == moved { logPages.pointee = 0 }
    }

    /// Moves the log into the index and truncates the log file.
    func finish() {
        sqlite3_wal_checkpoint_v2(connection.handle, nil, SQLITE_CHECKPOINT_TRUNCATE, nil, nil)
    }

    // MARK: Rows

    func lookup(_ name: String) throws(SQLiteError) -> IndexRow? {
        lookupStatement.bind(1, name)
        defer { lookupStatement.reset() }
        return try lookupStatement.step() ? IndexSchema.row(lookupStatement, name) : nil
    }

    /// Writes a new object in the place of `old`, whose bytes remain.
    func put(_ row: IndexRow, content: UnsafeRawBufferPointer?, replacing old: IndexRow?)
        throws(SQLiteError)
    {
        let metadata = row.metadata
        putStatement.bind(1, metadata.name)
        putStatement.bind(2, metadata.generation)
        putStatement.bind(3, metadata.metageneration)
        putStatement.bind(4, Int64(metadata.size))
        putStatement.bind(5, metadata.created)
        putStatement.bind(6, metadata.updated)
        putStatement.bind(7, blob: metadata.md5 ?? [])
        putStatement.bind(8, metadata.crc32c.map { Int64($0) })
        putStatement.bind(9, row.blob)
        putStatement.bind(10, metadata.attributes)
        try putStatement.run()
        if let content {
            putContent.bind(1, metadata.generation)
            putContent.bind(2, blob: content)
            try putContent.run()
        }
        usage.add(row)
        if let old { usage.subtract(old) }
    }

    func patch(_ row: IndexRow) throws(SQLiteError) {
        patchStatement.bind(1, row.metadata.name)
        patchStatement.bind(2, row.metadata.metageneration)
        patchStatement.bind(3, row.metadata.updated)
        patchStatement.bind(4, row.metadata.attributes)
        try patchStatement.run()
    }

    /// Removes an object's row. Its bytes remain.
    func delete(_ row: IndexRow) throws(SQLiteError) {
        deleteStatement.bind(1, row.metadata.name)
        try deleteStatement.run()
        usage.subtract(row)
    }

    /// The bytes of an object that are in the index.
    func content(_ generation: Int64) throws(SQLiteError) -> [UInt8] {
        getContent.bind(1, generation)
        defer { getContent.reset() }
        return try getContent.step() ? getContent.blob(0) ?? [] : []
    }

    func removeContent(_ generation: Int64) throws(SQLiteError) {
        deleteContent.bind(1, generation)
        try deleteContent.run()
    }

    /// The table of upload sessions. Statements are prepared at their first use.
    func sessions() throws(SQLiteError) -> SessionTable {
        if let sessionTable { return sessionTable }
        let made = try SessionTable(connection)
        sessionTable = made
        return made
    }

    /// The tables of events. Statements are prepared at their first use.
    func eventTable() throws(SQLiteError) -> EventTable {
        if let events { return events }
        let made = try EventTable(connection)
        events = made
        return made
    }

    // MARK: Blobs of copies, and parts

    private func extend() throws(SQLiteError) -> ExtendedIndex {
        if let extended { return extended }
        let made = try ExtendedIndex(newIn: connection)
        extended = made
        return made
    }

    /// The table of parts.
    func parts() throws(SQLiteError) -> PartTable { try extend().parts }

    /// Counts another object that has this blob.
    func addOwner(of blob: Int64) throws(SQLiteError) {
        try extend().sharedBlobs.addOwner(of: blob)
    }

    /// Counts one object less, and returns whether others have the blob.
    func dropOwner(of blob: Int64) throws(SQLiteError) -> Bool {
        if let extended { try extended.sharedBlobs.dropOwner(of: blob) } else { false }
    }

    // MARK: Garbage: blobs whose files are to be removed

    func addGarbage(_ blob: Int64) throws(SQLiteError) {
        putGarbage.bind(1, blob)
        try putGarbage.run()
    }

    func removeGarbage(_ blob: Int64) throws(SQLiteError) {
        deleteGarbage.bind(1, blob)
        try deleteGarbage.run()
    }

    func garbage() throws(SQLiteError) -> [Int64] {
        let statement = try SQLiteStatement(connection, "SELECT blob FROM garbage")
        var blobs: [Int64] = []
        while try statement.step() { blobs.append(statement.int64(0)) }
        return blobs
    }
}
