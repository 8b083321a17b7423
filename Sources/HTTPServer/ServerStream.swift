import EventLoop
import Glibc

/// What a stream asks of the connection that carries it.
protocol StreamOwner: AnyObject {
    /// Sends `100 Continue`.
    func sendContinue(_ stream: ServerStream)
    /// The response head and body of `stream` are there to be sent.
    func responseReady(_ stream: ServerStream)
    /// The source of `stream` has bytes again.
    func bodyReady(_ stream: ServerStream)
    /// Bytes of the request's body left the stream's queue.
    func bodyConsumed(_ stream: ServerStream, _ count: Int)
    /// The handler has returned.
    func handlerEnded(_ stream: ServerStream)
}

/// One request on its connection, of either protocol: the body on its way in, the response on its way out, the
/// handler's task, and what was last known of their progress.
///
/// Safety: confined to its loop, which is also the executor of the one task that holds it.
final class ServerStream: ExchangeStream, @unchecked Sendable {
    let id: Int32
    let body = InboundBody()
    private(set) var isGone = false
    /// Set by ``respond(_:_:_:)``.
    @exclusivity(unchecked) private(set) var response: ResponseHead?
    /// The response's `content-length`, where its own fields do not say.
    private(set) var declaredLength: UInt64?
    /// Bytes of the response's body that are still to be sent.
    private(set) var remaining: UInt64 = 0
    /// Whether the response waits for its source and not for the peer.
    private(set) var isWaitingForSource = false
    /// Whether the handler's task has begun and not ended.
    private(set) var isHandlerRunning = false
    /// Whether the request's method is HEAD.
    var isHead = false
    /// Receive window that was granted beyond the initial one (HTTP/2).
    var grownWindow = 0
    /// Bytes consumed since the window was last changed (HTTP/2).
    var consumedSinceGrowth = 0
    /// When the answer had been sent while the body still arrived (HTTP/2); `.max` once the stream is being reset.
    var answered: UInt64?
    /// Bytes of the body that came after the answer (HTTP/2).
    var unwanted = 0
    /// Bytes both ways at the last look of the progress timer, and when that was.
    @exclusivity(unchecked) var progressMark: (bytes: UInt64, time: UInt64) = (0, 0)
    /// Held strongly: weak references would make every retain of the connection slow. The connection lets go of its
    /// streams when they end, which breaks the cycle.
    private let owner: any StreamOwner
    private unowned let context: LoopContext
    @exclusivity(unchecked) private var source: (any ByteSource)?
    private var sent: UInt64 = 0
    /// Why the source gave no more.
    private var sourceFailure: (any Error)?
    @exclusivity(unchecked) private var completion: ((ResponseOutcome) -> Void)?
    @exclusivity(unchecked) private var task: Task<Void, Never>?
    /// Whether the client waits for a 100 before it sends the body.
    private(set) var isContinueDue: Bool

    init(id: Int32, owner: any StreamOwner, context: LoopContext, expectsContinue: Bool) {
        self.id = id
        self.owner = owner
        self.context = context
        isContinueDue = expectsContinue
        progressMark = (0, context.loop.now)
        body.stream = self
    }

    /// Bytes of the request's body left its queue.
    func bodyConsumed(_ count: Int) { owner.bodyConsumed(self, count) }

    /// So many bytes more, or fewer, of the request's body wait in its queue.
    func waitingChanged(_ change: Int) { context.waiting(change) }

    /// Bytes that have moved either way.
    var movedBytes: UInt64 { sent &+ body.received }

    /// It is the peer's turn from now on: what went before does not count for its progress.
    func restartProgress() { progressMark = (movedBytes, context.loop.now) }

    /// Whether the answer waits for its handler or its source. Otherwise it waits for the peer, in vain where that one
    /// sends no more window.
    var isOurTurn: Bool { isWaitingForSource || (isHandlerRunning && response == nil) }

    /// Whether a response body is under way and it is the peer's turn to take it.
    var isSending: Bool { completion != nil && !isWaitingForSource }

    // MARK: The handler

    /// Starts the handler's task, on the loop and without a hop.
    func start(_ exchange: Exchange, _ handler: @escaping RequestHandler) {
        isHandlerRunning = true
        let started = Task.immediate(executorPreference: exchange.loop) { [self] in
            await handler(exchange)
            exchange.loop.assertCurrent()
            ended()
        }
        if isHandlerRunning { task = started }
    }

    private func ended() {
        isHandlerRunning = false
        task = nil
        owner.handlerEnded(self)
    }

    // MARK: ExchangeStream

    func sendContinue() {
        guard isContinueDue, !isGone else { return }
        isContinueDue = false
        if response == nil && body.received == 0 { owner.sendContinue(self) }
    }

    func receive(
        into sink: any ByteSink, limit: UInt64,
        _ completion: @escaping (Result<UInt64, BodyError>) -> Void
    ) {
        body.start(sink, limit: limit, completion)
    }

