import Buckets
import HTTPClient
import Logging
import Synchronization
import System
import Telemetry
import Wire

/// The deliveries of all buckets to all subscriptions.
public final class EventDeliveries: Sendable {
    private struct Running {
        let dispatcher: EventDispatcher
        var configured: String
    }
    private struct State {
        var running: [Running] = []
        /// The end of the last ones that were removed, by bucket and name, with a number.
        var ending: [BytewiseString: (number: Int, task: Task<Void, Never>)] = [:]
        var lastEnd = 0
        var isClosed = false
    }
    /// How long requests under way have at the end, in nanoseconds.
    private static let closingLimit: UInt64 = 2_000_000_000

    private let logs: [(bucket: String, log: any EventDeliveryLog)]
    private let loop: EventLoop
    private let logger: Logger
    private let registry: PrometheusRegistry
    private let observer: (any UpstreamObserver)?
    private let traces: TraceExporter?
    private let state = Lock(State())

    /// - Parameters:
    ///   - logs: The buckets that record events.
    ///   - loop: Runs all deliveries.
    ///   - observer: Gets a record of every request.
    public init(
        _ logs: [(bucket: String, log: any EventDeliveryLog)], loop: EventLoop, logger: Logger,
        registry: PrometheusRegistry, observer: (any UpstreamObserver)?, traces: TraceExporter?
    ) {
        self.logs = logs
        self.loop = loop
        self.logger = logger
        self.registry = registry
        self.observer = observer
        self.traces = traces
        registry.describe("sluice_events_recorded_total", "Events that were recorded with their changes.")
        for (bucket, log) in logs { log.addEventObserver(RecordedEventCounter(bucket, registry)) }
    }

    /// Puts subscriptions into effect: new ones begin at the newest event, changed ones continue where they were, and those
    /// that had got 410 are sent to again. What other subscriptions had is kept for a while (``removeOthers(after:)``).
    /// - Parameter keys: By the name of the subscription.
    public func apply(
        _ subscriptions: [EventSubscription], keys: [BytewiseString: WebhookKeys],
        isWatched: (_ bucket: String) -> Bool
    ) {
        state.withLock { state in
            if state.isClosed { return }
            for (bucket, log) in logs {
                let own = subscriptions.filter { $0.hasBucket(bucket) }
                let filter = EventFilter.of(bucket, subscriptions, isWatched: isWatched(bucket))
                let isRunning = state.running.contains { BytewiseString.areEqual($0.dispatcher.bucket, bucket) }
                if !own.isEmpty || isRunning { log.beginSubscriptions(own.map(\.name), recording: filter) }
                for subscription in own { start(subscription, bucket, log, keys[subscription.name], &state) }
            }
            var ended: [EventDispatcher] = []
            state.running.removeAll { running in
                let isKept = subscriptions.contains {
                    BytewiseString.areEqual($0.name, running.dispatcher.name) && $0.hasBucket(running.dispatcher.bucket)
                }
                if !isKept { ended.append(running.dispatcher) }
                return !isKept
            }
            for dispatcher in ended { end(dispatcher, &state) }
        }
    }

    private func end(_ dispatcher: EventDispatcher, _ state: inout State) {
        let key = EventDeliveries.key(dispatcher.bucket, dispatcher.name)
        state.lastEnd += 1
        let (number, earlier) = (state.lastEnd, state.ending[key]?.task)
        let task = Task(executorPreference: loop) { [self] in
            await earlier?.value
            await dispatcher.close(within: EventDeliveries.closingLimit)
            self.state.withLock { if $0.ending[key]?.number == number { $0.ending[key] = nil } }
        }
        state.ending[key] = (number, task)
    }

    private static func key(_ bucket: String, _ name: String) -> BytewiseString { BytewiseString("\(bucket) \(name)") }

    private func start(
        _ subscription: EventSubscription, _ bucket: String, _ log: any EventDeliveryLog, _ keys: WebhookKeys?,
        _ state: inout State
    ) {
        let configured = subscription.fingerprint
        let index = state.running.firstIndex {
            BytewiseString.areEqual($0.dispatcher.name, subscription.name)
                && BytewiseString.areEqual($0.dispatcher.bucket, bucket)
        }
        func sender() -> WebhookSender {
            WebhookSender(subscription, bucket, keys: keys, observer: observer, traces: traces)
        }
        if let index {
            let running = state.running[index]
            if BytewiseString.areEqual(running.configured, configured) {
                running.dispatcher.replace(keys)
                running.dispatcher.reopen()
            } else {
                running.dispatcher.replace(sender())
                state.running[index].configured = configured
            }
            return
        }
        let dispatcher = EventDispatcher(
            sender(), log, loop: loop, logger: logger,
            duration: registry.histogram("sluice_event_delivery_seconds", [("subscription", subscription.name)]))
        state.running.append(Running(dispatcher: dispatcher, configured: configured))
        // One of this name that was removed a moment ago may still send.
        guard let ending = state.ending[EventDeliveries.key(bucket, subscription.name)] else {
            return dispatcher.start()
        }
        Task(executorPreference: loop) {
            await ending.task.value
            dispatcher.start()
        }
    }

