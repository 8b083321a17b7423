import CNghttp2
import System
import Wire

/// The operations of streams on their connection: responses, flow control, resets.
extension HTTP2Connection {
    // MARK: StreamOwner

    func sendContinue(_ stream: ServerStream) {
        var field = nghttp2_nv(":status", "100")
        nghttp2_submit_headers(
            session, UInt8(NGHTTP2_FLAG_NONE.rawValue), stream.id, nil, &field, 1, nil)
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

    /// May be called inside a callback: it only changes windows, and what is to be sent later.
    func bodyConsumed(_ stream: ServerStream, _ count: Int) {
        guard let index = streams.index(of: stream.id) else {
            // The stream is gone, but the connection's window must be replenished.
            guard connection != nil else { return }
            nghttp2_session_consume_connection(session, count)
            connection?.markDirty()
            return
        }
        nghttp2_session_consume(session, stream.id, count)
        switch streams[index].unwantedBody.handle(.consumed(count), context.limits) {
        case .growWindow:
            if !stream.isBodyComplete { grow(index, count) }
        case .reset: reset(stream.id, NGHTTP2_NO_ERROR)
        case .none: break
        }
        connection?.markDirty()
    }

    func handlerEnded(_ stream: ServerStream) {
        runningHandlers -= 1
        if stream.response == nil && !stream.isGone { reset(stream.id, NGHTTP2_INTERNAL_ERROR) }
        connection?.markDirty()
    }

    // MARK: Flow control

    /// Grows the stream's window if its handler keeps up and the loop's budget allows it.
    private func grow(_ index: StreamTable.Index, _ count: Int) {
        let stream = streams[index].stream
        let more = streams[index].window.consumed(
            count, isQueueEmpty: stream.waitingBytes == 0, context.limits)
        guard more > 0, context.grow(more) else { return }
        streams[index].window.granted(more)
        setWindow(of: stream.id, to: streams[index].window.size(context.limits))
        if let size = window.streamGrew(by: more) { setWindow(of: 0, to: size) }
    }

    /// - Parameter id: 0 for the connection's window.
    func setWindow(of id: Int32, to size: Int) {
        nghttp2_session_set_local_window_size(
            session, UInt8(NGHTTP2_FLAG_NONE.rawValue), id, Int32(clamping: size))
    }

    // MARK: Responses

    private func submit(_ head: ResponseHead, for stream: ServerStream) -> Int32 {
        var provider = nghttp2_data_provider()
        provider.read_callback = readNextData
        let hasBody = stream.remaining > 0
        let length = stream.declaredLength
        responses &+= 1
        // nghttp2 encodes the fields later. The stream keeps them: it is in the table until nghttp2 has closed it, and
        // then nghttp2 drops what it has not encoded. After the connection is lost nothing is encoded.
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

    /// The response to a request whose body is not complete was sent: no more of the body is wanted.
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
