import CNghttp2
import EventLoop
import Wire

/// What nghttp2's callbacks record. Nothing here calls a handler or writes to a socket.
extension HTTP2Connection {
    func frameBegan(_ header: nghttp2_frame_hd) {
        guards.began(header, now: context.loop.now) { streams[$0] != nil }
    }

    func headersBegan(_ frame: nghttp2_frame) {
        guard frame.headers.cat == NGHTTP2_HCAT_REQUEST else { return }
        guards.opened(frame.hd.stream_id)
        arrivingSince = context.loop.now
        arriving = Arriving(id: frame.hd.stream_id)
    }

    func field(
        _ id: Int32, _ name: UnsafeBufferPointer<UInt8>, _ value: UnsafeBufferPointer<UInt8>
    ) {
        // Trailers come when the head is no longer arriving: they are read over.
        guard arriving.id == id else { return }
        let limits = context.limits
        arriving.bytes += name.count + value.count + 32
        if arriving.bytes > limits.headerBytes || name.count > 255 {
            return refuse(431, "header block too large", .headerBytes)
        }
        if name.first == UInt8(ascii: ":") { return pseudo(name, value) }
        if name.count == 4 || name.count == 6 || name.count == 14 { note(name) }
        arriving.head.fields.append(name, value)
        if arriving.head.fields.count > limits.headerFields {
            refuse(431, "too many header fields", .headerFields)
        }
    }

    private func pseudo(_ name: UnsafeBufferPointer<UInt8>, _ value: UnsafeBufferPointer<UInt8>) {
        if value.count > context.limits.targetBytes {
            return refuse(414, "request target too long", .targetBytes)
        }
        // nghttp2 lets no other pass but :scheme, which tells nothing.
        if name.count == 7 && name[1] == UInt8(ascii: "s") { return }
        guard let text = String(utf8: value) else {
            return refuse(400, "request target is not UTF-8")
        }
        switch (name.count, name[1]) {
        case (5, UInt8(ascii: "p")): arriving.head.target = text
        case (7, UInt8(ascii: "m")): arriving.head.method = text
        case (10, _): arriving.head.authority = text
        default: break
        }
    }

    /// Notes which of the few fields that concern the connection are there, so that others need not be searched for them.
    private func note(_ name: UnsafeBufferPointer<UInt8>) {
        if name.elementsEqual("host".utf8) {
            arriving.hasHost = true
        } else if name.elementsEqual("expect".utf8) {
            arriving.hasExpectation = true
        } else if name.elementsEqual("content-length".utf8) {
            arriving.hasLength = true
        }
    }

    private func refuse(_ status: Int, _ reason: String, _ limit: LimitKind? = nil) {
        guard arriving.refusal == nil else { return }
        if let limit { context.statistics.hit(limit) }
        arriving.refusal = (status, reason)
        arriving.head.fields = HeaderFields()
    }

    func frameReceived(_ frame: nghttp2_frame) {
        let ends = frame.hd.flags & UInt8(NGHTTP2_FLAG_END_STREAM.rawValue) != 0
        switch UInt32(frame.hd.type) {
        case NGHTTP2_HEADERS.rawValue:
            if arriving.id == frame.hd.stream_id {
                accept(ends)
            } else if ends {
                streams[frame.hd.stream_id]?.body.end()
            }
        case NGHTTP2_DATA.rawValue:
            if ends { streams[frame.hd.stream_id]?.body.end() }
        case NGHTTP2_SETTINGS.rawValue: hasPreface = true
        case NGHTTP2_PING.rawValue:
            if frame.hd.flags & UInt8(NGHTTP2_FLAG_ACK.rawValue) != 0 { finishDrain() }
        default: break
        }
    }

    private func accept(_ ends: Bool) {
        arriving.head.hasBody = !ends
        if arriving.refusal == nil { arriving.refusal = check(&arriving) }
        let id = arriving.id
        let stream = ServerStream(
            id: id, owner: self, context: context,
            expectsContinue: arriving.head.expectsContinue)
        stream.isHead = arriving.head.method == "HEAD"
        if ends { stream.body.end() }
        context.statistics.streamOpened()
        streams[id] = stream
        accepted.append(
            Accepted(stream: stream, head: arriving.takeHead(), refusal: arriving.refusal))
        arriving = Arriving.none
        arrivingSince = nil
    }

    /// Checks what nghttp2 leaves open, as the HTTP/1.1 parser does; tells why the request is refused.
    private func check(_ request: inout Arriving) -> (status: Int, reason: String)? {
        if request.hasHost, let host = request.head.fields["host"] {
            if request.head.authority == nil { request.head.authority = host }
            if !request.head.authority!.utf8.elementsEqual(host.utf8) {
                return (400, ":authority and Host differ")
            }
        }
        if let authority = request.head.authority, !isHost(authority) {
            return (400, "malformed :authority")
        }
        // A CONNECT has no path, and a scheme other than HTTP's may have any.
        guard isTarget(request.head.target, of: request.head.method) else {
            return (400, "malformed request target")
        }
        if request.hasLength, let length = request.head.fields["content-length"] {
            request.head.contentLength = decimal(length)
        }
        if request.hasExpectation, let expect = request.head.fields.list("expect") {
            guard isEqual(expect, ignoringCase: "100-continue") else {
                return (417, "unknown expectation")
            }
            request.head.expectsContinue = request.head.hasBody
        }
        return nil
    }

    func dataReceived(_ id: Int32, _ bytes: UnsafeRawBufferPointer) {
        if let stream = streams[id] {
            stream.body.push(bytes.bytes)
        } else {
            nghttp2_session_consume_connection(session, bytes.count)
        }
    }

    func frameSent(_ frame: nghttp2_frame) {
        let header = frame.hd
        switch UInt32(header.type) {
        case NGHTTP2_RST_STREAM.rawValue:
            guards.resetSent(now: context.loop.now)
        case NGHTTP2_GOAWAY.rawValue: goawaySent(frame.goaway.error_code)
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

    /// nghttp2 could not send a frame: a response whose header block is too large for it would never end.
    func frameNotSent(_ frame: nghttp2_frame) {
        if UInt32(frame.hd.type) == NGHTTP2_HEADERS.rawValue {
            unsendable.append(frame.hd.stream_id)
        }
    }

    /// Reads the next bytes of a response's body to where they will stand in the output, behind the frame's header.
    func readData(_ id: Int32, _ length: Int, _ flags: UnsafeMutablePointer<UInt32>) -> Int {
        guard let stream = streams[id], let output else {
            return Int(NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE.rawValue)
        }
        // What nghttp2 may hand over next must find room behind this frame.
        let room = output.room - 9 - HTTP2Connection.frameRoom
        if room < min(length, 4096) {
            starved.append(id)
            return Int(NGHTTP2_ERR_DEFERRED.rawValue)
        }
        let free = output.free
        var span = UnsafeMutableRawBufferPointer(
            rebasing: free[9..<9 + min(length, room)]
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
            // RST_STREAM with INTERNAL_ERROR: the client sees that the body is not whole.
            return Int(NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE.rawValue)
        }
    }

    /// Completes a DATA frame whose payload ``readData(_:_:_:)`` has placed already.
    func sendData(_ header: UnsafePointer<UInt8>, _ length: Int) {
        guard let output else { return }
        output.append(UnsafeRawBufferPointer(start: header, count: 9))
        output.advance(length)
    }
}
