import System

/// The upload sessions of a bucket that are in use. Each has one object that all its users share. Sessions that are
/// not in use take no memory: their rows have all their state.
final class DirectorySessions: Sendable {
    /// A session that exists as long as it has users.
    private struct Entry {
        weak var session: DirectoryUploadSession?
    }
    private let entries = Lock<[UploadSessionID: Entry]>([:])

    /// The object of a session. The session itself may not exist.
    func session(_ id: UploadSessionID, _ bucket: DirectoryBucket) -> DirectoryUploadSession {
        entries.withLock { entries in
            if let session = entries[id]?.session { return session }
            let session = DirectoryUploadSession(id, bucket)
            entries[id] = Entry(session: session)
            return session
        }
    }

    /// Removes the entry of a released object, unless there is a new object for the session.
    func remove(_ id: UploadSessionID) {
        // Release it outside of the lock: if this is the last reference, its deinitializer comes back here.
        let other = entries.withLock { entries in
            let other = entries[id]?.session
            if other == nil { entries[id] = nil }
            return other
        }
        withExtendedLifetime(other) {}
    }
}

/// Lets tasks of any loop proceed one at a time, in the order of arrival.
final class AsyncTurn: Sendable {
    private struct State {
        var isTaken = false
        var waiters: [CheckedContinuation<Void, Never>] = []
    }
    private let state = Lock(State())

    /// Waits for the turn. ``end()`` must follow.
    func take() async {
        await withCheckedContinuation { waiter in
            let isFree = state.withLock { state in
                if state.isTaken {
                    state.waiters.append(waiter)
                    return false
                }
                state.isTaken = true
                return true
            }
            if isFree { waiter.resume() }
        }
    }

    /// Passes the turn to the next task.
    func end() {
        let next: CheckedContinuation<Void, Never>? = state.withLock { state in
            if state.waiters.isEmpty {
                state.isTaken = false
                return nil
            }
            return state.waiters.removeFirst()
        }
        next?.resume()
    }
}

extension DirectoryBucket: SessionDriver {
    public func beginSession(_ name: String, _ plan: SessionPlan) async throws(SessionError)
        -> any UploadSession
    {
        let length = plan.upload.size
        guard length ?? 0 <= SessionPart.maximumLength else {
            throw .lengthExceeded(limit: SessionPart.maximumLength)
        }
        guard plan.context.count <= SessionPlan.maximumContext else {
            throw .store(BucketError(.internal, "a context of \(plan.context.count) bytes"))
        }
        let now = clock()
        guard plan.expires > now / 1_000_000 else { throw .notFound }
        let row = SessionRow(
            blob: 0, id: UploadSessionID(expires: plan.expires), name: name,
            attributes: plan.upload.attributes, created: now / 1000, expires: plan.expires,
            length: length, digests: SessionDigests(plan.upload.digests).saved,
            context: plan.context)
        let outcome = try await sessionChange(.beginSession(row), name)
        let session = sessions.session(row.id, self)
        session.adopt(outcome)
        return session
    }

    public func openSession(_ id: UploadSessionID) async throws(SessionError) -> any UploadSession {
        let session = sessions.session(id, self)
        try await session.open()
        return session
    }

    public func listSessions(after id: UploadSessionID?, limit: Int) async throws(BucketError)
        -> [(id: UploadSessionID, state: SessionState)]
    {
        let change = SessionChange.list(after: id, limit: limit)
        let outcome = try await self.change("", .session(change, nil), Preconditions())
        var states: [(id: UploadSessionID, state: SessionState)] = []
        for row in outcome.sessions { states.append((row.id, try row.state())) }
        return states
    }

    public func removeExpiredSessions(limit: Int) async throws(BucketError) -> Int {
        let change = SessionChange.removeExpired(limit: limit)
        return try await self.change("", .session(change, nil), Preconditions()).sessions.count
    }

    /// Passes a change of a session to the committer.
    func sessionChange(
        _ kind: DirectoryChange.Kind, _ name: String,
        _ preconditions: Preconditions = Preconditions()
    ) async throws(SessionError) -> DirectoryChange.Outcome {
        do throws(BucketError) {
            return try await change(name, kind, preconditions)
        } catch {
            throw .store(error)
        }
    }
}
