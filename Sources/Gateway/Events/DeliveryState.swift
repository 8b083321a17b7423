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
        /// When it failed first, since the start, in ticks, and the number of delivered events then. nil if it has not.
        var failing: (since: Int64, delivered: Int)?
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
    /// Of the directory whose events these are.
    let history: UInt64
    /// Can be changed at any time.
    package var limits: DeliveryLimits
    /// Since the start.
    package internal(set) var counts = DeliveryCounts()
    /// Whether the sink does not want events any more.
    package internal(set) var isGone = false
    /// The cause of the last failure; nil after a success.
    package internal(set) var lastCause: String?
    /// The number of dead events that are kept.
    package internal(set) var deadKept: Int

    /// The newest event of the bucket.
    package internal(set) var newest: Int64
    /// All events up to this number are in the window, or were.
    package internal(set) var readThrough: Int64
    var window: [Entry] = []
    var waiting: [Int64: Waiting] = [:]
    /// The numbers of the waiting events of each object, in order.
    var lines: [BytewiseString: [Int64]] = [:]
    var due = DueHeap()
    /// The numbers of waiting events. Those that no longer wait are skipped by the reader.
    var oldestWaiting = DueHeap()
    /// Ages count from here at the earliest: when the operator last had events sent again, in microseconds since 1970.
    let since: Int64
    var busy: Set<BytewiseString> = []
    var flights: [Int: Flight] = [:]
    /// Numbers of shipments are unique for each dispatcher.
    var lastFlight: Int
    var failures = 0
    var pause: Pause?
    /// The events that failed while the sink was tested. They are due when it works again.
    var failedTests: Set<Int64> = []
    /// Nothing is sent before this.
    var silentUntil: Int64 = .min
    var nextSend: Int64 = .min
    var prefersWaiting = false
    /// Events above the cursor that waited or were dead at the start.
    var known: Set<Int64>

    // Written state, and what must be written.
    var writtenCursor: Int64
    var changed: Set<Int64> = []
    var dead: [Int64: EventRetry] = [:]

    /// - Parameters:
    ///   - newest: The number of the bucket's newest event.
    package init(
        _ progress: SubscriptionProgress, of subscription: String, newest: Int64, _ limits: DeliveryLimits,
        at now: DeliveryTime
    ) {
        lastFlight = 0
        history = progress.history
        self.subscription = subscription
        self.limits = limits
        self.newest = newest
        readThrough = progress.cursor
        writtenCursor = progress.cursor
        deadKept = progress.dead
        known = Set(progress.deadAbove)
        since = progress.since
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
            // Whether it or the sink has failed is not known any more: it is sent again when something is delivered.
            if retry.attempts > 0 { failedTests.insert(retry.sequence) }
        }
    }

    /// Takes over what is known of the sink, and the numbers of shipments, from the state before a change of the progress.
    package mutating func follow(_ old: DeliveryState) {
        lastFlight = old.lastFlight
        (isGone, lastCause, failures, pause) = (old.isGone, old.lastCause, old.failures, old.pause)
        (silentUntil, nextSend) = (old.silentUntil, old.nextSend)
        failedTests = old.failedTests.filter { waiting[$0] != nil }
    }

    // MARK: Reading

    /// The highest number up to which each event is settled or waits.
    package var cursor: Int64 { window.first.map { $0.event.sequence - 1 } ?? readThrough }

    /// Where to read, if events should be read now.
    package var wantsEvents: (after: Int64, limit: Int)? {
        guard readThrough < newest, window.count <= limits.capacity - DeliveryLimits.window / 2,
            waiting.count < DeliveryLimits.maximumWaiting || surplus > 0,
            changed.count < DeliveryLimits.maximumUnwritten
        else { return nil }
        return (readThrough, min(DeliveryLimits.window, limits.capacity - window.count))
    }

    /// Events up to this number are committed.
    package mutating func noticed(newest: Int64) {
        guard newest > self.newest else { return }
        self.newest = newest
        makeRoom()
    }

    /// By how many events more are pending than may be. What is not read yet counts, wanted or not.
    private var surplus: Int64 {
        Int64(waiting.count + window.count) + newest - readThrough - limits.maximumPending
    }

    /// Lets the events in the window wait, so that those behind them are read and what the subscription does not want is
    /// passed; gives up the oldest ones if there are too many nevertheless.
    private mutating func makeRoom() {
        var surplus = surplus
        if surplus <= 0 { return }
        defer { dropDone() }
        let room = min(DeliveryLimits.maximumWaiting, Int(limits.maximumPending))
        while surplus > 0, waiting.count > room, discardOldest() { surplus -= 1 }
        for index in window.indices where window[index].status == .pending {
            while surplus > 0, waiting.count >= room {
                guard discardOldest() else { return }
                surplus -= 1
            }
            if surplus <= 0 { return }
            window[index].status = .done
            let event = window[index].event
            changed.insert(event.sequence)
            append(event.sequence, Waiting(name: window[index].name, time: event.time, attempts: 0, due: 0))
            surplus -= 1
        }
    }

    /// Gives up the oldest waiting event. Returns false if there is none that is not being sent.
    private mutating func discardOldest() -> Bool {
        var kept: [DueHeap.Entry] = []
        defer { for entry in kept { oldestWaiting.insert(entry) } }
        while let oldest = oldestWaiting.first {
            oldestWaiting.removeFirst()
            guard let event = waiting[oldest.sequence] else { continue }
            if event.isSending {
                kept.append(oldest)
                continue
            }
            leave(oldest.sequence)
            counts.discarded += 1
            return true
        }
        return false
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
        for event in events where event.sequence > readThrough {
            readThrough = event.sequence
            if known.remove(event.sequence) != nil || !wants(event) { continue }
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
        giveUpFailing(now)
        makeRoom()
    }

    /// Forgets pending events that are not wanted any more. Those that wait are sent anyway.
    package mutating func keep(_ wants: (BucketEvent) -> Bool) {
        for index in window.indices where window[index].status == .pending && !wants(window[index].event) {
            window[index].status = .done
        }
        dropDone()
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
    mutating func dropDone() {
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

    mutating func takePending(_ now: DeliveryTime) -> [Int64]? {
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

    mutating func takeWaiting(_ now: DeliveryTime) -> Int64? {
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
}
