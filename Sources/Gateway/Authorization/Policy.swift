import Buckets
import Identity
import SecurityRules
import System
import Wire

/// Who asks.
public struct Caller: Sendable {
    /// The client's address, `host:port`.
    public var peer: String
    /// Whether the connection is encrypted.
    public var isSecure: Bool
    /// The verified identity; nil if the caller is anonymous.
    public private(set) var principal: Principal?
    /// `request.auth`; nil if the caller is anonymous.
    private(set) var auth: SecurityRules.Caller?

    /// Creates an anonymous caller.
    public init(peer: String, isSecure: Bool) {
        self.peer = peer
        self.isSecure = isSecure
    }

    /// Sets the verified identity.
    /// - Parameter certificate: The client certificate, if it was shown along with the principal's token.
    mutating func identify(_ principal: Principal, certificate: ClientIdentity? = nil) {
        self.principal = principal
        auth = certificate?.added(to: principal.auth) ?? principal.auth
    }
}

/// What an operation would leave behind, as far as it is known when it is decided.
public struct ProposedObject: Sendable, Equatable {
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
public struct AuthorizationRequest: Sendable {
    public var access: RequestedAccess
    public var caller: Caller
    public var proposal: ProposedObject
    public var existing: CurrentObject
    /// The parameters of the query.
    public var parameters: [BytewiseString: String]
    /// Whether ``existing`` only serves to make what an update leaves behind: rules that read it can't decide.
    public var hidesExisting = false
    /// The results of document look-ups.
    public var documents: [DocumentPath: Lookup] = [:]
    /// Seconds since 1970: the operation must be allowed at every moment until then; nil for now alone.
    public var until: Int64?

    public init(
        _ access: RequestedAccess, _ caller: Caller, _ proposal: ProposedObject = ProposedObject(),
        existing: CurrentObject = .unknown, parameters: [BytewiseString: String] = [:]
    ) {
        self.access = access
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
    /// 403: the rules took longer than ``Ruleset/maximumDecisionTime``.
    case timedOut
    /// 400: nobody may, and the client gets the reason.
    case impossible(String)
    /// It depends on ``AuthorizationRequest/existing``, which is not known.
    case needsExisting
    /// It depends on these documents, which are not in ``AuthorizationRequest/documents``.
    case needsDocuments([DocumentPath])
    /// It depends on facts of the body, which are not known yet.
    case needsBody
    /// It is not the same at every moment until ``AuthorizationRequest/until``.
    case needsTime
}

/// Decides operations. It is asked before the first byte of a body, and where there is one again before anything of it
/// becomes visible, with the true facts; for a list without delimiter also for each folder that a page would reveal.
/// Pure: it waits for nothing, but says what it would have to know.
public protocol Policy: Sendable {
    /// Whether an operation may be performed.
    func decide(_ request: AuthorizationRequest) -> Decision

    /// The most bytes that an upload can have and still be allowed; nil where no limit is known. Never too small.
    func largestUpload(_ request: AuthorizationRequest) -> UInt64?

    /// What rules that are on trial say of a request that was decided; nil where there are none.
    func trial(_ request: AuthorizationRequest) -> Decision?
}

/// `rules: none`: everything is open to everybody, on purpose.
public struct OpenPolicy: Policy {
    private let shadow: (any Policy)?

    /// - Parameter shadow: Rules on trial.
    public init(shadow: (any Policy)? = nil) { self.shadow = shadow }

    public func decide(_ request: AuthorizationRequest) -> Decision { .allow }

    public func largestUpload(_ request: AuthorizationRequest) -> UInt64? { nil }

    public func trial(_ request: AuthorizationRequest) -> Decision? { shadow?.decide(request) }
}

/// The policy that is in effect: a request that takes its time is decided at its end by what then holds.
public final class CurrentPolicy: Policy {
    private let policy: Lock<any Policy>

    public init(_ policy: any Policy) { self.policy = Lock(policy) }

    /// Puts another policy into effect.
    public func replace(_ new: any Policy) { policy.withLock { $0 = new } }

    public func decide(_ request: AuthorizationRequest) -> Decision {
        policy.withLock { $0 }.decide(request)
    }

    public func largestUpload(_ request: AuthorizationRequest) -> UInt64? {
        policy.withLock { $0 }.largestUpload(request)
    }

    public func trial(_ request: AuthorizationRequest) -> Decision? {
        policy.withLock { $0 }.trial(request)
    }
}

/// Nobody may do anything: where there are no rules.
public struct ClosedPolicy: Policy {
    public init() {}

    public func decide(_ request: AuthorizationRequest) -> Decision {
        .deny(cause: "there are no rules")
    }

    public func largestUpload(_ request: AuthorizationRequest) -> UInt64? { nil }

    public func trial(_ request: AuthorizationRequest) -> Decision? { nil }
}
