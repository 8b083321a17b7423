import CNghttp2

/// The bodies of exchanges: their readers and windows.
extension HTTP2Session {
    /// The exchange of a large body that has the connection to itself; nil if there is none. No other exchange joins
    /// it, and the connection is read only when its reader asks. Meanwhile the kernel holds back the upstream, as over
    /// HTTP/1.1, so a large window costs no memory.
    var onlyLarge: HTTP2Exchange? {
        guard largeBodies == 1, streams.count == 1, waiting.isEmpty else { return nil }
        return streams.first?.value
    }

    /// Receives directly into the buffer of the only large body's reader. ``settle()`` acts on everything else.
    func receive(for exchange: HTTP2Exchange) {
        assert(!isInCallback)
        guard onlyLarge === exchange, let connection else { return }
        receive(connection) { exchange.targetCount > 0 || exchange.hasEnd }
        connection.markDirty()
    }

    /// Whether bytes wait for the reader of ``onlyLarge``.
    func canReceive(for exchange: HTTP2Exchange) -> Bool {
        onlyLarge === exchange && connection?.canReceive == true
    }

    /// Returns consumed bytes to the stream's window. The window of ``onlyLarge`` doubles, up to ``maximumWindow``,
    /// whenever its reader has consumed a whole window.
    func consumed(_ exchange: HTTP2Exchange, _ count: Int) {
        assert(!isInCallback)
        nghttp2_session_consume_stream(session, exchange.id, count)
        if onlyLarge === exchange, exchange.growWindow(count) { setWindow(of: exchange) }
        if nghttp2_session_want_write(session) != 0 { connection?.markDirty() }
    }

    /// Opens the window of ``onlyLarge`` once its length is known. Growing by doubling takes a round trip each time.
    func openWindow(of exchange: HTTP2Exchange, length: UInt64) {
        assert(!isInCallback)
        guard onlyLarge === exchange, exchange.openWindow(length) else { return }
        setWindow(of: exchange)
        connection?.markDirty()
    }

    private func setWindow(of exchange: HTTP2Exchange) {
        nghttp2_session_set_local_window_size(
            session, UInt8(NGHTTP2_FLAG_NONE.rawValue), exchange.id, Int32(exchange.window))
    }

    func bodyWritten(_ exchange: HTTP2Exchange) {
        assert(!isInCallback)
        if exchange.isDeferred {
            exchange.isDeferred = false
            nghttp2_session_resume_data(session, exchange.id)
        }
        connection?.markDirty()
    }
}
