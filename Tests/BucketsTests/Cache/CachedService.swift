import BucketConformance
import OpenSSL
import System
import Wire

@testable import Buckets

/// A service in memory whose answers a test controls. It remembers all versions of its objects.
///
/// Safety: all its state is behind one lock.
final class CachedService: PinnedReads, @unchecked Sendable {
    /// An object's version, or its absence.
    struct Version: Sendable {
        var metadata: ObjectMetadata?
        var bytes: ArraySlice<UInt8> = []
        /// Its place among all changes of all objects, and the time.
        var born: Int
        var bornAt: UInt64
        /// nil while it is current.
        var died: Int?
        var diedAt: UInt64?
    }
    struct State {
        /// By name, oldest first.
        var versions: [String: [Version]] = [:]
        /// The number of changes and of failures so far.
        var changes = 0
        var troubles = 0
        /// What was asked.
        var stats = 0, opens = 0, pinned = 0
        /// The ranges of the pinned reads.
        var ranges: [Range<UInt64>] = []
        /// Bytes of bodies that were sent.
        var sent = 0
        /// Sources and readers that are open.
        var open = 0
        /// What each request throws.
        var fault: BucketError?
        /// After how many bytes the next bodies break off. Used once for each body.
        var cuts: [Int] = []
        /// How many of the next bodies have a wrong byte.
        var wrongBodies = 0
        /// The objects for whose reads wrong bytes were noticed.
        var wrongNames: Set<String> = []
        /// Whether wrong bytes are noticed, as by a driver that compares the checksum of a whole object.
        var noticesWrongBytes = true
        /// The most bytes of a read, and whether each second read waits.
        var piece = Int.max
        var isSlow = false
        /// The bytes that bodies may have; nil for any number.
        var allowance: Int?
        /// Runs once, before the next pinned read, and before the next answer to a stat.
        var beforePinned: (@Sendable () -> Void)?
        var beforeStatAnswer: (@Sendable () async -> Void)?
        var waiters: [@Sendable () -> Void] = []
    }
    private let state = Lock(State())
    private let now: @Sendable () -> UInt64

    init(_ now: @escaping @Sendable () -> UInt64 = { 0 }) { self.now = now }

    func with<T>(_ body: (inout State) -> T) -> T { state.withLock(body) }

    /// All requests so far.
    var requests: Int { with { $0.stats + $0.opens + $0.pinned } }

    /// Lets all bodies have so many more bytes; nil for all.
    func allow(_ count: Int?) {
        let waiters = with { state in
            state.allowance = count.map { (state.allowance ?? 0) + $0 }
            defer { state.waiters = [] }
            return state.waiters
        }
        for waiter in waiters { waiter() }
    }

    // MARK: Changes

    /// Random bytes, of which contents are parts.
    static let material = pattern(24 << 20, seed: 7)

    /// Stores an object of this size.
    @discardableResult
    func put(_ name: String, _ size: Int, _ attributes: ObjectAttributes = .init()) -> ObjectMetadata {
        with { state in
            let generation = Int64(state.changes + 1)
            let room = CachedService.material.count - size
            let start = Int(generation) * 104_729 % max(1, room)
            let bytes = CachedService.material[start..<start + size]
            var crc = CRC32C()
            bytes.withUnsafeBytes { crc.update($0.bytes) }
            let metadata = ObjectMetadata(
                name: name, generation: generation, metageneration: 1, size: UInt64(size), created: 784_111_777_123,
                updated: 784_111_777_123 + generation, md5: nil, crc32c: crc.value, etag: "e\(generation)",
                attributes: attributes)
            change(&state, name, metadata, bytes)
            return metadata
        }
    }

    /// Changes an object's metadata only.
    func patch(_ name: String, _ text: String) {
        with { state in
            guard let last = state.versions[name]?.last, let metadata = last.metadata else { return }
            var patch = AttributePatch()
            patch.contentType = .set(text)
            change(&state, name, metadata.patched(patch, now: metadata.updated + 1), last.bytes)
        }
    }

    func delete(_ name: String) { with { state in change(&state, name, nil, []) } }

    private func change(_ state: inout State, _ name: String, _ metadata: ObjectMetadata?, _ bytes: ArraySlice<UInt8>) {
        state.changes += 1
        let time = now()
        var all = state.versions[name] ?? [Version(born: 0, bornAt: 0)]
        all[all.count - 1].died = state.changes
        all[all.count - 1].diedAt = time
        all.append(Version(metadata: metadata, bytes: bytes, born: state.changes, bornAt: time))
        state.versions[name] = all
    }

    /// The version with this metadata.
    func version(_ metadata: ObjectMetadata) -> Version? {
        with { state in
            state.versions[metadata.name]?.last {
                $0.metadata?.generation == metadata.generation && $0.metadata?.metageneration == metadata.metageneration
            }
        }
    }

    // MARK: Reads

    private func begin(_ count: (inout State) -> Void) throws(BucketError) {
        let fault = with { state in
            count(&state)
            if state.fault != nil { state.troubles += 1 }
            return state.fault
        }
        if let fault { throw fault }
    }

    private func current(_ name: String) throws(BucketError) -> Version {
        guard let version = with({ $0.versions[name]?.last }), version.metadata != nil else {
            throw BucketError(.objectNotFound)
        }
        return version
    }

    func capabilities() -> Capabilities { .all }

