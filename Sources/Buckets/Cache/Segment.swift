import Glibc
import OpenSSL
import Synchronization
import System
import Wire

/// Where new slices go. Of S3-FIFO.
enum CacheQueue: UInt8, Sendable {
    case small = 0
    case main = 1
}

/// The bytes that segments take on the disk.
final class CacheDiskUse: Sendable {
    /// Of all segments, and of those that are not evicted.
    let allocated = Atomic<Int>(0)
    let linked = Atomic<Int>(0)
}

/// A file of a ``SegmentLog``. Its bytes are never overwritten. It is closed when nobody refers to it any more.
///
/// A header; records; free space; a table of entries that grows from the end to the front.
final class Segment: Sendable {
    /// Segments are numbered in the order of their creation.
    let sequence: UInt64
    let queue: CacheQueue
    let descriptor: Int32
    /// In bytes.
    let capacity: UInt64
    private let disk: CacheDiskUse
    private let pool: BlockingPool
    private let use: Lock<Use>

    private struct Use {
        /// The end of the records.
        var end = CacheLayout.header
        /// Records that have an entry, and those that may get one.
        var entries = 0
        var reserved = 0
        var isSealed = false
    }

    private static let magic = Array("SLcache2".utf8)

    /// - Parameter entries: The number of valid entries; nil for a new segment, to which records can be added.
    init(
        _ sequence: UInt64, _ queue: CacheQueue, _ descriptor: Int32, _ capacity: UInt64, entries: Int? = nil,
        _ disk: CacheDiskUse, _ pool: BlockingPool
    ) {
        self.sequence = sequence
        self.queue = queue
        self.descriptor = descriptor
        self.capacity = capacity
        self.disk = disk
        self.pool = pool
        var use = Use()
        if let entries { (use.entries, use.isSealed) = (entries, true) }
        self.use = Lock(use)
        disk.allocated.add(Int(capacity), ordering: .relaxed)
        disk.linked.add(Int(capacity), ordering: .relaxed)
    }

    deinit {
        disk.allocated.subtract(Int(capacity), ordering: .relaxed)
        // The last close of an unlinked file frees its blocks, which takes time.
        pool.submit { [descriptor] in close(descriptor) }
    }

    /// Notes that it was unlinked.
    func noteUnlinked() { disk.linked.subtract(Int(capacity), ordering: .relaxed) }

    static func name(_ sequence: UInt64) -> String {
        let digits = String(sequence, radix: 16)
        return String(repeating: "0", count: 16 - digits.utf8.count) + digits
    }

    /// The number of entries.
    var entryCount: Int { use.withLock { $0.entries } }

    /// No record is added any more.
    func seal() { use.withLock { $0.isSealed = true } }

    /// Reserves space for a slice and its entry.
    /// - Returns: The first page; nil if it has no room.
    func reserve(_ length: Int) -> UInt32? {
        use.withLock { use in
            if use.isSealed { return nil }
            let end =
                (use.end + CacheLayout.record(length) + CacheLayout.page - 1) / CacheLayout.page * CacheLayout.page
            let table = UInt64((use.entries + use.reserved + 1) * CacheLayout.entry)
            guard end + table <= capacity else { return nil }
            let page = UInt32(use.end / CacheLayout.page)
            use.end = end
            use.reserved += 1
            return page
        }
    }

    /// Gives up a reservation.
    func cancel() { use.withLock { $0.reserved -= 1 } }

    /// Writes the entry of a record that is written.
    func commit(_ key: SliceKey, _ entry: SliceEntry, _ calls: CacheDiskCalls) throws(CacheFault) {
        let number = use.withLock { use in
            use.reserved -= 1
            use.entries += 1
            return use.entries
        }
        let bytes = Segment.encode(key, entry)
        let offset = capacity - UInt64(number * CacheLayout.entry)
        let outcome = bytes.withUnsafeBytes { bytes in
            Result { () throws(CacheFault) in try calls.writeAll(descriptor, bytes, at: offset) }
        }
        do throws(CacheFault) { try outcome.get() } catch {
            // A later run reads the table up to this entry only.
            seal()
            throw error
        }
    }

    // MARK: Coding

    private static func checksum(_ bytes: ArraySlice<UInt8>) -> UInt32 {
        var crc32c = CRC32C()
        bytes.withUnsafeBytes { crc32c.update($0.bytes) }
        return crc32c.value
    }

