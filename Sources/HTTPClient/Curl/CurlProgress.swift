/// The upstream's progress with a libcurl transfer. Times and limits are in nanoseconds.
///
/// | phase       | begins                          | progress                                             | limit              |
/// |-------------|---------------------------------|------------------------------------------------------|--------------------|
/// | `sending`   | with a request that has a body  | it accepts `progressBytes`; only while bytes wait for it | `progressTimeout` |
/// | `waiting`   | with the last byte of the body  | the head of the response                             | `firstByteTimeout` |
/// | `receiving` | with the head                   | `progressBytes` arrive; only while the reader waits  | `progressTimeout`  |
///
/// ``ClientRequest/waitLimit`` raises every limit. With it, one byte is sufficient progress while receiving.
struct CurlProgress {
    enum Phase: Equatable {
        case sending, waiting, receiving
    }
    enum Verdict: Equatable {
        case inTime
        /// The upstream accepts no more of the request.
        case sendTimedOut
        /// No more of the response arrives.
        case receiveTimedOut
    }
    private(set) var phase: Phase
    private let waitLimit: UInt64?
    /// The number of body bytes received when the current interval began, and that time.
    private var mark: (bytes: UInt64, time: UInt64)
    /// Measures how long the upstream has not accepted the request's body.
    private var sendClock = ProgressClock()

    init(hasBody: Bool, waitLimit: UInt64?, now: UInt64) {
        phase = hasBody ? .sending : .waiting
        self.waitLimit = waitLimit
        mark = (0, now)
        sendClock.start(now)
    }

    /// Counts body bytes that libcurl read, which means that the upstream has accepted the preceding ones.
    /// - Parameter isLast: Whether the whole body was read.
    /// - Parameter received: The number of body bytes received so far.
    mutating func sent(
        _ count: Int, isLast: Bool, received: UInt64, _ settings: UpstreamSettings, _ now: UInt64
    ) {
        sendClock.start(now)
        sendClock.moved(count, of: settings.progressBytes, now)
        guard isLast else { return }
        if phase == .sending { phase = .waiting }
        restart(received: received, now)
    }

    /// The request's body has no bytes to send, so we do not wait for the upstream.
    mutating func sourceIsEmpty(_ now: UInt64) { sendClock.stop(now) }

    mutating func headDelivered(received: UInt64, _ now: UInt64) {
        phase = .receiving
        restart(received: received, now)
    }

    mutating func restart(received: UInt64, _ now: UInt64) { mark = (received, now) }

    func limit(_ settings: UpstreamSettings) -> UInt64 {
        max(
            waitLimit ?? 0,
            phase == .waiting ? settings.firstByteTimeout : settings.progressTimeout)
    }

    /// When ``check(received:isUpstreamsTurn:_:_:)`` is due.
    func deadline(_ settings: UpstreamSettings, _ now: UInt64) -> UInt64 {
        let limit = limit(settings)
        guard phase == .sending else { return mark.time &+ limit }
        // If the upstream need not act now, it may have to soon.
        return min(sendClock.deadline(limit), now &+ limit)
    }

    /// Decides at a deadline whether the transfer may continue, and begins a new interval if it may.
    /// - Parameters:
    ///   - received: The number of body bytes received so far.
    ///   - isUpstreamsTurn: Whether the transfer waits for the upstream and not for the reader.
    mutating func check(received: UInt64, isUpstreamsTurn: Bool, _ settings: UpstreamSettings, _ now: UInt64) -> Verdict
    {
        let limit = limit(settings)
        if phase == .sending { return now < sendClock.deadline(limit) ? .inTime : .sendTimedOut }
        guard now >= mark.time &+ limit else { return .inTime }
        let enough = phase == .receiving && waitLimit == nil ? settings.progressBytes : 1
        if isUpstreamsTurn, received - mark.bytes < enough { return .receiveTimedOut }
        restart(received: received, now)
        return .inTime
    }
}
