import OpenSSL
import Synchronization
import System
import Wire

/// A cache of objects' bytes on a local disk, and of their metadata in memory, in front of the drivers of all buckets.
///
/// Bytes are keyed by their version, so they are never out of date; only the knowledge which version is current can be. It sees
/// reads only, and is told of changes. Whatever fails in it, the request goes to the service.
public final class ReadCache: Sendable {
    /// Where and how much is kept.
    public struct Settings: Sendable, Equatable {
        /// The directory of the bytes, private to this process.
        public var directory: String
        /// The most bytes on disk. Evicted ones that are still read may add an eighth.
        public var size: UInt64
        /// Bytes of the file system that are left free.
        public var reserve: UInt64
        /// The most bytes of metadata in memory, for each bucket.
        public var metadata: Int
        /// The most requests that fill slices at a time.
        public var fills: Int
        /// With 2, an object is kept at its second read that misses.
        public var minimumUses: Int

        /// Creates settings with these defaults.
        public init(
            directory: String, size: UInt64 = 10 << 30, reserve: UInt64 = 1 << 30, metadata: Int = 16 << 20,
            fills: Int = 16, minimumUses: Int = 1
        ) {
            self.directory = directory
            self.size = size
            self.reserve = reserve
            self.metadata = metadata
            self.fills = fills
            self.minimumUses = minimumUses
        }
    }

    /// How old the knowledge of an object's current version may be.
    public enum Freshness: Sendable, Equatable {
        /// Each read asks the service.
        case validate
        /// Nanoseconds.
        case limited(UInt64)
        /// Objects are never changed by others.
        case forever
    }

    /// Whether bytes can be kept.
    public enum DiskState: String, Sendable, CaseIterable {
        /// The directory is not open yet.
        case opening
        case open
        /// There is no space.
        case full
        /// The disk or the directory can't be used.
        case broken
    }

    private struct Disk {
        var state = DiskState.opening
        var cause: String?
        /// When it is tried again, in monotonic nanoseconds.
        var retry: UInt64 = .max
    }

    private struct Fills {
        var byObject: [ObjectKey: [SliceFill]] = [:]
        var count = 0
    }

    /// When a full or broken disk is tried again, in nanoseconds: 60 s.
    private static let retryInterval: UInt64 = 60_000_000_000

    let settings: Settings
    let pool: BlockingPool
    let log: SegmentLog
    let index = SliceIndex()
    /// Monotonic nanoseconds.
    let clock: @Sendable () -> UInt64
    /// The number of sources, for tests.
    package let liveSources = Atomic<Int>(0)
    private let ghosts: GhostTable
    private let disk = Lock(Disk())
    private let fills = Lock(Fills())
    private let buckets = Lock<[BytewiseString: BucketState]>([:])
    private let onChange: @Sendable (DiskState, String?) -> Void
    private let isClosed = Atomic<Bool>(false)
    let joinedFills = Atomic<Int>(0)
    let damaged = Atomic<Int>(0)
    let purged = Atomic<Int>(0)

    /// What outlives a reload.
    final class BucketState: Sendable {
        let known: KnownObjects
        let statistics = CacheStatistics()
        /// Whether reads use it now.
        let isCached = Atomic<Bool>(false)

        init(_ limit: Int) { known = KnownObjects(limit: limit) }
    }

    /// Creates the cache. The pool opens the directory; until then all requests go to the services.
    /// - Parameters:
    ///   - pool: Must outlive the cache.
    ///   - onChange: Called on any thread when ``DiskState`` changes, with the cause.
    public convenience init(
        _ settings: Settings, pool: BlockingPool, onChange: @escaping @Sendable (DiskState, String?) -> Void
    ) {
        self.init(settings, pool: pool, disk: .system, clock: EventLoop.monotonicNow, onChange: onChange)
    }

    package init(
        _ settings: Settings, pool: BlockingPool, disk: CacheDiskCalls, clock: @escaping @Sendable () -> UInt64,
        onChange: @escaping @Sendable (DiskState, String?) -> Void
    ) {
        self.settings = settings
        self.pool = pool
        self.clock = clock
        self.onChange = onChange
        log = SegmentLog(
            settings.directory, size: settings.size, freeSpace: settings.reserve, index, pool, disk)
        ghosts = GhostTable(64 * 1024)
        pool.submit { self.openLog() }
    }

    // MARK: Buckets

