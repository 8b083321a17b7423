import Synchronization
import System

/// Stops requests to an upstream after repeated failures, and tries it with one request after each pause.
///
/// Only failures of the upstream as a whole count: no connection, no response in time, or a connection that is lost
/// before a response. Any complete head is a success, whatever its status and its body. Only the first attempt of a
/// request counts, because a single object that makes the service fail must not open the circuit. A connection that fails
/// counts once, however many requests it carried.
final class CircuitBreaker: Sendable {
    /// The number of consecutive failures that opens the circuit.
    static let threshold = 8
    /// How long it stays open at first, and at most: 500 ms and 5 s.
    static let pause: (first: UInt64, longest: UInt64) = (500_000_000, 5_000_000_000)

    private struct State {
        var failures = 0
        var pause: UInt64 = 0
        /// The time at which the next request may try.
        var openUntil: UInt64 = 0
        var cause = ""
    }
    private let state = Lock(State())
    /// Whether there was a failure since the last success. If not, the lock is not needed.
    private let isTroubled = Atomic<Bool>(false)

    /// Whether a request may be started. After each pause one request may, and its success closes the circuit. If its
    /// result takes long, as with an upload of a slow client, the next request may try after another pause of twice
    /// the length.
    /// - Returns: nil if it may, otherwise the reason.
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

    /// The last failure if the circuit is open; nil if it is closed.
    var openCause: String? { state.withLock { $0.pause > 0 ? $0.cause : nil } }
}

/// Limits the attempts beyond the first to a tenth of the requests, plus a few per second with a reserve for short
/// failures. So retries do not multiply the load of an upstream in trouble.
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
