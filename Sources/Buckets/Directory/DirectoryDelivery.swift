import CSQLite
import System
import Wire

/// The committer's operations on what subscriptions have settled.
enum DeliveryChange: Sendable {
    /// Begins subscriptions without a cursor at the newest event.
    case begin([String])
    case settle(EventSettlement)
    case replay(String, from: Int64)
    case replayDead(String, limit: Int)
    case removeDead(String, before: Int64)
    case removeOthers([String], since: Int64)

    /// Whether the change is rejected on a nearly full disk.
    var needsRoom: Bool {
        if case .settle(let settlement) = self { !settlement.kept.isEmpty } else { false }
    }
}

extension DirectoryBucket: EventDeliveryLog {
    public func beginSubscriptions(_ names: [String], recording filter: EventFilter?) {
        committer.filter.withLock { $0 = filter }
        submit(.startEvents)
        if !names.isEmpty { submit(.settleEvents(.begin(names))) }
    }

    public func beginSubscription(_ name: String) async throws(BucketError) {
        _ = try await change("", .settleEvents(.begin([name])), Preconditions())
    }

    public func subscriptionProgress(_ name: String) async throws(BucketError) -> SubscriptionProgress? {
        let directory = try await openDirectory()
        do throws(SQLiteError) {
            return try await pool.run { () throws(SQLiteError) in
                var progress = try directory.index.read { reader throws(SQLiteError) in try reader.progress(of: name) }
                progress?.history = directory.history
                return progress
            }
        } catch { throw error.bucketError }
    }

    public func settleEvents(_ settlement: EventSettlement) async throws(BucketError) {
        _ = try await change("", .settleEvents(.settle(settlement)), Preconditions())
    }

    public func replayEvents(_ name: String, _ replay: EventReplay) async throws(BucketError) -> Int {
        let from: Int64
        switch replay {
        case .dead(let limit):
            return try await change("", .settleEvents(.replayDead(name, limit: limit)), Preconditions()).count
        case .from(let sequence): from = sequence
        case .since(let time):
            let directory = try await openDirectory()
            let found: Int64?
            do throws(SQLiteError) {
                found = try await pool.run { () throws(SQLiteError) in
                    try directory.index.read { reader throws(SQLiteError) in try reader.firstEvent(since: time) }
                }
            } catch { throw error.bucketError }
            guard let found else { return 0 }
            from = found
        }
        return try await change("", .settleEvents(.replay(name, from: from)), Preconditions()).count
    }

    public func removeDeadEvents(_ name: String, before time: Int64) async throws(BucketError) -> Int {
        try await change("", .settleEvents(.removeDead(name, before: time)), Preconditions()).count
    }

    public func eventRetries(_ name: String, dead: Bool, limit: Int) async throws(BucketError)
        -> [(EventRetry, BucketEvent)]
    {
        let directory = try await openDirectory()
        do throws(SQLiteError) {
            return try await pool.run { () throws(SQLiteError) in
                try directory.index.read { reader throws(SQLiteError) in
                    try reader.retries(of: name, dead: dead, limit: limit)
                }
            }
        } catch { throw error.bucketError }
    }

    public func removeSubscriptions(except names: [String], since time: Int64) async throws(BucketError) {
        let directory = try await openDirectory()
        let isNeeded: Bool
        do throws(SQLiteError) {
            isNeeded = try await pool.run { () throws(SQLiteError) in
                try directory.index.read { reader throws(SQLiteError) in
                    try reader.mustNoteAbsence(of: names, since: time)
                }
            }
        } catch { throw error.bucketError }
        guard isNeeded else { return }
        _ = try await change("", .settleEvents(.removeOthers(names, since: time)), Preconditions())
    }
}

