import CNghttp2
import System
import Wire

/// nghttp2's callbacks. They record events for ``HTTP2Session/settle()``. They copy the bytes of bodies, but
/// call no delegate, reader or writer, and never end the session.
extension HTTP2Session {
    /// The maximum number of consecutive frames without content. That many small frames of an unwanted body may be in
    /// transit; more would only keep us busy.
    private static let maximumOverhead = 10_000

    // MARK: Receiving

    /// Counts frames that only cost work: all but DATA with content and the first HEADERS of a response.
    func frameBegan(_ header: nghttp2_frame_hd) {
        overhead += 1
        if overhead > HTTP2Session.maximumOverhead, violation == nil {
            violation = "too many frames without content"
        }
    }

    func headersBegan(_ id: Int32) {
        arriving = streams[id]
        arriving?.blockBegan()
    }

    /// Returns whether the rest of the block is needed.
    func field(_ name: UnsafeBufferPointer<UInt8>, _ value: UnsafeBufferPointer<UInt8>) -> Bool {
        guard let arriving else { return true }
        return arriving.field(name, value)
    }

    /// A frame of a stream or the connection is invalid. nghttp2 resets the stream or ends the connection.
    func invalid(_ id: Int32, _ reason: String) {
        guard let exchange = streams[id] else { return }
        if exchange.fault == nil { exchange.fault = reason }
        touch(exchange)
    }

    func frameReceived(_ frame: nghttp2_frame) {
        let exchange = streams[frame.hd.stream_id]
        let ends = frame.hd.flags & UInt8(NGHTTP2_FLAG_END_STREAM.rawValue) != 0
        switch UInt32(frame.hd.type) {
        case NGHTTP2_HEADERS.rawValue:
            arriving = nil
            guard let exchange else { return }
            if exchange.blockEnded(ends: ends) { overhead = 0 }
            touch(exchange)
        case NGHTTP2_DATA.rawValue:
            guard ends, let exchange else { return }
            exchange.bodyEnded()
            touch(exchange)
        case NGHTTP2_RST_STREAM.rawValue:
            exchange?.resetCode = frame.rst_stream.error_code
        case NGHTTP2_SETTINGS.rawValue:
            let allowed = nghttp2_session_get_remote_settings(session, NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS)
            hasSettings = true
            pool.expectedStreams = max(1, min(HTTP2Pool.maximumStreams, Int(allowed)))
        case NGHTTP2_GOAWAY.rawValue: isDraining = true
        default: break
        }
    }

    /// Handles bytes of a body. The connection's window is replenished at once, the stream's when they are read.
    func dataReceived(_ id: Int32, _ bytes: UnsafeRawBufferPointer) {
        overhead = 0
        nghttp2_session_consume_connection(session, bytes.count)
        guard let exchange = streams[id] else { return }
        exchange.received(bytes)
        touch(exchange)
    }

    func streamClosed(_ id: Int32, _ code: UInt32) {
        guard let exchange = streams[id] else { return }
        exchange.closeCode = code
        touch(exchange)
    }

    // MARK: Sending

    func frameSent(_ frame: nghttp2_frame) {
        let header = frame.hd
        switch UInt32(header.type) {
        case NGHTTP2_GOAWAY.rawValue:
            let code = frame.goaway.error_code
            if code != NGHTTP2_NO_ERROR.rawValue, violation == nil {
                violation = String(cString: nghttp2_http2_strerror(code))
            }
        case NGHTTP2_HEADERS.rawValue, NGHTTP2_DATA.rawValue:
            guard let exchange = streams[header.stream_id] else { return }
            exchange.mayHaveReached = true
            if header.flags & UInt8(NGHTTP2_FLAG_END_STREAM.rawValue) != 0 {
                exchange.isSent = true
            }
            if header.type == UInt8(NGHTTP2_DATA.rawValue) {
                // The upstream responds with WINDOW_UPDATE.
                overhead = 0
            }
        default: break
        }
    }

    /// nghttp2 did not send a request's head, and closes its stream.
    func frameNotSent(_ header: nghttp2_frame_hd, _ code: Int32) {
        guard UInt32(header.type) == NGHTTP2_HEADERS.rawValue else { return }
        streams[header.stream_id]?.unsentCode = code
    }

    /// Returns the number of the next bytes of a request's body.
    func readData(_ id: Int32, _ length: Int, _ flags: UnsafeMutablePointer<UInt32>) -> Int {
        guard let exchange = streams[id], exchange.available > 0 else {
            streams[id]?.isDeferred = true
            return Int(NGHTTP2_ERR_DEFERRED.rawValue)
        }
        // The next frame that nghttp2 may produce must fit after this one.
        let space = pool.output.count - produced - 9 - HTTP2Session.frameSpace
        let count = min(length, exchange.available, space)
        if count < min(length, exchange.available, 4096) {
            starved.append(id)
            return Int(NGHTTP2_ERR_DEFERRED.rawValue)
        }
        flags.pointee |= NGHTTP2_DATA_FLAG_NO_COPY.rawValue
        if exchange.isLast(count) { flags.pointee |= NGHTTP2_DATA_FLAG_EOF.rawValue }
        return count
    }

    /// Writes a DATA frame: its header, and the bytes announced by ``readData(_:_:_:)``.
    func sendData(_ id: Int32, _ header: UnsafePointer<UInt8>, _ length: Int) {
        let frame = UnsafeMutableRawBufferPointer(rebasing: pool.output[produced...])
        frame.copyMemory(from: UnsafeRawBufferPointer(start: header, count: 9))
        streams[id]?.takeBody(into: .init(rebasing: frame[9..<9 + length]))
        produced += 9 + length
    }
}
