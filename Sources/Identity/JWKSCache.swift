import HTTPClient
import System
import Wire

/// When keys are fetched. Times are in nanoseconds.
struct RefreshTimes: Sendable {
    /// Bounds of how long keys are kept, whatever their server says: 5 minutes and 24 hours.
    var ages = UInt64(300_000_000_000)...UInt64(86_400_000_000_000)
    /// Where it says nothing: an hour.
    var usualAge: UInt64 = 3_600_000_000_000
    /// The pause after a failure, which doubles: from 1 s to 60 s.
    var pauses = UInt64(1_000_000_000)...UInt64(60_000_000_000)
    /// How often signatures that no key has made cause an early fetch: every 30 s.
    var earlyInterval: UInt64 = 30_000_000_000
    /// How long callers wait for that: 5 s.
    var waitLimit: UInt64 = 5_000_000_000
    /// How often a file is looked at: every 2 s.
    var look: UInt64 = 2_000_000_000
}

/// Keeps the keys of one issuer fresh: fetched from the start, again at four fifths of their age, and kept where that
/// fails. One fetch runs at a time, on one loop; any thread may read.
///
/// Safety: the timers are touched on `loop` alone; everything else that changes is behind the lock.
final class JWKSCache: @unchecked Sendable {
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

    /// What is known now; nil where nothing was fetched yet.
    var known: Known? { state.withState { $0.known } }

    /// Whether there are no keys yet, and why the last fetch failed where it did.
    var health: (isPending: Bool, failure: String?) {
        state.withState { ($0.known == nil, $0.failure) }
    }

    // MARK: Fetching

    /// Begins the first fetch. Any thread may call it, once.
    func start() {
        _ = state.begin { _, _ in ((), true) }
        loop.execute { [self] in
            timer = LoopTimer { [weak self] in self?.fetchOnTime() }
            waitTimer = LoopTimer { [weak self] in self?.state.stopWaiting() }
            fetch()
        }
    }

    /// Fetches once more because no known key has made a signature, unless that was done within the last 30 s, and waits
    /// for the result, but not for long.
    /// - Returns: Whether it has waited, so that there may be other keys now.
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

    /// Begins a fetch, whose flag is set already, on the loop.
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
        // Keys are read without the lock, which others want. Nobody else changes what is known.
        let before = known?.keys
        let stamp = (try? outcome.get())?.stamp
        let news = outcome.flatMap { fetched in
            Result { () throws(KeyFailure) -> (FetchedKeys, KeySet)? in
                guard let fetched else { return nil }
                return (fetched, try KeySet(fetched.text, known: before))
            }
        }
        let (pause, warning) = state.end { state in
            let before = state.known?.keys.warning
            // A file that is no good is read again when it changes.
            if let stamp { state.stamp = stamp }
            let pause = take(news, &state)
            state.task = nil
            let warning = state.known?.keys.warning
            return (state.isClosed ? nil : pause, warning == before ? nil : warning)
        }
        if let warning { warn("\(issuer.name): \(warning)") }
        if let waitTimer { loop.disarm(waitTimer) }
        if let timer, let pause { loop.arm(timer, after: pause) }
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

    /// Ends the fetch that runs, and begins no other.
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
