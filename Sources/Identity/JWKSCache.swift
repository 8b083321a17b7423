import HTTPClient
import System
import Wire

/// The schedule of key fetches. Times are in nanoseconds.
struct RefreshTimes: Sendable {
    /// The limits of a reported lifetime: 5 minutes and 24 hours.
    var ages = UInt64(300_000_000_000)...UInt64(86_400_000_000_000)
    /// The lifetime if the server reports none: an hour.
    var usualAge: UInt64 = 3_600_000_000_000
    /// The pause after a failure. It doubles from 1 s to 60 s.
    var pauses = UInt64(1_000_000_000)...UInt64(60_000_000_000)
    /// The minimum interval of early fetches, which signatures that match no key cause: 30 s.
    var earlyInterval: UInt64 = 30_000_000_000
    /// How long callers wait for an early fetch: 5 s.
    var waitLimit: UInt64 = 5_000_000_000
    /// The interval in which a file is checked for changes: 0.5 s.
    var look: UInt64 = 500_000_000
}

/// Caches the keys of one issuer. They are fetched at the start and refreshed after four fifths of their lifetime. If a
/// refresh fails, the old keys stay. One fetch runs at a time, on one loop; any thread may read.
///
/// Safety: the timers are used on `loop` only; a lock protects all other mutable state.
final class JWKSCache: @unchecked Sendable {
    struct Known: Sendable {
        let issuer: String
        let keys: KeySet
    }
    private struct State {
        var known: Known?
        var failure: String?
        var stamp: FileStamp?
        var earlyDue: UInt64 = 0
        var pause: UInt64 = 0
        var isClosed = false
        var task: Task<Void, Never>?
    }
    let issuer: TokenIssuer
    private let client: JWKSClient
    private let times: RefreshTimes
    private let loop: EventLoop
    private let statistics: IdentityStatistics
    private let warn: @Sendable (String) -> Void
    private let state = Refreshing(State())
    private var timer: LoopTimer?
    private var waitTimer: LoopTimer?

    init(
        _ client: JWKSClient, _ times: RefreshTimes, on loop: EventLoop,
        _ statistics: IdentityStatistics, warn: @escaping @Sendable (String) -> Void
    ) {
        issuer = client.issuer
        self.client = client
        self.times = times
        self.loop = loop
        self.statistics = statistics
        self.warn = warn
    }

    /// The current keys; nil before the first successful fetch.
    var known: Known? { state.withState { $0.known } }

    var health: (isPending: Bool, failure: String?) {
        state.withState { ($0.known == nil, $0.failure) }
    }

    // MARK: Fetching

    /// Begins the first fetch. Called once, on any thread.
    func start() {
        _ = state.begin { _, _ in ((), true) }
        loop.execute { [self] in
            timer = LoopTimer { [weak self] in self?.fetchOnTime() }
            waitTimer = LoopTimer { [weak self] in self?.state.stopWaiting() }
            fetch()
        }
    }

    /// Fetches the keys early after an unknown signature, at most once in 30 s, and waits for a limited time.
    /// - Returns: Whether it has waited, so that the keys may have changed.
    func refreshEarly() async -> Bool {
        let now = EventLoop.monotonicNow()
        let (waits, begins) = state.begin { state, phase in
            if state.isClosed || state.known == nil { return (false, false) }
            guard phase == .idle else { return (phase == .running, false) }
            guard now >= state.earlyDue else { return (false, false) }
            state.earlyDue = now &+ times.earlyInterval
            return (true, true)
        }
        if begins { loop.execute { [self] in fetch() } }
        guard waits else { return false }
        await state.wait()
        return true
    }

    private func fetchOnTime() {
        if state.begin({ _, _ in ((), true) }).begins { fetch() }
    }

    /// Begins a fetch on the loop. The flag is already set.
    private func fetch() {
        guard let timer, let waitTimer else { return }
        loop.disarm(timer)
        loop.arm(waitTimer, after: times.waitLimit)
        state.withState { state in
            guard !state.isClosed else { return }
            state.task = Task(executorPreference: loop) { await self.fetchNow() }
        }
    }

    private func fetchNow() async {
        let stamp = state.withState { $0.stamp }
        let outcome: Result<FetchedKeys?, KeyFailure>
        do throws(KeyFailure) {
            outcome = .success(try await client.fetch(unless: stamp))
        } catch {
            outcome = .failure(error)
        }
        finish(outcome)
    }

    private func finish(_ outcome: Result<FetchedKeys?, KeyFailure>) {
        // Parse the keys without the lock. Only this fetch changes the state.
        let before = known?.keys
        let stamp = (try? outcome.get())?.stamp
        let news = outcome.flatMap { fetched in
            Result { () throws(KeyFailure) -> (FetchedKeys, KeySet)? in
                guard let fetched else { return nil }
                return (fetched, try KeySet(fetched.text, known: before))
            }
        }
        let (pause, warning, failure) = state.end { state in
            let before = state.known?.keys.warning
            let hadFailed = state.failure != nil
            switch outcome {
            // An invalid file is read again when it changes.
            case .success: if let stamp { state.stamp = stamp }
            // A file that can't be read now may reappear unchanged.
            case .failure: state.stamp = nil
            }
            let pause = take(news, &state)
            state.task = nil
            let warning = state.known?.keys.warning
            return (
                state.isClosed ? nil : pause, warning == before ? nil : warning,
                state.isClosed || hadFailed ? nil : state.failure
            )
        }
        // Report only the first failure.
        for news in [warning, failure].compactMap(\.self) { warn("\(issuer.name): \(news)") }
        if let waitTimer { loop.disarm(waitTimer) }
        if let timer, let pause { loop.arm(timer, after: pause) }
    }

    /// Stores the result of a fetch, and returns the pause before the next one.
    private func take(_ news: Result<(FetchedKeys, KeySet)?, KeyFailure>, _ state: inout State)
        -> UInt64
    {
        switch news {
        case .success(nil): return times.look
        case .success((let fetched, let keys)?):
            state.known?.keys.withdraw(allBut: keys)
            state.known = Known(issuer: fetched.issuer, keys: keys)
            state.failure = nil
            state.pause = 0
            statistics.refreshed.add(1, ordering: .relaxed)
            return fetched.stamp == nil ? age(fetched) : times.look
        case .failure(let failure):
            state.failure = failure.cause
            statistics.refreshesFailed.add(1, ordering: .relaxed)
            if case .file = issuer.keys { return times.look }
            state.pause = min(max(state.pause * 2, times.pauses.lowerBound), times.pauses.upperBound)
            return UInt64.random(in: state.pause / 2...state.pause)
        }
    }

    /// Four fifths of the lifetime, with jitter, so that processes started together don't fetch together.
    private func age(_ fetched: FetchedKeys) -> UInt64 {
        var age = times.usualAge
        if let seconds = fetched.maximumAge {
            let product = seconds.multipliedReportingOverflow(by: 1_000_000_000)
            age = product.overflow ? .max : product.partialValue
        }
        age = min(max(age, times.ages.lowerBound), times.ages.upperBound)
        return UInt64(Double(age) * Double.random(in: 0.75...0.85))
    }

    /// Stops the current fetch and begins no other.
    func close() async {
        let task = state.withState { state in
            state.isClosed = true
            return state.task
        }
        state.stopWaiting()
        task?.cancel()
        await task?.value
        await withCheckedContinuation { waiter in
            loop.execute { [self] in
                if let timer { loop.disarm(timer) }
                if let waitTimer { loop.disarm(waitTimer) }
                waiter.resume()
            }
        }
    }
}
