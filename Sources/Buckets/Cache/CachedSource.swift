import OpenSSL
import System

/// The bytes of a cached object: from slices on disk, behind a fill, or directly from the service, in any order.
///
/// Each unit's checksum is compared before a byte of it is passed on. Whatever fails in the cache, the rest comes from the
/// service. The source refers to no segment while it waits, so that a slow client does not keep an evicted one.
///
/// Safety: confined to its loop. A job on the pool uses only its own values, and a fill wakes it through the loop.
final class CachedSource: DirectSource, @unchecked Sendable {
    private let object: CachedObject
    private let cache: ReadCache
    private let loop: EventLoop
    private var position: UInt64
    private let end: UInt64
    private var slice: LocatedSlice?
    private var fill: SliceFill?
    /// The slices for which this read has made the service send them.
    private var own: Range<UInt32>
    private var direct: (any ByteSource)?
    /// Whether the last fill ended because its readers were too slow.
    private var isSlow = false
    private var ready: ArraySlice<UInt8> = []
    /// The checksum of the bytes so far, if the whole object is read and its checksum has not been compared yet.
    private var whole: CRC32C?
    private var failure: BucketError?
    private var isWaiting = false
    /// The number of the current wait: the end of an earlier one does not end it.
    private var wait = 0
    private var isClosed = false
    private var waiter: (() -> Void)?
    private var task: Task<Void, Never>?

    /// - Parameters:
    ///   - fill: The fill that the source reads behind, which counts it as a reader already.
    ///   - own: The slices for which this read has made the service send them.
    init(
        _ object: CachedObject, _ range: Range<UInt64>, _ fill: SliceFill?, own: Range<UInt32>, _ cache: ReadCache,
        _ loop: EventLoop
    ) {
        self.object = object
        self.cache = cache
        self.loop = loop
        self.fill = fill
        self.own = own
        position = range.lowerBound
        end = range.upperBound
        let isWhole = range == 0..<object.metadata.size && object.metadata.crc32c != nil
        if isWhole, !object.bucket.isVerified(object) { whole = CRC32C() }
        cache.liveSources.add(1, ordering: .relaxed)
    }

    deinit {
        close()
        cache.liveSources.subtract(1, ordering: .relaxed)
    }

    private var metadata: ObjectMetadata { object.metadata }

    // MARK: ByteSource

    func read(into buffer: inout MutableRawSpan) throws -> SourceRead {
        if let failure { throw failure }
        if position == end || isClosed { return .end }
        if isWaiting || buffer.byteCount == 0 { return .wait }
        let read: SourceRead
        do {
            read = try next(&buffer)
        } catch {
            let error = error as? BucketError ?? BucketError(.unavailable, "\(error)")
            failure = error
            throw error
        }
        if case .bytes(let count) = read { try passed(buffer.bytes.extracting(first: count)) }
        return read
    }

    private func next(_ buffer: inout MutableRawSpan) throws -> SourceRead {
        if let direct { return try read(direct, &buffer) }
        if !ready.isEmpty { return takeReady(&buffer) }
        let index = CacheLayout.index(of: position)
        if let current = located(index) { return try read(current, &buffer) }
        guard let fill else { return miss(index) }
        let start = CacheLayout.bytes(of: index, size: metadata.size).lowerBound
        let wait = beginWait()
        let resume: @Sendable () -> Void = { [weak self, loop] in loop.execute { [weak self] in self?.endWait(wait) } }
        let found = fill.find(index, beyond: Int(position - start), resume)
        if case .wait = found { return .wait }
        isWaiting = false
        switch found {
        case .progress(let progress): return try read(progress, from: start, &buffer)
        case .wait: return .wait
        case .elsewhere: return miss(index)
        case .ended(let end): return try ended(end, index)
        }
    }

    /// Counts bytes that are about to be passed on.
    private func passed(_ bytes: RawSpan) throws(BucketError) {
        count(bytes.byteCount)
        position += UInt64(bytes.byteCount)
        guard whole != nil else { return }
        whole?.update(bytes)
        guard position == end else { return }
        guard whole?.value == metadata.crc32c else {
            cache.removeDamaged(object)
            failure = BucketError(.unavailable, "the bytes of the object are damaged: crc32c")
            throw failure!
        }
        object.bucket.noteVerified(object)
    }

