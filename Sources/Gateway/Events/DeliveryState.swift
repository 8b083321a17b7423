import Buckets
import Wire

/// The delivery of a bucket's events to one subscription, without I/O and without a clock.
///
/// Events are read in windows, in the order of their numbers, and sent at most once at a time for each object. An event
/// whose request failed waits, and later events of its object wait behind it; other objects pass. The cursor is the
/// highest number up to which every event is settled or waits, so that what is kept in memory does not grow with the
/// number of pending events.
///
/// An event is `pending → sending → settled`, or `sending → waiting → sending → …`, and ends `dead` when it is too old.
package struct DeliveryState {
    enum Status {
        case pending, sending, done
    }
    /// An event of the window.
    struct Entry {
        let event: BucketEvent
        let name: BytewiseString
        var status = Status.pending
    }
    /// An event that is sent again.
    struct Waiting {
        let name: BytewiseString
        /// Of the commit, in microseconds since 1970.
        let time: Int64
        var attempts: Int
        /// In ticks. Only the first event of its object is ever due.
        var due: Int64
        var cause: String?
        var isSending = false
    }
    struct Flight {
        var sequences: [Int64]
        /// Whether it tests a sink that has failed.
        var isTest: Bool
    }
    struct Pause {
        var until: Int64
        var length: Int64
    }

    let subscription: String
    package var limits: DeliveryLimits
    package private(set) var counts = DeliveryCounts()
    /// Whether the sink does not want events any more.
    package private(set) var isGone = false
    /// The cause of the last failure; nil after a success.
    package private(set) var lastCause: String?
    /// The number of dead events that are kept.
    package private(set) var deadKept: Int

    /// The newest event of the bucket.
    package private(set) var newest: Int64
    /// All events up to this number are in the window, or were.
    package private(set) var readThrough: Int64
    var window: [Entry] = []
    var waiting: [Int64: Waiting] = [:]
    /// The numbers of the waiting events of each object, in order.
    var lines: [BytewiseString: [Int64]] = [:]
    var due = DueHeap()
    /// A lower bound of the numbers of waiting events.
    private var oldestWaiting: Int64
    private var busy: Set<BytewiseString> = []
    private var flights: [Int: Flight] = [:]
    private var lastFlight = 0
    private var failures = 0
    private var pause: Pause?
    /// The events that failed while the sink was tested. They are due when it works again.
    private var failedTests: Set<Int64> = []
    /// Nothing is sent before this.
    private var silentUntil: Int64 = .min
    private var nextSend: Int64 = .min
    private var prefersWaiting = false
    /// Events above the cursor that waited or were dead at the start.
    private var known: Set<Int64>

    // Written state, and what must be written.
    private var writtenCursor: Int64
    private var changed: Set<Int64> = []
    private var dead: [Int64: EventRetry] = [:]

    /// - Parameter newest: The number of the bucket's newest event.
    package init(
        _ progress: SubscriptionProgress, of subscription: String, newest: Int64, _ limits: DeliveryLimits,
        at now: DeliveryTime
    ) {
        self.subscription = subscription
        self.limits = limits
        self.newest = newest
        readThrough = progress.cursor
        writtenCursor = progress.cursor
        deadKept = progress.dead
        known = Set(progress.deadAbove)
        oldestWaiting = progress.waiting.first?.retry.sequence ?? .max
        for stored in progress.waiting {
            let retry = stored.retry
            // The clock may have been set meanwhile.
            let delay = max(0, min(retry.due - now.wall, DeliveryLimits.maximumDelay))
            if retry.sequence > progress.cursor { known.insert(retry.sequence) }
            append(
                retry.sequence,
                Waiting(
                    name: BytewiseString(stored.name), time: stored.time, attempts: retry.attempts,
                    due: now.ticks + delay, cause: retry.cause))
        }
    }

    // MARK: Reading

    /// The highest number up to which each event is settled or waits.
    package var cursor: Int64 { window.first.map { $0.event.sequence - 1 } ?? readThrough }

    /// Where to read, if events should be read now.
    package var wantsEvents: (after: Int64, limit: Int)? {
        guard readThrough < newest, window.count <= limits.capacity - DeliveryLimits.window / 2,
            waiting.count < DeliveryLimits.maximumWaiting, changed.count < DeliveryLimits.maximumUnwritten
        else { return nil }
        return (readThrough, min(DeliveryLimits.window, limits.capacity - window.count))
    }

    /// Events up to this number are committed.
    package mutating func noticed(newest: Int64) {
        guard newest > self.newest else { return }
        self.newest = newest
        let floor = newest - limits.maximumPending
        for index in window.indices {
            if window[index].event.sequence > floor { break }
            guard window[index].status == .pending else { continue }
            window[index].status = .done
            counts.discarded += 1
        }
        dropDone()
        guard oldestWaiting <= floor else { return }
        for (sequence, event) in waiting where sequence <= floor && !event.isSending {
            leave(sequence)
            counts.discarded += 1
        }
        oldestWaiting = waiting.keys.min() ?? .max
    }

    /// Takes events that were read after `sequence`.
    /// - Parameters:
    ///   - newest: The newest event when the reading began. If there are no events, all up to it are settled.
    ///   - wants: Whether the subscription has the event.
    package mutating func loaded(
        _ events: [BucketEvent], after sequence: Int64, newest: Int64, at now: DeliveryTime,
        wants: (BucketEvent) -> Bool
    ) {
        guard sequence == readThrough else { return }
        let floor = self.newest - limits.maximumPending
        for event in events where event.sequence > readThrough {
            readThrough = event.sequence
            if known.remove(event.sequence) != nil || !wants(event) { continue }
            if event.sequence <= floor {
                counts.discarded += 1
                continue
            }
            let name = BytewiseString(event.object.name)
            if isExpired(event.time, now) {
                die(event.sequence, attempts: 0, cause: lastCause, now)
            } else if lines[name] != nil {
                append(event.sequence, Waiting(name: name, time: event.time, attempts: 0, due: now.ticks))
                changed.insert(event.sequence)
            } else {
                window.append(Entry(event: event, name: name))
            }
        }
        if events.isEmpty { readThrough = max(readThrough, newest) }
        if known.contains(where: { $0 <= readThrough }) { known = known.filter { $0 > readThrough } }
    }

    /// The event of a shipment, if it is in the window.
    package func event(_ sequence: Int64) -> BucketEvent? { index(of: sequence).map { window[$0].event } }

    func index(of sequence: Int64) -> Int? {
        var (low, high) = (0, window.count)
        while low < high {
            let middle = (low + high) / 2
            if window[middle].event.sequence < sequence { low = middle + 1 } else { high = middle }
        }
        return low < window.count && window[low].event.sequence == sequence ? low : nil
    }

    /// Forgets what is settled, so that a request that hangs does not fill the window with what has passed it.
    private mutating func dropDone() {
        let count = window.firstIndex { $0.status != .done } ?? window.count
        if count > 0 { window.removeFirst(count) }
        if window.count > limits.capacity / 2 { window.removeAll { $0.status == .done } }
    }

    // MARK: Sending

    /// The number of requests under way.
    package var underWay: Int { flights.count }

    /// Whether one event at a time tests the sink.
    package var isPaused: Bool { pause != nil }

    /// Chooses the next events to send; nil if there are none now.
    package mutating func next(at now: DeliveryTime) -> Shipment? {
        guard !isGone, now.ticks >= silentUntil, now.ticks >= nextSend else { return nil }
        if let pause {
            guard now.ticks >= pause.until, flights.isEmpty else { return nil }
        } else {
            guard flights.count < limits.concurrency else { return nil }
        }
        // A sink that recovers gets events that have not failed first: one that always fails must not decide the test.
        let sequences: [Int64]
        if isPaused || !prefersWaiting {
            sequences = takePending(now) ?? takeWaiting(now).map { [$0] } ?? []
        } else {
            sequences = takeWaiting(now).map { [$0] } ?? takePending(now) ?? []
        }
        prefersWaiting.toggle()
        if sequences.isEmpty { return nil }
        lastFlight += 1
        flights[lastFlight] = Flight(sequences: sequences, isTest: isPaused)
        if limits.interval > 0 { nextSend = now.ticks + limits.interval }
        return Shipment(id: lastFlight, sequences: sequences)
    }

    private mutating func takePending(_ now: DeliveryTime) -> [Int64]? {
        let limit = isPaused ? 1 : limits.batch
        var taken: [Int64] = []
        var names: Set<BytewiseString> = []
        var bytes = 0
        for index in window.indices where window[index].status == .pending {
            let entry = window[index]
            if busy.contains(entry.name) { continue }
            if isExpired(entry.event.time, now) {
                window[index].status = .done
                die(entry.event.sequence, attempts: 0, cause: lastCause, now)
                continue
            }
            if limit > 1 {
                let size = CloudEvent.estimatedBytes(of: entry.event, bucket: "")
                if !taken.isEmpty, bytes + size > DeliveryLimits.batchBytes { break }
                bytes += size
            }
            window[index].status = .sending
            names.insert(entry.name)
            taken.append(entry.event.sequence)
            if taken.count == limit { break }
        }
        dropDone()
        busy.formUnion(names)
        return taken.isEmpty ? nil : taken
    }

    private mutating func takeWaiting(_ now: DeliveryTime) -> Int64? {
        while let first = due.first {
            guard let event = waiting[first.sequence], event.due == first.due, !event.isSending,
                lines[event.name]?.first == first.sequence, !busy.contains(event.name)
            else {
                // The first event of an object is inserted again when the object is free.
                due.removeFirst()
                continue
            }
            if isExpired(event.time, now) {
                die(first.sequence, attempts: event.attempts, cause: event.cause, now)
                leave(first.sequence)
                continue
            }
            guard first.due <= now.ticks || isPaused else { return nil }
            due.removeFirst()
            waiting[first.sequence]?.isSending = true
            busy.insert(event.name)
            return first.sequence
        }
        return nil
    }

    /// When ``next(at:)`` may have something to send, without a response or an event before; nil if never.
    package func nextTime(after now: DeliveryTime) -> Int64? {
        if isGone { return nil }
        var time: Int64
        if let pause {
            guard flights.isEmpty, !window.isEmpty || !waiting.isEmpty else { return nil }
            time = pause.until
        } else {
            guard flights.count < limits.concurrency else { return nil }
            let hasPending = window.contains { $0.status == .pending && !busy.contains($0.name) }
            guard hasPending || due.first != nil else { return nil }
            time = hasPending ? .min : due.first?.due ?? .min
        }
        time = max(time, silentUntil, nextSend)
        return time > now.ticks ? time : nil
    }

    // MARK: Responses

    /// Takes the result of a shipment.
    package mutating func finished(_ shipment: Int, _ result: DeliveryResult, at now: DeliveryTime) {
        guard let flight = flights.removeValue(forKey: shipment) else { return }
        let names = free(flight)
        switch result {
        case .delivered:
            works(now)
            counts.settled += flight.sequences.count
            for sequence in flight.sequences { settle(sequence) }
        case .gone:
            isGone = true
            lastCause = "status 410"
            for sequence in flight.sequences { release(sequence, now) }
        case .failed(let cause, let silence):
            lastCause = cause
            counts.failed += flight.sequences.count
            if let silence { silentUntil = max(silentUntil, now.ticks + min(silence, DeliveryLimits.maximumDelay)) }
            // What was under way when the pause began is no attempt: the sink is known not to work.
            let counts = pause == nil || flight.isTest
            for sequence in flight.sequences { fail(sequence, counts: counts, cause, now) }
            collectLines(of: flight.sequences, now)
            if flight.isTest { failedTests.formUnion(flight.sequences) }
            if counts { countFailure(now) }
        }
        dropDone()
        for name in names { push(name) }
    }

    /// An event of a shipment is not kept any more, so it can't be sent.
    package mutating func missing(_ shipment: Int, at now: DeliveryTime) {
        guard let flight = flights.removeValue(forKey: shipment) else { return }
        let names = free(flight)
        for sequence in flight.sequences {
            settle(sequence)
            counts.discarded += 1
        }
        dropDone()
        for name in names { push(name) }
    }

    /// A shipment was not sent; its events are sent later.
    package mutating func notSent(_ shipment: Int, at now: DeliveryTime) {
        guard let flight = flights.removeValue(forKey: shipment) else { return }
        let names = free(flight)
        for sequence in flight.sequences { release(sequence, now) }
        for name in names { push(name) }
    }

    /// Sends again to a sink that did not want events, or did not work.
    package mutating func resume() {
        (isGone, pause, failures, silentUntil) = (false, nil, 0, .min)
        failedTests = []
    }

    private mutating func works(_ now: DeliveryTime) {
        for sequence in failedTests {
            guard let event = waiting[sequence], !event.isSending else { continue }
            waiting[sequence]?.due = now.ticks
            push(event.name)
        }
        (failures, pause, lastCause, failedTests) = (0, nil, nil, [])
    }

    /// The objects of a shipment may be sent again.
    private mutating func free(_ flight: Flight) -> Set<BytewiseString> {
        let names = Set(flight.sequences.compactMap { name(of: $0) })
        busy.subtract(names)
        return names
    }

    /// Lets the first waiting event of an object be sent when it is due.
    private mutating func push(_ name: BytewiseString) {
        guard let first = lines[name]?.first, let event = waiting[first], !event.isSending else { return }
        due.insert(.init(due: event.due, sequence: first))
    }

    private mutating func countFailure(_ now: DeliveryTime) {
        failures += 1
        if let last = pause {
            let length = min(DeliveryLimits.maximumPause, 2 * last.length)
            pause = Pause(until: now.ticks + length, length: length)
        } else if failures >= DeliveryLimits.failuresBeforePause {
            pause = Pause(until: now.ticks + DeliveryLimits.firstDelay, length: DeliveryLimits.firstDelay)
        }
    }

    private func name(of sequence: Int64) -> BytewiseString? {
        waiting[sequence]?.name ?? index(of: sequence).map { window[$0].name }
    }

    private mutating func settle(_ sequence: Int64) {
        if waiting[sequence] != nil {
            leave(sequence)
        } else if let index = index(of: sequence) {
            window[index].status = .done
        }
    }

    /// The event can be sent again at once, as if it had not been sent.
    private mutating func release(_ sequence: Int64, _ now: DeliveryTime) {
        if waiting[sequence] != nil {
            waiting[sequence]?.isSending = false
            waiting[sequence]?.due = now.ticks
        } else if let index = index(of: sequence) {
            window[index].status = .pending
        }
    }

    private mutating func fail(_ sequence: Int64, counts: Bool, _ cause: String, _ now: DeliveryTime) {
        var event: Waiting
        if let old = waiting[sequence] {
            event = old
        } else if let index = index(of: sequence) {
            window[index].status = .done
            event = Waiting(name: window[index].name, time: window[index].event.time, attempts: 0, due: 0)
        } else {
            return
        }
        if counts { event.attempts += 1 }
        event.isSending = false
        event.cause = cause
        event.due = now.ticks + (counts ? DeliveryState.delay(after: event.attempts) : 0)
        changed.insert(sequence)
        append(sequence, event)
    }

    /// The time before another attempt: half to all of 1 s, doubled with each attempt.
    private static func delay(after attempts: Int) -> Int64 {
        let bound = min(DeliveryLimits.maximumDelay, DeliveryLimits.firstDelay << Int64(min(attempts - 1, 20)))
        return Int64.random(in: bound / 2...bound)
    }
}

