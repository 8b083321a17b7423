import EventLoop
import Glibc
import Wire

/// What each caller may use: requests and bytes each second, and requests at once.
///
/// Callers are counted one by one, those without an identity by their address. What may be used in a second may be used
/// at once. A request over a limit is refused; a body that has used up its caller's bytes goes on as fast as it may, and
/// takes turns with the caller's other bodies. Only where so many wait that another's turn would not come within a second
/// a request is refused for them.
public final class CallerLimits: Sendable {
    /// Who is counted.
    struct Key: Hashable, Sendable {
        var group: String
        /// The issuer, or what else vouches for the caller: each has an alice of its own. Empty without an identity.
        var source = ""
        /// The uid, or the network of the address.
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

    /// Callers that are remembered; over it those that use nothing are forgotten.
    private static let maximumCallers = 100_000
    /// How long the turn of a body may be off when another request begins: a second.
    private static let maximumWait = TokenBucket.second
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

    /// Whom a client without an identity is counted as: its address, of IPv6 the network, since whoever has one address
    /// there has all of its 2^64 (RFC 4291, section 2.5.1).
    /// - Parameter peer: With the port.
    static func network(of peer: String) -> String {
        let host = peer.lastIndex(of: ":").map { peer[..<$0] } ?? peer[...]
        guard host.first == "[" else { return String(host) }
        var address = in6_addr()
        guard inet_pton(AF_INET6, String(host.dropFirst().dropLast()), &address) == 1 else {
            return String(host)
        }
        let bytes = withUnsafeBytes(of: address) { Array($0) }
        // An IPv4 address, as a listener for both sees it (section 2.5.5.2).
        let isMapped = bytes.starts(with: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff])
        return isMapped
            ? bytes[12...].map { "\($0)" }.joined(separator: ".")
            : Hexadecimal.encode(Array(bytes[..<8]))
    }

    /// Nanoseconds, as all turns are told.
    var now: UInt64 { clock() }

    /// The limits of a group; nil where it has none.
    func limits(of group: String) -> Configuration.CallerGroup? {
        groups.isEmpty ? nil : groups[group] ?? groups[Configuration.CallerGroup.otherwise]
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

    /// Gives so many bytes of the lease's direction a turn: in how many nanoseconds they may move.
    func reserve(_ count: Int, _ lease: CallerLease) -> UInt64 {
        let now = clock()
        return callers.withLock { callers in
            callers[lease.key, default: Usage()].bytes[lease.direction == .incoming ? 0 : 1]
                .reserve(count, lease.rate, now)
        }
    }

    /// Gives back what has had a turn and did not move.
    func giveBack(_ count: Int, _ lease: CallerLease) {
        callers.withLock { callers in
            callers[lease.key]?.bytes[lease.direction == .incoming ? 0 : 1]
                .giveBack(count, lease.rate)
        }
    }

    func end(_ lease: CallerLease) {
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
            if direction == .incoming, limits.bytesIn > 0 { try require(bytes[0], .bytesIn, now) }
            if direction == .outgoing, limits.bytesOut > 0 {
                try require(bytes[1], .bytesOut, now)
            }
            if limits.requests > 0, !requests.take(UInt64(limits.requests), now) {
                throw Refusal(limit: .requests, retryAfter: 1)
            }
            transfers += 1
        }

        private func require(_ bytes: TokenBucket, _ limit: Limit, _ now: UInt64)
            throws(Refusal)
        {
            let wait = bytes.wait(now)
            if wait <= maximumWait { return }
            throw Refusal(limit: limit, retryAfter: Int((wait - 1) / TokenBucket.second) + 1)
        }

        func isIdle(_ now: UInt64) -> Bool {
            transfers == 0
                && [requests, bytes[0], bytes[1]].allSatisfy { $0.isFull(now) }
        }
    }
}

/// A token bucket that holds a second's worth, as the moment at which it will be full again ("generic cell rate").
struct TokenBucket {
    static let second: UInt64 = 1_000_000_000
    private var fullAt: UInt64 = 0

    func isFull(_ now: UInt64) -> Bool { fullAt <= now }

    /// In how many nanoseconds there will be anything.
    func wait(_ now: UInt64) -> UInt64 {
        let missing = fullAt > now ? fullAt - now : 0
        return missing > TokenBucket.second ? missing - TokenBucket.second : 0
    }

    /// Takes one of a bucket that gets `rate` a second, where there is one.
    mutating func take(_ rate: UInt64, _ now: UInt64) -> Bool {
        var after = self
        // Each costs up to a nanosecond too much; together they must not cost the last of them.
        let rounding = (TokenBucket.second + rate - 1) / rate * rate - TokenBucket.second
        guard after.reserve(1, rate, now) <= rounding else { return false }
        self = after
        return true
    }

    /// Takes `count` of a bucket that gets `rate` a second, and says in how many nanoseconds they will be there: each
    /// who takes comes after those before.
    /// - Parameter count: At most 2^33.
    mutating func reserve(_ count: Int, _ rate: UInt64, _ now: UInt64) -> UInt64 {
        // Rounded up: many small parts must not come cheaper than a large one.
        let cost = cost(count, rate)
        fullAt = max(fullAt, now) + cost.quotient + (cost.hasRest ? 1 : 0)
        return wait(now)
    }

    /// Rounded down: who gives back must not gain.
    mutating func giveBack(_ count: Int, _ rate: UInt64) {
        let cost = cost(count, rate).quotient
        fullAt = fullAt > cost ? fullAt - cost : 0
    }

    /// Nanoseconds, and whether there is a rest.
    private func cost(_ count: Int, _ rate: UInt64) -> (quotient: UInt64, hasRest: Bool) {
        let (quotient, rest) = rate.dividingFullWidth(
            UInt64(count).multipliedFullWidth(by: TokenBucket.second))
        return (quotient, rest > 0)
    }
}
