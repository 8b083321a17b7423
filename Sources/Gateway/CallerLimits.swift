import EventLoop

/// What each caller may use: requests and bytes each second, and requests at once.
///
/// Callers are counted one by one, those without an identity by their address. What may be used in a second may be used
/// at once; a body that has used it up goes on as fast as it may, and a request that finds nearly nothing left is
/// refused.
public final class CallerLimits: Sendable {
    /// Who is counted.
    struct Key: Hashable, Sendable {
        var group: String
        /// The uid, or the address without its port.
        var caller: String
    }
    /// What a body moves.
    enum Direction: Sendable { case none, incoming, outgoing }
    /// Which limit refuses a request.
    enum Limit: String, CaseIterable, Sendable {
        case requests, transfers
        case bytesIn = "bytes_in"
        case bytesOut = "bytes_out"
    }
    /// A refusal, and in how many seconds it may be another answer.
    struct Refusal: Error, Equatable {
        var limit: Limit
        var retryAfter: Int
    }

    /// The name of the limits of every group that has none of its own.
    private static let otherwise = "default"
    /// Callers that are remembered; over it those that use nothing are forgotten.
    private static let maximumCallers = 100_000
    /// What must be left of a second's bytes for another request: a tenth.
    private static let reserve: UInt64 = TokenBucket.second / 10
    private let groups: [String: Configuration.CallerGroup]
    private let callers = Lock([Key: Usage]())
    private let clock: @Sendable () -> UInt64

    /// - Parameters:
    ///   - groups: Limits of groups; nobody else has any.
    ///   - clock: Nanoseconds.
    public init(
        _ groups: [Configuration.CallerGroup],
        clock: @escaping @Sendable () -> UInt64 = EventLoop.monotonicNow
    ) {
        self.groups = Dictionary(groups.map { ($0.name, $0) }) { _, last in last }
        self.clock = clock
    }

    /// The limits of a group; nil where it has none.
    func limits(of group: String) -> Configuration.CallerGroup? {
        groups.isEmpty ? nil : groups[group] ?? groups[CallerLimits.otherwise]
    }

    /// Counts a request until ``CallerLease/end()``.
    /// - Throws: ``Refusal``.
    func begin(_ key: Key, _ limits: Configuration.CallerGroup, _ direction: Direction)
        throws(Refusal) -> CallerLease
    {
        let now = clock()
        try callers.withLock { (callers) throws(Refusal) in
            if callers[key] == nil, callers.count >= CallerLimits.maximumCallers {
                callers = callers.filter { !$0.value.isIdle(now) }
            }
            try callers[key, default: Usage()].begin(limits, direction, now)
        }
        let rate =
            switch direction {
            case .none: UInt64(0)
            case .incoming: limits.bytesIn
            case .outgoing: limits.bytesOut
            }
        return CallerLease(self, key, rate, direction)
    }

    /// Takes at most `wanted` bytes, or says in how many nanoseconds there will be some.
    fileprivate func take(_ wanted: Int, _ lease: CallerLease) -> (count: Int, wait: UInt64) {
        let now = clock()
        return callers.withLock { callers in
            callers[lease.key, default: Usage()].bytes[lease.direction == .incoming ? 0 : 1]
                .take(wanted, lease.rate, now)
        }
    }

    /// Gives back what was taken and not used.
    fileprivate func giveBack(_ count: Int, _ lease: CallerLease) {
        callers.withLock { callers in
            callers[lease.key]?.bytes[lease.direction == .incoming ? 0 : 1]
                .giveBack(count, lease.rate)
        }
    }

    fileprivate func end(_ lease: CallerLease) {
        callers.withLock { $0[lease.key]?.transfers -= 1 }
    }

    /// What one caller uses.
    private struct Usage {
        var transfers = 0
        private var requests = TokenBucket()
        /// In and out.
        var bytes: [2 of TokenBucket] = [TokenBucket(), TokenBucket()]

        mutating func begin(
            _ limits: Configuration.CallerGroup, _ direction: Direction, _ now: UInt64
        ) throws(Refusal) {
            if limits.transfers > 0, transfers >= limits.transfers {
                throw Refusal(limit: .transfers, retryAfter: 1)
            }
            if direction == .incoming, limits.bytesIn > 0 {
                try require(bytes[0].left(now) >= reserve, .bytesIn)
            }
            if direction == .outgoing, limits.bytesOut > 0 {
                try require(bytes[1].left(now) >= reserve, .bytesOut)
            }
            if limits.requests > 0 {
                try require(requests.take(1, UInt64(limits.requests), now).count == 1, .requests)
            }
            transfers += 1
        }

        private func require(_ holds: Bool, _ limit: Limit) throws(Refusal) {
            if !holds { throw Refusal(limit: limit, retryAfter: 1) }
        }

        func isIdle(_ now: UInt64) -> Bool {
            transfers == 0
                && [requests, bytes[0], bytes[1]].allSatisfy { $0.left(now) == TokenBucket.second }
        }
    }
}

/// A token bucket that holds a second's worth, as the moment at which it will be full again ("generic cell rate").
struct TokenBucket {
    static let second: UInt64 = 1_000_000_000
    /// A rate at which a nanosecond for each that is taken in a second would not yet make one more of them.
    private static let fewest: UInt64 = 30_000
    private var fullAt: UInt64 = 0

    /// How much of a second's worth there is, in nanoseconds.
    func left(_ now: UInt64) -> UInt64 {
        let missing = fullAt > now ? fullAt - now : 0
        return missing < TokenBucket.second ? TokenBucket.second - missing : 0
    }

