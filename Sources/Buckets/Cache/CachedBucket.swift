import System
import Wire

/// How a read was served, for the field `Cache-Status` (RFC 9211), logs and metrics.
public struct CacheOutcome: Sendable, Equatable {
    /// What the response is made of.
    public enum Result: String, Sendable, Equatable {
        /// No request to the service.
        case hit
        /// The service was asked whether the version is current; the bytes are from the disk.
        case validated
        /// The bytes are from the service.
        case miss
        /// Some bytes are from the disk.
        case partial
        /// The service does not respond: the last known version.
        case stale
        /// The cache had no part in it.
        case bypass
        /// Another version than the known one is current: its bytes are from the service.
        case replaced
    }
    /// What the response is made of.
    public var result: Result
    /// Whether the bytes are kept.
    public var isStored = false
    /// Whether bytes of a ``Result/stale`` version are from the service.
    public var isForwarded = false
    /// Whether another read requested the bytes.
    public var isCollapsed = false
    /// How old the knowledge of the current version is, and how long it may be used, in seconds; nil without a
    /// time-to-live.
    public var age: Int64?, timeToLive: Int64?

    public init(_ result: Result) { self.result = result }

    /// Whether the decision was made with metadata that was known before the request.
    public var isRemembered: Bool { result == .hit || result == .stale }
}

/// An object that was opened through the cache. Confined to one loop.
public struct CachedRead {
    /// The bytes, or a reader of the driver's own.
    public let reader: any ObjectReader
    public let outcome: CacheOutcome
    /// Whether the metadata was known before the request. A denial because of it must not be sent.
    public let isRemembered: Bool
}

/// A version of an object in a bucket with a cache.
struct CachedObject: Sendable {
    let known: KnownObject
    let bucket: CachedBucket

    var metadata: ObjectMetadata { known.metadata }
    var key: ObjectKey { known.key }
}

/// The cache of one bucket, with its settings. Any thread may use it.
public final class CachedBucket: Sendable {
    /// Objects of at most this size are not kept if each read asks anyway, because their bytes cost the same request.
    static let small: UInt64 = 64 * 1024
    /// Objects of at most this size are kept in memory, too.
    static let inMemory = 4096
    /// The number of slices that are looked up before a response, 4 GiB. Those that follow are looked up when they are due.
    static let lookAhead: UInt32 = 4096
    /// Larger objects are not kept: 1 PiB.
    private static let largest: UInt64 = 1 << 50
    /// How often a read begins again because the object was replaced.
    private static let attempts = 3

    private let name: String
    let driver: any PinnedReads
    private let state: ReadCache.BucketState
    let cache: ReadCache
    private let freshness: ReadCache.Freshness
    /// In nanoseconds.
    private let staleIfError: UInt64

    init(
        _ name: String, _ driver: any PinnedReads, _ state: ReadCache.BucketState, _ cache: ReadCache,
        _ freshness: ReadCache.Freshness, staleIfError: UInt64
    ) {
        self.name = name
        self.driver = driver
        self.state = state
        self.cache = cache
        self.freshness = freshness
        self.staleIfError = staleIfError
    }

    var statistics: CacheStatistics { state.statistics }
    private var known: KnownObjects { state.known }

    /// Whether the checksum of the whole object was compared.
    func isVerified(_ object: CachedObject) -> Bool {
        object.known.isVerified || known.isVerified(object.metadata.name, object.key)
    }

    /// Keeps the bytes of a small object in memory.
    func keep(_ bytes: [UInt8], of object: CachedObject) { known.keep(bytes, of: object.metadata.name, object.key) }

    func noteVerified(_ object: CachedObject) { known.noteVerified(object.metadata.name, object.key) }

    // MARK: Changes

    /// Makes a change. What is known of the object is forgotten before and after it, whatever its result.
    public func change<Result, Failure: Error>(
        _ name: String, _ body: () async throws(Failure) -> Result
    ) async throws(Failure) -> Result {
        known.beginChange(name)
        defer { known.endChange(name) }
        return try await body()
    }

    /// Forgets what is known of the object.
    public func forget(_ name: String) { known.forget(name) }

    // MARK: Reads

    /// The metadata of the current object.
    /// - Parameter mustAsk: Whether the service must be asked, whatever is known.
    /// - Throws: ``BucketError``, as the driver.
    public func stat(_ name: String, mustAsk: Bool) async throws(BucketError) -> (ObjectMetadata, CacheOutcome) {
        let (object, result) = try await current(name, mustAsk: mustAsk)
        return (object.metadata, counted(outcome(result, object)))
    }

