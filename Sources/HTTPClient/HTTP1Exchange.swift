import EventLoop
import Glibc
import Wire

/// One request on its connection: the request is sent as the socket takes it, the response's head read, and the body
/// read from the socket straight into the reader's buffer when it asks. Confined to its loop.
final class HTTP1Exchange: Transfer {
    private enum State {
        /// No final head has been read.
        case head
        case body
        /// The response is complete, or there will be no more of it.
        case over
    }
    private let transport: HTTP1Transport
    @exclusivity(unchecked) private var delegate: (any TransferDelegate)?
    /// Set by the transport, nil once nothing more is sent or read.
    @exclusivity(unchecked) var connection: HTTP1Connection?
    private var state = State.head
    private var failure: ClientError?

    // Sending.
    @exclusivity(unchecked) private var writer: HTTP1RequestWriter
    private var request: ClientRequest { writer.request }
    /// When the last byte was known to be on its way.
    private var sentAt: UInt64 = 0
    /// Bytes that the upstream had not acknowledged when the timer last looked.
    private var unacknowledged = Int.max
    @exclusivity(unchecked) private var sendClock = ProgressClock()

    // Receiving.
    @exclusivity(unchecked) private var parser: HTTP1ResponseParser
    /// Bytes of a head that is not complete.
    @exclusivity(unchecked) private var partial: [UInt8] = []
    private var interimResponses = 0
    private var framing = HTTP1ResponseHead.Framing.none
    private var keepAlive = false
    /// Bytes of the body that are still to come, where its length is known.
    private var remaining: UInt64 = 0
    @exclusivity(unchecked) private var chunks = ChunkedDecoder(lineLimit: chunkLineBytes)
    /// What came with the head, and how much of it was read.
    @exclusivity(unchecked) private var rest: [UInt8] = []
    private var restRead = 0
    @exclusivity(unchecked) private var waiter: (() -> Void)?
    @exclusivity(unchecked) private var readClock = ProgressClock()

    /// Bytes of a chunk's line, and of all trailers.
    private static let chunkLineBytes = 8 * 1024
    /// Interim responses before the final one.
    private static let maximumInterim = 16
    /// Bytes of an unwanted body that are read and dropped to keep the connection.
    private static let drainedBytes = 64 * 1024

    init(_ transport: HTTP1Transport, _ request: ClientRequest, _ delegate: any TransferDelegate) {
        self.transport = transport
        self.delegate = delegate
        writer = HTTP1RequestWriter(request)
        parser = HTTP1ResponseParser(answersHead: request.isHead)
        if case .pipe(let pipe) = request.body {
            pipe.onWritten = { [unowned self] in connection?.markDirty() }
            pipe.sendNow = { [unowned self] in sendNow($0, $1) }
        }
    }

    // MARK: Connection

    /// Goes on with what the connection allows: sends, reads the head, wakes the reader.
    func settle() {
        if !writer.isHeadWritten, let connection, connection.isReused, connection.canReceive {
            return connectionLost("the connection was closed before the request")
        }
        if !writer.isComplete && state == .head { send() }
        if state == .head { readHead() }
        guard state == .body, let connection, connection.canReceive else { return }
        wake()
    }

    /// Whether the request may be sent again, and all of it is there to be sent again.
    var isRepeatable: Bool {
        if case .pipe = request.body { return false }
        return request.isRepeatable
    }

    /// Whether the request may be sent once more now that its connection turned out to be closed. A write that may have
    /// arrived is not: who repeats it must know of it, and ``Upstream`` tells.
    private var canStartOver: Bool {
        if case .pipe(let pipe) = request.body, pipe.sent > 0 { return false }
        return request.isRead && request.isRepeatable || !writer.mayHaveReached
    }

    /// There is no connection, or none any more.
    func connectionFailed(_ code: ClientError.Code, _ cause: String) {
        connection = nil
        fail(code, cause)
    }

