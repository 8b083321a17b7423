/// The receive window of a stream: the number of body bytes that the peer may send before its sink has consumed them.
/// It adapts to the path and the sink. The peer's bytes follow a WINDOW_UPDATE after a round trip, so the path carries
/// at most one window per round trip.
///
/// | event                                                     | change of the window                         |
/// |-----------------------------------------------------------|----------------------------------------------|
/// | `consumed`, the first time that the round trip is known   | grows to the bytes of a fast path per round trip, at most the missing bytes and a share of ``ServerLimits/maximumWindow`` |
/// | `consumed`, less than the window since the last decision  | 0                                            |
/// | `consumed`, more than a quarter of the window is queued   | 0                                            |
/// | `consumed`, smaller than ``eager``                        | doubles, up to ``eager``                     |
/// | `consumed`, the window in less than two round trips       | doubles, up to ``ServerLimits/maximumWindow`` |
/// | `consumed`, the window in more than four round trips      | halves, down to ``eager``                    |
///
/// ``resized(by:)`` applies a change, if the loop's budget allows it. A window shrinks by withholding consumed bytes.
struct StreamWindow: Equatable {
    /// The size in bytes up to which windows grow on every path: smaller ones cost more system calls for WINDOW_UPDATE.
    static let eager = 1024 * 1024
    /// The bytes per second of a path of 4 Gbit/s.
    private static let fastPath = 512.0 * 1024 * 1024
    /// The size in bytes from which updates are sent for less than half of the window. Then fewer bytes are in transit,
    /// and a round trip carries nearly the window.
    private static let frequentUpdates = 512 * 1024

    /// The path of a connection.
    struct Path {
        /// In nanoseconds; nil if unknown.
        var roundTrip: UInt64?
        /// The number of streams of the connection.
        var streams = 1
    }

    /// Bytes granted beyond ``ServerLimits/initialWindow``.
    private(set) var grown = 0
    /// When bytes were last consumed, in nanoseconds.
    private(set) var consumedAt: UInt64
    private var decidedAt: UInt64
    private var consumedSinceDecision = 0
    /// Whether bytes were consumed before the round trip was known, and the window has not been opened since.
    private(set) var awaitsRoundTrip = false
    private var isOpened = false
    /// Consumed bytes not yet returned to the peer; negative after the window has shrunk.
    private var owed = 0

    init(_ now: UInt64) { (consumedAt, decidedAt) = (now, now) }

    /// The handler consumed bytes of a wanted body.
    /// - Parameters:
    ///   - missing: Bytes of the body that have not arrived; 0 if the length is not known.
    ///   - waiting: Received bytes that wait for the handler.
    ///   - path: The connection's path, as far as it is known.
    /// - Returns: By how many bytes the window should change.
    mutating func consumed(
        _ count: Int, missing: UInt64, waiting: Int, _ path: Path, now: UInt64, _ limits: ServerLimits
    ) -> Int {
        let roundTrip = path.roundTrip
        let size = size(limits)
        owed += count
        consumedAt = now
        consumedSinceDecision += count
        awaitsRoundTrip = roundTrip == nil
        if !isOpened, let roundTrip {
            isOpened = true
            let carried = Double(roundTrip) / 1e9 * StreamWindow.fastPath
            let share = 2 * limits.maximumWindow / max(2, path.streams)
            let wanted = min(carried, Double(missing), Double(share))
            if Int(wanted) > size {
                restart(now)
                return Int(wanted) - size
            }
        }
        guard consumedSinceDecision >= size else { return 0 }
        let taken = now &- decidedAt
        restart(now)
        if waiting > size / 4 { return 0 }
        let doubled = min(2 * size, limits.maximumWindow)
        if size < StreamWindow.eager { return max(0, min(doubled, StreamWindow.eager) - size) }
        guard let roundTrip else { return 0 }
        if taken / 2 < roundTrip { return max(0, doubled - size) }
        return taken / 4 > roundTrip ? max(size / 2, StreamWindow.eager) - size : 0
    }

    private mutating func restart(_ now: UInt64) { (decidedAt, consumedSinceDecision) = (now, 0) }

    /// Counts dropped bytes of an unwanted body.
    mutating func dropped(_ count: Int) { owed += count }

    /// Changes the window's size; `bytes` is negative to shrink.
    mutating func resized(by bytes: Int) {
        grown += bytes
        owed += bytes
    }

    /// The bytes to return to the peer with a WINDOW_UPDATE now; 0 if too few.
    mutating func takeUpdate(_ limits: ServerLimits) -> Int {
        let size = size(limits)
        guard owed > 0, owed >= min(size / 2, max(size / 8, StreamWindow.frequentUpdates)) else {
            return 0
        }
        defer { owed = 0 }
        return owed
    }

    func size(_ limits: ServerLimits) -> Int { limits.initialWindow + grown }
}

/// A connection's receive window: at least twice the sum of its streams', because nghttp2 returns bytes by halves.
///
/// | event                                        | result        |
/// |----------------------------------------------|---------------|
/// | `streamGrew`, twice the sum is below the size | nil          |
/// | `streamGrew`, twice the sum is above the size | the new size |
/// | `streamShrank`                               | the sum decreases; the size is unchanged |
struct ConnectionWindow: Equatable {
    private(set) var size: Int
    private var grown = 0

    /// The initial size: RFC 9113's (section 6.9.2), or the size to which a stream's window grows on every path.
    init(_ limits: ServerLimits) {
        size = max(65535, min(StreamWindow.eager, limits.maximumWindow))
    }

    /// Returns the connection's new size, if it must grow with its stream.
    mutating func streamGrew(by bytes: Int) -> Int? {
        grown += bytes
        guard 2 * grown > size else { return nil }
        size = 2 * grown
        return size
    }

    /// Returns bytes beyond the initial window when a stream has shrunk or closed.
    mutating func streamShrank(by bytes: Int) { grown -= bytes }
}

/// The round trip time of a connection: from our SETTINGS to their acknowledgement.
///
/// | event                                     | `time`                |
/// |-------------------------------------------|-----------------------|
/// | before any other                          | nil                   |
/// | `expired`, before ``deadline``            | nil                   |
/// | `expired`, at ``deadline``                | ``assumed``           |
/// | `acknowledged`, the first time            | the elapsed time      |
struct RoundTrip: Equatable {
    /// Nanoseconds to wait for the acknowledgement. A slower path counts as long.
    private static let waitLimit: UInt64 = 5_000_000
    /// The round trip time of a long path in nanoseconds, until measured.
    static let assumed: UInt64 = 200_000_000
    private let began: UInt64
    private var isMeasured = false
    /// In nanoseconds; nil if unknown.
    private(set) var time: UInt64?

    init(_ now: UInt64) { began = now }

    /// When ``expired(_:)`` is due, if a window waits for the time.
    var deadline: UInt64 { began + RoundTrip.waitLimit }

    mutating func acknowledged(_ now: UInt64) {
        if isMeasured { return }
        isMeasured = true
        time = now - began
    }

    mutating func expired(_ now: UInt64) {
        if time == nil && deadline <= now { time = RoundTrip.assumed }
    }
}
