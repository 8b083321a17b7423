/// The blobs that several objects have, because they are copies of each other, with the number of their owners beyond
/// the first. A blob without a row has one owner.
final class SharedBlobs {
    static let definition =
        "CREATE TABLE shared_blobs(blob INTEGER PRIMARY KEY, copies INTEGER NOT NULL) STRICT;"
    private let find: SQLiteStatement
    private let add: SQLiteStatement
    private let subtract: SQLiteStatement
    private let remove: SQLiteStatement

    init(_ connection: SQLiteConnection) throws(SQLiteError) {
        find = try SQLiteStatement(connection, "SELECT copies FROM shared_blobs WHERE blob = ?1")
        add = try SQLiteStatement(
            connection,
            "INSERT INTO shared_blobs VALUES (?1, 1) ON CONFLICT(blob) DO UPDATE SET copies = copies + 1")
        subtract = try SQLiteStatement(connection, "UPDATE shared_blobs SET copies = copies - 1 WHERE blob = ?1")
        remove = try SQLiteStatement(connection, "DELETE FROM shared_blobs WHERE blob = ?1")
    }

    func addOwner(of blob: Int64) throws(SQLiteError) {
        add.bind(1, blob)
        try add.run()
    }

    /// Returns whether the blob has other owners.
    func dropOwner(of blob: Int64) throws(SQLiteError) -> Bool {
        find.bind(1, blob)
        defer { find.reset() }
        guard try find.step() else { return false }
        let change = find.int64(0) > 1 ? subtract : remove
        change.bind(1, blob)
        try change.run()
        return true
    }
}
