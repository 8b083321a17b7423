import CSQLite
import Wire

/// An object's row in the index.
struct IndexRow: Sendable {
    var metadata: ObjectMetadata
    /// The id of the blob file; nil if the bytes are in the index or the object is empty.
    var blob: Int64?

    var isInline: Bool { blob == nil && metadata.size > 0 }
}

/// The schema of the index, and the SQL that readers and the writer share.
enum IndexSchema {
    /// "SLuc" in the file's header (SQLite file format, section 1.3).
    static let applicationID: Int64 = 0x534c_7563
    static let version: Int64 = 1

    static let columns = """
        generation, metageneration, size, created, updated, md5, crc32c, blob, content_type, \
        cache_control, content_disposition, content_encoding, content_language, custom
        """
    static let lookup = "SELECT \(columns) FROM objects WHERE name = ?1"

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
            custom BLOB
        ) STRICT, WITHOUT ROWID;
        CREATE TABLE contents(generation INTEGER PRIMARY KEY, bytes BLOB NOT NULL) STRICT;
        CREATE TABLE garbage(blob INTEGER PRIMARY KEY) STRICT;
        CREATE TABLE state(next_blob INTEGER NOT NULL, last_generation INTEGER NOT NULL) STRICT;
        INSERT INTO state VALUES (1, 0);
        """

    /// Creates the tables in a new file. Rejects a file of another program or of a newer version.
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
            .unavailable, "\(path) is of another program or a newer version: it is left untouched")
    }

    private static func isUsable(_ connection: SQLiteConnection) throws(SQLiteError) -> Bool {
        let identifier = try connection.integer("PRAGMA application_id")
        let tables = try connection.integer("SELECT count(*) FROM sqlite_master")
        let isNew = identifier == 0 && tables == 0
        let found = try connection.integer("PRAGMA user_version")
        guard isNew || (identifier == applicationID && found == version) else { return false }
        try connection.execute("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL")
        if isNew {
            try connection.execute(
                """
                BEGIN IMMEDIATE; \(definition) PRAGMA application_id = \(applicationID);
                PRAGMA user_version = \(version); COMMIT
                """)
        }
        try connection.execute(SessionTable.definition)
        return true
    }

    /// Reads the current row of a statement whose columns begin with ``columns``.
    static func row(_ statement: SQLiteStatement, _ name: String) -> IndexRow {
        let generation = statement.int64(0)
        let attributes = ObjectAttributes(
            contentType: statement.text(8), cacheControl: statement.text(9),
            contentDisposition: statement.text(10), contentEncoding: statement.text(11),
            contentLanguage: statement.text(12),
            customMetadata: statement.isNull(13)
                ? [:] : statement.withBytes(13) { CustomMetadata.decode($0) })
        let metadata = ObjectMetadata(
            name: name, generation: generation, metageneration: statement.int64(1),
            size: UInt64(statement.int64(2)), created: statement.int64(3),
            updated: statement.int64(4), md5: statement.blob(5),
            crc32c: UInt32(truncatingIfNeeded: statement.int64(6)), etag: String(generation),
            attributes: attributes)
        return IndexRow(
            metadata: metadata, blob: statement.isNull(7) ? nil : statement.int64(7))
    }
}

/// Custom metadata as one column: keys in order, each string preceded by its length (32 bits, little-endian).
enum CustomMetadata {
    static func encode(_ pairs: [BytewiseString: String]) -> [UInt8]? {
        if pairs.isEmpty { return nil }
        var bytes: [UInt8] = []
        for (key, value) in pairs.sorted(by: { $0.key < $1.key }) {
            for text in [key.text, value] {
                let count = UInt32(text.utf8.count)
                for shift in stride(from: UInt32(0), to: 32, by: 8) {
                    bytes.append(UInt8(truncatingIfNeeded: count >> shift))
                }
                bytes.append(contentsOf: text.utf8)
            }
        }
        return bytes
    }

    static func decode(_ bytes: UnsafeRawBufferPointer) -> [BytewiseString: String] {
        var offset = 0
        func next() -> String? {
            guard offset + 4 <= bytes.count else { return nil }
            let count = Int(
                UInt32(littleEndian: bytes.loadUnaligned(fromByteOffset: offset, as: UInt32.self)))
            offset += 4
            guard offset + count <= bytes.count else { return nil }
            defer { offset += count }
            return String(decoding: bytes[offset..<offset + count], as: UTF8.self)
        }
        var pairs: [BytewiseString: String] = [:]
        while let key = next(), let value = next() { pairs[BytewiseString(key)] = value }
        return pairs
    }
}
