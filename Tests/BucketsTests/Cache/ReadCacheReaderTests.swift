import BucketConformance
import Glibc
import Synchronization
import System
import TestSupport
import Testing

@testable import Buckets

private let mebibyte = 1 << 20

@Suite("The readers of the read cache", .timeLimit(.minutes(5)))
struct ReadCacheReaderTests {
    @Test("Nothing stays of readers that leave", arguments: [0, 1, 65_536, 1_000_000, 2_000_000])
    func leave(_ limit: Int) async throws {
        let fixture = await CacheFixture()
        fixture.service.put("a", 4 * mebibyte)
        fixture.service.with { ($0.piece, $0.isSlow) = (50_000, true) }
        try await fixture.run {
            // Opened, but not read.
            let opened = try await fixture.bucket.open("a", ReadPlan(), mustAsk: false)
            opened.reader.close()
            await fixture.settled()
            // With a source that is not read.
            let read = try await fixture.bucket.open("a", ReadPlan(), mustAsk: false)
            try await read.reader.bytes(0..<4_194_304).close()
            await fixture.settled()
            _ = try await fixture.bucket.read("a", limit: limit)
            await fixture.settled()
            // Two, one of which leaves.
            async let left = fixture.bucket.read("a", limit: limit)
            async let stays = fixture.bucket.read("a")
            #expect(try await stays.isRight(fixture.service))
            _ = try await left
        }
        await fixture.stop()
    }

    @Test("A request that is cancelled while the service is asked leaves nothing", arguments: [true, false])
    func cancelled(_ isFirst: Bool) async throws {
        let fixture = await CacheFixture()
        let service = fixture.service
        service.put("a", 4 * mebibyte)
        service.with { $0.allowance = 0 }
        try await fixture.run {
            if !isFirst { _ = try await fixture.bucket.stat("a", mustAsk: false) }
            let task = Task(executorPreference: EventLoop.current!) { try await fixture.bucket.read("a", limit: 10) }
            await eventually { service.with { $0.opens + $0.pinned } == 1 }
            let other = Task(executorPreference: EventLoop.current!) { try await fixture.bucket.read("a") }
            task.cancel()
            service.allow(nil)
            _ = await task.result
            #expect(try await other.value.isRight(service))
        }
    }

    @Test("A slow reader does not hold the service's connection, and a fast one does not wait for it")
    func slow() async throws {
        let (fixture, gate) = (await CacheFixture(), CacheGate())
        let service = fixture.service
        service.put("a", 20 * mebibyte)
        try await fixture.run { () async throws in
            let slow = Task(executorPreference: EventLoop.current!) {
                try await fixture.bucket.read("a") { count in
                    if count == 0 { await gate.wait() }
                }
            }
            await eventually { service.with { $0.opens == 1 && $0.open == 0 } }
            #expect(service.with { $0.sent } <= 11 * mebibyte)
            gate.open()
            #expect(try await fixture.bucket.read("a").isRight(service))
            #expect(try await slow.value.isRight(service))
        }
        #expect(service.with { $0.sent } == 20 * mebibyte)
    }

    @Test("A body that breaks off is continued by another request")
    func cut() async throws {
        for cut in [0, 1, 100_000, 1_500_000, 3_000_000] {
            let fixture = await CacheFixture()
            fixture.service.put("a", 3 * mebibyte)
            fixture.service.with { $0.cuts = [cut] }
            try await fixture.run { () async throws in
                #expect(try await fixture.bucket.read("a").isRight(fixture.service))
                fixture.service.with { $0.cuts = [] }
                #expect(try await fixture.bucket.read("a").isRight(fixture.service))
            }
        }
    }

    @Test("Forgotten names are asked for again; their bytes stay")
    func forget() async throws {
        let fixture = await CacheFixture()
        fixture.service.put("a", mebibyte)
        try await fixture.run {
            _ = try await fixture.bucket.read("a")
            #expect(fixture.cache.forget(bucket: "b", name: "a") && !fixture.cache.forget(bucket: "c", name: nil))
            _ = try await fixture.bucket.stat("a", mustAsk: false)
            #expect(fixture.service.with { [$0.stats, $0.opens] } == [1, 1])
            #expect(fixture.cache.forget(bucket: "b", name: nil))
            #expect(try await fixture.bucket.read("a").isRight(fixture.service))
            #expect(fixture.cache.report.slices == 1)
        }
    }

    @Test("No more fills than allowed, and objects are kept at their second use if so configured")
    func admission() async throws {
        let fixture = await CacheFixture(.init(fills: 1, minimumUses: 2))
        fixture.service.put("a", mebibyte)
        fixture.service.put("b", mebibyte)
        try await fixture.run {
            for (round, slices) in [0, 1, 1].enumerated() {
                let answer = try await fixture.bucket.read("a")
                #expect(answer.isRight(fixture.service) && answer.outcome.isStored == (round == 1))
                #expect(fixture.cache.report.slices == slices)
            }
            _ = try await fixture.bucket.read("b", limit: 1)
            let held = try await fixture.bucket.open("b", ReadPlan(), mustAsk: false)
            fixture.service.put("c", mebibyte)
            for _ in 0..<3 { #expect(try await fixture.bucket.read("c").isRight(fixture.service)) }
            #expect(fixture.cache.report.fills <= 1)
            held.reader.close()
        }
    }
}
