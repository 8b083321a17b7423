import CNghttp2
import System
import Wire

/// HTTP/2 on one connection: requests, flow control, limits, the end. nghttp2 does framing and compression.
///
/// nghttp2's callbacks (HTTP2Recording.swift) record events, and ``process()`` handles them after nghttp2 has returned.
/// ``produce(_:)`` lets nghttp2 fill the loop's output buffer, into which bodies are read directly. The decisions are
/// values without I/O: ``HTTP2Guards``, ``DrainState``, ``StreamWindow``, ``ConnectionWindow`` and ``UnwantedBody``.
final class HTTP2Connection: Engine {
    /// nil once the connection is closed.
    private(set) var connection: Connection?
    let context: LoopContext
    private(set) var session: OpaquePointer?
    private let memory = SessionMemory()
    var streams = StreamTable()
    var guards: HTTP2Guards
    /// The incomplete header block, and when it began. There is at most one (RFC 9113, section 4.3).
    var arriving: IncomingRequest?
    var arrivingSince: UInt64?
    /// Requests whose head is complete and whose handler has not been started.
    var accepted: [Accepted] = []
    /// The number of ``accepted`` requests already begun by ``beginAccepted()``.
    private var beginning = 0
    /// Streams that closed while nghttp2 ran.
    var closed: [Int32] = []
    /// Streams whose response nghttp2 has produced completely; the next flush completes them.
    var sentStreams: [ServerStream] = []
    /// Streams whose bytes did not fit into the output buffer.
    var starved: [Int32] = []
    /// Streams whose response nghttp2 did not send, with its error codes.
    var unsendable: [(id: Int32, code: Int32)] = []
    /// Events of the whole connection while nghttp2 ran.
    var signals: [Signal] = []
    /// The output buffer while nghttp2 produces.
    var output: OutputBuffer?
    /// Whether nghttp2, and thus perhaps a callback, is running.
    private(set) var isInCallback = false
    /// The number of running handlers, including those of closed streams.
    var runningHandlers = 0
    var window: ConnectionWindow
    var roundTrip: RoundTrip
    /// When windows open without a known round trip time; `.max` if no window waits for it.
    var openingDeadline = UInt64.max
    /// The stream whose DATA arrived last, perhaps closed; 0 before the first.
    var lastData: Int32 = 0
    /// Bytes of ``lastData`` in the input that were not delivered yet: those of frames that follow each other, joined.
    var joinedData: UnsafeMutableRawBufferPointer?
    var drain = DrainState()
    /// Whether input is ignored: the queued output is sent, then the connection ends.
    var isTerminated = false
    /// Whether the peer's connection preface is complete (RFC 9113, section 3.4).
    var hasPreface = false
    var idleSince: UInt64
    /// A lower bound of the streams' deadlines. Only ``expire(_:)`` recomputes it, because that visits every stream.
    var streamDeadline = UInt64.max
    /// The peer has stopped sending, but may still receive responses.
    private var peerEnded = false
    /// The number of responses submitted to nghttp2.
    var responses = 0
    /// One of this many responses also indexes fields with unique values, so that later ones can refer to their names.
    static let namingInterval = 32
    /// The number of requests begun in the turn of the loop at that time.
    private var begun = (turn: UInt64(0), count: 0)

    init(_ connection: Connection) {
        self.connection = connection
        context = connection.context
        let limits = context.limits
        guards = HTTP2Guards(limits, context.statistics)
        window = ConnectionWindow(limits)
        roundTrip = RoundTrip(context.loop.now)
        idleSince = context.loop.now
        _ = memory.whileOpen { memory in
            nghttp2_session_server_new3(
                &session, context.http2.callbacks, Unmanaged.passUnretained(self).toOpaque(),
                context.http2.options, memory)
        }
        guard session != nil else { fatalError("nghttp2: out of memory") }
        let settings = HTTP2LocalSettings(limits).entries
        nghttp2_submit_settings(session, UInt8(NGHTTP2_FLAG_NONE.rawValue), settings, settings.count)
        setWindow(to: window.size)
        context.live.created(.session)
        if context.isDraining { beginDrain() }
    }

