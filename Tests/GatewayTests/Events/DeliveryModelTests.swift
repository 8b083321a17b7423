import Buckets
import Testing
import Wire

@testable import Gateway

/// A sequence of numbers that can be repeated.
private struct Dice: RandomNumberGenerator {
    var state: UInt64

    mutating func next() -> UInt64 {
        state = state &* 6_364_136_223_846_793_005 &+ 1_442_695_040_888_963_407
        var mixed = state
        mixed ^= mixed >> 33
        mixed = mixed &* 0xff51_afd7_ed55_8ccd
        mixed ^= mixed >> 33
        return mixed
    }

    mutating func chance(_ percent: Int) -> Bool { Int.random(in: 0..<100, using: &self) < percent }
}

private func event(_ sequence: Int64, _ name: String, time: Int64) -> BucketEvent {
    let object = ObjectMetadata(
        name: name, generation: sequence * 10, metageneration: 1, size: 1, created: time / 1000, updated: time / 1000,
        md5: nil, crc32c: 0, etag: "e", attributes: ObjectAttributes())
    return BucketEvent(sequence: sequence, kind: .finalized, time: time, object: object)
}

/// A bucket's log, a store of progress, and a subscription that is restarted at random. It checks the invariants E2 to E5
/// at each step.
private struct Simulation {
    var dice: Dice
    var now = DeliveryTime(wall: 1_700_000_000_000_000, ticks: 0)
    var log: [BucketEvent] = []
    var limits = DeliveryLimits()
    var state: DeliveryState
    var inFlight: [Int: Shipment] = [:]
    // What is written.
    var cursor: Int64 = 0
    var retries: [Int64: EventRetry] = [:]
    // What has happened.
    var sent: Set<Int64> = []
    var acknowledged: Set<Int64> = []
    /// Names whose events always fail.
    var poison: Set<String> = []
    /// Percent of the requests that fail, that are lost after receipt.
    var failing = 0
    var isHealthy = false

    init(seed: UInt64, batch: Int, concurrency: Int) {
        dice = Dice(state: seed)
        limits.batch = batch
        limits.concurrency = concurrency
        limits.maximumAge = 3600 * 1_000_000
        state = DeliveryState(SubscriptionProgress(cursor: 0), of: "s", newest: 0, limits, at: now)
    }

    static func isWanted(_ event: BucketEvent) -> Bool {
        event.sequence % 7 != 0 && event.object.name != "unwanted"
    }

    func dead(_ sequence: Int64) -> Bool { retries[sequence]?.isDead == true || lostDead.contains(sequence) }
    var lostDead: Set<Int64> = []

    mutating func commit(_ name: String? = nil) {
        let sequence = Int64(log.count + 1)
        log.append(event(sequence, name ?? "o\(Int.random(in: 0..<5, using: &dice))", time: now.wall))
        state.noticed(newest: sequence)
    }

    mutating func restart() {
        inFlight = [:]
        let waiting = retries.values.filter { !$0.isDead }.sorted { $0.sequence < $1.sequence }.map { retry in
            let event = log[Int(retry.sequence - 1)]
            return SubscriptionProgress.Waiting(retry, name: event.object.name, time: event.time)
        }
        let dead = retries.values.filter { $0.isDead }.map(\.sequence)
        let above = dead.filter { $0 > cursor }
        state = DeliveryState(
            SubscriptionProgress(cursor: cursor, waiting: waiting, deadAbove: above, dead: dead.count), of: "s",
            newest: Int64(log.count), limits, at: now)
    }

    mutating func read() {
        guard let (after, limit) = state.wantsEvents else { return }
        let events = Array(log.dropFirst(Int(after)).prefix(limit))
        state.loaded(events, after: after, newest: Int64(log.count), at: now, wants: Simulation.isWanted)
    }

    mutating func send() {
        while let shipment = state.next(at: now) {
            #expect(shipment.sequences == shipment.sequences.sorted())
            var names = Set(inFlight.values.flatMap { $0.sequences.map { log[Int($0 - 1)].object.name } })
            var own: Set<String> = []
            for sequence in shipment.sequences {
                let name = log[Int(sequence - 1)].object.name
                #expect(!names.contains(name), "two requests for an object")
                own.insert(name)
                // E3
                for older in log.prefix(Int(sequence - 1)) where older.object.name == name && Self.isWanted(older) {
                    let isSettled = acknowledged.contains(older.sequence) || dead(older.sequence)
                    let isBefore = shipment.sequences.contains(older.sequence)
                    #expect(isSettled || isBefore || unwrittenDead(older), "\(sequence) before \(older.sequence)")
                }
                sent.insert(sequence)
            }
            names.formUnion(own)
            inFlight[shipment.id] = shipment
        }
        #expect(inFlight.count <= limits.concurrency)
    }

