import System

/// Delays creations until the sessions of an earlier process are counted, so that limits apply from the start.
final class UploadStart: Sendable {
    private struct State {
        var isOver: Bool
        var waiters: [Int: CheckedContinuation<Bool, Never>] = [:]
        var nextWaiter = 0
    }
    private let state: Lock<State>
    /// The maximum wait in nanoseconds.
    private let limit: UInt64

    init(isOver: Bool, limit: UInt64) {
        state = Lock(State(isOver: isOver))
        self.limit = limit
    }

    /// Reports that all sessions are counted.
    func end() {
        let waiters = state.withLock { state in
            state.isOver = true
            defer { state.waiters = [:] }
            return state.waiters.values
        }
        for waiter in waiters { waiter.resume(returning: true) }
    }

    /// Waits for ``end()``, but not longer than the limit.
    /// - Returns: Whether it was called in time.
    func wait() async -> Bool {
        var alarm: Task<Void, any Error>?
        let isOver = await withCheckedContinuation { waiter in
            let id = state.withLock { state -> Int? in
                if state.isOver { return nil }
                state.nextWaiter += 1
                state.waiters[state.nextWaiter] = waiter
                return state.nextWaiter
            }
            guard let id else { return waiter.resume(returning: true) }
            alarm = Task {
                try await Task.sleep(nanoseconds: limit)
                state.withLock { $0.waiters.removeValue(forKey: id) }?.resume(returning: false)
            }
        }
        alarm?.cancel()
        return isOver
    }
}
