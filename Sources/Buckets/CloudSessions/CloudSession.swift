import System

/// An upload session in a cloud store. All calls except an append in progress are serialized.
final class CloudSession: UploadSession {
    let id: UploadSessionID
    let sessions: CloudSessions
    let isInParts: Bool
    /// The parts that are being received.
    let parts = CloudPartsInProgress()
    private let service: any CloudSessionService
    private let turn = AsyncTurn()
    private let current = Lock<CloudAppend?>(nil)
    private let known: Lock<CloudSessionFile>
    /// Whether the next append relies on a state that may have been out of date when its request came.
    private let isUnread = Lock(false)
    /// The maximum number of attempts while other gateways commit too.
    private static let attempts = 8

    init(_ id: UploadSessionID, _ sessions: CloudSessions, isInParts: Bool) {
        self.id = id
        self.isInParts = isInParts
        self.sessions = sessions
        service = sessions.service
        known = Lock(
            CloudSessionFile(id, sessions.service, sessions.owner, isInParts: isInParts, clock: sessions.clock))
    }

    deinit { sessions.registry(isInParts: isInParts).remove(id) }

    var file: CloudSessionFile { known.withLock { $0 } }

    var context: [UInt8]? { file.context }

    func create(_ state: CloudSessionState) async throws(SessionError) {
        try await toItsEnd { [file] () throws(SessionError) in try await file.create(state) }
    }

    /// Waits for its turn, ends an append in progress, and runs `body`.
    /// - Parameter givingUp: Whether to return early if the client goes away before the turn comes.
    func inTurn<Result: Sendable>(
        keepingAppend: Bool = true, givingUp: Bool = false,
        _ body: @escaping @Sendable () async throws(SessionError) -> Result
    ) async throws(SessionError) -> Result {
        guard await turn.take(givingUp: givingUp) else { throw .clientGone }
        return try await toItsEnd { [self] () throws(SessionError) in
            defer { turn.end() }
            if let append = current.withLock({ $0 }),
                await !append.stop(keeping: keepingAppend, within: sessions.stopLimit)
            {
                takeOver(append)
            }
            return try await body()
        }
    }

    /// Continues without an append that does not end. Its later writes fail, and its part numbers are not used.
    private func takeOver(_ append: CloudAppend) {
        known.withLock {
            $0 = CloudSessionFile(
                id, service, .random(in: 1 ... .max), clock: sessions.clock)
        }
        detach(append)
    }

    /// - Throws: ``SessionError/notFound`` if the session does not exist.
    func open() async throws(SessionError) {
        // Opening a session does not end its append.
        guard await turn.take(givingUp: true) else { throw .clientGone }
        defer { turn.end() }
        if current.withLock({ $0 }) == nil, !file.isKnown { try await file.read() }
        if file.isGone { throw .notFound }
    }

    func state() async throws(SessionError) -> SessionState {
        try await inTurn(givingUp: true) { [self] () throws(SessionError) in try await claimed() }
    }

    func state(appending size: UInt64, at offset: UInt64) async throws(SessionError) -> SessionState {
        try await inTurn(givingUp: true) { [self] () throws(SessionError) in
            let own = try file.trusted(at: offset)
            let state: CloudSessionState
            if let own { state = own } else { state = try await file.readForAppend() }
            let isOpen = state.end == nil && state.intent == nil && state.offset == offset
            // The append's first request writes the state, unless it begins the upload.
            if isOpen, state.hasUpload, service.sends(state, AppendPlan(at: offset, size: size)) {
                isUnread.withLock { $0 = own != nil }
                return state.visible
            }
            return try await claimed()
        }
    }

    private func claimed() async throws(SessionError) -> SessionState {
        let state = try await file.claim()
        // An append often follows.
        sessions.remember(self)
        return (try await settled(state) ?? state).visible
    }

