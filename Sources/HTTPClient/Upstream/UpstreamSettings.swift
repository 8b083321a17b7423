import Wire

/// The address, timeouts and limits of an upstream. Times are in nanoseconds.
public struct UpstreamSettings: Sendable, Equatable {
    /// The name in logs and metrics.
    public var name: String
    public var origin: Origin
    /// The timeout for name lookup, connection and TLS handshake together.
    public var connectTimeout: UInt64 = 5_000_000_000
    /// The timeout from the request's last byte to the response's head.
    public var firstByteTimeout: UInt64 = 30_000_000_000
    /// While we wait for the upstream, at least ``progressBytes`` must move within this time.
    public var progressTimeout: UInt64 = 30_000_000_000
    /// In bytes.
    public var progressBytes: UInt64 = 16 * 1024
    /// How long an idle connection is kept.
    public var idleTimeout: UInt64 = 30_000_000_000
    /// The maximum number of concurrent requests per loop.
    public var maximumTransfers = 1024
    /// The maximum number of queued requests per loop.
    public var maximumQueue = 4096
    /// The maximum time that a request is queued.
    public var queueTimeout: UInt64 = 5_000_000_000
    /// The maximum number of attempts of a request.
    public var attempts = 4
    /// The limit of the first pause; doubles with each attempt. Each pause is random between zero and its limit.
    public var retryDelay: UInt64 = 100_000_000
    /// The limit of every pause. A longer `Retry-After` ends the attempts.
    public var maximumRetryDelay: UInt64 = 5_000_000_000
    /// A PEM file of trusted certificates that replaces the system's.
    public var certificateAuthorities: String?
    /// A PEM file with one revocation list for every authority of the upstream's chain; nil: revocation is not checked.
    public var revocations: String?
    /// A PEM file with the client certificate.
    public var clientCertificate: String?
    /// A PEM file with its key.
    public var clientKey: String?
    /// The transport for an `https` origin. Clear text always uses our own.
    public var secureTransport = SecureTransport.libcurl
    /// Whether our own transport offers HTTP/2 over TLS. The server chooses.
    public var http2 = true
    /// The HTTP proxy for an `https` origin, which libcurl uses whatever ``secureTransport`` is. nil: `HTTPS_PROXY` of
    /// the environment, unless `NO_PROXY` has the host.
    public var proxy: ProxyAddress?
    /// Whether to send the `traceparent` and `tracestate` of the client's request.
    public var passesTrace = false

    /// A transport over TLS.
    public enum SecureTransport: Sendable {
        /// Ours, with HTTP/2 or HTTP/1.1: the lowest cost per request and for large bodies.
        case own
        /// libcurl, with HTTP/2 or HTTP/1.1: for rarely used services.
        case libcurl
    }

    public init(name: String, origin: Origin) {
        self.name = name
        self.origin = origin
    }
}
