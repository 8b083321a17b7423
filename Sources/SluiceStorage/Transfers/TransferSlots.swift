import Synchronization

/// Limits how many transfers run at a time, parts of one object included.
package final class TransferSlots: Sendable {
    private struct State {
        var free: Int
        var waiters: [CheckedContinuation<Void, Never>] = []
    }
    /// The most transfers at a time.
    package let limit: Int
    private let state: Mutex<State>

    /// - Parameter limit: At least 1.
    package init(_ limit: Int) {
        self.limit = limit
        state = Mutex(State(free: limit))
    }

    /// Takes a slot, and waits until one is free.
    package func acquire() async {
        await withCheckedContinuation { waiter in
            let isFree = state.withLock { state in
                guard state.free > 0 else {
                    state.waiters.append(waiter)
                    return false
                }
                state.free -= 1
                return true
            }
            if isFree { waiter.resume() }
        }
    }

    /// Takes a slot if one is free.
    package func tryAcquire() -> Bool {
        state.withLock { state in
            guard state.free > 0 else { return false }
            state.free -= 1
            return true
        }
    }

    /// Returns a slot, to the one that has waited longest.
    package func release() {
        let next: CheckedContinuation<Void, Never>? = state.withLock { state in
            if !state.waiters.isEmpty { return state.waiters.removeFirst() }
            state.free += 1
            return nil
        }
        next?.resume()
    }
}