    deinit {
        assert(
            streams.isEmpty && accepted.isEmpty && sentStreams.isEmpty && runningHandlers == 0,
            "a connection releases its streams when it ends")
        nghttp2_session_del(session)
        memory.release()
        context.live.destroyed(.session)
    }

    // MARK: Engine: reading

    /// False while this connection's bodies hold more than half of the loop's receive budget, as a large window may.
    var wantsRead: Bool {
        let share = context.limits.receiveBudget / 2
        return context.waitingBytes <= share || waitingBytes <= share
    }

    /// Only for a single stream, as bytes of others would wait too. A part of the windows keeps the peer sending.
    var expectedBytes: Int? {
        if streams.isEmpty { return nil }
        guard streams.count == 1, let stream = streams[lastData] else { return 0 }
        let window = min(
            nghttp2_session_get_local_window_size(session),
            nghttp2_session_get_stream_local_window_size(session, lastData))
        return min(stream.missingBytes, Int(window) / 4)
    }

    var waitingBytes: Int { streams.streams.reduce(0) { $0 + $1.waitingBytes } }

    func receive(_ bytes: UnsafeMutableRawBufferPointer) {
        guard !isTerminated else { return }
        guards.arrived(UnsafeRawBufferPointer(bytes))
        isInCallback = true
        let result = nghttp2_session_mem_recv(session, bytes.bindMemory(to: UInt8.self).baseAddress, bytes.count)
        deliverData()
        isInCallback = false
        if result < 0 {
            guards.failed(Int32(result))
            terminate(guards.violation ?? NGHTTP2_PROTOCOL_ERROR)
        } else if let violation = guards.violation {
            terminate(violation)
        } else if nghttp2_session_get_outbound_queue_size(session)
            > context.limits.queuedControlFrames + 2 * context.limits.concurrentStreams
        {
            context.statistics.hit(.queuedControlFrames)
            terminate(NGHTTP2_ENHANCE_YOUR_CALM)
        }
        process()
    }

    func receiveEnd() {
        for stream in streams.streams {
            stream.hasInputEnded = true
            guard !stream.isBodyComplete || stream.endsWithInput else { continue }
            stream.abandon()
            reset(stream.id, NGHTTP2_CANCEL)
        }
        peerEnded = true
        connection?.markDirty()
    }

    /// Handles the events that callbacks recorded.
    private func process() {
        if !closed.isEmpty {
            for id in closed { forget(id) }
            closed.removeAll(keepingCapacity: true)
        }
        if !unsendable.isEmpty { resetUnsendable() }
        if !signals.isEmpty { actOnSignals() }
        if !accepted.isEmpty { beginAccepted() }
    }

    private func resetUnsendable() {
        for (id, code) in unsendable {
            // The peer may have reset the stream meanwhile.
            guard let stream = streams[id] else { continue }
            if HeadNotSent.isByPeer(code) {
                stream.abandon()
            } else {
                stream.fail(HeadNotSent(code: code))
            }
            reset(id, NGHTTP2_INTERNAL_ERROR)
        }
        unsendable = []
    }

    private func beginAccepted() {
        if begun.turn != context.loop.now { begun = (context.loop.now, 0) }
        // A handler that responds at once may re-enter this function, which then begins the following requests.
        while beginning < accepted.count, mayBegin {
            let request = accepted[beginning]
            begun.count += 1
            beginning += 1
            begin(request)
        }
        if beginning == accepted.count {
            accepted.removeAll(keepingCapacity: true)
        } else {
            accepted.removeFirst(beginning)
            connection?.postpone()
        }
        beginning = 0
    }

    /// Whether another request may begin in this turn of the loop: always the first one, others while there is time.
    private var mayBegin: Bool {
        begun.count == 0 || (begun.count < context.limits.requestsPerTurn && !context.loop.isTurnSpent)
    }

