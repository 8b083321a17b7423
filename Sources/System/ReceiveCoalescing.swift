import Glibc

/// Lets many bytes of a long body arrive before the loop reports their socket (socket(7), `SO_RCVLOWAT`). Saves 2 % of a large
/// upload's CPU in clear text and 8 % over TLS: otherwise each of the peer's writes wakes the loop. The connections of
/// `HTTPServer` and `HTTPClient` use it.
///
/// | event                                  | the kernel reports the socket                                    |
/// |----------------------------------------|------------------------------------------------------------------|
/// | `wait`, preceding bytes arrived slowly | at the next byte                                                 |
/// | `wait`, preceding bytes arrived fast   | at ``maximum`` bytes, or the expected ones if these are fewer    |
/// | `end`                                  | at the next byte                                                 |
///
/// After `received` and `expired` the caller reads on, and calls `wait` before it relies on the loop again: until then the mark
/// may be raised without a deadline.
///
/// The kernel always reports an end or an error of the connection at once.
public struct ReceiveCoalescing {
    /// The maximum low-water mark in bytes. A body is fast if this many bytes arrive within ``limit``.
    public static let maximum = 128 * 1024
    /// The time in nanoseconds after which the received bytes are read: 10 ms.
    public static let limit: UInt64 = 10_000_000
    /// A lower mark saves no wake-up.
    private static let minimum = 32 * 1024
    /// The maximum number of expected bytes that a TLS session may already hold as an incomplete record.
    private static let buffered = 17 * 1024

    /// The number of bytes received since `since`.
    private var received = 0
    /// 0 before the first ``wait(_:for:_:)`` of a body.
    private var since: UInt64 = 0
    private var isFast = false
    /// The current low-water mark in bytes.
    private var lowWater = 1
    /// When ``expired()`` is due and the socket must be read, whatever the loop has reported; `UInt64.max` for never.
    public private(set) var deadline = UInt64.max

    public init() {}

    /// Counts received bytes.
    public mutating func received(_ count: Int) {
        received += count
        deadline = .max
    }

    /// Everything that had arrived was received. Now the socket waits for its peer.
    /// - Parameter expected: Bytes that the peer sends without waiting for us. Further ones may be delayed by
    ///   ``limit``.
    public mutating func wait(_ descriptor: Int32, for expected: Int, _ now: UInt64) {
        if since == 0 { measure(now, isFast: false) }
        let times = UInt64(received / ReceiveCoalescing.maximum)
        if times > 0 { measure(now, isFast: (now - since) / times <= ReceiveCoalescing.limit) }
        let count = min(expected - ReceiveCoalescing.buffered, ReceiveCoalescing.maximum)
        guard isFast, count >= ReceiveCoalescing.minimum else { return reportAtOnce(descriptor) }
        setLowWater(descriptor, count)
        // A turn without reading does not extend the deadline of bytes that have arrived.
        if deadline == .max { deadline = now &+ ReceiveCoalescing.limit }
    }

    /// The deadline has passed. The next bytes have arrived since the wait began.
    public mutating func expired() {
        measure(deadline - ReceiveCoalescing.limit, isFast: false)
        deadline = .max
    }

    /// Ends the wait after a body, whose speed does not count for the next one.
    public mutating func end(_ descriptor: Int32) {
        reportAtOnce(descriptor)
        measure(0, isFast: false)
    }

    private mutating func reportAtOnce(_ descriptor: Int32) {
        setLowWater(descriptor, 1)
        deadline = .max
    }

    private mutating func measure(_ now: UInt64, isFast: Bool) {
        self.isFast = isFast
        received = 0
        since = now
    }

    private mutating func setLowWater(_ descriptor: Int32, _ count: Int) {
        guard count != lowWater else { return }
        lowWater = count
        var value = Int32(count)
        setsockopt(descriptor, SOL_SOCKET, SO_RCVLOWAT, &value, socklen_t(MemoryLayout<Int32>.size))
    }
}
