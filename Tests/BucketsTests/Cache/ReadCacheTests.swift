import BucketConformance
import Glibc
import Synchronization
import System
import TestSupport
import Testing

@testable import Buckets

private let mebibyte = 1 << 20

@Suite("The read cache", .timeLimit(.minutes(5)))
struct ReadCacheTests {
    @Test("The second read of an object needs no request")
    func hit() async throws {
        for freshness in [ReadCache.Freshness.forever, .limited(30_000_000_000)] {
            let fixture = await CacheFixture(.init(freshness: freshness))
            fixture.service.put("a", 3 * mebibyte + 5)
            try await fixture.run {
                let first = try await fixture.bucket.read("a")
                #expect(first.outcome.result == .miss && first.outcome.isStored && first.isRight(fixture.service))
                let asked = fixture.service.requests
                #expect(asked == 1)
                let second = try await fixture.bucket.read("a")
                #expect(second.outcome.result == .hit && second.isRight(fixture.service))
                #expect(fixture.service.requests == asked)
                let (_, outcome) = try await fixture.bucket.stat("a", mustAsk: false)
                #expect(outcome.result == .hit && fixture.service.requests == asked)
                _ = try await fixture.bucket.stat("a", mustAsk: true)
                #expect(fixture.service.with { $0.stats } == 1)
                fixture.clock.pass(seconds: 31)
                _ = try await fixture.bucket.read("a")
                #expect(fixture.service.with { $0.stats } == (freshness == .forever ? 1 : 2))
                #expect(fixture.service.with { $0.opens + $0.pinned } == 1)
            }
        }
    }

    @Test("With validate, each read of a large object asks, and small ones bypass the cache")
    func validate() async throws {
        let fixture = await CacheFixture(.init(freshness: .validate))
        fixture.service.put("large", 100_000)
        fixture.service.put("small", 65_536)
        try await fixture.run {
            for round in 0..<3 {
                let large = try await fixture.bucket.read("large")
                #expect(large.outcome.result == (round == 0 ? .miss : .validated) && large.isRight(fixture.service))
                #expect(fixture.service.with { [$0.stats, $0.opens, $0.pinned] } == [round, 1, 0])
            }
            for round in 1...3 {
                let small = try await fixture.bucket.read("small")
                #expect(small.isRight(fixture.service))
                #expect(fixture.service.with { [$0.stats, $0.opens, $0.pinned] } == [2, 1 + round, 0])
            }
            fixture.service.put("large", 200_000)
            let new = try await fixture.bucket.read("large")
            #expect(new.outcome.result == .replaced && new.metadata.size == 200_000 && new.isRight(fixture.service))
        }
    }