    /// Opens the current object, as ``BucketDriver/open(_:_:)``.
    /// - Parameter mustAsk: Whether the service must be asked, whatever is known.
    public func open(_ name: String, _ plan: ReadPlan, mustAsk: Bool) async throws(BucketError) -> CachedRead {
        guard plan.part == nil, !isSmall(name) else { return try await bypass(name, plan) }
        var mustAsk = mustAsk
        if !mustAsk, freshness != .validate, let object = known.find(name),
            object.asked >= since(cache.clock(), mustAsk: false)
        {
            if let read = try await open(CachedObject(known: object, bucket: self), .hit, plan) { return read }
            mustAsk = true
        }
        for _ in 0..<CachedBucket.attempts {
            switch try await openFirst(name, plan) {
            case .read(let read): return read
            case .replaced: break
            case .known:
                let (object, result) = try await current(name, mustAsk: mustAsk)
                if let read = try await open(object, result, plan) { return read }
            }
            mustAsk = true
        }
        throw BucketError(.overloaded, "the object is being replaced by others again and again")
    }

    /// Whether a read of the bytes costs no more than the question which version is current.
    private func isSmall(_ name: String) -> Bool {
        guard freshness == .validate, staleIfError == 0, let object = known.find(name) else { return false }
        return object.metadata.size <= CachedBucket.small
    }

    /// Opens the object without the cache.
    private func bypass(_ name: String, _ plan: ReadPlan) async throws(BucketError) -> CachedRead {
        let reader: any ObjectReader
        do throws(BucketError) { reader = try await driver.open(name, plan) } catch {
            if error.code == .objectNotFound { known.forget(name) }
            throw error
        }
        // Its size may have changed.
        if reader.metadata.size > CachedBucket.small, plan.part == nil { known.forget(name) }
        return CachedRead(reader: reader, outcome: counted(CacheOutcome(.bypass)), isRemembered: false)
    }

    /// The earliest time at which the request for the metadata may have been sent.
    private func since(_ now: UInt64, mustAsk: Bool) -> UInt64 {
        if mustAsk { return now }
        switch freshness {
        case .validate: return now
        case .limited(let limit): return now > limit ? now - limit : 0
        case .forever: return 0
        }
    }

    /// What is known of the current version, after a request to the service if necessary.
    private func current(_ name: String, mustAsk: Bool) async throws(BucketError) -> (CachedObject, CacheOutcome.Result)
    {
        let begin = cache.clock()
        let since = since(begin, mustAsk: mustAsk)
        while true {
            let outcome: KnownObjects.Flight.Outcome
            var last: KnownObject?
            switch known.step(name, since: since, now: cache.clock()) {
            case .use(let object):
                return (CachedObject(known: object, bucket: self), object.asked < begin ? .hit : .validated)
            case .wait(let flight, let isShared):
                last = known.find(name)
                outcome = await flight.wait()
                if !isShared { continue }
                statistics.countAsk(isShared: true)
            case .ask(let flight, let earlier):
                last = earlier
                outcome = await ask(name, flight)
            }
            switch outcome {
            case .known(let object):
                let isSame = last.map { $0.key == object.key }
                let result: CacheOutcome.Result = isSame == nil ? .miss : isSame! ? .validated : .replaced
                return (CachedObject(known: object, bucket: self), result)
            case .abandoned:
                if Task.isCancelled { throw BucketError(.unavailable, "read: the reader is gone") }
            case .failed(let error):
                if !mustAsk, let last, mayUse(last, after: error) {
                    return (CachedObject(known: last, bucket: self), .stale)
                }
                throw error
            }
        }
    }

    /// Whether a known version is served although the service does not respond.
    private func mayUse(_ last: KnownObject, after error: BucketError) -> Bool {
        guard staleIfError > 0, [.unavailable, .timedOut, .overloaded].contains(error.code),
            known.find(last.metadata.name)?.asked == last.asked
        else { return false }
        let limit: UInt64
        switch freshness {
        case .validate: limit = staleIfError
        case .limited(let lifetime): limit = lifetime &+ staleIfError
        case .forever: return true
        }
        return cache.clock() &- last.asked <= limit
    }

