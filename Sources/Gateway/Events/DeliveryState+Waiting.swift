import Buckets
import Wire

/// Events that wait or are dead, and what must be written.
extension DeliveryState {
    func isExpired(_ time: Int64, _ now: DeliveryTime) -> Bool {
        now.wall - max(time, since) > limits.maximumAge
    }

    /// Adds a waiting event, or changes it.
    mutating func append(_ sequence: Int64, _ event: Waiting) {
        if waiting.updateValue(event, forKey: sequence) == nil {
            // Most events leave long before anybody asks for the oldest.
            if oldestWaiting.count > 2 * waiting.count + 64 {
                oldestWaiting = DueHeap()
                for sequence in waiting.keys { oldestWaiting.insert(.init(due: sequence, sequence: sequence)) }
            } else {
                oldestWaiting.insert(.init(due: sequence, sequence: sequence))
            }
        }
        var line = lines.removeValue(forKey: event.name) ?? []
        let index = line.firstIndex { $0 >= sequence } ?? line.endIndex
        if index == line.endIndex || line[index] != sequence { line.insert(sequence, at: index) }
        // The heap's entry of the event behind it is skipped until it is the first.
        if index == 0 { due.insert(.init(due: event.due, sequence: sequence)) }
        lines[event.name] = line
    }

    /// Lets the pending events of these events' objects wait behind them.
    mutating func collectLines(of sequences: [Int64], _ now: DeliveryTime) {
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
    mutating func leave(_ sequence: Int64) {
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

    mutating func die(_ sequence: Int64, attempts: Int, cause: String?, _ now: DeliveryTime) {
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
        giveUpFailing(now)
    }

    /// Lets the oldest events of objects that have failed for an hour, while others were delivered, become dead before so
    /// many wait that no others are read. While nothing is delivered, nothing is given up: the sink does not work.
    mutating func giveUpFailing(_ now: DeliveryTime) {
        let surplus = waiting.count - DeliveryLimits.maximumWaiting * 3 / 4
        if surplus <= 0 { return }
        // Requests that were under way when it failed say nothing about the sink afterwards.
        let margin = limits.concurrency * limits.batch + 64
        var lost: [(sequence: Int64, first: Waiting)] = []
        for line in lines.values {
            guard let first = line.first.flatMap({ waiting[$0] }), !first.isSending, let failing = first.failing,
                now.ticks - failing.since >= DeliveryLimits.failingTime, counts.settled - failing.delivered > margin
            else { continue }
            for sequence in line { lost.append((sequence, first)) }
        }
        lost.sort { $0.sequence < $1.sequence }
        for (sequence, first) in lost.prefix(surplus) {
            let attempts = waiting[sequence]?.attempts ?? 0
            die(sequence, attempts: attempts, cause: first.cause, now)
            leave(sequence)
            // The next one of the object has failed as long.
            guard let next = lines[first.name]?.first else { continue }
            waiting[next]?.failing = first.failing
            waiting[next]?.due = first.due
            push(first.name)
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
        var settlement = EventSettlement(subscription: subscription, cursor: cursor, history: history)
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

    /// The settlement is on stable storage.
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
