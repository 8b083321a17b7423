import Buckets
import HTTPClient
import Logging
import Synchronization
import System
import Telemetry
import Wire

/// Delivers the events of one bucket to one subscription, on one loop: a thin loop around ``DeliveryState``.
///
/// It is woken by commits, responses and timers. It never waits in a commit, and a sink that does not work costs one
/// request at a time and a window of events.
///
/// Safety: everything but the atomics and `shown` is confined to the loop.
final class EventDispatcher: EventObserver, @unchecked Sendable {
    /// What it shows to operators.
    struct Status: Sendable {
        var counts = DeliveryCounts()
        /// `starting`, `delivering`, `failing`, `paused`, `gone` or `asking`.
        var state = "starting"
        var pending = 0
        var retries = 0
        var dead = 0
        /// When the oldest unsettled event was committed, in microseconds since 1970.
        var oldest: Int64?
        var lastCause: String?
    }

    /// Settled events are written after this time, in nanoseconds, or earlier when there are ``settleCount``.
    static let settleDelay: UInt64 = 200_000_000
    static let settleCount = 256
    /// How often it looks for what no commit, response or timer has announced.
    static let checkInterval: UInt64 = 30_000_000_000
    /// The pause after a failure of the store.
    static let storeDelay: UInt64 = 1_000_000_000
    /// How often the figures are measured, at most.
    static let showInterval: UInt64 = 250_000_000
    /// How often losses are logged, at most.
    static let lossInterval: UInt64 = 60_000_000_000
    /// How long dead events are kept, in microseconds: 7 days.
    static let deadRetention: Int64 = 7 * 86_400 * 1_000_000
    static let permissionLifetime: UInt64 = 24 * 3_600_000_000_000
    static let maximumPermissionDelay: UInt64 = 60_000_000_000

    /// The name of the subscription.
    let name: String
    let bucket: String
    let log: any EventDeliveryLog
    let loop: EventLoop
    let logger: Logger
    let duration: PrometheusHistogram
    var sender: WebhookSender
    var subscription: EventSubscription
    /// Takes the place of ``sender`` when nothing is under way.
    var nextSender: WebhookSender?
    let shown = Lock(Status())
    let newest = Atomic<Int64>(0)
    /// Of the directory that has recorded last.
    let history = Atomic<UInt64>(0)
    let wakePending = Atomic<Bool>(false)

    /// nil until the progress is read.
    var state: DeliveryState?
    /// Counts the states that were read. What belongs to an earlier one does not count.
    var stateNumber = 0
    /// Before a change of the progress that is not read again yet.
    var previous: DeliveryState?
    var base = DeliveryCounts()
    var told = DeliveryCounts()
    var wasFailing = false
    var sending: [Int: Task<Void, Never>] = [:]
    var isReading = false
    /// When losses were logged last.
    var lossTime: UInt64 = 0
    var isStoreFailing = false
    var isSettling = false
    /// Whether nothing new begins: a change is made, or it is closed.
    var isHalted = false
    /// Whether a change is being made.
    var isChanging = false
    var isClosing = false
    var isClosed = false
    var idleWaiters: [UnsafeContinuation<Void, Never>] = []
    /// Changes that wait for another one.
    var haltWaiters: [UnsafeContinuation<Void, Never>] = []
    /// Times of the loop's clock.
    var settleTime: UInt64?
    var storeTime: UInt64 = 0
    var checkTime: UInt64 = 0
    var showTime: UInt64 = 0
    var mustShow = false
    var permissionTime: UInt64 = 0
    var permissionDelay: UInt64 = 1_000_000_000
    var isPermitted = false
    /// The shortest time between two requests that the sink permits, in microseconds.
    var permittedInterval: Int64 = 0
    var isAsking = false
    var asking: Task<Void, Never>?
    var timer: LoopTimer?

    init(
        _ sender: WebhookSender, _ log: any EventDeliveryLog, loop: EventLoop, logger: Logger,
        duration: PrometheusHistogram
    ) {
        self.sender = sender
        subscription = sender.subscription
        name = subscription.name
        bucket = sender.bucket
        self.log = log
        self.loop = loop
        self.logger = logger
        self.duration = duration
    }

    /// What it shows to operators.
    var status: Status { shown.withLock { $0 } }

    /// Begins to deliver.
    func start() {
        loop.execute { [self] in
            // It may have been removed again meanwhile.
            if isClosing { return }
            log.addEventObserver(self)
            timer = LoopTimer { [weak self] in self?.step() }
            step()
        }
    }

