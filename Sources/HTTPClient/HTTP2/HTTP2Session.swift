import CNghttp2
import System
import Wire

/// HTTP/2 (RFC 9113) on one connection to an upstream, with concurrent exchanges. nghttp2 does framing and header
/// compression; exchanges, windows, limits and the end of the connection are here. Confined to its loop.
///
/// nghttp2's callbacks (HTTP2Session+Recording.swift) record events. ``settle()`` handles them after nghttp2 has
/// returned: only then are delegates, readers and writers called, and the session ended.
final class HTTP2Session: ConnectionUser {
    /// The window of a stream, and thus the maximum number of bytes buffered for a reader.
    static let initialWindow = 128 * 1024
    /// The largest window, in bytes, of a large body that has the connection to itself.
    static let maximumWindow = 8 << 20
    /// The window of the connection in bytes. It is replenished as bytes arrive, so no reader delays the others.
    private static let connectionWindow: Int32 = 16 << 20
    /// The number of bytes received per turn before their events are handled.
    private static let receivedAtOnce = 64 * 1024

    let pool: HTTP2Pool
    let transport: SocketTransport
    private(set) var connection: SocketConnection?
    private(set) var session: OpaquePointer?
    /// Exchanges not submitted to nghttp2 yet.
    private(set) var waiting: [HTTP2Exchange] = []
    var streams: [Int32: HTTP2Exchange] = [:]
    /// Exchanges whose request is not sent completely.
    private var unsent: [HTTP2Exchange] = []
    /// Exchanges with events recorded by callbacks.
    private var touched: [HTTP2Exchange] = []
    /// The exchange of the incomplete header block.
    var arriving: HTTP2Exchange?
    /// Frames that TLS has not accepted.
    private var pending: [UInt8] = []
    /// The number of bytes used in the pool's output buffer while nghttp2 produces.
    var produced = 0
    /// Streams whose bytes did not fit into the output buffer.
    var starved: [Int32] = []
    /// Whether nghttp2, and thus perhaps a callback, is running.
    private(set) var isInCallback = false
    /// The number of frames without content since the last one with content.
    var overhead = 0
    /// How the upstream violated HTTP/2.
    var violation: String?
    /// How the connection ended.
    private var loss: String?
    /// Whether no further request may be sent, because of GOAWAY or the end of the client.
    var isDraining = false
    /// Whether the upstream has announced its limit of streams.
    var hasSettings = false
    /// Whether a response was delivered. If so, the upstream may have closed the connection meanwhile.
    var hasServed = false
    /// The number of arriving bodies larger than ``HTTP2Pool/largeBody``.
    private(set) var largeBodies = 0
    private var isIdle = false
    private var idleSince: UInt64 = 0
    private var lastReceived: UInt64 = 0
    /// A lower bound of the exchanges' deadlines. Only ``expired(_:)`` recomputes it.
    private var exchangeDeadline = UInt64.max

    init(_ pool: HTTP2Pool) {
        self.pool = pool
        transport = pool.transport
        connection = transport.open(for: self, offersHTTP2: true)
    }

    deinit { nghttp2_session_del(session) }

    // MARK: Exchanges

    /// Whether it can take another request.
    var canTake: Bool {
        connection != nil && loss == nil && violation == nil && !isDraining && largeBodies == 0
            && waiting.count + streams.count < capacity
    }

    private var capacity: Int {
        guard hasSettings else { return pool.expectedStreams }
        let allowed = nghttp2_session_get_remote_settings(session, NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS)
        return min(HTTP2Pool.maximumStreams, Int(allowed))
    }

    func add(_ exchange: HTTP2Exchange) {
        exchange.session = self
        waiting.append(exchange)
        setIdle(false)
        connection?.markDirty()
    }

    /// Removes an exchange and ends its stream.
    func remove(_ exchange: HTTP2Exchange) {
        assert(!isInCallback)
        if exchange.isLarge { largeBodies -= 1 }
        if arriving === exchange { arriving = nil }
        if let index = unsent.firstIndex(where: { $0 === exchange }) { unsent.remove(at: index) }
        if exchange.id == 0 {
            waiting.removeAll { $0 === exchange }
        } else if streams.removeValue(forKey: exchange.id) != nil, !exchange.isClosed {
            // NO_ERROR would say that the response is complete (RFC 9113, section 8.1).
            nghttp2_submit_rst_stream(session, UInt8(NGHTTP2_FLAG_NONE.rawValue), exchange.id, NGHTTP2_CANCEL.rawValue)
        }
        // End a connection attempt that no exchange waits for.
        if session == nil, waiting.isEmpty { end() } else { connection?.markDirty() }
    }

    /// Removes and returns the requests of an unusable session.
    func giveUp() -> [HTTP2Exchange] {
        pool.forget(self)
        connection = nil
        let left = waiting + Array(streams.values)
        (waiting, streams, unsent, touched) = ([], [:], [], [])
        arriving = nil
        for exchange in left {
            exchange.session = nil
        }
        return left
    }