    /// Asks the service for the metadata.
    private func ask(_ name: String, _ flight: KnownObjects.Flight) async -> KnownObjects.Flight.Outcome {
        statistics.countAsk(isShared: false)
        var outcome: KnownObjects.Flight.Outcome
        do throws(BucketError) {
            outcome = .known(object(try await driver.stat(name), flight).known)
        } catch {
            outcome = Task.isCancelled ? .abandoned : .failed(error)
        }
        outcome = known.end(name, flight, outcome)
        if case .abandoned = outcome { return .failed(BucketError(.unavailable, "read: the reader is gone")) }
        return outcome
    }

    private func object(_ metadata: ObjectMetadata, _ flight: KnownObjects.Flight) -> CachedObject {
        let key = ObjectKey(name, metadata, salt: cache.log.salt)
        return CachedObject(
            known: KnownObject(metadata: metadata, asked: flight.sent, key: key, isKept: mayKeep(metadata)),
            bucket: self)
    }

    // MARK: The first read

    private enum FirstRead {
        case read(CachedRead)
        /// Something is known of the object, or another request for it is in flight.
        case known
        /// The object was replaced: begin again.
        case replaced
    }

    /// Opens an object of which nothing is known, with one request for metadata and bytes.
    private func openFirst(_ name: String, _ plan: ReadPlan) async throws(BucketError) -> FirstRead {
        // The slices of a suffix depend on the size.
        if case .suffix? = plan.range { return .known }
        guard let flight = known.beginFirst(name, now: cache.clock()) else { return .known }
        let mayFill = cache.admits && cache.isUsedEnough(self.name, name)
        var wide = plan
        if mayFill { wide.range = plan.range?.widened }
        let reader: any ObjectReader
        do throws(BucketError) {
            reader = try await driver.open(name, wide)
        } catch {
            known.end(name, flight, Task.isCancelled ? .abandoned : .failed(error))
            throw error
        }
        let object = object(reader.metadata, flight)
        // A fill is found by those who wait for the metadata.
        let read = mayFill ? fill(object, reader, plan) : nil
        known.end(name, flight, .known(object.known))
        if let read { return .read(read) }
        guard selected(plan, object.metadata) == nil || wide == plan else {
            reader.close()
            guard let read = try await open(object, .miss, plan) else { return .replaced }
            return .read(read)
        }
        return .read(CachedRead(reader: reader, outcome: counted(outcome(.miss, object)), isRemembered: false))
    }

    /// Fills the missing slices from a response that has begun.
    /// - Returns: nil if the reader is to be used as it is.
    private func fill(_ object: CachedObject, _ reader: any ObjectReader, _ plan: ReadPlan) -> CachedRead? {
        guard object.known.isKept, !isTooSmall(object.metadata), let range = selected(plan, object.metadata),
            let loop = EventLoop.current
        else {
            return nil
        }
        let slices = CacheLayout.slices(of: range)
        guard let missing = cache.missing(slices, of: object) else {
            reader.close()
            return read(object, .validated, nil, loop)
        }
        guard missing.lowerBound == slices.lowerBound,
            let (fill, isNew) = cache.fill(for: object, slices, isWhole: true, loop)
        else { return nil }
        if isNew { fill.open(reader) } else { reader.close() }
        return read(object, .miss, fill, loop, isCollapsed: !isNew)
    }

    // MARK: Further reads

    /// Opens a version.
    /// - Returns: nil if it is gone: begin again.
    private func open(_ object: CachedObject, _ result: CacheOutcome.Result, _ plan: ReadPlan)
        async throws(BucketError) -> CachedRead?
    {
        guard let loop = EventLoop.current else { throw BucketError(.internal, "a reader belongs on a loop") }
        guard let range = selected(plan, object.metadata) else { return read(object, result, nil, loop) }
        guard object.known.isKept, !isTooSmall(object.metadata) else {
            return try await bypass(object.metadata.name, plan)
        }
        if object.known.bytes != nil { return read(object, result, nil, loop) }
        let slices = CacheLayout.slices(of: range)
        guard let missing = missing(slices, range, object) else { return read(object, result, nil, loop) }
        let found: CacheOutcome.Result =
            result == .stale ? .stale : missing != slices ? .partial : result == .replaced ? .replaced : .miss
        let isRemembered = result == .hit || result == .stale
        if cache.isUsedEnough(name, object.metadata.name),
            let (fill, isNew) = cache.fill(for: object, missing, loop)
        {
            switch isNew ? await cache.request(fill) : await fill.opened() {
            case nil, .done?, .paused?, .disk?:
                return read(object, found, fill, loop, isCollapsed: !isNew, isRemembered: isRemembered)
            case .abandoned?:
                fill.leave()
                if Task.isCancelled { throw BucketError(.unavailable, "read: the reader is gone") }
            case .failed(let error)?:
                fill.leave()
                if error.code != .replaced { throw error }
                known.forget(object.metadata.name, object.known)
                return nil
            }
        }
        do throws(BucketError) {
            let source = try await cache.read(object, range)
            let reader = DirectReader(object.metadata, range, source)
            var outcome = outcome(result == .stale ? .stale : .bypass, object)
            outcome.isForwarded = true
            return CachedRead(reader: reader, outcome: counted(outcome), isRemembered: isRemembered)
        } catch {
            if error.code != .replaced { throw error }
            known.forget(object.metadata.name, object.known)
            return nil
        }
    }

