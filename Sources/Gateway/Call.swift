import Buckets
import EventLoop
import Glibc
import HTTPServer

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
    let caller: Caller
    var record: RequestRecord
    private(set) var operation: Operation?
    private let policy: any Policy
    private let wallClock: @Sendable () -> Int64

    init(
        _ exchange: Exchange, requestId: String, _ policy: any Policy,
        now: @escaping @Sendable () -> Int64
    ) {
        self.exchange = exchange
        self.policy = policy
        wallClock = now
        caller = Caller(peer: exchange.peer, isSecure: exchange.isSecure)
        let target = exchange.head.target
        let mark = target.utf8.firstIndex(of: UInt8(ascii: "?"))
        record = RequestRecord(
            requestId: requestId, method: exchange.head.method,
            path: mark.map { String(target[..<$0]) } ?? target, status: 0, peer: exchange.peer,
            version: exchange.version, isSecure: exchange.isSecure)
    }

    var fields: HeaderFields { exchange.head.fields }

    var isHead: Bool { exchange.head.method == "HEAD" }

    /// Seconds since 1970.
    var now: Int64 { wallClock() }

    /// What is asked is known from here on.
    func begin(_ operation: Operation) {
        self.operation = operation
        record.operation = operation.kind
    }

    /// Decides, then does it.
    func perform(_ action: Action, on bucket: GatewayBucket) async throws(Problem) -> Answer {
        switch action {
        case .download(let name): try await download(name, bucket)
        case .metadata(let name): try await metadata(name, bucket)
        case .upload(let name, let request): try await upload(name, request, bucket)
        case .patch(let name): try await patch(name, bucket)
        case .delete(let name): try await delete(name, bucket)
        case .list(let request): try await list(request, bucket)
        }
    }

    /// Asks the policy.
    /// - Parameter folder: In place of the operation's name.
    /// - Throws: ``Problem``, which tells the client nothing of why.
    func decide(_ proposal: Proposal = Proposal(), folder: String? = nil) async throws(Problem) {
        guard var operation else { return }
        if let folder { operation.name = folder }
        switch await policy.decide(operation, caller, proposal) {
        case .allow: return
        case .deny(let cause):
            throw Problem(.unauthorized, "The caller may not do this.", cause: cause)
        case .unauthenticated(let cause):
            throw Problem(
                .unauthenticated, "Credentials are missing or not valid.", cause: cause,
                field: ("www-authenticate", "Bearer"))
        }
    }

    /// The conditions of a write, which the store must be able to decide together with it.
    func writeConditions(_ bucket: GatewayBucket) throws(Problem) -> Preconditions {
        let conditions = try Preconditions(fields, now: now)
        if !conditions.isEmpty, !bucket.driver.capabilities.atomicPreconditions {
            throw Problem(
                .notImplemented, "The bucket's store can't decide preconditions with a write.")
        }
        return conditions
    }

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
    func finished(_ answer: Answer, _ outcome: ResponseOutcome) -> RequestRecord {
        record.status = answer.head.status
        record.bytesOut = outcome.bodyBytes
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

/// Seconds since 1970 by the system's clock.
@Sendable public func systemSeconds() -> Int64 {
    var time = timespec()
    clock_gettime(CLOCK_REALTIME, &time)
    return Int64(time.tv_sec)
}
