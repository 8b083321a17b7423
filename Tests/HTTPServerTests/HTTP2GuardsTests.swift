import CNghttp2
import Testing

@testable import HTTPServer

/// Walks every row of the tables of ``HTTP2Guards`` and ``HTTP2LocalSettings``.
@Suite("Limits of a peer")
struct HTTP2GuardsTests {
    private let statistics = ServerStatistics()
    private static let limits = {
        var limits = ServerLimits()
        limits.emptyFrames = 3
        limits.resetBurst = 3
        limits.sentResetBurst = 3
        limits.controlFrameBurst = 3
        (limits.resetsPerSecond, limits.controlFramesPerSecond) = (1, 1)
        return limits
    }()

    private func guards() -> HTTP2Guards { HTTP2Guards(Self.limits, statistics) }

    private func header(
        _ type: nghttp2_frame_type, flags: nghttp2_flag = NGHTTP2_FLAG_NONE, stream: Int32 = 1,
        length: Int = 0
    ) -> nghttp2_frame_hd {
        nghttp2_frame_hd(
            length: length, stream_id: stream, type: UInt8(type.rawValue),
            flags: UInt8(flags.rawValue), reserved: 0)
    }

    /// Repeats `event` four times: the first three are allowed, the fourth is a violation that counts at `limit`.
    private func fourth(
        _ limit: LimitKind, _ event: (inout HTTP2Guards) -> Void
    ) {
        var guards = guards()
        for _ in 0..<3 { event(&guards) }
        #expect(guards.violation == nil)
        event(&guards)
        #expect(guards.violation == NGHTTP2_ENHANCE_YOUR_CALM)
        #expect(statistics.hits(limit) == 1)
    }

    @Test("Empty frames in a row", arguments: [NGHTTP2_DATA, NGHTTP2_HEADERS])
    func empty(type: nghttp2_frame_type) {
        fourth(.emptyFrames) { $0.began(header(type), now: 0) { _ in true } }
    }

    @Test("Frames that are not empty, or end something, are not counted")
    func notEmpty() {
        var guards = guards()
        for _ in 0..<3 {
            for _ in 0..<3 { guards.began(header(NGHTTP2_DATA), now: 0) { _ in true } }
            guards.began(header(NGHTTP2_DATA, length: 1), now: 0) { _ in true }
        }
        for _ in 0..<9 {
            let (data, head) = (NGHTTP2_FLAG_END_STREAM, NGHTTP2_FLAG_END_HEADERS)
            guards.began(header(NGHTTP2_DATA, flags: data), now: 0) { _ in true }
            guards.began(header(NGHTTP2_HEADERS, flags: head), now: 0) { _ in true }
        }
        #expect(guards.violation == nil)
    }

    @Test("HEADERS on a stream that was skipped")
    func skipped() {
        var guards = guards()
        guards.opened(1)
        guards.opened(7)
        guards.began(header(NGHTTP2_HEADERS, stream: 5, length: 1), now: 0) { _ in false }
        #expect(guards.violation == NGHTTP2_PROTOCOL_ERROR)
    }

    @Test("HEADERS on a stream that was skipped long ago")
    func forgotten() {
        var guards = guards()
        for id in 1...70 { guards.opened(Int32(4 * id - 1)) }
        guards.began(header(NGHTTP2_HEADERS, stream: 1, length: 1), now: 0) { _ in false }
        #expect(guards.violation == NGHTTP2_PROTOCOL_ERROR)
    }

    @Test("HEADERS on closed streams")
    func closed() {
        fourth(.controlFrames) { guards in
            guards.opened(1)
            guards.began(header(NGHTTP2_HEADERS, length: 1), now: 0) { _ in false }
        }
    }

    @Test("DATA on a stream that the peer ended")
    func ended() {
        var guards = guards()
        let frames: [[UInt8]] = [
            Array("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".utf8), [0, 0, 0, 1, 5, 0, 0, 0, 1],
            [0, 0, 0, 0, 1, 0, 0, 0, 1],
        ]
        for frame in frames {
            #expect(guards.violation == nil)
            frame.withUnsafeBytes { guards.arrived($0) }
        }
        #expect(guards.violation == NGHTTP2_STREAM_CLOSED)
    }

    @Test("Resets that were received")
    func resets() {
        fourth(.resetsReceived) { $0.began(header(NGHTTP2_RST_STREAM), now: 0) { _ in true } }
    }

    @Test("Resets that were sent")
    func sentResets() { fourth(.resetsSent) { $0.resetSent(now: 0) } }

    @Test(
        "Control frames",
        arguments: [NGHTTP2_PING, NGHTTP2_SETTINGS, NGHTTP2_PRIORITY, NGHTTP2_WINDOW_UPDATE])
    func control(type: nghttp2_frame_type) {
        fourth(.controlFrames) { $0.began(header(type), now: 0) { _ in true } }
    }

    @Test("Tokens are refilled with time")
    func time() {
        var guards = guards()
        for second in 0..<20 as Range<UInt64> {
            guards.began(header(NGHTTP2_PING), now: second * 1_000_000_000) { _ in true }
        }
        #expect(guards.violation == nil)
    }

    @Test("DATA that was sent pays for control frames if it is not small")
    func dataSent() {
        fourth(.controlFrames) { guards in
            guards.dataSent(header(NGHTTP2_DATA, length: 255))
            guards.began(header(NGHTTP2_WINDOW_UPDATE), now: 0) { _ in true }
        }
        for paying in [
            header(NGHTTP2_DATA, length: 256), header(NGHTTP2_DATA, flags: NGHTTP2_FLAG_END_STREAM),
        ] {
            var guards = guards()
            for _ in 0..<20 {
                guards.dataSent(paying)
                guards.began(header(NGHTTP2_WINDOW_UPDATE), now: 0) { _ in true }
            }
            #expect(guards.violation == nil)
        }
    }

    @Test(
        "Errors of nghttp2",
        arguments: [
            (
                NGHTTP2_ERR_TOO_MANY_CONTINUATIONS, NGHTTP2_ENHANCE_YOUR_CALM,
                LimitKind.continuations
            ),
            (NGHTTP2_ERR_FLOODED, NGHTTP2_ENHANCE_YOUR_CALM, .queuedControlFrames),
            (NGHTTP2_ERR_PROTO, NGHTTP2_PROTOCOL_ERROR, nil),
        ] as [(nghttp2_error, nghttp2_error_code, LimitKind?)])
    func failed(error: nghttp2_error, violation: nghttp2_error_code, limit: LimitKind?) {
        var guards = guards()
        guards.failed(error.rawValue)
        #expect(guards.violation == violation)
        if let limit { #expect(statistics.hits(limit) == 1) }
    }

    @Test("The first violation counts")
    func first() {
        var guards = guards()
        guards.failed(NGHTTP2_ERR_FLOODED.rawValue)
        guards.failed(NGHTTP2_ERR_PROTO.rawValue)
        #expect(guards.violation == NGHTTP2_ENHANCE_YOUR_CALM)
    }

    @Test("The settings are the limits")
    func settings() {
        var limits = ServerLimits()
        (limits.concurrentStreams, limits.initialWindow, limits.headerBytes) = (7, 8, 9)
        let entries = HTTP2LocalSettings(limits).entries.map { ($0.settings_id, $0.value) }
        let expected: [(nghttp2_settings_id, UInt32)] = [
            (NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, 7), (NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, 8),
            (NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, 9),
        ]
        #expect(entries.elementsEqual(expected) { $0.0 == Int32($1.0.rawValue) && $0.1 == $1.1 })
    }
}
