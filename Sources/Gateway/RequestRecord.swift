import HTTPServer

/// What a request turned out to be, known when its answer has ended. One record is one access line and one
/// measurement; successes, denials, errors and resets alike end in it.
///
/// Nothing in it is a secret: it has neither the query, which may carry a token, nor any header. ``path`` and
/// ``cause`` carry bytes that a client chose, so a log escapes them.
public struct RequestRecord: Sendable {
    /// As the client saw it in `X-Request-Id`: made by us, visible ASCII.
    public var requestId: String
    /// What was asked of the bucket; nil where no route was found.
    public var operation: Operation.Kind?
    /// The bucket's name, where it is one of ours.
    public var bucket: String?
    /// As it came: any token.
    public var method: String
    /// The target's path as it came, percent-encoded, without the query.
    public var path: String
    /// The status sent, or 499 where the client went away before the answer was complete.
    public var status: Int
    /// From the complete header block to the end of the answer, nanoseconds.
    public var durationNanoseconds: UInt64
    /// Bytes of the request's body that were taken.
    public var bytesIn: UInt64
    /// Bytes of the answer's body that were sent.
    public var bytesOut: UInt64
    /// The client's address, `host:port`.
    public var peer: String
    public var version: HTTPVersion
    /// Whether the connection was encrypted.
    public var isSecure: Bool
    /// The caller's uid; nil where it showed none. For a link, the key that signed it.
    public var principal: String?
    /// The configured group that the caller belongs to.
    public var group = Callers.anonymousGroup
    /// The limit that refused the request.
    var limit: CallerLimits.Limit?
    /// What the policy said last; nil where it was not asked.
    public var decision: Verdict?
    /// What rules on trial said last, where they said something else.
    public var trial: Verdict?
    /// For all decisions of the request together, nanoseconds.
    public var decisionNanoseconds: UInt64 = 0
    /// The problem's code as the client saw it; nil for a success and for a 499.
    public var errorCode: String?
    /// Why it failed, for the operator alone; nil for a success.
    public var cause: String?
    /// Whether the answer broke off by our fault after its ``status`` had been sent.
    public var isBroken = false

    /// 1 to 5: whose success or fault it is. A broken answer is ours, whatever its head said.
    public var statusClass: Int { isBroken ? 5 : min(max(status / 100, 1), 5) }

    public init(
        requestId: String, operation: Operation.Kind? = nil, bucket: String? = nil,
        method: String, path: String, status: Int, durationNanoseconds: UInt64 = 0,
        bytesIn: UInt64 = 0, bytesOut: UInt64 = 0, peer: String, version: HTTPVersion,
        isSecure: Bool = false, errorCode: String? = nil, cause: String? = nil
    ) {
        self.requestId = requestId
        self.operation = operation
        self.bucket = bucket
        self.method = method
        self.path = path
        self.status = status
        self.durationNanoseconds = durationNanoseconds
        self.bytesIn = bytesIn
        self.bytesOut = bytesOut
        self.peer = peer
        self.version = version
        self.isSecure = isSecure
        self.errorCode = errorCode
        self.cause = cause
    }
}

/// How a request was decided.
public enum Verdict: String, Sendable, CaseIterable {
    case allowed, denied
    /// Rules on trial would have needed what nobody looked for.
    case undetermined
}

extension RequestRecord {
    /// Takes down a decision, and what rules on trial say where that is something else.
    mutating func note(_ verdict: Verdict, trial decision: Decision?) {
        self.decision = verdict
        let found: Verdict? =
            switch decision {
            case nil: nil
            case .allow: .allowed
            case .deny, .unauthenticated, .impossible: .denied
            case .needsExisting, .needsDocuments, .needsBody: .undetermined
            }
        // A list is decided many times: its first difference counts.
        if operation == .list, trial != nil { return }
        trial = found == verdict ? nil : found
    }
}

/// Is told of every request's end, on the request's loop: it must not block.
public protocol RequestObserver: Sendable {
    /// The answer has ended, or the client is gone.
    func finished(_ record: RequestRecord)
}

extension RequestRecord {
    /// The record of a request that no handler saw: too large, malformed or too slow. What was not read of it is `-`.
    public init(_ refused: RefusedRequest) {
        let path = refused.target.prefix { $0 != "?" }
        self.init(
            requestId: refused.requestId, method: refused.method.isEmpty ? "-" : refused.method,
            path: path.isEmpty ? "-" : String(path), status: refused.status,
            bytesOut: UInt64(refused.bodyBytes), peer: refused.peer, version: refused.version,
            isSecure: refused.isSecure, errorCode: refused.code, cause: refused.reason)
    }
}
