/// The graceful end of an HTTP/2 connection by two GOAWAY frames (RFC 9113, section 6.8). The first GOAWAY announces
/// the end but still accepts streams. A PING follows it, whose acknowledgement shows that the peer has seen the GOAWAY.
/// The second GOAWAY then names the last stream that is served.
///
/// | state       | `begin`    | `noticeSent` | `pingAnswered` | `time` before, from the deadline on | `emptied` |
/// |-------------|------------|--------------|----------------|-------------------------------------|-----------|
/// | `serving`   | `announce` | –            | –              | –, –                                | –         |
/// | `announced` | –          | `ping`       | `finish`       | –, `finish`                         | –         |
/// | `final`     | –          | –            | –              | –, –                                | `close`   |
///
/// `announce` leads to `announced`, `finish` to `final`. Every other event leaves the state unchanged.
struct DrainState: Equatable {
    enum Event: Equatable {
        /// The server drains, or the connection is to end after the current response.
        case begin(now: UInt64)
        /// A GOAWAY without an error was sent.
        case noticeSent
        case pingAnswered
        /// The loop's time.
        case time(UInt64)
        /// No stream is open and no handler runs.
        case emptied
    }
    enum Action: Equatable {
        case none
        /// Send the first GOAWAY, with the highest stream identifier.
        case announce
        /// Send a PING.
        case ping
        /// Send the second GOAWAY, with the last stream identifier that is served.
        case finish
        /// End the connection once everything is sent.
        case close
    }
    private enum Phase: Equatable {
        case serving
        case announced(deadline: UInt64)
        case final
    }
    private var phase = Phase.serving
    /// Nanoseconds within which the peer must acknowledge the PING.
    static let pingTimeout: UInt64 = 1_000_000_000

    var isFinal: Bool { phase == .final }

    /// When the second GOAWAY follows an unacknowledged PING; `.max` in the other states.
    var deadline: UInt64 {
        if case .announced(let deadline) = phase { deadline } else { .max }
    }

    mutating func handle(_ event: Event) -> Action {
        switch (phase, event) {
        case (.serving, .begin(let now)):
            phase = .announced(deadline: now + DrainState.pingTimeout)
            return .announce
        case (.announced, .noticeSent):
            return .ping
        case (.announced, .pingAnswered):
            phase = .final
            return .finish
        case (.announced(let deadline), .time(let now)) where deadline <= now:
            phase = .final
            return .finish
        case (.final, .emptied):
            return .close
        default:
            return .none
        }
    }
}
