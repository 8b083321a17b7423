import Buckets
import EventLoop
import HTTPServer
import SecurityRules
import Wire

/// An answer before it is sent.
struct Answer {
    var head: ResponseHead
    var body = ResponseBody.none

    init(status: Int, fields: HeaderFields = HeaderFields(reserving: 768)) {
        head = ResponseHead(status: status)
        head.fields = fields
    }

    init(status: Int, json: [UInt8], type: String = "application/json") {
        self.init(status: status)
        head.fields.append("content-type", type)
        head.fields.append("x-content-type-options", "nosniff")
        head.fields.append("cache-control", "no-store")
        body = .bytes(json)
    }

    /// Adds what every answer has. An answer to `HEAD` keeps only the length of its body.
    mutating func complete(requestId: String, isHead: Bool) {
        head.fields.append("x-request-id", requestId)
        guard isHead, case .bytes(let bytes) = body else { return }
        head.fields.append("content-length", bytes.count)
        body = .none
    }
}

/// One request on its way through the gateway, with its record. Confined to its loop.
final class Call {
    let exchange: Exchange
    var caller: Caller
    /// What the caller uses, where its group has limits.
    var lease: CallerLease?
    /// Whether a signed link stands for the decision.
    var isPermitted = false
    // Nothing that is called while it is accessed looks at it.
    @exclusivity(unchecked) var record: RequestRecord
    var operation: Operation?
    /// What the operation would leave behind, as far as it is known: part of what the policy is asked.
    var proposal = Proposal()
    /// The policy of the bucket that is asked for, and the query's parameters for it.
    private var policy: any Policy = ClosedPolicy()
    private var parameters: [String: String] = [:]
    /// Where documents are looked up, what came of it, and why it failed.
    private var firestore: FirestoreDocuments?
    private var documents: [String: Lookup] = [:]
    private var lookupFailure: String?
    private let wallClock: @Sendable () -> Int64

    init(_ exchange: Exchange, requestId: String, now: @escaping @Sendable () -> Int64) {
        self.exchange = exchange
        wallClock = now
        caller = Caller(peer: exchange.peer, isSecure: exchange.isSecure)
        let target = exchange.head.target
        let bytes = target.utf8.span
        let mark = bytes.indices.first { bytes[$0] == UInt8(ascii: "?") }
        record = RequestRecord(
            requestId: requestId, method: exchange.head.method,
            path: mark.map { String(Substring(target.utf8.prefix($0))) } ?? target, status: 0,
            peer: exchange.peer,
            version: exchange.version, isSecure: exchange.isSecure)
    }

    var fields: HeaderFields { exchange.head.fields }

    var isHead: Bool { exchange.head.method == "HEAD" }

    var isOptions: Bool { exchange.head.method == "OPTIONS" }

    /// Seconds since 1970.
    var now: Int64 { wallClock() }

    /// What is asked is known from here on.
    func begin(_ operation: Operation, _ bucket: GatewayBucket, _ query: ArraySlice<UInt8>?) {
        self.operation = operation
        policy = bucket.policy
        firestore = bucket.firestore
        if let query { parameters = Query.parameters(query) }
        record.operation = operation.kind
    }

    /// Decides, then does it.
    func perform(_ action: Action, on bucket: GatewayBucket, _ callers: Callers)
        async throws(Problem) -> Answer
    {
        switch action {
        case .download(let name): try await download(name, bucket)
        case .metadata(let name): try await metadata(name, bucket)
        case .upload(let name, let request): try await upload(name, request, bucket)
        case .patch(let name): try await patch(name, bucket)
        case .delete(let name): try await delete(name, bucket)
        case .list(let request): try await list(request, bucket)
        case .sign(let name): try await sign(name, bucket, callers)
        }
    }

    /// What a decision waits for.
    enum Missing { case nothing, existing, body }

    /// Asks the policy, and looks up the documents that it wants.
    /// - Parameter folder: In place of the operation's name.
    /// - Throws: ``Problem``, which tells the client nothing of why.
    func ask(_ existing: Existing = .unknown, folder: String? = nil) async throws(Problem)
        -> Missing
    {
        var decision = decide(existing, folder)
        while case .needsDocuments(let paths) = decision {
            for path in paths { documents[path] = await look(path) }
            decision = decide(existing, folder)
        }
        return try missing(decision)
    }

    // Not asynchronous: what is asked takes room on the stack, and not in a task for as long as the request takes.
    private func decide(_ existing: Existing, _ folder: String?) -> Decision {
        guard var operation else { return .deny(cause: "no operation") }
        if isPermitted {
            record.note(.allowed, trial: nil)
            return .allow
        }
        if let folder { operation.name = folder }
        var question = Question(
            operation, caller, proposal, existing: existing, parameters: parameters)
        question.documents = documents
        let begin = EventLoop.monotonicNow()
        let decision = policy.decide(question)
        record.decisionNanoseconds += EventLoop.monotonicNow() - begin
        switch decision {
        case .needsExisting, .needsDocuments, .needsBody: break
        case .allow: record.note(.allowed, trial: policy.trial(question))
        case .deny, .unauthenticated, .impossible:
            record.note(.denied, trial: policy.trial(question))
        }
        return decision
    }

    private func missing(_ decision: Decision) throws(Problem) -> Missing {
        switch decision {
        case .needsExisting, .needsDocuments: return .existing
        case .needsBody: return .body
        case .allow: return .nothing
        case .deny(let cause):
            throw Problem(.unauthorized, "The caller may not do this.", cause: explained(cause))
        case .unauthenticated(let cause):
            throw Problem(
                .unauthenticated, "Credentials are missing or not valid.", cause: explained(cause),
                field: Problem.challenge)
        case .impossible(let reason): throw Problem(.invalidArgument, reason)
        }
    }

