import CNghttp2
import Wire

/// The callbacks and options that all HTTP/2 sessions of a loop share. Callbacks only record; they never act.
final class HTTP2Settings {
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
        // Only frames that somebody could want are shown to the callbacks, and so are counted.
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
        nghttp2_session_callbacks_set_on_frame_not_send_callback(callbacks) { _, frame, _, user in
            with(user) { $0.frameNotSent(frame!.pointee) }
            return 0
        }
        nghttp2_session_callbacks_set_send_data_callback(callbacks) {
            _, frame, header, length, _, user in
            with(user) { $0.sendData(header!, length) }
            return 0
        }
    }
}

/// Lends the connection that nghttp2 hands back as user data. It lives as long as its session, so nothing is retained.
@inline(__always)
private func with<Result>(
    _ user: UnsafeMutableRawPointer?, _ body: (HTTP2Connection) -> Result
) -> Result {
    Unmanaged<HTTP2Connection>.fromOpaque(user.unsafelyUnwrapped)._withUnsafeGuaranteedRef(body)
}

extension nghttp2_nv {
    /// A field whose value is lent.
    fileprivate init(_ name: StaticString, _ value: UnsafeBufferPointer<UInt8>) {
        self.init(name, "")
        self.value = UnsafeMutablePointer(mutating: value.baseAddress)
        valuelen = value.count
    }

    /// A field of two constants.
    init(_ name: StaticString, _ value: StaticString) {
        self.init(
            name: UnsafeMutablePointer(mutating: name.utf8Start),
            value: UnsafeMutablePointer(mutating: value.utf8Start),
            namelen: name.utf8CodeUnitCount, valuelen: value.utf8CodeUnitCount,
            flags: UInt8(NGHTTP2_NV_FLAG_NONE.rawValue))
    }
}

extension ResponseHead {
    /// Lends the head to nghttp2, which copies it: `:status`, `date`, the fields, then `content-length` where it is given.
    func withFields<Result>(
        date: [UInt8], length: UInt64?, _ body: (UnsafePointer<nghttp2_nv>, Int) -> Result
    ) -> Result {
        var status = String(status)
        var digits = length.map { String($0) } ?? ""
        let count = fields.count + (length == nil ? 2 : 3)
        return withUnsafeTemporaryAllocation(of: nghttp2_nv.self, capacity: count) { list in
            status.withUTF8 { status in
                date.withUnsafeBufferPointer { date in
                    digits.withUTF8 { digits in
                        list.initializeElement(at: 0, to: nghttp2_nv(":status", status))
                        list.initializeElement(at: 1, to: nghttp2_nv("date", date))
                        if length != nil {
                            let field = nghttp2_nv("content-length", digits)
                            list.initializeElement(at: count - 1, to: field)
                        }
                        return fields.lend(to: list, from: 2) { body(list.baseAddress!, count) }
                    }
                }
            }
        }
    }
}

extension HeaderFields {
    /// Points the elements of `list` from `first` on at these fields while `body` runs.
    fileprivate func lend<Result>(
        to list: UnsafeMutableBufferPointer<nghttp2_nv>, from first: Int, _ body: () -> Result
    ) -> Result {
        read { fields in
            var place = first
            while let (name, value) = fields.next() {
                let isVolatile = HeaderFields.isVolatile(name)
                let flags = isVolatile ? NGHTTP2_NV_FLAG_NO_INDEX : NGHTTP2_NV_FLAG_NONE
                let field = nghttp2_nv(
                    name: UnsafeMutablePointer(mutating: name.baseAddress),
                    value: UnsafeMutablePointer(mutating: value.baseAddress), namelen: name.count,
                    valuelen: value.count, flags: UInt8(flags.rawValue))
                list.initializeElement(at: place, to: field)
                place += 1
            }
            return body()
        }
    }

    /// Fields whose values never come twice: indexing them would only push others out of the peer's table.
    private static func isVolatile(_ name: UnsafeBufferPointer<UInt8>) -> Bool {
        switch name.count {
        case 11: name[0] == UInt8(ascii: "r")  // repr-digest
        case 12: name[0] == UInt8(ascii: "x")  // x-request-id
        case 19: name[0] == UInt8(ascii: "x")  // x-object-generation
        default: false
        }
    }
}

/// Asked by nghttp2 for the next bytes of a response's body.
let readNextData: nghttp2_data_source_read_callback = { _, id, _, length, flags, _, user in
    with(user) { $0.readData(id, length, flags!) }
}
