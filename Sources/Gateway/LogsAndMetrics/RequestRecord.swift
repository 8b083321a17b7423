import Buckets
import HTTPClient
import HTTPServer
import Synchronization

/// The result of a request, complete when its response has ended. Every request gives one record, whether it succeeded,
/// was denied, failed or was reset. Each record makes one access log line and one measurement.
///
/// It contains no secrets: neither the query, which may contain a token, nor any header field but those named here.
/// Texts from the client may contain any byte, so logs must escape them.
///
/// A class, because a copy of its many texts would cost a request a hundredth of its time.
///
/// Safety: changed by the request's loop until the observers receive it, and never after.
public final class RequestRecord: @unchecked Sendable {
    /// The value of `X-Request-Id` in the response: visible ASCII, made by the gateway.
    public let requestId: String
    /// The operation on the bucket; nil if no route matched.
    public internal(set) var operation: RequestedAccess.Kind?
    /// The name of the operation in the request's protocol, if it has one: `PutObject`.
    public internal(set) var protocolOperation: String?
    /// The bucket's name, if it is configured.
    public internal(set) var bucket: String?
    /// The method as received: any token.
    public let method: String
    /// The target's path as received, percent-encoded, without the query.
    public let path: String
    /// The status of the response, or 499 if the client disconnected before the response was complete.
    public internal(set) var status: Int
    /// When the header block was complete, in monotonic nanoseconds.
    package internal(set) var started: UInt64 = 0
    /// The time from the complete header block to the end of the response, in nanoseconds.
    public internal(set) var durationNanoseconds: UInt64
    /// The part of it in which a watch waited for changes.
    public internal(set) var waitedNanoseconds: UInt64 = 0
    /// The rest of it.
    var busyNanoseconds: UInt64 { durationNanoseconds - min(durationNanoseconds, waitedNanoseconds) }
    /// The number of received bytes of the request's body.
    public internal(set) var bytesIn: UInt64
    /// The number of sent bytes of the response's body.
    public internal(set) var bytesOut: UInt64
    /// The client's address, `host:port`.
    public let peer: String
    /// The client's statements about the request, if its header was read and an observer reads them
    /// (``RequestObserver/readsDetails``).
    public internal(set) var origin = RequestOrigin()
    /// The request's trace and its time at services; nil without a trace if no service or observer needs the time.
    var trace: RequestTrace?
    public let version: HTTPVersion
    /// Whether the connection used TLS.
    public let isSecure: Bool
    /// The caller's uid; nil for an anonymous caller. For a signed link, the ID of its key.
    public internal(set) var principal: String?
    /// The configured group that the caller belongs to.
    public internal(set) var group = Callers.anonymousGroup
    /// The caller limit that the request exceeded.
    var limit: CallerLimits.Limit?
    /// How the cache served a read; nil without one.
    public internal(set) var cache: CacheOutcome?
    /// The policy's last decision; nil if it was not evaluated.
    public internal(set) var decision: Verdict?
    /// The last decision of the shadow rules, if it differs.
    public internal(set) var shadow: Verdict?
    /// Whether a decision exceeded the time limit of rules.
    var isDecisionTimedOut = false
    /// What was decided last; nil unless an observer keeps evaluations, and without rules.
    public internal(set) var evaluation: RulesEvaluation?
    /// Nanoseconds for all decisions of the request together.
    public internal(set) var decisionNanoseconds: UInt64 = 0
    /// The problem code in the response; nil for a success and for status 499.
    public internal(set) var errorCode: String?
    /// Why the request failed, for the operator only; nil for a success.
    public internal(set) var cause: String?
    /// Whether the gateway aborted the response after its ``status`` had been sent.
    public internal(set) var isBroken = false
    /// Whether the server rejected the request before any handler: it was malformed, too large or too slow.
    public internal(set) var isRejected = false

    /// Whether the status is a usual negative result: not found, or a precondition or range that fails.
    public var isUsual: Bool { !isRejected && [404, 412, 416].contains(status) }

    /// The status class for logs and metrics, 1 to 5. An aborted response counts as 5xx regardless of its status. A
    /// rejected request counts as 4xx, even if its status is 501 or 505.
    public var statusClass: Int {
        if isBroken { return 5 }
        return isRejected ? 4 : min(max(status / 100, 1), 5)
    }

    public init(
        requestId: String, operation: RequestedAccess.Kind? = nil, bucket: String? = nil, method: String, path: String,
        status: Int, durationNanoseconds: UInt64 = 0, bytesIn: UInt64 = 0, bytesOut: UInt64 = 0, peer: String,
        version: HTTPVersion, isSecure: Bool = false, errorCode: String? = nil, cause: String? = nil
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
    func note(_ verdict: Verdict, shadow decision: Decision?) {
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
    /// Whether it reads what only logs and traces show: ``RequestRecord/origin`` and the time at services. They are
    /// determined only if an observer reads them. By default it does.
    var readsDetails: Bool { get }
    /// Says when records keep their ``RequestRecord/evaluation``; nil, as by default, if they never do.
    var watch: RequestWatch? { get }
}

/// Until when requests are watched. Any thread may use it.
public final class RequestWatch: Sendable {
    private let end: Atomic<UInt64>
    /// The number of a slice of 67 ms, and how many requests it has had.
    private let slice = Atomic<UInt64>(0)
    /// How many requests a slice has at most, and how many if they are denied.
    private static let (perSlice, deniedPerSlice) = (UInt64(32), UInt64(96))

    /// - Parameter end: Monotonic nanoseconds.
    public init(until end: UInt64 = 0) { self.end = Atomic(end) }

    /// Monotonic nanoseconds.
    public var until: UInt64 { end.load(ordering: .relaxed) }

    /// Extends the watch.
    public func extend(to time: UInt64) {
        // Not Atomic.max, which compares as signed numbers.
        var seen = end.load(ordering: .relaxed)
        while seen < time {
            let (isDone, found) = end.weakCompareExchange(expected: seen, desired: time, ordering: .relaxed)
            if isDone { return }
            seen = found
        }
    }

    /// Whether one more request can be kept: about 480 a second, and twice as many denied ones. More could not be read,
    /// and would cost the gateway time.
    public func admits(_ isDenied: Bool, at now: UInt64) -> Bool {
        let current = (now >> 26) << 8
        var seen = slice.load(ordering: .relaxed)
        while true {
            let count = seen & ~0xff == current ? seen & 0xff : 0
            if count >= (isDenied ? RequestWatch.deniedPerSlice : RequestWatch.perSlice) { return false }
            let (isDone, found) = slice.weakCompareExchange(
                expected: seen, desired: current | (count + 1), ordering: .relaxed)
            if isDone { return true }
            seen = found
        }
    }
}

extension RequestObserver {
    public var readsDetails: Bool { true }

    public var watch: RequestWatch? { nil }
}

extension RequestRecord {
    /// The record of a request that the server rejected before any handler: it was too large, malformed or too slow.
    /// Parts that were not read are `-`.
    public convenience init(_ rejected: RejectedRequest) {
        let path = rejected.target.prefix { $0 != "?" }
        self.init(
            requestId: rejected.requestId, method: rejected.method.isEmpty ? "-" : rejected.method,
            path: path.isEmpty ? "-" : String(path), status: rejected.status,
            bytesOut: UInt64(rejected.bodyBytes), peer: rejected.peer, version: rejected.version,
            isSecure: rejected.isSecure, errorCode: rejected.code, cause: rejected.reason)
        isRejected = true
    }
}
