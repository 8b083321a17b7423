import CNghttp2
import System
import Wire

/// One request on a stream of an ``HTTP2Session``. Its delegate, reader and writer see the same as over HTTP/1.1.
///
/// Safety: confined to its loop. Jobs for a later turn only pass the reference back to it.
final class HTTP2Exchange: Transfer, ResponseReader, @unchecked Sendable {
    enum Phase {
        case head
        case body
        /// The response is complete or can't continue.
        case over
    }
    let transport: SocketTransport
    let request: ClientRequest
    private var delegate: (any TransferDelegate)?
    /// nil once nothing more is sent or received.
    var session: HTTP2Session?
    /// The stream's identifier; 0 before it is opened.
    private(set) var id: Int32 = 0
    private(set) var phase = Phase.head
    private(set) var failure: ClientError?
    /// Whether another exchange has already reported the failure of its connection.
    var isFailureReported = false
    /// The same request over HTTP/1.1, if the upstream chose that.
    private var substitute: (any Transfer)?
    /// How often the request was moved to another connection.
    private var moves = 0
    private static let maximumMoves = 2

    // Sending.
    private var bodySent = 0
    /// Whether nghttp2 waits for more of the body.
    var isDeferred = false
    /// Whether the request's head was written, so that the upstream may act on it.
    var mayHaveReached = false
    var isSent = false
    private var sentAt: UInt64 = 0
    private var sendClock = ProgressClock()

    // What the callbacks recorded.
    var isTouched = false
    /// Why the response is malformed.
    var fault: String?
    /// The code of the upstream's RST_STREAM.
    var resetCode: UInt32?
    /// The code with which nghttp2 has closed the stream.
    var closeCode: UInt32?
    /// The nghttp2 error that prevented sending the request.
    var unsentCode: Int32?
    private var block: HTTP2ResponseHead?
    private(set) var head: HTTP2ResponseHead?
    private var hasReceived = false
    private var interimResponses = 0
    private(set) var hasEnd = false

    // The body.
    var bytes: [UInt8] = []
    var bytesRead = 0
    /// The reader's buffer while ``HTTP2Session/receive(for:)`` runs, and the number of bytes in it.
    var target = UnsafeMutableRawBufferPointer(start: nil, count: 0)
    var targetCount = 0
    private(set) var total: UInt64 = 0
    /// Whether the body is larger than ``HTTP2Pool/largeBody``.
    private(set) var isLarge = false
    /// The stream's window in bytes.
    private(set) var window = HTTP2Session.initialWindow
    private var consumedSinceGrowth = 0
    var waiter: (() -> Void)?
    var readClock = ProgressClock()

    init(_ transport: SocketTransport, _ request: ClientRequest, _ delegate: any TransferDelegate) {
        self.transport = transport
        self.request = request
        self.delegate = delegate
        transport.statistics.alive.add(1, ordering: .relaxed)
        if case .pipe(let pipe) = request.body {
            pipe.onWritten = { [unowned self] in session?.bodyWritten(self) }
        }
    }

    deinit { transport.statistics.alive.subtract(1, ordering: .relaxed) }

    // MARK: Sending

    func submitted(_ id: Int32) {
        self.id = id
        sendClock.start(transport.loop.now)
    }

    /// The number of body bytes that can be sent now; 0 after the response's head, as over HTTP/1.1.
    var available: Int {
        guard phase == .head else { return 0 }
        return switch request.body {
        case .none: 0
        case .bytes(let bytes): bytes.count - bodySent
        case .pipe(let pipe): pipe.waitingCount
        }
    }

    func isLast(_ count: Int) -> Bool { UInt64(bodySent + count) == request.bodyLength }

    /// Moves the next bytes of the body into `frame`.
    func takeBody(into frame: UnsafeMutableRawBufferPointer) {
        switch request.body {
        case .none: break
        case .bytes(let bytes):
            bytes.withUnsafeBytes {
                frame.copyMemory(
                    from: .init(rebasing: $0[bodySent..<bodySent + frame.count]))
            }
        case .pipe(let pipe):
            pipe.take {
                frame.copyMemory(from: .init(rebasing: $0[..<frame.count]))
                return frame.count
            }
        }
        bodySent += frame.count
        sendClock.moved(frame.count, of: transport.settings.progressBytes, transport.loop.now)
    }

