/// The end of a connection after its last response: the sending side is shut down, and the peer's remaining bytes are
/// read and dropped. Closing with unread bytes would reset the connection, and the peer could lose the response (RFC
/// 9112, section 9.6).
///
/// | state      | `flushed`                                | `received`                    | `peerEnded` | deadline |
/// |------------|------------------------------------------|-------------------------------|-------------|----------|
/// | `sending`  | `endSending`; `close` if the peer ended  | `close` beyond the allowance  | `close`     | close    |
/// | `dropping` | –                                        | `close` beyond the allowance  | `close`     | close    |
///
struct LingerState: Equatable {
    enum Event: Equatable {
        /// The kernel has accepted everything, including the end of TLS.
        case flushed
        case received(Int, now: UInt64)
        /// The peer has stopped sending.
        case peerEnded
    }
    enum Action: Equatable {
        case none
        /// Shut down the sending side of the socket.
        case endSending
        /// Close the socket.
        case close
    }
    /// The number of bytes that an HTTP/2 connection drops. A rejected HTTP/2 body ends with its stream, so these bytes
    /// are not an upload whose response could be lost. HTTP/1.1 has no such limit.
    static let http2Allowance = 1 << 20
    /// Nanoseconds for which a draining server waits for the peer's next bytes.
    static let drainGrace: UInt64 = 1_000_000_000

    private let since: UInt64
    private var lastReceived: UInt64
    private var allowance: Int
    private let hasPeerEnded: Bool
    private var isSending = true

    /// - Parameter allowance: The number of bytes that may be dropped.
    /// - Parameter hasPeerEnded: Whether the peer has already ended its sending side.
    init(now: UInt64, allowance: Int = .max, hasPeerEnded: Bool) {
        since = now
        lastReceived = now
        self.allowance = allowance
        self.hasPeerEnded = hasPeerEnded
    }

    mutating func handle(_ event: Event) -> Action {
        switch event {
        case .flushed:
            guard isSending else { return .none }
            isSending = false
            return hasPeerEnded ? .close : .endSending
        case .received(let count, let now):
            lastReceived = now
            allowance -= count
            return allowance < 0 ? .close : .none
        case .peerEnded:
            return .close
        }
    }

    /// When to close the connection.
    func deadline(_ limits: ServerLimits, isDraining: Bool) -> UInt64 {
        let interval = isDraining ? LingerState.drainGrace : limits.lingerInterval
        return min(since + limits.lingerTimeout, lastReceived + interval)
    }
}
