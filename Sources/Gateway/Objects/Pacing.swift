import HTTPServer
import System

/// What one request of a caller with limits uses. Confined to its loop.
final class CallerLease {
    let key: CallerLimits.Key
    /// Bytes each second; 0 is no limit.
    let rate: UInt64
    let direction: CallerLimits.Direction
    fileprivate let limits: CallerLimits
    private var isOver = false

    init(
        _ limits: CallerLimits, _ key: CallerLimits.Key, _ rate: UInt64,
        _ direction: CallerLimits.Direction
    ) {
        self.limits = limits
        self.key = key
        self.rate = rate
        self.direction = direction
    }

    deinit { end() }

    /// The request is over.
    func end() {
        if isOver { return }
        isOver = true
        limits.end(self)
    }

    /// A sink that takes no more than the caller may send.
    func pacing(_ sink: any ByteSink) -> any ByteSink {
        rate > 0 && direction == .incoming ? PacedSink(sink, Pace(self)) : sink
    }

    /// A body that gives no more than the caller may take.
    func pacing(_ body: consuming ResponseBody) -> ResponseBody {
        guard rate > 0, direction == .outgoing else { return body }
        switch body {
        case .none: return .none
        case .bytes(let bytes):
            if bytes.isEmpty { return .bytes(bytes) }
            return .source(
                PacedSource(BytesSource(bytes), Pace(self)), length: UInt64(bytes.count))
        case .source(let source, let length):
            return .source(PacedSource(source, Pace(self)), length: length)
        }
    }
}

/// Gives the bytes of one body their turns. Confined to its loop.
private final class Pace {
    private let lease: CallerLease
    /// Bytes whose turn has come, or comes at ``due``.
    private var granted = 0
    private var due: UInt64 = 0
    /// Whether bytes were refused: then it is this that must be waited for.
    private(set) var isWaiting = false
    private var resume: (() -> Void)?
    private var timer: LoopTimer?
    private let step: Int

    init(_ lease: CallerLease) {
        self.lease = lease
        step = Pace.step(lease.rate)
    }

    deinit { stop() }

    /// Bytes of one turn: a hundredth of a second's worth, so that callers' bodies share evenly, but no crumbs, of
    /// which each would be a frame, and not so many that one of them keeps a loop.
    private static func step(_ rate: UInt64) -> Int {
        Int(min(64 * 1024, max(rate / 100, min(rate, 4096))))
    }

    /// How many of `wanted` bytes may move now.
    func take(_ wanted: Int) -> Int {
        let now = lease.limits.now
        if granted == 0 {
            granted = min(wanted, step)
            due = now + lease.limits.reserve(granted, lease)
        }
        isWaiting = due > now
        return isWaiting ? 0 : min(wanted, granted)
    }

    /// So many bytes have moved.
    func moved(_ count: Int) { granted -= count }

    func whenReady(_ resume: @escaping () -> Void) {
        self.resume = resume
        if timer == nil {
            timer = LoopTimer { [unowned self] in
                let resume = self.resume
                self.resume = nil
                resume?()
            }
        }
        let now = lease.limits.now
        if let timer { EventLoop.current?.arm(timer, after: due > now ? due - now : 0) }
    }

    /// Nothing moves any more.
    func stop() {
        resume = nil
        if let timer { EventLoop.current?.disarm(timer) }
        if granted > 0 { lease.limits.giveBack(granted, lease) }
        granted = 0
    }
}

private final class PacedSink: ByteSink {
    private let sink: any ByteSink
    private let pace: Pace

    init(_ sink: any ByteSink, _ pace: Pace) {
        self.sink = sink
        self.pace = pace
    }

    func write(_ bytes: RawSpan) throws -> Int {
        var total = 0
        // To the end, or until one of both takes no more: only then it can be waited for.
        while total < bytes.byteCount {
            let allowed = pace.take(bytes.byteCount - total)
            if allowed == 0 { break }
            let taken = try sink.write(bytes.extracting(total..<total + allowed))
            pace.moved(taken)
            total += taken
            if taken < allowed { break }
        }
        return total
    }

    func whenWritable(_ resume: @escaping () -> Void) {
        if pace.isWaiting { pace.whenReady(resume) } else { sink.whenWritable(resume) }
    }
}

private final class PacedSource: ByteSource {
    private let source: any ByteSource
    private let pace: Pace

    init(_ source: any ByteSource, _ pace: Pace) {
        self.source = source
        self.pace = pace
    }

    func read(into buffer: inout MutableRawSpan) throws -> SourceRead {
        let allowed = pace.take(buffer.byteCount)
        guard allowed > 0 else { return .wait }
        var part = buffer._mutatingExtracting(first: allowed)
        let read = try source.read(into: &part)
        if case .bytes(let count) = read { pace.moved(count) }
        return read
    }

    func whenReadable(_ resume: @escaping () -> Void) {
        if pace.isWaiting { pace.whenReady(resume) } else { source.whenReadable(resume) }
    }

    func close() {
        pace.stop()
        source.close()
    }
}