    func becameLarge() { largeBodies += 1 }

    /// Closes the connection if it is idle. Otherwise ``settle()`` does so after the last exchange.
    func closeIfIdle() { if isIdle { end() } }

    /// Lets ``settle()`` continue with an exchange.
    func touch(_ exchange: HTTP2Exchange) {
        guard !exchange.isTouched else { return }
        exchange.isTouched = true
        touched.append(exchange)
    }

    // MARK: ConnectionUser

    func settle() {
        guard let connection else { return }
        if session == nil, !begin(connection) { return }
        // An idle connection may have been closed. A request that can't be repeated must then not be sent.
        if streams.isEmpty, hasServed, waiting.contains(where: { !$0.request.isRepeatable }) {
            connection.lookAgain()
        }
        receive(connection)
        if loss == nil, violation == nil { submitWaiting() }
        send(connection)
        process()
        if violation != nil || loss != nil { return fail() }
        if isFinished {
            end()
            return
        }
        setIdle(streams.isEmpty && waiting.isEmpty)
        if self.connection === connection, connection.canReceive && onlyLarge == nil || hasOutput {
            connection.markDirty()
        }
    }

    /// Whether the connection has nothing left to do and takes no more requests.
    private var isFinished: Bool {
        guard streams.isEmpty && waiting.isEmpty else { return false }
        return isDraining || transport.isClosed
    }

    private var hasOutput: Bool {
        connection?.canSend == true && (!pending.isEmpty || nghttp2_session_want_write(session) != 0)
    }

    /// Begins on an open connection. Returns whether it speaks HTTP/2.
    private func begin(_ connection: SocketConnection) -> Bool {
        guard connection.session?.isHTTP2 == true else {
            pool.fallBack(self, connection)
            return false
        }
        nghttp2_session_client_new2(
            &session, pool.callbacks.callbacks, Unmanaged.passUnretained(self).toOpaque(), pool.callbacks.options)
        guard session != nil else { fatalError("nghttp2: out of memory") }
        let flags = UInt8(NGHTTP2_FLAG_NONE.rawValue)
        let settings = [
            nghttp2_settings_entry(settings_id: Int32(NGHTTP2_SETTINGS_ENABLE_PUSH.rawValue), value: 0),
            nghttp2_settings_entry(
                settings_id: Int32(NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE.rawValue),
                value: UInt32(HTTP2Session.initialWindow)),
            nghttp2_settings_entry(
                settings_id: Int32(NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE.rawValue),
                value: UInt32(HTTP1ResponseParser.maximumBytes)),
        ]
        nghttp2_submit_settings(session, flags, settings, settings.count)
        nghttp2_session_set_local_window_size(session, flags, 0, HTTP2Session.connectionWindow)
        return true
    }

    // MARK: Bytes

    private func receive(_ connection: SocketConnection) {
        guard let onlyLarge else { return receive(connection) { false } }
        // Its reader receives for itself.
        if connection.canReceive { onlyLarge.bytesArrived() }
    }

    func receive(_ connection: SocketConnection, until isEnough: () -> Bool) {
        let input = transport.input
        var received = 0
        while loss == nil, violation == nil, received < HTTP2Session.receivedAtOnce, connection.canReceive, !isEnough()
        {
            switch connection.receive(into: input) {
            case .bytes(let count):
                received += count
                lastReceived = transport.loop.now
                isInCallback = true
                let result = nghttp2_session_mem_recv(session, input.bindMemory(to: UInt8.self).baseAddress, count)
                isInCallback = false
                if result < 0, violation == nil {
                    violation = String(cString: nghttp2_strerror(Int32(result)))
                }
            case .wait: return
            case .end: loss = "the connection was closed"
            case .failed(let error): loss = "the connection failed: \(error)"
            }
        }
    }

    /// Submits requests up to the upstream's limit, and moves the others to other connections.
    private func submitWaiting() {
        while let next = waiting.first, !isDraining, streams.count < capacity {
            waiting.removeFirst()
            submit(next)
        }
        if waiting.isEmpty { return }
        let surplus = waiting
        waiting = []
        for exchange in surplus { exchange.moveOn("the upstream accepts no request") }
    }

    private func submit(_ exchange: HTTP2Exchange) {
        var provider = nghttp2_data_provider()
        provider.read_callback = readRequestBody
        let hasBody = exchange.request.bodyLength > 0
        let id = exchange.request.withHTTP2Fields(authority: pool.authority) { fields, count in
            withUnsafePointer(to: provider) {
                nghttp2_submit_request(session, nil, fields, count, hasBody ? $0 : nil, nil)
            }
        }
        guard id > 0 else {
            // Identifiers are exhausted.
            isDraining = true
            return exchange.moveOn("no stream can be opened")
        }
        streams[id] = exchange
        unsent.append(exchange)
        exchange.submitted(id)
        note(exchange)
    }

