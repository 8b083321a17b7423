/// All limits of the connection layer. Everything that a peer sends is buffered, counted and awaited with a limit. Each
/// comment states the effect of exceeding the limit: the HTTP/2 error code or the HTTP/1.1 status. The
/// ``ServerStatistics`` counter of the same name is incremented.
public struct ServerLimits: Sendable, Equatable {
    /// Connections of one loop over all its listeners. Over it: a new connection is closed at once.
    public var connections = 8192
    /// Connections per loop from one IPv4 address or IPv6 /64, over all listeners. Over it: closed at once.
    public var connectionsPerAddress = 2048
    /// Connections of one loop from one trusted proxy that wait for a PROXY header or another first byte, over all
    /// listeners. Over it: a new connection is closed at once.
    public var waitingPerProxy = 1024
    /// Size of a header block in bytes: names, values, and 32 for each field (RFC 9113, section 6.5.2). Over it: 431.
    public var headerBytes = 32 * 1024
    /// Number of fields in a header block. Over it: 431.
    public var headerFields = 100
    /// Length of a request target in bytes. Over it: 414.
    public var targetBytes = 8 * 1024
    /// Concurrent streams of a connection, including streams with a running handler. Over it: REFUSED_STREAM.
    public var concurrentStreams = 100
    /// RST_STREAM frames received: tokens, refilled at ``resetsPerSecond``. Over it: GOAWAY with ENHANCE_YOUR_CALM.
    public var resetBurst = 100
    /// Tokens per second, separately for received and for sent resets.
    public var resetsPerSecond = 33
    /// RST_STREAM frames we had to send: tokens, refilled at ``resetsPerSecond``. Over it: GOAWAY, ENHANCE_YOUR_CALM.
    public var sentResetBurst = 100
    /// CONTINUATION frames of one header block. Over it: GOAWAY with ENHANCE_YOUR_CALM.
    public var continuations = 8
    /// Frames but DATA and HEADERS: tokens, refilled at ``controlFramesPerSecond``. Over it: GOAWAY, ENHANCE_YOUR_CALM.
    public var controlFrameBurst = 2000
    /// Tokens per second for PING, SETTINGS, PRIORITY, WINDOW_UPDATE and unknown frames.
    public var controlFramesPerSecond = 1000
    /// Consecutive empty frames that do not end a stream or header block. Over it: GOAWAY with ENHANCE_YOUR_CALM.
    public var emptyFrames = 16
    /// Control frames queued because the peer does not read. Over it: the connection is closed.
    public var queuedControlFrames = 256
    /// Requests that a connection may start per turn of the loop. Others wait for the next turn.
    public var requestsPerTurn = 64
    /// Nanoseconds of a turn of the loop. Further requests and slices of work, such as the decisions of a list, wait.
    public var turnBudget: UInt64 = 5_000_000
    /// Bytes of request bodies that wait in memory, over all connections of one loop. Over it: connections with such
    /// bytes are not read. Beyond their initial size, receive windows grant at most 128 times as much.
    public var receiveBudget = 2 * 1024 * 1024
    /// The initial receive window of a stream in bytes.
    public var initialWindow = 64 * 1024
    /// The maximum receive window of a stream in bytes. Only a long path needs more than 1 MiB.
    public var maximumWindow = 64 * 1024 * 1024
    /// Bytes of one chunk-size line, or of all trailers, of an HTTP/1.1 body. Over it: 400.
    public var chunkLineBytes = 4 * 1024

    /// Nanoseconds for a TLS handshake and for the first byte of a connection. Over it: the connection is closed.
    public var handshakeTimeout: UInt64 = 10_000_000_000
    /// Nanoseconds from the first byte of a header block to its end. Over it: 408, or GOAWAY.
    public var headerTimeout: UInt64 = 10_000_000_000
    /// Nanoseconds that a connection without a request stays open. Over it: it is closed gracefully.
    public var idleTimeout: UInt64 = 60_000_000_000
    /// The progress interval in nanoseconds: while we wait for the peer, a body must move ``minimumProgress`` in it.
    public var progressInterval: UInt64 = 20_000_000_000
    /// Bytes that must move in each ``progressInterval``. Under it: 408, or RST_STREAM with CANCEL.
    public var minimumProgress: UInt64 = 4 * 1024
    /// Nanoseconds that a stream stays open after a response that was sent before the request's body ended. Over it, or
    /// after 1 MiB of further bytes: RST_STREAM with NO_ERROR.
    public var unwantedBodyTimeout: UInt64 = 5_000_000_000
    /// Nanoseconds that a connection stays open after its last response, to read and drop the peer's bytes. Over it:
    /// the connection is closed, and the peer may get a reset before the response.
    public var lingerTimeout: UInt64 = 30_000_000_000
    /// Nanoseconds that such a connection waits for further bytes. Over it: the connection is closed.
    public var lingerInterval: UInt64 = 5_000_000_000
    /// Nanoseconds for open requests to end after a drain has begun. Over it: connections are closed.
    public var drainTimeout: UInt64 = 25_000_000_000

    public init() {}
}
