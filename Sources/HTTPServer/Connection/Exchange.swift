import System
import Wire

/// A request's method, target and fields (RFC 9110).
public struct RequestHead: Sendable {
    /// A token, case-sensitive.
    public var method: String
    /// The path and query as received, beginning with `/`; or `*`.
    public var target: String
    /// The requested host, from `:authority` or `Host`.
    public var authority: String?
    public var fields: HeaderFields
    /// The declared length of the body in bytes.
    public var contentLength: UInt64?
    /// Whether a body follows, possibly an empty one.
    public var hasBody: Bool
    /// Whether the client waits for a 100 before sending the body.
    public var expectsContinue: Bool
}

/// The status and fields of a response.
public struct ResponseHead: Sendable {
    /// 200…599; 103…199 for an interim response.
    public var status: Int
    /// The server sets `content-length` from the body. For a response to HEAD, set it here.
    public var fields = HeaderFields()
    /// The value of `x-request-id`, separate so that many responses can share the other fields.
    public var requestID: String?

    public init(status: Int) { self.status = status }
}

/// The body of a response.
public enum ResponseBody {
    case none
    case bytes([UInt8])
    /// Exactly `length` bytes from the source. If it ends early or fails, the client sees a truncated body.
    case source(any ByteSource, length: UInt64)
    /// All bytes of the source, whose number is not known. If it fails, the client sees a truncated body.
    case stream(any ByteSource)
}

/// How sending a response ended.
public struct ResponseOutcome: Sendable {
    /// Why sending ended.
    public enum End: Sendable {
        /// The kernel has accepted the whole response.
        case complete
        /// The client disconnected or read too slowly.
        case peerGone
        /// The body's source failed or ended early. The client sees a truncated body.
        case sourceFailed(any Error)
    }
    /// The number of body bytes given to the connection.
    public var bodyBytes: UInt64
    /// Why sending ended.
    public var end: End
}

/// Why a request's body did not arrive.
public enum BodyError: Error {
    /// The client reset the stream, closed the connection, or violated the protocol.
    case clientGone
    /// The body is larger than the limit.
    case tooLarge
    /// The client sent too slowly.
    case timedOut
    /// The sink failed.
    case sink(any Error)
}

/// The HTTP version of a request.
public enum HTTPVersion: String, Sendable {
    // swift-format-ignore: AlwaysUseLowerCamelCase
    case http1_0 = "HTTP/1.0"
    // swift-format-ignore: AlwaysUseLowerCamelCase
    case http1_1 = "HTTP/1.1"
    case http2 = "HTTP/2"
}

/// Handles a request. It runs on the request's loop and must call ``Exchange/respond(_:_:)`` once before it returns.
/// Its task is cancelled when the client disconnects.
public typealias RequestHandler = @Sendable (Exchange) async -> Void

/// One request and its response.
///
/// Safety: confined to its loop, to which the handler's task is also pinned.
public final class Exchange: @unchecked Sendable {
    public let head: RequestHead
    public let version: HTTPVersion
    /// Whether the client's connection is encrypted: to this server, or, as a trusted proxy reports, to that proxy.
    public let isSecure: Bool
    /// The client's address, perhaps named by a trusted proxy: `host:port` (port 0 if unknown) or `unix:USER:PROCESS`.
    public let peer: String
    /// A forwarding field, with its value, that names another client than ``peer`` and was ignored.
    public let ignoredForwarding: String?
    /// Whether the connection is a trusted proxy's, so that the fields are what that proxy says.
    public let isFromProxy: Bool
    /// The listener's identity for the client's certificate; nil if it showed none.
    public let identity: (any AnyObject & Sendable)?
    /// Whether the client's certificate would be accepted now; true if it showed none. It may have been revoked, or its
    /// authority removed, since the connection began.
    public let isIdentityCurrent: Bool
    /// The request's loop.
    public let loop: EventLoop
    /// When the header block was complete, in the loop's nanoseconds.
    public let started: UInt64
    private let stream: any ExchangeStream

    convenience init(
        head: RequestHead, version: HTTPVersion, connection: Connection, loop: EventLoop, stream: any ExchangeStream
    ) {
        let peer = connection.peer
        let client = peer.isProxy ? ForwardedClient(head, connection.listener.proxies) : nil
        self.init(
            head: head, version: version, isSecure: client?.isSecure ?? connection.isSecure,
            peer: client?.peer ?? peer.description, ignoredForwarding: client?.ignored, isFromProxy: peer.isProxy,
            identity: connection.verified?.identity,
            isIdentityCurrent: connection.verified?.isCurrent ?? true,
            loop: loop,
            stream: stream)
    }