    /// Documents that one request may look up, as the rules language has it.
    private static let maximumDocuments = 2

    /// Looks for a document; a failure is an error in the rules, and told to the log.
    private func look(_ path: String) async -> Lookup {
        guard let firestore else {
            lookupFailure = "no firestore.project is configured"
            return .failed
        }
        guard documents.count < Call.maximumDocuments else {
            lookupFailure = "a request can look up \(Call.maximumDocuments) documents at most"
            return .failed
        }
        let (lookup, failure) = await firestore.look(path)
        if let failure { lookupFailure = failure }
        return lookup
    }

    private func explained(_ cause: String) -> String {
        lookupFailure.map { "\(cause); a look-up in Firestore failed: \($0)" } ?? cause
    }

    /// Asks the policy, after a look at the object that is there where the decision depends on it.
    func ask(_ existing: inout Existing, _ name: ObjectName, _ bucket: GatewayBucket)
        async throws(Problem) -> Missing
    {
        let missing = try await ask(existing)
        guard missing == .existing else { return missing }
        existing = try await look(name, bucket)
        return try await ask(existing)
    }

    /// Decides with all that can be known.
    func decide(_ existing: inout Existing, _ name: ObjectName, _ bucket: GatewayBucket)
        async throws(Problem)
    {
        try require(try await ask(&existing, name, bucket))
    }

    /// What is missing when nothing more can become known is not allowed.
    func require(_ missing: Missing) throws(Problem) {
        guard missing != .nothing else { return }
        record.note(.denied, trial: nil)
        throw Problem(
            .unauthorized, "The caller may not do this.",
            cause: "the decision depends on the \(missing), which is not known")
    }

    /// What there is of that name now.
    func look(_ name: ObjectName, _ bucket: GatewayBucket) async throws(Problem) -> Existing {
        do throws(BucketError) {
            return .object(try await bucket.driver.stat(name.value))
        } catch {
            if error.code == .objectNotFound { return .absent }
            throw Problem(error)
        }
    }

    /// What the store can promise.
    func capabilities(_ bucket: GatewayBucket) async throws(Problem) -> Capabilities {
        do throws(BucketError) {
            return try await bucket.driver.capabilities()
        } catch {
            throw Problem(error)
        }
    }

    /// The conditions of a write, which the store must be able to decide together with it.
    /// - Parameter isAtomic: What the store must promise for them.
    func writeConditions(_ bucket: GatewayBucket, _ isAtomic: KeyPath<Capabilities, Bool>)
        async throws(Problem) -> Preconditions
    {
        let conditions = try Preconditions(fields, now: now)
        if !conditions.isEmpty, !(try await capabilities(bucket))[keyPath: isAtomic] {
            throw Problem(
                .notImplemented, "The bucket's store can't decide preconditions with this write.")
        }
        return conditions
    }

    /// The conditions with which a decision that read `existing` still holds when the change is made.
    /// - Parameter isAtomic: What the store must promise for that.
    func pinned(
        _ conditions: Preconditions, to existing: Existing, _ bucket: GatewayBucket,
        _ isAtomic: KeyPath<Capabilities, Bool>
    ) async throws(Problem) -> Preconditions {
        if existing == .unknown { return conditions }
        try check(conditions, existing)
        guard try await capabilities(bucket)[keyPath: isAtomic] else {
            throw Problem(
                .notImplemented,
                "The rules read the object that is there, and the bucket's store can't see to it that it stays."
            )
        }
        return conditions.pinned(to: existing)
    }

    /// Whether conditions hold for what is there.
    func check(_ conditions: Preconditions, _ existing: Existing) throws(Problem) {
        let object: ObjectMetadata? =
            switch existing {
            case .unknown, .absent: nil
            case .object(let found): found
            }
        if conditions.evaluate(object, reading: false) != nil {
            throw Problem(BucketError(.preconditionFailed))
        }
    }

    /// The answer where others changed the object again and again.
    static let overtaken = Problem(
        .overloaded, "The object is being changed by others; try again.",
        cause: "the object that was decided on was changed meanwhile", field: ("retry-after", "1"))

    /// The answer to a failure.
    func failed(_ problem: Problem) -> Answer {
        record.errorCode = problem.code.rawValue
        record.cause = problem.cause ?? problem.detail
        var answer = Answer(
            status: problem.code.status, json: problem.json(requestId: record.requestId),
            type: "application/problem+json")
        if let field = problem.field { answer.head.fields.append(field.name, field.value) }
        return answer
    }

    /// The record of the request when its answer has ended.
    func finished(_ status: Int, _ outcome: ResponseOutcome) -> RequestRecord {
        record.status = status
        record.bytesOut = outcome.bodyBytes
        lease?.end()
        switch outcome.end {
        case .complete: break
        case .peerGone:
            record.status = 499
            record.errorCode = nil
            record.cause = "the client went away"
        case .sourceFailed(let error):
            let problem = Problem(error as? BucketError ?? BucketError(.unavailable, "\(error)"))
            record.isBroken = true
            record.errorCode = problem.code.rawValue
            record.cause = "the store's bytes broke off: \(problem.cause ?? problem.detail)"
        }
        let end = EventLoop.monotonicNow()
        record.durationNanoseconds = end > exchange.started ? end - exchange.started : 0
        return record
    }
}