extension DirectoryTransaction {
    /// Only within the committer's transaction.
    func apply(_ change: DeliveryChange) throws(SQLiteError) -> Result {
        let table = try writer.eventTable()
        var outcome = DirectoryChange.Outcome()
        switch change {
        case .begin(let names):
            for name in names {
                try table.run(
                    "INSERT OR IGNORE INTO event_cursors(subscription, settled) VALUES (?1, ?2)", name,
                    table.bounds.newest)
            }
        case .settle(let settlement): try settle(settlement, table)
        case .replay(let name, let from):
            let from = max(1, min(from, table.bounds.newest + 1))
            try table.run(
                "UPDATE event_cursors SET settled = min(settled, ?2) WHERE subscription = ?1", name, from - 1)
            try table.run("DELETE FROM event_retries WHERE subscription = ?1 AND sequence >= ?2", name, from)
            outcome.count = Int(clamping: table.bounds.newest - from + 1)
            try renew(name, table)
        case .replayDead(let name, let limit):
            outcome.count = try table.run(
                """
                UPDATE event_retries SET dead = 0, attempts = 0, due = 0 WHERE subscription = ?1 AND sequence IN (
                    SELECT sequence FROM event_retries WHERE subscription = ?1 AND dead = 1 ORDER BY sequence LIMIT ?2)
                """, name, Int64(limit))
            try renew(name, table)
        case .removeDead(let name, let time):
            outcome.count = try table.run(
                "DELETE FROM event_retries WHERE subscription = ?1 AND dead = 1 AND due < ?2", name, time)
        case .removeOthers(let names, let time):
            try table.removeSubscriptions(except: names, since: time, now: clock())
        }
        return .success(outcome)
    }

    /// Events that are sent again wait as long as new ones.
    private func renew(_ name: String, _ table: EventTable) throws(SQLiteError) {
        try table.run("UPDATE event_cursors SET since = ?2 WHERE subscription = ?1", name, clock())
    }

    private func settle(_ settlement: EventSettlement, _ table: EventTable) throws(SQLiteError) {
        let name = settlement.subscription
        // The directory may have been replaced by an older copy, whose events have other numbers.
        if settlement.history != directory.history { return }
        let isKnown = try table.run(
            "UPDATE event_cursors SET settled = max(settled, ?2) WHERE subscription = ?1", name, settlement.cursor)
        // The subscription was removed meanwhile: rows of it would keep events for ever.
        guard isKnown > 0 else { return }
        try table.keep(settlement.kept, of: name)
        try table.settle(settlement.settled, of: name)
    }
}

extension EventTable {
    /// Runs a statement with a subscription's name and a number. Returns the number of changed rows.
    @discardableResult
    func run(_ sql: String, _ name: String, _ number: Int64) throws(SQLiteError) -> Int {
        let statement = try SQLiteStatement(connection, sql)
        statement.bind(1, name)
        statement.bind(2, number)
        try statement.run()
        return Int(sqlite3_changes(connection.handle))
    }

    func keep(_ retries: [EventRetry], of name: String) throws(SQLiteError) {
        if retries.isEmpty { return }
        let statement = try SQLiteStatement(
            connection, "INSERT OR REPLACE INTO event_retries VALUES (?1, ?2, ?3, ?4, ?5, ?6)")
        statement.bind(1, name)
        for retry in retries {
            statement.bind(2, retry.sequence)
            statement.bind(3, Int64(retry.attempts))
            statement.bind(4, retry.due)
            statement.bind(5, retry.isDead ? 1 : 0)
            statement.bind(6, retry.cause)
            try statement.run()
        }
    }

    func settle(_ sequences: [Int64], of name: String) throws(SQLiteError) {
        if sequences.isEmpty { return }
        let statement = try SQLiteStatement(
            connection, "DELETE FROM event_retries WHERE subscription = ?1 AND sequence = ?2")
        statement.bind(1, name)
        for sequence in sequences {
            statement.bind(2, sequence)
            try statement.run()
        }
    }

