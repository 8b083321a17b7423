import Buckets
import HTTPClient
import HTTPServer
import System
import Wire

/// The methods that dialects serve.
enum HTTPMethod: String {
    case get = "GET"
    case head = "HEAD"
    case put = "PUT"
    case post = "POST"
    case patch = "PATCH"
    case delete = "DELETE"
    case options = "OPTIONS"

    // Written out, because the usual initializer compares by Unicode, which takes three times as long.
    init?(rawValue: String) {
        switch rawValue {
        case "GET": self = .get
        case "HEAD": self = .head
        case "PUT": self = .put
        case "POST": self = .post
        case "PATCH": self = .patch
        case "DELETE": self = .delete
        case "OPTIONS": self = .options
        default: return nil
        }
    }
}

/// The state of one request, with its record. Confined to its loop.
final class RequestContext {
    let exchange: Exchange
    let callers: Callers
    let target: RequestTarget
    /// The method that counts, which some dialects also take from a header field; nil for one that no dialect serves.
    var method: HTTPMethod?
    /// Whether the client awaits no body, whichever method counts.
    let isHead: Bool
    var caller: Caller
    /// Whether a decision is made even if the client has gone: all bytes of an upload are there.
    var outlivesClient = false
    /// The state of an upload session that the response reports, if it concerns one.
    var upload: UploadReport?
    /// Whether the request arrived at the listener for S3.
    let isForS3: Bool
    /// nil unless somebody watches, so that the record keeps what is decided.
    let watch: RequestWatch?
    /// Fields of the listener that replace those of the response; nil if it has none.
    var listenerFields: HeaderFields?
    /// The fields of a response that may begin before the operation has ended, because that may take minutes; nil if it
    /// must not.
    var earlyFields: HeaderFields?
    /// What the dialect has parsed of the request, for its own use.
    var parsed: (any AnyObject)?
    /// The caller's use of its limits, if its group has any.
    var lease: CallerLease?
    let record: RequestRecord
    private let bodies: CollectedBodies
    /// The collected body, which counts until the request ends.
    private var collected: CollectedBody?
    private let observers: [any RequestObserver]
    private let wallClock: @Sendable () -> Int64

    /// - Parameters:
    ///   - callers: How callers are identified now.
    ///   - bodies: Counts the bodies that are collected.
    ///   - observers: Called when the response has ended.
    ///   - traces: If nil, no spans are exported, and only a caller's trace is continued.
    ///   - readsDetails: Whether the record's details are read.
    ///   - watch: nil unless somebody watches. The record's details are read then, too.
    init(
        _ exchange: Exchange, isForS3: Bool = false, callers: Callers, requestId: String, bodies: CollectedBodies,
        observers: [any RequestObserver],
        traces: TraceExporter?, readsDetails: Bool, watch: RequestWatch?, now: @escaping @Sendable () -> Int64
    ) {
        self.exchange = exchange
        self.isForS3 = isForS3
        self.watch = watch
        self.callers = callers
        self.bodies = bodies
        self.observers = observers
        wallClock = now
        caller = Caller(peer: exchange.peer, isSecure: exchange.isSecure)
        target = RequestTarget(exchange.head.target)
        method = HTTPMethod(rawValue: exchange.head.method)
        isHead = method == .head
        record = RequestRecord(
            requestId: requestId, method: exchange.head.method,
            path: target.query == nil
                ? exchange.head.target : String(decoding: target.path, as: UTF8.self),
            status: 0, peer: exchange.peer, version: exchange.version,
            isSecure: exchange.isSecure)
        let readsDetails = readsDetails || watch != nil
        if readsDetails || exchange.head.fields.contains("traceparent") {
            record.origin = RequestOrigin(exchange.head, isComplete: readsDetails)
        }
        if readsDetails, let ignored = exchange.ignoredForwarding {
            record.origin.ignoredForwarding = RequestOrigin.short(ignored.utf8)
        }
        if let traces {
            record.trace = traces.begin(record.origin)
        } else if let trace = record.origin.trace {
            record.trace = RequestTrace(trace, state: record.origin.traceState, hasSpans: false)
        }
    }

    var fields: HeaderFields { exchange.head.fields }

    var isOptions: Bool { method == .options }

    /// Whether the client wants no response that was not validated (RFC 9111, section 5.2.1.4).
    var wantsValidation: Bool {
        func has(_ field: StaticString) -> Bool {
            guard fields.contains(field), let text = fields.list(field) else { return false }
            return Array(text.utf8).split(separator: UInt8(ascii: ",")).contains {
                ASCII.isEqual(ASCII.trimmed($0).span, ignoringCase: "no-cache")
            }
        }
        return has("cache-control") || has("pragma")
    }

    /// Seconds since 1970.
    var now: Int64 { wallClock() }

    /// Ends a request whose client has disconnected.
    static let clientGone = Problem(.invalidArgument, "The client has disconnected.", cause: "the client went away")

    /// Lets the loop do other work if this request has used its share of time.
    /// - Throws: ``Problem`` if the client has disconnected, unless the request outlives it.
    func giveWay() async throws(Problem) {
        if exchange.isClientGone, !outlivesClient { throw RequestContext.clientGone }
        if exchange.loop.isTurnSpent { await exchange.loop.yield() }
    }

    /// The whole body, of at most `limit` bytes.
    func collect(limit: Int) async throws(Problem) -> [UInt8] {
        let body = CollectedBody(bodies)
        do throws(BodyError) {
            record.bytesIn = try await exchange.receive(into: body, limit: UInt64(limit))
        } catch {
            if case .sink(let problem as Problem) = error { throw problem }
            throw Problem(error, limit: UInt64(limit))
        }
        collected = body
        return body.take()
    }

    /// Records a failure.
    func failed(_ problem: Problem) {
        record.errorCode = problem.code.rawValue
        record.cause = problem.cause ?? problem.detail
    }

    /// Completes the record at the end of the response, whose status it has already.
    func ended(_ outcome: ResponseOutcome) {
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
        record.started = exchange.started
        record.durationNanoseconds = end > exchange.started ? end - exchange.started : 0
        for observer in observers { observer.finished(record) }
    }
}
