import Buckets
import SecurityRules
import System
import Wire

/// Security Rules as the policy of a bucket.
public struct RulesPolicy: Policy {
    private let rules: Ruleset
    private let shadow: Ruleset?
    private let clock: @Sendable () -> Timestamp
    private let decisionClock: Ruleset.Clock
    private let reasons = Reasons()

    /// - Parameters:
    ///   - rules: The enforced rules.
    ///   - shadow: Shadow rules: evaluated too, never enforced.
    ///   - decisionClock: Measures the duration of a decision, which is limited.
    ///   - clock: Provides `request.time`.
    public init(
        _ rules: Ruleset, shadow: Ruleset? = nil, decisionClock: @escaping Ruleset.Clock = Ruleset.monotonicClock,
        clock: @escaping @Sendable () -> Timestamp = RulesPolicy.now
    ) {
        self.rules = rules
        self.shadow = shadow
        self.decisionClock = decisionClock
        self.clock = clock
    }

    /// The system's clock.
    @Sendable public static func now() -> Timestamp {
        let microseconds = SystemClock.microseconds()
        let (seconds, rest) = microseconds.quotientAndRemainder(dividingBy: 1_000_000)
        return Timestamp(seconds: seconds, nanoseconds: Int32(rest) * 1000) ?? Timestamp(seconds: 0)!
    }

    public func decide(_ request: AuthorizationRequest) -> Decision {
        let evaluated = rulesRequest(request)
        let decision = rules.decide(evaluated, clock: decisionClock)
        guard case .denied(let denial) = decision else {
            return RulesPolicy.translated(decision, request)
        }
        if denial.reason == .listNeedsVersion2 { return .impossible(denial.message) }
        if denial.reason == .timeLimit { return .timedOut }
        let cause = reasons.look { reason(evaluated) }
        return denial.readsCaller && request.caller.principal == nil
            ? .unauthenticated(cause: cause) : .deny(cause: cause)
    }

    public func largestUpload(_ request: AuthorizationRequest) -> UInt64? {
        rules.largestUpload(for: rulesRequest(request))
    }

    /// The reason, without the values of a query, which may be secrets.
    private func reason(_ evaluated: Request) -> String {
        let explanation = rules.explain(evaluated, clock: Ruleset.monotonicClock)
        return rules.reason(evaluated, ParameterRedaction(evaluated).applied(to: explanation))
    }

    public func shadowDecision(_ request: AuthorizationRequest) -> Decision? {
        guard let shadow else { return nil }
        return RulesPolicy.translated(shadow.decide(rulesRequest(request), clock: decisionClock), request)
    }

    public func evaluation(of request: AuthorizationRequest) -> RulesEvaluation? {
        RulesEvaluation(rulesRequest(request), rules)
    }

    private static func translated(
        _ decision: SecurityRules.Decision, _ request: AuthorizationRequest
    )
        -> Decision
    {
        switch decision {
        case .allowed: .allow
        case .denied(let denial): .deny(cause: denial.message)
        case .needs(let needs):
            // The result of an update is known only with the existing object.
            if needs.existing || request.proposal.patch != nil && request.existing == .unknown {
                .needsExisting
            } else if !needs.documents.isEmpty {
                .needsDocuments(needs.documents)
            } else if needs.time {
                .needsTime
            } else {
                .needsBody
            }
        }
    }

    // MARK: The request for the rules

    private func rulesRequest(_ request: AuthorizationRequest) -> Request {
        let access = request.access
        var evaluated = Request(
            access.method, bucket: access.bucket, object: access.name,
            caller: request.caller.auth, time: clock(), existing: existing(request),
            incoming: incoming(request))
        if !request.parameters.isEmpty {
            evaluated.setParameters(request.parameters.mapValues(Value.string))
        }
        if let until = request.until {
            evaluated.setTime(through: Timestamp(seconds: until) ?? .latest)
        }
        for (path, lookup) in request.documents { evaluated.setDocument(path, lookup) }
        return evaluated
    }

    private func existing(_ request: AuthorizationRequest) -> Request.Existing {
        if request.access.kind == .list { return .absent }
        if request.hidesExisting { return .unknown }
        switch request.existing {
        case .unknown: return .unknown
        case .absent: return .absent
        case .object(let object):
            var facts = ObjectFacts(name: object.name, bucket: request.access.bucket)
            facts.set(.timeCreated, moment(object.created))
            facts.set(.updated, moment(object.updated))
            facts.set(object)
            facts.set(object.attributes)
            return .object(facts)
        }
    }

    private func moment(_ milliseconds: Int64) -> Fact {
        let (seconds, rest) = milliseconds.quotientAndRemainder(dividingBy: 1000)
        let time = Timestamp(seconds: seconds, nanoseconds: Int32(rest) * 1_000_000)
        return time.map { .known(.timestamp($0)) } ?? .absent
    }

    private func incoming(_ request: AuthorizationRequest) -> ObjectFacts? {
        switch request.access.kind {
        case .get, .list, .delete: nil
        case .create: created(request.access, request.proposal)
        case .update: updated(request)
        }
    }

