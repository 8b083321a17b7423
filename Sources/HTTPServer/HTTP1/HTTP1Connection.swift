import System
import Wire

/// HTTP/1.1 on one connection, one request at a time. The next request is read when the response has been sent.
final class HTTP1Connection: Engine {
    /// nil once the connection is closed.
    private var connection: Connection?
    private let context: LoopContext
    private let parser: HTTP1Parser
    private var state: HTTP1State
    private var input: [UInt8] = []
    /// The number of parsed bytes of ``input``, and whether a line has ended since.
    private var readBytes = 0
    private var hasLine = false
    private var headSince: UInt64?
    private var idleSince: UInt64
    private var chunks: ChunkedDecoder
    private var stream: ServerStream?
    /// Whether the current request is of HTTP/1.0, which has no chunked coding.
    private var isOfHTTP10 = false
    private var output: [UInt8] = []
    var isFinished: Bool { state.phase == .finished }
    var isEnding: Bool { isFinished }
    var isInCallback: Bool { false }

    init(_ connection: Connection) {
        self.connection = connection
        context = connection.context
        parser = HTTP1Parser(limits: context.limits)
        chunks = ChunkedDecoder(lineLimit: context.limits.chunkLineBytes)
        idleSince = context.loop.now
        state = HTTP1State(isDraining: context.isDraining)
        context.live.created(.session)
    }

    deinit {
        assert(stream == nil, "a connection that ends lets go of its stream")
        context.live.destroyed(.session)
    }

    // MARK: Reading

    var wantsRead: Bool {
        switch state.phase {
        case .head:
            input.count <= context.limits.headerBytes + context.limits.targetBytes + 65_536
        case .body, .chunkedBody:
            stream.map { !$0.body.isSinkBusy && $0.body.waitingCount < 65536 } ?? true
        case .responding: state.hasPeerEnded ? false : input.isEmpty
        case .finished: true
        }
    }

    var expectedBytes: Int? { stream?.missingBytes }
    func limitWindows(to most: Int, _ now: UInt64) -> Int { 0 }
    var waitingBytes: Int { stream?.body.waitingCount ?? 0 }

    func receive(_ bytes: UnsafeMutableRawBufferPointer) {
        if state.phase == .finished { return }
        if input.isEmpty && state.phase != .responding {
            let taken = process(bytes.bindMemory(to: UInt8.self).span)
            if taken < bytes.count { input.append(contentsOf: bytes[taken...]) }
            readBytes = input.count
            hasLine = false
        } else {
            // A head that arrives byte by byte is parsed again only when a line has ended or has become too long.
            hasLine = hasLine || state.phase != .head || bytes.contains(lf)
            input.append(contentsOf: bytes)
            let isLong = input.count - readBytes > parser.limits.targetBytes
            if hasLine || isLong { processInput() }
        }
    }

    private func processInput() {
        guard state.phase != .responding, state.phase != .finished else { return }
        let bytes = input
        input = []
        let taken = process(bytes.span)
        if taken < bytes.count { input = Array(bytes[taken...]) }
        hasLine = false
        readBytes = input.count
    }

    /// Parses as far as the state allows; returns the number of bytes consumed.
    private func process(_ bytes: Span<UInt8>) -> Int {
        var offset = 0
        do throws(HTTP1Error) {
            while offset < bytes.count {
                switch state.phase {
                case .head:
                    guard let head = try parser.parse(bytes.extracting(offset...)) else {
                        if headSince == nil { headSince = context.loop.now }
                        return offset
                    }
                    offset += head.length
                    begin(head)
                case .body(let remaining):
                    let count = Int(min(remaining, UInt64(bytes.count - offset)))
                    push(bytes.extracting(offset..<offset + count))
                    offset += count
                    act(on: .bodyReceived(UInt64(count)))
                case .chunkedBody:
                    switch try nextChunk(bytes, at: &offset) {
                    case .data(let count):
                        push(bytes.extracting(offset..<offset + count))
                        offset += count
                    case .end: act(on: .lastChunk)
                    case .incomplete: break
                    }
                case .responding: return offset
                case .finished: return bytes.count
                }
            }
        } catch {
            reject(error)
            return bytes.count
        }
        return offset
    }

    private func nextChunk(_ bytes: Span<UInt8>, at offset: inout Int) throws(HTTP1Error)
        -> ChunkedDecoder.Step
    {
        do throws(HTTP1SyntaxError) {
            return try chunks.next(bytes, at: &offset)
        } catch {
            throw HTTP1Error(error)
        }
    }

