import HTTPServer
import Synchronization
import System
import TestSupport
import Testing

@testable import Gateway

/// A clock that only the test moves, in nanoseconds.
private final class Clock: Sendable {
    private let value: Atomic<UInt64>

    init(_ start: UInt64 = 1_000_000_000_000) { value = Atomic(start) }

    var now: UInt64 { value.load(ordering: .relaxed) }

    func advance(_ nanoseconds: UInt64) { value.add(nanoseconds, ordering: .relaxed) }
}

/// What one caller may use, by an injected clock.
@Suite struct CallerLimitsTests {
    private let clock = Clock()

    private func group(
        _ name: String = "ci", requests: Int = 0, transfers: Int = 0, bytesIn: UInt64 = 0,
        bytesOut: UInt64 = 0
    ) -> CallerGroup {
        var group = CallerGroup(name: name)
        group.requests = requests
        group.transfers = transfers
        group.bytesIn = bytesIn
        group.bytesOut = bytesOut
        return group
    }

    private func limits(_ groups: CallerGroup...) -> CallerLimits {
        CallerLimits(groups) { [clock] in clock.now }
    }

    private func begin(
        _ limits: CallerLimits, _ caller: String, _ direction: CallerLimits.Direction = .none,
        of group: String = "ci"
    ) throws(CallerLimits.LimitExceeded) -> CallerLease {
        try limits.begin(
            .init(group: group, caller: caller), limits.limits(of: group)!, direction)
    }

    @Test func aGroupHasItsLimitsOrTheDefault() {
        let both = limits(group("default", requests: 1), group("ci", requests: 2))
        #expect(both.limits(of: "ci")?.requests == 2)
        #expect(both.limits(of: "anonymous")?.requests == 1)
        #expect(limits(group("ci")).limits(of: "anonymous") == nil)
        #expect(CallerLimits([]).limits(of: "ci") == nil)
    }

