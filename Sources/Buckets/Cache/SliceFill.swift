import OpenSSL
import System

/// One request to the service that fills consecutive slices of an object, for all readers that wait for them.
///
/// It runs on the loop where it was made, at the speed of the service. Readers read behind it from the file. If it is
/// ``lead`` slices ahead of all readers it pauses, and after ``pauseLimit`` it ends, so that no connection to the service is
/// held for a slow client. A reader that then gets to its end begins the next one.
///
/// Safety: `input` is confined to the loop; all else that changes has a lock.
final class SliceFill: @unchecked Sendable {
    /// How a fill has ended.
    enum End: Sendable {
        /// All slices are there, or another fill continues.
        case done
        /// The readers are too slow.
        case paused
        /// Nobody reads it any more, or the request was given up. A reader that came meanwhile begins again.
        case abandoned
        /// Bytes could not be kept.
        case disk(CacheFault)
        /// The service failed, or the version is gone.
        case failed(BucketError)
    }
    private enum Phase {
        /// The request is sent.
        case opening
        /// The response has begun. Its body waits until a reader is allowed to read it.
        case opened
        case filling
        case ended(End)
    }
    /// The slice that is being filled, as far as it is on disk.
    struct Progress: Sendable {
        var reservation: SegmentLog.Reservation?
        /// The checksums of the complete units.
        var units: [UInt32] = []
        /// The checksum of the last unit, if it is not complete.
        var partial = CRC32C()
        /// Of all bytes.
        var total = CRC32C()
        /// In bytes.
        var filled = 0
    }
    /// What a reader finds.
    enum Found {
        /// The slice, as far as it is on disk.
        case progress(Progress)
        /// Nothing yet: it is called when there is more.
        case wait
        /// The slice is complete, or this fill does not reach it.
        case elsewhere
        case ended(End)
    }
    private struct State {
        var phase = Phase.opening
        var slice: UInt32
        var progress = Progress()
        var readers = 1
        /// Whether a reader is allowed to read.
        var isAllowed = false
        /// The slice of the furthest reader.
        var furthest: UInt32
        var waiters: [@Sendable () -> Void] = []
        var openers: [CheckedContinuation<End?, Never>] = []
        /// Where the fill itself waits for readers.
        var pause: Pause?
    }

    /// In slices.
    static let lead: UInt32 = 8
    /// In nanoseconds: 2 s.
    private static let pauseLimit: UInt64 = 2_000_000_000
    private static let buffer = 256 * 1024
    /// What has arrived is written after this time, even if it is little. In nanoseconds: 1 ms.
    private static let delay: UInt64 = 1_000_000
    private static let enough = 64 * 1024

    let object: CachedObject
    let slices: Range<UInt32>
    private let cache: ReadCache
    private let loop: EventLoop
    private let state: Lock<State>
    private var input: (any ObjectReader)?
    /// The slices that this fill has written.
    private var stored: [UInt32] = []
    private var nextMissing: UInt32

    /// Creates a fill with one reader, whose request is about to be sent.
    init(_ object: CachedObject, _ slices: Range<UInt32>, _ cache: ReadCache, _ loop: EventLoop) {
        self.object = object
        self.slices = slices
        self.cache = cache
        self.loop = loop
        nextMissing = slices.lowerBound
        state = Lock(State(slice: slices.lowerBound, furthest: slices.lowerBound))
    }

    /// The bytes of its slices.
    var range: Range<UInt64> {
        CacheLayout.bytes(of: slices.lowerBound, size: object.metadata.size)
            .lowerBound..<CacheLayout.bytes(
                of: slices.upperBound - 1, size: object.metadata.size
            ).upperBound
    }

    // MARK: Readers

    /// Adds a reader, if the fill reaches the slice soon.
    func join(for slice: UInt32) -> Bool {
        let (isJoined, pause) = state.withLock { state -> (Bool, Pause?) in
            if case .ended = state.phase { return (false, nil) }
            guard self.slices.contains(slice), slice >= state.slice, slice - state.slice <= SliceFill.lead else {
                return (false, nil)
            }
            state.readers += 1
            state.furthest = max(state.furthest, slice)
            return (true, state.pause.take())
        }
        pause?.end()
        return isJoined
    }

    /// Whether the fill reaches the slice soon.
    func covers(_ slice: UInt32) -> Bool {
        state.withLock { state in
            if case .ended = state.phase { return false }
            return self.slices.contains(slice) && slice >= state.slice && slice - state.slice <= SliceFill.lead
        }
    }

    /// Removes a reader. Without readers the fill ends.
    func leave() {
        let (isUnread, pause) = state.withLock { state in
            state.readers -= 1
            guard state.readers == 0 else { return (false, nil as Pause?) }
            if case .opened = state.phase {
                state.phase = .ended(.abandoned)
                return (true, nil)
            }
            return (false, state.pause)
        }
        pause?.end()
        if isUnread {
            cache.ended(self)
            loop.runHere {
                self.input?.close()
                self.input = nil
            }
        }
    }

    /// Waits until the response has begun.
    /// - Returns: How the fill has ended, if it has.
    func opened() async -> End? {
        await withCheckedContinuation { waiter in
            let (isOver, end) = state.withLock { state in
                switch state.phase {
                case .opening:
                    state.openers.append(waiter)
                    return (false, nil as End?)
                case .opened, .filling: return (true, nil)
                case .ended(let end): return (true, end)
                }
            }
            if isOver { waiter.resume(returning: end) }
        }
    }