    private func begin(_ head: HTTP1Head) {
        headSince = nil
        let stream = ServerStream(id: 1, owner: self, context: context, expectsContinue: head.request.expectsContinue)
        stream.isHead = head.request.method == "HEAD"
        stream.hasInputEnded = state.hasPeerEnded
        self.stream = stream
        isOfHTTP10 = head.version == .http1_0
        context.statistics.streamOpened()
        act(on: .head(head.framing, keepAlive: head.keepAlive))
        if head.framing == .chunked {
            chunks = ChunkedDecoder(lineLimit: context.limits.chunkLineBytes)
        }
        guard let connection else { return }
        if connection.checkCertificate() { act(on: .closeAfterResponse) }
        let exchange = Exchange(
            head: head.request, version: head.version, connection: connection,
            loop: context.loop, stream: stream)
        stream.start(exchange, connection.handler)
    }

    private func push(_ bytes: Span<UInt8>) {
        stream?.body.push(bytes.bytes)
    }

    func receiveEnd() {
        if state.phase == .head && !input.isEmpty { context.statistics.protocolError() }
        stream?.hasInputEnded = true
        act(on: stream?.endsWithInput == true ? .failed : .peerEnded)
    }

    // MARK: State

    private func act(on event: HTTP1State.Event) {
        switch state.handle(event) {
        case .none: break
        case .endBody:
            stream?.body.end()
            // If the response was sent before the body's end, the next flush reads the next request.
            if state.isResponseComplete { connection?.markDirty() }
        case .discardBody: stream?.body.discard()
        case .readNext: readNext()
        case .abandon:
            stream?.abandon()
            fallthrough
        case .finish:
            endStream()
            input = []
        }
    }

    private func readNext() {
        endStream()
        idleSince = context.loop.now
        if !input.isEmpty { processInput() }
        act(on: .inputParsed)
        connection?.markDirty()
    }

    private func endStream() {
        guard stream != nil else { return }
        stream = nil
        context.statistics.streamClosed()
    }

    // MARK: Responding

    /// Rejects bytes that are not a request, and ends the connection.
    private func reject(_ error: HTTP1Error) {
        context.statistics.protocolError()
        if let limit = error.limit { context.statistics.hit(limit) }
        let hadBegun = stream != nil
        let hasNoResponse = stream?.response == nil
        act(on: .failed)
        if hasNoResponse {
            let rejection = Rejection(error.status, error.reason)
            let body = rejection.body
            var head = rejection.head
            head.fields.append("content-length", body.count)
            append(head, length: nil)
            output.append(contentsOf: body)
            // The handler of a request that had begun reports it.
            if !hadBegun { connection?.rejected(rejection, body, of: nil, .http1_1) }
        }
    }

    func sendContinue(_ stream: ServerStream) {
        output.append(contentsOf: "HTTP/1.1 100 Continue\r\n\r\n")
        connection?.markDirty()
    }

    func sendInterim(_ head: ResponseHead, _ stream: ServerStream) {
        appendLines(head)
        output.append(contentsOf: "\r\n")
        connection?.markDirty()
    }

    func responseReady(_ stream: ServerStream) {
        act(on: .responseBegun(isContinueDue: stream.isContinueDue))
        // Without chunks, the end of the connection is the end of the body (RFC 9112, section 6.3).
        if stream.isOpenEnded && isOfHTTP10 { act(on: .closeAfterResponse) }
        if let head = stream.response {
            append(head, length: stream.declaredLength, isChunked: stream.isOpenEnded && !isOfHTTP10)
        }
        connection?.markDirty()
    }

    func bodyReady(_ stream: ServerStream) { connection?.markDirty() }

    func bodyConsumed(_ stream: ServerStream, _ count: Int) {
        if stream.body.waitingCount == 0 { connection?.markDirty() }
    }

    func handlerEnded(_ stream: ServerStream) {
        guard stream === self.stream else { return }
        if stream.response == nil { act(on: .failed) }
        connection?.markDirty()
    }

    private func append(_ head: ResponseHead, length: UInt64?, isChunked: Bool = false) {
        appendLines(head)
        if isChunked { output.append(contentsOf: "transfer-encoding: chunked\r\n") }
        if let length {
            output.append(contentsOf: "content-length: ")
            output.append(contentsOf: String(length).utf8)
            output.append(contentsOf: "\r\n")
        }
        if context.isLeaving { act(on: .closeAfterResponse) }
        if !state.isPersistent { output.append(contentsOf: "connection: close\r\n") }
        output.append(contentsOf: "\r\n")
    }

