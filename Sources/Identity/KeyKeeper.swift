import EventLoop
import HTTPClient

/// When keys are fetched. Times are in nanoseconds.
struct RefreshTimes: Sendable {
    /// Bounds of how long keys are kept, whatever their server says: 5 minutes and 24 hours.
    var ages = UInt64(300_000_000_000)...UInt64(86_400_000_000_000)
    /// Where it says nothing: an hour.
    var usualAge: UInt64 = 3_600_000_000_000
    /// The pause after a failure, which doubles: from 1 s to 60 s.
    var pauses = UInt64(1_000_000_000)...UInt64(60_000_000_000)
    /// How often an unknown key makes us ask early: every 30 s.
    var earlyInterval: UInt64 = 30_000_000_000
    /// How long callers wait for that: 5 s.
    var patience: UInt64 = 5_000_000_000
    /// How often a file is looked at: every 2 s.
    var look: UInt64 = 2_000_000_000
}

/// Keeps the keys of one issuer fresh: fetched from the start, again at four fifths of their age, and kept where that
/// fails. One fetch runs at a time, on one loop; any thread may read.
///
/// Safety: the timers are touched on `loop` alone; everything else that changes is behind the lock.
final class KeyKeeper: @unchecked Sendable {
    /// What is known of an issuer.
    struct Known: Sendable {
        let issuer: String
        let keys: KeySet
    }
    private struct State {
        var known: Known?
        /// Why the last fetch failed; nil where it did not.
        var failure: String?
        var stamp: FileStamp?
        var isFetching = false
        /// Whether callers have waited for this fetch for long enough.
        var isSlow = false
        var earlyDue: UInt64 = 0
        var pause: UInt64 = 0
        var isClosed = false
        var waiters: [CheckedContinuation<Void, Never>] = []
        var task: Task<Void, Never>?
    }
    let issuer: TokenIssuer
    private let fetcher: KeyFetcher
    private let times: RefreshTimes
    private let loop: EventLoop
    private let statistics: IdentityStatistics
    private let state = Lock(State())
    private var timer: LoopTimer?
    private var patience: LoopTimer?

    init(
        _ fetcher: KeyFetcher, _ times: RefreshTimes, on loop: EventLoop,
        _ statistics: IdentityStatistics
    ) {
        issuer = fetcher.issuer
        self.fetcher = fetcher
        self.times = times
        self.loop = loop
        self.statistics = statistics
    }

    /// What is known now; nil where nothing was fetched yet.
    var known: Known? { state.withLock { $0.known } }

    /// Whether there are no keys yet, and why the last fetch failed where it did.
    var health: (isPending: Bool, failure: String?) {
        state.withLock { ($0.known == nil, $0.failure) }
    }

    // MARK: Fetching

    /// Begins the first fetch. Any thread may call it, once.
    func start() {
        state.withLock { $0.isFetching = true }
        loop.execute { [self] in
            timer = LoopTimer { [weak self] in self?.fetchOnTime() }
            patience = LoopTimer { [weak self] in self?.endPatience() }
            fetch()
        }
    }

    /// Fetches once more because a key is not known, unless that was done lately, and waits for it, but not for long.
    /// - Returns: Whether it has waited, so that there may be other keys now.
    func refreshEarly() async -> Bool {
        let now = EventLoop.monotonicNow()
        let (begins, waits) = state.withLock { state -> (Bool, Bool) in
            if state.isClosed || state.known == nil { return (false, false) }
            if state.isFetching { return (false, !state.isSlow) }
            guard now >= state.earlyDue else { return (false, false) }
            state.earlyDue = now &+ times.earlyInterval
            state.isFetching = true
            return (true, true)
        }
        if begins { loop.execute { [self] in fetch() } }
        guard waits else { return false }
        await withCheckedContinuation { waiter in
            let isOver = state.withLock { state in
                if state.isFetching && !state.isSlow { state.waiters.append(waiter) }
                return !(state.isFetching && !state.isSlow)
            }
            if isOver { waiter.resume() }
        }
        return true
    }

    private func fetchOnTime() {
        let begins = state.withLock { state in
            defer { state.isFetching = true }
            return !state.isFetching
        }
        if begins { fetch() }
    }

    /// Begins a fetch, whose flag is set already, on the loop.
    private func fetch() {
        guard let timer, let patience else { return }
        loop.disarm(timer)
        loop.arm(patience, after: times.patience)
        state.withLock { state in
            guard !state.isClosed else { return }
            state.task = Task(executorPreference: loop) { await self.fetchNow() }
        }
    }

    private func fetchNow() async {
        let stamp = state.withLock { $0.stamp }
        let outcome: Result<FetchedKeys?, KeyFailure>
        do throws(KeyFailure) {
            outcome = .success(try await fetcher.fetch(unless: stamp))
        } catch {
            outcome = .failure(error)
        }
        finish(outcome)
    }

    private func finish(_ outcome: Result<FetchedKeys?, KeyFailure>) {
        // Keys are read without the lock, which others want. Nobody else changes what is known.
        let before = known?.keys
        let stamp = (try? outcome.get())?.stamp
        let news = outcome.flatMap { fetched in
            Result { () throws(KeyFailure) -> (FetchedKeys, KeySet)? in
                guard let fetched else { return nil }
                return (fetched, try KeySet(fetched.text, known: before))
            }
        }
        let (pause, waiters) = state.withLock { state in
            // A file that is no good is read again when it changes.
            if let stamp { state.stamp = stamp }
            let pause = take(news, &state)
            state.isFetching = false
            state.isSlow = false
            state.task = nil
            defer { state.waiters = [] }
            return (state.isClosed ? nil : pause, state.waiters)
        }
        if let patience { loop.disarm(patience) }
        if let timer, let pause { loop.arm(timer, after: pause) }
        for waiter in waiters { waiter.resume() }
    }

    /// Notes what came of a fetch.
    /// - Returns: How long to wait before the next one.
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
            state.pause = min(
                max(state.pause * 2, times.pauses.lowerBound), times.pauses.upperBound)
            return UInt64.random(in: state.pause / 2...state.pause)
        }
    }

    /// Four fifths of how long keys may be kept, more or less: of several processes that were started at once, not all
    /// should ask at once for ever.
    private func age(_ fetched: FetchedKeys) -> UInt64 {
        var age = times.usualAge
        if let seconds = fetched.maximumAge {
            let product = seconds.multipliedReportingOverflow(by: 1_000_000_000)
            age = product.overflow ? .max : product.partialValue
        }
        age = min(max(age, times.ages.lowerBound), times.ages.upperBound)
        return UInt64(Double(age) * Double.random(in: 0.75...0.85))
    }

    /// Callers have waited for long enough.
    private func endPatience() {
        let waiters = state.withLock { state in
            state.isSlow = state.isFetching
            defer { state.waiters = [] }
            return state.waiters
        }
        for waiter in waiters { waiter.resume() }
    }

    /// Ends the fetch that runs, and begins no other.
    func close() async {
        let (task, waiters) = state.withLock { state in
            state.isClosed = true
            defer { state.waiters = [] }
            return (state.task, state.waiters)
        }
        for waiter in waiters { waiter.resume() }
        task?.cancel()
        await task?.value
        await withCheckedContinuation { waiter in
            loop.execute { [self] in
                if let timer { loop.disarm(timer) }
                if let patience { loop.disarm(patience) }
                waiter.resume()
            }
        }
    }
}