    private static func encode(_ key: SliceKey, _ entry: SliceEntry) -> [UInt8] {
        var bytes = key.object.high.littleEndianBytes + key.object.low.littleEndianBytes
        bytes += (UInt64(key.index) | UInt64(entry.length) << 32).littleEndianBytes
        bytes += (UInt64(entry.page) | UInt64(entry.crc32c) << 32).littleEndianBytes
        bytes += UInt64(checksum(bytes[...])).littleEndianBytes
        return bytes
    }

    /// Reads the table. May wait for a disk.
    /// - Parameter take: Gets the valid entries, none of which is checked. A damaged one is left out.
    func readTable(_ take: (SliceKey, SliceEntry) -> Void) {
        readTable(limit: entryCount, endsAtFault: false, take)
    }

    private func readTable(limit: Int, endsAtFault: Bool, _ take: (SliceKey, SliceEntry) -> Void) {
        let batch = 1024
        var next = 0
        while next < limit {
            let count = min(batch, limit - next)
            let start = capacity - UInt64((next + count) * CacheLayout.entry)
            guard let bytes = File.readAll(descriptor, count * CacheLayout.entry, at: start) else { return }
            for index in (0..<count).reversed() {
                guard let (key, entry) = decode(bytes[(index * CacheLayout.entry)..<((index + 1) * CacheLayout.entry)])
                else {
                    if endsAtFault { return }
                    continue
                }
                take(key, entry)
            }
            next += count
        }
    }

    private func decode(_ bytes: ArraySlice<UInt8>) -> (SliceKey, SliceEntry)? {
        let start = bytes.startIndex
        func number(_ index: Int) -> UInt64 {
            UInt64(littleEndian: bytes[(start + 8 * index)..<(start + 8 * index + 8)])
        }
        guard number(4) == UInt64(Segment.checksum(bytes[start..<start + 32])) else { return nil }
        let key = SliceKey(
            object: ObjectKey(high: number(0), low: number(1)), index: UInt32(truncatingIfNeeded: number(2)))
        let entry = SliceEntry(
            segment: self, page: UInt32(truncatingIfNeeded: number(3)),
            length: UInt32(truncatingIfNeeded: number(2) >> 32), crc32c: UInt32(truncatingIfNeeded: number(3) >> 32),
            isChecked: false)
        let isWithin =
            (1...CacheLayout.slice).contains(Int(entry.length)) && entry.offset >= CacheLayout.header
            && entry.offset + CacheLayout.record(Int(entry.length)) <= capacity
        return isWithin ? (key, entry) : nil
    }

    /// The header of a new segment.
    /// - Parameter salt: A hash of the directory's salt.
    func header(salt: UInt64) -> [UInt8] {
        var bytes = Segment.magic + salt.littleEndianBytes + sequence.littleEndianBytes + capacity.littleEndianBytes
        bytes += UInt64(queue.rawValue).littleEndianBytes
        bytes += UInt64(Segment.checksum(bytes[...])).littleEndianBytes
        return bytes
    }

    /// Opens a segment of an earlier run. May wait for a disk.
    /// - Parameter salt: A hash of the directory's salt, which it must have.
    /// - Returns: nil if it is none.
    static func open(
        _ directory: Int32, _ name: String, salt: UInt64, _ disk: CacheDiskUse, _ pool: BlockingPool
    ) -> Segment? {
        let descriptor = openat(directory, name, O_RDWR | O_CLOEXEC | O_NOFOLLOW)
        guard descriptor >= 0 else { return nil }
        var status = stat()
        guard fstat(descriptor, &status) == 0, status.st_mode & S_IFMT == S_IFREG,
            let bytes = File.readAll(descriptor, 48, at: 0)
        else {
            close(descriptor)
            return nil
        }
        func number(_ index: Int) -> UInt64 { UInt64(littleEndian: bytes[(8 * index)..<(8 * index + 8)]) }
        guard Array(bytes[..<8]) == magic, number(1) == salt, number(5) == UInt64(checksum(bytes[..<40])),
            Segment.name(number(2)) == name, number(3) == UInt64(status.st_size), number(3) > CacheLayout.header,
            let queue = UInt8(exactly: number(4)).flatMap(CacheQueue.init)
        else {
            close(descriptor)
            return nil
        }
        return Segment(number(2), queue, descriptor, number(3), entries: 0, disk, pool)
    }

    /// Reads the table of a segment of an earlier run, up to the first entry that is not valid. May wait for a disk.
    func loadEntries(_ take: (SliceKey, SliceEntry) -> Void) {
        var count = 0
        let limit = Int((capacity - CacheLayout.header) / UInt64(CacheLayout.entry))
        readTable(limit: limit, endsAtFault: true) { key, entry in
            count += 1
            take(key, entry)
        }
        use.withLock { $0.entries = count }
    }
}
