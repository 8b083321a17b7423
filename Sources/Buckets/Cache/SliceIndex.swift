import OpenSSL
import System
import Wire

/// Identifies the bytes of one version of an object: the first 16 bytes of a SHA-256 digest.
struct ObjectKey: Hashable, Sendable {
    let high: UInt64
    let low: UInt64

    init(high: UInt64, low: UInt64) {
        self.high = high
        self.low = low
    }

    /// - Parameter salt: Random bytes of the cache's directory. Names can't be guessed from keys without it.
    init(_ bucket: String, _ object: ObjectMetadata, salt: [UInt8]) {
        let digest = Digest(.sha256)
        func add(_ bytes: [UInt8]) {
            // With their lengths, so that no two lists of parts are the same bytes.
            digest.update(UInt64(bytes.count).littleEndianBytes.span.bytes)
            digest.update(bytes.span.bytes)
        }
        for part in [salt, Array(bucket.utf8), Array(object.name.utf8), Array(object.etag.utf8)] { add(part) }
        add(object.size.littleEndianBytes + UInt64(bitPattern: object.generation).littleEndianBytes)
        let bytes = digest.finish()
        self.init(high: UInt64(littleEndian: bytes[0..<8]), low: UInt64(littleEndian: bytes[8..<16]))
    }
}

/// Identifies a slice: bytes of an object that begin at a multiple of ``CacheLayout/slice``.
struct SliceKey: Hashable, Sendable {
    let object: ObjectKey
    let index: UInt32

    func hash(into hasher: inout Hasher) {
        // The key is a digest, so its parts are as good as any.
        hasher.combine(object.low &+ UInt64(index))
    }

    /// A hash that is the same in all runs.
    var fingerprint: UInt64 { object.high ^ (UInt64(index) &* 0x9e37_79b9_7f4a_7c15) }
}

/// The place of a slice on disk.
struct SliceEntry: Sendable {
    let segment: Segment
    /// Where its bytes begin in the segment, in units of 4 KiB.
    let page: UInt32
    /// In bytes.
    let length: UInt32
    /// The checksum of all its bytes.
    let crc32c: UInt32
    /// How often it was read lately, at most ``SliceIndex/mostHits``.
    var hits: UInt8 = 0
    /// Whether this process has written all its bytes, or checked them once.
    var isChecked: Bool

    var offset: UInt64 { UInt64(page) * CacheLayout.page }

    /// Whether both are the same bytes on disk.
    func isAt(_ other: SliceEntry) -> Bool { segment === other.segment && page == other.page }
}

/// What a reader knows of the slice that it reads.
struct LocatedSlice {
    let index: UInt32
    var entry: SliceEntry
    /// The checksums of its units; empty until they are read.
    var units: [UInt32] = []
    /// The end of the units that were checked since the slice's first byte.
    var checked = 0
}

/// The slices that are complete on disk. In memory some 100 bytes for each. Any thread may use it.
final class SliceIndex: Sendable {
    /// Of S3-FIFO: more hits are not counted.
    static let mostHits: UInt8 = 3
    /// A table that grows is copied with its lock held, so there are many small ones.
    private static let shardCount = 64
    private let shards = (0..<shardCount).map { _ in Lock<[SliceKey: SliceEntry]>([:]) }

    private func shard(_ key: SliceKey) -> Lock<[SliceKey: SliceEntry]> {
        shards[Int(truncatingIfNeeded: key.fingerprint % UInt64(SliceIndex.shardCount))]
    }

    /// The number of slices.
    var count: Int { shards.reduce(0) { $0 + $1.withLock { $0.count } } }

    func find(_ key: SliceKey) -> SliceEntry? { shard(key).withLock { $0[key] } }

    /// Finds a slice, and counts a hit.
    func hit(_ key: SliceKey) -> SliceEntry? {
        shard(key).withLock { table in
            guard let entry = table[key] else { return nil }
            if entry.hits < SliceIndex.mostHits { table[key]?.hits += 1 }
            return entry
        }
    }

    /// Adds a slice.
    /// - Parameter replaces: Whether a known slice is replaced.
    /// - Returns: Whether it was added.
    @discardableResult
    func insert(_ key: SliceKey, _ entry: SliceEntry, replaces: Bool = true) -> Bool {
        shard(key).withLock { table in
            if !replaces, table[key] != nil { return false }
            table[key] = entry
            return true
        }
    }

    /// Replaces a slice by its copy elsewhere, unless it has been removed or moved.
    func move(_ key: SliceKey, from old: SliceEntry, to new: SliceEntry) {
        shard(key).withLock { table in
            guard let entry = table[key], entry.isAt(old) else { return }
            var new = new
            new.isChecked = entry.isChecked
            table[key] = new
        }
    }

    /// Notes that all bytes of a slice were checked.
    func noteChecked(_ key: SliceKey, _ checked: SliceEntry) {
        shard(key).withLock { table in
            guard let entry = table[key], entry.isAt(checked) else { return }
            table[key]?.isChecked = true
        }
    }

    /// Removes a slice.
    /// - Parameter expected: Only if it is there; nil for anywhere.
    /// - Returns: Whether there was one.
    @discardableResult
    func remove(_ key: SliceKey, at expected: SliceEntry? = nil) -> Bool {
        shard(key).withLock { table in
            guard let entry = table[key], expected.map(entry.isAt) ?? true else { return false }
            table[key] = nil
            return true
        }
    }

    /// Makes room for so many slices.
    func reserve(_ count: Int) {
        for shard in shards {
            // The new table is made without the lock.
            var table: [SliceKey: SliceEntry] = [:]
            table.reserveCapacity(count / SliceIndex.shardCount + count / SliceIndex.shardCount / 8)
            shard.withLock { known in
                if known.count > 1024 { return }
                for (key, entry) in known { table[key] = entry }
                known = table
            }
        }
    }

    /// Removes the slices of a segment.
    /// - Returns: Their number.
    func removeAll(in segment: Segment) -> Int {
        shards.reduce(0) { count, shard in
            count
                + shard.withLock { table in
                    let keys = table.filter { $0.value.segment === segment }.keys
                    for key in keys { table[key] = nil }
                    return keys.count
                }
        }
    }

    func removeAll() -> Int {
        var count = 0
        for shard in shards {
            let old = shard.withLock { table in
                defer { table = [:] }
                return table
            }
            count += old.count
        }
        return count
    }
}

/// Remembers what was evicted or missed lately, by hash, in a table of fixed size. A newer one takes the place of an older.
final class GhostTable: Sendable {
    private let slots: Lock<[UInt64]>

    /// - Parameter count: The number of slots.
    init(_ count: Int) { slots = Lock(Array(repeating: 0, count: max(64, count))) }

    func insert(_ hash: UInt64) {
        slots.withLock { $0[Int(truncatingIfNeeded: hash % UInt64($0.count))] = hash | 1 }
    }

    /// Whether it is remembered. It is forgotten then.
    func take(_ hash: UInt64) -> Bool {
        slots.withLock { slots in
            let slot = Int(truncatingIfNeeded: hash % UInt64(slots.count))
            guard slots[slot] == hash | 1 else { return false }
            slots[slot] = 0
            return true
        }
    }
}

extension UInt64 {
    var littleEndianBytes: [UInt8] { withUnsafeBytes(of: littleEndian) { Array($0) } }

    init(littleEndian bytes: ArraySlice<UInt8>) {
        self = bytes.reversed().reduce(0) { $0 << 8 | UInt64($1) }
    }
}