    func recorded(_ events: RecordedEvents) {
        history.store(events.history, ordering: .releasing)
        newest.store(events.last, ordering: .releasing)
        if wakePending.exchange(true, ordering: .acquiringAndReleasing) { return }
        loop.execute { [self] in
            wakePending.store(false, ordering: .releasing)
            step()
        }
    }

    var now: DeliveryTime {
        DeliveryTime(wall: SystemClock.microseconds(), ticks: Int64(EventLoop.monotonicNow() / 1000))
    }

    // MARK: The loop

    /// Begins whatever can begin now.
    func step() {
        loop.assertCurrent()
        if isClosed { return }
        let time = EventLoop.monotonicNow()
        // One moment for what is sent and for the timer: what is due between two would wait for the next check.
        let moment = now
        // Another directory has taken the place of the bucket's, with other numbers.
        if let state, state.history != history.load(ordering: .acquiring) { forget() }
        if state == nil {
            if !isHalted { load(time) }
        } else {
            state?.noticed(newest: newest.load(ordering: .acquiring))
            if time >= checkTime { check(time) }
            if !isHalted {
                askPermission(time)
                read(time)
                while isPermitted || !subscription.asksPermission, let shipment = state?.next(at: moment) {
                    send(shipment)
                }
                settle(time)
            }
        }
        show(time)
        resumeIdle()
        arm(time, moment)
    }

    func arm(_ time: UInt64, _ moment: DeliveryTime) {
        guard let timer else { return }
        var times = [checkTime]
        if mustShow { times.append(showTime) }
        if let settleTime, !isSettling { times.append(settleTime) }
        if storeTime > time { times.append(storeTime) }
        if subscription.asksPermission, !isAsking { times.append(permissionTime) }
        if let next = state?.nextTime(after: moment) { times.append(UInt64(next) * 1000) }
        let next = times.filter { $0 > time }.min() ?? time + EventDispatcher.checkInterval
        loop.arm(timer, after: next - time)
    }

    func load(_ time: UInt64) {
        guard !isReading, time >= storeTime else { return }
        isReading = true
        Task(executorPreference: loop) { [self] in
            do throws(BucketError) {
                try await readProgress()
            } catch {
                failed(error, "events: progress not read")
            }
            isReading = false
            step()
        }
    }

    func readProgress() async throws(BucketError) {
        var progress = try await log.subscriptionProgress(name)
        if progress == nil {
            // It is not written yet, or could not be.
            try await log.beginSubscription(name)
            progress = try await log.subscriptionProgress(name)
        }
        guard let progress else { throw BucketError(.unavailable, "the subscription has no cursor") }
        let bounds = try await log.eventBounds()
        let isOther = progress.history != history.load(ordering: .acquiring)
        history.store(progress.history, ordering: .releasing)
        if isOther || bounds.newest > newest.load(ordering: .acquiring) {
            newest.store(bounds.newest, ordering: .releasing)
        }
        forget()
        var limits = subscription.limits
        limits.interval = permittedInterval
        var state = DeliveryState(progress, of: name, newest: bounds.newest, limits, at: now)
        if let previous { state.follow(previous) }
        previous = nil
        self.state = state
    }

    /// The progress must be read again.
    func forget() {
        if let state {
            base.add(state.counts)
            previous = state
        }
        stateNumber += 1
        state = nil
    }

    func failed(_ error: BucketError, _ what: Logger.Message) {
        storeTime = EventLoop.monotonicNow() + EventDispatcher.storeDelay
        // Once until the store works again.
        if isStoreFailing { return }
        isStoreFailing = true
        logger.warning(
            what, metadata: ["subscription": "\(name)", "bucket": "\(bucket)", "cause": "\(error)"])
    }

    func read(_ time: UInt64) {
        guard !isReading, time >= storeTime, let (after, limit) = state?.wantsEvents else { return }
        isReading = true
        let number = stateNumber
        let newest = newest.load(ordering: .acquiring)
        Task(executorPreference: loop) { [self] in
            do throws(BucketError) {
                let events = try await log.events(after: after, limit: limit)
                let subscription = subscription
                if number == stateNumber {
                    state?.loaded(events, after: after, newest: newest, at: now) { event in
                        subscription.wants(event.kind, event.object.name)
                    }
                }
            } catch {
                failed(error, "events: not read")
            }
            isReading = false
            step()
        }
    }

    // MARK: Sending

    func send(_ shipment: Shipment) {
        sending[shipment.id] = Task(executorPreference: loop) { [self] in
            await deliver(shipment)
            sending[shipment.id] = nil
            step()
        }
    }