// MARK: - Waiting and dead events

extension DeliveryState {
    private func isExpired(_ time: Int64, _ now: DeliveryTime) -> Bool { now.wall - time > limits.maximumAge }

    /// Adds a waiting event, or changes it.
    private mutating func append(_ sequence: Int64, _ event: Waiting) {
        waiting[sequence] = event
        oldestWaiting = min(oldestWaiting, sequence)
        var line = lines.removeValue(forKey: event.name) ?? []
        let index = line.firstIndex { $0 >= sequence } ?? line.endIndex
        if index == line.endIndex || line[index] != sequence { line.insert(sequence, at: index) }
        // The heap's entry of the event behind it is skipped until it is the first.
        if index == 0 { due.insert(.init(due: event.due, sequence: sequence)) }
        lines[event.name] = line
    }

    /// Lets the pending events of these events' objects wait behind them.
    private mutating func collectLines(of sequences: [Int64], _ now: DeliveryTime) {
        let names = Set(sequences.compactMap { waiting[$0]?.name })
        for index in window.indices where window[index].status == .pending && names.contains(window[index].name) {
            let event = window[index].event
            window[index].status = .done
            changed.insert(event.sequence)
            append(
                event.sequence,
                Waiting(name: window[index].name, time: event.time, attempts: 0, due: now.ticks))
        }
    }

