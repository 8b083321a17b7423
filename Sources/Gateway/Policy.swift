import Buckets
import EventLoop
import Identity
import SecurityRules

/// Who asks.
public struct Caller: Sendable {
    /// The client's address, `host:port`.
    public var peer: String
    /// Whether the connection is encrypted.
    public var isSecure: Bool
    /// Who it has shown to be; nil where it showed nothing.
    public var principal: Principal?

    public init(peer: String, isSecure: Bool, principal: Principal? = nil) {
        self.peer = peer
        self.isSecure = isSecure
        self.principal = principal
    }
}

/// What an operation would leave behind, as far as it is known when it is decided.
public struct Proposal: Sendable, Equatable {
    /// The properties of an upload; nil for other operations, and where they are not known.
    public var attributes: ObjectAttributes?
    /// The change of an update; nil before its body has come, and for other operations.
    public var patch: AttributePatch?
    /// Bytes: as declared before the body, true at the end; nil while nobody knows.
    public var size: UInt64?
    /// 16 bytes: as declared before the body, true at the end; nil while nobody knows.
    public var md5: [UInt8]?
    /// As declared before the body, true at the end; nil while nobody knows.
    public var crc32c: UInt32?
    /// The type of an upload of which nothing else of ``attributes`` is known.
    var contentType: String?

    /// Nothing is proposed, or nothing is known of it.
    public init() {}
}

/// What a policy is asked.
public struct Question: Sendable {
    public var operation: Operation
    public var caller: Caller
    public var proposal: Proposal
    public var existing: Existing
    /// The parameters of the query.
    public var parameters: [String: String]
    /// What came of looking for documents, by their paths in the rules.
    public var documents: [String: Lookup] = [:]

    public init(
        _ operation: Operation, _ caller: Caller, _ proposal: Proposal = Proposal(),
        existing: Existing = .unknown, parameters: [String: String] = [:]
    ) {
        self.operation = operation
        self.caller = caller
        self.proposal = proposal
        self.existing = existing
        self.parameters = parameters
    }
}

/// What a policy says.
public enum Decision: Sendable, Equatable {
    case allow
    /// 403. The cause is for the log alone.
    case deny(cause: String)
    /// 401: the caller may try again with credentials. The cause is for the log alone.
    case unauthenticated(cause: String)
    /// 400: nobody may, and the client is told why.
    case impossible(String)
    /// It depends on ``Question/existing``, which is not known.
    case needsExisting
    /// It depends on these documents, which are not in ``Question/documents``.
    case needsDocuments([String])
    /// It depends on facts of the body, which are not known yet.
    case needsBody
}

/// Decides operations. It is asked before the first byte of a body, and where there is one again before anything of it
/// becomes visible, with the true facts; for a list without delimiter also for each folder that a page would reveal.
/// Pure: it waits for nothing, but says what it would have to know.
public protocol Policy: Sendable {
    /// Whether an operation may be performed.
    func decide(_ question: Question) -> Decision

    /// What rules that are on trial say of a question that was decided; nil where there are none.
    func trial(_ question: Question) -> Decision?
}

/// `rules: none`: everything is open to everybody, on purpose.
public struct OpenPolicy: Policy {
    private let shadow: (any Policy)?

    /// - Parameter shadow: Rules on trial.
    public init(shadow: (any Policy)? = nil) { self.shadow = shadow }

    public func decide(_ question: Question) -> Decision { .allow }

    public func trial(_ question: Question) -> Decision? { shadow?.decide(question) }
}

/// The policy that is in effect: a request that takes its time is decided at its end by what then holds.
public final class CurrentPolicy: Policy {
    private let policy: Lock<any Policy>

    public init(_ policy: any Policy) { self.policy = Lock(policy) }

    /// Puts another policy into effect.
    public func replace(_ new: any Policy) { policy.withLock { $0 = new } }

    public func decide(_ question: Question) -> Decision {
        policy.withLock { $0 }.decide(question)
    }

    public func trial(_ question: Question) -> Decision? {
        policy.withLock { $0 }.trial(question)
    }
}

/// Nobody may do anything: where there are no rules.
public struct ClosedPolicy: Policy {
    public init() {}

    public func decide(_ question: Question) -> Decision { .deny(cause: "there are no rules") }

    public func trial(_ question: Question) -> Decision? { nil }
}
