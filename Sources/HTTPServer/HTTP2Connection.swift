import CNghttp2
import EventLoop
import Wire

/// HTTP/2 on one connection: nghttp2 frames and compresses; requests, flow control, limits and the end are here.
///
/// nghttp2's callbacks (HTTP2Recording.swift) only record what happened. ``receive(_:)`` acts on it once nghttp2 has
/// returned; ``produce(_:)`` lets nghttp2 fill the loop's output buffer, bodies being read straight into it.
final class HTTP2Connection: Engine {
    /// A header block that is arriving.
    struct Arriving {
        /// No block arrives.
        static let none = Arriving(id: 0, fields: HeaderFields())
        var id: Int32
        var head: RequestHead
        var hasHost = false
        var hasExpectation = false
        var hasLength = false
        var bytes = 0
        var refusal: (status: Int, reason: String)?

        init(id: Int32, fields: HeaderFields = HeaderFields(reserving: 384)) {
            self.id = id
            head = RequestHead(
                method: "", target: "", authority: nil, fields: fields, contentLength: nil,
                hasBody: false, expectsContinue: false)
        }

        /// The head, which leaves the block.
        mutating func takeHead() -> RequestHead {
            var taken = Arriving.none.head
            swap(&taken, &head)
            return taken
        }
    }
    /// A request whose head is complete.
    struct Accepted {
        let stream: ServerStream
        let head: RequestHead
        let refusal: (status: Int, reason: String)?
    }
    /// nil once the connection is gone.
    private var connection: Connection?
    let context: LoopContext
    private(set) var session: OpaquePointer?
    // What the callbacks record is touched some thirty times a request, and by nobody who holds an access to it while
    // others run: the checks of exclusive access would cost a twentieth of a request.
    @exclusivity(unchecked) var streams: [Int32: ServerStream] = [:]
    @exclusivity(unchecked) var guards: HTTP2Guards
    /// The header block that is not complete (there is never more than one: RFC 9113, section 4.3), and since when.
    @exclusivity(unchecked) var arriving = Arriving.none
    var arrivingSince: UInt64?
    /// Requests whose head is complete and whose handler has not been started.
    @exclusivity(unchecked) var accepted: [Accepted] = []
    /// Streams that closed while nghttp2 ran.
    @exclusivity(unchecked) var closed: [Int32] = []
    /// Streams whose response was handed to nghttp2 as a whole, and which the next flush completes.
    @exclusivity(unchecked) var sentStreams: [ServerStream] = []
    /// Streams whose bytes found no room in the output buffer.
    @exclusivity(unchecked) var starved: [Int32] = []
    /// Streams whose response nghttp2 refused to send.
    var unsendable: [Int32] = []
    /// Where the output goes while nghttp2 produces.
    var output: OutputBuffer?
    /// Handlers that run, also of streams that are closed already.
    private var runningHandlers = 0
    private var window: Int
    private var idleSince: UInt64
    private var drain = Drain.none
    private var isTerminated = false
    /// The error code of a GOAWAY that nghttp2 sent of its own.
    private var sentGoaway: UInt32?
    /// Whether the peer's connection preface is complete (RFC 9113, section 3.4).
    var hasPreface = false
    /// The peer sends no more, but may still take the answers to what it asked.
    private var peerEnded = false
    /// Requests that were begun in the loop's turn of that time.
    private var begun = (turn: UInt64(0), count: 0)

    private enum Drain: Equatable {
        case none
        /// The first GOAWAY went out; the second follows when the PING is answered, or at this time.
        case announced(until: UInt64)
        case final
    }

    init(_ connection: Connection) {
        self.connection = connection
        context = connection.context
        let limits = context.limits
        guards = HTTP2Guards(limits, context.statistics, now: context.loop.now)
        window = max(65535, limits.maximumWindow)
        idleSince = context.loop.now
        nghttp2_session_server_new2(
            &session, context.http2.callbacks, Unmanaged.passUnretained(self).toOpaque(),
            context.http2.options)
        guard session != nil else { fatalError("nghttp2: out of memory") }
        var settings = [
            nghttp2_settings_entry(
                settings_id: Int32(NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS.rawValue),
                value: UInt32(limits.concurrentStreams)),
            nghttp2_settings_entry(
                settings_id: Int32(NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE.rawValue),
                value: UInt32(limits.initialWindow)),
            nghttp2_settings_entry(
                settings_id: Int32(NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE.rawValue),
                value: UInt32(limits.headerBytes)),
        ]
        nghttp2_submit_settings(session, UInt8(NGHTTP2_FLAG_NONE.rawValue), &settings, 3)
        nghttp2_session_set_local_window_size(
            session, UInt8(NGHTTP2_FLAG_NONE.rawValue), 0, Int32(window))
        if context.isDraining { beginDrain() }
    }

