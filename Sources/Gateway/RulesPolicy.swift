import Buckets
import EventLoop
import SecurityRules
import Wire

/// Security Rules as the policy of a bucket.
public struct RulesPolicy: Policy {
    private let rules: Ruleset
    private let shadow: Ruleset?
    private let clock: @Sendable () -> Timestamp
    private let reasons = Reasons()

    /// - Parameters:
    ///   - rules: Those that are enforced.
    ///   - shadow: Rules on trial: asked beside the others, never enforced.
    ///   - clock: `request.time`.
    public init(
        _ rules: Ruleset, shadow: Ruleset? = nil,
        clock: @escaping @Sendable () -> Timestamp = RulesPolicy.now
    ) {
        self.rules = rules
        self.shadow = shadow
        self.clock = clock
    }

    /// The system's clock.
    @Sendable public static func now() -> Timestamp {
        let microseconds = DirectoryBucket.systemClock()
        let (seconds, rest) = microseconds.quotientAndRemainder(dividingBy: 1_000_000)
        return Timestamp(seconds: seconds, nanoseconds: Int32(rest) * 1000)
            ?? Timestamp(seconds: 0)!
    }

    public func decide(_ question: Question) -> Decision {
        let request = request(question)
        let decision = rules.decide(request)
        guard case .denied(let denial) = decision else {
            return RulesPolicy.answer(decision, question)
        }
        if denial.reason == .listNeedsVersion2 { return .impossible(denial.message) }
        let cause = reasons.look { reason(request, question) }
        return denial.readsCaller && question.caller.principal == nil
            ? .unauthenticated(cause: cause) : .deny(cause: cause)
    }

    /// Why, without what a query carries: it may be a secret.
    private func reason(_ request: Request, _ question: Question) -> String {
        var reason = rules.reason(request)
        for value in question.parameters.values where value.utf8.count > 2 {
            reason = reason.replacing(value, with: "<redacted>")
        }
        return reason
    }

    public func trial(_ question: Question) -> Decision? {
        guard let shadow else { return nil }
        return RulesPolicy.answer(shadow.decide(request(question)), question)
    }

    private static func answer(_ decision: SecurityRules.Decision, _ question: Question)
        -> Decision
    {
        switch decision {
        case .allowed: .allow
        case .denied(let denial): .deny(cause: denial.message)
        case .needs(let needs):
            // What an update leaves behind is known only together with what is there.
            if needs.existing || question.proposal.patch != nil && question.existing == .unknown {
                .needsExisting
            } else if !needs.documents.isEmpty {
                .needsDocuments(needs.documents)
            } else {
                .needsBody
            }
        }
    }

    // MARK: The request as the rules see it

    private func request(_ question: Question) -> Request {
        let operation = question.operation
        let caller = question.caller.principal?.caller
        var request = Request(
            operation.method, bucket: operation.bucket, object: operation.name, caller: caller,
            time: clock(), existing: existing(question), incoming: incoming(question))
        if !question.parameters.isEmpty {
            request.setParameters(question.parameters.mapValues(Value.string))
        }
        for (path, lookup) in question.documents { request.setDocument(path, lookup) }
        return request
    }

    private func existing(_ question: Question) -> Request.Existing {
        if question.operation.kind == .list { return .absent }
        switch question.existing {
        case .unknown: return .unknown
        case .absent: return .absent
        case .object(let object):
            var facts = ObjectFacts(name: object.name, bucket: question.operation.bucket)
            facts.set(.generation, .known(.int(object.generation)))
            facts.set(.metageneration, .known(.int(object.metageneration)))
            facts.set(.etag, .known(.string(object.etag)))
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

    private func incoming(_ question: Question) -> ObjectFacts? {
        switch question.operation.kind {
        case .get, .list, .delete: nil
        case .create: created(question.operation, question.proposal)
        case .update: updated(question)
        }
    }

    private func created(_ operation: Operation, _ proposal: Proposal) -> ObjectFacts {
        var facts = ObjectFacts(name: operation.name, bucket: operation.bucket)
        facts.set(.size, proposal.size.map { .known(.int(Int64(clamping: $0))) } ?? .unknown)
        facts.set(.md5Hash, proposal.md5.map { .known(.string(Base64.encode($0))) } ?? .unknown)
        facts.set(.crc32c, proposal.crc32c.map { .known(.string($0.base64)) } ?? .unknown)
        if let attributes = proposal.attributes {
            facts.set(attributes)
        } else {
            facts.setUnknown(stored: false)
            if let type = proposal.contentType { facts.set(.contentType, .known(.string(type))) }
        }
        return facts
    }

    private func updated(_ question: Question) -> ObjectFacts {
        var facts = ObjectFacts(name: question.operation.name, bucket: question.operation.bucket)
        let patch = question.proposal.patch
        switch question.existing {
        case .unknown: facts.setUnknown(stored: true)
        case .absent:
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
    /// What is told of stored bytes.
    fileprivate mutating func set(_ object: ObjectMetadata) {
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
        // Keys that only look alike are one in the language: the last of them counts.
        let pairs = attributes.customMetadata.sorted { $0.key < $1.key }
        let map = Dictionary(pairs.map { ($0.key.text, Value.string($0.value)) }) { _, last in last
        }
        set(.metadata, .known(.map(map)))
    }

    /// Before the body of an update, or before anybody has looked at its object.
    fileprivate mutating func setUnknown(stored: Bool) {
        for field in [
            ObjectField.contentType, .contentDisposition, .contentEncoding, .contentLanguage,
            .metadata,
        ] { set(field, .unknown) }
        if stored { for field in [ObjectField.size, .md5Hash, .crc32c] { set(field, .unknown) } }
    }
}

extension Operation {
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
    /// Why a request is denied, for the log: of each rule that was asked the part that decided.
    fileprivate func reason(_ request: Request) -> String {
        let explanation = explain(request)
        if explanation.blocks.isEmpty {
            return "no rule for \(request.method.name) matches the path"
        }
        var reasons: [String] = []
        for block in explanation.blocks {
            for rule in block.rules where reasons.count < 4 {
                let step = rule.condition.map(decisive)
                let place = step?.range.lowerBound ?? rule.range.lowerBound
                let text = step.map { "\($0.text) is \($0.outcome)" } ?? rule.outcome.description
                reasons.append("\(fileName):\(place.line):\(place.column): \(text)")
            }
        }
        return reasons.joined(separator: "; ")
    }

    /// The innermost part that has the outcome of the whole.
    private func decisive(_ step: Explanation.Step) -> Explanation.Step {
        var step = step
        while let part = step.parts.first(where: { $0.outcome == step.outcome }) { step = part }
        return step
    }
}

/// Looks for the reasons of denials, for at most ten milliseconds of each second: it takes many times as long as to decide.
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
            return
                "denied by the rules; so many denials this second that the reason was not looked for"
        }
        let reason = find()
        let spent = EventLoop.monotonicNow() - begin
        state.withLock { $0.spent += spent }
        return reason
    }
}
