import CSQLite

/// The tables of recorded changes. Only used on the committer's thread, within its transactions.
///
/// There is one writer, so numbers are in the order of the commits, and a reader of a number has seen all lower ones.
final class EventTable {
    /// Added to existing files when they are opened. Versions that do not know the tables ignore them: they record
    /// nothing, which `event_state` shows afterwards by the counters of the last transaction that was recorded.
    static let definition = """
        CREATE TABLE IF NOT EXISTS events(
            sequence INTEGER PRIMARY KEY AUTOINCREMENT,
            type INTEGER NOT NULL,
            at INTEGER NOT NULL,
            other INTEGER,
            name TEXT NOT NULL,
            generation INTEGER NOT NULL,
            metageneration INTEGER NOT NULL,
            size INTEGER NOT NULL,
            created INTEGER NOT NULL,
            updated INTEGER NOT NULL,
            md5 BLOB NOT NULL,
            crc32c INTEGER NOT NULL,
            content_type TEXT,
            cache_control TEXT,
            content_disposition TEXT,
            content_encoding TEXT,
            content_language TEXT,
            custom BLOB
        ) STRICT;
        CREATE TABLE IF NOT EXISTS event_cursors(
            subscription TEXT NOT NULL PRIMARY KEY, settled INTEGER NOT NULL, since INTEGER NOT NULL DEFAULT 0,
            absent INTEGER
        ) STRICT, WITHOUT ROWID;
        CREATE TABLE IF NOT EXISTS event_retries(
            subscription TEXT NOT NULL,
            sequence INTEGER NOT NULL,
            attempts INTEGER NOT NULL,
            due INTEGER NOT NULL,
            dead INTEGER,
            cause TEXT,
            PRIMARY KEY(subscription, sequence)
        ) STRICT, WITHOUT ROWID;
        CREATE INDEX IF NOT EXISTS event_retries_by_sequence ON event_retries(sequence);
        CREATE TABLE IF NOT EXISTS event_state(
            one INTEGER PRIMARY KEY CHECK (one = 1),
            start INTEGER NOT NULL,
            generation INTEGER,
            objects INTEGER,
            bytes INTEGER
        ) STRICT;
        INSERT OR IGNORE INTO event_state(one, start) VALUES (1, 0);
        """

    /// The columns that an event and an object have in common.
    private static let shared = """
        name, generation, metageneration, size, created, updated, md5, crc32c, content_type, cache_control, \
        content_disposition, content_encoding, content_language, custom
        """
    /// The columns as ``IndexSchema/row(_:_:)`` reads them, and those of the event.
    static let window = """
        SELECT generation, metageneration, size, created, updated, md5, crc32c, NULL, content_type, cache_control, \
        content_disposition, content_encoding, content_language, custom, NULL, sequence, type, at, other, name \
        FROM events WHERE sequence > ?1 ORDER BY sequence LIMIT ?2
        """
    /// Whether a history must be continued or ended: by a file that some version recorded completely.
    static let isContinued = "SELECT count(*) FROM event_state WHERE generation >= 0"

    let connection: SQLiteConnection
    private let insert: SQLiteStatement
    private let saveMark: SQLiteStatement

    /// Which events are recorded.
    private var filter: EventFilter?
    /// Whether the transaction has changes of which not all are recorded.
    private var hasGap = false
    /// After this transaction, and after the last one.
    private(set) var bounds: EventBounds
    private var savedBounds: EventBounds
    /// Whether every change since ``EventBounds/start`` is recorded.
    private var isMarked: Bool
    private var savedIsMarked: Bool
    /// Whether the file says so, perhaps wrongly.
    private var isMarkedInFile: Bool
    private var pending: [(kind: BucketEvent.Kind, name: String)] = []
    private var committed: [(kind: BucketEvent.Kind, name: String)] = []

    init(_ connection: SQLiteConnection) throws(SQLiteError) {
        self.connection = connection
        insert = try SQLiteStatement(
            connection,
            """
            INSERT INTO events(type, at, other, \(EventTable.shared))
            SELECT ?2, ?3, ?4, \(EventTable.shared) FROM objects WHERE name = ?1
            """)
        saveMark = try SQLiteStatement(
            connection,
            "UPDATE event_state SET (generation, objects, bytes) = (SELECT last_generation, objects, bytes FROM state)")
        bounds = EventBounds(
            start: try connection.integer("SELECT start FROM event_state"),
            newest: try connection.integer("SELECT ifnull(max(seq), 0) FROM sqlite_sequence WHERE name = 'events'"))
        savedBounds = bounds
        isMarkedInFile = try connection.integer(EventTable.isContinued) > 0
        // An older version has written meanwhile, if the counters differ. The next transaction begins a new history.
        isMarked = isMarkedInFile ? try connection.integer(EventTable.isCurrent) > 0 : false
        savedIsMarked = isMarked
    }

    private static let isCurrent = """
        SELECT (generation, objects, bytes) IS (SELECT last_generation, objects, bytes FROM state) FROM event_state
        """

