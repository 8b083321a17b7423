import System
import Wire

/// The upload sessions of a cloud bucket: the ``SessionDriver`` of its driver.
final class CloudSessions: Sendable {
    let service: any CloudSessionService
    /// This gateway process.
    let owner: CloudSessionState.Owner = .random(in: 1 ... .max)
    /// Microseconds since 1970.
    let clock: @Sendable () -> Int64
    /// How long a session's call waits for the append that it stops, in nanoseconds.
    let stopLimit: UInt64
    /// Work that the bucket waits for before it closes: appends until their bytes are durable.
    let work: BackgroundTasks
    private let sequential = SessionRegistry<CloudSession>()
    private let inParts = SessionRegistry<CloudSession>()
    /// The checksums of the parts that this process has sent.
    let computed = ComputedChecksums()
    /// The sessions used last, the newest at the end. They stay in memory, so that they need not be claimed again.
    private let recent = Lock<[CloudSession]>([])
    private static let recentLimit = 64
    /// The maximum size of those states: 4 MiB.
    private static let recentBytes = 4 << 20

    init(
        _ service: any CloudSessionService, clock: @escaping @Sendable () -> Int64,
        stopLimit: UInt64 = 30_000_000_000, work: BackgroundTasks = BackgroundTasks()
    ) {
        self.work = work
        self.service = service
        self.clock = clock
        self.stopLimit = stopLimit
    }

    /// Keeps a session in memory and drops the least recently used ones.
    func remember(_ session: CloudSession) {
        // Release sessions outside the lock: a deinitializer may come back here.
        let dropped: [CloudSession] = recent.withLock { recent in
            let before = recent
            recent.removeAll { $0 === session }
            if session.file.size != nil { recent.append(session) }
            var bytes = 0
            let kept = recent.reversed().prefix(CloudSessions.recentLimit).prefix { session in
                bytes += session.file.size ?? 0
                return bytes <= CloudSessions.recentBytes
            }
            recent.removeFirst(recent.count - kept.count)
            return before
        }
        withExtendedLifetime(dropped) {}
    }

    func close() {
        let dropped = recent.withLock { recent in
            defer { recent = [] }
            return recent
        }
        withExtendedLifetime(dropped) {}
    }

    /// The sessions in use. Those with appends and those in parts are separate, since an id may be of the other kind.
    func registry(isInParts: Bool) -> SessionRegistry<CloudSession> { isInParts ? inParts : sequential }

    func session(_ id: UploadSessionID, isInParts: Bool = false) -> CloudSession {
        registry(isInParts: isInParts).session(id) { CloudSession(id, self, isInParts: isInParts) }
    }

    /// Seconds since 1970.
    var now: Int64 { clock() / 1_000_000 }

    // MARK: SessionDriver

    func begin(_ name: String, _ plan: SessionPlan) async throws(SessionError) -> CloudSession {
        var state = try newState(name, plan, isInParts: false)
        state.transfer = service.newTransfer(name, now: state.created)
        let session = session(UploadSessionID(expires: plan.expires))
        try await session.create(state)
        remember(session)
        return session
    }

    func newState(_ name: String, _ plan: SessionPlan, isInParts: Bool) throws(SessionError) -> CloudSessionState {
        let length = plan.upload.size
        guard length ?? 0 <= service.maximumSessionLength else {
            throw .lengthExceeded(limit: service.maximumSessionLength)
        }
        guard plan.context.count <= SessionPlan.maximumContext else {
            throw .store(BucketError(.internal, "a context of \(plan.context.count) bytes"))
        }
        guard plan.expires > now else { throw .notFound }
        return CloudSessionState(
            name: name, attributes: plan.upload.attributes, created: clock() / 1000, context: plan.context,
            mark: .random(in: 0 ... .max), owner: owner, expires: plan.expires, length: length,
            digests: isInParts ? [] : SessionDigests(plan.upload.digests).saved, isInParts: isInParts)
    }

    func open(_ id: UploadSessionID) async throws(SessionError) -> CloudSession {
        let session = session(id)
        try await session.open()
        return session
    }

    func isOpen(_ id: UploadSessionID) async throws(BucketError) -> Bool {
        guard id.expires > now, let object = try await service.readHidden(HiddenName.state(id).text) else {
            return false
        }
        // Another version of the program may have written it.
        guard let state = try? CloudSessionState(object.bytes) else { return true }
        return state.end == nil
    }

