import System

/// A store with upload sessions: uploads that survive their requests, and the process.
///
/// Nothing of a session is visible before its commit. An offset that was reported is durable: it never decreases. A
/// driver has this protocol and ``Capabilities/uploadSessions``, or neither.
public protocol SessionDriver: BucketDriver {
    /// Begins a session. It is durable when this returns; its offset is 0.
    func beginSession(_ name: String, _ plan: SessionPlan) async throws(SessionError)
        -> any UploadSession

    /// Opens a session that was begun before, by this process or by another one.
    /// - Throws: ``SessionError/notFound`` for an unknown, expired, cancelled or removed one.
    func openSession(_ id: UploadSessionID) async throws(SessionError) -> any UploadSession

    /// The sessions after `id` (all of them for nil), in the order of their ids, at most `limit`. Expired ones are there
    /// until they are removed. An append in progress is not stopped: its bytes count from the next durable offset on.
    func listSessions(after id: UploadSessionID?, limit: Int) async throws(BucketError)
        -> [(id: UploadSessionID, state: SessionState)]

    /// Removes at most `limit` expired sessions, with the bytes of those that were not committed.
    /// - Returns: How many were removed: call it again where it is `limit`.
    func removeExpiredSessions(limit: Int) async throws(BucketError) -> Int
}

/// One upload session. Any loop may use it; calls of several at once are performed one after the other.
///
/// Every call but ``SessionAppend``'s own first stops an append that is in progress: the newer request wins, what the
/// append received becomes durable, and the append ends with ``SessionError/superseded``. An append that is all or
/// nothing is discarded. So an offset that a call reports stays correct until the next append.
///
/// Every call throws ``SessionError/notFound`` once the session has expired or was cancelled.
public protocol UploadSession: AnyObject, Sendable {
    /// What ``SessionDriver/openSession(_:)`` finds it by.
    var id: UploadSessionID { get }

    /// What is known of it now.
    func state() async throws(SessionError) -> SessionState

    /// Begins to append.
    /// - Throws: ``SessionError/offsetMismatch(durable:)`` where the plan's offset is not the durable one,
    ///   ``SessionError/lengthMismatch(declared:)`` and ``SessionError/lengthExceeded(limit:)`` where the lengths do not
    ///   fit, ``SessionError/finished`` after the end. No byte is accepted then.
    func append(_ plan: AppendPlan) async throws(SessionError) -> any SessionAppend

    /// The facts of all durable bytes. It changes nothing, and can be repeated.
    func finish() async throws(SessionError) -> ContentFacts

    /// Makes the object visible as ``Upload/commit(_:)`` does. It happens once: after it succeeded, every further call
    /// returns the same result, also in another process.
    ///
    /// Where it fails, the session stays as it was: it can be appended to and committed again.
    /// - Parameters:
    ///   - facts: What ``finish()`` returned, and what the decision was made on. Where bytes were appended since, the call
    ///     fails with ``SessionError/offsetMismatch(durable:)``.
    ///   - resultUntil: Seconds since 1970 until which the result is kept; at most until the session expires.
    /// - Throws: ``SessionError/store(_:)`` with `.preconditionFailed`; ``SessionError/lengthMismatch(declared:)`` where
    ///   bytes of the declared length are missing.
    func commit(
        _ facts: ContentFacts, _ preconditions: Preconditions, resultUntil: Int64
    ) async throws(SessionError) -> CommitResult

    /// Ends the session without an object: its bytes are removed, and `record` is kept (``SessionState/End/closed(_:)``)
    /// so that a repeated request can be given the same response.
    /// - Parameters:
    ///   - record: At most 64 KiB.
    ///   - until: Seconds since 1970; at most until the session expires.
    func close(_ record: [UInt8], until: Int64) async throws(SessionError)

    /// Removes the session and its bytes: the space is free when this returns. A committed object stays.
    func cancel() async throws(SessionError)
}

/// An append in progress. Confined to the loop that began it.
///
/// It ends with ``end()`` or ``discard()``. One that is dropped ends as by ``end()``, or as by ``discard()`` where it is
/// all or nothing.
public protocol SessionAppend: ByteSink {
    /// Has `body` called on the loop, once, when another call stops this append: ``ByteSink/write(_:)`` and ``end()``
    /// throw ``SessionError/superseded`` from then on.
    func whenStopped(_ body: @escaping () -> Void)

    /// Makes what was received durable, also where the body was cut.
    /// - Returns: The durable offset.
    /// - Throws: ``SessionError/superseded``, or why bytes could not be stored. What was received before such a failure is
    ///   kept as far as possible: ``UploadSession/state()`` has the offset.
    func end() async throws(SessionError) -> UInt64

    /// Forgets what is not durable yet: all that was received where the append is all or nothing.
    func discard() async
}

/// What a session begins with.
public struct SessionPlan: Sendable, Equatable {
    /// As for an upload in one request. The store keeps the attributes, the size and the requested digests. The rest is for
    /// services that need it at the beginning. Preconditions and declared digests belong into ``context`` too: the caller
    /// of the commit enforces them.
    public var upload: UploadPlan
    /// Seconds since 1970 after which the session is gone.
    public var expires: Int64
    /// Whatever the caller wants to find again: at most ``maximumContext`` bytes. The store does not read it.
    public var context: [UInt8]
    /// Bytes: 64 KiB.
    public static let maximumContext = 64 << 10

    public init(_ upload: UploadPlan, expires: Int64, context: [UInt8] = []) {
        self.upload = upload
        self.expires = expires
        self.context = context
    }
}

/// What an append begins with.
public struct AppendPlan: Sendable, Equatable {
    /// Bytes before the append: the durable offset.
    public var offset: UInt64
    /// Bytes of the append, where they are known.
    public var size: UInt64?
    /// Bytes of the whole object, where this request declares them. They are remembered.
    public var length: UInt64?
    /// Whether the bytes count only together, since their digest is compared at the end: an append that is cut, stopped or
    /// discarded leaves the offset unchanged.
    public var isAllOrNothing: Bool

    public init(
        at offset: UInt64, size: UInt64? = nil, length: UInt64? = nil, isAllOrNothing: Bool = false
    ) {
        self.offset = offset
        self.size = size
        self.length = length
        self.isAllOrNothing = isAllOrNothing
    }
}

/// What is known of a session.
public struct SessionState: Sendable {
    /// How a session ended.
    public enum End: Sendable {
        /// The object was made.
        case committed(CommitResult)
        /// There is no object; the record that ``UploadSession/close(_:until:)`` was given.
        case closed([UInt8])
    }
    /// The object's name.
    public var name: String
    public var attributes: ObjectAttributes
    /// Milliseconds since 1970.
    public var created: Int64
    /// Seconds since 1970.
    public var expires: Int64
    /// Durable bytes.
    public var offset: UInt64
    /// Bytes of the whole object, once they were declared.
    public var length: UInt64?
    /// What ``SessionPlan/context`` was.
    public var context: [UInt8]
    /// nil while it is open.
    public var end: End?

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

/// Why a session could not do what it was asked.
public enum SessionError: Error, Sendable {
    /// There is no such session: it is unknown, expired, cancelled or removed.
    case notFound
    /// The call expects another durable offset than this one.
    case offsetMismatch(durable: UInt64)
    /// Another length was declared before.
    case lengthMismatch(declared: UInt64)
    /// More bytes than were declared, or than the store can hold.
    case lengthExceeded(limit: UInt64)
    /// A newer call stopped the append.
    case superseded
    /// The session was committed or closed.
    case finished
    /// The store failed, or a precondition.
    case store(BucketError)
}
