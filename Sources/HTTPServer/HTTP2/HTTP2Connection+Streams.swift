import CNghttp2
import System
import Wire

/// The streams' operations on their connection: responses, flow control, resets.
extension HTTP2Connection {
    // MARK: StreamOwner

    func sendContinue(_ stream: ServerStream) {
        var field = nghttp2_nv(":status", "100")
        nghttp2_submit_headers(session, UInt8(NGHTTP2_FLAG_NONE.rawValue), stream.id, nil, &field, 1, nil)
        connection?.markDirty()
    }

    func sendInterim(_ head: ResponseHead, _ stream: ServerStream) {
        guard streams[stream.id] != nil else { return }
        _ = head.withFields(date: context.httpDate, length: nil, FieldTreatment()) {
            fields, count in
            nghttp2_submit_headers(
                session, UInt8(NGHTTP2_FLAG_NONE.rawValue), stream.id, nil, fields, count, nil)
        }
        connection?.markDirty()
    }

    func responseReady(_ stream: ServerStream) {
        guard let head = stream.response, streams[stream.id] != nil else { return }
        stream.discardBody()
        if submit(head, for: stream) != 0 { reset(stream.id, NGHTTP2_INTERNAL_ERROR) }
        connection?.markDirty()
    }

    func bodyReady(_ stream: ServerStream) {
        nghttp2_session_resume_data(session, stream.id)
        connection?.markDirty()
    }

    /// May be called inside a callback: it only changes windows and later output.
    func bodyConsumed(_ stream: ServerStream, _ count: Int) {
        guard let index = streams.index(of: stream.id) else {
            // The stream is gone, but the connection's window must be replenished.
            guard connection != nil else { return }
            nghttp2_session_consume_connection(session, count)
            connection?.markDirty()
            return
        }
        nghttp2_session_consume_connection(session, count)
        switch streams[index].unwantedBody.handle(.consumed(count), context.limits) {
        case .growWindow where stream.response == nil: if !stream.isBodyComplete { consumed(index, count) }
        case .reset: reset(stream.id, NGHTTP2_NO_ERROR)
        case .growWindow, .none:
            streams[index].window.dropped(count)
            update(index)
        }
        connection?.markDirty()
    }

    func handlerEnded(_ stream: ServerStream) {
        runningHandlers -= 1
        if stream.response == nil && !stream.isGone { reset(stream.id, NGHTTP2_INTERNAL_ERROR) }
        connection?.markDirty()
    }

    // MARK: Flow control

    /// Returns consumed bytes to the peer. The window grows if path, handler and the loop's budget permit it.
    private func consumed(_ index: StreamTable.Index, _ count: Int) {
        let body = streams[index].stream.body
        let change = streams[index].window.consumed(
            count, missing: body.unreceived, waiting: body.waitingCount,
            StreamWindow.Path(roundTrip: roundTrip.time, streams: streams.count), now: context.loop.now, context.limits)
        if roundTrip.time == nil { openingDeadline = roundTrip.deadline }
        resize(index, by: change > 0 ? context.grow(change) : change)
        update(index)
    }

    private func resize(_ index: StreamTable.Index, by change: Int) {
        if change == 0 { return }
        streams[index].window.resized(by: change)
        if change < 0 {
            context.shrink(-change)
            window.streamShrank(by: -change)
        } else if let size = window.streamGrew(by: change) {
            setWindow(to: size)
        }
    }

    /// Sends a WINDOW_UPDATE for the stream once it returns enough bytes.
    private func update(_ index: StreamTable.Index) {
        let bytes = streams[index].window.takeUpdate(context.limits)
        if bytes == 0 { return }
        nghttp2_submit_window_update(
            session, UInt8(NGHTTP2_FLAG_NONE.rawValue), streams[index].stream.id, Int32(clamping: bytes))
    }

    func setWindow(to size: Int) {
        nghttp2_session_set_local_window_size(session, UInt8(NGHTTP2_FLAG_NONE.rawValue), 0, Int32(clamping: size))
    }

    /// Opens the windows of streams whose handlers have begun to consume, because the path is long.
    func openWindows() {
        openingDeadline = .max
        for index in streams.indices where streams[index].window.awaitsRoundTrip {
            let stream = streams[index].stream
            if !stream.isBodyComplete && stream.response == nil { consumed(index, 0) }
        }
        connection?.markDirty()
    }

    func limitWindows(to most: Int, _ now: UInt64) -> Int {
        var grown = 0
        for index in streams.indices where streams[index].window.grown > 0 {
            let isStalled = streams[index].window.consumedAt + HTTP2Connection.stall <= now
            let excess = streams[index].window.grown - (isStalled ? 0 : most)
            if excess > 0 { resize(index, by: -excess) }
            if !isStalled { grown += 1 }
        }
        return grown
    }

    /// Nanoseconds without a consumed byte after which a stream loses its window if others need it.
    private static let stall: UInt64 = 1_000_000_000

    // MARK: Responses

    private func submit(_ head: ResponseHead, for stream: ServerStream) -> Int32 {
        var provider = nghttp2_data_provider()
        provider.read_callback = readNextData
        let hasBody = stream.remaining > 0
        let length = stream.declaredLength
        responses &+= 1
        // nghttp2 encodes the fields later. They live in the stream, which stays in the table until nghttp2 has closed
        // it and drops unencoded fields. After the connection is lost, nothing is encoded.
        let treatment = FieldTreatment(
            isKept: true,
            indexesVolatile: responses % HTTP2Connection.namingInterval == 1)
        return head.withFields(date: context.httpDate, length: length, treatment) {
            fields, count in
            withUnsafePointer(to: provider) {
                nghttp2_submit_response(session, stream.id, fields, count, hasBody ? $0 : nil)
            }
        }
    }

    /// Called when the response to a request with an incomplete body was sent: the rest of the body is unwanted.
    func responseSent(_ stream: ServerStream) {
        guard let index = streams.index(of: stream.id) else { return }
        let (now, limits) = (context.loop.now, context.limits)
        let isCrowded = streams.count > limits.concurrentStreams / 2
        let event = UnwantedBody.Event.responseSent(now: now, isCrowded: isCrowded)
        if streams[index].unwantedBody.handle(event, limits) == .reset {
            reset(stream.id, NGHTTP2_NO_ERROR)
        }
        streamDeadline = min(streamDeadline, streams[index].unwantedBody.deadline(limits))
    }

    func reset(_ id: Int32, _ code: nghttp2_error_code) {
        nghttp2_submit_rst_stream(session, UInt8(NGHTTP2_FLAG_NONE.rawValue), id, code.rawValue)
        connection?.markDirty()
    }
}
