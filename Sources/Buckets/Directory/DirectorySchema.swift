import CSQLite

struct IndexRow: Sendable {
    var metadata: ObjectMetadata
    /// The id of the blob file; nil if the bytes are in the index or there are none.
    var blob: Int64?

    var isInline: Bool { blob == nil && metadata.size > 0 }
}

/// The schema of the index, and the SQL that readers and the writer share.
enum IndexSchema {
    /// "SLuc" in the file's header (SQLite file format, section 1.3).
    static let applicationID: Int64 = 0x534c_7563
    /// The version of a file without ``ExtendedIndex``.
    static let version: Int64 = 1

    static let columns = """
        generation, metageneration, size, created, updated, md5, crc32c, blob, content_type, \
        cache_control, content_disposition, content_encoding, content_language, custom, system
        """
    /// The system metadata is only read if the second parameter is not 0.
    static let listedColumns =
        "name, generation, size, updated, md5, crc32c, content_type, CASE WHEN ?2 THEN system END"
    static let lookup = "SELECT \(columns) FROM objects WHERE name = ?1"
    static let content = "SELECT bytes FROM contents WHERE generation = ?1"

    static let definition = """
        CREATE TABLE objects(
            name TEXT NOT NULL PRIMARY KEY,
            generation INTEGER NOT NULL,
            metageneration INTEGER NOT NULL,
            size INTEGER NOT NULL,
            created INTEGER NOT NULL,
            updated INTEGER NOT NULL,
            md5 BLOB NOT NULL,
            crc32c INTEGER NOT NULL,
            blob INTEGER,
            content_type TEXT,
            cache_control TEXT,
            content_disposition TEXT,
            content_encoding TEXT,
            content_language TEXT,
            custom BLOB,
            system BLOB
        ) STRICT, WITHOUT ROWID;
        CREATE TABLE contents(generation INTEGER PRIMARY KEY, bytes BLOB NOT NULL) STRICT;
        CREATE TABLE garbage(blob INTEGER PRIMARY KEY) STRICT;
        CREATE TABLE state(next_blob INTEGER NOT NULL, last_generation INTEGER NOT NULL) STRICT;
        INSERT INTO state VALUES (1, 0);
        """

    /// Creates the tables in a new file. Rejects files of other programs and newer versions.
    static func prepare(_ connection: SQLiteConnection, _ path: String) throws(BucketError) {
        do throws(SQLiteError) {
            if try isUsable(connection) { return }
        } catch {
            throw error.code & 0xff == SQLITE_NOTADB ? foreign(path) : error.bucketError
        }
        throw foreign(path)
    }

    static func foreign(_ path: String) -> BucketError {
        BucketError(
            .unavailable,
            "\(path) is the index of another program or a newer version: it is left unchanged")
    }

    private static func isUsable(_ connection: SQLiteConnection) throws(SQLiteError) -> Bool {
        let identifier = try connection.integer("PRAGMA application_id")
        let tables = try connection.integer("SELECT count(*) FROM sqlite_master")
        let isNew = identifier == 0 && tables == 0
        let found = try connection.integer("PRAGMA user_version")
        let isKnown = identifier == applicationID && (version...ExtendedIndex.version).contains(found)
        guard isNew || isKnown else { return false }
        try connection.execute("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL")
        if isNew {
            try connection.execute(
                """
                BEGIN IMMEDIATE; \(definition) PRAGMA application_id = \(applicationID);
                PRAGMA user_version = \(version); COMMIT
                """)
        }
        try connection.execute(SessionTable.definition + EventTable.definition)
        for table in ["objects", "sessions"] where try !has("system", table, connection) {
            try connection.execute("ALTER TABLE \(table) ADD COLUMN system BLOB")
        }
        if try !has("bytes", "state", connection) { try connection.execute(countObjects) }
        return true
    }

    /// Adds ``DirectoryUsage`` to older files.
    private static let countObjects = """
        BEGIN IMMEDIATE;
        ALTER TABLE state ADD COLUMN objects INTEGER;
        ALTER TABLE state ADD COLUMN bytes INTEGER;
        UPDATE state SET (objects, bytes) = (SELECT count(*), ifnull(sum(size), 0) FROM objects);
        COMMIT
        """

    /// Whether a table has a column. Older files lack some; older versions ignore those that they don't know.
    fileprivate static func has(_ column: String, _ table: String, _ connection: SQLiteConnection)
        throws(SQLiteError) -> Bool
    {
        try connection.integer(
            "SELECT count(*) FROM pragma_table_info('\(table)') WHERE name = '\(column)'") > 0
    }

    /// Reads the current row of a statement with ``listedColumns``.
    static func listed(_ statement: SQLiteStatement) -> ListedProperties {
        let generation = statement.int64(1)
        var listed = ListedProperties(
            size: UInt64(statement.int64(2)), updated: statement.int64(3), etag: String(generation))
        listed.generation = generation
        listed.md5 = md5(statement, 4)
        listed.crc32c = UInt32(truncatingIfNeeded: statement.int64(5))
        listed.contentType = statement.text(6)
        if !statement.isNull(7) { listed.storedTag = statement.systemMetadata(7).s3?.tag }
        return listed
    }

    /// nil if it is not known: the column is empty then.
    private static func md5(_ statement: SQLiteStatement, _ column: Int32) -> [UInt8]? {
        statement.blob(column).flatMap { $0.count == 16 ? $0 : nil }
    }

    /// Reads the current row of a statement whose columns begin with ``columns``.
    static func row(_ statement: SQLiteStatement, _ name: String) -> IndexRow {
        let generation = statement.int64(0)
        let metadata = ObjectMetadata(
            name: name, generation: generation, metageneration: statement.int64(1), size: UInt64(statement.int64(2)),
            created: statement.int64(3), updated: statement.int64(4), md5: md5(statement, 5),
            crc32c: UInt32(truncatingIfNeeded: statement.int64(6)), etag: String(generation),
            attributes: statement.attributes(8))
        return IndexRow(
            metadata: metadata, blob: statement.isNull(7) ? nil : statement.int64(7))
    }
}

/// The tables that the first copy or upload in parts adds to an index.
///
/// They raise the version of the index, because a program that does not know them must not open it: it would remove a
/// shared blob with its first owner, and leave the blobs of parts.
struct ExtendedIndex {
    static let version: Int64 = 2
    let sharedBlobs: SharedBlobs
    let parts: PartTable

    /// nil if the index has no such tables.
    init?(existingIn connection: SQLiteConnection) throws(SQLiteError) {
        guard try connection.integer("PRAGMA user_version") == ExtendedIndex.version else { return nil }
        if try !IndexSchema.has("checksum", "parts", connection) { try connection.execute(PartTable.addChecksum) }
        try self.init(connection)
    }

    /// Creates the tables within the current transaction.
    init(newIn connection: SQLiteConnection) throws(SQLiteError) {
        try connection.execute(
            SharedBlobs.definition + PartTable.definition + "PRAGMA user_version = \(ExtendedIndex.version)")
        try self.init(connection)
    }

    private init(_ connection: SQLiteConnection) throws(SQLiteError) {
        sharedBlobs = try SharedBlobs(connection)
        parts = try PartTable(connection)
    }
}