    private func send(_ connection: SocketConnection) {
        let now = transport.loop.now
        do throws(SocketConnection.Failure) {
            while connection.canSend {
                if pending.isEmpty {
                    let frames = produce()
                    if frames.isEmpty { break }
                    let count = try connection.send(frames, .init(start: nil, count: 0))
                    if count < frames.count { pending = Array(frames[count...]) }
                } else {
                    let frames = pending
                    let count = try frames.withUnsafeBufferPointer {
                        (frames) throws(SocketConnection.Failure) in
                        try connection.send(
                            UnsafeRawBufferPointer(frames), .init(start: nil, count: 0))
                    }
                    if count == 0 { break }
                    pending.removeFirst(count)
                }
            }
        } catch {
            // Bytes that arrived before the close may still be readable. A reader that receives itself finds the loss.
            isDraining = true
            receive(connection)
            let isReceiving = onlyLarge != nil && connection.canReceive
            if loss == nil, !isReceiving { loss = "the connection failed: \(error)" }
        }
        for exchange in unsent { exchange.keepSendTime(now, canSend: connection.canSend) }
        let sent = unsent
        unsent.removeAll { $0.isSent }
        for exchange in sent {
            exchange.wakeWriter()
            note(exchange)
        }
    }

    private func produce() -> UnsafeRawBufferPointer {
        let output = pool.output
        produced = 0
        while output.count - produced >= HTTP2Session.frameSpace {
            var start: UnsafePointer<UInt8>?
            isInCallback = true
            let count = nghttp2_session_mem_send(session, &start)
            isInCallback = false
            if count < 0, violation == nil {
                violation = String(cString: nghttp2_strerror(Int32(count)))
            }
            guard count > 0, let start else { break }
            (output.baseAddress! + produced).copyMemory(from: start, byteCount: count)
            produced += count
        }
        for id in starved { nghttp2_session_resume_data(session, id) }
        starved.removeAll(keepingCapacity: true)
        return UnsafeRawBufferPointer(rebasing: output[..<produced])
    }

    /// The largest frame that nghttp2 may produce at once: 16 KiB of header block, frame header and padding.
    static let frameSpace = 16_384 + 9 + 256

    // MARK: Acting

    /// Handles the events that callbacks recorded.
    private func process() {
        while !touched.isEmpty {
            let list = touched
            touched = []
            for exchange in list {
                exchange.isTouched = false
                // It may belong to another session meanwhile.
                if exchange.session === self { exchange.advance() }
            }
        }
    }

    /// Fails all exchanges after the loss of the connection or a protocol violation.
    private func fail() {
        let violation = violation
        if let violation {
            nghttp2_session_terminate_session(session, NGHTTP2_PROTOCOL_ERROR.rawValue)
            if loss == nil, let connection { send(connection) }
            self.violation = violation
        }
        let (loss, mayResend) = (loss ?? "", hasServed)
        failEach(of: end()) { exchange in
            if let violation {
                exchange.fail(.malformed, "HTTP/2: \(violation)", isUntrusted: false)
            } else {
                exchange.connectionLost(loss, mayResend: mayResend)
            }
        }
    }

    /// Fails the exchanges of one connection, which counts as one failure of the upstream.
    private func failEach(of exchanges: [HTTP2Exchange], _ fail: (HTTP2Exchange) -> Void) {
        var isReported = false
        for exchange in exchanges {
            exchange.isFailureReported = isReported
            fail(exchange)
            isReported = isReported || exchange.failure != nil
        }
    }

    /// Closes the connection. Returns the exchanges that were not over.
    @discardableResult
    private func end() -> [HTTP2Exchange] {
        guard let connection else { return [] }
        setIdle(false)
        let left = giveUp()
        transport.discard(connection)
        return left
    }

    func connectionFailed(_ code: ClientError.Code, _ cause: String, isUntrusted: Bool) {
        failEach(of: giveUp()) { $0.fail(code, cause, isUntrusted: isUntrusted) }
    }

    private func setIdle(_ value: Bool) {
        guard isIdle != value else { return }
        isIdle = value
        idleSince = transport.loop.now
        transport.statistics.idle.add(value ? 1 : -1, ordering: .relaxed)
    }

    // MARK: Time

    var deadline: UInt64 {
        isIdle ? idleSince &+ transport.settings.idleTimeout : exchangeDeadline
    }

    /// Takes the exchange's deadline into account.
    func note(_ exchange: HTTP2Exchange) {
        exchangeDeadline = min(exchangeDeadline, exchange.deadline)
        connection?.updateTimer()
    }

    func expired(_ connection: SocketConnection) {
        if isIdle {
            end()
            return
        }
        let now = transport.loop.now
        for exchange in Array(streams.values) where exchange.deadline <= now {
            exchange.expired()
            // On a silently dead connection further requests would be lost.
            let settings = transport.settings
            let limit = min(settings.firstByteTimeout, settings.progressTimeout)
            if lastReceived &+ limit / 2 <= now { isDraining = true }
        }
        exchangeDeadline = streams.values.reduce(.max) { min($0, $1.deadline) }
    }
}