    deinit { nghttp2_session_del(session) }

    // MARK: Engine: reading

    var wantsRead: Bool { true }
    var waitingBytes: Int { streams.values.reduce(0) { $0 + $1.body.waitingCount } }

    func receive(_ bytes: UnsafeRawBufferPointer) {
        guard !isTerminated else { return }
        let result = nghttp2_session_mem_recv(
            session, bytes.bindMemory(to: UInt8.self).baseAddress, bytes.count)
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
        for (id, stream) in streams where !stream.body.isComplete {
            stream.abandon()
            reset(id, NGHTTP2_CANCEL)
        }
        peerEnded = true
        connection?.markDirty()
    }

    /// Acts on what the callbacks recorded.
    private func process() {
        if !closed.isEmpty {
            for id in closed { forget(id) }
            closed.removeAll(keepingCapacity: true)
        }
        if !unsendable.isEmpty {
            // A stream that the peer has reset meanwhile is gone, and asks for nothing.
            for id in unsendable {
                guard let stream = streams[id] else { continue }
                stream.fail(HeadTooLarge())
                reset(id, NGHTTP2_INTERNAL_ERROR)
            }
            unsendable = []
        }
        if let code = sentGoaway { ended(by: code) }
        guard !accepted.isEmpty else { return }
        if begun.turn != context.loop.now { begun = (context.loop.now, 0) }
        // A handler may answer at once and so come back here: the list is not held meanwhile.
        var batch: [Accepted] = []
        swap(&batch, &accepted)
        let count = min(batch.count, context.limits.requestsPerTurn - begun.count)
        begun.count += count
        for request in batch[..<count] { begin(request) }
        if count < batch.count {
            accepted.insert(contentsOf: batch[count...], at: 0)
            connection?.markDirty()
        } else if accepted.isEmpty {
            batch.removeAll(keepingCapacity: true)
            swap(&batch, &accepted)
        }
    }

    private func begin(_ request: Accepted) {
        let stream = request.stream
        guard streams[stream.id] === stream, let connection, !isTerminated else { return }
        // Twice as many as streams: a handler ends a little later than its stream, and a peer that has its answer may
        // ask again at once. Whoever resets his streams to have more work done than he has streams stops here.
        if runningHandlers >= 2 * context.limits.concurrentStreams {
            context.statistics.hit(.concurrentStreams)
            return reset(stream.id, NGHTTP2_REFUSED_STREAM)
        }
        if let refusal = request.refusal {
            let answer = Refusal(refusal.status, refusal.reason)
            let body = answer.body
            connection.refused(answer, body, of: request.head, .http2)
            stream.body.discard()
            return stream.respond(answer.head, .bytes(body)) { _ in }
        }
        if connection.checkCertificate() { beginDrain() }
        runningHandlers += 1
        let exchange = Exchange(
            head: request.head, version: .http2, connection: connection,
            loop: context.loop, stream: stream)
        stream.start(exchange, connection.handler)
    }

    /// A stream is gone from nghttp2: its work ends.
    private func forget(_ id: Int32) {
        if arriving.id == id {
            arriving = Arriving.none
            arrivingSince = nil
        }
        guard let stream = streams.removeValue(forKey: id) else { return }
        context.statistics.streamClosed()
        context.shrink(stream.grownWindow)
        if !sentStreams.contains(where: { $0 === stream }) { stream.abandon() }
        if streams.isEmpty { idleSince = context.loop.now }
    }

    // MARK: Engine: writing