    /// The cache of a bucket. Called again at each reload.
    /// - Returns: nil if `freshness` is nil, or if the store is not a service.
    public func bucket(
        _ name: String, _ driver: any BucketDriver, _ freshness: Freshness?, staleIfError: UInt64
    ) -> CachedBucket? {
        let state = buckets.withLock { buckets in
            let key = BytewiseString(name)
            if buckets[key] == nil { buckets[key] = BucketState(settings.metadata) }
            return buckets[key]!
        }
        let pinned = freshness == nil ? nil : driver as? any PinnedReads
        state.isCached.store(pinned != nil, ordering: .relaxed)
        guard let freshness, let driver = pinned else {
            // Changes are not noted from now on.
            state.known.forgetAll()
            return nil
        }
        return CachedBucket(name, driver, state, self, freshness, staleIfError: staleIfError)
    }

    /// Forgets which versions are current, so that the next read asks.
    /// - Parameter name: One object; nil for all of the bucket.
    /// - Returns: Whether the bucket is cached.
    public func forget(bucket: String, name: String?) -> Bool {
        guard let state = bucketStates.first(where: { $0.0 == BytewiseString(bucket) })?.1 else { return false }
        if let name { state.known.forget(name) } else { state.known.forgetAll() }
        return true
    }

    /// Gives up all bytes and metadata.
    public func purge() async {
        await pool.run { [self] in
            do throws(CacheFault) {
                purged.add(try log.purge(), ordering: .relaxed)
            } catch {
                failed(error)
            }
        }
        // Their keys have the old salt.
        for state in buckets.withLock({ Array($0.values) }) { state.known.forgetAll() }
    }

    /// Begins no more fills. Waits for nothing: bytes that are being written are given up.
    public func close() async { isClosed.store(true, ordering: .relaxed) }

    // MARK: The disk

    private func openLog() {
        do throws(CacheFault) {
            try log.open()
            for state in buckets.withLock({ Array($0.values) }) { state.known.forgetAll() }
            change(to: .open, nil)
            log.load()
        } catch {
            failed(error)
        }
    }

    private func change(to state: DiskState, _ cause: String?) {
        let isNew = disk.withLock { disk in
            defer {
                disk.state = state
                disk.cause = cause
                disk.retry = state == .open ? .max : clock() &+ ReadCache.retryInterval
            }
            return disk.state != state
        }
        if isNew { onChange(state, cause) }
    }

    /// Notes why bytes could not be kept.
    func failed(_ fault: CacheFault) {
        switch fault {
        case .held: break
        case .full(let cause): change(to: .full, cause)
        case .broken(let cause): change(to: .broken, cause)
        }
    }

    /// Whether bytes can be kept now. Tries a full or broken disk again from time to time.
    private var isDiskOpen: Bool {
        let (isOpen, retried) = disk.withLock { disk -> (Bool, DiskState?) in
            if disk.state == .open { return (true, nil) }
            guard clock() >= disk.retry else { return (false, nil) }
            disk.retry = .max
            return (false, disk.state)
        }
        guard let retried else { return isOpen }
        pool.submit { [self] in
            if retried == .full {
                log.evict()
                change(to: .open, nil)
            } else {
                purged.add(log.close(), ordering: .relaxed)
                openLog()
            }
        }
        return false
    }

    /// Why bytes are not kept; nil if they are.
    public var note: String? {
        disk.withLock { disk in
            disk.state == .open ? nil : "\(disk.state.rawValue)" + (disk.cause.map { ": \($0)" } ?? "")
        }
    }

    // MARK: Slices

    func isMissing(_ slice: UInt32, of object: CachedObject) -> Bool {
        index.find(SliceKey(object: object.key, index: slice)) == nil
    }

    /// Those of the slices that are missing, and those between them.
    func missing(_ slices: Range<UInt32>, of object: CachedObject) -> Range<UInt32>? {
        let limit = min(slices.upperBound, slices.lowerBound + CachedBucket.lookAhead)
        guard let first = (slices.lowerBound..<limit).first(where: { isMissing($0, of: object) }) else { return nil }
        if limit < slices.upperBound { return first..<slices.upperBound }
        let last = (first..<limit).last(where: { isMissing($0, of: object) }) ?? first
        return first..<last + 1
    }

    /// The checksum of an object whose slices are all there, from theirs; nil if one is missing.
    func checksum(of object: CachedObject) -> UInt32? {
        var checksum = CRC32C().value
        for slice in CacheLayout.slices(object.metadata.size) {
            guard let entry = index.find(SliceKey(object: object.key, index: slice)) else { return nil }
            checksum = CRC32C.combined(checksum, entry.crc32c, count: UInt64(entry.length))
        }
        return checksum
    }

