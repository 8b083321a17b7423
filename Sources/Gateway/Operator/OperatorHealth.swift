import System
import Wire

/// Whether the gateway can serve: named checks and the draining flag.
///
/// A check runs when readiness is requested and its last result is older than ``freshness``. The request waits for the
/// checks it started, at most ``timeout``. A check that takes longer counts as failed until it ends, and does not run
/// twice at a time. So requests check each store at most once per second. ``watch()`` runs them without requests too.
public final class Health: Sendable {
    /// A check passes if it returns and fails if it throws. The error's description is for the operator.
    public typealias Check = @Sendable () async throws -> Void

    /// One check's result.
    public struct Result: Sendable, Equatable {
        public var name: String
        /// The cause of the failure; nil if the check passed.
        public var failure: String?
        /// More about what passed.
        public var detail: String?
    }

    /// The readiness at one time.
    public struct Report: Sendable, Equatable {
        public var results: [Result]
        /// Warnings, which do not affect readiness.
        public var notes: [Result] = []
        public var isDraining: Bool
        /// Whether requests should be sent here.
        public var isReady: Bool { !isDraining && results.allSatisfy { $0.failure == nil } }
    }

    private struct Entry {
        let name: String
        let check: Check
        /// How old the result may be without requests for readiness, in nanoseconds.
        let interval: UInt64
        /// Whether there is a reason to check before the interval has passed.
        let isSuspect: @Sendable () -> Bool
        /// The same when the check last began. The end of the reason triggers a check too.
        var wasSuspect = false
        var failure: String?
        var checked: UInt64?
        var runningSince: UInt64?
    }
    private struct State {
        var entries: [Entry] = []
        var waiters: [Int: CheckedContinuation<Void, Never>] = [:]
        var nextWaiter = 0
        var isDraining = false
        var notes: [Note] = []
        /// The names of the failed checks that were announced last; nil before the first report.
        var announced: [BytewiseString]?
        var observer: (@Sendable (Report) -> Void)?
    }
    private struct Note {
        let name: String
        let detail: @Sendable () -> String?
        let failure: @Sendable () -> String?
    }

    /// How long a result is valid, in nanoseconds.
    public let freshness: UInt64
    /// How long a request waits for a check, in nanoseconds. Less than the second that a kubelet waits for a probe.
    public let timeout: UInt64
    private let executor: (any TaskExecutor)?
    private let now: @Sendable () -> UInt64
    private let state = Lock(State())

    /// - Parameters:
    ///   - executor: Runs the checks, for example a loop. If nil, Swift's global executor runs them.
    ///   - now: Monotonic nanoseconds.
    public init(
        freshness: UInt64 = 1_000_000_000, timeout: UInt64 = 800_000_000, executor: (any TaskExecutor)? = nil,
        now: @escaping @Sendable () -> UInt64 = { EventLoop.monotonicNow() }
    ) {
        self.freshness = freshness
        self.timeout = timeout
        self.executor = executor
        self.now = now
    }

    /// Adds a check, for example `health.add("bucket photos") { try await driver.checkHealth() }`.
    /// - Parameters:
    ///   - interval: How old the result may be in ``watch()``, in nanoseconds. Longer for a check that costs money.
    ///   - isSuspect: Whether ``watch()`` runs the check before that, because something else has failed.
    public func add(
        _ name: String, interval: UInt64 = 0,
        isSuspect: @escaping @Sendable () -> Bool = { false }, _ check: @escaping Check
    ) {
        state.withLock {
            $0.entries.append(
                Entry(name: name, check: check, interval: interval, isSuspect: isSuspect))
        }
    }

    /// Adds a check that `loop` is running.
    public func add(_ name: String, loop: EventLoop) {
        add(name) { await withCheckedContinuation { waiter in loop.execute { waiter.resume() } } }
    }

    /// Adds a warning, which does not affect readiness.
    /// - Parameter detail: Reported while there is no warning.
    public func addNote(
        _ name: String, detail: @escaping @Sendable () -> String? = { nil },
        _ failure: @escaping @Sendable () -> String?
    ) {
        state.withLock { $0.notes.append(Note(name: name, detail: detail, failure: failure)) }
    }

