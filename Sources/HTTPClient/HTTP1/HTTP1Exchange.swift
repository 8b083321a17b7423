import Glibc
import System
import Wire

/// A request on its connection. It sends the request as fast as the socket accepts it and parses the response's head.
/// The body is read from the socket directly into the reader's buffer.
///
/// Safety: confined to its loop. Jobs for a later turn only pass the reference back to it.
final class HTTP1Exchange: Transfer, ConnectionUser, ResponseReader, @unchecked Sendable {
    let transport: SocketTransport
    private var delegate: (any TransferDelegate)?
    /// Set by the transport; nil once nothing more is sent or read.
    var connection: SocketConnection?
    var state = HTTP1ExchangeState()
    var failure: ClientError?

    // Sending.
    private var writer: HTTP1RequestWriter
    var request: ClientRequest { writer.request }
    /// When the kernel accepted the last byte of the request, or the upstream last acknowledged bytes after that.
    private var sentAt: UInt64 = 0
    /// The number of unacknowledged bytes at the last check.
    private var unacknowledged = Int.max
    private var sendClock = ProgressClock()

    // Receiving.
    private var parser: HTTP1ResponseParser
    /// The bytes of an incomplete head.
    private var partial: [UInt8] = []
    var chunks = ChunkedDecoder(lineLimit: chunkLineBytes)
    /// The body bytes that arrived with the head, and how many of them were read.
    var rest: [UInt8] = []
    var restRead = 0
    var ahead: ReadAhead?
    var waiter: (() -> Void)?
    var readClock = ProgressClock()

    /// When the held bytes of the body are sent; `UInt64.max` if none are held.
    private var heldUntil = UInt64.max
    /// How long body bytes may be held: 100 ms in nanoseconds. No service uses a partial body, and a timer that is due
    /// within milliseconds costs as much as holding saves.
    private static let holdTime: UInt64 = 100_000_000

    /// The maximum size in bytes of a chunk line, and of all trailers.
    private static let chunkLineBytes = 8 * 1024

    init(_ transport: SocketTransport, _ request: ClientRequest, _ delegate: any TransferDelegate) {
        self.transport = transport
        self.delegate = delegate
        transport.statistics.alive.add(1, ordering: .relaxed)
        writer = HTTP1RequestWriter(request)
        parser = HTTP1ResponseParser(respondsToHead: request.isHead)
        if case .pipe(let pipe) = request.body {
            pipe.onWritten = { [unowned self] in connection?.markDirty() }
            pipe.onHeld = { [unowned self] in hold() }
            pipe.sendNow = { [unowned self] in sendNow($0, $1) }
        }
    }

    deinit { transport.statistics.alive.subtract(1, ordering: .relaxed) }

    // MARK: Connection

    /// Continues as far as possible: sends, reads the head, wakes the reader.
    func settle() {
        if !writer.isHeadWritten, let connection, connection.isReused, connection.canReceive,
            !connection.isQuiet()
        {
            return connectionLost("the connection was closed before the request")
        }
        if !writer.isComplete && state.phase == .head { send() }
        if state.phase == .head { readHead() }
        guard state.phase == .body, let connection, connection.canReceive else { return }
        bytesArrived()
    }

    /// Whether the request may be sent again and its whole body is available.
    var isRepeatable: Bool {
        if case .pipe = request.body { return false }
        return request.isRepeatable
    }

    /// Whether to resend the request if its connection was closed. ``Upstream`` decides about writes that were sent.
    private var canStartOver: Bool {
        if case .pipe(let pipe) = request.body, pipe.sent > 0 { return false }
        return request.isRead && request.isRepeatable || !writer.mayHaveReached
    }

    func connectionFailed(_ code: ClientError.Code, _ cause: String, isUntrusted: Bool = false) {
        connection = nil
        fail(code, cause, isUntrusted: isUntrusted)
    }

    /// The socket has ended or failed before the final head.
    private func connectionLost(_ how: String) {
        guard let connection else { return }
        let mayResend = connection.isReused && canStartOver
        let event = HTTP1ExchangeState.Event.connectionLost(isOrderly: false, mayResend: mayResend)
        guard state.handle(event) == .startOver else { return fail(.connectionLost, how) }
        transport.discard(connection)
        writer.startOver()
        sendClock = ProgressClock()
        transport.connect(self, fresh: true)
    }

    func fail(_ code: ClientError.Code, _ cause: String, isUntrusted: Bool = false) {
        guard state.phase != .over else { return }
        let hasResponse = state.phase == .body
        if !hasResponse, code != .cancelled { transport.http2?.forgetDownload(request) }
        var error = ClientError(code, "\(transport.settings.name): \(cause)", mayHaveReached: writer.mayHaveReached)
        error.isUntrusted = isUntrusted
        failure = error
        end(state.handle(.failed))
        let delegate = self.delegate.take()
        if hasResponse { wake() } else { delegate?.failed(error) }
        delegate?.ended(error)
    }

    /// Stops sending and reading, and releases or closes the connection.
    func end(_ action: HTTP1ExchangeState.Action) {
        dropRest()
        partial = []
        guard let connection = connection.take() else { return }
        if action == .release, !request.isAlone {
            connection.release()
        } else {
            transport.discard(connection)
        }
    }

    func dropRest() {
        dropAhead()
        rest = []
    }

    func dropAhead() {
        if let ahead = ahead.take() { transport.loop.readAhead.giveBack(ahead.buffer) }
    }

    func cancel() {
        transport.loop.assertCurrent()
        fail(.cancelled, "given up")
    }

    // MARK: Sending