    /// The missing slices of a range. If the whole object is there, its checksum is compared once.
    private func missing(_ slices: Range<UInt32>, _ range: Range<UInt64>, _ object: CachedObject) -> Range<UInt32>? {
        if let missing = cache.missing(slices, of: object) { return missing }
        guard range == 0..<object.metadata.size, slices.count <= CachedBucket.lookAhead,
            let crc32c = object.metadata.crc32c, !isVerified(object)
        else {
            return nil
        }
        guard let found = cache.checksum(of: object) else { return cache.missing(slices, of: object) }
        if found == crc32c {
            noteVerified(object)
            return nil
        }
        cache.removeDamaged(object)
        return slices
    }

    /// Whether an object's bytes are kept: not if it forbids it, or if its version can't be named in a request.
    private func mayKeep(_ object: ObjectMetadata) -> Bool {
        if object.attributes.cacheControl?.asciiLowercased().contains("no-store") == true { return false }
        return (1...CachedBucket.largest).contains(object.size)
            && driver.reader(of: object) != nil
    }

    private func isTooSmall(_ object: ObjectMetadata) -> Bool {
        freshness == .validate && staleIfError == 0 && object.size <= CachedBucket.small
    }

    /// The bytes that a read needs; nil if it needs none.
    private func selected(_ plan: ReadPlan, _ object: ObjectMetadata) -> Range<UInt64>? {
        guard object.size > 0, plan.conditions.isEmpty || plan.conditions.evaluate(object, reading: true) == nil else {
            return nil
        }
        switch plan.range?.select(size: object.size) ?? .whole {
        case .whole: return 0..<object.size
        case .part(let part): return part
        case .unsatisfiable: return nil
        }
    }

    private func read(
        _ object: CachedObject, _ result: CacheOutcome.Result, _ fill: SliceFill?, _ loop: EventLoop,
        isCollapsed: Bool = false, isRemembered: Bool? = nil
    ) -> CachedRead {
        var outcome = outcome(result, object)
        outcome.isStored = fill != nil
        outcome.isForwarded = fill != nil
        outcome.isCollapsed = isCollapsed
        let isRemembered = isRemembered ?? outcome.isRemembered
        return CachedRead(
            reader: CachedReader(object, fill, isCollapsed: isCollapsed, cache, loop), outcome: counted(outcome),
            isRemembered: isRemembered)
    }

    private func outcome(_ result: CacheOutcome.Result, _ object: CachedObject) -> CacheOutcome {
        var outcome = CacheOutcome(result)
        guard case .limited(let lifetime) = freshness else { return outcome }
        let age = cache.clock() &- object.known.asked
        outcome.age = Int64(age / 1_000_000_000)
        outcome.timeToLive = (Int64(clamping: lifetime) - Int64(clamping: age)) / 1_000_000_000
        return outcome
    }

    private func counted(_ outcome: CacheOutcome) -> CacheOutcome {
        statistics.count(outcome.result)
        return outcome
    }
}

extension ByteRange {
    /// The range with the slices that it begins and ends in; nil for a suffix, which depends on the size.
    fileprivate var widened: ByteRange? {
        guard case .from(let first, let last) = self else { return nil }
        let slice = UInt64(CacheLayout.slice)
        let end = last.flatMap { $0 / slice < UInt64.max / slice ? ($0 / slice + 1) * slice - 1 : nil }
        return .from(first / slice * slice, through: end)
    }
}