    func respond(
        _ head: ResponseHead, _ body: ResponseBody,
        _ completion: @escaping (ResponseOutcome) -> Void
    ) {
        precondition(response == nil, "a request is answered once")
        response = head
        self.completion = completion
        switch body {
        case .none: break
        case .bytes(let bytes):
            remaining = UInt64(bytes.count)
            source = bytes.isEmpty ? nil : BytesSource(bytes)
        case .source(let given, let length):
            remaining = length
            source = given
            mayBeDirect = length >= ServerStream.directBytes && given is any DirectSource
            isDirect = mayBeDirect
        }
        let carriesLength = head.status != 204 && head.status != 304
        if case .none = body {
            let isKnown = isHead || head.fields.contains("content-length")
            if carriesLength && !isKnown { declaredLength = 0 }
        } else if carriesLength {
            declaredLength = remaining
        }
        if isHead || !carriesLength { remaining = 0 }
        restartProgress()
        if isGone { return finish(complete: false) }
        owner.responseReady(self)
    }

    // MARK: Sending

    /// Reads the next bytes of the response's body into the start of `buffer`; `.end` when all were read.
    /// - Throws: where the source fails or ends early.
    func read(into buffer: inout MutableRawSpan) throws -> SourceRead {
        guard remaining > 0 else { return .end }
        guard let source else { throw SourceEndedEarly() }
        let room = Int(min(remaining, UInt64(buffer.byteCount)))
        let result: SourceRead
        do {
            result = try buffer.withUnsafeMutableBytes { raw in
                var part = UnsafeMutableRawBufferPointer(rebasing: raw[..<room]).mutableBytes
                return try source.read(into: &part)
            }
        } catch {
            sourceFailure = error
            throw error
        }
        switch result {
        case .bytes(let count):
            remaining -= UInt64(count)
            sent += UInt64(count)
            isDirect = mayBeDirect
            return .bytes(count)
        case .wait:
            waitForSource(source)
            return .wait
        case .end:
            sourceFailure = SourceEndedEarly()
            throw SourceEndedEarly()
        }
    }

    private func waitForSource(_ source: any ByteSource) {
        isWaitingForSource = true
        source.whenReadable { [weak self] in
            guard let self, isWaitingForSource else { return }
            isWaitingForSource = false
            restartProgress()
            owner.bodyReady(self)
        }
    }

    /// Bodies from this size on go directly to a socket in clear text; smaller ones together with their head.
    private static let directBytes: UInt64 = 64 * 1024

    /// Whether the rest of the body may go directly to a socket.
    private(set) var isDirect = false
    private var mayBeDirect = false

    /// Moves the next bytes of the body directly to a socket. `.unsupported`: read them.
    /// - Throws: where the source or the socket fails.
    func transfer(to socket: Int32) throws -> DirectTransfer {
        guard isDirect, remaining > 0, !isWaitingForSource, let source = source as? any DirectSource
        else { return .unsupported }
        let result: DirectTransfer
        do {
            result = try source.transfer(to: socket, count: Int(clamping: remaining))
        } catch {
            if !isOfSocket(error) { sourceFailure = error }
            throw error
        }
        switch result {
        case .bytes(let count):
            remaining -= UInt64(count)
            sent += UInt64(count)
        case .sourceWaits: waitForSource(source)
        case .socketWaits: break
        case .unsupported:
            isDirect = false
            owner.bodyReady(self)
        }
        return result
    }

    /// The response has ended: with all of it given to the kernel, or not.
    func finish(complete: Bool) {
        source?.close()
        source = nil
        isWaitingForSource = false
        guard let done = completion else { return }
        completion = nil
        let end: ResponseOutcome.End =
            complete ? .complete : sourceFailure.map { .sourceFailed($0) } ?? .peerGone
        done(ResponseOutcome(bodyBytes: sent, end: end))
    }

    /// The response can't be sent, and not for the client's fault.
    func fail(_ error: any Error) {
        sourceFailure = error
        finish(complete: false)
    }

    /// The client is gone, or the connection is: everything that waits for it ends now.
    func abandon(_ error: BodyError = .clientGone) {
        guard !isGone else { return }
        isGone = true
        body.fail(error)
        finish(complete: false)
        task?.cancel()
    }
}

/// A source gave fewer bytes than its response declared.
struct SourceEndedEarly: Error, CustomStringConvertible {
    var description: String { "it ended early" }
}

/// Whether a direct transfer failed at the peer's end: the socket reports these of itself, a file never.
private func isOfSocket(_ error: any Error) -> Bool {
    guard let code = (error as? SystemError)?.code else { return false }
    return [EPIPE, ECONNRESET, ECONNABORTED, ETIMEDOUT, ENOTCONN, EHOSTUNREACH, ENETUNREACH]
        .contains(code)
}
