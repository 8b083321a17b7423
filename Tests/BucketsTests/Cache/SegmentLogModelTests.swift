import Glibc
import OpenSSL
import Synchronization
import System
import TestSupport
import Testing

@testable import Buckets

/// Random steps on the log and its index, without readers.
private struct SegmentLogModel {
    private let directory = TemporaryDirectory(below: "/dev/shm")
    private let faults = CacheDiskFaults()
    private let size: UInt64 = 16 << 20
    private var generator: SeededGenerator
    private var index = SliceIndex()
    private var log: SegmentLog
    /// The lengths of all slices that were added since the last purge, and those of before.
    private var added: [SliceKey: Int] = [:]
    private var purged: Set<SliceKey> = []
    /// Segments that readers hold.
    private var held: [Segment] = []
    /// Whether bytes on disk were changed since the last purge.
    private var isDamaged = false
    private var next: UInt64 = 0
    var found = 0

    init(_ seed: UInt64) throws {
        generator = SeededGenerator(seed)
        log = SegmentLog(directory.path + "/log", size: size, freeSpace: 0, index, sharedPool, faults.calls)
        try log.open()
        log.load()
    }

    private func content(_ key: SliceKey, _ length: Int) -> ArraySlice<UInt8> {
        let start = Int(key.object.low * 8191 % 9_000_000)
        return CachedService.material[start..<start + length]
    }

    mutating func run(_ steps: Int) throws {
        for _ in 0..<steps {
            switch Int.random(in: 0..<100, using: &generator) {
            case 0..<45: try add()
            case 45..<80: look()
            case 80..<84: log.evict()
            case 84..<88: hold()
            case 88..<90: try restart(damages: false)
            case 90..<92: try restart(damages: true)
            case 92..<93: try purge()
            case 93..<96: fail()
            default: held = []
            }
            #expect(log.allocatedBytes <= Int(size + size / 8))
        }
        held = []
        try restart(damages: false)
        index = SliceIndex()
    }

    /// Adds a slice as a fill does, in pieces.
    private mutating func add() throws {
        next += 1
        // Sometimes one that is known.
        let number =
            Int.random(in: 0..<5, using: &generator) == 0 ? UInt64.random(in: 1...next, using: &generator) : next
        let key = SliceKey(object: ObjectKey(high: number &* 0x9e37_79b9, low: number), index: UInt32(number % 7))
        if index.find(key) != nil || purged.contains(key) { return }
        let length =
            added[key] ?? [1, 4096, 16_384, 16_385, 100_000, 700_000, 1 << 20].randomElement(using: &generator)!
        let bytes = content(key, length)
        var units: [UInt32] = []
        var total = CRC32C()
        bytes.withUnsafeBytes { total.update($0.bytes) }
        for start in stride(from: bytes.startIndex, to: bytes.endIndex, by: CacheLayout.unit) {
            var crc = CRC32C()
            bytes[start..<min(bytes.endIndex, start + CacheLayout.unit)].withUnsafeBytes { crc.update($0.bytes) }
            units.append(crc.value)
        }
        do throws(CacheFault) {
            let place = try log.reserve(length, for: key)
            guard Int.random(in: 0..<10, using: &generator) > 0 else { return place.segment.cancel() }
            added[key] = length
            let outcome = bytes.withUnsafeBytes { bytes in
                Result { () throws(CacheFault) in try log.write(bytes, place, at: 0) }
            }
            do throws(CacheFault) { try outcome.get() } catch {
                place.segment.cancel()
                throw error
            }
            try log.commit(key, place, units: units, crc32c: total.value)
        } catch {
            #expect(!faults.isOff || error == .held)
            faults.stop()
        }
    }

    /// Looks slices up: their bytes are those that were written.
    private mutating func look() {
        for _ in 0..<3 {
            guard let (key, length) = added.randomElement(using: &generator) else { return }
            guard let entry = index.hit(key) else { continue }
            found += 1
            #expect(Int(entry.length) == length)
            let bytes = File.readAll(entry.segment.descriptor, length, at: entry.offset)
            if !isDamaged { #expect(bytes.map { content(key, length).isEqual(to: $0) } == true) }
            if let bytes, !content(key, length).isEqual(to: bytes) {
                var crc = CRC32C()
                crc.update(bytes.span.bytes)
                #expect(crc.value != entry.crc32c)
            }
        }
    }

    private mutating func hold() {
        let entries = added.keys.compactMap { index.find($0)?.segment }
        if let segment = entries.randomElement(using: &generator) { held.append(segment) }
    }

    private mutating func fail() {
        faults.remaining.store(Int.random(in: 0..<4, using: &generator), ordering: .relaxed)
        faults.write.store(ENOSPC, ordering: .relaxed)
    }

    private mutating func purge() throws {
        faults.stop()
        _ = try log.purge()
        #expect(index.count == 0)
        purged.formUnion(added.keys)
        added = [:]
        isDamaged = false
    }

    /// What was known is known again, as far as it was not damaged, and nothing else.
    private mutating func restart(damages: Bool) throws {
        faults.stop()
        held = []
        let known = added.keys.filter { index.find($0) != nil }
        index = SliceIndex()
        log = SegmentLog(directory.path + "/other", size: size, freeSpace: 0, index, sharedPool, faults.calls)
        if damages { damage() }
        log = SegmentLog(directory.path + "/log", size: size, freeSpace: 0, index, sharedPool, faults.calls)
        try log.open()
        log.load()
        if !isDamaged { for key in known { #expect(index.find(key) != nil) } }
        for key in purged { #expect(index.find(key) == nil) }
        #expect(index.count == added.keys.filter { index.find($0) != nil }.count)
    }

    /// Tears a table, or changes bytes anywhere.
    private mutating func damage() {
        let path = directory.path + "/log"
        guard let name = entries(path).filter({ $0.utf8.count == 16 }).randomElement(using: &generator) else { return }
        isDamaged = true
        let file = open(path + "/" + name, O_RDWR)
        defer { close(file) }
        let end = Int(lseek(file, 0, SEEK_END))
        switch Int.random(in: 0..<4, using: &generator) {
        case 0:
            // An entry of which only a part was written.
            let offset = end - Int.random(in: 1...10, using: &generator) * CacheLayout.entry
            let zeros = [UInt8](repeating: 0, count: Int.random(in: 1..<CacheLayout.entry, using: &generator))
            pwrite(file, zeros, zeros.count, off_t(offset))
        case 1: ftruncate(file, off_t(Int.random(in: 0..<end, using: &generator)))
        case 2: pwrite(file, [0xff], 1, off_t(Int.random(in: 0..<48, using: &generator)))
        default:
            for _ in 0..<20 { pwrite(file, [0x5a], 1, off_t(Int.random(in: 0..<end, using: &generator))) }
        }
    }
}

@Suite("Random steps on the log of slices", .timeLimit(.minutes(60)))
struct SegmentLogModelTests {
    private static let seeds: Range<UInt64> = {
        func number(_ name: String) -> UInt64? { getenv(name).flatMap { UInt64(String(cString: $0)) } }
        let first = number("SLUICE_MODEL_SEED") ?? 1
        return first..<first + (number("SLUICE_MODEL_RUNS") ?? 8)
    }()

    @Test("A slice that is found has its bytes, and the size holds", arguments: seeds)
    func run(_ seed: UInt64) throws {
        var model = try SegmentLogModel(seed)
        try model.run(300)
        #expect(model.found > 50)
    }
}
