import System

/// A store with upload sessions: uploads that survive their requests and the process.
///
/// A session is invisible before its commit. A reported offset is durable and never decreases. A driver has both this
/// protocol and ``Capabilities/uploadSessions``, or neither.
public protocol SessionDriver: BucketDriver {
    /// Creates a session. It is durable when this returns, and its offset is 0.
    func beginSession(_ name: String, _ plan: SessionPlan) async throws(SessionError) -> any UploadSession

    /// Opens an existing session of this or another process.
    /// - Throws: ``SessionError/notFound`` if it is unknown, expired, cancelled or removed.
    func openSession(_ id: UploadSessionID) async throws(SessionError) -> any UploadSession

    /// Whether a session is known and open: one request to a shared store. An append in progress continues.
    func isOpen(_ id: UploadSessionID) async throws(BucketError) -> Bool

    /// At most `limit` sessions after `id`, or all sessions if `id` is nil, ordered by id. Expired ones are included
    /// until they are removed. An append in progress continues; its bytes count from the next durable offset on.
    func listSessions(after id: UploadSessionID?, limit: Int) async throws(BucketError)
        -> [(id: UploadSessionID, state: SessionState)]

    /// Removes at most `limit` expired sessions, with the bytes of those that were not committed.
    /// - Returns: The number of removed sessions. Call again if it is `limit`.
    func removeExpiredSessions(limit: Int) async throws(BucketError) -> Int
}

/// An upload that survives its requests: an ``UploadSession``, or a ``PartsUpload``. It can be used on any loop.
/// Concurrent calls are serialized. Every call throws ``SessionError/notFound`` once it has expired or was cancelled.
public protocol PendingUpload: AnyObject, Sendable {
    /// Identifies the session in its ``SessionDriver``.
    var id: UploadSessionID { get }

    /// The session's ``SessionPlan/context`` as found when it was opened; nil if that needs a request to the store.
    var context: [UInt8]? { get }

    /// The current state.
    func state() async throws(SessionError) -> SessionState

    /// The size and digests of all durable bytes. Can be repeated.
    func finish() async throws(SessionError) -> ContentFacts

    /// Makes the object visible as ``Upload/commit(_:)`` does. It succeeds once: later calls, even in another process,
    /// return the same result with ``CommitResult/isRepeated``. After a failure, the session can be continued.
    /// - Parameters:
    ///   - facts: The result of ``finish()``, on which the decision is based. If bytes were appended since, the call
    ///     fails with ``SessionError/offsetMismatch(durable:)``.
    ///   - resultUntil: The time until which the result is kept, in seconds since 1970, limited by the session's
    ///     expiry.
    /// - Throws: ``SessionError/store(_:)`` with `.preconditionFailed`, or ``SessionError/lengthMismatch(declared:)``
    ///   if bytes of the declared length are missing.
    func commit(
        _ facts: ContentFacts, _ preconditions: Preconditions, resultUntil: Int64
    ) async throws(SessionError) -> CommitResult

    /// Ends the session without an object and removes its bytes. `record` is kept (``SessionState/End/closed(_:)``) for
    /// the response to a repeated request. Throws ``SessionError/finished`` if any process has stored the object.
    /// - Parameters:
    ///   - record: At most 64 KiB.
    ///   - until: Seconds since 1970; at most until the session expires.
    func close(_ record: [UInt8], until: Int64) async throws(SessionError)

    /// Removes the session and its bytes; their space is free on return. A committed object stays.
    func cancel() async throws(SessionError)
}

/// An upload session, to which bytes are appended.
///
/// Except for ``SessionAppend``'s own calls, every call first stops an append in progress, because the newer request
/// wins. Its received bytes become durable, and it ends with ``SessionError/superseded``. An all-or-nothing append is
/// discarded. Thus a reported offset is valid until the next append.
public protocol UploadSession: PendingUpload {
    /// The state for an append of `size` bytes at `offset`. A shared store is not asked if the append begins with a write
    /// that fails if another process has changed the session.
    func state(appending size: UInt64, at offset: UInt64) async throws(SessionError) -> SessionState

    /// Begins an append. No byte is accepted if it throws.
    /// - Throws: ``SessionError/offsetMismatch(durable:)`` if the plan's offset is not the durable one,
    ///   ``SessionError/lengthMismatch(declared:)`` or ``SessionError/lengthExceeded(limit:)`` if the lengths do not
    ///   fit, ``SessionError/finished`` after the end.
    func append(_ plan: AppendPlan) async throws(SessionError) -> any SessionAppend
}

extension UploadSession {
    public func state(appending size: UInt64, at offset: UInt64) async throws(SessionError) -> SessionState {
        try await state()
    }
}