    func deliver(_ shipment: Shipment) async {
        var events: [BucketEvent] = []
        do throws(BucketError) {
            for sequence in shipment.sequences {
                if let event = state?.event(sequence) {
                    events.append(event)
                } else if let event = try await log.events(after: sequence - 1, limit: 1).first,
                    event.sequence == sequence
                {
                    events.append(event)
                }
            }
        } catch {
            failed(error, "events: not read")
            state?.notSent(shipment.id, at: now)
            return
        }
        guard events.count == shipment.sequences.count else {
            state?.missing(shipment.id, at: now)
            return
        }
        let begun = EventLoop.monotonicNow()
        let result = await sender.send(events)
        if Task.isCancelled, result != .delivered {
            state?.notSent(shipment.id, at: now)
            return
        }
        duration.recordNanoseconds(Int64(clamping: EventLoop.monotonicNow() - begun))
        state?.finished(shipment.id, result, at: now)
        tell(result)
    }

    /// Logs the first failure after a success, and the first success after a failure.
    func tell(_ result: DeliveryResult) {
        var metadata: Logger.Metadata = ["subscription": "\(name)", "bucket": "\(bucket)"]
        switch result {
        case .delivered:
            if wasFailing { logger.info("events delivered again", metadata: metadata) }
            wasFailing = false
        case .gone:
            wasFailing = true
            logger.error(
                "events: the sink responds with 410 and gets no more until a reload or 'sluice events resume'",
                metadata: metadata)
        case .failed(let cause, _):
            if wasFailing { return }
            wasFailing = true
            metadata["cause"] = "\(cause)"
            logger.warning("events not delivered", metadata: metadata)
        }
    }

    func askPermission(_ time: UInt64) {
        guard subscription.asksPermission, !isAsking, time >= permissionTime else { return }
        isAsking = true
        asking = Task(executorPreference: loop) { [self] in
            let result = await sender.askPermission(origin: Host.name.isEmpty ? "sluice" : Host.name)
            let time = EventLoop.monotonicNow()
            isAsking = false
            switch result {
            case .granted(let interval):
                if !isPermitted { state?.lastCause = nil }
                isPermitted = true
                permittedInterval = interval
                state?.limits.interval = interval
                permissionDelay = 1_000_000_000
                permissionTime = time + EventDispatcher.permissionLifetime
            case .refused(let cause):
                isPermitted = false
                permissionTime = time + permissionDelay
                permissionDelay = min(2 * permissionDelay, EventDispatcher.maximumPermissionDelay)
                state?.lastCause = "handshake: \(cause)"
                tell(.failed(cause: "handshake: \(cause)"))
            }
            step()
        }
    }

    // MARK: Settling

    func settle(_ time: UInt64) {
        guard !isSettling, time >= storeTime, let unwritten = state?.unwritten, unwritten > 0 else { return }
        let due = settleTime ?? time + EventDispatcher.settleDelay
        settleTime = due
        guard time >= due || unwritten >= EventDispatcher.settleCount else { return }
        guard let settlement = state?.takeSettlement(at: now) else { return }
        settleTime = nil
        isSettling = true
        Task(executorPreference: loop) { [self] in
            await write(settlement)
            isSettling = false
            step()
        }
    }

    func write(_ settlement: EventSettlement) async {
        let number = stateNumber
        do throws(BucketError) {
            try await log.settleEvents(settlement)
            if number == stateNumber { state?.written(settlement) }
            isStoreFailing = false
        } catch {
            if number == stateNumber { state?.notWritten(settlement) }
            failed(error, "events: what was settled is not written; it may be sent again")
        }
    }

    /// What is done from time to time.
    func check(_ time: UInt64) {
        checkTime = time + EventDispatcher.checkInterval
        state?.expire(at: now)
        guard !isHalted else { return }
        Task(executorPreference: loop) { [self] in
            do throws(BucketError) {
                let through = state?.readThrough ?? 0
                let bounds = try await log.eventBounds()
                if bounds.newest < through {
                    // The directory was replaced by an older copy.
                    newest.store(bounds.newest, ordering: .releasing)
                    return try await change { () async throws(BucketError) in }
                }
                if bounds.newest > newest.load(ordering: .acquiring) {
                    newest.store(bounds.newest, ordering: .releasing)
                    step()
                }
                if state?.deadKept ?? 0 > 0 {
                    let before = SystemClock.microseconds() - EventDispatcher.deadRetention
                    state?.removedDead(try await log.removeDeadEvents(name, before: before))
                }
            } catch {
                failed(error, "events: not read")
            }
        }
    }
}