    /// Counts bytes by their source. Those of a fill are counted when they arrive, so its own reader's are not.
    private func count(_ bytes: Int) {
        if direct != nil {
            object.bucket.statistics.fromService(bytes)
        } else if !own.contains(CacheLayout.index(of: position)) {
            object.bucket.statistics.fromCache(bytes)
        }
    }

    func whenReadable(_ resume: @escaping () -> Void) {
        waiter = resume
        if isWaiting { return }
        if let direct { return direct.whenReadable { [weak self] in self?.waiter.take()?() } }
        loop.execute { self.waiter.take()?() }
    }

    private func beginWait() -> Int {
        isWaiting = true
        wait += 1
        return wait
    }

    private func endWait(_ ended: Int) {
        guard isWaiting, ended == wait else { return }
        isWaiting = false
        waiter.take()?()
    }

    func close() {
        if isClosed { return }
        isClosed = true
        waiter = nil
        task?.cancel()
        fill.take()?.leave()
        direct?.close()
        direct = nil
        ready = []
    }

    // MARK: Slices on disk

    /// The slice at the position, if it is complete. It is looked up each time, because it may have been evicted.
    private func located(_ index: UInt32) -> LocatedSlice? {
        let key = SliceKey(object: object.key, index: index)
        let isNew = slice?.index != index
        guard let entry = isNew ? cache.index.hit(key) : cache.index.find(key) else {
            if isNew { slice = nil }
            return nil
        }
        if let slice, slice.index == index, slice.entry.isAt(entry) { return slice }
        fill?.advance(to: index)
        slice = LocatedSlice(index: index, entry: entry)
        return slice
    }

    private func read(_ current: LocatedSlice, _ buffer: inout MutableRawSpan) throws -> SourceRead {
        let bytes = CacheLayout.bytes(of: current.index, size: metadata.size)
        guard Int(current.entry.length) == bytes.count else { return damaged(current) }
        var current = current
        if current.units.isEmpty {
            guard readChecksums(current), let loaded = slice else { return isWaiting ? .wait : damaged(current) }
            current = loaded
        }
        let inSlice = Int(position - bytes.lowerBound)
        let rest = min(bytes.count - inSlice, Int(clamping: end - position))
        // Whole units are read into the buffer itself.
        var count = min(rest, buffer.byteCount)
        if (inSlice + count) % CacheLayout.unit != 0, inSlice + count < bytes.count {
            count -= (inSlice + count) % CacheLayout.unit
        }
        let unitStart = inSlice / CacheLayout.unit * CacheLayout.unit
        guard unitStart == inSlice, count > 0 else {
            return try readPart(current, unitStart, min(bytes.count - unitStart, CacheLayout.unit), &buffer)
        }
        let found = try? File.read(
            current.entry.segment.descriptor, into: &buffer, count: count, at: current.entry.offset + UInt64(unitStart))
        guard let found else { return damaged(current) }
        guard found == .bytes(count) else {
            return readElsewhere(current, unitStart, min(bytes.count - unitStart, CacheLayout.unit))
        }
        guard check(buffer.bytes.extracting(first: count), current, from: unitStart) else { return damaged(current) }
        return .bytes(count)
    }

    /// Reads a unit of which only a part is passed on.
    private func readPart(_ current: LocatedSlice, _ unitStart: Int, _ length: Int, _ buffer: inout MutableRawSpan)
        throws
        -> SourceRead
    {
        let unit: [UInt8]
        switch File.readCached(
            current.entry.segment.descriptor, length, at: current.entry.offset + UInt64(unitStart))
        {
        case .bytes(let bytes): unit = bytes
        case .wouldWait: return readElsewhere(current, unitStart, length)
        case .failed: return damaged(current)
        }
        guard check(unit.span.bytes, current, from: unitStart) else { return damaged(current) }
        keep(unit, from: unitStart, of: current.index)
        return takeReady(&buffer)
    }

    /// Keeps the bytes of a unit that are still to be passed on.
    private func keep(_ unit: [UInt8], from unitStart: Int, of index: UInt32) {
        let start = CacheLayout.bytes(of: index, size: metadata.size).lowerBound + UInt64(unitStart)
        let first = Int(position - start)
        ready = unit[first..<min(unit.count, first + Int(clamping: end - position))]
    }

