import Synchronization

/// What became of one attempt.
public struct UpstreamRecord: Sendable {
    /// ``UpstreamSettings/name``.
    public var upstream: String
    public var method: StaticString
    /// nil where there was no response.
    public var status: Int?
    /// Why there was no response, or none that was complete.
    public var error: ClientError.Code?
    /// 1 for the first.
    public var attempt: Int
    /// Nanoseconds from the beginning to the response's head; nil where none came.
    public var timeToFirstByte: UInt64?
    /// Nanoseconds from the beginning to the end of the body, the wait for its turn included.
    public var duration: UInt64

    package init(
        upstream: String, method: StaticString, status: Int?, error: ClientError.Code?,
        attempt: Int,
        timeToFirstByte: UInt64?, duration: UInt64
    ) {
        self.upstream = upstream
        self.method = method
        self.status = status
        self.error = error
        self.attempt = attempt
        self.timeToFirstByte = timeToFirstByte
        self.duration = duration
    }
}

/// Told of every attempt at its end.
public protocol UpstreamObserver: Sendable {
    /// One attempt is over. Called on its loop; must not wait.
    func finished(_ record: UpstreamRecord)
}

/// The numbers of one upstream. Any thread may read them.
public final class UpstreamStatistics: Sendable {
    let live = Atomic<Int>(0)
    let waiting = Atomic<Int>(0)
    let repeated = Atomic<Int>(0)
    let open = Atomic<Int>(0)
    let idle = Atomic<Int>(0)
    /// Counted up in `init` and down in `deinit`.
    let alive = Atomic<Int>(0)

    init() {}

    /// Requests that were begun and have not ended.
    public var inFlight: Int { live.load(ordering: .relaxed) }
    /// Requests that wait for their turn.
    public var queued: Int { waiting.load(ordering: .relaxed) }
    /// Attempts beyond the first since the start.
    public var retries: Int { repeated.load(ordering: .relaxed) }
    /// Connections that are open.
    public var connections: Int { open.load(ordering: .relaxed) }
    /// Idle connections.
    public var idleConnections: Int { idle.load(ordering: .relaxed) }
    /// Objects in memory that belong to a request: those of requests in flight, and those of ended requests that something
    /// still holds. 0 when nothing is in flight and no response is held; growth is a leak.
    public var objects: Int { alive.load(ordering: .relaxed) }
}
