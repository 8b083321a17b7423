import CSQLite
import Wire

struct SessionRow: Sendable {
    enum End: Sendable, Equatable {
        /// The result of the commit. `created` is in milliseconds since 1970.
        case committed(generation: Int64, created: Int64, replaced: Bool)
        case closed([UInt8])
    }
    /// The id of its blob, which the commit passes to the object.
    var blob: Int64
    let id: UploadSessionID
    let name: String
    var attributes: ObjectAttributes
    /// Milliseconds since 1970.
    let created: Int64
    /// Seconds since 1970. For an ended session, earlier than the time in the id.
    var expires: Int64
    /// The durable bytes in the file.
    var offset: UInt64 = 0
    var length: UInt64?
    /// ``SessionDigests/saved`` of those bytes, or ``SessionRow/ofParts`` and after the commit the crc32c.
    var digests: [UInt8]
    let context: [UInt8]
    var end: End?

    /// Whether the file belongs to the session rather than to an object.
    var ownsBlob: Bool { end == nil }

    /// The first byte of ``digests`` of an upload in parts.
    static let ofParts: UInt8 = 2

    /// Whether it is an upload in parts, whose offset is the size of all parts until the commit.
    var isInParts: Bool { digests.first == SessionRow.ofParts }

    func facts() throws(BucketError) -> ContentFacts {
        if isInParts {
            let crc32c = digests.dropFirst().reduce(0) { $0 << 8 | UInt32($1) }
            return ContentFacts(size: offset, md5: nil, crc32c: crc32c)
        }
        guard let digests = SessionDigests(saved: digests) else { throw unreadable }
        return digests.facts(size: offset)
    }

    var unreadable: BucketError {
        BucketError(.internal, "the digest states of the upload session of blob \(blob) can't be read")
    }

    func metadata(_ facts: ContentFacts, generation: Int64, created: Int64) -> ObjectMetadata {
        ObjectMetadata(
            name: name, generation: generation, metageneration: 1, size: facts.size, created: created, updated: created,
            md5: facts.md5, crc32c: facts.crc32c, etag: String(generation), attributes: attributes)
    }

    func result() throws(BucketError) -> CommitResult? {
        guard case .committed(let generation, let created, let replaced) = end else { return nil }
        let object = metadata(try facts(), generation: generation, created: created)
        return CommitResult(metadata: object, replaced: replaced)
    }

    func state() throws(BucketError) -> SessionState {
        let end: SessionState.End? =
            if let result = try result() {
                .committed(result)
            } else if case .closed(let record) = self.end {
                .closed(record)
            } else {
                nil
            }
        return SessionState(
            name: name, attributes: attributes, created: created, expires: expires, offset: offset,
            length: length, context: context, end: end)
    }
}

/// The index table of upload sessions. Only used on the committer's thread, within its transactions.
final class SessionTable {
    /// Added to existing files when they are opened. Versions that do not know the table ignore it.
    static let definition = """
        CREATE TABLE IF NOT EXISTS sessions(
            id BLOB NOT NULL PRIMARY KEY,
            blob INTEGER NOT NULL,
            name TEXT NOT NULL,
            created INTEGER NOT NULL,
            expires INTEGER NOT NULL,
            offset INTEGER NOT NULL,
            length INTEGER,
            digests BLOB NOT NULL,
            context BLOB NOT NULL,
            content_type TEXT,
            cache_control TEXT,
            content_disposition TEXT,
            content_encoding TEXT,
            content_language TEXT,
            custom BLOB,
            system BLOB,
            generation INTEGER,
            committed INTEGER,
            replaced INTEGER,
            record BLOB
        ) STRICT, WITHOUT ROWID;
        CREATE INDEX IF NOT EXISTS sessions_by_expiry ON sessions(expires);
        """

    private static let columns = """
        id, blob, name, created, expires, offset, length, digests, context, content_type, \
        cache_control, content_disposition, content_encoding, content_language, custom, \
        system, generation, committed, replaced, record
        """

    private let findStatement: SQLiteStatement
    private let insertStatement: SQLiteStatement
    private let updateStatement: SQLiteStatement
    private let updateSystemStatement: SQLiteStatement
    private let deleteStatement: SQLiteStatement
    private let listStatement: SQLiteStatement
    private let expiredStatement: SQLiteStatement

