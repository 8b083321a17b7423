import OpenSSL
import Synchronization
import System

/// A cache of verified tokens by fingerprint, until they expire: at most 10,000 tokens and 32 MiB.
///
/// Each shard has two tables. A full new table replaces the old one, and an entry found in the old table is copied to
/// the new one. This approximates eviction of the least recently used, and a hit in the new table changes nothing.
final class VerifiedTokens: Sendable {
    struct Entry: Sendable {
        let principal: Principal
        /// Seconds since 1970, including the clock skew.
        let until: Int64
        /// The key that verified its signature; nil if it has none.
        let key: IssuerKey?
        /// The approximate memory of its claims in bytes.
        let bytes: Int
        /// The static tokens that contain the token.
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
    /// The maximum sum of ``Entry/bytes``.
    static let maximumBytes = 32 << 20
    /// The memory of an entry without its claims.
    static let entryBytes = 512
    private static let shardCount = 16
    private static let tableLimit = limit / shardCount / 2
    private static let tableBytes = maximumBytes / shardCount / 2

    private let fingerprints = Fingerprints()
    private let shards = (0..<shardCount).map { _ in Lock(Shard()) }

    func fingerprint(of token: RawSpan) -> Fingerprint { fingerprints.of(token) }

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

    /// The bytes of all entries, including expired ones; at most ``maximumBytes``.
    var bytes: Int { shards.reduce(0) { $0 + $1.withLock { $0.bytes + $0.oldBytes } } }

    var count: Int {
        shards.reduce(0) { $0 + $1.withLock { $0.new.count + $0.old.count } }
    }
}