    private func begin(_ accepted: Accepted) {
        let (stream, request) = (accepted.stream, accepted.request)
        guard streams[stream.id] === stream, let connection, !isTerminated else { return }
        // Twice the streams: a handler ends a little later than its stream, and the peer may send its next request
        // before. The limit prevents a peer from increasing concurrent work by resetting streams.
        if runningHandlers >= 2 * context.limits.concurrentStreams {
            context.statistics.hit(.concurrentStreams)
            return reset(stream.id, NGHTTP2_REFUSED_STREAM)
        }
        if let rejection = request.rejection {
            let response = Rejection(rejection.status, rejection.reason)
            let body = response.body
            connection.rejected(response, body, of: request.head, .http2)
            stream.discardBody()
            return stream.respond(response.head, .bytes(body)) { _ in }
        }
        if connection.checkCertificate() { beginDrain() }
        runningHandlers += 1
        let exchange = Exchange(
            head: request.takeHead(), version: .http2, connection: connection,
            loop: context.loop, stream: stream)
        stream.start(exchange, connection.handler)
    }

    /// Ends the work of a stream that nghttp2 has closed.
    private func forget(_ id: Int32) {
        if arriving?.id == id {
            arriving = nil
            arrivingSince = nil
        }
        guard let entry = streams.remove(id) else { return }
        context.statistics.streamClosed()
        context.shrink(entry.window.grown)
        window.streamShrank(by: entry.window.grown)
        if !sentStreams.contains(where: { $0 === entry.stream }) { entry.stream.abandon() }
        if streams.isEmpty {
            idleSince = context.loop.now
            streamDeadline = .max
        }
    }

    // MARK: Engine: writing

    func produce(_ buffer: OutputBuffer) {
        process()
        // The responses that nghttp2 would encode are gone with the streams (``submit(_:for:)``).
        guard connection != nil else { return }
        output = buffer
        defer { output = nil }
        while buffer.available >= HTTP2Connection.frameSpace {
            var start: UnsafePointer<UInt8>?
            isInCallback = true
            let count = nghttp2_session_mem_send(session, &start)
            isInCallback = false
            if count < 0 { return fail() }
            if count == 0 { break }
            buffer.append(UnsafeRawBufferPointer(start: start, count: count))
        }
        if let violation = guards.violation { terminate(violation) }
        process()
        if !starved.isEmpty {
            for id in starved { nghttp2_session_resume_data(session, id) }
            starved.removeAll(keepingCapacity: true)
        }
    }

    /// nghttp2 is out of memory.
    private func fail() {
        isTerminated = true
        connection?.close()
    }

    /// The largest frame that nghttp2 may produce at once: 16 KiB of header block, frame header and padding.
    static let frameSpace = 16_384 + 9 + 256

    /// DATA frames need headers, so no body goes directly to the socket.
    func transfer(to socket: Int32) -> DirectTransfer { .unsupported }

    func flushed() {
        if !sentStreams.isEmpty {
            for stream in sentStreams {
                stream.finish(complete: true)
                if !stream.isBodyComplete { responseSent(stream) }
            }
            sentStreams.removeAll(keepingCapacity: true)
        }
        if drain.isFinal, streams.isEmpty, runningHandlers == 0,
            drain.handle(.emptied) == .close
        {
            isTerminated = true
        }
        if !accepted.isEmpty { connection?.postpone() }
    }

    var isEnding: Bool { isTerminated }

    var isFinished: Bool {
        (isTerminated || nghttp2_session_want_read(session) == 0
            || (peerEnded && !streams.streams.contains(where: \.isOurTurn))) && nghttp2_session_want_write(session) == 0
    }

    func connectionLost() {
        connection = nil
        isTerminated = true
        let open = streams.indices.map { streams[$0] }
        let others = sentStreams + accepted.map(\.stream)
        // A stream retains its connection: nothing may retain a stream from here on.
        streams = StreamTable()
        sentStreams = []
        accepted = []
        beginning = 0
        arriving = nil
        arrivingSince = nil
        closed = []
        unsendable = []
        signals = []
        starved = []
        for entry in open {
            context.statistics.streamClosed()
            context.shrink(entry.window.grown)
            entry.stream.abandon()
        }
        for stream in others { stream.abandon() }
    }
}