    /// Removes a waiting event. The next one of its object is due.
    private mutating func leave(_ sequence: Int64) {
        guard let event = waiting.removeValue(forKey: sequence) else { return }
        changed.insert(sequence)
        failedTests.remove(sequence)
        guard var line = lines.removeValue(forKey: event.name) else { return }
        let wasFirst = line.first == sequence
        if let index = line.firstIndex(of: sequence) { line.remove(at: index) }
        if line.isEmpty { return }
        lines[event.name] = line
        if wasFirst { push(event.name) }
    }

    private mutating func die(_ sequence: Int64, attempts: Int, cause: String?, _ now: DeliveryTime) {
        dead[sequence] = EventRetry(
            sequence: sequence, attempts: attempts, due: now.wall, isDead: true, cause: cause)
        changed.insert(sequence)
        counts.dead += 1
        deadKept += 1
    }

    /// Gives up the events that are too old, also while nothing is sent. Called from time to time.
    package mutating func expire(at now: DeliveryTime) {
        for index in window.indices where window[index].status == .pending {
            guard isExpired(window[index].event.time, now) else { continue }
            window[index].status = .done
            die(window[index].event.sequence, attempts: 0, cause: lastCause, now)
        }
        dropDone()
        for (sequence, event) in waiting where !event.isSending && isExpired(event.time, now) {
            die(sequence, attempts: event.attempts, cause: event.cause, now)
            leave(sequence)
        }
    }