    func list(after id: UploadSessionID?, limit: Int) async throws(BucketError)
        -> [(id: UploadSessionID, state: SessionState)]
    {
        var found: [(id: UploadSessionID, state: SessionState)] = []
        var after = id.map { HiddenName.state($0).text }
        var pages = 0
        while found.count < limit {
            let names = try await names(after: after, &pages)
            guard let last = names.last else { break }
            for name in names where found.count < limit {
                guard case .state(let id)? = HiddenName(name), let object = try await service.readHidden(name),
                    // Another version of the program may have written it.
                    let state = try? CloudSessionState(object.bytes), state.end != .cancelled
                else { continue }
                found.append((id, state.visible))
            }
            after = last
        }
        return found
    }

    /// The maximum number of pages of a list, with 1,000 names each: ten million names.
    private static let pageLimit = 10_000

    /// The next names of hidden objects; `pages` is the number of pages so far.
    /// - Throws: ``BucketError`` if the list would not end: the service repeats names, or exceeds ``pageLimit``.
    private func names(after name: String?, _ pages: inout Int) async throws(BucketError)
        -> [String]
    {
        pages += 1
        if Task.isCancelled { throw BucketError(.unavailable, "the caller of the list is gone") }
        if pages > CloudSessions.pageLimit {
            throw BucketError(.unavailable, "the list of upload sessions does not end")
        }
        let names = try await service.listHidden(HiddenName.prefix, after: name)
        var last = name
        for name in names {
            if let last, BytewiseString(name) <= BytewiseString(last) {
                throw BucketError(.unavailable, "the service lists names in no order")
            }
            last = name
        }
        return names
    }

    // MARK: The sweep

    /// The maximum number of failed removals in one sweep. Other objects are removed nevertheless.
    private static let failureLimit = 16

    /// How long an unreadable state is kept after the expiry of its session, in seconds: 1 h.
    private static let unreadableTime: Int64 = 3600

    /// How long late requests of an ended session can be mistaken for another session's, in seconds: 15 s.
    static let settlingTime: Int64 = 15

    private enum Removal {
        case removed
        case none
        case later
    }

    func removeExpired(limit: Int) async throws(BucketError) -> Int {
        var removed = 0
        var failures: [BucketError] = []
        var after: String?
        var pages = 0
        list: while removed < limit {
            let names = try await names(after: after, &pages)
            guard let last = names.last else { break }
            for text in names {
                guard let name = HiddenName(text) else { continue }
                // Names sort by hours.
                if name.expires / 3600 > now / 3600 { break list }
                guard name.expires <= now else { continue }
                do throws(BucketError) {
                    if try await remove(name) { removed += 1 }
                } catch {
                    failures.append(error)
                    if failures.count == CloudSessions.failureLimit { throw error }
                }
                if removed == limit { break list }
            }
            after = last
        }
        if removed < limit, let failure = failures.first { throw failure }
        return removed
    }

    /// Removes an expired object, and returns whether a session was removed with it.
    private func remove(_ name: HiddenName) async throws(BucketError) -> Bool {
        switch name {
        case .state(let id): return try await remove(id) == .removed
        case .tail, .data:
            try await service.deleteHidden(name.text)
            return false
        case .until(let id, _):
            let removal = try await remove(id)
            if removal != .later { try await service.deleteHidden(name.text) }
            return removal == .removed
        }
    }

    /// Removes an expired session with its leftovers at the service.
    private func remove(_ id: UploadSessionID) async throws(BucketError) -> Removal {
        let name = HiddenName.state(id).text
        guard let object = try await service.readHidden(name) else { return .none }
        if let state = try? CloudSessionState(object.bytes) {
            let end = min(state.expires, id.expires)
            guard end <= now else { return .none }
            let isComplete = try await release(id, state)
            guard isComplete || end + CloudSessions.settlingTime <= now else { return .later }
        } else if id.expires + CloudSessions.unreadableTime > now {
            // Another version of the program may be able to read it.
            return .none
        } else {
            try await service.deleteHidden(name)
            // Log it, once.
            throw BucketError(.internal, "the state of an upload session can't be read, and was removed")
        }
        // Last, so that the next sweep continues after a failure.
        try await service.deleteHidden(name)
        return .removed
    }

    func release(_ id: UploadSessionID, _ state: CloudSessionState) async throws(BucketError)
        -> Bool
    {
        try await service.release(
            id, state, isSoleOwner: state.owner == owner && !state.isTakenOver)
    }
}
