import OpenSSL
import Synchronization
import System

/// The tokens that were verified, by their fingerprints, until they expire. At most 10,000, and 32 MiB of them; those go
/// first that have not been shown for long.
///
/// Each shard has two tables. Where the new one is full, it takes the old one's place, and what is found in the old one
/// goes into the new one: that comes close to the order of last use, and a hit changes and allocates nothing.
final class VerifiedTokens: Sendable {
    /// What is remembered of a token.
    struct Entry: Sendable {
        let principal: Principal
        /// Seconds since 1970, the skew included.
        let until: Int64
        /// The key that its signature was verified with; nil where there was none.
        let key: IssuerKey?
        /// About how much memory its claims take.
        let bytes: Int
        /// The static tokens that it was found among.
        var table: StaticTokenTable?
    }
    private struct Shard {
        var new: [Fingerprint: Entry] = [:]
        /// Bytes of the entries in ``new``.
        var bytes = 0
        var old: [Fingerprint: Entry] = [:]
        /// Bytes of the entries in ``old``.
        var oldBytes = 0
    }
    static let limit = 10_000
    /// What all entries may take together, by ``Entry/bytes``.
    static let maximumBytes = 32 << 20
    /// What an entry takes beside its claims.
    static let entryBytes = 512
    private static let shardCount = 16
    private static let tableLimit = limit / shardCount / 2
    private static let tableBytes = maximumBytes / shardCount / 2

    private let fingerprints = Fingerprints()
    private let shards = (0..<shardCount).map { _ in Lock(Shard()) }

    func fingerprint(of token: RawSpan) -> Fingerprint { fingerprints.of(token) }

    /// The principal of a token that still counts.
    func find(_ fingerprint: Fingerprint, now: Int64) -> Principal? {
        let entry = shards[fingerprint.slot % VerifiedTokens.shardCount].withLock { shard in
            if let entry = shard.new[fingerprint] { return Optional(entry) }
            guard let entry = shard.old[fingerprint] else { return nil }
            VerifiedTokens.insert(entry, fingerprint, &shard)
            return entry
        }
        guard let entry, now < entry.until,
            entry.key?.isWithdrawn.load(ordering: .relaxed) != true,
            entry.table?.isReplaced.load(ordering: .relaxed) != true
        else { return nil }
        return entry.principal
    }

    func insert(_ entry: Entry, _ fingerprint: Fingerprint) {
        shards[fingerprint.slot % VerifiedTokens.shardCount].withLock {
            VerifiedTokens.insert(entry, fingerprint, &$0)
        }
    }

    private static func insert(_ entry: Entry, _ fingerprint: Fingerprint, _ shard: inout Shard) {
        let bytes = entry.bytes + entryBytes
        if shard.new.count >= tableLimit || shard.bytes + bytes > tableBytes {
            swap(&shard.new, &shard.old)
            shard.oldBytes = shard.bytes
            shard.new.removeAll(keepingCapacity: true)
            shard.bytes = 0
        }
        let replaced = shard.new.updateValue(entry, forKey: fingerprint)
        shard.bytes += bytes - (replaced.map { $0.bytes + entryBytes } ?? 0)
    }

    /// Bytes of what is remembered, what has expired included; at most ``maximumBytes``.
    var bytes: Int { shards.reduce(0) { $0 + $1.withLock { $0.bytes + $0.oldBytes } } }

    /// How many are remembered, what has expired included.
    var count: Int {
        shards.reduce(0) { $0 + $1.withLock { $0.new.count + $0.old.count } }
    }
}
