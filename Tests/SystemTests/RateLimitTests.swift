import System
import Testing

/// A rate with a burst.
@Suite struct RateLimitTests {
    private static let second = TokenBucket.second

    /// 33 a second, taken from every 20 ms, are 33 a second: what remains between two takes is not lost.
    @Test(arguments: [UInt64(1_000), 999_999, 1_000_000, 20_000_000, 29_999_999])
    func losesNothingBetweenCalls(interval: UInt64) {
        var limit = RateLimit(burst: 100, perSecond: 33)
        let start = 5 * Self.second
        while limit.take(start) {}
        var now = start
        var taken = 0.0
        for _ in 0..<2 * Self.second / interval * (interval < 1_000_000 ? 1 : 50) {
            now += interval
            if limit.take(now) { taken += 1 }
        }
        let due = 33 * Double(now - start) / 1e9
        #expect(abs(taken - due) <= 1, "\(taken) of \(due)")
    }

    @Test func holdsItsBurst() {
        var limit = RateLimit(burst: 100, perSecond: 33)
        for now in [5 * Self.second, 1000 * Self.second] {
            var count = 0
            while limit.take(now) { count += 1 }
            #expect(count == 100)
        }
    }

    @Test func returnsTokens() {
        var limit = RateLimit(burst: 10, perSecond: 3)
        let now = 5 * Self.second
        while limit.take(now) {}
        limit.give(4)
        var count = 0
        while limit.take(now) { count += 1 }
        #expect(count == 4)
        limit.give(1000)
        while limit.take(now) { count += 1 }
        #expect(count == 14)
    }

    @Test func countsAtItsEnds() {
        var large = RateLimit(burst: 1_000_000, perSecond: 10_000_000)
        var count = 0
        while large.take(7) { count += 1 }
        #expect(count == 1_000_000)
        var slow = RateLimit(burst: 1, perSecond: 1)
        let first = slow.take(0)
        let (early, due) = (slow.take(999_999_999), slow.take(1_000_000_000))
        #expect(first && !early && due)
    }
}
