import Wire

/// Why a request had no complete response.
public struct ClientError: Error, Sendable, Equatable, CustomStringConvertible {
    /// What went wrong.
    public enum Code: String, Sendable {
        /// No connection could be made: the name, the network, TLS.
        case unreachable
        /// The upstream was too slow to accept the connection, to respond, or to make progress.
        case timedOut = "timed-out"
        /// The connection ended before the response was complete.
        case connectionLost = "connection-lost"
        /// What came is not HTTP, or exceeds a limit of the head.
        case malformed
        /// The body has more bytes than the caller takes.
        case tooLarge = "too-large"
        /// Too many requests were waiting, or this one waited too long.
        case queueFull = "queue-full"
        /// The upstream failed again and again and is left alone for now.
        case circuitOpen = "circuit-open"
        /// Nobody wants the response any more, or the client was closed.
        case cancelled
    }
    /// What went wrong.
    public var code: Code
    /// For the operator. Names the upstream and never a secret.
    public var cause: String
    /// Whether the upstream may have acted on the request.
    public var mayHaveReached: Bool

    public init(_ code: Code, _ cause: String, mayHaveReached: Bool = false) {
        self.code = code
        self.cause = cause
        self.mayHaveReached = mayHaveReached
    }

    public var description: String { "\(code.rawValue): \(cause)" }
}
