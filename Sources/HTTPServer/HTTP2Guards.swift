import CNghttp2

/// Counts what a peer can make us do for nothing, and says when it is too much (see ``ServerLimits``).
struct HTTP2Guards {
    /// The connection must end with this code.
    private(set) var violation: nghttp2_error_code?
    private let statistics: ServerStatistics
    private let emptyLimit: Int
    private var resets: TokenBucket
    private var sentResets: TokenBucket
    private var control: TokenBucket
    private var emptyFrames = 0
    private var lastStream: Int32 = 0
    /// Stream numbers that the peer passed over, which it may never use any more.
    private var skipped: [ClosedRange<Int32>] = []
    /// The highest number of a gap that is in ``skipped`` no more.
    private var forgotten: Int32 = 0

    init(_ limits: ServerLimits, _ statistics: ServerStatistics, now: UInt64) {
        self.statistics = statistics
        emptyLimit = limits.emptyFrames
        resets = TokenBucket(burst: limits.resetBurst, perSecond: limits.resetsPerSecond, now: now)
        sentResets = TokenBucket(
            burst: limits.sentResetBurst, perSecond: limits.resetsPerSecond, now: now)
        control = TokenBucket(
            burst: limits.controlFrameBurst, perSecond: limits.controlFramesPerSecond, now: now)
    }

    /// A frame's header has arrived.
    mutating func began(_ header: nghttp2_frame_hd, now: UInt64, isOpen: (Int32) -> Bool) {
        switch UInt32(header.type) {
        case NGHTTP2_DATA.rawValue:
            countEmpty(header, UInt8(NGHTTP2_FLAG_END_STREAM.rawValue))
        case NGHTTP2_HEADERS.rawValue:
            countEmpty(header, UInt8(NGHTTP2_FLAG_END_HEADERS.rawValue))
            let id = header.stream_id
            // nghttp2 passes over a HEADERS frame on a number below an earlier one; RFC 9113, section 5.1.1, wants
            // a connection error where that stream was never opened.
            if id < lastStream, !isOpen(id),
                id <= forgotten || skipped.contains(where: { $0.contains(id) })
            {
                fail(NGHTTP2_PROTOCOL_ERROR, nil)
            } else if id <= lastStream, !isOpen(id), !control.take(now) {
                // The stream is gone: the block is decoded for the table's sake alone.
                fail(NGHTTP2_ENHANCE_YOUR_CALM, .controlFrames)
            }
        case NGHTTP2_RST_STREAM.rawValue:
            if !resets.take(now) { fail(NGHTTP2_ENHANCE_YOUR_CALM, .resetsReceived) }
        default:
            if !control.take(now) { fail(NGHTTP2_ENHANCE_YOUR_CALM, .controlFrames) }
        }
    }

    /// A request's header block begins on a stream.
    mutating func opened(_ id: Int32) {
        if id > lastStream + 2 || (lastStream == 0 && id > 1) {
            skipped.append(max(1, lastStream + 1)...(id - 1))
            // Nobody who means well passes over numbers again and again, or still sends HEADERS on so old a stream.
            if skipped.count > 64 { forgotten = skipped.removeFirst().upperBound }
        }
        lastStream = max(lastStream, id)
    }

    /// DATA that was sent is answered by WINDOW_UPDATE, which must not count as a flood; but who opens the window byte
    /// by byte wants many frames, not many bytes (CVE-2019-9511).
    mutating func dataSent(_ header: nghttp2_frame_hd) {
        let isLast = header.flags & UInt8(NGHTTP2_FLAG_END_STREAM.rawValue) != 0
        if isLast || header.length >= 256 { control.give(4) }
    }

    mutating func resetSent(now: UInt64) {
        if !sentResets.take(now) { fail(NGHTTP2_ENHANCE_YOUR_CALM, .resetsSent) }
    }

    /// nghttp2 gave up with an error of its own.
    mutating func failed(_ code: Int32) {
        switch code {
        case NGHTTP2_ERR_TOO_MANY_CONTINUATIONS.rawValue:
            fail(NGHTTP2_ENHANCE_YOUR_CALM, .continuations)
        case NGHTTP2_ERR_FLOODED.rawValue:
            fail(NGHTTP2_ENHANCE_YOUR_CALM, .queuedControlFrames)
        default: fail(NGHTTP2_PROTOCOL_ERROR, nil)
        }
    }

    private mutating func countEmpty(_ header: nghttp2_frame_hd, _ endFlag: UInt8) {
        guard header.length == 0 && header.flags & endFlag == 0 else {
            emptyFrames = 0
            return
        }
        emptyFrames += 1
        if emptyFrames > emptyLimit { fail(NGHTTP2_ENHANCE_YOUR_CALM, .emptyFrames) }
    }

    private mutating func fail(_ code: nghttp2_error_code, _ limit: LimitKind?) {
        guard violation == nil else { return }
        violation = code
        if let limit { statistics.hit(limit) }
    }
}
