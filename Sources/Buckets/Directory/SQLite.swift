import CSQLite
import Glibc

struct SQLiteError: Error {
    let code: Int32
    /// The underlying `errno`; 0 if it is not known.
    let systemCode: Int32
    let message: String
    let path: String

    /// - Parameter path: For a file that could not be opened, whose connection does not know its path.
    init(_ code: Int32, _ connection: OpaquePointer?, path: String? = nil) {
        self.code = code
        let known = connection.flatMap { sqlite3_db_filename($0, "main") }
        self.path = path ?? known.map { String(cString: $0) } ?? "index.sqlite"
        systemCode = connection.map { sqlite3_system_errno($0) } ?? 0
        message = connection.map { String(cString: sqlite3_errmsg($0)) } ?? ""
    }

    var bucketError: BucketError {
        let cause = "\(path): \(message) (SQLite code \(code), errno \(systemCode))"
        switch code & 0xff {
        case SQLITE_FULL: return BucketError(.insufficientStorage, cause)
        case SQLITE_NOMEM: return BucketError(.overloaded, cause)
        case SQLITE_IOERR, SQLITE_CANTOPEN: return BucketError(BucketError.code(of: systemCode), cause)
        case SQLITE_READONLY, SQLITE_BUSY, SQLITE_PERM, SQLITE_PROTOCOL: return BucketError(.unavailable, cause)
        default: return BucketError(.internal, cause)
        }
    }
}

/// A connection to a database file, without its own lock. The owner ensures that one thread uses it at a time.
final class SQLiteConnection {
    let handle: OpaquePointer

    /// Process-wide settings, set before SQLite's first use: no global lock around every allocation.
    private static let configured: Bool = sluice_sqlite_without_statistics() == SQLITE_OK

    /// Opens an existing file with a page cache of at most `cacheKiB`.
    init(_ path: String, cacheKiB: Int) throws(SQLiteError) {
        _ = SQLiteConnection.configured
        var opened: OpaquePointer?
        let flags =
            SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_EXRESCODE
        let code = sqlite3_open_v2(path, &opened, flags, nil)
        guard code == SQLITE_OK, let opened else {
            let error = SQLiteError(code, opened, path: path)
            sqlite3_close_v2(opened)
            throw error
        }
        handle = opened
        // The directory may have been replaced, so closing must not remove a log by its name.
        _ = sluice_sqlite_keep_log_on_close(handle)
        sqlite3_busy_timeout(handle, 1000)
        try execute("PRAGMA cache_size = -\(cacheKiB)")
    }

    deinit { sqlite3_close_v2(handle) }

    func execute(_ sql: String) throws(SQLiteError) {
        let code = sqlite3_exec(handle, sql, nil, nil, nil)
        if code != SQLITE_OK { throw SQLiteError(code, handle) }
    }

    /// The first column of the first row; 0 if there is no row.
    func integer(_ sql: String) throws(SQLiteError) -> Int64 {
        let statement = try SQLiteStatement(self, sql)
        return try statement.step() ? statement.int64(0) : 0
    }
}

/// A prepared statement. It borrows its connection.
final class SQLiteStatement {
    private let handle: OpaquePointer
    private let connection: SQLiteConnection

    init(_ connection: SQLiteConnection, _ sql: String) throws(SQLiteError) {
        var prepared: OpaquePointer?
        let code = sqlite3_prepare_v3(connection.handle, sql, -1, UInt32(SQLITE_PREPARE_PERSISTENT), &prepared, nil)
        guard code == SQLITE_OK, let prepared else { throw SQLiteError(code, connection.handle) }
        handle = prepared
        self.connection = connection
    }

    deinit { sqlite3_finalize(handle) }

    /// Advances to the next row; false at the end.
    func step() throws(SQLiteError) -> Bool {
        switch sqlite3_step(handle) {
        case SQLITE_ROW: return true
        case SQLITE_DONE: return false
        case let code: throw SQLiteError(code, connection.handle)
        }
    }

    /// Runs the statement to its end and resets it, even if it fails.
    func run() throws(SQLiteError) {
        defer { reset() }
        while try step() {}
    }

    func reset() { sqlite3_reset(handle) }

    /// The virtual machine steps of the statement so far: its cost, independent of the clock.
    var machineSteps: Int { Int(sqlite3_stmt_status(handle, SQLITE_STMTSTATUS_VM_STEP, 0)) }

    // MARK: Parameters (numbered from 1)

    func bind(_ index: Int32, _ value: Int64?) {
        if let value {
            sqlite3_bind_int64(handle, index, value)
        } else {
            sqlite3_bind_null(handle, index)
        }
    }

    func bind(_ index: Int32, _ value: String?) {
        guard var value else {
            sqlite3_bind_null(handle, index)
            return
        }
        value.withUTF8 { utf8 in
            utf8.withMemoryRebound(to: CChar.self) {
                _ = sluice_bind_text(handle, index, $0.baseAddress, Int32($0.count))
            }
        }
    }

    func bind(_ index: Int32, text: [UInt8]) {
        text.withUnsafeBufferPointer { bytes in
            bytes.withMemoryRebound(to: CChar.self) {
                _ = sluice_bind_text(handle, index, $0.baseAddress, Int32($0.count))
            }
        }
    }

    func bind(_ index: Int32, blob: [UInt8]?) {
        guard let blob else {
            sqlite3_bind_null(handle, index)
            return
        }
        blob.withUnsafeBytes { bind(index, blob: $0) }
    }

    func bind(_ index: Int32, blob: UnsafeRawBufferPointer) {
        _ = sluice_bind_blob(handle, index, blob.baseAddress, Int32(blob.count))
    }

    // MARK: Columns (numbered from 0)

    func isNull(_ column: Int32) -> Bool { sqlite3_column_type(handle, column) == SQLITE_NULL }

    func int64(_ column: Int32) -> Int64 { sqlite3_column_int64(handle, column) }

    func text(_ column: Int32) -> String? {
        guard let bytes = sqlite3_column_text(handle, column) else { return nil }
        let count = Int(sqlite3_column_bytes(handle, column))
        return String(decoding: UnsafeBufferPointer(start: bytes, count: count), as: UTF8.self)
    }

    func blob(_ column: Int32) -> [UInt8]? {
        isNull(column) ? nil : withBytes(column) { [UInt8]($0) }
    }

    /// Accesses the bytes of a text or blob in SQLite's memory, valid until the next step.
    func withBytes<Result>(_ column: Int32, _ body: (UnsafeRawBufferPointer) -> Result) -> Result {
        let start = sqlite3_column_blob(handle, column)
        let count = Int(sqlite3_column_bytes(handle, column))
        return body(UnsafeRawBufferPointer(start: start, count: start == nil ? 0 : count))
    }
}
