import Buckets
import System
import Wire

/// An upload session that a request has found or begun. Confined to the request's loop.
///
/// A class, because it is large: the task of an append would reserve memory for a copy at each call.
final class OpenUpload {
    let session: any PendingUpload
    var context: UploadContext
    let name: ObjectName
    /// The state when the request found or began the session, updated by the request.
    var state: SessionState

    init(
        session: any PendingUpload, context: UploadContext, name: ObjectName, state: SessionState
    ) {
        self.session = session
        self.context = context
        self.name = name
        self.state = state
    }

    var id: UploadSessionID { session.id }

    /// Whether it was cancelled and is still known.
    var isCancelled: Bool {
        if case .closed(let record) = state.end { return record == OpenUpload.cancelled }
        return false
    }

    /// The record of a cancelled session.
    static let cancelled = Array(#"{"cancelled":true}"#.utf8)

    /// Whether it has all its bytes, in a dialect in which that completes the upload.
    var isWhole: Bool {
        context.dialect.endsAtLength && state.end == nil && state.offset == state.length
    }

    /// The report for a response.
    func report(_ kind: UploadReport.Kind, in bucket: Bucket) -> UploadReport {
        UploadReport(
            kind: kind, offset: state.offset, length: state.end == nil ? state.length : state.offset,
            isComplete: state.end != nil, isCancelled: isCancelled, expires: state.expires, metadata: context.metadata,
            maximumSize: bucket.maximumObjectSize)
    }
}

extension OperationHandler {
    var uploads: Uploads { bucket.uploads }

    /// The limits of open sessions of this bucket.
    func sessionLimits(_ dialect: UploadDialect) -> UploadLedger.Limits {
        UploadLedger.Limits(
            sessions: dialect == .s3 ? uploads.settings.s3Uploads : uploads.settings.sessions,
            bytes: uploads.settings.stagedBytes,
            bucketBytes: bucket.maximumSessionBytes)
    }

    /// The driver, if the store supports upload sessions.
    /// - Throws: ``Problem`` with `not-implemented`.
    func sessionDriver() async throws(Problem) -> any SessionDriver {
        guard let driver = bucket.driver as? any SessionDriver,
            try await bucket.capabilities().uploadSessions
        else {
            throw Problem(
                .notImplemented, "The bucket's store has no uploads in several requests.")
        }
        return driver
    }

    /// Begins a session. The first decision on the upload has been made.
    func begin(
        _ name: ObjectName, _ request: UploadRequest, _ creation: SessionCreation
    ) async throws(Problem) -> OpenUpload {
        let (plan, conditions, _) = try await prepare(name, request)
        let driver = try await sessionDriver()
        var saved = UploadContext(creation.dialect, owner: context.callerKey, caller: SavedCaller(context.caller))
        saved.link = authorizer.grant as? LinkGrant
        saved.linkKey = saved.link.flatMap { context.callers.links?.key($0.key)?.fingerprint }
        saved.parameters = saved.link == nil ? authorizer.parameters : [:]
        saved.conditions = conditions
        saved.digests = request.digests
        saved.metadata = creation.metadata
        let json = saved.json
        guard json.count <= SessionPlan.maximumContext else {
            throw Problem(.invalidArgument, "The request's conditions, query and claims are too long.")
        }
        try await uploads.loaded()
        let expires = context.now + uploads.settings.lifetime
        let entry = UploadLedger.Entry(
            bucket: bucket.name, dialect: creation.dialect, owner: saved.owner,
            creator: saved.caller?.principal.identity,
            bytes: request.size ?? announcedBytes(creation),
            expires: expires, parts: creation.dialect.hasParts ? UploadLedger.PartCount(declared: request.size) : nil)
        try await reserve(entry, driver)
        let session: any PendingUpload
        do throws(SessionError) {
            let plan = SessionPlan(plan, expires: expires, context: json)
            if creation.dialect.hasParts {
                session = try await partsDriver().beginParts(name.value, plan)
            } else {
                session = try await driver.beginSession(name.value, plan)
            }
        } catch {
            uploads.ledger.giveBack(entry)
            throw Problem(error)
        }
        uploads.ledger.add(session.id, entry)
        let state = SessionState(
            name: name.value, attributes: request.attributes, created: context.now * 1000,
            expires: expires, offset: 0, length: request.size, context: json, end: nil)
        return OpenUpload(session: session, context: saved, name: name, state: state)
    }

