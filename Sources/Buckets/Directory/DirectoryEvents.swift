import System

extension DirectoryBucket: EventLog {
    public func recordEvents(_ filter: EventFilter?) async throws(BucketError) {
        committer.filter.withLock { $0 = filter }
        _ = try await change("", .startEvents, Preconditions())
    }

    public var knownBounds: EventBounds? {
        guard let directory = try? state.current() else { return nil }
        // The committer tells after its first batch with a directory.
        return directory.eventBounds.withLock { $0 }
    }

    public func eventBounds() async throws(BucketError) -> EventBounds {
        if let knownBounds { return knownBounds }
        guard let bounds = try await change("", .startEvents, Preconditions()).eventBounds else {
            throw BucketError(.internal, "an index without numbers of events")
        }
        return bounds
    }

    public func events(after sequence: Int64, limit: Int) async throws(BucketError) -> [BucketEvent] {
        let directory = try await openDirectory()
        do throws(SQLiteError) {
            return try await pool.run { () throws(SQLiteError) in
                try directory.index.events(after: sequence, limit: limit)
            }
        } catch { throw error.bucketError }
    }

    public func addEventObserver(_ observer: any EventObserver) {
        committer.observers.withLock { $0.append(observer) }
    }

    public func removeEventObserver(_ observer: any EventObserver) {
        committer.observers.withLock { $0.removeAll { $0 === observer } }
    }

    public func trimEvents(before time: Int64, keeping maximum: Int, limit: Int) async throws(BucketError) -> Int {
        let directory = try await openDirectory()
        let hasEvents: Bool
        do throws(SQLiteError) {
            hasEvents = try await pool.run { () throws(SQLiteError) in
                try directory.index.read { reader throws(SQLiteError) in try reader.hasEvents }
            }
        } catch { throw error.bucketError }
        // A bucket that never records any has no transaction for them.
        guard hasEvents else { return 0 }
        return try await change("", .trimEvents(before: time, keeping: maximum, limit: limit), Preconditions()).count
    }
}

extension IndexReader {
    /// The bytes of names and metadata after which a window ends: 256 KiB.
    private static let windowBytes = 256 * 1024

    var hasEvents: Bool {
        get throws(SQLiteError) { try connection.integer("SELECT EXISTS(SELECT 1 FROM events)") > 0 }
    }

    func events(after sequence: Int64, limit: Int) throws(SQLiteError) -> [BucketEvent] {
        let statement = try SQLiteStatement(connection, EventTable.window)
        statement.bind(1, sequence)
        statement.bind(2, Int64(limit))
        var found: [BucketEvent] = []
        var bytes = 0
        while bytes < IndexReader.windowBytes, try statement.step() {
            guard let event = EventTable.event(statement) else { continue }
            bytes += event.object.name.utf8.count + event.object.attributes.pairBytes
            found.append(event)
        }
        return found
    }
}