    /// An event that is too old may be dead before that is written, and one that is too far behind is discarded.
    func unwrittenDead(_ event: BucketEvent) -> Bool {
        now.wall - event.time > limits.maximumAge || event.sequence <= Int64(log.count) - limits.maximumPending
    }

    mutating func respond() {
        guard let id = inFlight.keys.sorted().randomElement(using: &dice),
            let shipment = inFlight.removeValue(forKey: id)
        else { return }
        let isPoisoned = shipment.sequences.contains { poison.contains(log[Int($0 - 1)].object.name) }
        let result: DeliveryResult
        if isPoisoned || !isHealthy && dice.chance(failing) {
            result =
                dice.chance(5)
                ? .gone
                : .failed(cause: "status 500", retryAfter: dice.chance(5) ? 5_000_000 : nil)
        } else {
            result = .delivered
            acknowledged.formUnion(shipment.sequences)
        }
        state.finished(id, result, at: now)
    }

    mutating func settle() {
        guard let settlement = state.takeSettlement(at: now) else { return }
        if !isHealthy, dice.chance(20) { return state.notWritten(settlement) }
        cursor = max(cursor, settlement.cursor)
        for retry in settlement.kept { retries[retry.sequence] = retry }
        for sequence in settlement.settled { retries[sequence] = nil }
        state.written(settlement)
        // E5
        for event in log where event.sequence <= cursor && Self.isWanted(event) {
            let isKept = retries[event.sequence] != nil
            if event.sequence <= Int64(log.count) - limits.maximumPending { continue }
            #expect(isKept || acknowledged.contains(event.sequence), "the cursor has passed \(event.sequence)")
        }
    }

    mutating func advance(_ microseconds: Int64) {
        now.ticks += microseconds
        now.wall += microseconds
    }

    mutating func step() {
        switch Int.random(in: 0..<100, using: &dice) {
        case ..<30: commit()
        case ..<50: read()
        case ..<70: send()
        case ..<85: respond()
        case ..<92: settle()
        case ..<97: advance(Int64.random(in: 0...2_000_000, using: &dice))
        case 97: restart()
        case 98: state.resume(at: now)
        default:
            state.expire(at: now)
            if dice.chance(3) { advance(600_000_000) }
        }
    }

    /// Delivers until the cursor has passed a number and nothing waits, or nothing more can be delivered.
    mutating func run(until end: Int64, _ works: (String, inout Simulation) -> Bool) {
        var check: Int64 = 0
        for _ in 0..<200_000 where state.cursor < end || state.retries > 0 {
            read()
            var isIdle = state.wantsEvents == nil
            while let shipment = state.next(at: now) {
                isIdle = false
                let name = log[Int(shipment.sequences[0] - 1)].object.name
                let result = works(name, &self) ? DeliveryResult.delivered : .failed(cause: "status 422")
                state.finished(shipment.id, result, at: now)
            }
            if let settlement = state.takeSettlement(at: now) { state.written(settlement) }
            if state.cursor == end, state.waiting.values.allSatisfy({ $0.name.text.hasPrefix("bad") }) { return }
            if now.ticks >= check {
                check = now.ticks + 30_000_000
                state.expire(at: now)
            }
            let next = (state.nextTime(after: now) ?? .max) - now.ticks
            advance(isIdle ? max(100_000, min(next, 5_000_000)) : 100_000)
        }
    }

    /// Lets everything be delivered, by a sink that works.
    mutating func finish() {
        isHealthy = true
        poison = []
        for _ in 0..<20_000 {
            state.resume(at: now)
            read()
            send()
            while !inFlight.isEmpty { respond() }
            settle()
            if cursor == Int64(log.count), state.retries == 0, state.unwritten == 0 { break }
            let next = state.nextTime(after: now) ?? now.ticks + 1000
            advance(max(1, next - now.ticks))
        }
    }
}