    /// Counts a new session. Before a limit refuses it, sessions that ended at other gateways are no longer counted.
    private func reserve(_ entry: UploadLedger.Entry, _ driver: any SessionDriver)
        async throws(Problem)
    {
        do throws(UploadLedger.LimitExceeded) {
            return try uploads.ledger.reserve(entry, sessionLimits(entry.dialect))
        } catch {
            await uploads.refresh(
                bucket.name, driver, owner: error == .bucketBytes ? nil : entry.owner)
        }
        do throws(UploadLedger.LimitExceeded) {
            try uploads.ledger.reserve(entry, sessionLimits(entry.dialect))
        } catch {
            throw Problem(error)
        }
    }

    /// Checks that what allowed the session is still configured: the key of its link, or the source of its creator's credential.
    /// - Throws: ``Problem``: `link-expired`, or `unauthorized`.
    func requireOrigin(_ upload: UploadContext) throws(Problem) {
        if let link = upload.link {
            let key = context.callers.links?.key(link.key)
            guard let key, upload.linkKey == nil || upload.linkKey == key.fingerprint else {
                throw Problem(
                    .linkExpired, "The key of the link that began this upload was removed.",
                    cause: "the key \(link.key) is not configured any more")
            }
        }
        guard let principal = upload.caller?.principal else { return }
        guard context.callers.isConfigured(principal) else {
            throw Problem(
                .unauthorized, Problem.denied,
                cause: "the \(principal.kind.rawValue) source of the upload's creator is not configured any more")
        }
    }

    /// The declared size of the first part of an object of unknown length.
    private func announcedBytes(_ creation: SessionCreation) -> UInt64 {
        let head = context.exchange.head
        return creation.hasObjectBytes && head.hasBody ? head.contentLength ?? 0 : 0
    }

    /// Finds a session for a caller who may continue it.
    /// - Throws: ``Problem``: `upload-not-found` if the token is no session of this bucket and dialect, or the session
    ///   of another caller; `unauthenticated` if the caller is anonymous and the creator was not.
    func open(_ request: SessionRequest) async throws(Problem) -> OpenUpload {
        guard let token = uploads.keys.open(request.token) else {
            throw Problem(uploadNotFound: "the token is not one of these keys")
        }
        guard token.dialect == request.dialect,
            BytewiseString.areEqual(token.bucket, bucket.name),
            token.id.expires > context.now, let driver = bucket.driver as? any SessionDriver
        else {
            throw Problem(uploadNotFound: "the token is another bucket's or dialect's, or expired")
        }
        // Checked before the session is opened.
        if let known = uploads.ledger.entry(token.id) {
            try requireCreator(known.creator, token.dialect)
        }
        let (session, state) = try await find(token, driver, request)
        return try found(session, state, token.dialect, request.name)
    }

    /// A found session, for a caller who may continue it.
    /// - Parameter wanted: The object's name, if the request has it.
    func found(_ session: any PendingUpload, _ state: SessionState, _ dialect: UploadDialect, _ wanted: String?)
        throws(Problem) -> OpenUpload
    {
        guard let stored = StoredUpload(bucket.name, session.id, state),
            stored.context.dialect == dialect, let name = try? ObjectName(marker: state.name)
        else { throw Problem(uploadNotFound: "the session was not begun by this program") }
        if let wanted, !BytewiseString.areEqual(wanted, name.value) {
            throw Problem(uploadNotFound: "it is another object's")
        }
        try requireCreator(stored.context.caller?.principal.identity, dialect)
        // Another gateway may have ended it.
        if state.end != nil { uploads.ended(session.id, nil) }
        if state.end == nil, uploads.ledger.adopt(session.id, stored.entry) {
            uploads.statistics.takenOver(bucket.name)
        }
        return OpenUpload(session: session, context: stored.context, name: name, state: state)
    }

    /// Finds a session in its store, when no other request uses it. The wait ends if the client goes away, except for the
    /// first request that ends the upload in this way.
    private func find(
        _ token: UploadToken, _ driver: any SessionDriver, _ request: SessionRequest
    ) async throws(Problem) -> (any UploadSession, SessionState) {
        let end = request.end(hasBytes: context.hasBytes)
        let outlives = end.map { uploads.ends.enter(token.id, $0) } ?? false
        defer { if outlives, let end { uploads.ends.leave(token.id, end) } }
        let session: any UploadSession
        do throws(SessionError) {
            session = try await uncancelled(outlives) { () async throws(SessionError) in
                try await driver.openSession(token.id)
            }
        } catch {
            throw lost(error, token.id)
        }
        // A rejected append reports the offset without a write, so that must be the current one.
        let offset: UInt64? =
            if case .append(let append) = request.action, !append.isVerified { append.offset } else { nil }
        let size = context.hasBytes ? context.exchange.head.contentLength : nil
        let state = try await state(of: session, token.dialect, end: end) { () async throws(SessionError) in
            try await uncancelled(outlives) { () async throws(SessionError) in
                guard let offset, let size else { return try await session.state() }
                return try await session.state(appending: size, at: offset)
            }
        }
        return (session, state)
    }

