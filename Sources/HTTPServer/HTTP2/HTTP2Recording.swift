import CNghttp2
import Glibc
import System
import Wire

/// nghttp2's callbacks. They record events for ``HTTP2Connection/process()``.
///
/// Two of them also move the bytes of bodies, because nghttp2 keeps none: ``dataReceived(_:_:)`` gives bytes to the
/// sink of a request's body, and ``readData(_:_:_:)`` takes bytes from the source of a response's body. A sink may hash
/// the bytes or send them to an upstream at once, and its end may resume the handler's task, which runs later. No
/// callback closes the connection, begins or ends a response, or runs a handler: ``isInCallback`` is asserted there.
extension HTTP2Connection {
    /// A request whose header block is arriving or complete. A class: a move would copy its many references.
    final class IncomingRequest {
        let id: Int32
        var head: RequestHead
        /// Whether fields that affect the connection are present.
        var hasHost = false
        var hasExpectation = false
        var hasLength = false
        /// The size of the block so far, as HTTP/2 counts it.
        var bytes = 0
        /// Why the request is rejected; nil if accepted.
        var rejection: (status: Int, reason: String)?

        func takeHead() -> RequestHead {
            var taken = RequestHead.empty
            swap(&taken, &head)
            return taken
        }

        init(id: Int32) {
            self.id = id
            head = RequestHead.empty
            head.fields = HeaderFields(reserving: 384)
        }
    }

    struct Accepted {
        let stream: ServerStream
        let request: IncomingRequest
    }

    func frameBegan(_ header: nghttp2_frame_hd) {
        guards.began(header, now: context.loop.now) { streams[$0] != nil }
    }

    func headersBegan(_ frame: nghttp2_frame) {
        guard frame.headers.cat == NGHTTP2_HCAT_REQUEST else { return }
        guards.opened(frame.hd.stream_id)
        arrivingSince = context.loop.now
        arriving = IncomingRequest(id: frame.hd.stream_id)
    }

    func field(
        _ id: Int32, _ name: UnsafeBufferPointer<UInt8>, _ value: UnsafeBufferPointer<UInt8>
    ) {
        // Trailers, which arrive after the head is complete, are ignored.
        guard let arriving, arriving.id == id else { return }
        let limits = context.limits
        arriving.bytes += name.count + value.count + 32
        if arriving.bytes > limits.headerBytes || name.count > 255 {
            return reject(arriving, 431, "header block too large", .headerBytes)
        }
        if name.first == UInt8(ascii: ":") { return pseudo(arriving, name, value) }
        if name.count == 4 || name.count == 6 || name.count == 14 { note(arriving, name) }
        arriving.head.fields.append(name, value)
        if arriving.head.fields.count > limits.headerFields {
            reject(arriving, 431, "too many header fields", .headerFields)
        }
    }

    private func pseudo(
        _ request: IncomingRequest, _ name: UnsafeBufferPointer<UInt8>, _ value: UnsafeBufferPointer<UInt8>
    ) {
        if value.count > context.limits.targetBytes {
            return reject(request, 414, "request target too long", .targetBytes)
        }
        // The only other pseudo-header that nghttp2 accepts is :scheme, which is not used.
        if name.count == 7 && name[1] == UInt8(ascii: "s") { return }
        if name.count == 7, value.matches("GET") {
            request.head.method = "GET"
            return
        }
        guard let text = String(utf8: value) else {
            return reject(request, 400, "request target is not UTF-8")
        }
        switch (name.count, name[1]) {
        case (5, UInt8(ascii: "p")): request.head.target = text
        case (7, UInt8(ascii: "m")): request.head.method = text
        case (10, _): request.head.authority = text
        default: break
        }
    }

    /// Notes which fields that concern the connection are present: ``check(_:)`` searches only for those.
    private func note(_ request: IncomingRequest, _ name: UnsafeBufferPointer<UInt8>) {
        if name.elementsEqual("host".utf8) {
            request.hasHost = true
        } else if name.elementsEqual("expect".utf8) {
            request.hasExpectation = true
        } else if name.elementsEqual("content-length".utf8) {
            request.hasLength = true
        }
    }