@Suite struct DeliveryModelTests {
    @Test(arguments: [(1, 8), (1, 1), (10, 3), (100, 2)])
    func everyEventArrivesInOrder(_ batch: Int, _ concurrency: Int) {
        for seed in 1...60 as ClosedRange<UInt64> {
            var simulation = Simulation(seed: seed &* 977 &+ UInt64(batch), batch: batch, concurrency: concurrency)
            simulation.failing = [0, 10, 50, 95][Int(seed % 4)]
            if seed % 3 == 0 { simulation.poison = ["o1"] }
            for _ in 0..<1500 { simulation.step() }
            simulation.finish()
            // E2
            for event in simulation.log where Simulation.isWanted(event) {
                let isDone = simulation.acknowledged.contains(event.sequence) || simulation.dead(event.sequence)
                #expect(isDone, "seed \(seed): \(event.sequence) of \(simulation.log.count) is lost")
            }
            #expect(simulation.cursor == Int64(simulation.log.count), "seed \(seed)")
        }
    }

    /// E6, and the same for objects: what always fails holds up nothing else for longer than a pause.
    @Test func failingObjectHoldsUpItselfOnly() {
        var simulation = Simulation(seed: 1, batch: 1, concurrency: 4)
        simulation.poison = ["o0", "o1", "o2"]
        simulation.isHealthy = true
        for _ in 0..<3000 { simulation.commit() }
        let healthy = simulation.log.filter { Simulation.isWanted($0) && !simulation.poison.contains($0.object.name) }
        for _ in 0..<200_000 {
            simulation.read()
            simulation.send()
            while !simulation.inFlight.isEmpty {
                let id = simulation.inFlight.keys.min()!
                let shipment = simulation.inFlight.removeValue(forKey: id)!
                let name = simulation.log[Int(shipment.sequences[0] - 1)].object.name
                if simulation.poison.contains(name) {
                    simulation.state.finished(id, .failed(cause: "status 400"), at: simulation.now)
                } else {
                    simulation.acknowledged.formUnion(shipment.sequences)
                    simulation.state.finished(id, .delivered, at: simulation.now)
                }
            }
            simulation.settle()
            if healthy.allSatisfy({ simulation.acknowledged.contains($0.sequence) }) { break }
            simulation.advance(10_000)
        }
        #expect(healthy.allSatisfy { simulation.acknowledged.contains($0.sequence) })
        #expect(simulation.now.ticks < 120_000_000, "\(simulation.now.ticks)")
        #expect(simulation.state.retries > 1000)
    }

