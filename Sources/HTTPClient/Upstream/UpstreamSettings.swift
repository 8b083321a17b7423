import Wire

/// How an upstream is reached and what is waited for. Times are in nanoseconds.
public struct UpstreamSettings: Sendable, Equatable {
    /// For logs and metrics.
    public var name: String
    public var origin: Origin
    /// For name, connection and TLS together.
    public var connectTimeout: UInt64 = 5_000_000_000
    /// From the request's last byte to the response's head.
    public var firstByteTimeout: UInt64 = 30_000_000_000
    /// As long as it is the upstream's turn, this time may pass without ``progressBytes`` having moved.
    public var progressTimeout: UInt64 = 30_000_000_000
    /// Bytes.
    public var progressBytes: UInt64 = 16 * 1024
    /// An idle connection is kept for so long.
    public var idleTimeout: UInt64 = 30_000_000_000
    /// Requests at once, on each loop.
    public var maximumTransfers = 1024
    /// Requests that wait for their turn, on each loop.
    public var maximumQueue = 4096
    /// How long a request waits for its turn.
    public var queueTimeout: UInt64 = 5_000_000_000
    /// How often a request is sent at most.
    public var attempts = 4
    /// The bound of the first pause between attempts; the next ones are twice as long, and each is drawn at random
    /// between nothing and its bound.
    public var retryDelay: UInt64 = 100_000_000
    /// The bound of every pause; a `Retry-After` beyond it ends the attempts.
    public var maximumRetryDelay: UInt64 = 5_000_000_000
    /// A PEM file of certificates that are trusted in place of the system's.
    public var certificateAuthorities: String?
    /// A PEM file of the certificate that we show.
    public var clientCertificate: String?
    /// A PEM file of its key.
    public var clientKey: String?

    public init(name: String, origin: Origin) {
        self.name = name
        self.origin = origin
    }
}
