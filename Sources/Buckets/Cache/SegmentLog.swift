import Glibc
import OpenSSL
import Synchronization
import System

/// The slices on disk: a log of segments, each of which is allocated as a whole, never overwritten and unlinked as a whole.
///
/// S3-FIFO decides what stays. New slices go to the small queue, a tenth of the size. When a segment is evicted, the slices
/// of the small queue with two hits and those of the main queue with one are copied to the main queue, at most half a
/// segment. A slice that comes back soon after its eviction goes to the main queue at once.
///
/// All functions may wait for a disk and are called on the pool, except ``admits``.
final class SegmentLog: Sendable {
    /// Space for one slice, to which its bytes are written.
    struct Reservation: Sendable {
        let segment: Segment
        let page: UInt32
        let length: Int

        var offset: UInt64 { UInt64(page) * CacheLayout.page }
    }

    private struct State {
        /// nil until ``open()``, and after a failure.
        var directory: CacheDirectory?
        /// Oldest first; the last one of each may be open for records.
        var small: [Segment] = []
        var main: [Segment] = []
        var next: UInt64 = 1
    }

    /// In bytes.
    let size: UInt64
    let segmentSize: UInt64
    let index: SliceIndex
    let calls: CacheDiskCalls
    private let path: String
    /// Bytes of the file system that are left free.
    private let freeSpace: UInt64
    private let ghosts: GhostTable
    private let pool: BlockingPool
    private let disk = CacheDiskUse()
    private let state = Lock(State())
    private let currentSalt = Lock<[UInt8]>([])
    let evicted = Atomic<Int>(0)
    let written = Atomic<Int>(0)

    init(
        _ path: String, size: UInt64, freeSpace: UInt64, _ index: SliceIndex, _ pool: BlockingPool,
        _ calls: CacheDiskCalls
    ) {
        self.path = path
        self.size = size
        self.freeSpace = freeSpace
        self.index = index
        self.pool = pool
        self.calls = calls
        segmentSize = CacheLayout.segment(size)
        ghosts = GhostTable(Int(min(size >> 20, 1 << 20)))
    }

    /// The bytes of all segments that are not evicted.
    var bytes: Int { disk.linked.load(ordering: .relaxed) }

    /// The bytes on disk, including segments that are evicted but still read.
    var allocatedBytes: Int { disk.allocated.load(ordering: .relaxed) }

    /// Part of each object's key; empty until the directory is open.
    var salt: [UInt8] { currentSalt.withLock { $0 } }

    // MARK: Opening

    /// Opens the directory. The slices of an earlier run follow with ``load()``.
    func open() throws(CacheFault) {
        let directory = try CacheDirectory(path)
        state.withLock { state in
            state = State()
            state.directory = directory
            state.next = (directory.segments.last ?? 0) + 1
        }
        currentSalt.withLock { $0 = directory.salt }
    }

    /// Reads which slices the segments of an earlier run have, newest first.
    func load() {
        guard let directory = state.withLock({ $0.directory }) else { return }
        let segments = directory.segments.reversed().compactMap { sequence -> Segment? in
            let name = Segment.name(sequence)
            let segment = Segment.open(directory.descriptor, name, salt: directory.saltHash, disk, pool)
            if segment == nil { unlinkat(directory.descriptor, name, 0) }
            return segment
        }
        // An estimate, so that the tables of the index do not grow while they are in use.
        var count = 0
        segments.first?.loadEntries { _, _ in count += 1 }
        index.reserve(count * segments.count)
        for segment in segments {
            // With the lock, so that the segment is not evicted before its entries are known.
            state.withLock { state in
                guard state.directory === directory else { return segment.noteUnlinked() }
                switch segment.queue {
                case .small: state.small.insert(segment, at: 0)
                case .main: state.main.insert(segment, at: 0)
                }
                segment.loadEntries { key, entry in index.insert(key, entry, replaces: false) }
            }
        }
        // The size may have been larger.
        state.withLock { state in
            while disk.linked.load(ordering: .relaxed) > Int(clamping: size), evictOne(&state) {}
        }
    }