    /// Runs the progress clock while the upstream accepts no bytes.
    func keepSendTime(_ now: UInt64, canSend: Bool) {
        if isSent {
            sentAt = now
        } else if canSend && mayHaveReached && available == 0 {
            sendClock.stop(now)
        } else {
            sendClock.start(now)
        }
    }

    /// Wakes the body's writer if there is capacity. Not called within nghttp2.
    func wakeWriter() {
        if case .pipe(let pipe) = request.body { pipe.wakeWriter() }
    }

    // MARK: Receiving, within nghttp2

    func blockBegan() {
        hasReceived = true
        block = HTTP2ResponseHead(isTrailer: head != nil)
    }

    func field(_ name: UnsafeBufferPointer<UInt8>, _ value: UnsafeBufferPointer<UInt8>) -> Bool {
        if fault == nil { fault = block?.add(name, value) }
        return fault == nil
    }

    /// Returns whether it was the final head.
    func blockEnded(ends: Bool) -> Bool {
        defer { block = nil }
        guard fault == nil, let block else { return false }
        if head == nil {
            switch block.status {
            case 200...599: head = block
            case 100, 102..<200:
                interimResponses += 1
                if interimResponses > HTTP1ExchangeState.maximumInterim {
                    fault = "too many interim responses"
                }
                return false
            default:
                fault = "malformed status"
                return false
            }
        }
        if ends { bodyEnded() }
        return true
    }

    func received(_ part: UnsafeRawBufferPointer) {
        guard phase != .over, !hasEnd else { return }
        keep(UnsafeRawBufferPointer(rebasing: part[passToReader(part)...]))
        total += UInt64(part.count)
        let now = transport.loop.now
        readClock.stop(now)
        let enough = request.waitLimit == nil ? transport.settings.progressBytes : 1
        readClock.moved(part.count, of: enough, now)
    }

    func bodyEnded() {
        hasEnd = true
        readClock.stop(transport.loop.now)
    }

    // MARK: Acting on what was recorded

    var isClosed: Bool { closeCode != nil }

    func advance() {
        guard phase != .over else { return }
        if let fault { return fail(.malformed, fault, isUntrusted: false) }
        if phase == .head, let head {
            self.head?.dropFields()
            deliver(head)
        }
        if phase == .body {
            noteSize()
            if hasEnd || bytesRead < bytes.count { wake() }
        }
        guard phase != .over, isClosed else { return }
        if hasEnd { return leave() }
        closedEarly()
    }

    private func deliver(_ head: HTTP2ResponseHead) {
        let mayHaveBody = !request.isHead && head.status != 204 && head.status != 304
        let hasBody = mayHaveBody && !(hasEnd && bytes.isEmpty)
        session?.hasServed = true
        phase = hasBody ? .body : .over
        if !hasBody { leave() }
        let response = ClientResponse(
            status: head.status, fields: head.fields, contentLength: hasBody ? head.contentLength : 0,
            body: hasBody ? ResponseBody(self) : EmptySource.shared)
        delegate?.received(response)
        if phase == .over { delegate.take()?.ended(nil) }
    }

    /// Notes a large body, so that the session takes no further requests while it arrives.
    private func noteSize() {
        guard !isLarge, !hasEnd, let session,
            max(head?.contentLength ?? 0, total) > HTTP2Pool.largeBody
        else { return }
        isLarge = true
        session.becameLarge()
        if let length = head?.contentLength { session.openWindow(of: self, length: length) }
        transport.http2?.noteDownload(request, status: head?.status ?? 0, isLarge: true)
    }

    private func closedEarly() {
        let isRefused =
            unsentCode != nil || closeCode == NGHTTP2_REFUSED_STREAM.rawValue
            || resetCode == NGHTTP2_REFUSED_STREAM.rawValue
        if resetCode == NGHTTP2_HTTP_1_1_REQUIRED.rawValue, canBeSentAgain, phase == .head {
            leave()
            mayHaveReached = false
            return continueOverHTTP1()
        }
        // The upstream has certainly not processed the request (RFC 9113, section 8.7).
        if isRefused, phase == .head, !hasReceived {
            mayHaveReached = false
            if canBeSentAgain { return moveOn("the upstream refused the request") }
            return fail(.connectionLost, "the upstream refused the request", isUntrusted: false)
        }
        guard let resetCode else {
            return fail(
                .malformed, "HTTP/2: the response does not have its declared length",
                isUntrusted: false)
        }
        let code = String(cString: nghttp2_http2_strerror(resetCode))
        fail(.connectionLost, "the upstream reset the stream: \(code)", isUntrusted: false)
    }