    /// Forgets a slice whose bytes have another checksum than when they were written.
    func removeDamaged(_ slice: UInt32, _ entry: SliceEntry, of object: CachedObject) {
        if index.remove(SliceKey(object: object.key, index: slice), at: entry) { damaged.add(1, ordering: .relaxed) }
    }

    /// Forgets slices whose bytes are not those of the object.
    func removeDamaged(_ slices: [UInt32]? = nil, of object: CachedObject) {
        for slice in slices ?? Array(CacheLayout.slices(object.metadata.size))
        where index.remove(SliceKey(object: object.key, index: slice)) {
            damaged.add(1, ordering: .relaxed)
        }
    }

    func removeDamaged(_ object: CachedObject) { removeDamaged(nil, of: object) }

    // MARK: Fills

    var fillCount: Int { fills.withLock { $0.count } }

    /// Whether another object's read could begin a fill now.
    var admits: Bool { isDiskOpen && !isClosed.load(ordering: .relaxed) && fillCount < settings.fills && !log.isHeld }

    /// Finds a fill that gets to the first of these slices soon, or makes one for those that are missing. The caller is a
    /// reader of it.
    /// - Returns: nil if no fill may begin now. If the fill is new, its request must be sent.
    /// - Parameter isWhole: Whether it fills all of the slices, not only up to the last that is missing.
    func fill(for object: CachedObject, _ slices: Range<UInt32>, isWhole: Bool = false, _ loop: EventLoop) -> (
        SliceFill, isNew: Bool
    )? {
        let isOpen = isDiskOpen && !isClosed.load(ordering: .relaxed) && !log.isHeld
        let missing = isWhole ? slices : missing(slices, of: object) ?? slices
        return fills.withLock { fills in
            if let known = fills.byObject[object.key]?.first(where: { $0.join(for: slices.lowerBound) }) {
                joinedFills.add(1, ordering: .relaxed)
                return (known, false)
            }
            guard isOpen, fills.count < settings.fills else { return nil }
            let fill = SliceFill(object, slices.lowerBound..<missing.upperBound, self, loop)
            fills.byObject[object.key, default: []].append(fill)
            fills.count += 1
            return (fill, true)
        }
    }

    /// Whether another fill is about to fill this slice.
    func continues(_ fill: SliceFill, at slice: UInt32) -> Bool {
        fills.withLock { $0.byObject[fill.object.key]?.contains { $0 !== fill && $0.covers(slice) } ?? false }
    }

    /// Removes a fill that has ended.
    func ended(_ fill: SliceFill) {
        fills.withLock { fills in
            guard var all = fills.byObject[fill.object.key], let position = all.firstIndex(where: { $0 === fill })
            else {
                return
            }
            all.remove(at: position)
            fills.byObject[fill.object.key] = all.isEmpty ? nil : all
            fills.count -= 1
        }
    }

    /// Sends the request of a new fill.
    /// - Returns: How it has ended, if it has.
    func request(_ fill: SliceFill) async -> SliceFill.End? {
        do throws(BucketError) {
            let source = try await read(fill.object, fill.range)
            fill.open(DirectReader(fill.object.metadata, fill.range, source))
            return nil
        } catch {
            let end = Task.isCancelled ? SliceFill.End.abandoned : .failed(error)
            fill.end(end)
            return end
        }
    }

    /// Requests bytes of an object's version.
    func read(_ object: CachedObject, _ range: Range<UInt64>) async throws(BucketError) -> any ByteSource {
        guard let reader = object.bucket.driver.reader(of: object.metadata) else {
            throw BucketError(.unavailable, "the version can't be named")
        }
        return try await reader.bytes(range)
    }

    /// Whether an object may be kept at this read. Remembers it otherwise.
    func isUsedEnough(_ bucket: String, _ name: String) -> Bool {
        if settings.minimumUses < 2 { return true }
        let hash = UInt64(bitPattern: Int64(BytewiseString.hash(of: bucket + "/" + name, below: .max)))
        if ghosts.take(hash) { return true }
        ghosts.insert(hash)
        return false
    }

    // MARK: Statistics

    /// The state of the disk and the cause.
    var diskState: (DiskState, String?) { disk.withLock { ($0.state, $0.cause) } }

    /// The cached buckets.
    var bucketStates: [(BytewiseString, BucketState)] {
        buckets.withLock { $0.filter { $1.isCached.load(ordering: .relaxed) }.sorted { $0.key < $1.key } }
    }
}
