import CNghttp2
import System

/// The end of an HTTP/2 connection: by an error, a drain or a timeout.
extension HTTP2Connection {
    /// Handles the recorded events of the whole connection.
    enum Signal {
        /// A GOAWAY with this error code was sent.
        case goawaySent(UInt32)
        case pingAnswered
    }

    func actOnSignals() {
        let recorded = signals
        signals.removeAll(keepingCapacity: true)
        for signal in recorded {
            switch signal {
            case .goawaySent(NGHTTP2_NO_ERROR.rawValue): act(drain.handle(.noticeSent))
            case .goawaySent: endedByLibrary()
            case .pingAnswered: act(drain.handle(.pingAnswered))
            }
        }
    }

    // MARK: Errors

    /// Ends the connection with GOAWAY and this code, after the queued output.
    func terminate(_ code: nghttp2_error_code) {
        guard !isTerminated else { return }
        if code != NGHTTP2_NO_ERROR { context.statistics.protocolError() }
        nghttp2_session_terminate_session(session, code.rawValue)
        for stream in streams.streams { stream.abandon() }
        isTerminated = true
        connection?.markDirty()
    }

    /// nghttp2 has ended the connection because the peer violated the protocol.
    private func endedByLibrary() {
        guard !isTerminated else { return }
        context.statistics.protocolError()
        for stream in streams.streams { stream.abandon() }
        isTerminated = true
    }

    // MARK: Drain

    func beginDrain() { act(drain.handle(.begin(now: context.loop.now))) }

    private func act(_ action: DrainState.Action) {
        let flags = UInt8(NGHTTP2_FLAG_NONE.rawValue)
        switch action {
        case .announce: nghttp2_submit_shutdown_notice(session)
        case .ping: nghttp2_submit_ping(session, flags, nil)
        case .finish:
            nghttp2_submit_goaway(
                session, flags, nghttp2_session_get_last_proc_stream_id(session), NGHTTP2_NO_ERROR.rawValue, nil, 0)
        case .none, .close: return
        }
        connection?.markDirty()
    }

    // MARK: Time

    func deadline(_ limits: ServerLimits) -> UInt64 {
        let head = arrivingSince.map { $0 + limits.headerTimeout } ?? .max
        let streams = streams.isEmpty ? idleSince + idleTimeout : streamDeadline
        return min(drain.deadline, head, streams, openingDeadline)
    }

    func expire(_ now: UInt64) {
        let limits = context.limits
        act(drain.handle(.time(now)))
        if openingDeadline <= now {
            roundTrip.expired(now)
            openWindows()
        }
        if let arrivingSince, arrivingSince + limits.headerTimeout <= now {
            context.statistics.hit(.headerTimeout)
            return terminate(NGHTTP2_ENHANCE_YOUR_CALM)
        }
        if streams.isEmpty {
            guard idleSince + idleTimeout <= now else { return }
            context.statistics.hit(hasPreface ? .idleTimeout : .handshakeTimeout)
            return terminate(NGHTTP2_NO_ERROR)
        }
        streamDeadline = .max
        // Nothing below opens or closes a stream, so the indices stay valid.
        for index in streams.indices {
            let stream = streams[index].stream
            if streams[index].unwantedBody.handle(.time(now), limits) == .reset {
                reset(stream.id, NGHTTP2_NO_ERROR)
            }
            if stream.progressMark.time + limits.progressInterval <= now {
                checkProgress(stream, now)
            }
            streamDeadline = min(streamDeadline, streams[index].deadline(limits))
        }
    }

    private var idleTimeout: UInt64 {
        hasPreface ? context.limits.idleTimeout : context.limits.handshakeTimeout
    }

    /// Ends a stream whose peer moved too little of a body in the elapsed interval.
    private func checkProgress(_ stream: ServerStream, _ now: UInt64) {
        let moved = stream.movedBytes - stream.progressMark.bytes
        stream.progressMark = (stream.movedBytes, now)
        guard stream.isBodyStarved || stream.isSending,
            moved < context.limits.minimumProgress
        else { return }
        context.statistics.hit(.bodyProgress)
        if stream.isBodyStarved {
            stream.body.fail(.timedOut)
        } else {
            reset(stream.id, NGHTTP2_CANCEL)
        }
    }
}
