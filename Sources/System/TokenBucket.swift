/// A token bucket, stored in eight bytes as the time at which it will be full (the generic cell rate algorithm). It is
/// exact however short the time between calls is.
package struct TokenBucket: Sendable {
    /// Nanoseconds.
    package static let second: UInt64 = 1_000_000_000
    private var fullAt: UInt64 = 0

    /// A full bucket.
    package init() {}

    /// Whether the bucket is full.
    package func isFull(_ now: UInt64) -> Bool { fullAt <= now }

    /// The nanoseconds until a bucket with the capacity of one second has tokens.
    package func wait(_ now: UInt64) -> UInt64 {
        let missing = fullAt > now ? fullAt - now : 0
        return missing > TokenBucket.second ? missing - TokenBucket.second : 0
    }

    /// Takes a token, if available, from a bucket with `rate` new tokens per second and the capacity `burst`, by
    /// default the tokens of one second.
    package mutating func take(_ rate: UInt64, burst: UInt64? = nil, _ now: UInt64) -> Bool {
        // The interval is rounded up, up to a nanosecond per token. Uncorrected, the last token would be missing.
        let interval = TokenBucket.interval(rate)
        let next = max(fullAt, now) + interval
        guard next - now <= interval * (burst ?? rate) else { return false }
        fullAt = next
        return true
    }

    /// Reserves `count` tokens, at most 2^33, of a bucket with `rate` new tokens per second, in the order of the calls.
    /// - Returns: The nanoseconds until the tokens are available.
    package mutating func reserve(_ count: Int, _ rate: UInt64, _ now: UInt64) -> UInt64 {
        // Rounded up: many small reservations must not be cheaper than a large one.
        let cost = cost(count, rate)
        fullAt = max(fullAt, now) + cost.quotient + (cost.hasRest ? 1 : 0)
        return wait(now)
    }

    /// Returns tokens that ``reserve(_:_:_:)`` took. Rounded down, so that returning gains nothing.
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

    /// The nanoseconds between two tokens, rounded up.
    private static func interval(_ rate: UInt64) -> UInt64 { (second + rate - 1) / rate }

    /// The nanoseconds that `count` tokens take, rounded down, and whether there was a rest.
    private func cost(_ count: Int, _ rate: UInt64) -> (quotient: UInt64, hasRest: Bool) {
        let (quotient, rest) = rate.dividingFullWidth(UInt64(count).multipliedFullWidth(by: TokenBucket.second))
        return (quotient, rest > 0)
    }
}

/// A token bucket with its rate and capacity.
package struct RateLimit: Sendable {
    private var bucket = TokenBucket()
    private let rate: UInt64
    private let burst: UInt64

    /// - Parameter burst: The capacity.
    /// - Parameter rate: The number of new tokens per second; not 0.
    package init(burst: Int, perSecond rate: Int) {
        self.rate = UInt64(rate)
        self.burst = UInt64(burst)
    }

    /// Takes a token if available.
    package mutating func take(_ now: UInt64) -> Bool { bucket.take(rate, burst: burst, now) }

    /// Returns `count` taken tokens.
    package mutating func give(_ count: Int) { bucket.giveBack(taken: UInt64(count), rate) }
}