    /// Whether the whole body is available.
    private var canBeSentAgain: Bool {
        if case .pipe(let pipe) = request.body { return pipe.sent == 0 }
        return true
    }

    /// The connection is lost. `mayResend`: the upstream may have closed it before it received the request.
    func connectionLost(_ how: String, mayResend: Bool) {
        guard phase != .over else { return }
        let canStartOver =
            canBeSentAgain && (request.isRead && request.isRepeatable || !mayHaveReached)
        if phase == .head, mayResend, !hasReceived, canStartOver {
            return moveOn("\(how) before the response")
        }
        // The whole response may have arrived before the connection was lost.
        if phase == .body, hasEnd { return }
        fail(
            .connectionLost, phase == .head ? "\(how) before the response" : "the response broke off: \(how)",
            isUntrusted: false)
    }

    /// Sends the request on another connection, or fails after a few moves.
    func moveOn(_ reason: String) {
        guard phase == .head else { return }
        if transport.isClosed {
            return fail(.cancelled, "the client was closed", isUntrusted: false)
        }
        guard moves < HTTP2Exchange.maximumMoves, let http2 = transport.http2 else {
            return fail(.connectionLost, reason, isUntrusted: false)
        }
        moves += 1
        let previous = session
        leave()
        id = 0
        (bodySent, isDeferred, isSent) = (0, false, false)
        (resetCode, closeCode, unsentCode) = (nil, nil, nil)
        (block, head) = (nil, nil)
        sendClock = ProgressClock()
        http2.reassign(self, from: previous)
    }

    func continueOverHTTP1() {
        guard phase == .head, let delegate = delegate.take() else { return }
        phase = .over
        substitute = transport.startHTTP1(request, delegate)
    }

    func fail(_ code: ClientError.Code, _ cause: String, isUntrusted: Bool) {
        guard phase != .over else { return }
        let hasResponse = phase == .body
        var error = ClientError(code, "\(transport.settings.name): \(cause)", mayHaveReached: mayHaveReached)
        error.isUntrusted = isUntrusted
        error.isRepeated = isFailureReported
        failure = error
        phase = .over
        leave()
        dropBytes()
        let delegate = self.delegate.take()
        if hasResponse { wake() } else { delegate?.failed(error) }
        delegate?.ended(error)
    }

    /// Ends the exchange after the response was read completely, or is unwanted.
    func finish() {
        phase = .over
        leave()
        dropBytes()
        delegate.take()?.ended(nil)
    }

    /// Leaves the session, resetting the stream if it is not closed.
    private func leave() {
        session.take()?.remove(self)
        isLarge = false
    }

    func cancel() {
        transport.loop.assertCurrent()
        if let substitute { return substitute.cancel() }
        fail(.cancelled, "given up", isUntrusted: false)
    }

    func closedByReader() {
        failure = ClientError(.cancelled, "the body was closed")
        finish()
    }

    // MARK: Windows and time

    /// Opens the window for a body of this length. Returns whether it has grown.
    func openWindow(_ length: UInt64) -> Bool {
        let wanted = Int(min(length, UInt64(HTTP2Session.maximumWindow)))
        guard wanted > window else { return false }
        window = wanted
        return true
    }

    /// Counts `count` further bytes read. Returns whether the window has grown.
    func growWindow(_ count: Int) -> Bool {
        consumedSinceGrowth += count
        guard consumedSinceGrowth >= window, window < HTTP2Session.maximumWindow else {
            return false
        }
        consumedSinceGrowth = 0
        window = min(2 * window, HTTP2Session.maximumWindow)
        return true
    }

    var deadline: UInt64 {
        let settings = transport.settings
        return switch phase {
        case .head:
            isSent
                ? sentAt &+ max(request.waitLimit ?? 0, settings.firstByteTimeout)
                : sendClock.deadline(settings.progressTimeout)
        case .body: readClock.deadline(max(request.waitLimit ?? 0, settings.progressTimeout))
        case .over: .max
        }
    }

    func expired() {
        switch phase {
        case .head:
            fail(
                .timedOut, isSent ? "no response in time" : "the upstream stopped reading",
                isUntrusted: false)
        case .body: fail(.timedOut, "no more of the response in time", isUntrusted: false)
        case .over: break
        }
    }
}
