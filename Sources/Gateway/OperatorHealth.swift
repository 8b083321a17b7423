import EventLoop
import Synchronization

/// Whether the gateway can serve: named checks and the draining flag.
///
/// How fresh: a check runs when readiness is asked for and its last result is older than ``freshness``; otherwise the
/// result stands. A question waits for the checks it started, at most ``timeout``; a check that has not ended then
/// counts as failed until it ends, and is never started a second time meanwhile. So nothing runs while nobody asks,
/// and however many ask, each store is asked once a second at most.
public final class Health: Sendable {
    /// A check passes by returning and fails by throwing; the error's description is for the operator.
    public typealias Check = @Sendable () async throws -> Void

    /// One check's result.
    public struct Result: Sendable, Equatable {
        public var name: String
        /// Why it failed; nil where it passed.
        public var failure: String?
    }

    /// The answer to a question about readiness.
    public struct Report: Sendable, Equatable {
        public var results: [Result]
        public var isDraining: Bool
        /// Whether requests should be sent here.
        public var isReady: Bool { !isDraining && results.allSatisfy { $0.failure == nil } }
    }

    private struct Entry {
        let id: Int
        let name: String
        let check: Check
        var failure: String?
        var checked: UInt64?
        var runningSince: UInt64?
    }
    private struct State {
        var entries: [Entry] = []
        var waiters: [Int: CheckedContinuation<Void, Never>] = [:]
        var nextId = 0
        var isDraining = false

        mutating func id() -> Int {
            nextId += 1
            return nextId
        }
    }

    /// Nanoseconds a result stands.
    public let freshness: UInt64
    /// Nanoseconds a question waits for a check. Under the second that a kubelet waits for a probe.
    public let timeout: UInt64
    private let executor: (any TaskExecutor)?
    private let now: @Sendable () -> UInt64
    private let state = Mutex(State())

    /// - Parameters:
    ///   - executor: Where the checks run, for example a loop; nil is Swift's own pool.
    ///   - now: Monotonic nanoseconds.
    public init(
        freshness: UInt64 = 1_000_000_000, timeout: UInt64 = 800_000_000,
        executor: (any TaskExecutor)? = nil,
        now: @escaping @Sendable () -> UInt64 = { EventLoop.monotonicNow() }
    ) {
        self.freshness = freshness
        self.timeout = timeout
        self.executor = executor
        self.now = now
    }

    /// Adds a check, for example `health.add("bucket photos") { try await driver.checkHealth() }`.
    public func add(_ name: String, _ check: @escaping Check) {
        state.withLock { $0.entries.append(Entry(id: $0.id(), name: name, check: check)) }
    }

    /// Forgets all checks of this name; one that runs is left to end on its own.
    public func remove(_ name: String) {
        let resumed = state.withLock { state in
            state.entries.removeAll { $0.name == name }
            return hasPending(state, now()) ? [] : takeWaiters(&state)
        }
        for waiter in resumed { waiter.resume() }
    }

    /// Adds a check that `loop` still takes turns.
    public func add(_ name: String, loop: EventLoop) {
        add(name) { await withCheckedContinuation { waiter in loop.execute { waiter.resume() } } }
    }

    /// Whether the process is going away.
    public var isDraining: Bool { state.withLock { $0.isDraining } }

    /// Makes readiness fail from now on. Any thread may call it, a signal handler itself may not.
    public func beginDraining() { state.withLock { $0.isDraining = true } }

    /// Runs the checks whose results are too old, and reports.
    public func report() async -> Report {
        let due = begin()
        for entry in due { start(entry) }
        await wait()
        let end = now()
        return state.withLock { state in
            Report(
                results: state.entries.map { entry in
                    guard let since = entry.runningSince else {
                        return Result(name: entry.name, failure: entry.failure)
                    }
                    let milliseconds = (end &- since) / 1_000_000
                    return Result(
                        name: entry.name, failure: "no result after \(milliseconds) ms")
                },
                isDraining: state.isDraining)
        }
    }

    /// Marks the checks that are due as running and returns them.
    private func begin() -> [Entry] {
        let now = now()
        return state.withLock { state in
            var due: [Entry] = []
            for index in state.entries.indices where state.entries[index].runningSince == nil {
                let checked = state.entries[index].checked
                if let checked, now &- checked < freshness { continue }
                state.entries[index].runningSince = now
                due.append(state.entries[index])
            }
            return due
        }
    }

    private func start(_ entry: Entry) {
        Task(executorPreference: executor) { [self] in
            var failure: String?
            do { try await entry.check() } catch { failure = "\(error)" }
            finish(entry.id, failure)
        }
    }

    private func finish(_ id: Int, _ failure: String?) {
        let now = now()
        let resumed = state.withLock { state in
            if let index = state.entries.firstIndex(where: { $0.id == id }) {
                state.entries[index].failure = failure
                state.entries[index].checked = now
                state.entries[index].runningSince = nil
            }
            return hasPending(state, now) ? [] : takeWaiters(&state)
        }
        for waiter in resumed { waiter.resume() }
    }

    /// Waits until no check is running that is not yet overdue, at most ``timeout``.
    private func wait() async {
        let id = state.withLock { $0.id() }
        var alarm: Task<Void, any Error>?
        await withCheckedContinuation { waiter in
            let now = now()
            let isPending = state.withLock { state in
                guard hasPending(state, now) else { return false }
                state.waiters[id] = waiter
                return true
            }
            guard isPending else { return waiter.resume() }
            alarm = Task {
                try await Task.sleep(nanoseconds: timeout)
                state.withLock { $0.waiters.removeValue(forKey: id) }?.resume()
            }
        }
        alarm?.cancel()
    }

    private func hasPending(_ state: borrowing State, _ now: UInt64) -> Bool {
        state.entries.contains { entry in
            entry.runningSince.map { now &- $0 < timeout } ?? false
        }
    }

    private func takeWaiters(_ state: inout State) -> [CheckedContinuation<Void, Never>] {
        let all = Array(state.waiters.values)
        state.waiters = [:]
        return all
    }
}