    /// The socket has ended or failed. One that was at rest before was most likely closed by the upstream before it saw
    /// the request.
    private func connectionLost(_ how: String) {
        guard let connection else { return }
        let isUntouched = state == .head && interimResponses == 0 && partial.isEmpty
        guard connection.isReused, isUntouched, canStartOver else {
            return fail(.connectionLost, how)
        }
        transport.discard(connection)
        writer.startOver()
        sendClock = ProgressClock()
        transport.connect(self, fresh: true)
    }

    private func fail(_ code: ClientError.Code, _ cause: String) {
        guard state != .over else { return }
        let isAnswered = state == .body
        let error = ClientError(
            code, "\(transport.settings.name): \(cause)", mayHaveReached: writer.mayHaveReached)
        failure = error
        end(reusable: false)
        let delegate = delegate
        self.delegate = nil
        if isAnswered { wake() } else { delegate?.failed(error) }
        delegate?.ended()
    }

    /// Nothing more is sent or read.
    private func end(reusable: Bool) {
        state = .over
        dropRest()
        partial = []
        let connection = connection
        self.connection = nil
        guard let connection else { return }
        if reusable { connection.release(reusable: true) } else { transport.discard(connection) }
    }

    private func dropRest() {
        var dropped: [UInt8] = []
        swap(&dropped, &rest)
        transport.giveBack(dropped)
    }

    func cancel() { fail(.cancelled, "given up") }

    // MARK: Sending

    private func send() {
        guard let connection, connection.canSend else { return }
        let now = transport.loop.now
        do throws(SystemError) {
            let count = try writer.write(to: connection, transport)
            sendClock.moved(count, of: transport.settings.progressBytes, now)
        } catch {
            readHead()
            if state == .head && self.connection === connection {
                connectionLost("the connection failed: \(error)")
            }
            return
        }
        if writer.isComplete { sentAt = now }
        keepSendTime(connection, now)
        if case .pipe(let pipe) = request.body { pipe.wakeWriter(canSend: connection.canSend) }
    }

    /// Sends bytes of the body as they are written; nil where there is no turn for them yet.
    private func sendNow(_ waiting: UnsafeRawBufferPointer, _ bytes: UnsafeRawBufferPointer) -> Int?
    {
        guard state == .head, writer.isHeadSent, let connection, connection.canSend else {
            return nil
        }
        let now = transport.loop.now
        do throws(SystemError) {
            let count = try connection.send(waiting, bytes)
            sendClock.moved(count, of: transport.settings.progressBytes, now)
            keepSendTime(connection, now)
            connection.updateTimer()
            return count
        } catch {
            // Found again, and told, in the connection's own turn.
            connection.markDirty()
            return nil
        }
    }

    /// The time in which bytes must move runs while the socket takes none.
    private func keepSendTime(_ connection: HTTP1Connection, _ now: UInt64) {
        if !writer.isComplete && !connection.canSend {
            sendClock.start(now)
        } else {
            sendClock.stop(now)
        }
    }

    // MARK: The head

