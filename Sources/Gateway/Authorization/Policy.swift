import Buckets
import Identity
import SecurityRules
import System
import Wire

/// The caller of a request.
public struct Caller: Sendable {
    /// The client's address, `host:port`.
    public var peer: String
    /// Whether the connection uses TLS.
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

    /// Becomes the caller of an earlier request; anonymous for nil.
    mutating func become(_ saved: SavedCaller?) {
        principal = saved?.principal
        auth = saved?.auth
    }
}

/// The object that an access would store, as far as it is known at the time of the decision.
public struct ProposedObject: Sendable, Equatable {
    /// A reference, because the facts are large and each request to a policy has a copy. nil if nothing is known, as for
    /// accesses that store nothing.
    private var known: Known?

    private struct Facts: Equatable {
        var attributes: ObjectAttributes?
        var patch: AttributePatch?
        var size: UInt64?
        var md5: [UInt8]?
        var crc32c: UInt32?
        var contentType: String?
        var isComplete = false
    }

    /// Safety: changed only by a ``ProposedObject`` that holds the only reference.
    private final class Known: @unchecked Sendable {
        var facts: Facts
        init(_ facts: Facts) { self.facts = facts }
    }

    /// No proposed object, or an unknown one.
    public init() {}

    /// The properties of an upload; nil for other accesses, or if they are not known.
    public var attributes: ObjectAttributes? {
        get { known?.facts.attributes }
        set { change { $0.attributes = newValue } }
    }
    /// The changes of an update; nil before its body was read, and for other accesses.
    public var patch: AttributePatch? {
        get { known?.facts.patch }
        set { change { $0.patch = newValue } }
    }
    /// The size in bytes: declared before the body, actual after it; nil if unknown.
    public var size: UInt64? {
        get { known?.facts.size }
        set { change { $0.size = newValue } }
    }
    /// 16 bytes. The declared digest before the body, the actual one after it; nil if unknown.
    public var md5: [UInt8]? {
        get { known?.facts.md5 }
        set { change { $0.md5 = newValue } }
    }
    /// The declared digest before the body, the actual one after it; nil if unknown.
    public var crc32c: UInt32? {
        get { known?.facts.crc32c }
        set { change { $0.crc32c = newValue } }
    }
    /// Whether the store has the bytes. Digests that are nil then are not known later either.
    public var isComplete: Bool {
        get { known?.facts.isComplete ?? false }
        set { change { $0.isComplete = newValue } }
    }
    /// The content type of an upload, if nothing else in ``attributes`` is known.
    var contentType: String? {
        get { known?.facts.contentType }
        set { change { $0.contentType = newValue } }
    }

    private mutating func change(_ body: (inout Facts) -> Void) {
        if !isKnownUniquelyReferenced(&known) { known = Known(known?.facts ?? Facts()) }
        if let known { body(&known.facts) }
    }

    public static func == (left: ProposedObject, right: ProposedObject) -> Bool {
        (left.known?.facts ?? Facts()) == (right.known?.facts ?? Facts())
    }
}

/// The input of a policy's decision.
public struct AuthorizationRequest: Sendable {
    public var access: RequestedAccess
    public var caller: Caller
    public var proposal: ProposedObject
    public var existing: CurrentObject
    /// The parameters of the query.
    public var parameters: [BytewiseString: String]
    /// Whether ``existing`` is only used to compute the result of an update. Rules that read it can't decide then.
    public var hidesExisting = false
    /// The results of document lookups.
    public var documents: [DocumentPath: Lookup] = [:]
    /// Seconds since 1970: the access must be allowed at every time until then. nil for the current time only.
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

/// A policy's decision.
public enum Decision: Sendable, Equatable {
    case allow
    /// 403. The cause is for the log alone.
    case deny(cause: String)
    /// 401: the caller may try again with credentials. The cause is for the log alone.
    case unauthenticated(cause: String)
    /// 403: the rules took longer than ``Ruleset/maximumDecisionTime``.
    case timedOut
    /// 400: no caller may do this. The client gets the reason.
    case impossible(String)
    /// The decision depends on ``AuthorizationRequest/existing``, which is not known.
    case needsExisting
    /// The decision depends on these documents, which are not in ``AuthorizationRequest/documents``.
    case needsDocuments([DocumentPath])
    /// The decision depends on the size or digests of the body, which are not known yet.
    case needsBody
    /// The decision changes before ``AuthorizationRequest/until``.
    case needsTime
}

/// Decides on accesses. A policy is evaluated before the first byte of a body, and again with the actual size and
/// digests before an upload becomes visible. For a list without delimiter it is also evaluated for each folder that a
/// page would reveal. A policy is pure: it never waits, but reports which inputs it needs.
public protocol Policy: Sendable {
    /// The policy in effect, for several related decisions.
    var current: any Policy { get }

    /// Whether an access is allowed.
    func decide(_ request: AuthorizationRequest) -> Decision

    /// The largest size in bytes of an upload that may be allowed; nil if no limit is known. Never too small.
    func largestUpload(_ request: AuthorizationRequest) -> UInt64?

    /// The decision of the shadow rules on a request that was decided; nil if there are none.
    func shadowDecision(_ request: AuthorizationRequest) -> Decision?

    /// What the rules evaluate for a request; nil if there are none.
    func evaluation(of request: AuthorizationRequest) -> RulesEvaluation?
}

extension Policy {
    public var current: any Policy { self }

    public func evaluation(of request: AuthorizationRequest) -> RulesEvaluation? { nil }
}

/// A request as the rules see it, and the rules of that moment: enough to explain the decision, and to decide again.
public final class RulesEvaluation: Sendable {
    public let request: SecurityRules.Request
    public let rules: Ruleset

    public init(_ request: SecurityRules.Request, _ rules: Ruleset) {
        self.request = request
        self.rules = rules
    }
}

/// `rules: none`: everything is allowed to everyone, explicitly.
public struct OpenPolicy: Policy {
    private let shadow: (any Policy)?

    /// - Parameter shadow: Shadow rules.
    public init(shadow: (any Policy)? = nil) { self.shadow = shadow }

    public func decide(_ request: AuthorizationRequest) -> Decision { .allow }

    public func largestUpload(_ request: AuthorizationRequest) -> UInt64? { nil }

    public func shadowDecision(_ request: AuthorizationRequest) -> Decision? {
        shadow?.decide(request)
    }
}

/// The policy in effect. It may be replaced during a request, whose last decision uses the new policy.
public final class CurrentPolicy: Policy {
    private let policy: Lock<any Policy>

    public init(_ policy: any Policy) { self.policy = Lock(policy) }

    /// Replaces the policy in effect.
    public func replace(_ new: any Policy) { policy.withLock { $0 = new } }

    public var current: any Policy { policy.withLock { $0 } }

    public func decide(_ request: AuthorizationRequest) -> Decision { current.decide(request) }

    public func largestUpload(_ request: AuthorizationRequest) -> UInt64? {
        current.largestUpload(request)
    }

    public func shadowDecision(_ request: AuthorizationRequest) -> Decision? {
        current.shadowDecision(request)
    }

    public func evaluation(of request: AuthorizationRequest) -> RulesEvaluation? { current.evaluation(of: request) }
}

/// Denies everything. Used if there are no rules.
public struct ClosedPolicy: Policy {
    public init() {}

    public func decide(_ request: AuthorizationRequest) -> Decision {
        .deny(cause: "there are no rules")
    }

    public func largestUpload(_ request: AuthorizationRequest) -> UInt64? { nil }

    public func shadowDecision(_ request: AuthorizationRequest) -> Decision? { nil }
}
