import Synchronization
import System

/// Stops requests to an upstream after repeated failures, and probes it with one request after each pause.
///
/// Only failures of the upstream as a whole count: no connection, no timely response, or a connection lost before a
/// response. Any complete head is a success, whatever its status and body. Only a request's first attempt counts,
/// because a single object that makes the service fail must not open the circuit. A failed connection counts once,
/// however many requests it carried.
final class CircuitBreaker: Sendable {
    /// The number of consecutive failures that opens the circuit.
    static let threshold = 8
    /// The first and the longest pause: 500 ms and 5 s.
    static let pause: (first: UInt64, longest: UInt64) = (500_000_000, 5_000_000_000)

    private struct State {
        var failures = 0
        var pause: UInt64 = 0
        /// When the next request may probe.
        var openUntil: UInt64 = 0
        var cause = ""
    }
    private let state = Lock(State())
    /// Whether there was a failure since the last success. Otherwise the lock is not needed.
    private let isTroubled = Atomic<Bool>(false)

    /// Why a request must not start; nil if it may. After each pause one request may start, and its success closes the
    /// circuit. While its result is pending, as with a slow client's upload, the next request may start after another
    /// pause of twice the length.
    func rejection(now: UInt64) -> String? {
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

    /// The last failure while the circuit is open; nil if it is closed.
    var openCause: String? { state.withLock { $0.pause > 0 ? $0.cause : nil } }
}

/// Limits retries to a tenth of the requests, plus a few per second with a reserve for short failures, so that they do
/// not multiply the load of a failing upstream.
final class RetryBudget: Sendable {
    /// The size of the reserve.
    static let reserve = 100
    /// The time in which the reserve grows by one retry: 100 ms.
    private static let interval: UInt64 = 100_000_000
    /// The available retries, in tenths.
    private let tokens = Atomic<Int>(RetryBudget.reserve * 10)
    /// The number of elapsed intervals that were counted.
    private let intervals = Atomic<Int>(0)

    func requestBegan() { add(1) }

    /// - Parameter now: Monotonic time.
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

    /// - Parameter next: Returns the new number of tokens; nil to keep it.
    @discardableResult
    private func change(_ next: (Int) -> Int?) -> Bool {
        var current = tokens.load(ordering: .relaxed)
        while let wanted = next(current) {
            let (done, found) = tokens.weakCompareExchange(expected: current, desired: wanted, ordering: .relaxed)
            if done { return true }
            current = found
        }
        return false
    }
}