    func produce(_ buffer: OutputBuffer) {
        process()
        output = buffer
        defer { output = nil }
        while buffer.room >= HTTP2Connection.frameRoom {
            var start: UnsafePointer<UInt8>?
            let count = nghttp2_session_mem_send(session, &start)
            if count < 0 { return terminateNow() }
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

    /// The largest frame that nghttp2 may hand over at once: 16 KiB of header block, its header and padding.
    static let frameRoom = 16_384 + 9 + 256

    /// The answer is final; nothing more of the request is wanted (RFC 9113, section 8.1). A moment passes before the
    /// peer is told, in which what still comes is checked and dropped: nghttp2 checks nothing that comes for a stream
    /// which was reset, and some clients see no answer before they have sent a small body whole.
    private func answered(_ stream: ServerStream) {
        stream.answered = context.loop.now
        if streams.count > context.limits.concurrentStreams / 2 { dismiss(stream) }
    }

    private func dismiss(_ stream: ServerStream) {
        guard stream.answered != .max else { return }
        stream.answered = .max
        reset(stream.id, NGHTTP2_NO_ERROR)
    }

    /// DATA frames need their headers: nothing goes directly.
    func transfer(to socket: Int32) -> DirectTransfer { .unsupported }

    func flushed() {
        if !sentStreams.isEmpty {
            for stream in sentStreams {
                stream.finish(complete: true)
                if !stream.body.isComplete && streams[stream.id] != nil { answered(stream) }
            }
            sentStreams.removeAll(keepingCapacity: true)
        }
        if drain == .final && streams.isEmpty && runningHandlers == 0 { isTerminated = true }
        if !accepted.isEmpty { connection?.markDirty() }
    }

    var isEnding: Bool { isTerminated }

    var isFinished: Bool {
        (isTerminated || nghttp2_session_want_read(session) == 0
            || (peerEnded && !streams.values.contains(where: \.isOurTurn)))
            && nghttp2_session_want_write(session) == 0
    }

    // MARK: StreamOwner

    func sendContinue(_ stream: ServerStream) {
        var field = nghttp2_nv(":status", "100")
        nghttp2_submit_headers(
            session, UInt8(NGHTTP2_FLAG_NONE.rawValue), stream.id, nil, &field, 1, nil)
        connection?.markDirty()
    }

    func responseReady(_ stream: ServerStream) {
        guard let head = stream.response, streams[stream.id] != nil else { return }
        stream.body.discard()
        if submit(head, for: stream) != 0 { reset(stream.id, NGHTTP2_INTERNAL_ERROR) }
        connection?.markDirty()
    }

    func bodyReady(_ stream: ServerStream) {
        nghttp2_session_resume_data(session, stream.id)
        connection?.markDirty()
    }

    func bodyConsumed(_ stream: ServerStream, _ count: Int) {
        guard streams[stream.id] != nil else {
            // The stream is gone, but the connection's window must be given back.
            guard connection != nil else { return }
            nghttp2_session_consume_connection(session, count)
            connection?.markDirty()
            return
        }
        nghttp2_session_consume(session, stream.id, count)
        if stream.answered == nil {
            grow(stream, count)
        } else {
            stream.unwanted += count
            if stream.unwanted > context.limits.maximumWindow { dismiss(stream) }
        }
        connection?.markDirty()
    }

    func handlerEnded(_ stream: ServerStream) {
        runningHandlers -= 1
        if stream.response == nil && !stream.isGone { reset(stream.id, NGHTTP2_INTERNAL_ERROR) }
        connection?.markDirty()
    }

    /// Doubles the stream's window once a whole window was consumed, while the loop's budget allows.
    private func grow(_ stream: ServerStream, _ count: Int) {
        let limits = context.limits
        let current = limits.initialWindow + stream.grownWindow
        stream.consumedSinceGrowth += count
        guard stream.consumedSinceGrowth >= current, !stream.body.isComplete else { return }
        stream.consumedSinceGrowth = 0
        let more = min(current, limits.maximumWindow - current)
        guard more > 0, stream.body.waitingCount == 0, context.grow(more) else { return }
        stream.grownWindow += more
        let flags = UInt8(NGHTTP2_FLAG_NONE.rawValue)
        nghttp2_session_set_local_window_size(session, flags, stream.id, Int32(current + more))
        let grown = streams.values.reduce(0) { $0 + $1.grownWindow }
        if grown > window {
            window = grown
            nghttp2_session_set_local_window_size(session, flags, 0, Int32(clamping: window))
        }
    }

    private func submit(_ head: ResponseHead, for stream: ServerStream) -> Int32 {
        var provider = nghttp2_data_provider()
        provider.read_callback = readNextData
        let hasBody = stream.remaining > 0
        let length = stream.declaredLength
        return head.withFields(date: context.httpDate, length: length) { fields, count in
            withUnsafePointer(to: provider) {
                nghttp2_submit_response(session, stream.id, fields, count, hasBody ? $0 : nil)
            }
        }
    }

    // MARK: Ending

    func reset(_ id: Int32, _ code: nghttp2_error_code) {
        nghttp2_submit_rst_stream(session, UInt8(NGHTTP2_FLAG_NONE.rawValue), id, code.rawValue)
        connection?.markDirty()
    }

    /// Ends the connection with GOAWAY and this code, once what is queued is sent.
    private func terminate(_ code: nghttp2_error_code) {
        guard !isTerminated else { return }
        if code != NGHTTP2_NO_ERROR { context.statistics.protocolError() }
        nghttp2_session_terminate_session(session, code.rawValue)
        for stream in streams.values { stream.abandon() }
        isTerminated = true
        connection?.markDirty()
    }

    /// A GOAWAY went out. Recorded only, as this comes from within nghttp2.
    func goawaySent(_ code: UInt32) {
        if code != NGHTTP2_NO_ERROR.rawValue {
            sentGoaway = code
        } else if case .announced = drain {
            // Its answer tells that the peer has seen the GOAWAY before it.
            nghttp2_submit_ping(session, UInt8(NGHTTP2_FLAG_NONE.rawValue), nil)
        }
    }

    /// nghttp2 ends a connection by itself where the peer broke the protocol; that is counted here.
    private func ended(by code: UInt32) {
        sentGoaway = nil
        guard !isTerminated else { return }
        context.statistics.protocolError()
        for stream in streams.values { stream.abandon() }
        isTerminated = true
    }

    private func terminateNow() {
        isTerminated = true
        connection?.close()
    }

    func beginDrain() {
        guard drain == .none else { return }
        drain = .announced(until: context.loop.now + 1_000_000_000)
        nghttp2_submit_shutdown_notice(session)
        connection?.markDirty()
    }

    /// The second step: the peer has seen the first GOAWAY, so no request of its can be on the way unannounced.
    func finishDrain() {
        guard case .announced = drain else { return }
        drain = .final
        nghttp2_submit_goaway(
            session, UInt8(NGHTTP2_FLAG_NONE.rawValue),
            nghttp2_session_get_last_proc_stream_id(session), NGHTTP2_NO_ERROR.rawValue, nil, 0)
        connection?.markDirty()
    }

    func connectionLost() {
        connection = nil
        isTerminated = true
        let all = streams
        streams = [:]
        for stream in all.values {
            context.statistics.streamClosed()
            context.shrink(stream.grownWindow)
            stream.abandon()
        }
        for stream in sentStreams { stream.abandon() }
        sentStreams = []
    }

    // MARK: Time

    func deadline(_ limits: ServerLimits) -> UInt64 {
        var earliest = UInt64.max
        if case .announced(let until) = drain { earliest = until }
        if let arrivingSince { earliest = min(earliest, arrivingSince + limits.headerTimeout) }
        if streams.isEmpty { return min(earliest, idleSince + idleTimeout) }
        for stream in streams.values {
            earliest = min(earliest, stream.progressMark.time + limits.progressInterval)
            if let answered = stream.answered, answered != .max {
                earliest = min(earliest, answered + limits.unwantedBodyTimeout)
            }
        }
        return earliest
    }

    func expire(_ now: UInt64) {
        if case .announced(let until) = drain, until <= now { finishDrain() }
        if let arrivingSince, arrivingSince + context.limits.headerTimeout <= now {
            context.statistics.hit(.headerTimeout)
            return terminate(NGHTTP2_ENHANCE_YOUR_CALM)
        }
        if streams.isEmpty {
            guard idleSince + idleTimeout <= now else { return }
            context.statistics.hit(hasPreface ? .idleTimeout : .handshakeTimeout)
            return terminate(NGHTTP2_NO_ERROR)
        }
        for stream in streams.values {
            guard let answered = stream.answered, answered != .max,
                answered + context.limits.unwantedBodyTimeout <= now
            else { continue }
            dismiss(stream)
        }
        for stream in Array(streams.values)
        where stream.progressMark.time + context.limits.progressInterval <= now {
            checkProgress(stream, now)
        }
    }

    private var idleTimeout: UInt64 {
        hasPreface ? context.limits.idleTimeout : context.limits.handshakeTimeout
    }

    private func checkProgress(_ stream: ServerStream, _ now: UInt64) {
        let moved = stream.movedBytes - stream.progressMark.bytes
        stream.progressMark = (stream.movedBytes, now)
        guard stream.body.isStarved || stream.isSending,
            moved < context.limits.minimumProgress
        else { return }
        context.statistics.hit(.bodyProgress)
        if stream.body.isStarved {
            stream.body.fail(.timedOut)
        } else {
            reset(stream.id, NGHTTP2_CANCEL)
        }
    }
}

/// nghttp2 sends no header block of more than 64 KiB.
struct HeadTooLarge: Error, CustomStringConvertible {
    var description: String { "the header block is larger than HTTP/2 can send here" }
}