    @Test func pauseTestsOneAtATimeAndRecovers() throws {
        var simulation = Simulation(seed: 2, batch: 1, concurrency: 8)
        for _ in 0..<100 { simulation.commit() }
        simulation.read()
        func fail() {
            while let id = simulation.inFlight.keys.min() {
                simulation.inFlight[id] = nil
                simulation.state.finished(id, .failed(cause: "no connection"), at: simulation.now)
            }
        }
        // Objects are five, so at most five requests are under way.
        simulation.send()
        #expect(simulation.inFlight.count == 5)
        fail()
        var attempts = 0
        var last: Int64 = 0
        while simulation.now.ticks < 600_000_000 {
            simulation.send()
            if simulation.state.isPaused { #expect(simulation.inFlight.count <= 1) }
            attempts += simulation.inFlight.count
            last = simulation.now.ticks
            fail()
            let next = try #require(simulation.state.nextTime(after: simulation.now))
            simulation.advance(next - simulation.now.ticks)
            #expect(simulation.now.ticks - last <= 60_000_000)
        }
        #expect(simulation.state.isPaused)
        #expect(attempts < 40, "\(attempts)")
        simulation.finish()
        #expect(simulation.state.counts.settled == simulation.log.count { Simulation.isWanted($0) })
    }

    @Test func silenceIsKept() throws {
        var simulation = Simulation(seed: 3, batch: 1, concurrency: 1)
        for _ in 0..<3 { simulation.commit() }
        simulation.read()
        let shipment = simulation.state.next(at: simulation.now)
        let first = try #require(shipment)
        simulation.state.finished(
            first.id, .failed(cause: "status 429", retryAfter: 86_400_000_000), at: simulation.now)
        let early = simulation.state.next(at: simulation.now)
        #expect(early == nil)
        // At most an hour, whatever the sink says.
        #expect(simulation.state.nextTime(after: simulation.now) == 3_600_000_000)
        simulation.advance(3_600_000_000)
        let late = simulation.state.next(at: simulation.now)
        #expect(late != nil)
    }

    @Test func goneUntilResumed() throws {
        var simulation = Simulation(seed: 4, batch: 1, concurrency: 8)
        for _ in 0..<10 { simulation.commit() }
        simulation.read()
        let shipment = simulation.state.next(at: simulation.now)
        let first = try #require(shipment)
        simulation.state.finished(first.id, .gone, at: simulation.now)
        #expect(simulation.state.isGone)
        let none = simulation.state.next(at: simulation.now)
        #expect(none == nil)
        #expect(simulation.state.nextTime(after: simulation.now) == nil)
        simulation.advance(3_601_000_000)
        simulation.state.expire(at: simulation.now)
        #expect(simulation.state.counts.dead == 9)
        simulation.commit()
        simulation.finish()
        #expect(simulation.state.counts.settled == 1)
        #expect(simulation.retries.values.allSatisfy { $0.isDead } && simulation.retries.count == 9)
    }

    @Test func oldestAreGivenUpAboveTheMaximum() {
        var simulation = Simulation(seed: 5, batch: 1, concurrency: 8)
        simulation.limits.maximumPending = 100
        simulation.restart()
        simulation.poison = ["o0", "o1", "o2", "o3", "o4"]
        for _ in 0..<2000 {
            simulation.commit()
            simulation.read()
            simulation.send()
            while !simulation.inFlight.isEmpty { simulation.respond() }
        }
        simulation.finish()
        let counts = simulation.state.counts
        #expect(counts.settled + counts.discarded == simulation.log.count { Simulation.isWanted($0) })
        #expect(counts.settled <= 101 && counts.settled > 60, "\(counts)")
    }

    @Test func whatOthersGetGivesUpNothing() {
        var simulation = Simulation(seed: 7, batch: 1, concurrency: 8)
        simulation.limits.maximumPending = 50
        simulation.restart()
        simulation.commit("o1")
        let wanted = simulation.log.count
        // Events that the subscription does not want, while its own one fails.
        simulation.poison = ["o1"]
        for _ in 0..<400 {
            simulation.commit("unwanted")
            simulation.read()
            simulation.send()
            while !simulation.inFlight.isEmpty { simulation.respond() }
        }
        #expect(simulation.state.counts.discarded == 0 && simulation.state.cursor >= 350)
        simulation.finish()
        #expect(simulation.acknowledged.contains(Int64(wanted)) && simulation.state.counts.settled == 1)
    }

    @Test func replayedEventsAreAsYoungAsNewOnes() throws {
        var simulation = Simulation(seed: 8, batch: 1, concurrency: 8)
        simulation.commit("o1")
        simulation.read()
        simulation.advance(simulation.limits.maximumAge + 1)
        simulation.state.expire(at: simulation.now)
        simulation.settle()
        #expect(simulation.state.counts.dead == 1)
        let retry = try #require(simulation.retries.values.first)
        let event = simulation.log[0]
        let waiting = SubscriptionProgress.Waiting(
            EventRetry(sequence: retry.sequence, attempts: 0, due: 0), name: event.object.name, time: event.time)
        simulation.state = DeliveryState(
            SubscriptionProgress(cursor: simulation.cursor, waiting: [waiting], since: simulation.now.wall), of: "s",
            newest: 1, simulation.limits, at: simulation.now)
        simulation.advance(simulation.limits.maximumAge - 1)
        let shipment = simulation.state.next(at: simulation.now)
        #expect(shipment?.sequences == [1])
    }

    @Test func memoryIsBoundedByTheWindow() {
        var simulation = Simulation(seed: 6, batch: 1, concurrency: 4)
        for _ in 0..<40_000 { simulation.commit() }
        simulation.limits.maximumPending = 1_000_000
        simulation.poison = ["o0", "o1", "o2", "o3", "o4"]
        for _ in 0..<2000 {
            simulation.read()
            simulation.send()
            while let id = simulation.inFlight.keys.min() {
                simulation.inFlight[id] = nil
                simulation.state.finished(id, .failed(cause: "status 400"), at: simulation.now)
            }
            if let settlement = simulation.state.takeSettlement(at: simulation.now) {
                simulation.state.written(settlement)
            }
            simulation.advance(1_000_000)
        }
        #expect(simulation.state.retries <= 16_384 + 256)
        #expect(simulation.state.window.count <= 256)
        // The sink does not work: nothing is given up.
        #expect(simulation.state.counts.dead == 0)
    }

    /// One object that changes all the time, or many: their oldest events are given up, and nothing else is.
    @Test(arguments: [1, 30_000])
    func failingObjectsHoldUpNothingHoweverMany(_ names: Int) {
        var simulation = Simulation(seed: 9, batch: 1, concurrency: 4)
        simulation.limits.maximumPending = 1_000_000
        simulation.limits.maximumAge = 72 * 3_600_000_000
        simulation.restart()
        var others = 0
        for number in 0..<60_000 {
            simulation.commit(number % 2 == 0 ? "bad\(number / 2 % names)" : "good\(number % 100)")
            if number % 2 == 1, Simulation.isWanted(simulation.log[number]) { others += 1 }
        }
        simulation.run(until: 60_000) { name, _ in !name.hasPrefix("bad") }
        let counts = simulation.state.counts
        #expect(simulation.state.cursor == 60_000 && counts.settled == others && counts.discarded == 0)
        #expect(counts.dead > 8000 && simulation.state.retries <= 16_384 + 256)
        // Not for much longer than the hour that an object may fail.
        #expect(simulation.now.ticks < 3 * 3_600_000_000, "\(simulation.now.ticks)")
    }

    /// An outage with one object that changes all the time, and then a restart or a change by an operator: the sink gets
    /// everything at once when it works again.
    @Test(arguments: [false, true])
    func aRestartAfterAnOutageLosesNothing(_ isRestart: Bool) {
        var simulation = Simulation(seed: 11, batch: 1, concurrency: 8)
        simulation.limits.maximumPending = 1_000_000
        simulation.limits.maximumAge = 72 * 3_600_000_000
        simulation.restart()
        for number in 0..<20_000 { simulation.commit(number % 50 == 0 ? "o\(number)" : "hot") }
        // Settled as in the store: the simulation's own check of each event would take too long.
        func settle() {
            guard let settlement = simulation.state.takeSettlement(at: simulation.now) else { return }
            simulation.cursor = max(simulation.cursor, settlement.cursor)
            for retry in settlement.kept { simulation.retries[retry.sequence] = retry }
            for sequence in settlement.settled { simulation.retries[sequence] = nil }
            simulation.state.written(settlement)
        }
        for _ in 0..<10_000 {
            simulation.read()
            while let shipment = simulation.state.next(at: simulation.now) {
                simulation.state.finished(shipment.id, .failed(cause: "status 500"), at: simulation.now)
            }
            settle()
            simulation.advance(500_000)
        }
        #expect(simulation.state.counts.dead == 0 && simulation.state.retries > 10_000)
        let old = simulation.state
        simulation.restart()
        if !isRestart { simulation.state.follow(old) }
        let begin = simulation.now.ticks
        simulation.run(until: 20_000) { _, _ in true }
        let counts = simulation.state.counts
        #expect(simulation.state.cursor == 20_000 && simulation.state.retries == 0 && counts.dead == 0, "\(counts)")
        #expect(simulation.now.ticks - begin < 120_000_000, "\(simulation.now.ticks - begin)")
    }

    /// A sink that fails at random, or for a time, gets everything.
    @Test func aSinkThatFailsAtRandomLosesNothing() {
        var simulation = Simulation(seed: 10, batch: 1, concurrency: 4)
        simulation.limits.maximumPending = 1_000_000
        for number in 0..<60_000 { simulation.commit("o\(number % 60)") }
        let outage = 60_000_000...1_200_000_000
        simulation.run(until: 60_000) { _, simulation in
            !outage.contains(Int(simulation.now.ticks)) && !simulation.dice.chance(15)
        }
        let counts = simulation.state.counts
        #expect(simulation.state.cursor == 60_000 && simulation.state.retries == 0)
        #expect(counts.dead == 0 && counts.settled == simulation.log.count(where: Simulation.isWanted), "\(counts)")
    }
}