    @Test("Ranges fetch the slices that they need, once")
    func ranges() async throws {
        let fixture = await CacheFixture()
        fixture.service.put("a", 4 * mebibyte + 7)
        fixture.service.put("empty", 0)
        let one = UInt64(mebibyte)
        let ranges: [(ByteRange, sent: Int)] = [
            (.from(10, through: 19), mebibyte), (.from(20, through: 29), 0), (.from(0, through: one - 1), 0),
            (.from(one - 1, through: one), mebibyte), (.from(4 * one + 3, through: nil), 7), (.suffix(3), 0),
            (.suffix(9), mebibyte), (.from(16_383, through: 2 * one + 16_384), mebibyte),
            (.from(5, through: nil), 0), (.from(4 * one, through: 9 * one), 0),
        ]
        try await fixture.run {
            var sent = 0
            for (range, count) in ranges {
                for piece in [65_536, 1000, 40_000] {
                    let answer = try await fixture.bucket.read("a", range, piece: piece)
                    #expect(answer.isRight(fixture.service), "\(range)")
                }
                // A slice of which half is there is completed.
                await fixture.settled()
                sent += count
                #expect(fixture.service.with { $0.sent } == sent, "\(range)")
            }
            let none = try await fixture.bucket.read("a", .from(5 * one, through: nil))
            #expect(none.range.isEmpty)
            for _ in 0..<2 { #expect(try await fixture.bucket.read("empty").body.isEmpty) }
        }
    }

    @Test("Many readers of an object that is not there cause one read of it")
    func manyReaders() async throws {
        let fixture = await CacheFixture()
        fixture.service.put("a", 20 * mebibyte)
        fixture.service.with { $0.piece = 200_000 }
        try await onTwoLoops { loops in
            try await withThrowingTaskGroup(of: CacheAnswer.self) { group in
                for index in 0..<32 {
                    group.addTask(executorPreference: loops[index % 2]) { try await fixture.bucket.read("a") }
                }
                for try await answer in group { #expect(answer.isRight(fixture.service)) }
            }
            await fixture.settled()
        }
        #expect(fixture.service.with { [$0.opens, $0.pinned, $0.sent] } == [1, 0, 20 * mebibyte])
    }

    @Test("A version that is replaced between the question and the read begins again")
    func replacedBetween() async throws {
        let fixture = await CacheFixture()
        fixture.service.put("a", 3 * mebibyte)
        let service = fixture.service
        try await fixture.run {
            _ = try await fixture.bucket.stat("a", mustAsk: false)
            service.with { $0.beforePinned = { service.put("a", 2 * mebibyte) } }
            let answer = try await fixture.bucket.read("a")
            #expect(answer.isRight(service) && answer.metadata.size == 2 * UInt64(mebibyte))
            #expect(service.with { [$0.stats, $0.opens, $0.pinned] } == [1, 1, 1])
            service.put("a", mebibyte)
            #expect(try await fixture.bucket.read("a").outcome.result == .hit)
            service.delete("a")
            await #expect(throws: BucketError.self) { try await fixture.bucket.read("a", mustAsk: true) }
        }
    }

    @Test("A gateway sees its own changes, also those that fail and those that overlap a question")
    func ownChanges() async throws {
        let fixture = await CacheFixture()
        let service = fixture.service
        service.put("a", mebibyte)
        try await fixture.run {
            let bucket = fixture.bucket
            _ = try await bucket.read("a")
            await bucket.change("a") { _ = service.put("a", 2 * mebibyte) }
            #expect(try await bucket.read("a").metadata.size == 2 * UInt64(mebibyte))
            _ = try? await bucket.change("a") { () throws(BucketError) in
                service.put("a", 300_000)
                throw BucketError(.timedOut, "the response is lost")
            }
            #expect(try await bucket.read("a").metadata.size == 300_000)
            // A read during the change, before it is made.
            await bucket.change("a") {
                let during = try? await bucket.read("a")
                #expect(during?.metadata.size == 300_000)
                service.put("a", 400_000)
            }
            #expect(try await bucket.read("a").metadata.size == 400_000)
            // An old answer that arrives after the change.
            bucket.forget("a")
            service.with { state in
                state.beforeStatAnswer = { await bucket.change("a") { _ = service.put("a", 500_000) } }
            }
            _ = try await bucket.stat("a", mustAsk: false)
            #expect(try await bucket.stat("a", mustAsk: false).0.size == 500_000)
            #expect(try await bucket.read("a").isRight(service))
        }
    }

    @Test("An answer to a question that began during a change is not kept if it arrives after the change")
    func lateAnswer() async throws {
        let fixture = await CacheFixture()
        let (service, bucket, gate) = (fixture.service, fixture.bucket, CacheGate())
        service.put("a", 100_000)
        try await fixture.run { () async throws in
            service.with { $0.beforeStatAnswer = { await gate.wait() } }
            let late = await bucket.change("a") {
                let late = Task(executorPreference: EventLoop.current!) { try await bucket.stat("a", mustAsk: true) }
                await eventually { service.with { $0.stats } == 1 }
                service.put("a", 200_000)
                return late
            }
            gate.open()
            #expect(try await late.value.0.size == 100_000)
            #expect(try await bucket.stat("a", mustAsk: false).0.size == 200_000)
            #expect(try await bucket.read("a").isRight(service))
        }
    }

    @Test("An absent object is asked for again")
    func absent() async throws {
        let fixture = await CacheFixture()
        try await fixture.run { () async throws in
            for count in 1...2 {
                await #expect(throws: BucketError.self) { try await fixture.bucket.read("a") }
                #expect(fixture.service.requests == count)
                await #expect(throws: BucketError.self) { try await fixture.bucket.read("a", .suffix(5)) }
                await #expect(throws: BucketError.self) { try await fixture.bucket.stat("a", mustAsk: false) }
                fixture.service.with { ($0.opens, $0.stats) = (count, 0) }
            }
            fixture.service.put("a", 70_000)
            #expect(try await fixture.bucket.read("a").isRight(fixture.service))
            fixture.service.delete("a")
            await #expect(throws: BucketError.self) { try await fixture.bucket.read("a", mustAsk: true) }
            // What was known is forgotten.
            await #expect(throws: BucketError.self) { try await fixture.bucket.read("a") }
        }
    }

    @Test("The last version is served while the service fails, if it may be")
    func stale() async throws {
        let fixture = await CacheFixture(.init(freshness: .validate, staleIfError: 60))
        fixture.service.put("a", mebibyte)
        try await fixture.run {
            let bucket = fixture.bucket
            _ = try await bucket.read("a")
            for code in [BucketError.Code.unavailable, .timedOut, .overloaded] {
                fixture.service.with { $0.fault = BucketError(code) }
                let answer = try await bucket.read("a")
                #expect(answer.outcome.result == .stale && answer.isRight(fixture.service))
            }
            await #expect(throws: BucketError.self) { try await bucket.read("a", mustAsk: true) }
            fixture.service.with { $0.fault = BucketError(.internal) }
            await #expect(throws: BucketError.self) { try await bucket.read("a") }
            fixture.service.with { $0.fault = BucketError(.unavailable) }
            fixture.clock.pass(seconds: 61)
            await #expect(throws: BucketError.self) { try await bucket.read("a") }
            fixture.service.with { $0.fault = nil }
            #expect(try await bucket.read("a").outcome.result == .validated)
        }
    }

    @Test("A stale version is called stale, even if the last bytes of it are still on their way")
    func staleFill() async throws {
        let fixture = await CacheFixture(.init(freshness: .validate, staleIfError: 60))
        let service = fixture.service
        service.put("a", mebibyte)
        service.with { $0.allowance = 0 }
        try await fixture.run {
            let bucket = fixture.bucket
            let first = Task(executorPreference: EventLoop.current!) { try await bucket.read("a") }
            await eventually { fixture.cache.report.fills == 1 }
            service.with { $0.fault = BucketError(.unavailable) }
            let second = Task(executorPreference: EventLoop.current!) { try await bucket.read("a") }
            await eventually { service.with { $0.stats } == 1 }
            service.allow(nil)
            let answer = try await second.value
            #expect(answer.isRight(service) && answer.outcome.result == .stale)
            #expect(answer.outcome.isForwarded && answer.outcome.isCollapsed)
            #expect(try await first.value.outcome.result == .miss)
        }
    }
}

/// Runs `body` with two loops.
func onTwoLoops(_ body: @escaping @Sendable ([EventLoop]) async throws -> Void) async throws {
    let loops = [try EventLoop(), try EventLoop()]
    let threads = loops.map { loop in startThread { loop.run() } }
    let outcome = await Task(executorPreference: loops[0]) { try await body(loops) }.result
    for loop in loops { loop.stop() }
    for thread in threads { pthread_join(thread, nil) }
    try outcome.get()
}
