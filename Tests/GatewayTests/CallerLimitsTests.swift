import Synchronization
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
    ) -> Configuration.CallerGroup {
        var group = Configuration.CallerGroup(name: name)
        group.requests = requests
        group.transfers = transfers
        group.bytesIn = bytesIn
        group.bytesOut = bytesOut
        return group
    }

    private func limits(_ groups: Configuration.CallerGroup...) -> CallerLimits {
        CallerLimits(groups) { [clock] in clock.now }
    }

    private func begin(
        _ limits: CallerLimits, _ caller: String, _ direction: CallerLimits.Direction = .none,
        of group: String = "ci"
    ) throws(CallerLimits.Refusal) -> CallerLease {
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

    @Test func requestsComeBackWithTime() throws {
        let limits = limits(group(requests: 3))
        for _ in 0..<3 { try begin(limits, "alice").end() }
        #expect(throws: CallerLimits.Refusal(limit: .requests, retryAfter: 1)) {
            try begin(limits, "alice")
        }
        // Others of the group have their own; so has who is of the same name elsewhere.
        try begin(limits, "bob").end()
        clock.advance(333_333_332)
        #expect(throws: CallerLimits.Refusal.self) { try begin(limits, "alice") }
        clock.advance(2)
        try begin(limits, "alice").end()
        #expect(throws: CallerLimits.Refusal.self) { try begin(limits, "alice") }
        // However long nobody asks, no more than a second's worth is there.
        clock.advance(3_600_000_000_000)
        for _ in 0..<3 { try begin(limits, "alice").end() }
        #expect(throws: CallerLimits.Refusal.self) { try begin(limits, "alice") }
    }

    @Test func transfersAreFreedOnceEach() throws {
        let limits = limits(group(transfers: 2))
        let first = try begin(limits, "alice")
        var second: CallerLease? = try begin(limits, "alice")
        #expect(second != nil)
        #expect(throws: CallerLimits.Refusal(limit: .transfers, retryAfter: 1)) {
            try begin(limits, "alice")
        }
        first.end()
        first.end()
        let third = try begin(limits, "alice")
        #expect(throws: CallerLimits.Refusal.self) { try begin(limits, "alice") }
        // Who forgets to end one ends it by letting it go.
        second = nil
        try begin(limits, "alice").end()
        third.end()
        for _ in 0..<10 { try begin(limits, "alice").end() }
    }

    @Test func aRefusedRequestUsesNothing() throws {
        let limits = limits(group(requests: 2, transfers: 1))
        let first = try begin(limits, "alice")
        for _ in 0..<100 {
            #expect(throws: CallerLimits.Refusal(limit: .transfers, retryAfter: 1)) {
                try begin(limits, "alice")
            }
        }
        first.end()
        try begin(limits, "alice").end()
        #expect(throws: CallerLimits.Refusal(limit: .requests, retryAfter: 1)) {
            try begin(limits, "alice")
        }
    }

    /// Who uses nothing is forgotten when there are too many; who does is not.
    @Test func manyCallersAreForgotten() throws {
        let limits = limits(group(requests: 1, transfers: 1))
        let kept = try begin(limits, "alice")
        for number in 0..<100_001 { try begin(limits, "n\(number)").end() }
        clock.advance(2_000_000_000)
        try begin(limits, "late").end()
        #expect(throws: CallerLimits.Refusal(limit: .transfers, retryAfter: 1)) {
            try begin(limits, "alice")
        }
        kept.end()
        try begin(limits, "alice").end()
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
        var generator = Seeded(rate)
        for _ in 0..<2000 {
            let wanted = Int.random(in: 1...65_536, using: &generator)
            let (count, wait) = bucket.take(wanted, rate, now)
            #expect((0...wanted).contains(count) && (count > 0) == (wait == 0))
            let back = Int.random(in: 0...count, using: &generator)
            if count > 0 { bucket.giveBack(back, rate) }
            taken += UInt64(count - back)
            now += wait > 0 ? wait : UInt64.random(in: 0...1_000_000, using: &generator)
        }
        // A second's worth at once, and the rate from then on; one more for what is rounded.
        let (high, low) = rate.multipliedFullWidth(by: now - start + Self.second)
        let allowed =
            high >= Self.second ? UInt64.max : Self.second.dividingFullWidth((high, low)).quotient
        #expect(taken <= allowed &+ 1 || allowed == .max)
        #expect(taken > 0)
    }

    @Test func smallPartsAreNoCheaper() {
        var bucket = TokenBucket()
        for _ in 0..<1000 { _ = bucket.take(1, 3_000_000_007, 10_000_000_000) }
        // At more than one each nanosecond a part costs a whole nanosecond.
        #expect(Self.second - bucket.left(10_000_000_000) == 1000)
    }

    @Test func givingBackMoreThanWasTakenGivesNoMoreThanAll() {
        var bucket = TokenBucket()
        bucket.giveBack(1 << 40, 1)
        #expect(bucket.left(0) == Self.second)
        #expect(bucket.take(10, 5, 0).count == 5)
        #expect(bucket.take(10, 5, 0) == (0, 200_000_000))
        #expect(bucket.take(10, 5, 199_999_990).count == 0)
        #expect(bucket.take(10, 5, 200_000_000).count == 1)
        #expect(bucket.left(.max) == Self.second)
    }

    @Test func whereNothingIsWantedNothingIsTaken() {
        var bucket = TokenBucket()
        #expect(bucket.take(0, 1, 100).count == 0)
        #expect(bucket.left(100) == Self.second)
        #expect(bucket.take(.max, .max, 100).count > 0)
    }
}
