import EventLoop

/// Work that nobody waits for but the one who closes: abandoned uploads are cancelled at the service.
final class BackgroundTasks: Sendable {
    private struct State {
        var running: [Int: Task<Void, Never>] = [:]
        var next = 0
    }
    private let state = Lock(State())

    /// Runs `body` on the calling loop.
    func run(_ body: @escaping @Sendable () async -> Void) {
        let id = state.withLock { state in
            state.next += 1
            return state.next
        }
        let loop = EventLoop.current
        state.withLock { state in
            state.running[id] = Task(executorPreference: loop) {
                await body()
                self.state.withLock { state in state.running[id] = nil }
            }
        }
    }

    /// Waits until nothing runs any more, at most for `nanoseconds`; what then still runs is cancelled.
    func finish(within nanoseconds: UInt64) async {
        let running = state.withLock { Array($0.running.values) }
        if running.isEmpty { return }
        let deadline = Task {
            try? await Task.sleep(nanoseconds: nanoseconds)
            for task in running { task.cancel() }
        }
        for task in running { await task.value }
        deadline.cancel()
    }
}