    private func readHead() {
        while state == .head, let connection, connection.canReceive {
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
        do throws(HTTP1SyntaxError) {
            if partial.isEmpty {
                let used = try takeHeads(bytes.bindMemory(to: UInt8.self).span)
                if state == .head && used < bytes.count { partial = Array(bytes[used...]) }
            } else {
                partial.append(contentsOf: bytes)
                let all = partial
                let used = try takeHeads(all.span)
                if state == .head { partial = used == 0 ? all : Array(all[used...]) }
            }
        } catch {
            fail(.malformed, error.reason)
        }
    }

    /// Reads heads up to the final one; returns the bytes they took.
    private func takeHeads(_ input: Span<UInt8>) throws(HTTP1SyntaxError) -> Int {
        var place = 0
        while let head = try parser.parse(input.extracting(place...)) {
            place += head.length
            if head.status >= 200 {
                begin(head, input.extracting(place...))
                return place
            }
            interimResponses += 1
            if interimResponses > HTTP1Exchange.maximumInterim {
                throw HTTP1SyntaxError("too many interim responses", isTooLong: true)
            }
            parser = HTTP1ResponseParser(answersHead: request.isHead)
        }
        return place
    }

    /// The final head is there, and with it perhaps some of the body.
    private func begin(_ head: HTTP1ResponseHead, _ following: Span<UInt8>) {
        partial = []
        framing = head.framing
        keepAlive = head.keepAlive && writer.isComplete
        let body: any ByteSource
        if framing == .none {
            end(reusable: keepAlive && following.isEmpty)
            body = EmptySource()
        } else {
            state = .body
            if case .length(let length) = framing { remaining = length }
            if !following.isEmpty {
                rest = transport.takeSpare()
                following.withUnsafeBufferPointer { rest.append(contentsOf: $0) }
            }
            body = HTTP1Body(self)
        }
        let response = ClientResponse(
            status: head.status, fields: head.fields,
            contentLength: framing == .none ? 0 : head.contentLength, body: body)
        delegate?.received(response)
        if state == .over { ended() }
    }

    private func ended() {
        let delegate = delegate
        self.delegate = nil
        delegate?.ended()
    }

    // MARK: The body

    /// The body's next bytes.
    func read(into buffer: UnsafeMutableRawBufferPointer) throws(ClientError) -> SourceRead {
        if let failure { throw failure }
        guard state == .body, buffer.count > 0 else { return state == .body ? .wait : .end }
        let result =
            switch framing {
            case .none: SourceRead.end
            case .length: readCounted(buffer)
            case .chunked: readChunked(buffer)
            case .untilClose: readUntilClose(buffer)
            }
        if let failure { throw failure }
        if result == .wait {
            readClock.start(transport.loop.now)
            connection?.updateTimer()
        }
        return result
    }

    /// What the socket, or the head's packet, has for `buffer`; nil where the body broke off.
    private func receive(into buffer: UnsafeMutableRawBufferPointer, isLast: Bool = false)
        -> HTTP1Connection.Received
    {
        if !rest.isEmpty {
            let end = min(restRead + buffer.count, rest.count)
            let count = end - restRead
            rest.withUnsafeBytes { buffer.copyMemory(from: .init(rebasing: $0[restRead..<end])) }
            restRead = end
            if end == rest.count { dropRest() }
            return .bytes(count)
        }
        guard let connection else { return .wait }
        let received = connection.receive(into: buffer, isLast: isLast)
        if case .bytes(let count) = received {
            let now = transport.loop.now
            readClock.stop(now)
            let enough = request.patience == nil ? transport.settings.progressBytes : 1
            readClock.moved(count, of: enough, now)
        }
        return received
    }

    private func readCounted(_ buffer: UnsafeMutableRawBufferPointer) -> SourceRead {
        let room = Int(min(remaining, UInt64(buffer.count)))
        let isLast = UInt64(room) == remaining
        switch receive(into: .init(rebasing: buffer[..<room]), isLast: isLast) {
        case .bytes(let count):
            remaining -= UInt64(count)
            if remaining == 0 { complete(clean: rest.isEmpty) }
            return .bytes(count)
        case .wait: return .wait
        case .end: return brokenOff("\(remaining) bytes of the body are missing")
        case .failed(let error): return brokenOff("\(error)")
        }
    }

    /// Decodes in place: what is left of a piece without its framing is never longer.
    private func readChunked(_ buffer: UnsafeMutableRawBufferPointer) -> SourceRead {
        while true {
            switch receive(into: buffer) {
            case .bytes(let count):
                do throws(HTTP1SyntaxError) {
                    let (kept, used) = try decode(buffer, count)
                    if let used { complete(clean: used == count && rest.isEmpty) }
                    if kept > 0 { return .bytes(kept) }
                    if used != nil { return .end }
                } catch {
                    fail(.malformed, error.reason)
                    return .end
                }
            case .wait: return .wait
            case .end: return brokenOff("the last chunk is missing")
            case .failed(let error): return brokenOff("\(error)")
            }
        }
    }

    /// Moves the body's bytes among the first `count` of `buffer` to its start.
    /// - Returns: How many they are, and where the body ends, if it does.
    private func decode(_ buffer: UnsafeMutableRawBufferPointer, _ count: Int)
        throws(HTTP1SyntaxError) -> (kept: Int, end: Int?)
    {
        guard let start = buffer.baseAddress else { return (0, nil) }
        let input = UnsafeRawBufferPointer(start: start, count: count).bindMemory(to: UInt8.self)
        var place = 0
        var kept = 0
        while true {
            switch try chunks.next(input.span, at: &place) {
            case .data(let length):
                if place != kept { memmove(start + kept, start + place, length) }
                place += length
                kept += length
            case .incomplete: return (kept, nil)
            case .end: return (kept, place)
            }
        }
    }

    private func readUntilClose(_ buffer: UnsafeMutableRawBufferPointer) -> SourceRead {
        switch receive(into: buffer) {
        case .bytes(let count): return .bytes(count)
        case .wait: return .wait
        case .end:
            complete(clean: false)
            return .end
        case .failed(let error): return brokenOff("\(error)")
        }
    }

    private func brokenOff(_ how: String) -> SourceRead {
        fail(.connectionLost, "the response broke off: \(how)")
        return .end
    }

    private func complete(clean: Bool) {
        end(reusable: keepAlive && clean)
        ended()
    }

    func whenReadable(_ resume: @escaping () -> Void) {
        waiter = resume
        // What waits already is told from elsewhere.
        guard state == .body, rest.isEmpty, let connection, !connection.canReceive else {
            return transport.afterwards { [self] in wake() }
        }
    }

    private func wake() {
        guard let resume = waiter else { return }
        waiter = nil
        resume()
    }

    func close() {
        guard state == .body else { return }
        waiter = nil
        drain()
        guard state == .body else { return }
        failure = ClientError(.cancelled, "the body was closed")
        end(reusable: false)
        ended()
    }

    /// Reads over what is left of the body where it is there already and not much.
    private func drain() {
        guard keepAlive, remaining <= UInt64(HTTP1Exchange.drainedBytes) else { return }
        var left = HTTP1Exchange.drainedBytes
        while state == .body && left > 0 {
            guard case .bytes(let count) = try? read(into: transport.input) else { return }
            left -= count
        }
    }

    // MARK: Time

    /// The next moment at which something must have happened.
    var deadline: UInt64 {
        let settings = transport.settings
        return switch state {
        case .head:
            writer.isComplete
                ? sentAt &+ max(request.patience ?? 0, settings.firstByteTimeout)
                : sendClock.deadline(settings.progressTimeout)
        case .body: readClock.deadline(max(request.patience ?? 0, settings.progressTimeout))
        case .over: .max
        }
    }

    /// The deadline has passed.
    func expired(_ connection: HTTP1Connection) {
        switch state {
        case .head:
            guard writer.isComplete else {
                return fail(.timedOut, "it takes no more of the request")
            }
            // The kernel may still be sending: the answer is waited for from its last byte on.
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

/// What the reader of a body holds: dropped without being closed, it closes itself.
private final class HTTP1Body: ByteSource {
    private let exchange: HTTP1Exchange

    init(_ exchange: HTTP1Exchange) { self.exchange = exchange }

    deinit { exchange.close() }

    func read(into buffer: inout MutableRawSpan) throws -> SourceRead {
        try buffer.withUnsafeMutableBytes { try exchange.read(into: $0) }
    }

    func whenReadable(_ resume: @escaping () -> Void) { exchange.whenReadable(resume) }

    func close() { exchange.close() }
}
