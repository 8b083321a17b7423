/// Every limit of the connection layer. Nothing a peer sends is buffered, counted or waited for without one of these.
///
/// What happens at a limit is named with it: the HTTP/2 error code, or the HTTP/1.1 status, and the
/// ``ServerStatistics`` counter of the same name goes up.
public struct ServerLimits: Sendable, Equatable {
    /// Connections of a loop, over all its listeners. Over it: a new connection is closed at once.
    public var connections = 8192
    /// Connections of a loop from one IPv4 address or one IPv6 network of 64 bits, over all listeners. Over it: a new
    /// connection is closed at once.
    public var connectionsPerAddress = 2048
    /// Bytes of a header block, names and values and 32 for each field (RFC 9113, section 6.5.2). Over it: 431.
    public var headerBytes = 32 * 1024
    /// Fields of a header block. Over it: 431.
    public var headerFields = 100
    /// Bytes of a request target. Over it: 414.
    public var targetBytes = 8 * 1024
    /// Concurrent streams of a connection, also counting those whose work has not ended yet. Over it: REFUSED_STREAM.
    public var concurrentStreams = 100
    /// RST_STREAM frames received: tokens, refilled at ``resetsPerSecond``. Over it: GOAWAY with ENHANCE_YOUR_CALM.
    public var resetBurst = 100
    /// Tokens a second for resets received, and the same for resets sent.
    public var resetsPerSecond = 33
    /// RST_STREAM frames the peer made us send: tokens, refilled at ``resetsPerSecond``. Over it: GOAWAY with ENHANCE_YOUR_CALM.
    public var sentResetBurst = 100
    /// CONTINUATION frames of one header block. Over it: GOAWAY with ENHANCE_YOUR_CALM.
    public var continuations = 8
    /// Frames other than DATA and HEADERS: tokens, refilled at ``controlFramesPerSecond``. Over it: GOAWAY with ENHANCE_YOUR_CALM.
    public var controlFrameBurst = 2000
    /// Tokens a second for PING, SETTINGS, PRIORITY, WINDOW_UPDATE and unknown frames.
    public var controlFramesPerSecond = 1000
    /// Empty DATA frames without END_STREAM, and empty HEADERS or CONTINUATION, in a row. Over it: GOAWAY with ENHANCE_YOUR_CALM.
    public var emptyFrames = 16
    /// Control frames that wait to be sent because the peer does not read. Over it: the connection is closed.
    public var queuedControlFrames = 256
    /// Requests that one connection may start in one turn of the loop; the rest waits for the next turn.
    public var requestsPerTurn = 64
    /// Nanoseconds of one turn of the loop after which a connection starts no further request, and work that is done in
    /// slices, such as the decisions of a list, waits for the next turn.
    public var turnBudget: UInt64 = 5_000_000
    /// Bytes of DATA that may be on their way to us and unread, over all connections of one loop.
    public var receiveBudget = 2 * 1024 * 1024
    /// The receive window a stream begins with, bytes.
    public var initialWindow = 64 * 1024
    /// The receive window a stream can grow to, bytes.
    public var maximumWindow = 1024 * 1024
    /// Bytes of one chunk-size line or of all trailers of an HTTP/1.1 body. Over it: 400.
    public var chunkLineBytes = 4 * 1024

    /// Nanoseconds for a TLS handshake and for the first byte of a connection. Over it: the connection is closed.
    public var handshakeTimeout: UInt64 = 10_000_000_000
    /// Nanoseconds from the first byte of a header block to its end. Over it: 408, or GOAWAY.
    public var headerTimeout: UInt64 = 10_000_000_000
    /// Nanoseconds a connection without a request may stay. Over it: it is closed in order.
    public var idleTimeout: UInt64 = 60_000_000_000
    /// Nanoseconds of one interval in which a body must move by ``minimumProgress`` while it is the peer's turn.
    public var progressInterval: UInt64 = 20_000_000_000
    /// Bytes a body must move in each ``progressInterval``. Under it: 408 or RST_STREAM with CANCEL.
    public var minimumProgress: UInt64 = 4 * 1024
    /// Nanoseconds for which a stream stays open when its response was sent before the end of the request's body. Over
    /// it, or after ``maximumWindow`` bytes more: RST_STREAM with NO_ERROR.
    public var unwantedBodyTimeout: UInt64 = 1_000_000_000
    /// Nanoseconds for which a connection stays after its last response to read and drop what the peer still sends. Over
    /// it: the connection is closed, and the peer may see a reset before the response.
    public var lingerTimeout: UInt64 = 30_000_000_000
    /// Nanoseconds for which such a connection waits for the peer's next bytes. Over it: the connection is closed.
    public var lingerInterval: UInt64 = 5_000_000_000
    /// Nanoseconds for open requests to end after a drain began. Over it: connections are closed.
    public var drainTimeout: UInt64 = 25_000_000_000

    public init() {}
}
