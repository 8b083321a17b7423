/// The reason why a bucket operation failed.
public struct BucketError: Error, Sendable, CustomStringConvertible {
    /// The kind of error, safe to show to a client.
    public enum Code: Sendable, Equatable {
        case objectNotFound
        case preconditionFailed
        /// The store is full.
        case insufficientStorage
        /// The process or its machine lacks resources, such as descriptors or memory.
        case overloaded
        /// The store is unavailable.
        case unavailable
        /// The version of the object that was being read is gone: the object was replaced or deleted.
        case replaced
        /// The store did not respond in time.
        case timedOut
        /// The store does not support this operation.
        case unsupported
        /// An internal error, or invalid stored data.
        case `internal`
    }
    /// The kind of error, safe to show to a client.
    public var code: Code
    /// The cause, for the operator. Never shown to a client.
    public var cause: String
    /// Whether a service may have made the requested change without confirming it.
    var mayHaveChanged = false
    /// Whether the bytes that were received, by the service or from it, differ from those sent.
    var isOfOtherBytes = false
    /// Whether the same request may succeed later.
    public var isRetryable: Bool {
        [.unavailable, .timedOut, .insufficientStorage, .overloaded].contains(code)
    }

    public init(_ code: Code, _ cause: String = "") {
        self.code = code
        self.cause = cause
    }

    init(otherBytes cause: String) {
        self.init(.unavailable, cause)
        isOfOtherBytes = true
    }

    public var description: String { cause.isEmpty ? "\(code)" : "\(code): \(cause)" }
}
