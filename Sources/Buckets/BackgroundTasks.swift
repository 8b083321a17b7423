import System

/// Background work that only ``finish()`` waits for, such as cancelling abandoned uploads at the service.
final class BackgroundTasks: Sendable {
    private struct State {
        var running: [Int: Task<Void, Never>] = [:]
        var next = 0
        /// Operations that may start background work when they end.
        var open = 0
        /// The loop of the last operation. Work that is started on another thread runs there.
        var home: EventLoop?
        var waiters: [CheckedContinuation<Void, Never>] = []
        /// Whether ``waitLimit`` has passed. No work is started after that.
        var isOver = false

        mutating func takeWaiters() -> [CheckedContinuation<Void, Never>] {
            defer { waiters = [] }
            return waiters
        }
    }
    /// The maximum wait of ``finish()``: 5 s.
    private static let waitLimit: UInt64 = 5_000_000_000
    private let state = Lock(State())

    /// Runs `body` on the caller's loop, or else on the loop of the last ``begin()``, or else not at all.
    func run(
        on loop: EventLoop? = EventLoop.current, _ body: @escaping @Sendable () async -> Void
    ) {
        state.withLock { state in
            if state.isOver { return }
            guard let loop = loop ?? state.home else {
                return assertionFailure("nothing was begun on a loop")
            }
            state.next += 1
            let id = state.next
            state.running[id] = Task(executorPreference: loop) {
                await body()
                self.state.withLock { state in state.running[id] = nil }
            }
        }
    }

    /// Registers an operation that may start background work before its ``end()``. ``finish()`` waits for it.
    func begin() {
        state.withLock { state in
            state.open += 1
            state.home = EventLoop.current ?? state.home
        }
    }

    /// Marks an operation as ended. Its background work must have been started before this call.
    func end() {
        let waiters = state.withLock { state in
            state.open -= 1
            return state.open == 0 ? state.takeWaiters() : []
        }
        for waiter in waiters { waiter.resume() }
    }

    /// Waits until no operation is open and no work is running, even new work. After ``waitLimit``, work is cancelled.
    func finish() async {
        let deadline = Task {
            do { try await Task.sleep(nanoseconds: BackgroundTasks.waitLimit) } catch { return }
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