    /// Notes which subscriptions are absent, and forgets those that have been since a time.
    func removeSubscriptions(except names: [String], since time: Int64, now: Int64) throws(SQLiteError) {
        let list = names.indices.map { "?\($0 + 3)" }.joined(separator: ", ")
        for sql in [
            "UPDATE event_cursors SET absent = NULL WHERE absent NOTNULL AND subscription IN (\(list))",
            "UPDATE event_cursors SET absent = ?1 WHERE absent ISNULL AND subscription NOT IN (\(list))",
            "DELETE FROM event_cursors WHERE absent <= ?2 AND subscription NOT IN (\(list))",
            "DELETE FROM event_retries WHERE subscription NOT IN (SELECT subscription FROM event_cursors)",
        ] {
            let statement = try SQLiteStatement(connection, sql)
            if sql.contains("?1") { statement.bind(1, now) }
            if sql.contains("?2") { statement.bind(2, time) }
            if sql.contains("(\(list))") {
                for (index, name) in names.enumerated() { statement.bind(Int32(index + 3), name) }
            }
            try statement.run()
        }
    }
}

extension IndexReader {
    func progress(of name: String) throws(SQLiteError) -> SubscriptionProgress? {
        let cursor = try SQLiteStatement(connection, "SELECT settled, since FROM event_cursors WHERE subscription = ?1")
        cursor.bind(1, name)
        guard try cursor.step() else { return nil }
        var progress = SubscriptionProgress(cursor: cursor.int64(0), since: cursor.int64(1))
        let retries = try SQLiteStatement(
            connection,
            """
            SELECT r.sequence, r.attempts, r.due, r.cause, e.name, e.at
            FROM event_retries AS r JOIN events AS e ON e.sequence = r.sequence
            WHERE r.subscription = ?1 AND ifnull(r.dead, 0) = 0 ORDER BY r.sequence
            """)
        retries.bind(1, name)
        while try retries.step() {
            guard let object = retries.text(4) else { continue }
            progress.waiting.append(
                .init(
                    EventRetry(
                        sequence: retries.int64(0), attempts: Int(retries.int64(1)), due: retries.int64(2),
                        cause: retries.text(3)), name: object, time: retries.int64(5)))
        }
        let dead = try SQLiteStatement(
            connection, "SELECT sequence FROM event_retries WHERE subscription = ?1 AND dead = 1")
        dead.bind(1, name)
        while try dead.step() {
            progress.dead += 1
            if dead.int64(0) > progress.cursor { progress.deadAbove.append(dead.int64(0)) }
        }
        return progress
    }

    func retries(of name: String, dead: Bool, limit: Int) throws(SQLiteError) -> [(EventRetry, BucketEvent)] {
        let statement = try SQLiteStatement(
            connection,
            """
            SELECT sequence, attempts, due, cause FROM event_retries
            WHERE subscription = ?1 AND ifnull(dead, 0) = ?2 ORDER BY sequence LIMIT ?3
            """)
        statement.bind(1, name)
        statement.bind(2, dead ? 1 : 0)
        statement.bind(3, Int64(limit))
        var found: [(EventRetry, BucketEvent)] = []
        while try statement.step() {
            let retry = EventRetry(
                sequence: statement.int64(0), attempts: Int(statement.int64(1)), due: statement.int64(2),
                isDead: dead, cause: statement.text(3))
            guard let event = try events(after: retry.sequence - 1, limit: 1).first, event.sequence == retry.sequence
            else { continue }
            found.append((retry, event))
        }
        return found
    }

    /// Whether the notes about absent subscriptions would change.
    func mustNoteAbsence(of names: [String], since time: Int64) throws(SQLiteError) -> Bool {
        let cursors = try SQLiteStatement(connection, "SELECT subscription, absent FROM event_cursors")
        while try cursors.step() {
            let isPresent = names.contains { BytewiseString.areEqual($0, cursors.text(0) ?? "") }
            let isNoted = !cursors.isNull(1)
            if isPresent == isNoted || isNoted && cursors.int64(1) <= time { return true }
        }
        return false
    }

    func firstEvent(since time: Int64) throws(SQLiteError) -> Int64? {
        let statement = try SQLiteStatement(connection, "SELECT min(sequence) FROM events WHERE at >= ?1")
        statement.bind(1, time)
        return try statement.step() && !statement.isNull(0) ? statement.int64(0) : nil
    }
}