    /// Signs with other keys from now on.
    public func replace(_ keys: [BytewiseString: WebhookKeys]) {
        for dispatcher in dispatchers { dispatcher.replace(keys[dispatcher.name]) }
    }

    /// Forgets the progress of subscriptions that have not been configured for so long, in nanoseconds. Called from time to
    /// time.
    public func removeOthers(after retention: UInt64) async {
        let time = SystemClock.microseconds() - Int64(clamping: retention / 1000)
        for (bucket, log) in logs {
            let names = dispatchers.filter { BytewiseString.areEqual($0.bucket, bucket) }.map(\.name)
            do throws(BucketError) {
                try await log.removeSubscriptions(except: names, since: time)
            } catch {
                logger.warning("old subscriptions not removed", metadata: ["bucket": "\(bucket)", "cause": "\(error)"])
            }
        }
    }

    /// Begins no further request, and waits for at most two seconds for those under way.
    public func close() async {
        let all = state.withLock { state in
            state.isClosed = true
            return state.running.map(\.dispatcher)
        }
        await withTaskGroup { group in
            for dispatcher in all { group.addTask { await dispatcher.close(within: EventDeliveries.closingLimit) } }
        }
    }

    var dispatchers: [EventDispatcher] { state.withLock { $0.running.map(\.dispatcher) } }

    /// A note for the readiness page: which subscriptions are not delivered; nil if all are.
    public var note: String? {
        let failing = dispatchers.compactMap { dispatcher -> String? in
            let status = dispatcher.status
            guard ["gone", "paused", "asking"].contains(where: { BytewiseString.areEqual($0, status.state) }) else {
                return nil
            }
            return "\(dispatcher.name) (\(dispatcher.bucket)): \(status.state): \(status.lastCause ?? "")"
        }
        return failing.isEmpty ? nil : failing.joined(separator: "\n")
    }

    // MARK: Metrics

    /// Shows the figures of all subscriptions.
    public func show(in registry: PrometheusRegistry) {
        registry.describe(
            "sluice_event_delivery_seconds", "Time from the start of a request to a webhook to its response.")
        registry.collect { [self] text in
            let all = dispatchers.map { ($0, $0.status) }
            if all.isEmpty { return }
            func family(
                _ name: String, _ kind: PrometheusText.Kind, _ help: String, _ value: (EventDispatcher.Status) -> Int
            ) {
                text.family(name, kind, help)
                for (dispatcher, status) in all { text.sample(name, dispatcher.labels, value(status)) }
            }
            family(
                "sluice_events_pending", .gauge,
                "Events that a subscription has not settled, and those before them that it does not want."
            ) { $0.pending }
            let now = SystemClock.microseconds()
            family("sluice_events_oldest_seconds", .gauge, "The age of the oldest event that is not settled.") {
                $0.oldest.map { Int(max(0, now - $0) / 1_000_000) } ?? 0
            }
            family("sluice_events_dead", .gauge, "Events that were given up and are kept.") { $0.dead }
            text.family(
                "sluice_event_deliveries_total", .counter,
                "Events by what has become of them; failed counts attempts.")
            for (dispatcher, status) in all {
                let counts = status.counts
                for (result, count) in [
                    ("settled", counts.settled), ("failed", counts.failed), ("dead", counts.dead),
                    ("discarded", counts.discarded),
                ] {
                    text.sample(
                        "sluice_event_deliveries_total", dispatcher.labels + [PrometheusLabel("result", result)], count)
                }
            }
            text.family(
                "sluice_event_subscription_state", .gauge, "Whether a subscription is in this state.")
            for (dispatcher, status) in all {
                for state in ["delivering", "failing", "paused", "gone", "asking"] {
                    text.sample(
                        "sluice_event_subscription_state", dispatcher.labels + [PrometheusLabel("state", state)],
                        BytewiseString.areEqual(state, status.state) ? 1 : 0)
                }
            }
        }
    }
}

extension EventDispatcher {
    fileprivate var labels: [PrometheusLabel] {
        [PrometheusLabel("bucket", bucket), PrometheusLabel("subscription", name)]
    }
}

/// Counts the recorded events of a bucket.
private final class RecordedEventCounter: EventObserver {
    private let counters: [PrometheusCounter]

    init(_ bucket: String, _ registry: PrometheusRegistry) {
        counters = BucketEvent.Kind.allCases.map {
            registry.counter("sluice_events_recorded_total", [("bucket", bucket), ("type", $0.name)])
        }
    }

    func recorded(_ events: RecordedEvents) {
        for (kind, _) in events.events { counters[Int(kind.rawValue) - 1].increment() }
    }
}
