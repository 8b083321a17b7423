import Synchronization
import System

/// Leaves an upstream alone that fails again and again, and tries it with one request after each pause.
///
/// Only what says that nobody is there counts as a failure: no connection, no response in time, or a connection that is
/// lost before a response. Any complete head is a success, whatever its status and whatever becomes of its body. The first
/// attempt of a request counts and its repetitions do not: one object that makes a service fail is not the service.
final class CircuitBreaker: Sendable {
    /// Failures in a row that open it.
    static let threshold = 8
    /// How long it stays open at first, and at most: 500 ms and 5 s.
    static let pause: (first: UInt64, longest: UInt64) = (500_000_000, 5_000_000_000)

    private struct State {
        var failures = 0
        var pause: UInt64 = 0
        /// When the next request may try.
        var openUntil: UInt64 = 0
        var cause = ""
    }
    private let state = Lock(State())
    /// Whether a failure was told since the last success: nobody needs the lock until then.
    private let isTroubled = Atomic<Bool>(false)

    /// Whether a request may be begun. After each pause one may, and a success decides. Nobody waits for the outcome of
    /// one that takes its time, as an upload whose client is slow does: after another pause, twice as long, the next tries.
    /// - Returns: nil where it may, otherwise why not.
    func refusal(now: UInt64) -> String? {
        guard isTroubled.load(ordering: .relaxed) else { return nil }
        return state.withLock { state in
            guard state.pause > 0 else { return nil }
            if now < state.openUntil { return state.cause }
            state.pause = min(state.pause * 2, Self.pause.longest)
            state.openUntil = now &+ state.pause
            return nil
        }
    }

    func succeeded() {
        guard isTroubled.load(ordering: .relaxed) else { return }
        state.withLock { state in
            state = State()
            isTroubled.store(false, ordering: .relaxed)
        }
    }

    func failed(_ cause: String, now: UInt64) {
        state.withLock { state in
            isTroubled.store(true, ordering: .relaxed)
            state.failures += 1
            state.cause = cause
            guard state.pause == 0, state.failures >= Self.threshold else { return }
            state.pause = Self.pause.first
            state.openUntil = now &+ state.pause
        }
    }

    /// The last failure where the breaker is open; nil while requests are begun.
    var openCause: String? { state.withLock { $0.pause > 0 ? $0.cause : nil } }
}

/// How many attempts beyond the first are allowed: a tenth of the requests, and a few each second with a reserve for a
/// moment of trouble, so that retries never multiply the load of an upstream in trouble.
final class RetryBudget: Sendable {
    /// Retries in reserve.
    static let reserve = 100
    /// Nanoseconds in which the reserve gets one: 100 ms.
    private static let interval: UInt64 = 100_000_000
    /// Tenths of a retry.
    private let tokens = Atomic<Int>(RetryBudget.reserve * 10)
    /// Intervals of the clock that were counted.
    private let intervals = Atomic<Int>(0)

    func requestBegan() { add(1) }

    /// - Parameter now: Of the monotonic clock.
    func take(now: UInt64) -> Bool {
        let current = Int(now / Self.interval)
        let counted = intervals.max(current, ordering: .relaxed).oldValue
        if current > counted { add(10 * min(current - counted, Self.reserve)) }
        return change { $0 >= 10 ? $0 - 10 : nil }
    }

    private func add(_ tenths: Int) {
        let full = Self.reserve * 10
        change { $0 < full ? min($0 + tenths, full) : nil }
    }

    /// - Parameter next: What follows a number of tokens; nil where it stays.
    @discardableResult
    private func change(_ next: (Int) -> Int?) -> Bool {
        var current = tokens.load(ordering: .relaxed)
        while let wanted = next(current) {
            let (done, found) = tokens.weakCompareExchange(
                expected: current, desired: wanted, ordering: .relaxed)
            if done { return true }
            current = found
        }
        return false
    }
}