    /// Calls `observer` with the first report, and with each one in which other checks fail than before.
    public func onChange(_ observer: @escaping @Sendable (Report) -> Void) {
        state.withLock { $0.observer = observer }
    }

    /// Runs the checks without requests in their interval, for ``onChange(_:)``. Called periodically.
    public func watch() async { _ = await report(isAsked: false) }

    /// Whether the process is draining.
    public var isDraining: Bool { state.withLock { $0.isDraining } }

    /// Whether no check failed when they were last run. False before that, and while draining.
    public var isReady: Bool {
        state.withLock { !$0.isDraining && $0.announced?.isEmpty == true }
    }

    /// Makes readiness fail from now on. Can be called on any thread, but not by a signal handler.
    public func beginDraining() { state.withLock { $0.isDraining = true } }

    /// Runs the checks whose results are too old, and reports all.
    public func report() async -> Report { await report(isAsked: true) }

    private func report(isAsked: Bool) async -> Report {
        let due = begin(isAsked: isAsked)
        for index in due { start(index) }
        await wait()
        let end = now()
        let notes = state.withLock { $0.notes }.map {
            Result(name: $0.name, failure: $0.failure(), detail: $0.detail())
        }
        let report = state.withLock { state in
            Report(
                results: state.entries.map { entry in
                    guard let since = entry.runningSince else {
                        return Result(name: entry.name, failure: entry.failure)
                    }
                    let milliseconds = (end &- since) / 1_000_000
                    return Result(
                        name: entry.name, failure: "no result after \(milliseconds) ms")
                },
                notes: notes, isDraining: state.isDraining)
        }
        announce(report)
        return report
    }

    /// Calls the observer if other checks fail than before. Not while draining, which is no fault.
    private func announce(_ report: Report) {
        let failed = report.results.filter { $0.failure != nil }.map { BytewiseString($0.name) }
        let observer = state.withLock { state -> (@Sendable (Report) -> Void)? in
            if report.isDraining || state.announced == .some(failed) {
                return nil
            }
            state.announced = failed
            return state.observer
        }
        observer?(report)
    }

    /// Marks the due checks as running and returns their indices.
    private func begin(isAsked: Bool) -> [Int] {
        let now = now()
        return state.withLock { state in
            state.entries.indices.filter { index in
                let entry = state.entries[index]
                if entry.runningSince != nil { return false }
                let isSuspect = entry.isSuspect()
                let limit =
                    isAsked ? freshness : watchLimit(entry, isSuspect || entry.wasSuspect)
                if let checked = entry.checked, now &- checked < limit { return false }
                state.entries[index].runningSince = now
                state.entries[index].wasSuspect = isSuspect
                return true
            }
        }
    }

    /// How old a result may be in ``watch()``. Slightly less than its interval: the calls of ``watch()`` are not
    /// exactly periodic, and otherwise every second call could be too early.
    private func watchLimit(_ entry: Entry, _ isSuspect: Bool) -> UInt64 {
        let slack = freshness / 4
        return isSuspect ? slack : max(entry.interval, slack * 2) - slack
    }

    private func start(_ index: Int) {
        let check = state.withLock { $0.entries[index].check }
        Task(executorPreference: executor) { [self] in
            var failure: String?
            do { try await check() } catch { failure = "\(error)" }
            finish(index, failure)
        }
    }

    private func finish(_ index: Int, _ failure: String?) {
        let now = now()
        let resumed = state.withLock { state in
            state.entries[index].failure = failure
            state.entries[index].checked = now
            state.entries[index].runningSince = nil
            return hasPending(state, now) ? [] : takeWaiters(&state)
        }
        for waiter in resumed { waiter.resume() }
    }

    /// Waits until every running check has ended or is overdue, at most ``timeout``.
    private func wait() async {
        let id = state.withLock { state in
            state.nextWaiter += 1
            return state.nextWaiter
        }
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
