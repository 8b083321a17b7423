import EventLoop

/// Leaves an upstream alone that fails again and again, and tries it with one request now and then.
///
/// Only what says that nobody is there counts as a failure: no connection, no answer in time, an answer cut off or not
/// HTTP. Any complete head is a success, whatever its status.
final class CircuitBreaker: Sendable {
    /// Failures in a row that open it.
    static let threshold = 8
    /// How long it stays open at first, and at most: 500 ms and 5 s.
    static let pause: (first: UInt64, longest: UInt64) = (500_000_000, 5_000_000_000)

    private struct State {
        var failures = 0
        var pause: UInt64 = 0
        var openUntil: UInt64 = 0
        var isTrying = false
        var cause = ""
    }
    private let state = Lock(State())

    /// Whether a request may be begun. After the pause one may, whose outcome decides.
    /// - Returns: nil where it may, otherwise why not.
    func refusal(now: UInt64) -> String? {
        state.withLock { state in
            guard state.pause > 0 else { return nil }
            if now < state.openUntil || state.isTrying { return state.cause }
            state.isTrying = true
            return nil
        }
    }

    func succeeded() { state.withLock { $0 = State() } }

    func failed(_ cause: String, now: UInt64) {
        state.withLock { state in
            state.failures += 1
            state.cause = cause
            guard state.isTrying || state.pause == 0, state.failures >= Self.threshold else {
                return
            }
            state.pause = min(max(state.pause * 2, Self.pause.first), Self.pause.longest)
            state.openUntil = now &+ state.pause
            state.isTrying = false
        }
    }

    /// A request was given up before anything was known.
    func gaveUp() { state.withLock { $0.isTrying = false } }

    /// The last failure where the breaker is open; nil while requests are begun.
    var openCause: String? { state.withLock { $0.pause > 0 ? $0.cause : nil } }
}

/// How many attempts beyond the first are allowed: a tenth of the requests, and a few each second with a reserve for a
/// moment of trouble, so that retries never multiply the load of an upstream in trouble.
final class RetryBudget: Sendable {
    /// Retries in reserve, and those of one second.
    static let reserve = 100.0
    static let perSecond = 10.0
    private struct State {
        var tokens = RetryBudget.reserve
        var time: UInt64 = 0
    }
    private let state = Lock(State())

    func requestBegan() { state.withLock { $0.tokens = min($0.tokens + 0.1, Self.reserve) } }

    /// - Parameter now: Of the monotonic clock.
    func take(now: UInt64) -> Bool {
        state.withLock { state in
            if now > state.time {
                let seconds = Double(now - state.time) / 1e9
                state.tokens = min(state.tokens + seconds * Self.perSecond, Self.reserve)
                state.time = now
            }
            guard state.tokens >= 1 else { return false }
            state.tokens -= 1
            return true
        }
    }
}
