import Glibc
import System
import Wire

/// Limits each caller's requests per second, bytes per second and concurrent requests.
///
/// Limits are per caller; anonymous callers are keyed by address. A caller may use a second's worth in one burst. A
/// request over a limit is rejected. A body that exceeds its caller's bytes is slowed down and shares the rate with the
/// caller's other bodies. A request is rejected because of bytes only if its body would have to wait for more than a
/// second.
public final class CallerLimits: Sendable {
    /// Identifies a caller.
    struct Key: Hashable, Sendable {
        var group: String
        /// The issuer or other source of the identity: two sources may use the same uid. Empty for anonymous callers.
        var source = ""
        /// The uid, or the network of an anonymous caller's address.
        var caller: String
    }
    /// The direction of a request's limited body.
    enum Direction: Sendable { case none, incoming, outgoing }
    /// The limit that a request exceeds.
    enum Limit: String, CaseIterable, Sendable {
        case requests, transfers
        case bytesIn = "bytes_in"
        case bytesOut = "bytes_out"
    }
    /// A request over a limit, and the seconds after which it may be repeated.
    struct LimitExceeded: Error, Equatable {
        var limit: Limit
        var retryAfter: Int
    }

    /// The maximum number of callers that are counted at once. Above it, idle callers are forgotten. If all are active,
    /// the other callers of a group share one caller's limits.
    static let maximumCallers = 100_000
    /// The interval of searches for idle callers; a search with each request would cost more than it saves.
    private static let sweepInterval = TokenBucket.second / 10
    /// The maximum delay of a body at which a new request is still accepted: a second.
    private static let maximumWait = TokenBucket.second
    private let groups: [BytewiseString: CallerGroup]
    private let callers = Lock(Callers())
    private let clock: @Sendable () -> UInt64

    /// - Parameters:
    ///   - groups: The groups with limits. Callers of other groups are not limited.
    ///   - clock: Monotonic time in nanoseconds.
    public init(
        _ groups: [CallerGroup],
        clock: @escaping @Sendable () -> UInt64 = EventLoop.monotonicNow
    ) {
        self.groups = Dictionary(groups.map { (BytewiseString($0.name), $0) }) { _, last in last }
        self.clock = clock
    }

    /// The key of an anonymous caller: its IPv4 address, or its IPv6 network of 64 bits, since a client can use all
    /// 2^64 addresses of its network (RFC 4291, section 2.5.1).
    /// - Parameter peer: The address with the port.
    static func network(of peer: String) -> String {
        let end = peer.utf8.lastIndex(of: UInt8(ascii: ":")) ?? peer.endIndex
        let host = String(peer[..<end])
        guard host.utf8.first == UInt8(ascii: "[") else { return host }
        var address = in6_addr()
        guard inet_pton(AF_INET6, String(host.dropFirst().dropLast()), &address) == 1 else {
            return host
        }
        let bytes = withUnsafeBytes(of: address) { Array($0) }
        // An IPv4 address on a listener for both versions (section 2.5.5.2).
        let isMapped = bytes.starts(with: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff])
        return isMapped
            ? bytes[12...].map { "\($0)" }.joined(separator: ".")
            : Hexadecimal.encode(Array(bytes[..<8]))
    }

    /// The current time of this limiter's clock, in nanoseconds.
    var now: UInt64 { clock() }

    /// The limits of a group; nil if it has none.
    func limits(of group: String) -> CallerGroup? {
        groups.isEmpty ? nil : groups[group] ?? groups[CallerGroup.otherwise]
    }

    /// Counts a request until ``CallerLease/end()``.
    /// - Throws: ``LimitExceeded``.
    func begin(_ key: Key, _ limits: CallerGroup, _ direction: Direction)
        throws(LimitExceeded) -> CallerLease
    {
        let now = clock()
        let counted = try callers.withLock { (callers) throws(LimitExceeded) in
            let key = callers.admitted(key, now)
            try callers.usage[key, default: Usage()].begin(limits, direction, now)
            return key
        }
        let rate =
            switch direction {
            case .none: UInt64(0)
            case .incoming: limits.bytesIn
            case .outgoing: limits.bytesOut
            }
        return CallerLease(self, counted, rate, direction)
    }

    /// Reserves bytes in the lease's direction. Returns the nanoseconds until they may be transferred.
    func reserve(_ count: Int, _ lease: CallerLease) -> UInt64 {
        let now = clock()
        return callers.withLock { callers in
            callers.usage[lease.key, default: Usage()].bytes[lease.direction == .incoming ? 0 : 1]
                .reserve(count, lease.rate, now)
        }
    }

    /// Returns reserved bytes that were not transferred.
    func giveBack(_ count: Int, _ lease: CallerLease) {
        callers.withLock { callers in
            callers.usage[lease.key]?.bytes[lease.direction == .incoming ? 0 : 1].giveBack(count, lease.rate)
        }
    }

    func end(_ lease: CallerLease) {
        callers.withLock { $0.usage[lease.key]?.transfers -= 1 }
    }

    /// The number of callers with state. Callers that share a group's limits count as one.
    var count: Int { callers.withLock { $0.usage.count } }

    /// The usage of all callers.
    private struct Callers {
        var usage: [Key: Usage] = [:]
        /// The time of the next search for idle callers.
        private var sweepDue: UInt64 = 0

        /// The key that counts a request: its caller's own, or the one shared by further callers of the group.
        mutating func admitted(_ key: Key, _ now: UInt64) -> Key {
            guard usage.count >= CallerLimits.maximumCallers, usage[key] == nil else { return key }
            if now >= sweepDue {
                sweepDue = now + CallerLimits.sweepInterval
                usage = usage.filter { !$0.value.isIdle(now) }
            }
            return usage.count < CallerLimits.maximumCallers ? key : Key(group: key.group, caller: "")
        }
    }

    /// The usage of one caller.
    private struct Usage {
        var transfers = 0
        private var requests = TokenBucket()
        /// Incoming and outgoing bytes.
        var bytes: [2 of TokenBucket] = [TokenBucket(), TokenBucket()]

        mutating func begin(
            _ limits: CallerGroup, _ direction: Direction, _ now: UInt64
        ) throws(LimitExceeded) {
            if limits.transfers > 0, transfers >= limits.transfers {
                throw LimitExceeded(limit: .transfers, retryAfter: 1)
            }
            if direction == .incoming, limits.bytesIn > 0 { try require(bytes[0], .bytesIn, now) }
            if direction == .outgoing, limits.bytesOut > 0 {
                try require(bytes[1], .bytesOut, now)
            }
            if limits.requests > 0, !requests.take(UInt64(limits.requests), now) {
                throw LimitExceeded(limit: .requests, retryAfter: 1)
            }
            transfers += 1
        }

        private func require(_ bytes: TokenBucket, _ limit: Limit, _ now: UInt64)
            throws(LimitExceeded)
        {
            let wait = bytes.wait(now)
            if wait <= maximumWait { return }
            throw LimitExceeded(limit: limit, retryAfter: Int((wait - 1) / TokenBucket.second) + 1)
        }

        func isIdle(_ now: UInt64) -> Bool {
            transfers == 0
                && [requests, bytes[0], bytes[1]].allSatisfy { $0.isFull(now) }
        }
    }
}