    private func reject(
        _ request: IncomingRequest, _ status: Int, _ reason: String, _ limit: LimitKind? = nil
    ) {
        guard request.rejection == nil else { return }
        if let limit { context.statistics.hit(limit) }
        request.rejection = (status, reason)
        request.head.fields = HeaderFields()
    }

    func frameReceived(_ frame: nghttp2_frame) {
        let ends = frame.hd.flags & UInt8(NGHTTP2_FLAG_END_STREAM.rawValue) != 0
        if ends { deliverData() }
        switch UInt32(frame.hd.type) {
        case NGHTTP2_HEADERS.rawValue:
            if let arriving, arriving.id == frame.hd.stream_id {
                accept(arriving, ends)
            } else if ends {
                streams[frame.hd.stream_id]?.body.end()
            }
        case NGHTTP2_DATA.rawValue:
            if ends { streams[frame.hd.stream_id]?.body.end() }
        case NGHTTP2_SETTINGS.rawValue:
            hasPreface = true
            if frame.hd.flags & UInt8(NGHTTP2_FLAG_ACK.rawValue) != 0 {
                roundTrip.acknowledged(context.loop.now)
            }
        case NGHTTP2_PING.rawValue:
            if frame.hd.flags & UInt8(NGHTTP2_FLAG_ACK.rawValue) != 0 {
                signals.append(.pingAnswered)
            }
        default: break
        }
    }

    private func accept(_ request: IncomingRequest, _ ends: Bool) {
        request.head.hasBody = !ends
        if request.rejection == nil { request.rejection = check(request) }
        let stream = ServerStream(
            id: request.id, owner: self, context: context,
            expectsContinue: request.head.expectsContinue, hasBody: !ends)
        stream.isHead = request.head.method == "HEAD"
        context.statistics.streamOpened()
        streams.insert(HTTP2Stream(stream))
        streamDeadline = min(streamDeadline, stream.progressMark.time + context.limits.progressInterval)
        accepted.append(Accepted(stream: stream, request: request))
        arriving = nil
        arrivingSince = nil
    }

    /// Performs the HTTP/1.1 parser's checks that nghttp2 omits. Returns why the request is rejected; nil if accepted.
    private func check(_ request: IncomingRequest) -> (status: Int, reason: String)? {
        if request.hasHost, let host = request.head.fields["host"] {
            if request.head.authority == nil { request.head.authority = host }
            if !request.head.authority!.utf8.elementsEqual(host.utf8) {
                return (400, ":authority and Host differ")
            }
        }
        if let asked = request.head.authority, !isHost(asked) {
            return (400, "malformed :authority")
        }
        // CONNECT has no path, and nghttp2 checks the path only for HTTP's schemes.
        guard isTarget(request.head.target, of: request.head.method) else {
            return (400, "malformed request target")
        }
        if request.hasLength, let length = request.head.fields["content-length"] {
            request.head.contentLength = Decimal.parse(length.utf8.span, maximumDigits: 19)
        }
        if request.hasExpectation, let expect = request.head.fields.list("expect") {
            guard ASCII.isEqual(expect.utf8.span, ignoringCase: "100-continue") else {
                return (417, "unknown expectation")
            }
            request.head.expectsContinue = request.head.hasBody
        }
        return nil
    }

    /// Joins the bytes of frames that follow each other, because a sink takes many at once for less. The bytes move over
    /// the frame's header, which nghttp2 has read.
    func dataReceived(_ id: Int32, _ bytes: UnsafeRawBufferPointer) {
        if id != lastData { deliverData() }
        guard streams.index(of: id) != nil, let start = bytes.baseAddress else {
            nghttp2_session_consume_connection(session, bytes.count)
            return
        }
        lastData = id
        if let joined = joinedData, let first = joined.baseAddress {
            memmove(first + joined.count, start, bytes.count)
            joinedData = UnsafeMutableRawBufferPointer(start: first, count: joined.count + bytes.count)
        } else {
            joinedData = UnsafeMutableRawBufferPointer(mutating: bytes)
        }
    }