    /// Begins to fill, if it has not begun yet: a reader is allowed to read.
    func begin() {
        let begins = state.withLock { state -> Bool in
            state.isAllowed = true
            guard case .opened = state.phase else { return false }
            state.phase = .filling
            return true
        }
        if begins { start() }
    }

    private func start() {
        loop.runHere {
            _ = Task(executorPreference: self.loop) { await self.run() }
        }
    }

    /// What there is of a slice for a reader, who has not found it in the index.
    /// - Parameters:
    ///   - filled: The bytes of the slice that the reader has already.
    ///   - resume: Called on any thread when there is more, if the result is `.wait`.
    func find(_ slice: UInt32, beyond filled: Int, _ resume: @escaping @Sendable () -> Void) -> Found {
        let (found, pause) = state.withLock { state -> (Found, Pause?) in
            if case .ended(let end) = state.phase { return (.ended(end), nil) }
            guard self.slices.contains(slice), slice >= state.slice else { return (.elsewhere, nil) }
            let isFurther = slice > state.furthest
            if isFurther { state.furthest = slice }
            let pause = isFurther ? state.pause : nil
            if slice == state.slice, state.progress.filled > filled { return (.progress(state.progress), pause) }
            state.waiters.append(resume)
            return (.wait, pause)
        }
        pause?.end()
        return found
    }

    /// Notes how far a reader is.
    func advance(to slice: UInt32) {
        let pause = state.withLock { state -> Pause? in
            guard slice > state.furthest else { return nil }
            state.furthest = slice
            return state.pause
        }
        pause?.end()
    }

    // MARK: Filling

    /// Continues with the response, whose body is read once a reader is allowed to. On the fill's loop.
    func open(_ reader: any ObjectReader) {
        var isAllowed = false
        let openers = state.withLock { state -> [CheckedContinuation<End?, Never>]? in
            if state.readers == 0 { return nil }
            isAllowed = state.isAllowed
            state.phase = isAllowed ? .filling : .opened
            defer { state.openers = [] }
            return state.openers
        }
        guard let openers else {
            reader.close()
            return end(.abandoned)
        }
        input = reader
        for opener in openers { opener.resume(returning: nil) }
        if isAllowed { start() }
    }

    /// Ends the fill.
    func end(_ end: End) {
        cache.ended(self)
        let (waiters, openers) = state.withLock { state in
            state.phase = .ended(end)
            defer { (state.waiters, state.openers) = ([], []) }
            return (state.waiters, state.openers)
        }
        for opener in openers { opener.resume(returning: end) }
        for waiter in waiters { waiter() }
    }

    private func run() async {
        guard let input, let memory = MappedMemory(2 * SliceFill.buffer) else {
            self.input?.close()
            self.input = nil
            return end(.disk(.broken("no memory")))
        }
        self.input = nil
        defer { memory.unmap() }
        let source: any ByteSource
        do throws(BucketError) {
            source = try await input.bytes(range)
        } catch {
            return end(.failed(error))
        }
        var writer = SliceWriter(self, cache, source, memory)
        var outcome = End.done
        for slice in slices {
            if let end = await border(slice) {
                outcome = end
                break
            }
            if let end = await writer.fill(slice, isKept: cache.isMissing(slice, of: object)) {
                outcome = end
                break
            }
            stored.append(slice)
        }
        source.close()
        switch outcome {
        case .failed(let error) where error.isOfOtherBytes: cache.removeDamaged(stored, of: object)
        case .disk(let fault): cache.failed(fault)
        default: break
        }
        end(outcome)
    }

    /// Decides whether the fill continues with a slice.
    private func border(_ slice: UInt32) async -> End? {
        if cache.continues(self, at: slice) { return .done }
        if slice >= nextMissing {
            // Slices that are there already are read again only if others follow that are missing.
            let end = min(slices.upperBound, slice + CachedBucket.lookAhead)
            guard let next = (slice..<end).first(where: { cache.isMissing($0, of: object) }) else { return .done }
            nextMissing = next + 1
        }
        let pause = Pause()
        let waits = state.withLock { state in
            state.slice = slice
            state.progress = Progress()
            guard state.readers > 0, slice > state.furthest, slice - state.furthest > SliceFill.lead else {
                return false
            }
            state.pause = pause
            return true
        }
        if waits { await pause.wait(atMost: SliceFill.pauseLimit) }
        return state.withLock { state in
            state.pause = nil
            if state.readers == 0 { return .abandoned }
            return slice > state.furthest && slice - state.furthest > SliceFill.lead ? .paused : nil
        }
    }

    /// Ends this wait for the service's bytes when the last reader leaves.
    func waits(on pause: Pause?) { state.withLock { $0.pause = pause } }

    /// Whether a slice of which so many bytes are there should be completed.
    func isWanted(_ filled: Int, of length: Int) -> Bool { state.withLock { $0.readers > 0 } || filled >= length / 2 }

    /// Shows what is on disk.
    func publish(_ progress: Progress) {
        let waiters = state.withLock { state in
            state.progress = progress
            defer { state.waiters = [] }
            return state.waiters
        }
        for waiter in waiters { waiter() }
    }

    /// Shows that a slice is complete, and can be found in the index.
    func completed(_ slice: UInt32) {
        let waiters = state.withLock { state in
            state.slice = slice + 1
            state.progress = Progress()
            defer { state.waiters = [] }
            return state.waiters
        }
        for waiter in waiters { waiter() }
    }

    /// How long arrived bytes may wait for more, and how many do not wait. In nanoseconds and in bytes.
    static var batching: (delay: UInt64, enough: Int, buffer: Int) { (delay, enough, buffer) }
}
