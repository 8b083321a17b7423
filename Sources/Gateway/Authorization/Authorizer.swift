import Buckets
import HTTPServer
import SecurityRules
import System
import Wire

/// Authorizes one request with the bucket's policy, or with the grant that the request shows, and looks up what they
/// need. Confined to the request's loop.
final class Authorizer {
    let context: RequestContext
    private let bucket: Bucket
    private var access: RequestedAccess
    /// Decides instead of the policy, or before it.
    let grant: (any Grant)?
    /// The query's parameters, for the policy.
    let parameters: [BytewiseString: String]
    /// The proposed object, as far as it is known.
    var proposal = ProposedObject()
    /// The end of the time for which the access must be allowed, in seconds since 1970; nil for the current time only.
    var until: Int64?
    /// Looks up the existing object in the cache; nil to ask the store. Only for reads.
    var lookup: CachedLookup?
    /// The results of document lookups, and the cause of a failed one.
    private var documents: [DocumentPath: Lookup] = [:]
    private var lookupFailure: String?

    init(
        _ context: RequestContext, _ bucket: Bucket, _ access: RequestedAccess, _ grant: (any Grant)?,
        parameters: [BytewiseString: String]
    ) {
        self.context = context
        self.bucket = bucket
        self.access = access
        self.grant = grant
        self.parameters = parameters
    }

    /// Changes the method, from now on.
    func become(_ kind: RequestedAccess.Kind) {
        access.kind = kind
        context.record.operation = kind
    }

    /// The inputs that a decision still needs.
    enum UnresolvedInput { case nothing, existing, body, time }

    /// Evaluates the policy. Looks up the existing object if the decision depends on it.
    func evaluate(_ existing: inout CurrentObject, _ name: ObjectName) async throws(Problem)
        -> UnresolvedInput
    {
        let missing = try await evaluate(existing)
        guard missing == .existing else { return missing }
        if let lookup {
            existing = try await lookup.current(name, in: bucket)
        } else {
            existing = try await bucket.current(name)
        }
        return try await evaluate(existing)
    }

    /// Evaluates the policy with all inputs that can be known.
    func authorize(_ existing: inout CurrentObject, _ name: ObjectName) async throws(Problem) {
        try require(try await evaluate(&existing, name))
    }

    /// Denies the request if an input is missing and can't become known.
    func require(_ missing: UnresolvedInput) throws(Problem) {
        guard missing != .nothing else { return }
        context.record.note(.denied, shadow: nil)
        throw Problem(
            .unauthorized, Problem.denied,
            cause: "the decision depends on the \(missing), which is not known")
    }

    /// Evaluates the policy, and looks up the documents that it needs.
    /// - Parameter folder: Used instead of the access's name.
    /// - Throws: ``Problem``, which does not contain the reason.
    func evaluate(_ existing: CurrentObject = .unknown, folder: String? = nil) async throws(Problem) -> UnresolvedInput
    {
        // Decisions of other connections may have used up the turn.
        try await context.giveWay()
        var decision = decide(existing, folder)
        while case .needsDocuments(let paths) = decision {
            let unknown = paths.filter { documents[$0] == nil }
            // Without new documents the same evaluation would repeat forever.
            guard !unknown.isEmpty else {
                decision = .deny(cause: "the rules ask again for documents that were looked up")
                context.record.note(.denied, shadow: nil)
                break
            }
            try await look(at: unknown)
            decision = decide(existing, folder)
        }
        return try missing(decision)
    }

    private func look(at unknown: [DocumentPath]) async throws(Problem) {
        for path in unknown {
            guard !context.exchange.isClientGone else { throw RequestContext.clientGone }
            documents[path] = await look(path)
        }
    }

    // Synchronous, so that the large request lives on the stack and not in the task's memory.
    private func decide(_ existing: CurrentObject, _ folder: String?) -> Decision {
        // Compared first, because unwrapping copies it.
        if grant != nil, let decision = grant?.decide(existing, now: context.now) {
            switch decision {
            case .allow:
                context.record.note(.allowed, shadow: nil)
            case .deny: context.record.note(.denied, shadow: nil)
            default: break
            }
            return decision
        }
        var request = request(existing)
        if let folder { request.access.name = folder }
        request.documents = documents
        request.until = until
        let begin = EventLoop.monotonicNow()
        // The shadow rules of the same rules, which may be replaced meanwhile.
        let policy = bucket.policy.current
        let decision = policy.decide(request)
        context.record.decisionNanoseconds += EventLoop.monotonicNow() - begin
        if context.watch != nil { keep(decision, request, policy, isOfFolder: folder != nil) }
        switch decision {
        case .needsExisting, .needsDocuments, .needsBody, .needsTime: break
        case .allow: context.record.note(.allowed, shadow: policy.shadowDecision(request))
        case .deny, .unauthenticated, .timedOut, .impossible:
            if decision == .timedOut { context.record.isDecisionTimedOut = true }
            context.record.note(.denied, shadow: policy.shadowDecision(request))
        }
        return decision
    }

