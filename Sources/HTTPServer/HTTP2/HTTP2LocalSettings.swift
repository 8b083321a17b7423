import CNghttp2

/// The server's initial settings (RFC 9113, section 6.5.2). Other settings keep their default values.
///
/// | setting                  | value                               |
/// |--------------------------|-------------------------------------|
/// | `MAX_CONCURRENT_STREAMS` | ``ServerLimits/concurrentStreams``  |
/// | `INITIAL_WINDOW_SIZE`    | ``ServerLimits/initialWindow``      |
/// | `MAX_HEADER_LIST_SIZE`   | ``ServerLimits/headerBytes``        |
struct HTTP2LocalSettings {
    let entries: [nghttp2_settings_entry]

    init(_ limits: ServerLimits) {
        entries = [
            (NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, limits.concurrentStreams),
            (NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, limits.initialWindow),
            (NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, limits.headerBytes),
        ].map { name, value in
            nghttp2_settings_entry(settings_id: Int32(name.rawValue), value: UInt32(value))
        }
    }
}