    private func takeReady(_ buffer: inout MutableRawSpan) -> SourceRead {
        let count = min(ready.count, buffer.byteCount)
        buffer.withUnsafeMutableBytes { target in
            ready.withUnsafeBytes { target.copyMemory(from: UnsafeRawBufferPointer(rebasing: $0[..<count])) }
        }
        // A used-up buffer is released, so that a slow receiver does not keep it.
        ready = count == ready.count ? [] : ready.dropFirst(count)
        return .bytes(count)
    }

    /// Compares whole units with their checksums.
    private func check(_ bytes: RawSpan, _ current: LocatedSlice, from start: Int) -> Bool {
        guard CacheLayout.agree(bytes, current.units[(start / CacheLayout.unit)...]) else { return false }
        noteChecked(start..<start + bytes.byteCount)
        return true
    }

    private func noteChecked(_ range: Range<Int>) {
        guard var current = slice, !current.entry.isChecked, range.lowerBound <= current.checked else { return }
        current.checked = max(current.checked, range.upperBound)
        if current.checked == Int(current.entry.length) {
            current.entry.isChecked = true
            cache.index.noteChecked(SliceKey(object: object.key, index: current.index), current.entry)
        }
        slice = current
    }

    /// Reads the checksums behind the slice's bytes.
    /// - Returns: Whether they are there. If not, the source waits, or the slice is damaged.
    private func readChecksums(_ current: LocatedSlice) -> Bool {
        let entry = current.entry
        if CacheLayout.units(Int(entry.length)) == 1 {
            slice?.units = [entry.crc32c]
            return true
        }
        let count = 4 * CacheLayout.units(Int(entry.length))
        let offset = entry.offset + UInt64(entry.length)
        switch File.readCached(entry.segment.descriptor, count, at: offset) {
        case .bytes(let bytes): return take(checksums: bytes, of: current)
        case .wouldWait:
            readElsewhere(entry.segment, count, at: offset) { source, bytes in
                guard let bytes, source.take(checksums: bytes, of: current) else { return source.forget(current) }
            }
            return false
        case .failed: return false
        }
    }

    private func take(checksums bytes: [UInt8], of current: LocatedSlice) -> Bool {
        let units = stride(from: 0, to: bytes.count, by: 4).map { start in
            (0..<4).reduce(UInt32(0)) { $0 | UInt32(bytes[start + $1]) << UInt32(8 * $1) }
        }
        if !current.entry.isChecked {
            // They must be those of the entry: the units of another slice have right checksums, too.
            var total = CRC32C().value
            for (index, unit) in units.enumerated() {
                let length = min(CacheLayout.unit, Int(current.entry.length) - index * CacheLayout.unit)
                total = CRC32C.combined(total, unit, count: UInt64(length))
            }
            guard total == current.entry.crc32c else { return false }
        }
        guard slice?.index == current.index, slice?.entry.isAt(current.entry) == true else { return true }
        slice?.units = units
        return true
    }

    /// Reads a unit on the pool.
    private func readElsewhere(_ current: LocatedSlice, _ unitStart: Int, _ length: Int) -> SourceRead {
        let offset = current.entry.offset + UInt64(unitStart)
        readElsewhere(current.entry.segment, length, at: offset) { source, unit in
            guard let unit, source.check(unit.span.bytes, current, from: unitStart) else {
                return source.forget(current)
            }
            source.keep(unit, from: unitStart, of: current.index)
        }
        return .wait
    }

    /// Reads on the pool, because that may wait for the disk.
    /// - Parameter take: Gets the bytes on the loop; nil if they are not there.
    private func readElsewhere(
        _ segment: Segment, _ count: Int, at offset: UInt64,
        _ take: @escaping @Sendable (CachedSource, [UInt8]?) -> Void
    ) {
        let wait = beginWait()
        cache.pool.submit { [self] in
            let bytes = File.readAll(segment.descriptor, count, at: offset)
            loop.execute { [self] in
                if isClosed || wait != self.wait { return }
                take(self, bytes)
                endWait(wait)
            }
        }
    }

    /// Forgets a slice whose bytes are not those that were written. They are fetched again.
    private func damaged(_ current: LocatedSlice) -> SourceRead {
        forget(current)
        return miss(current.index)
    }

    private func forget(_ current: LocatedSlice) {
        cache.removeDamaged(current.index, current.entry, of: object)
        slice = nil
    }

    // MARK: Slices that are being filled