    init(
        head: RequestHead, version: HTTPVersion, isSecure: Bool, peer: String,
        ignoredForwarding: String? = nil, isFromProxy: Bool = false,
        identity: (any AnyObject & Sendable)? = nil, isIdentityCurrent: Bool = true,
        loop: EventLoop, stream: any ExchangeStream
    ) {
        self.head = head
        self.version = version
        self.isSecure = isSecure
        self.peer = peer
        self.ignoredForwarding = ignoredForwarding
        self.isFromProxy = isFromProxy
        self.identity = identity
        self.isIdentityCurrent = isIdentityCurrent
        self.loop = loop
        self.started = loop.now
        self.stream = stream
        stream.requestCreated()
    }

    deinit { stream.requestDestroyed() }

    /// Whether the client reset the stream or the connection ended.
    public var isClientGone: Bool { stream.isGone || stream.endsWithInput && stream.hasInputEnded }

    /// Whether a client that stops sending counts as gone. Normally it may still want the response; but while
    /// a request waits for a long time, this is how a client that has ended is noticed.
    public var endsWithInput: Bool {
        get { stream.endsWithInput }
        set { stream.endsWithInput = newValue }
    }

    /// Sends `100 Continue` if the client waits for it and no body byte has arrived, as receiving the body does.
    public func sendContinue() { stream.sendContinue() }

    /// Sends an interim response before the final one (RFC 9110, section 15.2); nothing over HTTP/1.0.
    /// - Parameter head: Its status is 103…199. Its fields are few: it is not subject to flow control.
    public func sendInterim(_ head: ResponseHead) {
        precondition((103...199).contains(head.status))
        if version != .http1_0 { stream.sendInterim(head) }
    }

    /// Makes the current and every later ``receive(into:limit:)`` fail with ``BodyError/sink(_:)``, because the rest of
    /// the body is not needed. Called on the loop.
    public func stopReceiving(_ error: any Error) { stream.stopReceiving(error) }

    /// Moves the whole body into `sink` with back-pressure. Returns the number of bytes.
    /// - Parameter limit: The maximum size of the body in bytes.
    public func receive(into sink: any ByteSink, limit: UInt64 = .max) async throws(BodyError)
        -> UInt64
    {
        if let length = head.contentLength, length > limit { throw .tooLarge }
        sendContinue()
        // Unsafe saves an allocation a call: a stream completes each call exactly once (``ExchangeStream``).
        let result = await suspend { waiter in stream.receive(into: sink, limit: limit) { waiter.resume(returning: $0) }
        }
        return try result.get()
    }

    /// Receives a complete body of at most `limit` bytes.
    public func collect(limit: Int) async throws(BodyError) -> [UInt8] {
        let sink = CollectingSink()
        _ = try await receive(into: sink, limit: UInt64(limit))
        return sink.bytes
    }

    /// Sends the response and waits until the kernel has it or the client is gone. Discards an unread request body.
    @discardableResult
    public func respond(_ head: ResponseHead, _ body: ResponseBody = .none) async -> ResponseOutcome {
        await suspend { waiter in
            respond(head, body) { waiter.resume(returning: $0) }
        }
    }

    /// Sends the response. A handler that need not wait can end, which releases its task during sending.
    /// - Parameter completion: Called once, on the loop, when the kernel has the response or the client is gone.
    public func respond(
        _ head: ResponseHead, _ body: ResponseBody,
        _ completion: @escaping (ResponseOutcome) -> Void
    ) {
        stream.respond(head, body, completion)
    }
}

/// The connection's side of an ``Exchange``. Every completion is called exactly once, on the loop. The completion of `receive`
/// may be called inside a callback of nghttp2, so it must only resume a task. The completion of `respond` never is.
protocol ExchangeStream: AnyObject {
    /// Called at the start and end of the ``Exchange``.
    func requestCreated()
    func requestDestroyed()
    var isGone: Bool { get }
    /// Whether the peer's end of sending is the end of the request.
    var endsWithInput: Bool { get set }
    /// Whether the peer has stopped sending.
    var hasInputEnded: Bool { get }
    func sendContinue()
    func sendInterim(_ head: ResponseHead)
    func stopReceiving(_ error: any Error)
    func receive(
        into sink: any ByteSink, limit: UInt64,
        _ completion: @escaping (Result<UInt64, BodyError>) -> Void)
    func respond(
        _ head: ResponseHead, _ body: ResponseBody,
        _ completion: @escaping (ResponseOutcome) -> Void)
}

/// Collects a small body in memory.
private final class CollectingSink: ByteSink {
    var bytes: [UInt8] = []
    func write(_ span: RawSpan) -> Int {
        span.withUnsafeBytes { bytes.append(contentsOf: $0) }
        return span.byteCount
    }
    func whenWritable(_ resume: @escaping () -> Void) { resume() }
}