    /// Gives all slices up, and begins anew with another salt, so that nothing of before can be found any more.
    /// - Returns: The number of slices.
    func purge() throws(CacheFault) -> Int {
        let directory = state.withLock { state in
            for segment in state.small + state.main { unlink(segment, state.directory) }
            state.small = []
            state.main = []
            return state.directory
        }
        let count = index.removeAll()
        guard let directory else { return count }
        try directory.renewSalt()
        currentSalt.withLock { $0 = directory.salt }
        return count
    }

    /// Closes the directory after a failure. What it has is not used any more.
    func close() -> Int {
        state.withLock { state in
            for segment in state.small + state.main { segment.noteUnlinked() }
            state = State()
        }
        currentSalt.withLock { $0 = [] }
        return index.removeAll()
    }

    // MARK: Writing

    /// Whether evicted segments that are still read take so much space that nothing is added.
    var isHeld: Bool {
        disk.allocated.load(ordering: .relaxed) - disk.linked.load(ordering: .relaxed) > Int(clamping: size / 8)
    }

    /// Reserves space for a slice. Evicts others if there is none.
    func reserve(_ length: Int, for key: SliceKey) throws(CacheFault) -> Reservation {
        let queue: CacheQueue = ghosts.take(key.fingerprint) ? .main : .small
        return try state.withLock { (state) throws(CacheFault) in try reserve(length, queue, &state) }
    }

    private func reserve(_ length: Int, _ queue: CacheQueue, _ state: inout State) throws(CacheFault) -> Reservation {
        let active = queue == .small ? state.small.last : state.main.last
        if let active, let page = active.reserve(length) {
            return Reservation(segment: active, page: page, length: length)
        }
        let fresh = try add(queue, &state)
        guard let page = fresh.reserve(length) else { throw CacheFault.broken("a segment is too small") }
        return Reservation(segment: fresh, page: page, length: length)
    }

    /// Writes bytes of a slice.
    func write(_ bytes: UnsafeRawBufferPointer, _ reservation: Reservation, at offset: Int) throws(CacheFault) {
        try calls.writeAll(reservation.segment.descriptor, bytes, at: reservation.offset + UInt64(offset))
        written.add(bytes.count, ordering: .relaxed)
    }

    /// Completes a slice, which can be found from now on.
    /// - Parameter units: The checksums of its units.
    func commit(_ key: SliceKey, _ reservation: Reservation, units: [UInt32], crc32c: UInt32) throws(CacheFault) {
        let entry = SliceEntry(
            segment: reservation.segment, page: reservation.page, length: UInt32(reservation.length), crc32c: crc32c,
            isChecked: true)
        let trailer = units.flatMap { UInt64($0).littleEndianBytes[..<4] }
        let outcome = trailer.withUnsafeBytes { bytes in
            Result { () throws(CacheFault) in
                try calls.writeAll(
                    reservation.segment.descriptor, bytes, at: reservation.offset + UInt64(reservation.length))
            }
        }
        do throws(CacheFault) { try outcome.get() } catch {
            reservation.segment.cancel()
            throw error
        }
        try reservation.segment.commit(key, entry, calls)
        // With the lock, because an eviction could have read the table just before.
        state.withLock { state in
            let isKept = (state.small + state.main).contains { $0 === reservation.segment }
            if isKept { index.insert(key, entry) }
        }
    }

    // MARK: Segments

    private func add(_ queue: CacheQueue, _ state: inout State) throws(CacheFault) -> Segment {
        guard let directory = state.directory else { throw CacheFault.broken("the directory is not open") }
        while disk.linked.load(ordering: .relaxed) + Int(segmentSize) > Int(clamping: size) {
            guard evictOne(&state) else { break }
        }
        guard disk.allocated.load(ordering: .relaxed) + Int(segmentSize) <= Int(clamping: size + size / 8) else {
            throw CacheFault.held
        }
        try directory.requireSpace(segmentSize + freeSpace)
        let sequence = state.next
        state.next += 1
        let name = Segment.name(sequence)
        let descriptor = openat(
            directory.descriptor, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0o600)
        guard descriptor >= 0 else { throw CacheFault(SystemError("open")) }
        let code = calls.allocate(descriptor, segmentSize)
        let segment = Segment(sequence, queue, descriptor, segmentSize, disk, pool)
        do throws(CacheFault) {
            if code != 0 { throw CacheFault(SystemError("fallocate", code)) }
            let header = segment.header(salt: directory.saltHash)
            let outcome = header.withUnsafeBytes { bytes in
                Result { () throws(CacheFault) in try calls.writeAll(descriptor, bytes, at: 0) }
            }
            try outcome.get()
        } catch {
            unlink(segment, directory)
            throw error
        }
        switch queue {
        case .small:
            state.small.last?.seal()
            state.small.append(segment)
        case .main:
            state.main.last?.seal()
            state.main.append(segment)
        }
        return segment
    }

