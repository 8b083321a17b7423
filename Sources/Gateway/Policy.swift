import Buckets

/// Who asks.
public struct Caller: Sendable, Equatable {
    /// The client's address, `host:port`.
    public var peer: String
    /// Whether the connection is encrypted.
    public var isSecure: Bool

    public init(peer: String, isSecure: Bool) {
        self.peer = peer
        self.isSecure = isSecure
    }
}

/// What an operation would leave behind, as far as it is known when it is decided.
public struct Proposal: Sendable, Equatable {
    /// The properties of an upload; nil for other operations.
    public var attributes: ObjectAttributes?
    /// The change of an update; nil before its body has come, and for other operations.
    public var patch: AttributePatch?
    /// Bytes: as declared before the body, true at the end; nil while nobody knows.
    public var size: UInt64?
    /// 16 bytes: as declared before the body, true at the end; nil while nobody knows.
    public var md5: [UInt8]?
    /// As declared before the body, true at the end; nil while nobody knows.
    public var crc32c: UInt32?

    /// Nothing is proposed, or nothing is known of it.
    public init() {}
}

/// What a policy says.
public enum Decision: Sendable, Equatable {
    case allow
    /// 403. The cause is for the log alone.
    case deny(cause: String)
    /// 401: the caller may try again with credentials. The cause is for the log alone.
    case unauthenticated(cause: String)
}

/// Decides operations. It is asked before the first byte of a body, and where there is one again before anything of it
/// becomes visible, with the true facts; for a list without delimiter also for each folder that a page would reveal.
public protocol Policy: Sendable {
    /// Whether an operation may be performed.
    func decide(_ operation: Operation, _ caller: Caller, _ proposal: Proposal) async -> Decision
}

/// `rules: none`: everything is open to everybody, on purpose.
public struct OpenPolicy: Policy {
    public init() {}

    public func decide(_ operation: Operation, _ caller: Caller, _ proposal: Proposal) async
        -> Decision
    {
        .allow
    }
}