    /// Reads behind the end of what a fill has written.
    private func read(_ progress: SliceFill.Progress, from start: UInt64, _ buffer: inout MutableRawSpan) throws
        -> SourceRead
    {
        guard let place = progress.reservation else { return .wait }
        let inSlice = Int(position - start)
        let unitStart = inSlice / CacheLayout.unit * CacheLayout.unit
        let descriptor = place.segment.descriptor
        let checksums = progress.units + [progress.partial.value]
        var count = min(progress.filled - inSlice, buffer.byteCount, Int(clamping: end - position))
        if inSlice + count < progress.filled { count -= (inSlice + count) % CacheLayout.unit }
        if unitStart == inSlice, count > 0 {
            let found = try? File.read(
                descriptor, into: &buffer, count: count, at: place.offset + UInt64(inSlice))
            if found == .bytes(count) {
                guard
                    CacheLayout.agree(
                        buffer.bytes.extracting(first: count), checksums[(unitStart / CacheLayout.unit)...])
                else { return miss(CacheLayout.index(of: position)) }
                return .bytes(count)
            }
        }
        let length = min(CacheLayout.unit, progress.filled - unitStart)
        guard let unit = File.readAll(descriptor, length, at: place.offset + UInt64(unitStart)),
            CacheLayout.agree(unit.span.bytes, checksums[(unitStart / CacheLayout.unit)...])
        else { return miss(CacheLayout.index(of: position)) }
        keep(unit, from: unitStart, of: CacheLayout.index(of: position))
        return takeReady(&buffer)
    }

    private func ended(_ end: SliceFill.End, _ index: UInt32) throws(BucketError) -> SourceRead {
        fill.take()?.leave()
        switch end {
        case .failed(let error) where error.isOfOtherBytes && whole != nil && position > 0: throw error
        case .failed, .disk: goDirect()
        case .paused:
            isSlow = true
            return miss(index)
        case .done, .abandoned: return miss(index)
        }
        return .wait
    }

    // MARK: What is missing

    /// Joins or begins a fill, or else reads the rest from the service.
    private func miss(_ index: UInt32) -> SourceRead {
        fill.take()?.leave()
        let last = CacheLayout.index(of: end - 1) + 1
        let limit = isSlow ? min(last, index + SliceFill.lead) : last
        // The slice may have been completed just now.
        if located(index) != nil {
            let wait = beginWait()
            loop.execute { self.endWait(wait) }
            return .wait
        }
        guard let (found, isNew) = cache.fill(for: object, index..<limit, loop) else {
            goDirect()
            return .wait
        }
        fill = found
        if isNew { own = found.slices }
        let wait = beginWait()
        task = Task(executorPreference: loop) { [self] in
            let end = isNew ? await cache.request(found) : await found.opened()
            if isClosed { return }
            if case .failed? = end {
                fill.take()?.leave()
                return goDirect()
            }
            found.begin()
            endWait(wait)
        }
        return .wait
    }

    /// Requests the rest from the service.
    private func goDirect() {
        let wait = beginWait()
        task = Task(executorPreference: loop) { [self] in
            do throws(BucketError) {
                let source = try await cache.read(object, position..<end)
                if isClosed { return source.close() }
                direct = source
            } catch {
                failure = error
            }
            endWait(wait)
        }
    }

    private func read(_ direct: any ByteSource, _ buffer: inout MutableRawSpan) throws -> SourceRead {
        try direct.read(into: &buffer)
    }

    // MARK: DirectSource

    func transfer(to socket: Int32, count: Int) throws -> DirectTransfer {
        if let failure { throw failure }
        if isClosed || direct != nil || !ready.isEmpty || whole != nil || isWaiting { return .unsupported }
        let index = CacheLayout.index(of: position)
        guard let current = located(index), current.entry.isChecked else { return .unsupported }
        let bytes = CacheLayout.bytes(of: index, size: metadata.size)
        guard Int(current.entry.length) == bytes.count else { return .unsupported }
        let count = min(count, Int(clamping: min(end, bytes.upperBound) - position))
        let offset = current.entry.offset + (position - bytes.lowerBound)
        switch try File.send(current.entry.segment.descriptor, to: socket, count: count, at: offset) {
        case .bytes(0), .wouldWait: return .unsupported
        case .bytes(let sent):
            self.count(sent)
            position += UInt64(sent)
            return .bytes(sent)
        case .socketFull: return .socketWaits
        }
    }
}