    /// Dead events were removed from the store.
    package mutating func removedDead(_ count: Int) { deadKept = max(0, deadKept - count) }

    // MARK: Settlements

    /// The number of changes that are not written.
    package var unwritten: Int { changed.count + Int(clamping: cursor - writtenCursor) }

    /// What must be written; nil if nothing has changed. It must end with ``written(_:)`` or ``notWritten(_:)``.
    package mutating func takeSettlement(at now: DeliveryTime) -> EventSettlement? {
        guard unwritten > 0 else { return nil }
        var settlement = EventSettlement(subscription: subscription, cursor: cursor)
        for sequence in changed.sorted() {
            if let event = waiting[sequence] {
                settlement.kept.append(
                    EventRetry(
                        sequence: sequence, attempts: event.attempts, due: now.wall + max(0, event.due - now.ticks),
                        cause: event.cause))
            } else if let retry = dead.removeValue(forKey: sequence) {
                settlement.kept.append(retry)
            } else {
                settlement.settled.append(sequence)
            }
        }
        changed = []
        return settlement
    }

    package mutating func written(_ settlement: EventSettlement) {
        writtenCursor = max(writtenCursor, settlement.cursor)
    }

    /// The settlement was not written: its changes are a part of the next one.
    package mutating func notWritten(_ settlement: EventSettlement) {
        changed.formUnion(settlement.settled)
        for retry in settlement.kept {
            changed.insert(retry.sequence)
            if retry.isDead { dead[retry.sequence] = retry }
        }
    }

    // MARK: Figures

    /// The number of events after the cursor, wanted or not, and of those that wait.
    package var pending: Int { Int(clamping: max(0, newest - cursor)) + waiting.count }

    /// The number of events that wait for another attempt.
    package var retries: Int { waiting.count }

    /// When the oldest unsettled event was committed, in microseconds since 1970; nil if there is none.
    package var oldest: Int64? {
        [window.first { $0.status != .done }?.event.time, waiting.values.map(\.time).min()].compactMap { $0 }.min()
    }
}
