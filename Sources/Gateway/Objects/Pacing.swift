import HTTPServer
import System

/// The use of a caller's limits by one request. Confined to its loop.
final class CallerLease {
    let key: CallerLimits.Key
    /// Bytes per second; 0 for no limit.
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

    /// Ends the request's use.
    func end() {
        if isOver { return }
        isOver = true
        limits.end(self)
    }

    /// Wraps a sink so that it accepts no more than the caller may send.
    func pacing(_ sink: any ByteSink) -> any ByteSink {
        rate > 0 && direction == .incoming ? PacedSink(sink, Pace(self)) : sink
    }

    /// Wraps a body so that it supplies no more than the caller may receive.
    func pacing(_ body: consuming ResponseBody) -> ResponseBody {
        guard rate > 0, direction == .outgoing else { return body }
        switch body {
        case .none: return .none
        case .bytes(let bytes):
            if bytes.isEmpty { return .bytes(bytes) }
            return .source(
                PacedSource(BytesSource(bytes), Pace(self)), length: UInt64(bytes.count))
        case .stream: return body
        case .source(let source, let length):
            return .source(PacedSource(source, Pace(self)), length: length)
        }
    }
}

/// Paces the bytes of one body. Confined to its loop.
private final class Pace {
    private let lease: CallerLease
    /// The number of bytes that may move at ``due``.
    private var granted = 0
    private var due: UInt64 = 0
    /// Whether the last bytes were held back by the pace, so that the next attempt must wait for it.
    private(set) var isWaiting = false
    private var resume: (() -> Void)?
    private var timer: LoopTimer?
    private let step: Int

    init(_ lease: CallerLease) {
        self.lease = lease
        step = Pace.step(lease.rate)
    }

    deinit { stop() }

    /// The step in bytes: a hundredth of a second's worth, so that the bodies of one caller share evenly. The lower
    /// limit avoids tiny frames. The upper limit keeps one body from occupying a loop.
    private static func step(_ rate: UInt64) -> Int {
        Int(min(64 * 1024, max(rate / 100, min(rate, 4096))))
    }

    /// Returns how many of `wanted` bytes may move now.
    func take(_ wanted: Int) -> Int {
        let now = lease.limits.now
        if granted == 0 {
            granted = min(wanted, step)
            due = now + lease.limits.reserve(granted, lease)
        }
        isWaiting = due > now
        return isWaiting ? 0 : min(wanted, granted)
    }

    /// Subtracts bytes that have moved.
    func moved(_ count: Int) { granted -= count }

    func whenReady(_ resume: @escaping () -> Void) {
        self.resume = resume
        if timer == nil {
            timer = LoopTimer { [unowned self] in
                self.resume.take()?()
            }
        }
        let now = lease.limits.now
        if let timer { EventLoop.current?.arm(timer, after: due > now ? due - now : 0) }
    }

    /// Stops pacing and gives unused bytes back.
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
        // Continues until all bytes are written, or either the sink or the pace accepts no more and can be waited for.
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