    /// As of the last commit; nil if the next transaction begins a new history first.
    var knownBounds: EventBounds? { filter?.isComplete == true && !isMarked ? nil : bounds }

    // MARK: Transactions

    /// Begins a transaction with changes. Begins a new history if the filter is complete and there is none.
    func begin(_ filter: EventFilter?) throws(SQLiteError) {
        self.filter = filter
        guard let filter, filter.isComplete, !isMarked else { return }
        let isFirst = try connection.integer("SELECT count(*) FROM event_state WHERE generation IS NULL") > 0
        // Skips a number, so that a reader that has read up to the last one must start over.
        if bounds.newest > 0 || !isFirst {
            bounds.newest += 1
            try connection.execute(
                """
                INSERT INTO sqlite_sequence(name, seq) SELECT 'events', 0
                WHERE NOT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = 'events');
                UPDATE sqlite_sequence SET seq = \(bounds.newest) WHERE name = 'events'
                """)
        }
        try move(start: bounds.newest)
        try saveMark.run()
        isMarked = true
    }

    private func move(start: Int64) throws(SQLiteError) {
        bounds.start = start
        try connection.execute("UPDATE event_state SET start = \(start)")
    }

    /// Saves to which state of the index the history leads. Called before each commit.
    /// - Parameter hasChanged: Whether the counters of the index have changed.
    func save(_ hasChanged: Bool) throws(SQLiteError) {
        if hasGap, isMarkedInFile {
            try connection.execute("UPDATE event_state SET generation = -1")
            isMarked = false
        } else if hasChanged, filter?.isComplete == true {
            try saveMark.run()
        }
    }

    func commit() {
        if isMarked { isMarkedInFile = true } else if hasGap { isMarkedInFile = false }
        hasGap = false
        savedBounds = bounds
        savedIsMarked = isMarked
        committed += pending
        pending = []
    }

    func rollback() {
        hasGap = false
        bounds = savedBounds
        isMarked = savedIsMarked
        pending = []
    }

    /// What was recorded since the last call; nil if nothing was.
    func takeCommitted() -> RecordedEvents? {
        if committed.isEmpty { return nil }
        defer { committed = [] }
        return RecordedEvents(committed, last: bounds.newest)
    }

    // MARK: Rows

    /// Records the object of this name as it is in the index now, if the filter wants it.
    /// - Parameter time: Microseconds since 1970.
    func record(_ kind: BucketEvent.Kind, of name: String, at time: Int64, other: Int64?) throws(SQLiteError) {
        hasGap = hasGap || filter?.isComplete != true
        guard let filter, filter.wants(kind, name) else { return }
        insert.bind(1, name)
        insert.bind(2, kind.rawValue)
        insert.bind(3, time)
        insert.bind(4, other)
        try insert.run()
        bounds.newest = sqlite3_last_insert_rowid(connection.handle)
        pending.append((kind, name))
    }

    /// Deletes the oldest rows (``EventLog/trimEvents(before:keeping:limit:)``).
    func trim(before time: Int64, keeping maximum: Int, limit: Int) throws(SQLiteError) -> Int {
        var start = bounds.start
        var count = 0
        let oldest = try SQLiteStatement(
            connection,
            """
            SELECT sequence, at FROM events WHERE sequence > ?1
            AND sequence <= ifnull((SELECT min(settled) FROM event_cursors), ?2) ORDER BY sequence LIMIT ?3
            """)
        oldest.bind(1, start)
        oldest.bind(2, bounds.newest)
        oldest.bind(3, Int64(limit))
        let isSurplus = bounds.newest - Int64(maximum)
        while try oldest.step(), oldest.int64(1) < time || oldest.int64(0) <= isSurplus {
            start = oldest.int64(0)
            count += 1
        }
        oldest.reset()
        let remove = try SQLiteStatement(
            connection,
            """
            DELETE FROM events WHERE sequence IN (
                SELECT sequence FROM events
                WHERE sequence <= min(?1, ifnull((SELECT min(settled) FROM event_cursors), ?1))
                AND NOT EXISTS (SELECT 1 FROM event_retries WHERE event_retries.sequence = events.sequence) LIMIT ?2)
            """)
        remove.bind(1, start)
        remove.bind(2, Int64(limit))
        try remove.run()
        let removed = Int(sqlite3_changes(connection.handle))
        if start != bounds.start { try move(start: start) }
        return max(count, removed)
    }

    /// Reads the current row of ``window``.
    static func event(_ statement: SQLiteStatement) -> BucketEvent? {
        guard let kind = BucketEvent.Kind(rawValue: statement.int64(16)), let name = statement.text(19) else {
            return nil
        }
        return BucketEvent(
            sequence: statement.int64(15), kind: kind, time: statement.int64(17),
            object: IndexSchema.row(statement, name).metadata,
            otherGeneration: statement.isNull(18) ? nil : statement.int64(18))
    }
}
