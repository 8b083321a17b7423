import CNghttp2
import System

/// Counts the work that a peer can cause at no cost of its own, and decides when the connection must end (see
/// ``ServerLimits``). Only the first violation counts.
///
/// | event                                                            | violation, after                  |
/// |------------------------------------------------------------------|-----------------------------------|
/// | `arrived`: DATA or HEADERS on a stream that the peer ended       | STREAM_CLOSED                     |
/// | `began`: empty DATA or HEADERS that does not end its stream/block | ENHANCE_YOUR_CALM, `emptyFrames` in a row |
/// | `began`: HEADERS on a stream that the peer skipped               | PROTOCOL_ERROR                    |
/// | `began`: HEADERS on a closed stream that we ended, or long ago    | ENHANCE_YOUR_CALM, `controlFrames` |
/// | `began`: RST_STREAM                                              | ENHANCE_YOUR_CALM, `resetsReceived` |
/// | `began`: any other frame but DATA                                | ENHANCE_YOUR_CALM, `controlFrames` |
/// | `resetSent`                                                      | ENHANCE_YOUR_CALM, `resetsSent`   |
/// | `failed`: too many CONTINUATION frames                           | ENHANCE_YOUR_CALM, `continuations` |
/// | `failed`: nghttp2's queue of responses is full                   | ENHANCE_YOUR_CALM, `queuedControlFrames` |
/// | `failed`: any other error                                        | PROTOCOL_ERROR                    |
/// | `dataSent`: at least 256 bytes, or the last                      | none: returns four `controlFrames` |
/// | `opened`                                                         | none: records skipped streams     |
struct HTTP2Guards {
    /// The error code with which the connection must end.
    private(set) var violation: nghttp2_error_code?
    private let statistics: ServerStatistics
    private let emptyLimit: Int
    private var resets: RateLimit
    private var sentResets: RateLimit
    private var control: RateLimit
    private var emptyFrames = 0
    private var ended = EndedStreams()
    private var lastStream: Int32 = 0
    /// The maximum number of skipped ranges kept. A well-behaved peer does not skip as many.
    private static let maximumSkipped = 64
    /// Stream identifiers that the peer skipped and can no longer use.
    private var skipped: [ClosedRange<Int32>] = []
    private var forgotten: Int32 = 0

    init(_ limits: ServerLimits, _ statistics: ServerStatistics) {
        self.statistics = statistics
        emptyLimit = limits.emptyFrames
        resets = RateLimit(burst: limits.resetBurst, perSecond: limits.resetsPerSecond)
        sentResets = RateLimit(burst: limits.sentResetBurst, perSecond: limits.resetsPerSecond)
        control = RateLimit(burst: limits.controlFrameBurst, perSecond: limits.controlFramesPerSecond)
    }

    /// Receives bytes before nghttp2 does.
    mutating func arrived(_ bytes: UnsafeRawBufferPointer) {
        if ended.arrived(bytes) { fail(NGHTTP2_STREAM_CLOSED, nil) }
    }

    mutating func began(_ header: nghttp2_frame_hd, now: UInt64, isOpen: (Int32) -> Bool) {
        switch UInt32(header.type) {
        case NGHTTP2_DATA.rawValue:
            countEmpty(header, UInt8(NGHTTP2_FLAG_END_STREAM.rawValue))
        case NGHTTP2_HEADERS.rawValue:
            countEmpty(header, UInt8(NGHTTP2_FLAG_END_HEADERS.rawValue))
            let id = header.stream_id
            // nghttp2 ignores HEADERS with an identifier below an earlier one. RFC 9113, section 5.1.1, requires a
            // connection error if that stream was never opened.
            if id < lastStream, !isOpen(id),
                id <= forgotten || skipped.contains(where: { $0.contains(id) })
            {
                fail(NGHTTP2_PROTOCOL_ERROR, nil)
            } else if id <= lastStream, !isOpen(id), !control.take(now) {
                // The stream is closed: the block is decoded only to maintain the compression table.
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
            if skipped.count > HTTP2Guards.maximumSkipped {
                forgotten = skipped.removeFirst().upperBound
            }
        }
        lastStream = max(lastStream, id)
    }

    /// The peer's WINDOW_UPDATE in response to DATA must not count as a flood. Small frames return no tokens: a peer
    /// that opens its window byte by byte provokes many frames (CVE-2019-9511).
    mutating func dataSent(_ header: nghttp2_frame_hd) {
        let isLast = header.flags & UInt8(NGHTTP2_FLAG_END_STREAM.rawValue) != 0
        if isLast || header.length >= 256 { control.give(4) }
    }

    mutating func resetSent(now: UInt64) {
        if !sentResets.take(now) { fail(NGHTTP2_ENHANCE_YOUR_CALM, .resetsSent) }
    }

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
