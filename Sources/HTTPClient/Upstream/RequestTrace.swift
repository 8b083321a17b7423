import Synchronization
import System
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
    /// The time since 1970 less the monotonic time, in nanoseconds; 0 without spans. One for all spans of a request, so
    /// that a change of the clock or a pause of the thread doesn't move one against another.
    private let clockOffset: UInt64
    private let nanoseconds = Atomic<UInt64>(0)
    private let requests = Atomic<Int>(0)

    /// - Parameter hasSpans: Whether spans are exported. If not, services get the context unchanged.
    public init(_ context: TraceContext?, state: String?, hasSpans: Bool) {
        self.context = context
        self.state = state
        self.hasSpans = hasSpans
        clockOffset = hasSpans ? SystemClock.nanoseconds() &- EventLoop.monotonicNow() : 0
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

    /// Nanoseconds since 1970 of a monotonic time.
    public func time(_ monotonic: UInt64) -> UInt64 { monotonic &+ clockOffset }

    func child() -> TraceContext? { hasSpans ? context?.child() : context }
}