    /// Takes at most `wanted` of a bucket that gets `rate` a second; where there is none, says in how many nanoseconds
    /// there will be.
    mutating func take(_ wanted: Int, _ rate: UInt64, _ now: UInt64) -> (count: Int, wait: UInt64) {
        let left = left(now)
        // Each of a few costs up to a nanosecond too much; together they must not cost the last of them.
        let fair = left + (rate < TokenBucket.fewest ? rate : 0)
        let (high, low) = fair.multipliedFullWidth(by: rate)
        let there =
            high < TokenBucket.second
            ? Int(clamping: TokenBucket.second.dividingFullWidth((high, low)).quotient) : .max
        let count = min(wanted, there)
        guard count > 0 else {
            let cost = max(1, TokenBucket.second / rate)
            return (0, cost > left ? cost - left : 1)
        }
        // Rounded up: many small parts must not come cheaper than a large one.
        let cost = cost(count, rate)
        fullAt = max(fullAt, now) + cost.quotient + (cost.hasRest ? 1 : 0)
        return (count, 0)
    }

    /// Rounded down: who gives back must not gain.
    mutating func giveBack(_ count: Int, _ rate: UInt64) {
        let cost = cost(count, rate).quotient
        fullAt = fullAt > cost ? fullAt - cost : 0
    }

    /// Nanoseconds, and whether there is a rest.
    private func cost(_ count: Int, _ rate: UInt64) -> (quotient: UInt64, hasRest: Bool) {
        let (high, low) = UInt64(count).multipliedFullWidth(by: TokenBucket.second)
        guard high < rate else { return (.max, false) }
        let (quotient, rest) = rate.dividingFullWidth((high, low))
        return (quotient, rest > 0)
    }
}

/// What one request of a caller with limits uses. Confined to its loop.
final class CallerLease {
    let key: CallerLimits.Key
    /// Bytes each second; 0 is no limit.
    fileprivate let rate: UInt64
    fileprivate let direction: CallerLimits.Direction
    private let limits: CallerLimits
    private var isOver = false

    fileprivate init(
        _ limits: CallerLimits, _ key: CallerLimits.Key, _ rate: UInt64,
        _ direction: CallerLimits.Direction
    ) {
        self.limits = limits
        self.key = key
        self.rate = rate
        self.direction = direction
    }

    deinit { end() }

    /// The request is over.
    func end() {
        if isOver { return }
        isOver = true
        limits.end(self)
    }

    /// A sink that takes no more than the caller may send.
    func pacing(_ sink: any ByteSink) -> any ByteSink {
        rate > 0 && direction == .incoming ? PacedSink(sink, Pace(self)) : sink
    }

    /// A source that gives no more than the caller may take.
    func pacing(_ source: any ByteSource) -> any ByteSource {
        rate > 0 && direction == .outgoing ? PacedSource(source, Pace(self)) : source
    }

    /// Takes bytes and waits where there are none. Confined to its loop.
    fileprivate final class Pace {
        private let lease: CallerLease
        private var resume: (() -> Void)?
        private var timer: LoopTimer?
        private var wait: UInt64 = 0
        /// Bytes that move at once: short enough that many callers share a loop evenly.
        private static let step = 64 * 1024
        /// Nanoseconds between two looks, so that few bytes do not come one by one: 10 ms.
        private static let pause: UInt64 = 10_000_000

        init(_ lease: CallerLease) { self.lease = lease }

        /// How many of `wanted` bytes may move now. What is not moved is to be given back.
        func take(_ wanted: Int) -> Int {
            let (count, wait) = lease.limits.take(min(wanted, Pace.step), lease)
            self.wait = wait
            return count
        }

        func giveBack(_ count: Int) {
            if count > 0 { lease.limits.giveBack(count, lease) }
        }

        /// Whether bytes were refused: then it is this that must be waited for.
        var isWaiting: Bool { wait > 0 }

        func whenReady(_ resume: @escaping () -> Void) {
            self.resume = resume
            if timer == nil {
                timer = LoopTimer { [unowned self] in
                    let resume = self.resume
                    self.resume = nil
                    self.wait = 0
                    resume?()
                }
            }
            if let timer { EventLoop.current?.arm(timer, after: max(wait, Pace.pause)) }
        }

        func stop() {
            resume = nil
            if let timer { EventLoop.current?.disarm(timer) }
        }

        deinit { stop() }
    }

    private final class PacedSink: ByteSink {
        private let sink: any ByteSink
        private let pace: Pace

        init(_ sink: any ByteSink, _ pace: Pace) {
            self.sink = sink
            self.pace = pace
        }

        func write(_ bytes: RawSpan) throws -> Int {
            let allowed = pace.take(bytes.byteCount)
            guard allowed > 0 else { return 0 }
            let taken = try sink.write(bytes.extracting(first: allowed))
            pace.giveBack(allowed - taken)
            return taken
        }

        func whenWritable(_ resume: @escaping () -> Void) {
            if pace.isWaiting { pace.whenReady(resume) } else { sink.whenWritable(resume) }
        }
    }

    private final class PacedSource: ByteSource {
        private let source: any ByteSource
        private let pace: Pace

        init(_ source: any ByteSource, _ pace: Pace) {
            self.source = source
            self.pace = pace
        }

        func read(into buffer: inout MutableRawSpan) throws -> SourceRead {
            let allowed = pace.take(buffer.byteCount)
            guard allowed > 0 else { return .wait }
            var part = buffer._mutatingExtracting(first: allowed)
            let read = try source.read(into: &part)
            if case .bytes(let count) = read {
                pace.giveBack(allowed - count)
            } else {
                pace.giveBack(allowed)
            }
            return read
        }

        func whenReadable(_ resume: @escaping () -> Void) {
            if pace.isWaiting { pace.whenReady(resume) } else { source.whenReadable(resume) }
        }

        func close() {
            pace.stop()
            source.close()
        }
    }
}