    private func appendLines(_ head: ResponseHead) {
        output.reserveCapacity(output.count + head.fields.lineBytes + 128)
        output.append(contentsOf: "HTTP/1.1 ")
        output.append(UInt8(ascii: "0") + UInt8(head.status / 100))
        output.append(UInt8(ascii: "0") + UInt8(head.status / 10 % 10))
        output.append(UInt8(ascii: "0") + UInt8(head.status % 10))
        output.append(space)
        output.append(contentsOf: reasonPhrase(head.status))
        output.append(contentsOf: "\r\ndate: ")
        output.append(contentsOf: context.httpDate)
        output.append(contentsOf: "\r\n")
        let lines = head.fields.lineBytes
        withUnsafeTemporaryAllocation(byteCount: lines, alignment: 1) { text in
            guard let start = text.baseAddress else { return }
            head.fields.writeLines(to: start)
            output.append(contentsOf: UnsafeRawBufferPointer(text))
        }
        if let id = head.requestID {
            output.append(contentsOf: "x-request-id: ")
            output.append(contentsOf: id.utf8)
            output.append(contentsOf: "\r\n")
        }
    }

    func produce(_ buffer: OutputBuffer) {
        if !output.isEmpty {
            let count = min(output.count, buffer.available)
            output.withUnsafeBytes { buffer.append(.init(rebasing: $0[..<count])) }
            if count == output.count {
                output.removeAll(keepingCapacity: count < 4096)
            } else {
                output.removeFirst(count)
            }
        }
        guard state.isSendingResponse, output.isEmpty, let stream else { return }
        if stream.isDirect && stream.remaining > 0 && connection?.isSecure == false { return }
        do {
            if stream.isOpenEnded && !isOfHTTP10 {
                try produceChunks(of: stream, buffer)
            } else {
                while stream.remaining > 0 && buffer.available > 0 {
                    var span = buffer.free.mutableBytes
                    guard case .bytes(let count) = try stream.read(into: &span) else { break }
                    buffer.advance(count)
                }
            }
            if stream.remaining == 0 { act(on: .responseProduced) }
        } catch {
            // The length was sent: only closing the connection shows the client that the body is incomplete.
            stream.finish(complete: false)
            connection?.close()
        }
    }

    /// Produces the body of unknown length in chunks (RFC 9112, section 7.1).
    private func produceChunks(of stream: ServerStream, _ buffer: OutputBuffer) throws {
        let (lineBytes, endBytes) = (6, 2)
        while stream.remaining > 0 && buffer.available > lineBytes + endBytes + 64 {
            let free = buffer.free
            let most = min(0xffff, free.count - lineBytes - endBytes)
            var span = UnsafeMutableRawBufferPointer(rebasing: free[lineBytes..<lineBytes + most]).mutableBytes
            switch try stream.read(into: &span) {
            case .wait: return
            case .end: "0\r\n\r\n".utf8.withContiguousStorageIfAvailable { buffer.append(UnsafeRawBufferPointer($0)) }
            case .bytes(let count):
                let digits = String(count, radix: 16)
                let line = String(repeating: "0", count: 4 - digits.utf8.count) + digits + "\r\n"
                free.copyBytes(from: line.utf8)
                buffer.advance(lineBytes + count)
                "\r\n".utf8.withContiguousStorageIfAvailable { buffer.append(UnsafeRawBufferPointer($0)) }
            }
        }
    }

    func transfer(to socket: Int32) -> DirectTransfer {
        guard state.isSendingResponse, output.isEmpty, let stream else { return .unsupported }
        do {
            let result = try stream.transfer(to: socket)
            if stream.remaining == 0 { act(on: .responseProduced) }
            return result
        } catch {
            stream.finish(complete: false)
            connection?.close()
            return .unsupported
        }
    }

    func flushed() {
        guard state.isResponseComplete, output.isEmpty, let stream else { return }
        stream.finish(complete: true)
        act(on: .flushed)
    }

    // MARK: Time and end

    func deadline(_ limits: ServerLimits) -> UInt64 {
        if let stream { return stream.progressMark.time + limits.progressInterval }
        if let headSince { return headSince + limits.headerTimeout }
        return idleSince + limits.idleTimeout
    }

    func expire(_ now: UInt64) {
        guard let stream else {
            if headSince != nil {
                context.statistics.hit(.headerTimeout)
                reject(HTTP1Error(408, "the request header did not arrive in time"))
            } else {
                context.statistics.hit(.idleTimeout)
                act(on: .idleTimeout)
            }
            return
        }
        let moved = stream.movedBytes - stream.progressMark.bytes
        let isPeersTurn = stream.body.isStarved || stream.isSending
        stream.progressMark = (stream.movedBytes, now)
        guard isPeersTurn && moved < context.limits.minimumProgress else { return }
        context.statistics.hit(.bodyProgress)
        if stream.body.isStarved {
            act(on: .closeAfterResponse)
            stream.body.fail(.timedOut)
        } else {
            connection?.close()
        }
    }

    func beginDrain() { act(on: .drain(hasInput: !input.isEmpty)) }

    func connectionLost() {
        connection = nil
        act(on: .failed)
        output = []
    }
}
