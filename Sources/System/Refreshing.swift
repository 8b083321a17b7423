/// A state that is refreshed by its owner. One refresh runs at a time, and other tasks can wait for its end.
///
/// Under the lock of the refresh, the owner decides when one is due and what a failure changes.
package final class Refreshing<State: Sendable>: Sendable {
    /// The phase of a refresh.
    package enum Phase: Sendable {
        case idle, running
        /// Running, and no task waits for it any more.
        case slow
    }
    private struct Guarded: Sendable {
        var state: State
        var phase = Phase.idle
        var waiters: [CheckedContinuation<Void, Never>] = []

        mutating func takeWaiters() -> [CheckedContinuation<Void, Never>] {
            defer { waiters = [] }
            return waiters
        }
    }
    private let guarded: Lock<Guarded>

    package init(_ state: State) { guarded = Lock(Guarded(state: state)) }

    /// Reads or changes the state.
    package func withState<Result>(_ body: (inout State) -> Result) -> Result {
        guarded.withLock { body(&$0.state) }
    }

    /// Asks `body` whether a refresh is due. If `begins` is true, the caller must run one and then call ``end(_:)``.
    /// - Returns: The result of `body`, and whether a refresh begins: it is due and none is running.
    package func begin<Result>(
        _ body: (inout State, Phase) -> (result: Result, wantsRefresh: Bool)
    ) -> (result: Result, begins: Bool) {
        guarded.withLock { guarded in
            let (result, wantsRefresh) = body(&guarded.state, guarded.phase)
            guard wantsRefresh, guarded.phase == .idle else { return (result, false) }
            guarded.phase = .running
            return (result, true)
        }
    }

    /// Ends the refresh, updates the state and resumes the waiting tasks.
    package func end<Result>(_ body: (inout State) -> Result) -> Result {
        let (result, waiters) = guarded.withLock { guarded in
            guarded.phase = .idle
            return (body(&guarded.state), guarded.takeWaiters())
        }
        for waiter in waiters { waiter.resume() }
        return result
    }

    /// Returns when no refresh runs, or after ``stopWaiting()``.
    package func wait() async {
        await withCheckedContinuation { waiter in
            let waits = guarded.withLock { guarded in
                let waits = guarded.phase == .running
                if waits { guarded.waiters.append(waiter) }
                return waits
            }
            if !waits { waiter.resume() }
        }
    }

    /// Resumes all tasks that wait for the current refresh.
    package func stopWaiting() {
        let waiters = guarded.withLock { guarded in
            if guarded.phase == .running { guarded.phase = .slow }
            return guarded.takeWaiters()
        }
        for waiter in waiters { waiter.resume() }
    }
}
