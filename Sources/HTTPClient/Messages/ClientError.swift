import Wire

/// Why a request has no complete response.
public struct ClientError: Error, Sendable, Equatable, CustomStringConvertible {
    /// The kind of failure.
    public enum Code: String, Sendable {
        /// No connection could be made because of the name, the network or TLS.
        case unreachable
        /// The upstream was too slow to accept the connection, to respond, or to make progress.
        case timedOut = "timed-out"
        /// The connection ended before the response was complete.
        case connectionLost = "connection-lost"
        /// The response is not valid HTTP, or its head exceeds a limit.
        case malformed
        /// The body is longer than the caller's limit.
        case tooLarge = "too-large"
        /// Too many requests were queued, or this one was queued for too long.
        case queueFull = "queue-full"
        /// The circuit breaker is open after repeated failures.
        case circuitOpen = "circuit-open"
        /// The caller cancelled the request, or the client was closed.
        case cancelled
    }
    /// The kind of failure.
    public var code: Code
    /// A cause for the operator. It names the upstream and contains no secret.
    public var cause: String
    /// Whether the upstream may have acted on the request.
    public var mayHaveReached: Bool
    /// Whether the upstream's certificate was rejected, so that another attempt would not help.
    public var isUntrusted = false
    /// Whether another request on the same connection has reported this failure.
    var isRepeated = false

    public init(_ code: Code, _ cause: String, mayHaveReached: Bool = false) {
        self.code = code
        self.cause = cause
        self.mayHaveReached = mayHaveReached
    }

    public var description: String { "\(code.rawValue): \(cause)" }
}