    private func unlink(_ segment: Segment, _ directory: CacheDirectory?) {
        if let directory { unlinkat(directory.descriptor, Segment.name(segment.sequence), 0) }
        segment.noteUnlinked()
    }

    /// Evicts one segment, so that there may be space again.
    func evict() { state.withLock { state in _ = evictOne(&state) } }

    /// Evicts the oldest segment of the small queue if that is too large, and otherwise that of the main queue.
    /// - Returns: Whether there was one.
    private func evictOne(_ state: inout State) -> Bool {
        let isSmallFull = UInt64(state.small.count) * segmentSize > size / 10
        let victim: Segment
        if !state.small.isEmpty, isSmallFull || state.main.isEmpty {
            victim = state.small.removeFirst()
        } else if !state.main.isEmpty {
            victim = state.main.removeFirst()
        } else {
            return false
        }
        victim.seal()
        unlink(victim, state.directory)
        var survivors: [(key: SliceKey, entry: SliceEntry)] = []
        var (gone, read) = (0, 0)
        victim.readTable { key, written in
            read += 1
            guard let entry = index.find(key), entry.isAt(written) else { return }
            if entry.hits >= (victim.queue == .small ? 2 : 1) {
                survivors.append((key, entry))
            } else if index.remove(key, at: entry) {
                gone += 1
                if victim.queue == .small { ghosts.insert(key.fingerprint) }
            }
        }
        survivors.sort { $0.entry.hits > $1.entry.hits }
        var room = segmentSize / 2
        for (key, entry) in survivors {
            let record = CacheLayout.record(Int(entry.length))
            if record <= room, copy(key, entry, &state) {
                room -= record
            } else {
                index.remove(key, at: entry)
                gone += 1
            }
        }
        // Otherwise what a damaged table does not name would keep the segment.
        if read < victim.entryCount { gone += index.removeAll(in: victim) }
        evicted.add(gone, ordering: .relaxed)
        return true
    }

    /// Copies a slice to the main queue.
    /// - Returns: Whether that was possible.
    private func copy(_ key: SliceKey, _ entry: SliceEntry, _ state: inout State) -> Bool {
        guard let target = try? reserve(Int(entry.length), .main, &state) else { return false }
        let isDone = File.copyAll(
            entry.segment.descriptor, at: entry.offset, to: target.segment.descriptor, at: target.offset,
            count: Int(CacheLayout.record(Int(entry.length))))
        guard isDone else {
            target.segment.cancel()
            return false
        }
        var moved = SliceEntry(
            segment: target.segment, page: target.page, length: entry.length, crc32c: entry.crc32c,
            isChecked: entry.isChecked)
        moved.hits = entry.hits - 1
        guard (try? target.segment.commit(key, moved, calls)) != nil else { return false }
        index.move(key, from: entry, to: moved)
        return true
    }
}

extension File {
    /// Copies bytes between files. May wait for a disk.
    /// - Returns: Whether all were copied.
    fileprivate static func copyAll(
        _ source: Int32, at start: UInt64, to target: Int32, at offset: UInt64, count: Int
    ) -> Bool {
        var done = 0
        while done < count {
            let (from, to) = (start + UInt64(done), offset + UInt64(done))
            if let copied = try? copy(source, at: from, to: target, at: to, count: count - done) {
                done += copied
                continue
            }
            guard let bytes = readAll(source, min(count - done, 256 * 1024), at: from) else { return false }
            let isWritten = bytes.withUnsafeBytes { bytes in
                (try? CacheDiskCalls.system.writeAll(target, bytes, at: to)) != nil
            }
            guard isWritten else { return false }
            done += bytes.count
        }
        return true
    }
}
