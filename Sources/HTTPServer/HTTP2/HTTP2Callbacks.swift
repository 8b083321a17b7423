import CNghttp2
import Wire

/// The callbacks and options of nghttp2 for all sessions of a loop; see HTTP2Recording.swift.
final class HTTP2Callbacks {
    let callbacks: OpaquePointer
    let options: OpaquePointer

    init() {
        var newCallbacks: OpaquePointer?
        var newOptions: OpaquePointer?
        guard nghttp2_session_callbacks_new(&newCallbacks) == 0,
            nghttp2_option_new(&newOptions) == 0, let newCallbacks, let newOptions
        else { fatalError("nghttp2: out of memory") }
        callbacks = newCallbacks
        options = newOptions
        nghttp2_option_set_no_auto_window_update(options, 1)
        nghttp2_option_set_max_settings(options, 32)
        // ``EndedStreams`` replaces nghttp2's closed streams and takes less memory.
        nghttp2_option_set_no_closed_streams(options, 1)
        // nghttp2 passes unknown frames, which have to be counted, to the callbacks only for types set here.
        for type in UInt8(10)...255 { nghttp2_option_set_user_recv_extension_type(options, type) }
        install()
    }

    deinit {
        nghttp2_session_callbacks_del(callbacks)
        nghttp2_option_del(options)
    }

    func apply(_ limits: ServerLimits) {
        nghttp2_option_set_max_outbound_ack(options, limits.queuedControlFrames)
        nghttp2_option_set_max_continuations(options, limits.continuations)
    }

    private func install() {
        nghttp2_session_callbacks_set_on_begin_frame_callback(callbacks) { _, header, user in
            with(user) { $0.frameBegan(header!.pointee) }
            return 0
        }
        nghttp2_session_callbacks_set_on_begin_headers_callback(callbacks) { _, frame, user in
            with(user) { $0.headersBegan(frame!.pointee) }
            return 0
        }
        nghttp2_session_callbacks_set_on_header_callback(callbacks) {
            _, frame, name, nameLength, value, valueLength, _, user in
            with(user) {
                $0.field(
                    frame!.pointee.hd.stream_id,
                    UnsafeBufferPointer(start: name, count: nameLength),
                    UnsafeBufferPointer(start: value, count: valueLength))
            }
            return 0
        }
        nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks) { _, frame, user in
            with(user) { $0.frameReceived(frame!.pointee) }
            return 0
        }
        nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks) {
            _, _, id, data, length, user in
            with(user) {
                $0.dataReceived(id, UnsafeRawBufferPointer(start: data, count: length))
            }
            return 0
        }
        nghttp2_session_callbacks_set_unpack_extension_callback(callbacks) { _, _, _, _ in
            NGHTTP2_ERR_CANCEL.rawValue
        }
        nghttp2_session_callbacks_set_on_stream_close_callback(callbacks) { _, id, code, user in
            with(user) { $0.closed.append(id) }
            return 0
        }
        nghttp2_session_callbacks_set_on_frame_send_callback(callbacks) { _, frame, user in
            with(user) { $0.frameSent(frame!.pointee) }
            return 0
        }
        nghttp2_session_callbacks_set_on_frame_not_send_callback(callbacks) {
            _, frame, code, user in
            with(user) { $0.frameNotSent(frame!.pointee, code) }
            return 0
        }
        nghttp2_session_callbacks_set_send_data_callback(callbacks) {
            _, frame, header, length, _, user in
            with(user) { $0.sendData(header!, length) }
            return 0
        }
    }
}

/// Lends the connection, which is nghttp2's user data. It lives as long as its session, so nothing is retained.
@inline(__always)
private func with<Result>(
    _ user: UnsafeMutableRawPointer?, _ body: (HTTP2Connection) -> Result
) -> Result {
    Unmanaged<HTTP2Connection>.fromOpaque(user.unsafelyUnwrapped)._withUnsafeGuaranteedRef(body)
}

/// Called by nghttp2 for the next bytes of a response's body.
let readNextData: nghttp2_data_source_read_callback = { _, id, _, length, flags, _, user in
    with(user) { $0.readData(id, length, flags!) }
}
