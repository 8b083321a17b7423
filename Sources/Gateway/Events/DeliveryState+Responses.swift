import Buckets
import Wire

/// What responses change.
extension DeliveryState {
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
    /// - Parameter keepsSilence: Whether the silence that it asked for is kept.
    package mutating func resume(at now: DeliveryTime, keepsSilence: Bool = false) {
        (isGone, pause, failures) = (false, nil, 0)
        if !keepsSilence { silentUntil = .min }
        failedTests = []
        for (name, line) in lines {
            guard let first = line.first, waiting[first]?.isSending == false else { continue }
            waiting[first]?.due = now.ticks
            push(name)
        }
    }

    mutating func works(_ now: DeliveryTime) {
        for sequence in failedTests {
            guard let event = waiting[sequence], !event.isSending else { continue }
            waiting[sequence]?.due = now.ticks
            push(event.name)
        }
        (failures, pause, lastCause, failedTests) = (0, nil, nil, [])
    }

    /// The objects of a shipment may be sent again.
    mutating func free(_ flight: Flight) -> Set<BytewiseString> {
        let names = Set(flight.sequences.compactMap { name(of: $0) })
        busy.subtract(names)
        return names
    }

    /// Lets the first waiting event of an object be sent when it is due.
    mutating func push(_ name: BytewiseString) {
        guard let first = lines[name]?.first, let event = waiting[first], !event.isSending else { return }
        due.insert(.init(due: event.due, sequence: first))
    }

    mutating func countFailure(_ now: DeliveryTime) {
        failures += 1
        if let last = pause {
            let length = min(DeliveryLimits.maximumPause, 2 * last.length)
            pause = Pause(until: now.ticks + length, length: length)
        } else if failures >= DeliveryLimits.failuresBeforePause {
            pause = Pause(until: now.ticks + DeliveryLimits.firstDelay, length: DeliveryLimits.firstDelay)
        }
    }

    func name(of sequence: Int64) -> BytewiseString? {
        waiting[sequence]?.name ?? index(of: sequence).map { window[$0].name }
    }

    mutating func settle(_ sequence: Int64) {
        if waiting[sequence] != nil {
            leave(sequence)
        } else if let index = index(of: sequence) {
            window[index].status = .done
        }
    }

    /// The event can be sent again at once, as if it had not been sent.
    mutating func release(_ sequence: Int64, _ now: DeliveryTime) {
        if waiting[sequence] != nil {
            waiting[sequence]?.isSending = false
            waiting[sequence]?.due = now.ticks
        } else if let index = index(of: sequence) {
            window[index].status = .pending
        }
    }

    mutating func fail(_ sequence: Int64, counts: Bool, _ cause: String, _ now: DeliveryTime) {
        var event: Waiting
        if let old = waiting[sequence] {
            event = old
        } else if let index = index(of: sequence) {
            window[index].status = .done
            event = Waiting(name: window[index].name, time: window[index].event.time, attempts: 0, due: 0)
        } else {
            return
        }
        if event.failing == nil { event.failing = (now.ticks, self.counts.settled) }
        if counts { event.attempts += 1 }
        event.isSending = false
        event.cause = cause
        event.due = now.ticks + (counts ? DeliveryState.delay(after: event.attempts) : 0)
        changed.insert(sequence)
        append(sequence, event)
    }

    /// The time before another attempt: half to all of 1 s, doubled with each attempt.
    static func delay(after attempts: Int) -> Int64 {
        let bound = min(DeliveryLimits.maximumDelay, DeliveryLimits.firstDelay << Int64(min(attempts - 1, 20)))
        return Int64.random(in: bound / 2...bound)
    }
}