    /// Gives the joined bytes to the sink of their body.
    func deliverData() {
        guard let joined = joinedData else { return }
        joinedData = nil
        streams[lastData]?.body.push(UnsafeRawBufferPointer(joined).bytes)
    }

    func frameSent(_ frame: nghttp2_frame) {
        let header = frame.hd
        switch UInt32(header.type) {
        case NGHTTP2_RST_STREAM.rawValue:
            guards.resetSent(now: context.loop.now)
        case NGHTTP2_GOAWAY.rawValue:
            signals.append(.goawaySent(frame.goaway.error_code))
        case NGHTTP2_HEADERS.rawValue, NGHTTP2_DATA.rawValue:
            if header.type == UInt8(NGHTTP2_DATA.rawValue) { guards.dataSent(header) }
            if header.flags & UInt8(NGHTTP2_FLAG_END_STREAM.rawValue) != 0,
                let stream = streams[header.stream_id]
            {
                sentStreams.append(stream)
            }
        default: break
        }
    }

    /// nghttp2 did not send a frame. A response without its header block would never end.
    func frameNotSent(_ frame: nghttp2_frame, _ code: Int32) {
        if UInt32(frame.hd.type) == NGHTTP2_HEADERS.rawValue {
            unsendable.append((frame.hd.stream_id, code))
        }
    }

    /// Reads the next bytes of a response's body into the output, after the space for the frame header.
    func readData(_ id: Int32, _ length: Int, _ flags: UnsafeMutablePointer<UInt32>) -> Int {
        guard let stream = streams[id], let output else {
            return Int(NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE.rawValue)
        }
        // The next frame that nghttp2 may produce must fit after this one.
        let limit = output.available - 9 - HTTP2Connection.frameSpace
        if limit < min(length, 4096) {
            starved.append(id)
            return Int(NGHTTP2_ERR_DEFERRED.rawValue)
        }
        let free = output.free
        var span = UnsafeMutableRawBufferPointer(
            rebasing: free[9..<9 + min(length, limit)]
        ).mutableBytes
        do {
            switch try stream.read(into: &span) {
            case .wait: return Int(NGHTTP2_ERR_DEFERRED.rawValue)
            case .end:
                flags.pointee |= NGHTTP2_DATA_FLAG_EOF.rawValue
                return 0
            case .bytes(let count):
                flags.pointee |= NGHTTP2_DATA_FLAG_NO_COPY.rawValue
                if stream.remaining == 0 { flags.pointee |= NGHTTP2_DATA_FLAG_EOF.rawValue }
                return count
            }
        } catch {
            // RST_STREAM with INTERNAL_ERROR: the client sees that the body is incomplete.
            return Int(NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE.rawValue)
        }
    }

    /// Completes a DATA frame after ``readData(_:_:_:)`` has written its payload.
    func sendData(_ header: UnsafePointer<UInt8>, _ length: Int) {
        guard let output else { return }
        output.append(UnsafeRawBufferPointer(start: header, count: 9))
        output.advance(length)
    }
}

extension RequestHead {
    fileprivate static var empty: RequestHead {
        RequestHead(
            method: "", target: "", authority: nil, fields: HeaderFields(), contentLength: nil,
            hasBody: false, expectsContinue: false)
    }
}

/// nghttp2 did not send a response's header block.
struct HeadNotSent: Error, CustomStringConvertible {
    /// An `nghttp2_error`.
    let code: Int32

    /// Whether the peer ended the stream or the session, or violated the protocol: the failure is not ours.
    static func isByPeer(_ code: Int32) -> Bool {
        [NGHTTP2_ERR_SESSION_CLOSING, NGHTTP2_ERR_STREAM_CLOSING, NGHTTP2_ERR_STREAM_CLOSED]
            .contains { $0.rawValue == code }
    }

    var description: String {
        // More than 64 KiB (`max_send_header_block_length`).
        code == NGHTTP2_ERR_FRAME_SIZE_ERROR.rawValue
            ? "the header block is larger than HTTP/2 can send here"
            : "HTTP/2 did not send the header block: \(String(cString: nghttp2_strerror(code)))"
    }
}
