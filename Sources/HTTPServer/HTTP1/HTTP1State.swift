/// The state of an HTTP/1.1 connection: which part of a request it reads, whether it persists after the response (RFC
/// 9112, section 9.3), and how it ends. It serves one request at a time; pipelined requests wait for the response.
///
/// | event                          | `head`      | `body`, `chunkedBody`     | `responding` |
/// |--------------------------------|-------------|---------------------------|--------------|
/// | `head` without content         | `endBody`   |                           |              |
/// | `head` with content            | –           |                           |              |
/// | `bodyReceived`, `lastChunk`    |             | `endBody` at the body's end |            |
/// | `responseBegun`                |             | `discardBody`             | –            |
/// | `responseProduced`             |             | –                         | –            |
/// | `flushed`, response incomplete | –           | –                         | –            |
/// | `flushed`, persistent          |             | –                         | `readNext`   |
/// | `flushed`, not persistent      |             | `abandon`                 | `finish`     |
/// | `inputParsed`, peer ended      | `finish`    | –                         | –            |
/// | `peerEnded`                    | `finish`    | `abandon`                 | –            |
/// | `closeAfterResponse`           | –           | –                         | –            |
/// | `drain`, no input              | `finish`    | –                         | –            |
/// | `idleTimeout`                  | `finish`    |                           |              |
/// | `failed`                       | `abandon`   | `abandon`                 | `abandon`    |
///
/// `head` with content leads to `body` or `chunkedBody`, `endBody` to `responding`, `readNext` to `head`, `finish` and
/// `abandon` to `finished`, which ignores all events. Empty cells can't occur.
struct HTTP1State: Equatable {
    enum Phase: Equatable {
        /// Reads a head, which may have arrived in part.
        case head
        /// Reads a body of declared length.
        case body(remaining: UInt64)
        case chunkedBody
        /// The request is complete, the response is not.
        case responding
        /// Reads nothing more; ends once its output is sent.
        case finished
    }
    enum Event: Equatable {
        case head(HTTP1Framing, keepAlive: Bool)
        /// Bytes of a body of declared length.
        case bodyReceived(UInt64)
        /// The end of a chunked body.
        case lastChunk
        /// The handler responds. `isContinueDue`: the client still waits for `100 Continue`.
        case responseBegun(isContinueDue: Bool)
        /// The last byte of the response was given to the connection.
        case responseProduced
        /// The kernel has accepted all output.
        case flushed
        /// Queued input was parsed as far as possible.
        case inputParsed
        /// The peer has stopped sending.
        case peerEnded
        /// The connection must not persist.
        case closeAfterResponse
        /// No byte of a head has arrived in time.
        case idleTimeout
        /// The server drains. `hasInput`: bytes of the next head have arrived.
        case drain(hasInput: Bool)
        /// The connection is lost, the input is malformed, or the handler did not respond.
        case failed
    }
    enum Action: Equatable {
        case none
        /// Report the end of the request's body to its stream.
        case endBody
        /// Drop the rest of the request's body.
        case discardBody
        /// End the stream and read the next request.
        case readNext
        /// End the stream and read nothing more.
        case finish
        /// Abort the stream and read nothing more.
        case abandon
    }
    private enum Response: Equatable {
        case none, begun, complete
    }
    private(set) var phase = Phase.head
    private var response = Response.none
    /// Whether another request may follow the response. Once false, it stays false.
    private(set) var isPersistent: Bool
    /// Whether the peer has stopped sending.
    private(set) var hasPeerEnded = false

    /// The maximum size in bytes of an unwanted body that is read and dropped to keep the connection.
    static let discardedBytes: UInt64 = 64 * 1024

    init(isDraining: Bool) { isPersistent = !isDraining }

    /// Whether the response has begun but is incomplete.
    var isSendingResponse: Bool { response == .begun }

    /// Whether every byte of the response was given to the connection.
    var isResponseComplete: Bool { response == .complete }

    mutating func handle(_ event: Event) -> Action {
        if phase == .finished { return .none }
        switch event {
        case .head(let framing, let keepAlive): return begin(framing, keepAlive: keepAlive)
        case .bodyReceived(let count):
            guard case .body(let remaining) = phase else { return .none }
            phase = .body(remaining: remaining - count)
            return remaining == count ? endBody() : .none
        case .lastChunk: return endBody()
        case .responseBegun(let isContinueDue): return beginResponse(isContinueDue)
        case .responseProduced: response = .complete
        case .flushed: return flushed()
        case .inputParsed: if phase == .head && hasPeerEnded { return end(.finish) }
        case .peerEnded:
            hasPeerEnded = true
            if phase != .responding { return end(phase == .head ? .finish : .abandon) }
        case .closeAfterResponse: isPersistent = false
        case .drain(let hasInput):
            isPersistent = false
            if phase == .head && !hasInput { return end(.finish) }
        case .idleTimeout: return end(.finish)
        case .failed: return end(.abandon)
        }
        return .none
    }

    private mutating func begin(_ framing: HTTP1Framing, keepAlive: Bool) -> Action {
        if !keepAlive { isPersistent = false }
        switch framing {
        case .none, .length(0): return endBody()
        case .length(let length): phase = .body(remaining: length)
        case .chunked: phase = .chunkedBody
        }
        return .none
    }

    private mutating func endBody() -> Action {
        phase = .responding
        return .endBody
    }

    /// The next request follows only after an unwanted body is read. The connection persists only if that costs less
    /// than a new connection: the client is already sending the rest, and it is short.
    private mutating func beginResponse(_ isContinueDue: Bool) -> Action {
        response = .begun
        switch phase {
        case .body(let remaining):
            if isContinueDue || remaining > HTTP1State.discardedBytes { isPersistent = false }
            return .discardBody
        case .chunkedBody:
            isPersistent = false
            return .discardBody
        case .head, .responding, .finished: return .none
        }
    }

    private mutating func flushed() -> Action {
        guard response == .complete else { return .none }
        guard phase == .responding else { return isPersistent ? .none : end(.abandon) }
        guard isPersistent else { return end(.finish) }
        response = .none
        phase = .head
        return .readNext
    }

    private mutating func end(_ action: Action) -> Action {
        phase = .finished
        response = .none
        isPersistent = false
        return action
    }
}