    @Test func requestsAreReplenished() throws {
        let limits = limits(group(requests: 3))
        for _ in 0..<3 { try begin(limits, "alice").end() }
        #expect(throws: CallerLimits.LimitExceeded(limit: .requests, retryAfter: 1)) {
            try begin(limits, "alice")
        }
        // Others of the group have their own; so has who is of the same name elsewhere.
        try begin(limits, "bob").end()
        clock.advance(333_333_332)
        #expect(throws: CallerLimits.LimitExceeded.self) { try begin(limits, "alice") }
        clock.advance(2)
        try begin(limits, "alice").end()
        #expect(throws: CallerLimits.LimitExceeded.self) { try begin(limits, "alice") }
        // However long nobody asks, no more than a second's worth is there.
        clock.advance(3_600_000_000_000)
        for _ in 0..<3 { try begin(limits, "alice").end() }
        #expect(throws: CallerLimits.LimitExceeded.self) { try begin(limits, "alice") }
    }

    @Test func transfersAreFreedOnceEach() throws {
        let limits = limits(group(transfers: 2))
        let first = try begin(limits, "alice")
        var second: CallerLease? = try begin(limits, "alice")
        #expect(second != nil)
        #expect(throws: CallerLimits.LimitExceeded(limit: .transfers, retryAfter: 1)) {
            try begin(limits, "alice")
        }
        first.end()
        first.end()
        let third = try begin(limits, "alice")
        #expect(throws: CallerLimits.LimitExceeded.self) { try begin(limits, "alice") }
        // Who forgets to end one ends it by letting it go.
        second = nil
        try begin(limits, "alice").end()
        third.end()
        for _ in 0..<10 { try begin(limits, "alice").end() }
    }

    @Test func aRejectedRequestUsesNothing() throws {
        let limits = limits(group(requests: 2, transfers: 1))
        let first = try begin(limits, "alice")
        for _ in 0..<100 {
            #expect(throws: CallerLimits.LimitExceeded(limit: .transfers, retryAfter: 1)) {
                try begin(limits, "alice")
            }
        }
        first.end()
        try begin(limits, "alice").end()
        #expect(throws: CallerLimits.LimitExceeded(limit: .requests, retryAfter: 1)) {
            try begin(limits, "alice")
        }
    }

    /// Bodies take turns; another request is refused only where a second's worth of turns is taken already.
    @Test func bytesAreServedInOrder() throws {
        let limits = limits(group(bytesIn: 1000, bytesOut: 1000))
        let first = try begin(limits, "alice", .outgoing)
        let second = try begin(limits, "alice", .outgoing)
        #expect(limits.reserve(1000, first) == 0 && limits.reserve(500, first) == 500_000_000)
        #expect(limits.reserve(500, second) == 1_000_000_000)
        // It is not too late for another, and the other direction and the other caller know nothing of it.
        let third = try begin(limits, "alice", .outgoing)
        #expect(limits.reserve(700, third) == 1_700_000_000)
        #expect(limits.reserve(1, try begin(limits, "alice", .incoming)) == 0)
        #expect(limits.reserve(1, try begin(limits, "bob", .outgoing)) == 0)
        #expect(throws: CallerLimits.LimitExceeded(limit: .bytesOut, retryAfter: 2)) {
            try begin(limits, "alice", .outgoing)
        }
        _ = try begin(limits, "alice", .none)
        limits.giveBack(700, third)
        _ = try begin(limits, "alice", .outgoing)
    }

    /// Who goes away gives back what has had a turn and did not move.
    @Test func aBodyThatEndsEarlyReturnsItsBytes() throws {
        let limits = limits(group(bytesOut: 1000))
        let (lease, other) = (
            try begin(limits, "alice", .outgoing), try begin(limits, "alice", .outgoing)
        )
        guard
            case .source(let source, 4000) = lease.pacing(.bytes(Array(repeating: 7, count: 4000)))
        else {
            Issue.record("not paced")
            return
        }
        var buffer = [UInt8](repeating: 0, count: 4000)
        func read() throws -> SourceRead {
            try buffer.withUnsafeMutableBytes { raw in
                var bytes = raw.mutableBytes
                return try source.read(into: &bytes)
            }
        }
        #expect(try read() == .bytes(1000))
        #expect(try read() == .wait)
        #expect(limits.reserve(1, other) == 1_001_000_000)
        source.close()
        #expect(limits.reserve(1, other) == 2_000_000)
    }

    @Test(arguments: [
        ("192.0.2.7:80", "192.0.2.7"), ("[::ffff:192.0.2.7]:80", "192.0.2.7"),
        ("[2001:db8:1:2:3:4:5:6]:80", "20010db800010002"),
        ("[2001:db8:1:2::9]:1", "20010db800010002"),
        ("[2001:db8:1:3::9]:1", "20010db800010003"), ("[::1]:80", "0000000000000000"),
        ("odd", "odd"),
    ])
    func ipv6IsKeyedByNetwork(_ peer: String, _ expected: String) {
        #expect(CallerLimits.network(of: peer) == expected)
    }

    /// Who uses nothing is forgotten when there are too many; who does is not.
    @Test func idleCallersAreForgotten() throws {
        let limits = limits(group(requests: 1, transfers: 1))
        let kept = try begin(limits, "alice")
        for number in 1..<CallerLimits.maximumCallers { try begin(limits, "n\(number)").end() }
        #expect(limits.count == CallerLimits.maximumCallers)
        clock.advance(2_000_000_000)
        try begin(limits, "late").end()
        #expect(limits.count == 2)
        #expect(throws: CallerLimits.LimitExceeded(limit: .transfers, retryAfter: 1)) {
            try begin(limits, "alice")
        }
        kept.end()
        try begin(limits, "alice").end()
    }
}

