import CNghttp2

/// Detects DATA and HEADERS on a stream that the peer has ended (RFC 9113, section 5.1), for the last hundred streams.
/// nghttp2 would need 230 bytes for each closed stream, and passes no ignored DATA to callbacks. So this reads the
/// frame headers before nghttp2 reads the frames. After our own RST_STREAM, frames may still be in transit, and nghttp2
/// ignores them.
struct EndedStreams {
    /// The maximum number of streams kept.
    static let maximum = 100
    private static let headerBytes = 9
    /// The identifiers, and the index to replace next.
    private var ids: [Int32] = []
    private var next = 0
    /// The largest identifier of an ended stream. A new request has a larger one.
    private var largest: Int32 = 0
    /// The number of bytes before the next frame header: first the connection preface, then payloads.
    private var skipped = 24
    /// An incomplete header.
    private var partial: [UInt8] = []

    /// Scans received bytes up to the first frame on a stream that the peer had ended.
    /// - Returns: Whether there is one; the connection must then end.
    mutating func arrived(_ bytes: UnsafeRawBufferPointer) -> Bool {
        var offset = 0
        while offset < bytes.count {
            let left = bytes.count - offset
            if skipped > 0 {
                let step = min(skipped, left)
                skipped -= step
                offset += step
            } else if partial.isEmpty, left >= EndedStreams.headerBytes {
                let end = offset + EndedStreams.headerBytes
                if isOnEnded(UnsafeRawBufferPointer(rebasing: bytes[offset..<end])) { return true }
                offset = end
            } else {
                let step = min(EndedStreams.headerBytes - partial.count, left)
                partial += bytes[offset..<offset + step]
                offset += step
                guard partial.count == EndedStreams.headerBytes else { continue }
                let header = partial
                partial = []
                if header.withUnsafeBytes({ isOnEnded($0) }) { return true }
            }
        }
        return false
    }

    /// Parses a frame header (RFC 9113, section 4.1).
    private mutating func isOnEnded(_ header: UnsafeRawBufferPointer) -> Bool {
        skipped = Int(header[0]) << 16 | Int(header[1]) << 8 | Int(header[2])
        let type = UInt32(header[3])
        let isRequest = type == NGHTTP2_DATA.rawValue || type == NGHTTP2_HEADERS.rawValue
        guard isRequest || type == NGHTTP2_RST_STREAM.rawValue else { return false }
        let word = UInt32(bigEndian: header.loadUnaligned(fromByteOffset: 5, as: UInt32.self))
        let id = Int32(word & 0x7fff_ffff)
        if id <= largest, ids.contains(id) { return isRequest }
        if !isRequest || header[4] & UInt8(NGHTTP2_FLAG_END_STREAM.rawValue) != 0 { keep(id) }
        return false
    }

    private mutating func keep(_ id: Int32) {
        largest = max(largest, id)
        if ids.count < EndedStreams.maximum { return ids.append(id) }
        ids[next] = id
        next = (next + 1) % EndedStreams.maximum
    }
}
