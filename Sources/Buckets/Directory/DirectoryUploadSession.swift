import System

/// An upload session of a directory: a row in the index and a blob. Calls are serialized, except for those of an
/// append. No file is open between calls.
final class DirectoryUploadSession: UploadSession {
    private struct State {
        /// The durable state; nil if it must be read.
        var row: SessionRow?
        var directory: OpenDirectory?
        var append: DirectoryAppend?
    }

    let id: UploadSessionID
    private let bucket: DirectoryBucket
    private let turn = AsyncTurn()
    private let held = Lock(State())

    init(_ id: UploadSessionID, _ bucket: DirectoryBucket) {
        self.id = id
        self.bucket = bucket
    }

    deinit { bucket.sessions.remove(id) }

    // MARK: Durable state

    /// Adopts the result of a change. Returns the row; nil if the session does not exist.
    @discardableResult
    func adopt(_ outcome: DirectoryChange.Outcome) -> SessionRow? {
        let row = outcome.sessions.first
        held.withLock { held in
            held.row = row
            held.directory = outcome.directory
        }
        return row
    }

    /// After a failed change the state is unknown.
    private func forget() { held.withLock { $0.row = nil } }

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

    var context: [UInt8]? { held.withLock { $0.row?.context } }

    var durable: UInt64 { held.withLock { $0.row?.offset ?? 0 } }

    var isExpired: Bool { bucket.clock() / 1_000_000 >= id.expires }

    // MARK: Serialized calls

    /// Waits for its turn, ends an append in progress, and runs `body` with the durable state.
    /// - Parameter givingUp: Whether to return early if the client goes away before the turn comes.
    private func inTurn<Result>(
        keepingAppend: Bool = true, givingUp: Bool = false,
        _ body: (SessionRow, OpenDirectory) async throws(SessionError) -> Result
    ) async throws(SessionError) -> Result {
        guard await turn.take(givingUp: givingUp) else { throw .clientGone }
        defer { turn.end() }
        if let append = held.withLock({ $0.append }),
            await !append.stop(keeping: keepingAppend, within: bucket.stopLimit)
        {
            throw .store(BucketError(.timedOut, "the append in progress does not end"))
        }
        let directory: OpenDirectory
        do throws(BucketError) {
            directory = try await bucket.openDirectory()
        } catch {
            throw .store(error)
        }
        let known = held.withLock { $0.directory === directory ? $0.row : nil }
        let row: SessionRow
        if let known { row = known } else { row = try await change(.load(id), nil) }
        guard row.expires > bucket.clock() / 1_000_000 else { throw .notFound }
        // If the directory was just replaced, the change below fails.
        return try await body(row, directory)
    }

    /// - Throws: ``SessionError/notFound`` if the session does not exist.
    func open() async throws(SessionError) {
        // Opening a session does not end its append.
        guard await turn.take(givingUp: true) else { throw .clientGone }
        defer { turn.end() }
        let known = held.withLock { $0.row }
        let row: SessionRow
        if let known { row = known } else { row = try await change(.load(id), nil) }
        guard row.expires > bucket.clock() / 1_000_000 else { throw .notFound }
    }

    func state() async throws(SessionError) -> SessionState {
        try await inTurn(givingUp: true) { row, _ throws(SessionError) in
            do throws(BucketError) { return try row.state() } catch { throw .store(error) }
        }
    }

    // MARK: Appending

    func append(_ plan: AppendPlan) async throws(SessionError) -> any SessionAppend {
        guard let loop = EventLoop.current else {
            throw .store(BucketError(.internal, "an append belongs on a loop"))
        }
        return try await inTurn(givingUp: true) { row, directory throws(SessionError) in
            var row = row
            try DirectoryUploadSession.check(plan, row)
            if row.length == nil, let length = plan.length {
                row.length = length
                row = try await self.change(.save(row), directory)
            }
            let part = try await SessionPart.open(row, directory, self.bucket.pool)
            let append = DirectoryAppend(self, directory, part, loop, self.bucket.pool, row, plan)
            self.held.withLock { $0.append = append }
            self.bucket.appends.begin()
            return AppendHandle(append)
        }
    }

    private static func check(_ plan: AppendPlan, _ row: SessionRow) throws(SessionError) {
        if row.end != nil { throw .finished }
        guard plan.offset == row.offset else { throw .offsetMismatch(durable: row.offset) }
        if let known = row.length, let length = plan.length, length != known {
            throw .lengthMismatch(declared: known)
        }
        let limit = row.length ?? plan.length ?? SessionPart.maximumLength
        guard limit <= SessionPart.maximumLength else {
            throw .lengthExceeded(limit: SessionPart.maximumLength)
        }
        guard limit >= row.offset, plan.size ?? 0 <= limit - row.offset else {
            throw .lengthExceeded(limit: limit)
        }
    }

    func detach(_ append: DirectoryAppend) {
        let isHeld = held.withLock { held in
            guard held.append === append else { return false }
            held.append = nil
            return true
        }
        if isHeld { bucket.appends.end() }
    }

    /// Continues without an append that never ends. Its last change may still be executed, before the next one.
    func abandon(_ append: DirectoryAppend) {
        detach(append)
        forget()
    }

    // MARK: Ending

    func finish() async throws(SessionError) -> ContentFacts {
        try await inTurn { row, _ throws(SessionError) in
            if case .closed = row.end { throw .finished }
            do throws(BucketError) { return try row.facts() } catch { throw .store(error) }
        }
    }

    func commit(
        _ facts: ContentFacts, _ preconditions: Preconditions, resultUntil: Int64
    ) async throws(SessionError) -> CommitResult {
        try await inTurn { row, directory throws(SessionError) in
            if case .closed = row.end { throw .finished }
            if row.end == nil {
                guard facts.size == row.offset else { throw .offsetMismatch(durable: row.offset) }
                if let length = row.length, length != row.offset {
                    throw .lengthMismatch(declared: length)
                }
                // The file must end where the object ends, with all bytes durable.
                try await SessionPart.open(row, directory, self.bucket.pool).close()
            }
            let change = SessionChange.commit(self.id, facts, until: resultUntil)
            let ended = try await self.change(change, directory, row.name, preconditions)
            do throws(BucketError) {
                guard var result = try ended.result() else {
                    throw BucketError(.internal, "a commit without an object")
                }
                result.isRepeated = row.end != nil
                return result
            } catch { throw .store(error) }
        }
    }

    func close(_ record: [UInt8], until: Int64) async throws(SessionError) {
        guard record.count <= SessionPlan.maximumContext else {
            throw .store(BucketError(.internal, "a record of \(record.count) bytes"))
        }
        try await inTurn(keepingAppend: false) { row, directory throws(SessionError) in
            if row.end != nil { throw .finished }
            let change = SessionChange.close(self.id, record: record, until: until)
            let ended = try await self.change(change, directory)
            guard case .closed = ended.end else { throw .finished }
        }
    }

    func cancel() async throws(SessionError) {
        try await inTurn(keepingAppend: false) { _, directory throws(SessionError) in
            _ = try await self.change(.cancel(self.id), directory)
            // The change returns the row before it.
            self.forget()
        }
    }
}
