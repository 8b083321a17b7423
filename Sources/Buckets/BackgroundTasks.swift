import EventLoop

/// Work that nobody waits for but the one who closes: abandoned uploads are cancelled at the service.
final class BackgroundTasks: Sendable {
    private struct State {
        var running: [Int: Task<Void, Never>] = [:]
        var next = 0
    }
    /// Nanoseconds that the end waits at most: 5 s.
    private static let patience: UInt64 = 5_000_000_000
    private let state = Lock(State())

    /// Runs `body` on a loop, by default on the one that calls.
    func run(
        on loop: EventLoop? = EventLoop.current, _ body: @escaping @Sendable () async -> Void
    ) {
        let id = state.withLock { state in
            state.next += 1
            return state.next
        }
        state.withLock { state in
            state.running[id] = Task(executorPreference: loop) {
                await body()
                self.state.withLock { state in state.running[id] = nil }
            }
        }
    }

    /// Waits until nothing runs any more, but not forever: what then still runs is cancelled.
    func finish() async {
        let running = state.withLock { Array($0.running.values) }
        if running.isEmpty { return }
        let deadline = Task {
            try? await Task.sleep(nanoseconds: BackgroundTasks.patience)
            for task in running { task.cancel() }
        }
        for task in running { await task.value }
        deadline.cancel()
    }
}
