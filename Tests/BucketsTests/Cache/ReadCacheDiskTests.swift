import BucketConformance
import Glibc
import Synchronization
import System
import TestSupport
import Testing

@testable import Buckets

private let mebibyte = 1 << 20

@Suite("The disk of the read cache", .timeLimit(.minutes(5)))
struct ReadCacheDiskTests {
    @Test("Small objects are in memory after their second read, as far as a quarter of the table's half holds them")
    func memory() async throws {
        var options = CacheFixture.Options()
        options.metadata = 64 << 10
        let fixture = await CacheFixture(options)
        let names = ["a", "b", "c", "larger"]
        for name in names { fixture.service.put(name, name == "larger" ? 4097 : 4096) }
        try await fixture.run {
            for _ in 0..<2 {
                for name in names { #expect(try await fixture.bucket.read(name).isRight(fixture.service)) }
            }
            for page in 1...4 { fixture.damage(page * 4096..<mebibyte) }
            for name in names {
                let read = try await fixture.bucket.read(name)
                #expect(read.isRight(fixture.service))
            }
            // "a" and "b" were in memory.
            #expect(fixture.service.with { [$0.opens, $0.pinned] } == [4, 2])
            fixture.service.put("a", 4095)
            #expect(fixture.cache.forget(bucket: "b", name: "a"))
            let new = try await fixture.bucket.read("a")
            #expect(new.metadata.size == 4095 && new.isRight(fixture.service))
            #expect(try await fixture.bucket.read("b").isRight(fixture.service))
            #expect(fixture.service.with { [$0.opens, $0.pinned] } == [5, 2])
        }
    }

    @Test("A damaged byte is not sent: the slice is fetched again")
    func damage() async throws {
        for isRestarted in [false, true] {
            for size in [10_000, 200_000, 3 * mebibyte] {
                let fixture = await CacheFixture()
                fixture.service.put("a", size)
                try await fixture.run { _ = try await fixture.bucket.read("a") }
                if isRestarted {
                    await fixture.restart()
                    await eventually { fixture.cache.report.slices > 0 }
                }
                fixture.damage()
                let sent = fixture.service.with { $0.sent }
                try await fixture.run {
                    for round in 0..<2 {
                        let answer = try await fixture.bucket.read("a", .from(1, through: nil))
                        #expect(answer.isRight(fixture.service), "\(size), round \(round)")
                    }
                    #expect(try await fixture.bucket.read("a").isRight(fixture.service))
                }
                #expect(fixture.service.with { $0.sent } - sent == min(size, mebibyte))
                #expect(fixture.cache.report.evicted.contains { $0 == ("damaged", 1) })
            }
        }
    }

    @Test("Another cache on the same directory has its bytes, also after a purge")
    func restart() async throws {
        let fixture = await CacheFixture()
        for index in 0..<5 { fixture.service.put("a\(index)", 600_000 * index + 70_000) }
        try await fixture.run {
            for index in 0..<5 { _ = try await fixture.bucket.read("a\(index)") }
        }
        let (sent, slices) = (fixture.service.with { $0.sent }, fixture.cache.report.slices)
        await fixture.restart()
        await eventually { fixture.cache.report.slices == slices }
        try await fixture.run {
            for index in 0..<5 {
                let answer = try await fixture.bucket.read("a\(index)")
                #expect(answer.isRight(fixture.service))
            }
        }
        #expect(fixture.service.with { $0.sent } == sent)
        try await fixture.run { () async throws in
            await fixture.cache.purge()
            #expect(fixture.cache.report.slices == 0)
            #expect(try await fixture.bucket.read("a4").isRight(fixture.service))
        }
        #expect(fixture.service.with { $0.sent } == sent + 2_470_000)
        await fixture.stop()
    }

    @Test("Reads succeed when nothing can be written", arguments: [ENOSPC, EIO], [0, 1, 3, 6])
    func fault(_ code: Int32, _ writes: Int) async throws {
        let fixture = await CacheFixture()
        for index in 0..<4 { fixture.service.put("a\(index)", 2 * mebibyte + 100) }
        fixture.faults.most.store(100_000, ordering: .relaxed)
        fixture.faults.remaining.store(writes, ordering: .relaxed)
        fixture.faults.write.store(code, ordering: .relaxed)
        try await fixture.run {
            for index in 0..<3 {
                #expect(try await fixture.bucket.read("a\(index)").isRight(fixture.service))
            }
            #expect(fixture.cache.report.state == (code == EIO ? .broken : .full))
            fixture.faults.stop()
            fixture.clock.pass(seconds: 61)
            #expect(try await fixture.bucket.read("a0").isRight(fixture.service))
            await eventually { fixture.cache.report.state == .open }
            fixture.faults.allocate.store(code, ordering: .relaxed)
            #expect(try await fixture.bucket.read("a3").isRight(fixture.service))
            fixture.faults.stop()
            fixture.clock.pass(seconds: 61)
            #expect(try await fixture.bucket.read("a2").isRight(fixture.service))
            await eventually { fixture.cache.report.state == .open }
            for index in 0..<8 {
                let answer = try await fixture.bucket.read("a\(index % 4)")
                #expect(answer.isRight(fixture.service))
                if index > 3 { #expect(answer.outcome.result == .hit) }
            }
        }
        await fixture.stop()
    }

    @Test("The size holds with many evictions")
    func evictions() async throws {
        let fixture = await CacheFixture(.init(size: 16 << 20))
        for index in 0..<40 { fixture.service.put("a\(index)", 500_000 + 50_000 * index) }
        try await fixture.run { () async throws in
            var generator = SeededGenerator(3)
            for _ in 0..<300 {
                let index = Int.random(in: 0..<40, using: &generator) * Int.random(in: 0..<40, using: &generator) / 40
                #expect(try await fixture.bucket.read("a\(index)").isRight(fixture.service))
                #expect(fixture.cache.report.size <= 18 << 20)
            }
        }
        #expect(fixture.cache.report.evicted.contains { $0.0 == "size" && $0.1 > 50 })
        await eventually { fixture.cache.report.size <= 16 << 20 }
        let use = fixture.segments.count
        #expect(use * 2 * mebibyte == fixture.cache.report.size)
        await fixture.stop()
    }

    @Test("Wrong bytes of the service are not kept")
    func wrongBytes() async throws {
        let fixture = await CacheFixture()
        fixture.service.put("a", 3 * mebibyte)
        try await fixture.run {
            fixture.service.with { ($0.wrongBodies, $0.noticesWrongBytes) = (1, true) }
            await #expect(throws: BucketError.self) { try await fixture.bucket.read("a") }
            #expect(try await fixture.bucket.read("a").isRight(fixture.service))
            // Not noticed in a range, but when the whole is read.
            fixture.service.put("b", 3 * mebibyte)
            _ = try await fixture.bucket.stat("b", mustAsk: false)
            fixture.service.with { ($0.wrongBodies, $0.noticesWrongBytes) = (1, false) }
            _ = try await fixture.bucket.read("b", .suffix(100))
            var failures = 0
            for _ in 0..<3 {
                do {
                    #expect(try await fixture.bucket.read("b").isRight(fixture.service))
                } catch { failures += 1 }
            }
            #expect(failures <= 1)
        }
    }
}
