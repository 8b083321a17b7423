import System

/// A pending upload of a directory: a row in the index and a blob. Its calls are serialized. No file is open between
/// them.
///
/// Safety: all state is in locks, here and in the subclasses.
class DirectorySession: PendingUpload, @unchecked Sendable {
    private struct Known {
        /// The durable state; nil if it must be read.
        var row: SessionRow?
        var directory: OpenDirectory?
        /// The order of the last adopted change.
        var order: UInt64 = 0
    }

    let id: UploadSessionID
    let bucket: DirectoryBucket
    private let isInParts: Bool
    private let turn = AsyncTurn()
    private let known = Lock(Known())

    init(_ id: UploadSessionID, _ bucket: DirectoryBucket, isInParts: Bool) {
        self.id = id
        self.bucket = bucket
        self.isInParts = isInParts
    }

    // MARK: For subclasses

    /// Stops what is being received, before another call continues.
    /// - Parameter keeping: Whether received bytes are kept if possible.
    /// - Returns: Whether it has ended in time.
    func stop(keeping: Bool) async -> Bool { true }

    /// Adopts what a change has found besides the row.
    func adopt(parts: [PartRow], at order: UInt64) {}

    /// Prepares the blob for a commit: it must end where the object ends, with all bytes durable.
    func prepare(_ row: SessionRow, _ facts: ContentFacts, _ directory: OpenDirectory) async throws(SessionError) {}

    /// The object exists. `row` is the state after the commit.
    func committed(_ row: SessionRow, _ directory: OpenDirectory) async {}

    /// The facts of the object, if it can be committed.
    func facts(_ row: SessionRow) throws(SessionError) -> ContentFacts {
        try result(of: { () throws(BucketError) in try row.facts() })
    }

    /// What clients of S3 see of the object, apart from `Expires`.
    func s3Properties() -> S3Properties? { nil }

    // MARK: Durable state

    /// Adopts the result of a change, unless that of a later one was adopted. Returns the row; nil if the session does not
    /// exist.
    @discardableResult
    func adopt(_ outcome: DirectoryChange.Outcome) -> SessionRow? {
        let row = outcome.sessions.first
        known.withLock { known in
            guard outcome.order >= known.order else { return }
            known.order = outcome.order
            known.row = row
            known.directory = outcome.directory
        }
        return row
    }

    /// After a failed change the state is unknown.
    func forget() { known.withLock { $0.row = nil } }

    /// Makes a change and adopts its result.
    /// - Throws: ``SessionError/notFound`` if the session does not exist.
    func change(
        _ change: SessionChange, _ directory: OpenDirectory?, _ name: String = "",
        _ preconditions: Preconditions = Preconditions()
    ) async throws(SessionError) -> SessionRow {
        let outcome: DirectoryChange.Outcome
        do throws(SessionError) {
            outcome = try await bucket.sessionChange(.session(change, directory), name, preconditions)
        } catch {
            forget()
            throw error
        }
        guard let row = adopt(outcome) else { throw .notFound }
        return row
    }

    var context: [UInt8]? { known.withLock { $0.row?.context } }

    /// The number of durable bytes, if it is known.
    var durable: UInt64 { known.withLock { $0.row?.offset ?? 0 } }

    var isExpired: Bool { bucket.clock() / 1_000_000 >= id.expires }

    /// The durable state, which is read if it is not known for `directory`; nil for any directory.
    private func row(_ directory: OpenDirectory?) async throws(SessionError) -> SessionRow {
        let found = known.withLock { directory == nil || $0.directory === directory ? $0.row : nil }
        let row: SessionRow
        if let found {
            row = found
        } else {
            let outcome = try await bucket.sessionChange(.session(.load(id), nil), "")
            guard let read = adopt(outcome) else { throw .notFound }
            adopt(parts: outcome.parts, at: outcome.order)
            row = read
        }
        guard row.expires > bucket.clock() / 1_000_000, row.isInParts == isInParts else { throw .notFound }
        return row
    }

    // MARK: Serialized calls

    /// Waits for its turn, stops what is being received, and runs `body` with the durable state.
    /// - Parameters:
    ///   - keeping: Whether received bytes are kept; nil to go on receiving.
    ///   - givingUp: Whether to return early if the client goes away before the turn comes.
    func inTurn<Result>(
        keeping: Bool? = true, givingUp: Bool = false,
        _ body: (SessionRow, OpenDirectory) async throws(SessionError) -> Result
    ) async throws(SessionError) -> Result {
        guard await turn.take(givingUp: givingUp) else { throw .clientGone }
        defer { turn.end() }
        if let keeping, await !stop(keeping: keeping) {
            throw .store(BucketError(.timedOut, "the append in progress does not end"))
        }
        let directory = try await inStore { () throws(BucketError) in try await bucket.openDirectory() }
        // If the directory was just replaced, a change fails.
        return try await body(try await row(directory), directory)
    }

    /// - Throws: ``SessionError/notFound`` if the session does not exist.
    func open() async throws(SessionError) {
        // Opening a session does not end its append.
        guard await turn.take(givingUp: true) else { throw .clientGone }
        defer { turn.end() }
        _ = try await row(nil)
    }

    func state() async throws(SessionError) -> SessionState {
        try await inTurn(keeping: isInParts ? nil : true, givingUp: true) { row, _ throws(SessionError) in
            try result(of: { () throws(BucketError) in try row.state() })
        }
    }

    private func result<Value>(of body: () throws(BucketError) -> Value) throws(SessionError) -> Value {
        do throws(BucketError) { return try body() } catch { throw .store(error) }
    }

    // MARK: Ending

    func finish() async throws(SessionError) -> ContentFacts {
        try await inTurn { row, _ throws(SessionError) in
            if case .closed = row.end { throw .finished }
            return row.end == nil ? try facts(row) : try result(of: { () throws(BucketError) in try row.facts() })
        }
    }

    func commit(
        _ facts: ContentFacts, _ preconditions: Preconditions, resultUntil: Int64
    ) async throws(SessionError) -> CommitResult {
        try await inTurn { row, directory throws(SessionError) in
            if case .closed = row.end { throw .finished }
            if row.end == nil { try await prepare(row, facts, directory) }
            let change = SessionChange.commit(id, facts, s3Properties(), until: resultUntil)
            let ended = try await self.change(change, directory, row.name, preconditions)
            if row.end == nil, ended.offset > 0 { await committed(ended, directory) }
            return try result { () throws(BucketError) in
                guard var result = try ended.result() else {
                    throw BucketError(.internal, "a commit without an object")
                }
                result.isRepeated = row.end != nil
                return result
            }
        }
    }

    func close(_ record: [UInt8], until: Int64) async throws(SessionError) {
        guard record.count <= SessionPlan.maximumContext else {
            throw .store(BucketError(.internal, "a record of \(record.count) bytes"))
        }
        try await inTurn(keeping: false) { row, directory throws(SessionError) in
            if row.end != nil { throw .finished }
            let change = SessionChange.close(id, record: record, until: until)
            let ended = try await self.change(change, directory)
            guard case .closed = ended.end else { throw .finished }
        }
    }

    func cancel() async throws(SessionError) {
        try await inTurn(keeping: false) { _, directory throws(SessionError) in
            _ = try await change(.cancel(id), directory)
            // The change returns the row before it.
            forget()
        }
    }
}
