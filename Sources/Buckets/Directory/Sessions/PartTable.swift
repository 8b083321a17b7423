import Wire

/// A durable part of an upload.
struct PartRow: Sendable, Equatable {
    let number: Int
    let size: UInt64
    /// 16 bytes.
    let md5: [UInt8]
    let crc32c: UInt32
    /// Milliseconds since 1970.
    let updated: Int64
    /// The requested checksum.
    var checksum: PartChecksum?
    /// The blob with only this part; nil if the bytes are in the upload's blob.
    var blob: Int64?
    /// Where they begin in that blob.
    var offset: UInt64

    var etag: String { Hexadecimal.encode(md5) }

    var part: Part {
        Part(number: number, size: size, etag: etag, crc32c: crc32c, updated: updated, checksum: checksum)
    }

    /// The range of the upload's blob that has the bytes; nil if another blob has them.
    var place: Range<UInt64>? { blob == nil ? offset..<offset + size : nil }
}

/// The index table of the parts of uploads. Only used on the committer's thread, within its transactions.
final class PartTable {
    /// `upload` is the blob of the upload's session.
    static let definition = """
        CREATE TABLE parts(
            upload INTEGER NOT NULL,
            number INTEGER NOT NULL,
            size INTEGER NOT NULL,
            md5 BLOB NOT NULL,
            crc32c INTEGER NOT NULL,
            updated INTEGER NOT NULL,
            blob INTEGER,
            offset INTEGER NOT NULL,
            checksum BLOB,
            PRIMARY KEY(upload, number)
        ) STRICT, WITHOUT ROWID;
        """
    /// Adds the column that older tables lack.
    static let addChecksum = "ALTER TABLE parts ADD COLUMN checksum BLOB"

    private static let columns = "number, size, md5, crc32c, updated, blob, offset, checksum"

    private let findStatement: SQLiteStatement
    private let listStatement: SQLiteStatement
    private let putStatement: SQLiteStatement
    private let totalStatement: SQLiteStatement
    private let removeStatement: SQLiteStatement

    init(_ connection: SQLiteConnection) throws(SQLiteError) {
        func make(_ sql: String) throws(SQLiteError) -> SQLiteStatement {
            try SQLiteStatement(connection, sql)
        }
        let all = "SELECT \(PartTable.columns) FROM parts WHERE upload = ?1"
        findStatement = try make("\(all) AND number = ?2")
        listStatement = try make("\(all) ORDER BY number")
        putStatement = try make(
            "INSERT OR REPLACE INTO parts(upload, \(PartTable.columns)) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)")
        totalStatement = try make("SELECT ifnull(sum(size), 0) FROM parts WHERE upload = ?1")
        removeStatement = try make("DELETE FROM parts WHERE upload = ?1")
    }

    func find(_ upload: Int64, _ number: Int) throws(SQLiteError) -> PartRow? {
        findStatement.bind(1, upload)
        findStatement.bind(2, Int64(number))
        defer { findStatement.reset() }
        return try findStatement.step() ? row(findStatement) : nil
    }

    func list(_ upload: Int64) throws(SQLiteError) -> [PartRow] {
        listStatement.bind(1, upload)
        defer { listStatement.reset() }
        var rows: [PartRow] = []
        while try listStatement.step() { rows.append(row(listStatement)) }
        return rows
    }

    /// The size of all parts in bytes.
    func total(_ upload: Int64) throws(SQLiteError) -> UInt64 {
        totalStatement.bind(1, upload)
        defer { totalStatement.reset() }
        return try totalStatement.step() ? UInt64(totalStatement.int64(0)) : 0
    }

    /// Adds a row, or replaces the one of its number.
    func put(_ upload: Int64, _ row: PartRow) throws(SQLiteError) {
        putStatement.bind(1, upload)
        putStatement.bind(2, Int64(row.number))
        putStatement.bind(3, Int64(row.size))
        putStatement.bind(4, blob: row.md5)
        putStatement.bind(5, Int64(row.crc32c))
        putStatement.bind(6, row.updated)
        putStatement.bind(7, row.blob)
        putStatement.bind(8, Int64(row.offset))
        putStatement.bind(9, blob: row.checksum?.stored)
        try putStatement.run()
    }

    func removeAll(_ upload: Int64) throws(SQLiteError) {
        removeStatement.bind(1, upload)
        try removeStatement.run()
    }

    private func row(_ statement: SQLiteStatement) -> PartRow {
        PartRow(
            number: Int(statement.int64(0)), size: UInt64(statement.int64(1)), md5: statement.blob(2) ?? [],
            crc32c: UInt32(truncatingIfNeeded: statement.int64(3)), updated: statement.int64(4),
            checksum: statement.blob(7).flatMap { PartChecksum(stored: $0) },
            blob: statement.isNull(5) ? nil : statement.int64(5), offset: UInt64(statement.int64(6)))
    }
}

/// As a column: a byte with the algorithm's index, then the value.
extension PartChecksum {
    /// In a fixed order, since their indices are stored.
    private static let algorithms: [ChecksumAlgorithm] = [.crc32, .crc32c, .crc64nvme, .sha1, .sha256]

    fileprivate var stored: [UInt8] {
        [UInt8(PartChecksum.algorithms.firstIndex(of: algorithm) ?? 0)] + value
    }

    fileprivate init?(stored bytes: [UInt8]) {
        guard let index = bytes.first, Int(index) < PartChecksum.algorithms.count,
            bytes.count == PartChecksum.algorithms[Int(index)].size + 1
        else { return nil }
        self.init(PartChecksum.algorithms[Int(index)], Array(bytes.dropFirst()))
    }
}