    init(_ connection: SQLiteConnection) throws(SQLiteError) {
        func make(_ sql: String) throws(SQLiteError) -> SQLiteStatement {
            try SQLiteStatement(connection, sql)
        }
        let all = "SELECT \(SessionTable.columns) FROM sessions"
        findStatement = try make("\(all) WHERE id = ?1")
        insertStatement = try make(
            """
            INSERT INTO sessions(\(SessionTable.columns)) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8,
            ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, NULL, NULL, NULL, NULL)
            """)
        updateStatement = try make(
            """
            UPDATE sessions SET expires = ?2, offset = ?3, length = ?4, digests = ?5,
            generation = ?6, committed = ?7, replaced = ?8, record = ?9 WHERE id = ?1
            """)
        updateSystemStatement = try make("UPDATE sessions SET system = ?2 WHERE id = ?1")
        deleteStatement = try make("DELETE FROM sessions WHERE id = ?1")
        listStatement = try make("\(all) WHERE id > ?1 ORDER BY id LIMIT ?2")
        expiredStatement = try make("\(all) WHERE expires <= ?1")
    }

    func find(_ id: UploadSessionID) throws(SQLiteError) -> SessionRow? {
        findStatement.bind(1, blob: id.bytes)
        return try rows(findStatement).first
    }

    /// At most `limit` rows after `id`, or all rows if `id` is nil.
    func list(after id: UploadSessionID?, limit: Int) throws(SQLiteError) -> [SessionRow] {
        listStatement.bind(1, blob: id?.bytes ?? [])
        listStatement.bind(2, Int64(limit))
        return try rows(listStatement)
    }

    /// At most `limit` rows that have expired at `now`, in seconds since 1970. Unreadable rows don't count.
    func expired(_ now: Int64, limit: Int) throws(SQLiteError) -> [SessionRow] {
        expiredStatement.bind(1, now)
        return try rows(expiredStatement, limit: limit)
    }

    func insert(_ row: SessionRow) throws(SQLiteError) {
        let statement = insertStatement
        statement.bind(1, blob: row.id.bytes)
        statement.bind(2, row.blob)
        statement.bind(3, row.name)
        statement.bind(4, row.created)
        statement.bind(5, row.expires)
        statement.bind(6, Int64(row.offset))
        statement.bind(7, row.length.map { Int64($0) })
        statement.bind(8, blob: row.digests)
        statement.bind(9, blob: row.context)
        statement.bind(10, row.attributes)
        try statement.run()
    }

    /// Writes the mutable columns: expiry, offset, length, digests and result.
    func update(_ row: SessionRow) throws(SQLiteError) {
        let statement = updateStatement
        statement.bind(1, blob: row.id.bytes)
        statement.bind(2, row.expires)
        statement.bind(3, Int64(row.offset))
        statement.bind(4, row.length.map { Int64($0) })
        statement.bind(5, blob: row.digests)
        for column in Int32(6)...9 { statement.bind(column, Int64?.none) }
        switch row.end {
        case .committed(let generation, let created, let replaced):
            statement.bind(6, generation)
            statement.bind(7, created)
            statement.bind(8, replaced ? 1 : 0)
        case .closed(let record): statement.bind(9, blob: record)
        case nil: break
        }
        try statement.run()
    }

    func updateSystemMetadata(_ row: SessionRow) throws(SQLiteError) {
        updateSystemStatement.bind(1, blob: row.id.bytes)
        updateSystemStatement.bind(2, systemMetadata: row.attributes.system)
        try updateSystemStatement.run()
    }

    func delete(_ row: SessionRow) throws(SQLiteError) {
        deleteStatement.bind(1, blob: row.id.bytes)
        try deleteStatement.run()
    }

    private func rows(_ statement: SQLiteStatement, limit: Int = .max) throws(SQLiteError)
        -> [SessionRow]
    {
        defer { statement.reset() }
        var rows: [SessionRow] = []
        while rows.count < limit, try statement.step() {
            // Ignore rows of other programs.
            if let row = row(statement) { rows.append(row) }
        }
        return rows
    }

    private func row(_ statement: SQLiteStatement) -> SessionRow? {
        guard let id = statement.blob(0).flatMap({ UploadSessionID($0) }),
            let offset = UInt64(exactly: statement.int64(5))
        else { return nil }
        var end: SessionRow.End?
        if !statement.isNull(16) {
            end = .committed(
                generation: statement.int64(16), created: statement.int64(17), replaced: statement.int64(18) != 0)
        } else if let record = statement.blob(19) {
            end = .closed(record)
        }
        return SessionRow(
            blob: statement.int64(1), id: id, name: statement.text(2) ?? "", attributes: statement.attributes(9),
            created: statement.int64(3), expires: statement.int64(4), offset: offset,
            length: statement.isNull(6) ? nil : UInt64(exactly: statement.int64(6)),
            digests: statement.blob(7) ?? [], context: statement.blob(8) ?? [], end: end)
    }
}
