import Synchronization
import Wire

/// The record of one attempt.
public struct UpstreamRecord: Sendable {
    /// The upstream that received the request.
    public var upstream: Upstream
    public var method: StaticString
    /// nil if there was no response.
    public var status: Int?
    /// Why there was no complete response; nil if there was one.
    public var error: ClientError.Code?
    /// 1 for the first.
    public var attempt: Int
    /// Nanoseconds from the start to the response's head; nil without a response.
    public var timeToFirstByte: UInt64?
    /// The start, in monotonic nanoseconds.
    public var begun: UInt64
    /// Nanoseconds from the start to the end of the body, including time in the queue.
    public var duration: UInt64
    /// The attempt's own span; nil if no spans are exported.
    public var span: TraceContext?
    /// The trace of the client's request.
    public var trace: RequestTrace?

    package init(
        upstream: Upstream, method: StaticString, status: Int?, error: ClientError.Code?,
        attempt: Int, timeToFirstByte: UInt64?, begun: UInt64 = 0, duration: UInt64,
        span: TraceContext? = nil, trace: RequestTrace? = nil
    ) {
        self.span = span
        self.trace = trace
        self.begun = begun
        self.upstream = upstream
        self.method = method
        self.status = status
        self.error = error
        self.attempt = attempt
        self.timeToFirstByte = timeToFirstByte
        self.duration = duration
    }
}

/// Receives a record at the end of every attempt.
public protocol UpstreamObserver: AnyObject, Sendable {
    /// Called at the end of an attempt, on its loop. It must not block.
    func finished(_ record: UpstreamRecord)
}

/// The statistics of one upstream. Any thread may read them.
public final class UpstreamStatistics: Sendable {
    let live = Atomic<Int>(0)
    let waiting = Atomic<Int>(0)
    let repeated = Atomic<Int>(0)
    let open = Atomic<Int>(0)
    let idle = Atomic<Int>(0)
    /// Incremented in `init` and decremented in `deinit`.
    let alive = Atomic<Int>(0)

    init() {}

    /// Requests in progress.
    public var inFlight: Int { live.load(ordering: .relaxed) }
    /// Queued requests.
    public var queued: Int { waiting.load(ordering: .relaxed) }
    /// Attempts beyond the first since the start.
    public var retries: Int { repeated.load(ordering: .relaxed) }
    /// Open connections.
    public var connections: Int { open.load(ordering: .relaxed) }
    /// Idle connections.
    public var idleConnections: Int { idle.load(ordering: .relaxed) }
    /// Objects of requests in memory. 0 without requests in progress and retained responses; growth is a leak.
    public var objects: Int { alive.load(ordering: .relaxed) }
}
