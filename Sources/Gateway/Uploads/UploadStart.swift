import System

/// Lets creations wait until the sessions of an earlier process are counted, so that limits hold from the start.
final class UploadStart: Sendable {
    private struct State {
        var isOver: Bool
        var waiters: [Int: CheckedContinuation<Bool, Never>] = [:]
        var nextWaiter = 0
    }
    private let state: Lock<State>
    /// In nanoseconds.
    private let limit: UInt64

    init(isOver: Bool, limit: UInt64) {
        state = Lock(State(isOver: isOver))
        self.limit = limit
    }

    /// Everything is counted.
    func end() {
        let waiters = state.withLock { state in
            state.isOver = true
            defer { state.waiters = [:] }
            return state.waiters.values
        }
        for waiter in waiters { waiter.resume(returning: true) }
    }

    /// Waits for ``end()``, but not longer than the limit.
    /// - Returns: Whether it has come.
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
