import CNghttp2
import Testing

@testable import HTTPServer

@Suite("Streams that the peer ended")
struct EndedStreamsTests {
    private static let preface = Array("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".utf8)

    private static func frame(
        _ type: nghttp2_frame_type, _ id: Int32, ends: Bool = false, length: Int = 4
    ) -> [UInt8] {
        let flags = ends ? UInt8(NGHTTP2_FLAG_END_STREAM.rawValue) : 0
        let word = (0..<4).map { UInt8(truncatingIfNeeded: id >> (24 - 8 * $0)) }
        let size = [UInt8(length >> 16), UInt8(length >> 8 & 0xff), UInt8(length & 0xff)]
        // A payload that looks like headers of frames.
        return size + [UInt8(type.rawValue), flags] + word
            + (0..<length).map { UInt8(truncatingIfNeeded: $0 % 5) }
    }

    /// Whether it is found in the bytes after the preface, whole and in parts of every size.
    private static func isFound(_ bytes: [UInt8]) -> Bool {
        let all = preface + bytes
        let found = (1...all.count).map { size in
            var ended = EndedStreams()
            return stride(from: 0, to: all.count, by: size).contains { start in
                all[start..<min(start + size, all.count)].withUnsafeBytes { ended.arrived($0) }
            }
        }
        #expect(Set(found).count == 1, "the parts make no difference")
        return found[0]
    }

    @Test(
        "More of a request that has ended", arguments: [NGHTTP2_DATA, NGHTTP2_HEADERS],
        [NGHTTP2_DATA, NGHTTP2_HEADERS, NGHTTP2_RST_STREAM])
    func more(type: nghttp2_frame_type, end: nghttp2_frame_type) {
        let ending = Self.frame(end, 3, ends: end != NGHTTP2_RST_STREAM)
        let others = Self.frame(NGHTTP2_HEADERS, 1) + Self.frame(NGHTTP2_DATA, 3, length: 0)
        #expect(Self.isFound(others + ending + Self.frame(type, 3)))
        #expect(
            Self.isFound(ending + Self.frame(NGHTTP2_SETTINGS, 0) + Self.frame(type, 3, ends: true))
        )
        #expect(!Self.isFound(others + ending + Self.frame(type, 1) + Self.frame(type, 5)))
    }

    @Test(
        "What may follow",
        arguments: [
            NGHTTP2_RST_STREAM, NGHTTP2_WINDOW_UPDATE, NGHTTP2_PRIORITY, NGHTTP2_CONTINUATION,
            NGHTTP2_PING,
        ])
    func allowed(type: nghttp2_frame_type) {
        let ended = Self.frame(NGHTTP2_HEADERS, 1, ends: true)
        #expect(!Self.isFound(ended + Self.frame(type, 1) + Self.frame(type, 1)))
    }

    @Test("Flags of other frames end nothing")
    func flags() {
        let acknowledged = Self.frame(NGHTTP2_PING, 1, ends: true)
        #expect(!Self.isFound(acknowledged + Self.frame(NGHTTP2_DATA, 1)))
    }

    @Test(
        "The last hundred are known",
        arguments: [(1, false), (99, false), (101, true), (299, true)])
    func last(id: Int32, isKnown: Bool) {
        var ended = EndedStreams()
        func send(_ bytes: [UInt8]) -> Bool { bytes.withUnsafeBytes { ended.arrived($0) } }
        #expect(!send(Self.preface))
        for id in stride(from: Int32(1), to: 300, by: 2) {
            #expect(!send(Self.frame(NGHTTP2_HEADERS, id, ends: true)))
        }
        #expect(send(Self.frame(NGHTTP2_DATA, id)) == isKnown)
    }

    @Test("Any bytes, in parts of every size")
    func noise() {
        for _ in 0..<100 {
            // Small numbers, which are types of frames, short lengths and few streams.
            _ = Self.isFound((0..<100).map { _ in UInt8.random(in: 0...255) & 3 })
        }
    }
}