    /// Adds the result of an earlier commit to the state; nil if that has stored no object.
    func settled(_ state: CloudSessionState) async throws(SessionError)
        -> CloudSessionState?
    {
        guard state.end == nil, state.intent != nil,
            let result = try await service.settle(file, state)
        else { return nil }
        var state = state
        state.end = .committed(CommittedObject(result))
        return state
    }

    // MARK: Appending

    func append(_ plan: AppendPlan) async throws(SessionError) -> any SessionAppend {
        guard let loop = EventLoop.current else {
            throw .store(BucketError(.internal, "an append belongs on a loop"))
        }
        let append = try await inTurn(givingUp: true) { [self] () throws(SessionError) in
            // Without bytes there is no write that would fail if the state is out of date.
            let own = plan.size == 0 ? nil : try file.trusted(at: plan.offset)
            var state: CloudSessionState
            if let own { state = own } else { state = try await file.claim() }
            let isUnread = isUnread.withLock { isUnread in
                defer { isUnread = false }
                return isUnread
            }
            let transfer: any CloudTransfer
            do throws(SessionError) { transfer = try await self.transfer(plan, state) } catch {
                switch error {
                case .store: throw error
                // After a read, another gateway's request is newer.
                case .superseded where !isUnread: throw error
                default: state = try await file.claim()
                }
                transfer = try await self.transfer(plan, state)
            }
            let limit = state.length ?? plan.length ?? service.maximumSessionLength
            let append = CloudAppend(
                self, loop, transfer, plan, limit: limit, length: state.length == nil ? plan.length : nil)
            current.withLock { $0 = append }
            return append
        }
        let handle = AppendHandle(append)
        // The client may have asked another gateway for the offset since.
        if Task.isCancelled { throw .clientGone }
        return handle
    }

    private func transfer(_ plan: AppendPlan, _ state: CloudSessionState)
        async throws(SessionError) -> any CloudTransfer
    {
        try check(plan, state)
        let transfer = try await service.transfer(file, state, plan)
        // From here on, an append in progress at another gateway fails.
        if service.sends(state, plan) { try await transfer.open() } else { try await file.takeOver() }
        return transfer
    }

    private func check(_ plan: AppendPlan, _ state: CloudSessionState) throws(SessionError) {
        if state.end != nil { throw .finished }
        guard plan.offset == state.offset else { throw .offsetMismatch(durable: state.offset) }
        if let known = state.length, let length = plan.length, length != known {
            throw .lengthMismatch(declared: known)
        }
        let most = service.maximumSessionLength
        let limit = state.length ?? plan.length ?? most
        guard limit <= most else { throw .lengthExceeded(limit: most) }
        guard limit >= state.offset, plan.size ?? 0 <= limit - state.offset else {
            throw .lengthExceeded(limit: limit)
        }
    }

    func detach(_ append: CloudAppend) {
        current.withLock { current in
            if current === append { current = nil }
        }
        sessions.remember(self)
    }

    // MARK: Ending

    func finish() async throws(SessionError) -> ContentFacts {
        try await inTurn { [self] () throws(SessionError) in
            // The parts were just selected. A commit finds out if another gateway has selected others.
            let own = isInParts ? try file.trusted(at: nil) : nil
            let state: CloudSessionState
            if let own { state = own } else { state = try await file.claim() }
            if case .closed = state.end { throw .finished }
            return try await inStore { () throws(BucketError) in try state.facts() }
        }
    }

    func commit(
        _ facts: ContentFacts, _ preconditions: Preconditions, resultUntil: Int64
    ) async throws(SessionError) -> CommitResult {
        try await inTurn { [self] () throws(SessionError) in
            try await untilOwned { [self] () throws(SessionError) in
                let state = try await file.claim()
                if var result = state.result {
                    result.isRepeated = true
                    return result
                }
                if state.end != nil { throw .finished }
                if isInParts, state.selected.isEmpty {
                    throw .store(BucketError(.internal, "a commit without selected parts"))
                }
                guard facts.size == state.offset else {
                    throw .offsetMismatch(durable: state.offset)
                }
                if let length = state.length, length != state.offset {
                    throw .lengthMismatch(declared: length)
                }
                let until = min(resultUntil, state.expires)
                let result = try await service.commit(file, state, facts, preconditions, until: until)
                await keep(until: until)
                return result
            }
        }
    }

