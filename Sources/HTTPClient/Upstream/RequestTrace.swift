import Synchronization
import Wire

/// Shared by a client's request and its requests to services: their trace, and the time spent waiting.
///
/// It is bound to the request's task, and to tasks that this one starts. A ``ClientExchange`` reads it when it begins.
/// Without one nothing is recorded.
public final class RequestTrace: Sendable {
    /// The trace of the current task.
    @TaskLocal public static var current: RequestTrace?

    /// The request's own span, or the caller's if no spans are exported; nil without a trace.
    public let context: TraceContext?
    /// The caller's `tracestate`.
    public let state: String?
    /// Whether each request to a service has a separate span.
    public let hasSpans: Bool
    private let nanoseconds = Atomic<UInt64>(0)
    private let requests = Atomic<Int>(0)

    /// - Parameter hasSpans: Whether spans are exported. If not, services get the context unchanged.
    public init(_ context: TraceContext?, state: String?, hasSpans: Bool) {
        self.context = context
        self.state = state
        self.hasSpans = hasSpans
    }

    /// The sum of the nanoseconds from the start of each request to a service to the head of its response, or to its
    /// failure; nil if there was no request. Concurrent requests count separately.
    public var waited: UInt64? {
        requests.load(ordering: .relaxed) > 0 ? nanoseconds.load(ordering: .relaxed) : nil
    }

    func add(_ time: UInt64) {
        nanoseconds.wrappingAdd(time, ordering: .relaxed)
        requests.wrappingAdd(1, ordering: .relaxed)
    }

    func child() -> TraceContext? { hasSpans ? context?.child() : context }
}