    /// Keeps what was decided, in the record. Of a list's folders, only the denied one counts.
    @inline(never)
    private func keep(
        _ decision: Decision, _ request: AuthorizationRequest, _ policy: any Policy, isOfFolder: Bool
    ) {
        switch decision {
        case .needsExisting, .needsDocuments, .needsBody, .needsTime: return
        case .allow where isOfFolder: return
        default: break
        }
        if context.watch?.admits(decision != .allow, at: EventLoop.monotonicNow()) == true {
            context.record.evaluation = policy.evaluation(of: request)
        }
    }

    private func request(_ existing: CurrentObject) -> AuthorizationRequest {
        AuthorizationRequest(access, context.caller, proposal, existing: existing, parameters: parameters)
    }

    private func missing(_ decision: Decision) throws(Problem) -> UnresolvedInput {
        switch decision {
        case .needsExisting, .needsDocuments: return .existing
        case .needsBody: return .body
        case .needsTime: return .time
        case .allow: return .nothing
        case .deny(let cause):
            if let problem = grant?.denial(cause) { throw problem }
            throw Problem(.unauthorized, Problem.denied, cause: explained(cause))
        case .unauthenticated(let cause):
            throw Problem(
                .unauthenticated, Problem.deniedAnonymous, cause: explained(cause),
                field: Problem.challenge)
        case .timedOut:
            throw Problem(
                .unauthorized, Problem.denied, cause: "the rules took longer than \(Ruleset.maximumDecisionTime)")
        case .impossible(let reason): throw Problem(.invalidArgument, reason)
        }
    }
}

extension Authorizer {
    /// The largest upload that the policy can allow, in bytes; nil if it sets no limit.
    func largestUpload() -> UInt64? {
        grant == nil ? bucket.policy.largestUpload(request(.unknown)) : nil
    }

    /// Whether the policy allows the patch by its result alone, for any existing object.
    func isAllowedByResult(_ existing: CurrentObject) -> Bool {
        if grant != nil { return false }
        var request = request(existing)
        request.documents = documents
        request.hidesExisting = true
        return bucket.policy.decide(request) == .allow
    }

    /// Whether the policy allows a `get` of a listed object by its name alone. It looks up no documents
    /// and is no decision on the request itself, so nothing is logged.
    func isReadable(_ name: String) -> Bool {
        if grant != nil { return false }
        var request = request(.unknown)
        request.access = RequestedAccess(.get, bucket: bucket.name, name: ObjectName.rulesPath(of: name))
        request.documents = documents
        return bucket.policy.decide(request) == .allow
    }

    /// The policy's decision on the access to a folder. It is no decision on the request itself, so nothing is logged.
    func decision(of folder: String) -> Decision {
        if grant != nil { return .deny(cause: "a grant is for one object") }
        var request = request(.unknown)
        request.access.name = folder
        request.documents = documents
        return bucket.policy.decide(request)
    }

    /// Looks up documents that a decision needs.
    /// - Returns: Whether there were any that had not been looked up.
    func lookUp(_ paths: [DocumentPath]) async throws(Problem) -> Bool {
        let unknown = paths.filter { documents[$0] == nil }
        try await look(at: unknown)
        return !unknown.isEmpty
    }

    /// The maximum number of documents that one request may look up, as in the rules language.
    private static let maximumDocuments = 2

    /// Looks up a document. A failure is an error in the rules, and is logged.
    private func look(_ path: DocumentPath) async -> Lookup {
        guard let firestore = bucket.firestore else {
            lookupFailure = "no firestore.project is configured"
            return .failed
        }
        guard documents.count < Authorizer.maximumDocuments else {
            lookupFailure =
                "a request can look up \(Authorizer.maximumDocuments) documents at most"
            return .failed
        }
        let (lookup, failure) = await firestore.look(path)
        if let failure { lookupFailure = failure }
        return lookup
    }

    private func explained(_ cause: String) -> String {
        lookupFailure.map { "\(cause); a look-up in Firestore failed: \($0)" } ?? cause
    }
}