    func stat(_ name: String) async throws(BucketError) -> ObjectMetadata {
        try begin { $0.stats += 1 }
        let outcome = Result { () throws(BucketError) in try current(name) }
        // The answer is of before, however late it arrives.
        if let wait = with({ $0.beforeStatAnswer.take() }) { await wait() }
        return try outcome.get().metadata!
    }

    func open(_ name: String, _ plan: ReadPlan) async throws(BucketError) -> any ObjectReader {
        try begin { $0.opens += 1 }
        return CachedServiceReader(self, try current(name), isPinned: false)
    }

    func reader(of object: ObjectMetadata) -> (any ObjectReader)? {
        guard let version = version(object) else { return nil }
        return CachedServiceReader(self, version, isPinned: true)
    }

    fileprivate func beginPinned(_ version: Version, _ range: Range<UInt64>) throws(BucketError) {
        with({ $0.beforePinned.take() })?()
        try begin { state in
            state.pinned += 1
            state.ranges.append(range)
        }
        // A change of the metadata only leaves the generation.
        guard (try? current(version.metadata!.name))?.metadata?.generation == version.metadata!.generation else {
            with { $0.troubles += 1 }
            throw BucketError(.replaced)
        }
    }

    // MARK: What the cache does not use

    func beginUpload(_ name: String, _ plan: UploadPlan) async throws(BucketError) -> any Upload {
        throw BucketError(.unsupported)
    }

    func patch(_ name: String, _ patch: AttributePatch, _ preconditions: Preconditions)
        async throws(BucketError) -> ObjectMetadata
    { throw BucketError(.unsupported) }

    func delete(_ name: String, _ preconditions: Preconditions) async throws(BucketError) {
        throw BucketError(.unsupported)
    }

    func list(_ query: ListQuery, after: String?) async throws(BucketError) -> ListPage {
        throw BucketError(.unsupported)
    }

    func checkHealth() async throws(BucketError) {}

    func close() async {}
}

/// Confined to its loop.
private final class CachedServiceReader: ObjectReader, ByteSource {
    private let service: CachedService
    private let version: CachedService.Version
    private let isPinned: Bool
    private var rest: ArraySlice<UInt8> = []
    private var cut: Int?
    private var isWrong = false
    private var waited = false
    private var isOpen = true

    init(_ service: CachedService, _ version: CachedService.Version, isPinned: Bool) {
        self.service = service
        self.version = version
        self.isPinned = isPinned
        service.with { $0.open += 1 }
    }

    deinit { close() }

    var metadata: ObjectMetadata { version.metadata! }

    func readyBytes(_ range: Range<UInt64>) throws(BucketError) -> (any ByteSource)? { nil }

    func bytes(_ range: Range<UInt64>) async throws(BucketError) -> any ByteSource {
        if isPinned { try service.beginPinned(version, range) }
        let start = version.bytes.startIndex
        rest = version.bytes[(start + Int(range.lowerBound))..<(start + Int(range.upperBound))]
        let isWhole = range == 0..<metadata.size
        try service.with { state -> Result<Void, BucketError> in
            if !state.cuts.isEmpty { cut = state.cuts.removeFirst() }
            if state.wrongBodies > 0, !rest.isEmpty {
                state.wrongBodies -= 1
                isWrong = true
                rest[rest.index(before: rest.endIndex)] ^= 1
                guard state.noticesWrongBytes, !isWhole else { return .success(()) }
                state.troubles += 1
                state.wrongNames.insert(metadata.name)
                return .failure(BucketError(otherBytes: "wrong bytes"))
            }
            return .success(())
        }.get()
        return self
    }

    func read(into buffer: inout MutableRawSpan) throws -> SourceRead {
        guard !rest.isEmpty else { return .end }
        let room = buffer.byteCount
        let found: Result<SourceRead, BucketError> = service.with { state in
            if state.isSlow, !waited {
                waited = true
                return .success(.wait)
            }
            waited = false
            if cut == 0 {
                state.troubles += 1
                return .failure(BucketError(.unavailable, "the body is cut"))
            }
            let count = min(state.piece, rest.count, room, cut ?? .max, state.allowance ?? .max)
            if count == 0 { return .success(.wait) }
            if isWrong, state.noticesWrongBytes, count == rest.count {
                state.troubles += 1
                state.wrongNames.insert(metadata.name)
                return .failure(BucketError(otherBytes: "wrong bytes"))
            }
            cut = cut.map { $0 - count }
            state.allowance = state.allowance.map { $0 - count }
            state.sent += count
            return .success(.bytes(count))
        }
        guard case .bytes(let count) = try found.get() else { return .wait }
        buffer.withUnsafeMutableBytes { target in
            rest.withUnsafeBytes { target.copyMemory(from: UnsafeRawBufferPointer(rebasing: $0[..<count])) }
        }
        rest = rest.dropFirst(count)
        return .bytes(count)
    }

    func whenReadable(_ resume: @escaping () -> Void) {
        let loop = EventLoop.current!
        // Safety: called on this loop.
        nonisolated(unsafe) let resume = resume
        let waits = service.with { state in
            guard state.allowance == 0 else { return false }
            state.waiters.append { loop.execute { resume() } }
            return true
        }
        if !waits { loop.execute { resume() } }
    }

    func close() {
        if isOpen { service.with { $0.open -= 1 } }
        isOpen = false
    }
}
