/// Why a bucket could not do what it was asked.
public struct BucketError: Error, Sendable, CustomStringConvertible {
    /// What went wrong, as a client may be told.
    public enum Code: Sendable, Equatable {
        case objectNotFound
        case preconditionFailed
        /// The store is full.
        case insufficientStorage
        /// The process or its machine has too little left for it now: descriptors, memory.
        case overloaded
        /// The store can't be used now.
        case unavailable
        /// The store did not answer in time.
        case timedOut
        /// The store does not do this.
        case unsupported
        /// A fault of our own or of the data.
        case `internal`
    }
    /// What went wrong, as far as a client may know.
    public var code: Code
    /// For the operator: names the cause, never shown to a client.
    public var cause: String
    /// Whether the same request may succeed later.
    public var isRetryable: Bool {
        [.unavailable, .timedOut, .insufficientStorage, .overloaded].contains(code)
    }

    public init(_ code: Code, _ cause: String = "") {
        self.code = code
        self.cause = cause
    }

    public var description: String { cause.isEmpty ? "\(code)" : "\(code): \(cause)" }
}
