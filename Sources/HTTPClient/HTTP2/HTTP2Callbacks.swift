import CNghttp2

/// The callbacks and options of nghttp2 for all sessions with an upstream; see HTTP2Session+Recording.swift.
final class HTTP2Callbacks {
    let callbacks: OpaquePointer
    let options: OpaquePointer

    /// Acknowledgements that wait for an upstream that does not read.
    private static let queuedAcknowledgements = 256
    /// CONTINUATION frames of one header block.
    private static let continuations = 8

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
        nghttp2_option_set_max_outbound_ack(options, HTTP2Callbacks.queuedAcknowledgements)
        nghttp2_option_set_max_continuations(options, HTTP2Callbacks.continuations)
        // nghttp2 shows unknown frames to the callbacks only for types that are set here. They have to be counted.
        for type in UInt8(10)...255 { nghttp2_option_set_user_recv_extension_type(options, type) }
        installReceiving()
        installSending()
    }

    deinit {
        nghttp2_session_callbacks_del(callbacks)
        nghttp2_option_del(options)
    }

    private func installReceiving() {
        nghttp2_session_callbacks_set_on_begin_frame_callback(callbacks) { _, header, user in
            with(user) { $0.frameBegan(header!.pointee) }
            return 0
        }
        nghttp2_session_callbacks_set_on_begin_headers_callback(callbacks) { _, frame, user in
            with(user) { $0.headersBegan(frame!.pointee.hd.stream_id) }
            return 0
        }
        nghttp2_session_callbacks_set_on_header_callback(callbacks) {
            _, _, name, nameLength, value, valueLength, _, user in
            let isTaken = with(user) {
                $0.field(
                    UnsafeBufferPointer(start: name, count: nameLength),
                    UnsafeBufferPointer(start: value, count: valueLength))
            }
            return isTaken ? 0 : NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE.rawValue
        }
        // Without this callback nghttp2 would drop a malformed field and go on.
        nghttp2_session_callbacks_set_on_invalid_header_callback(callbacks) {
            _, frame, _, _, _, _, _, user in
            with(user) { $0.invalid(frame!.pointee.hd.stream_id, "a malformed header field") }
            return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE.rawValue
        }
        nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks) { _, frame, user in
            with(user) { $0.frameReceived(frame!.pointee) }
            return 0
        }
        nghttp2_session_callbacks_set_on_invalid_frame_recv_callback(callbacks) {
            _, frame, code, user in
            with(user) {
                $0.invalid(frame!.pointee.hd.stream_id, String(cString: nghttp2_strerror(code)))
            }
            return 0
        }
        nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks) {
            _, _, id, data, length, user in
            with(user) { $0.dataReceived(id, UnsafeRawBufferPointer(start: data, count: length)) }
            return 0
        }
        nghttp2_session_callbacks_set_unpack_extension_callback(callbacks) { _, _, _, _ in
            NGHTTP2_ERR_CANCEL.rawValue
        }
        nghttp2_session_callbacks_set_on_stream_close_callback(callbacks) { _, id, code, user in
            with(user) { $0.streamClosed(id, code) }
            return 0
        }
    }

    private func installSending() {
        nghttp2_session_callbacks_set_on_frame_send_callback(callbacks) { _, frame, user in
            with(user) { $0.frameSent(frame!.pointee) }
            return 0
        }
        nghttp2_session_callbacks_set_on_frame_not_send_callback(callbacks) {
            _, frame, code, user in
            with(user) { $0.frameNotSent(frame!.pointee.hd, code) }
            return 0
        }
        nghttp2_session_callbacks_set_send_data_callback(callbacks) {
            _, frame, header, length, _, user in
            with(user) { $0.sendData(frame!.pointee.hd.stream_id, header!, length) }
            return 0
        }
    }
}

/// Lends the session that is nghttp2's user data. It lives longer than nghttp2's own, so nothing is retained.
@inline(__always)
private func with<Result>(_ user: UnsafeMutableRawPointer?, _ body: (HTTP2Session) -> Result)
    -> Result
{
    Unmanaged<HTTP2Session>.fromOpaque(user.unsafelyUnwrapped)._withUnsafeGuaranteedRef(body)
}

/// nghttp2 calls this for the next bytes of a request's body.
let readRequestBody: nghttp2_data_source_read_callback = { _, id, _, length, flags, _, user in
    with(user) { $0.readData(id, length, flags!) }
}