    private func send() {
        heldUntil = .max
        guard let connection, connection.canSend else { return }
        let now = transport.loop.now
        do throws(SocketConnection.Failure) {
            let count = try writer.write(to: connection, transport)
            sendClock.moved(count, of: transport.settings.progressBytes, now)
        } catch {
            readHead()
            if state.phase == .head && self.connection === connection {
                connectionLost("the connection failed: \(error)")
            }
            return
        }
        if writer.isComplete { sentAt = now }
        keepSendTime(connection, now)
        if case .pipe(let pipe) = request.body { pipe.wakeWriter(canSend: connection.canSend) }
    }

    /// Sends bytes of the body as they are written; nil before the head is sent, and after a failure.
    private func sendNow(_ waiting: UnsafeRawBufferPointer, _ bytes: UnsafeRawBufferPointer) -> Int? {
        transport.loop.assertCurrent()
        guard state.phase == .head, writer.isHeadSent, let connection, connection.isOpen else {
            return nil
        }
        heldUntil = .max
        let now = transport.loop.now
        do throws(SocketConnection.Failure) {
            let count = try connection.send(waiting, bytes)
            sendClock.moved(count, of: transport.settings.progressBytes, now)
            keepSendTime(connection, now)
            connection.updateTimer()
            return count
        } catch {
            // The connection gets the error again in its own turn, and reports it.
            connection.markDirty()
            return nil
        }
    }

    /// Sends the pipe's held bytes after ``holdTime``.
    private func hold() {
        guard heldUntil == .max, let connection else { return }
        heldUntil = transport.loop.now &+ HTTP1Exchange.holdTime
        connection.updateTimer()
    }

    /// Runs the progress clock while the socket accepts no bytes.
    private func keepSendTime(_ connection: SocketConnection, _ now: UInt64) {
        if !writer.isComplete && !connection.canSend {
            sendClock.start(now)
        } else {
            sendClock.stop(now)
        }
    }

    // MARK: The head

    private func readHead() {
        while state.phase == .head, let connection, connection.canReceive {
            let input = transport.input
            switch connection.receive(into: input) {
            case .bytes(let count): take(UnsafeRawBufferPointer(rebasing: input[..<count]))
            case .wait: return
            case .end: return connectionLost("the connection was closed before the response")
            case .failed(let error): return connectionLost("the connection failed: \(error)")
            }
        }
    }

    private func take(_ bytes: UnsafeRawBufferPointer) {
        _ = state.handle(.received)
        do throws(HTTP1SyntaxError) {
            if partial.isEmpty {
                let used = try takeHeads(bytes.bindMemory(to: UInt8.self).span)
                if state.phase == .head && used < bytes.count { partial = Array(bytes[used...]) }
            } else {
                partial.append(contentsOf: bytes)
                let all = partial
                let used = try takeHeads(all.span)
                if state.phase == .head { partial = used == 0 ? all : Array(all[used...]) }
            }
        } catch {
            fail(.malformed, error.reason)
        }
    }

    /// Parses heads up to the final one; returns the number of bytes consumed.
    private func takeHeads(_ input: Span<UInt8>) throws(HTTP1SyntaxError) -> Int {
        var offset = 0
        while let head = try parser.parse(input.extracting(offset...)) {
            offset += head.length
            if head.status >= 200 {
                begin(head, input.extracting(offset...))
                return offset
            }
            if state.handle(.interim) == .reject {
                throw HTTP1SyntaxError("too many interim responses", isTooLong: true)
            }
            parser = HTTP1ResponseParser(respondsToHead: request.isHead)
        }
        return offset
    }

    /// Handles the final head and any first bytes of the body.
    private func begin(_ head: consuming HTTP1ResponseHead, _ following: Span<UInt8>) {
        partial = []
        let action = state.handle(
            .head(
                head.framing, keepAlive: head.keepAlive && writer.isComplete,
                hasSurplus: !following.isEmpty))
        let body: any ByteSource
        if action != .readBody {
            end(action)
            body = EmptySource.shared
        } else {
            let arrived = following.withUnsafeBufferPointer { Array($0) }
            if head.framing == .length(UInt64(arrived.count)) {
                end(state.handle(.bodyRead(arrived.count, hasSurplus: false)))
                body = ArrivedBody(arrived)
            } else {
                rest = arrived
                body = ResponseBody(self)
            }
        }
        if let length = head.contentLength {
            transport.http2?.noteDownload(request, status: head.status, isLarge: length > HTTP2Pool.largeBody)
        }
        let response = ClientResponse(
            status: head.status, fields: head.fields,
            contentLength: head.framing == .none ? 0 : head.contentLength, body: body)
        delegate?.received(response)
        if state.phase == .over { ended() }
    }

    func ended() {
        delegate.take()?.ended(nil)
    }

    // MARK: Time

    var deadline: UInt64 {
        let settings = transport.settings
        return switch state.phase {
        case .head:
            writer.isComplete
                ? sentAt &+ max(request.waitLimit ?? 0, settings.firstByteTimeout)
                : min(sendClock.deadline(settings.progressTimeout), heldUntil)
        case .body: readClock.deadline(max(request.waitLimit ?? 0, settings.progressTimeout))
        case .over: .max
        }
    }

    func expired(_ connection: SocketConnection) {
        switch state.phase {
        case .head:
            if heldUntil <= transport.loop.now {
                heldUntil = .max
                return connection.markDirty()
            }
            guard writer.isComplete else {
                return fail(.timedOut, "the upstream stopped reading")
            }
            // The kernel may still be sending. The response timeout begins with its last byte.
            let left = connection.unacknowledged
            if left > 0 && unacknowledged - left >= transport.settings.progressBytes {
                unacknowledged = left
                sentAt = transport.loop.now
                return
            }
            fail(.timedOut, "no response in time")
        case .body: fail(.timedOut, "no more of the response in time")
        case .over: break
        }
    }
}