    private func created(_ access: RequestedAccess, _ proposal: ProposedObject) -> ObjectFacts {
        var facts = ObjectFacts(name: access.objectName, bucket: access.bucket)
        facts.setNotStored()
        facts.set(.size, proposal.size.map { .known(.int(Int64(clamping: $0))) } ?? .unknown)
        let missing: Fact = proposal.isComplete ? .absent : .unknown
        facts.set(.md5Hash, proposal.md5.map { .known(.string(Base64.encode($0))) } ?? missing)
        facts.set(.crc32c, proposal.crc32c.map { .known(.string($0.base64)) } ?? missing)
        if let attributes = proposal.attributes {
            facts.set(attributes)
        } else {
            facts.setUnknown(stored: false)
            if let type = proposal.contentType { facts.set(.contentType, .known(.string(type))) }
        }
        return facts
    }

    private func updated(_ request: AuthorizationRequest) -> ObjectFacts {
        var facts = ObjectFacts(name: request.access.objectName, bucket: request.access.bucket)
        let patch = request.proposal.patch
        switch request.existing {
        case .unknown: facts.setUnknown(stored: true)
        case .absent:
            facts.setNotStored()
            if let patch {
                facts.set(patch.applied(to: ObjectAttributes()))
            } else {
                facts.setUnknown(stored: false)
            }
        case .object(let object):
            facts.set(object)
            if let patch {
                facts.set(patch.applied(to: object.attributes))
            } else {
                facts.setUnknown(stored: false)
            }
        }
        return facts
    }
}

extension ObjectFacts {
    /// The properties of stored bytes.
    fileprivate mutating func set(_ object: ObjectMetadata) {
        set(.generation, .known(.int(object.generation)))
        set(.metageneration, .known(.int(object.metageneration)))
        set(.etag, .known(.string(object.etag)))
        set(.size, .known(.int(Int64(clamping: object.size))))
        set(.md5Hash, object.md5.map { .known(.string(Base64.encode($0))) } ?? .absent)
        set(.crc32c, object.crc32c.map { .known(.string($0.base64)) } ?? .absent)
    }

    fileprivate mutating func set(_ attributes: ObjectAttributes) {
        func fact(_ text: String?) -> Fact { .known(text.map(Value.string) ?? .null) }
        set(.contentType, fact(attributes.contentType))
        set(.contentDisposition, fact(attributes.contentDisposition))
        set(.contentEncoding, fact(attributes.contentEncoding))
        set(.contentLanguage, fact(attributes.contentLanguage))
        set(.cacheControl, fact(attributes.cacheControl))
        let map = attributes.customMetadata.mapValues(Value.string)
        set(.metadata, .known(map.isEmpty ? .null : .map(map)))
    }

    /// Before the body of an update, or before the existing object was looked up.
    fileprivate mutating func setUnknown(stored: Bool) {
        for field in [
            ObjectField.contentType, .contentDisposition, .contentEncoding, .contentLanguage, .cacheControl, .metadata,
        ] { set(field, .unknown) }
        guard stored else { return }
        for field in [
            ObjectField.size, .md5Hash, .crc32c, .generation, .metageneration, .etag,
        ] { set(field, .unknown) }
    }
}

extension RequestedAccess {
    fileprivate var method: Method {
        switch kind {
        case .get: .get
        case .list: .list
        case .create: .create
        case .update: .update
        case .delete: .delete
        }
    }
}

extension Ruleset {
    /// The reasons of a denial, for the log: for each evaluated rule, the part that decided.
    fileprivate func reason(_ request: Request, _ explanation: Explanation) -> String {
        if explanation.blocks.isEmpty {
            return "no rule for \(request.method.name) matches the path"
        }
        var reasons: [String] = []
        for block in explanation.blocks {
            for rule in block.rules where reasons.count < 4 {
                let step = rule.condition.map(decisive)
                let start = step?.range.lowerBound ?? rule.range.lowerBound
                let text = step.map { "\($0.text) is \($0.outcome)" } ?? rule.outcome.description
                reasons.append("\(fileName):\(start.line):\(start.column): \(text)")
            }
        }
        return reasons.joined(separator: "; ")
    }

    /// The innermost part that has the result of the whole.
    private func decisive(_ step: Explanation.Step) -> Explanation.Step {
        var step = step
        while let part = step.parts.first(where: { $0.outcome == step.outcome }) { step = part }
        return step
    }
}

/// Limits computing reasons to ten milliseconds per second: it takes many times as long as a decision.
private final class Reasons: Sendable {
    private static let budget: UInt64 = 10_000_000
    private let state = Lock((second: UInt64(0), spent: UInt64(0)))

    func look(_ find: () -> String) -> String {
        let begin = EventLoop.monotonicNow()
        let second = begin / 1_000_000_000
        let isPossible = state.withLock { state in
            if state.second != second { state = (second, 0) }
            return state.spent < Reasons.budget
        }
        guard isPossible else {
            return "denied by the rules; too many denials in this second to find the reason"
        }
        let reason = find()
        let spent = EventLoop.monotonicNow() - begin
        state.withLock { $0.spent += spent }
        return reason
    }
}
