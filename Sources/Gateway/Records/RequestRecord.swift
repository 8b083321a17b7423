import HTTPServer

/// The result of a request, complete when its response has ended. Every request gives one record, whether it succeeded,
/// was denied, failed or was reset. Each record makes one access log line and one measurement.
///
/// It contains no secrets: neither the query, which may contain a token, nor any header field. ``path`` and ``cause``
/// contain bytes from the client, so logs must escape them.
public struct RequestRecord: Sendable {
    /// The value of `X-Request-Id` in the response: visible ASCII, made by the gateway.
    public var requestId: String
    /// The operation on the bucket; nil if no route matched.
    public var operation: RequestedAccess.Kind?
    /// The bucket's name, if it is configured.
    public var bucket: String?
    /// The method as received: any token.
    public var method: String
    /// The target's path as received, percent-encoded, without the query.
    public var path: String
    /// The status of the response, or 499 if the client disconnected before the response was complete.
    public var status: Int
    /// Nanoseconds from the complete header block to the end of the response.
    public var durationNanoseconds: UInt64
    /// Bytes of the request body that were received.
    public var bytesIn: UInt64
    /// Bytes of the response body that were sent.
    public var bytesOut: UInt64
    /// The client's address, `host:port`.
    public var peer: String
    public var version: HTTPVersion
    /// Whether the connection used TLS.
    public var isSecure: Bool
    /// The caller's uid; nil for an anonymous caller. For a signed link, the ID of its key.
    public var principal: String?
    /// The configured group that the caller belongs to.
    public var group = Callers.anonymousGroup
    /// The caller limit that the request exceeded.
    var limit: CallerLimits.Limit?
    /// The policy's last decision; nil if it was not evaluated.
    public var decision: Verdict?
    /// The last decision of the shadow rules, if it differs.
    public var shadow: Verdict?
    /// Whether a decision exceeded the time limit of rules.
    var isDecisionTimedOut = false
    /// Nanoseconds for all decisions of the request together.
    public var decisionNanoseconds: UInt64 = 0
    /// The problem code in the response; nil for a success and for status 499.
    public var errorCode: String?
    /// Why the request failed, for the operator only; nil for a success.
    public var cause: String?
    /// Whether the gateway aborted the response after its ``status`` had been sent.
    public var isBroken = false
    /// Whether the server rejected the request before any handler: it was malformed, too large or too slow.
    public var isRejected = false

    /// The status class for logs and metrics, 1 to 5. An aborted response counts as 5xx whatever its status was. A
    /// rejected request counts as 4xx, even if its status is 501 or 505.
    public var statusClass: Int {
        if isBroken { return 5 }
        return isRejected ? 4 : min(max(status / 100, 1), 5)
    }

    public init(
        requestId: String, operation: RequestedAccess.Kind? = nil, bucket: String? = nil,
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

/// The decision about a request.
public enum Verdict: String, Sendable, CaseIterable {
    case allowed, denied
    /// The shadow rules need a value that the request did not load.
    case undetermined
}

extension RequestRecord {
    /// Records a decision, and the shadow rules' decision if it differs.
    mutating func note(_ verdict: Verdict, shadow decision: Decision?) {
        self.decision = verdict
        let found: Verdict? =
            switch decision {
            case nil: nil
            case .allow: .allowed
            case .deny, .unauthenticated, .timedOut, .impossible: .denied
            case .needsExisting, .needsDocuments, .needsBody, .needsTime: .undetermined
            }
        // A list is decided many times: the first difference is kept.
        if operation == .list, shadow != nil { return }
        shadow = found == verdict ? nil : found
    }
}

/// Receives the record of every request, on the request's event loop. Implementations must not block.
public protocol RequestObserver: Sendable {
    /// Called when the response has ended or the client has disconnected.
    func finished(_ record: RequestRecord)
}

extension RequestRecord {
    /// The record of a request that the server rejected before any handler: it was too large, malformed or too slow.
    /// Parts that were not read are `-`.
    public init(_ refused: RefusedRequest) {
        let path = refused.target.prefix { $0 != "?" }
        self.init(
            requestId: refused.requestId, method: refused.method.isEmpty ? "-" : refused.method,
            path: path.isEmpty ? "-" : String(path), status: refused.status,
            bytesOut: UInt64(refused.bodyBytes), peer: refused.peer, version: refused.version,
            isSecure: refused.isSecure, errorCode: refused.code, cause: refused.reason)
        isRejected = true
    }
}
