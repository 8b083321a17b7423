import EventLoop

/// Work that nobody waits for but the one who closes: abandoned uploads are cancelled at the service.
final class BackgroundTasks: Sendable {
    private struct State {
        var running: [Int: Task<Void, Never>] = [:]
        var next = 0
        /// What was begun and may need such work when it ends.
        var open = 0
        var waiters: [CheckedContinuation<Void, Never>] = []
        /// Whether patience has ended: nothing is begun any more.
        var isOver = false

        mutating func takeWaiters() -> [CheckedContinuation<Void, Never>] {
            defer { waiters = [] }
            return waiters
        }
    }
    /// Nanoseconds that the end waits at most: 5 s.
    private static let patience: UInt64 = 5_000_000_000
    private let state = Lock(State())

    /// Runs `body` on a loop, by default on the one that calls.
    func run(
        on loop: EventLoop? = EventLoop.current, _ body: @escaping @Sendable () async -> Void
    ) {
        state.withLock { state in
            if state.isOver { return }
            state.next += 1
            let id = state.next
            state.running[id] = Task(executorPreference: loop) {
                await body()
                self.state.withLock { state in state.running[id] = nil }
            }
        }
    }

    /// Something begins that may need such work when it ends; the end waits for ``end()``.
    func begin() { state.withLock { $0.open += 1 } }

    /// What began has ended, and what it needs runs already.
    func end() {
        let waiters = state.withLock { state in
            state.open -= 1
            return state.open == 0 ? state.takeWaiters() : []
        }
        for waiter in waiters { waiter.resume() }
    }

    /// Waits until nothing is open and nothing runs any more, also of what is begun meanwhile, but not forever: what then
    /// still runs is cancelled.
    func finish() async {
        let deadline = Task {
            do { try await Task.sleep(nanoseconds: BackgroundTasks.patience) } catch { return }
            let (running, waiters) = state.withLock { state in
                state.isOver = true
                return (Array(state.running.values), state.takeWaiters())
            }
            for task in running { task.cancel() }
            for waiter in waiters { waiter.resume() }
        }
        while true {
            await withCheckedContinuation { waiter in
                let isOpen = state.withLock { state in
                    if state.open == 0 || state.isOver { return false }
                    state.waiters.append(waiter)
                    return true
                }
                if !isOpen { waiter.resume() }
            }
            let running = state.withLock { Array($0.running.values) }
            if running.isEmpty { break }
            for task in running { await task.value }
        }
        deadline.cancel()
    }
}