/// More active callers than are counted.
extension CallerLimitsTests {
    @Test func activeCallersBeyondTheBoundShareALimit() throws {
        let limits = limits(group(requests: 2), group("other", requests: 1))
        for number in 0..<CallerLimits.maximumCallers { try begin(limits, "n\(number)").end() }
        for number in 0..<2 { try begin(limits, "late\(number)").end() }
        #expect(throws: CallerLimits.LimitExceeded(limit: .requests, retryAfter: 1)) {
            try begin(limits, "late2")
        }
        // Those who are counted already keep their own limit, and another group has one of its own.
        try begin(limits, "n0").end()
        try begin(limits, "late", of: "other").end()
        #expect(limits.count == CallerLimits.maximumCallers + 2)
        clock.advance(2_000_000_000)
        for number in 0..<3 { try begin(limits, "late\(number)").end() }
        #expect(limits.count == 3)
    }
}

/// The arithmetic of what is left, at its ends.
@Suite struct TokenBucketTests {
    private static let second = TokenBucket.second

    @Test(arguments: [
        UInt64(1), 2, 3, 7, 999_999_999, 1_000_000_000, 1_000_000_001, 1 << 40,
        .max / 1_000_000_000,
        .max,
    ])
    func neverMoreThanTheRate(_ rate: UInt64) {
        var bucket = TokenBucket()
        var now: UInt64 = 5_000_000_000_000
        let start = now
        var taken: UInt64 = 0
        var generator = SeededGenerator(rate)
        for _ in 0..<2000 {
            let wanted = Int.random(in: 1...65_536, using: &generator)
            let wait = bucket.reserve(wanted, rate, now)
            #expect(bucket.wait(now) == wait)
            let back = Int.random(in: 0...wanted, using: &generator)
            bucket.giveBack(back, rate)
            taken += UInt64(wanted - back)
            now += wait > 0 ? wait : UInt64.random(in: 0...1_000_000, using: &generator)
        }
        // A second's worth at once, and the rate from then on; one more for what is rounded.
        let (high, low) = rate.multipliedFullWidth(by: now - start + Self.second)
        let allowed =
            high >= Self.second ? UInt64.max : Self.second.dividingFullWidth((high, low)).quotient
        #expect(taken <= allowed &+ 1 || allowed == .max)
        #expect(taken > 0)
    }

    @Test(arguments: [UInt64(1), 2, 3, 7, 999, 29_999, 333_333, 999_999, 1_000_000])
    func aBurstIsOneSecondOfRequests(_ rate: UInt64) {
        var bucket = TokenBucket()
        for now: UInt64 in [1_000_000_000_000, 2_000_000_000_000] {
            var count: UInt64 = 0
            while bucket.take(rate, now) { count += 1 }
            #expect(count == rate)
            let (early, due) = (
                bucket.take(rate, now + Self.second / rate - 1),
                bucket.take(rate, now + Self.second / rate + 2)
            )
            #expect(!early && due)
        }
    }

    @Test func smallReservationsAreNotCheaper() {
        var bucket = TokenBucket()
        let now = 10 * Self.second
        for _ in 0..<1000 { _ = bucket.reserve(1, 3_000_000_007, now) }
        // At more than one each nanosecond a part costs a whole nanosecond.
        #expect(!bucket.isFull(now + 999) && bucket.isFull(now + 1000))
    }

    @Test func reservationsAreServedInOrder() {
        var bucket = TokenBucket()
        bucket.giveBack(1 << 20, 1)
        #expect(bucket.isFull(0))
        let waits = [5, 1, 1].map { bucket.reserve($0, 5, 0) }
        #expect(waits == [0, 200_000_000, 400_000_000])
        #expect(bucket.wait(100_000_000) == 300_000_000)
        // Who does not come any more makes room.
        bucket.giveBack(1, 5)
        #expect(bucket.wait(100_000_000) == 100_000_000 && bucket.wait(.max) == 0)
    }
}