    /// Repeats `body`, which claims the session, while other gateways take it over.
    func untilOwned<Result>(_ body: () async throws(SessionError) -> Result) async throws(SessionError) -> Result {
        for attempt in 0..<CloudSession.attempts {
            // Otherwise two gateways could take the state from each other forever.
            if attempt > 0 { await CloudSession.pause(attempt) }
            do throws(SessionError) { return try await body() } catch {
                // The sweep may have removed what it needs.
                if file.isExpired { throw .notFound }
                // The commit of another gateway may have succeeded.
                guard case .superseded = error else { throw error }
            }
        }
        throw .store(BucketError(.overloaded, "other gateways use the upload session, too"))
    }

    /// The longest pause after the first attempt, in nanoseconds. It doubles each time.
    private static let firstPause: UInt64 = 5_000_000

    /// Waits for a random time, so that one of several gateways goes first.
    private static func pause(_ attempt: Int) async {
        let delay = UInt64.random(in: 0...(firstPause << UInt64(attempt)))
        // In its own task, because the end of an upload may outlive its client.
        await Task { try? await Task.sleep(nanoseconds: delay) }.value
    }

    func close(_ record: [UInt8], until: Int64) async throws(SessionError) {
        guard record.count <= SessionPlan.maximumContext else {
            throw .store(BucketError(.internal, "a record of \(record.count) bytes"))
        }
        try await inTurn(keepingAppend: false) { [self] () throws(SessionError) in
            let state = try await file.claim()
            if state.end != nil { throw .finished }
            if state.intent != nil {
                // A commit of another gateway may be executed as long as its source exists.
                try await release(state)
                if try await settled(state) != nil { throw .finished }
            }
            let until = min(until, state.expires)
            try await file.update {
                $0.end = .closed(record)
                $0.expires = until
                $0.tail = []
            }
            await keep(until: until)
            try await release(state)
        }
    }

    func cancel() async throws(SessionError) {
        try await inTurn(keepingAppend: false) { [self] () throws(SessionError) in
            let state = try await file.cancel()
            var failure: SessionError?
            do throws(SessionError) {
                if try await release(state) { return await forget(state) }
            } catch {
                failure = error
            }
            // The sweep removes uploads that may be another session's or could not be removed.
            let until = min(state.expires, file.milliseconds / 1000 + CloudSessions.settlingTime)
            _ = try? await file.update { $0.expires = until }
            await keep(until: until)
            if let failure { throw failure }
        }
    }

    /// Removes the state of a cancelled session. If this fails, the sweep removes it.
    private func forget(_ state: CloudSessionState) async {
        try? await service.deleteHidden(HiddenName.state(id).text)
        if state.expires < id.expires {
            try? await service.deleteHidden(HiddenName.until(id, time: state.expires).text)
        }
    }

    @discardableResult
    private func release(_ state: CloudSessionState) async throws(SessionError) -> Bool {
        try await inStore { () throws(BucketError) in try await sessions.release(id, state) }
    }

    /// Schedules the removal of an ended session before the time in its id. If that fails, the id's time applies.
    private func keep(until: Int64) async {
        guard until < id.expires else { return }
        _ = try? await service.writeHidden(HiddenName.until(id, time: max(0, until)).text, [], replacing: nil)
    }
}

/// Runs `body` to its end, even if the caller's task is cancelled because its client went away: a request of the
/// session may have been executed then, and the state must record it.
func toItsEnd<Result: Sendable>(
    _ body: @escaping @Sendable () async throws(SessionError) -> Result
) async throws(SessionError) -> Result {
    let task = Task(executorPreference: EventLoop.current) {
        () async -> Swift.Result<Result, SessionError> in
        do throws(SessionError) { return .success(try await body()) } catch {
            return .failure(error)
        }
    }
    return try await task.value.get()
}