    /// The current state of a session that was found.
    /// - Parameter end: How the request ends the upload, if it does.
    func state(
        of session: any PendingUpload, _ dialect: UploadDialect, end: SessionRequest.End?,
        _ read: () async throws(SessionError) -> SessionState
    ) async throws(Problem) -> SessionState {
        // Checked before the state is claimed, which stops an append of the creator, also at another gateway.
        if let json = session.context,
            let saved = UploadContext(json: json, bucket: bucket.name, name: "")
        {
            try requireCreator(saved.caller?.principal.identity, dialect)
        }
        return try await repeatedly(attempts: end == .completion ? 8 : 1) { () async throws(Problem) in
            do throws(SessionError) { return try await read() } catch { throw lost(error, session.id) }
        }
    }

    /// The problem of a session that was not opened. It does not count any more if the store does not have it.
    func lost(_ error: SessionError, _ id: UploadSessionID) -> Problem {
        if case .notFound = error { uploads.ended(id, nil) }
        return Problem(error)
    }

    /// Repeats a step of the end while other gateways end the upload too. Random delays let one of them win.
    func repeatedly<Value>(
        attempts: Int = 8, _ body: () async throws(Problem) -> Value
    ) async throws(Problem) -> Value {
        for attempt in 1... {
            do throws(Problem) {
                return try await body()
            } catch {
                guard error.isDisturbance, attempt < attempts else { throw error }
            }
            let delay = UInt64.random(in: 0...(25_000_000 * UInt64(attempt)))
            // In its own task, because the end of an upload may outlive its client.
            await Task { try? await Task.sleep(nanoseconds: delay) }.value
        }
        preconditionFailure("the last attempt returns or throws")
    }

    /// Checks that the request's caller is the session's creator. If the creator is nil, any caller may continue.
    func requireCreator(_ creator: [UInt8]?, _ dialect: UploadDialect) throws(Problem) {
        if let creator { try requireCreator(dialect) { $0 == creator } }
    }

    /// Checks that the request's caller has an identity that is the creator's.
    func requireCreator(_ dialect: UploadDialect, _ isCreator: ([UInt8]) -> Bool) throws(Problem) {
        guard let caller = context.caller.principal else {
            if dialect.isBearer { return }
            throw Problem(
                .unauthenticated, Problem.deniedAnonymous,
                cause: "the upload's creator had a credential", field: Problem.challenge)
        }
        guard isCreator(caller.identity) else {
            if dialect.isBearer || dialect.deniesOthers {
                throw Problem(.unauthorized, Problem.denied, cause: "the upload is another caller's")
            }
            throw Problem(uploadNotFound: "it is another caller's")
        }
    }
}

/// The completions and cancellations that wait for their sessions, whether their clients are still there or not: one of
/// each for a session, so that clients that come and go can't make more of them wait.
final class UploadEnds: Sendable {
    private struct Key: Hashable {
        var id: UploadSessionID
        var end: SessionRequest.End
    }
    private let waiting = Lock<Set<Key>>([])

    /// - Returns: Whether none was waiting. ``leave(_:_:)`` must follow then.
    func enter(_ id: UploadSessionID, _ end: SessionRequest.End) -> Bool {
        waiting.withLock { $0.insert(Key(id: id, end: end)).inserted }
    }

    func leave(_ id: UploadSessionID, _ end: SessionRequest.End) {
        waiting.withLock { _ = $0.remove(Key(id: id, end: end)) }
    }
}

/// Runs `body` to its end, even if the calling task is cancelled because its client has gone.
/// - Parameter outlives: Whether this is wanted.
func uncancelled<Value: Sendable>(
    _ outlives: Bool = true, _ body: @escaping @Sendable () async throws(SessionError) -> Value
) async throws(SessionError) -> Value {
    guard outlives else { return try await body() }
    let task = Task(executorPreference: EventLoop.current) { () -> Result<Value, SessionError> in
        do throws(SessionError) { return .success(try await body()) } catch {
            return .failure(error)
        }
    }
    return try await task.value.get()
}