/// An append in progress. Confined to its loop. Ends with ``end()`` or ``discard()``. A dropped append ends as with
/// ``end()``, or with ``discard()`` if it is all or nothing.
public protocol SessionAppend: ByteSink {
    /// Sets a callback that runs on the loop, once, when another call stops this append. From then on,
    /// ``ByteSink/write(_:)`` and ``end()`` throw ``SessionError/superseded``.
    func whenStopped(_ body: @escaping () -> Void)

    /// Sets a callback that runs on the loop with some of the durable offsets before the append's end.
    func whenDurable(_ body: @escaping (UInt64) -> Void)

    /// Makes the received bytes durable, even if the body is incomplete, and returns the durable offset.
    /// - Throws: ``SessionError/superseded``, or why bytes could not be stored. Bytes before such a failure are kept if
    ///   possible: ``UploadSession/state()`` has the offset.
    func end() async throws(SessionError) -> UInt64

    /// Discards bytes that are not durable: all received ones if the append is all or nothing.
    func discard() async
}

/// The properties of a new session.
public struct SessionPlan: Sendable, Equatable {
    /// The properties as for an upload in one request. The store keeps the attributes, the size and the requested
    /// digests; services may need the rest at the beginning. The caller enforces preconditions and declared digests at
    /// the commit, so ``context`` must have them too.
    public var upload: UploadPlan
    /// The expiry in seconds since 1970.
    public var expires: Int64
    /// The caller's data, opaque to the store: at most ``maximumContext`` bytes.
    public var context: [UInt8]
    /// The maximum size of the context in bytes: 64 KiB.
    public static let maximumContext = 64 << 10

    public init(_ upload: UploadPlan, expires: Int64, context: [UInt8] = []) {
        self.upload = upload
        self.expires = expires
        self.context = context
    }
}

/// The properties of an append.
public struct AppendPlan: Sendable, Equatable {
    /// The offset of the first byte, which must be the durable offset.
    public var offset: UInt64
    /// The number of bytes of the append, if known.
    public var size: UInt64?
    /// The declared length of the whole object in bytes, which is stored.
    public var length: UInt64?
    /// Whether the append is all or nothing, because the digest of its bytes is compared at the end. If it is
    /// incomplete, stopped or discarded, the offset does not change.
    public var isAllOrNothing: Bool

    public init(at offset: UInt64, size: UInt64? = nil, length: UInt64? = nil, isAllOrNothing: Bool = false) {
        self.offset = offset
        self.size = size
        self.length = length
        self.isAllOrNothing = isAllOrNothing
    }
}

/// The state of a session.
public struct SessionState: Sendable {
    /// How a session ended.
    public enum End: Sendable {
        /// The object was created.
        case committed(CommitResult)
        /// There is no object. The value is the record passed to ``UploadSession/close(_:until:)``.
        case closed([UInt8])
    }
    /// The object's name.
    public var name: String
    public var attributes: ObjectAttributes
    /// The time of creation in milliseconds since 1970.
    public var created: Int64
    /// The expiry in seconds since 1970.
    public var expires: Int64
    /// The number of durable bytes.
    public var offset: UInt64
    /// The length of the whole object in bytes, if it was declared.
    public var length: UInt64?
    /// The session's ``SessionPlan/context``.
    public var context: [UInt8]
    /// How the session ended; nil if it is open.
    public var end: End?
    /// The ``PartsUpload/key`` of an upload in parts.
    public var key: [UInt8] = []

    public init(
        name: String, attributes: ObjectAttributes, created: Int64, expires: Int64, offset: UInt64,
        length: UInt64?, context: [UInt8], end: End?
    ) {
        self.name = name
        self.attributes = attributes
        self.created = created
        self.expires = expires
        self.offset = offset
        self.length = length
        self.context = context
        self.end = end
    }
}

/// Why a call on a session failed.
public enum SessionError: Error, Sendable {
    /// The session is unknown, expired, cancelled or removed.
    case notFound
    /// The durable offset differs from the expected one.
    case offsetMismatch(durable: UInt64)
    /// A different length was declared before.
    case lengthMismatch(declared: UInt64)
    /// There are more bytes than were declared or the store can hold.
    case lengthExceeded(limit: UInt64)
    /// A newer call stopped the append.
    case superseded
    /// The session was committed or closed.
    case finished
    /// The store has other bytes than those that were acknowledged, because two writers have sent different bytes at
    /// one offset. The session can't be committed.
    case otherBytes
    /// The calling task was cancelled, because its client went away, before its turn. Nothing was done.
    case clientGone
    /// A selected part does not exist, or has other bytes than the expected ones.
    case noSuchPart(Int)
    /// Only the last part may be smaller than `minimum` bytes.
    case partTooSmall(Int, minimum: UInt64)
    /// The store failed, or a precondition did not hold.
    case store(BucketError)
}
