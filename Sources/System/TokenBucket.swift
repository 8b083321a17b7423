/// A token bucket, kept as the moment at which it will be full again (the generic cell rate algorithm): eight bytes, and
/// nothing is lost between two takes however short the time between them is.
package struct TokenBucket: Sendable {
    /// Nanoseconds.
    package static let second: UInt64 = 1_000_000_000
    private var fullAt: UInt64 = 0

    /// A full bucket.
    package init() {}

    /// Whether nothing is missing.
    package func isFull(_ now: UInt64) -> Bool { fullAt <= now }

    /// In how many nanoseconds there will be anything in a bucket that holds a second's worth.
    package func wait(_ now: UInt64) -> UInt64 {
        let missing = fullAt > now ? fullAt - now : 0
        return missing > TokenBucket.second ? missing - TokenBucket.second : 0
    }

    /// Takes one of a bucket that holds `burst` and gets `rate` a second, if there is one.
    /// - Parameter burst: A second's worth by default.
    package mutating func take(_ rate: UInt64, burst: UInt64? = nil, _ now: UInt64) -> Bool {
        // Each costs up to a nanosecond too much; together they must not cost the last of them.
        let interval = TokenBucket.interval(rate)
        let next = max(fullAt, now) + interval
        guard next - now <= interval * (burst ?? rate) else { return false }
        fullAt = next
        return true
    }

    /// Takes `count` of a bucket that gets `rate` a second, and says in how many nanoseconds they will be there: each
    /// who takes comes after those before.
    /// - Parameter count: At most 2^33.
    package mutating func reserve(_ count: Int, _ rate: UInt64, _ now: UInt64) -> UInt64 {
        // Rounded up: many small parts must not come cheaper than a large one.
        let cost = cost(count, rate)
        fullAt = max(fullAt, now) + cost.quotient + (cost.hasRest ? 1 : 0)
        return wait(now)
    }

    /// Gives back what ``reserve(_:_:_:)`` took. Rounded down: who gives back must not gain.
    package mutating func giveBack(_ count: Int, _ rate: UInt64) {
        giveBack(nanoseconds: cost(count, rate).quotient)
    }

    /// Returns `count` tokens that ``take(_:burst:_:)`` took.
    package mutating func giveBack(taken count: UInt64, _ rate: UInt64) {
        giveBack(nanoseconds: count * TokenBucket.interval(rate))
    }

    private mutating func giveBack(nanoseconds: UInt64) {
        fullAt = fullAt > nanoseconds ? fullAt - nanoseconds : 0
    }

    /// Nanoseconds from one to the next, rounded up.
    private static func interval(_ rate: UInt64) -> UInt64 { (second + rate - 1) / rate }

    /// Nanoseconds, and whether there is a rest.
    private func cost(_ count: Int, _ rate: UInt64) -> (quotient: UInt64, hasRest: Bool) {
        let (quotient, rest) = rate.dividingFullWidth(
            UInt64(count).multipliedFullWidth(by: TokenBucket.second))
        return (quotient, rest > 0)
    }
}

/// A token bucket with its rate and its size.
package struct RateLimit: Sendable {
    private var bucket = TokenBucket()
    private let rate: UInt64
    private let burst: UInt64

    /// - Parameters:
    ///   - burst: How many may be taken at once.
    ///   - rate: How many come back each second; not 0.
    package init(burst: Int, perSecond rate: Int) {
        self.rate = UInt64(rate)
        self.burst = UInt64(burst)
    }

    /// Takes one, if there is one.
    package mutating func take(_ now: UInt64) -> Bool { bucket.take(rate, burst: burst, now) }

    /// Returns `count` tokens that were taken.
    package mutating func give(_ count: Int) { bucket.giveBack(taken: UInt64(count), rate) }
}
