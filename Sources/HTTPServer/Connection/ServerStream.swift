import Glibc
import System

/// A stream's connection, as the stream uses it.
protocol StreamOwner: AnyObject {
    /// Whether a library callback is running: no connection may close, no response begin or end. For assertions.
    var isInCallback: Bool { get }
    func sendContinue(_ stream: ServerStream)
    func sendInterim(_ head: ResponseHead, _ stream: ServerStream)
    /// The response of `stream` can be sent.
    func responseReady(_ stream: ServerStream)
    /// The source of `stream` has bytes again.
    func bodyReady(_ stream: ServerStream)
    /// Bytes of the request's body left the stream's queue.
    func bodyConsumed(_ stream: ServerStream, _ count: Int)
    func handlerEnded(_ stream: ServerStream)
}

/// One request on a connection of either protocol: its body, response, handler's task, and progress.
///
/// Safety: confined to its loop, which is also the executor of the one task that holds it.
final class ServerStream: ExchangeStream, @unchecked Sendable {
    let id: Int32
    /// nil for a request without a body, until it is used.
    private var inbound: InboundBody?
    /// Why the stream was abandoned.
    private var abandonment: BodyError?
    private(set) var isGone = false
    var endsWithInput = false
    var hasInputEnded = false
    /// Set by ``respond(_:_:_:)``.
    private(set) var response: ResponseHead?
    /// The response's `content-length`, unless its own fields contain it.
    private(set) var declaredLength: UInt64?
    /// The number of body bytes of the response still to be sent; the maximum until the source of an open-ended one ends.
    private(set) var remaining: UInt64 = 0
    /// Whether the length of the response's body is not known.
    private(set) var isOpenEnded = false
    /// Whether the response waits for its source, not for the peer.
    private(set) var isWaitingForSource = false
    private(set) var isHandlerRunning = false
    var isHead = false
    /// The number of bytes moved in both directions when the progress interval began, and that time.
    var progressMark: (bytes: UInt64, time: UInt64) = (0, 0)
    /// Strong, because a weak reference would slow every retain. The connection breaks the cycle at a stream's end.
    private let owner: any StreamOwner
    private let context: LoopContext
    private var source: (any ByteSource)?
    private var sent: UInt64 = 0
    private var sourceFailure: (any Error)?
    private var completion: ((ResponseOutcome) -> Void)?
    /// The handler's task, while it runs.
    private var task: HandlerTask?
    /// Whether the client waits for `100 Continue` before sending the body.
    private(set) var isContinueDue: Bool

    /// - Parameter hasBody: Whether a body may follow the request's head.
    init(
        id: Int32, owner: any StreamOwner, context: LoopContext, expectsContinue: Bool,
        hasBody: Bool = true
    ) {
        self.id = id
        self.owner = owner
        self.context = context
        isContinueDue = expectsContinue
        progressMark = (0, context.loop.now)
        if hasBody {
            let body = InboundBody()
            body.stream = self
            inbound = body
        }
        context.live.created(.stream)
    }

    deinit {
        assert(completion == nil && !isHandlerRunning, "a stream ends after its handler")
        context.live.destroyed(.stream)
    }

    func requestCreated() { context.live.created(.request) }
    func requestDestroyed() { context.live.destroyed(.request) }

    var body: InboundBody {
        if let inbound { return inbound }
        let empty = InboundBody()
        empty.stream = self
        empty.end()
        if let abandonment { empty.fail(abandonment) }
        inbound = empty
        return empty
    }

    var isBodyComplete: Bool { inbound?.isComplete ?? true }

    /// Whether the request's body waits for the peer.
    var isBodyStarved: Bool { inbound?.isStarved ?? false }

    /// The number of bytes of the request's body that wait for its sink.
    var waitingBytes: Int { inbound?.waitingCount ?? 0 }

    /// The number of bytes of the request's body that its sink waits for; 0 if unknown.
    var missingBytes: Int { inbound?.missing ?? 0 }

    func discardBody() { inbound?.discard() }

    func bodyConsumed(_ count: Int) { owner.bodyConsumed(self, count) }

    /// The number of waiting bytes of the request's body changed by `change`.
    func waitingChanged(_ change: Int) { context.waiting(change) }

    /// The number of bytes moved in both directions.
    var movedBytes: UInt64 { sent &+ (inbound?.received ?? 0) }

    func restartProgress() { progressMark = (movedBytes, context.loop.now) }

    /// Whether the response waits for the handler or the body's source, not for the peer.
    var isOurTurn: Bool { isWaitingForSource || (isHandlerRunning && response == nil) }

    /// Whether a response is being sent and waits for the peer.
    var isSending: Bool { completion != nil && !isWaitingForSource }

    // MARK: The handler

    /// Starts the handler's task, on the loop and without a hop.
    func start(_ exchange: Exchange, _ handler: @escaping RequestHandler) {
        isHandlerRunning = true
        inbound?.declared = exchange.head.contentLength
        let started = context.handlers.run(self, exchange, handler)
        if isHandlerRunning { task = started }
    }

    func handlerEnded() {
        isHandlerRunning = false
        task = nil
        owner.handlerEnded(self)
    }

    // MARK: ExchangeStream

    func sendContinue() {
        context.loop.assertCurrent()
        guard isContinueDue, !isGone else { return }
        isContinueDue = false
        if response == nil && (inbound?.received ?? 0) == 0 { owner.sendContinue(self) }
    }

    func sendInterim(_ head: ResponseHead) {
        context.loop.assertCurrent()
        assert(!owner.isInCallback, "a response does not begin inside a callback")
        if response == nil && !isGone { owner.sendInterim(head, self) }
    }

    func stopReceiving(_ error: any Error) { body.fail(.sink(error)) }

    func receive(
        into sink: any ByteSink, limit: UInt64,
        _ completion: @escaping (Result<UInt64, BodyError>) -> Void
    ) {
        context.loop.assertCurrent()
        body.start(sink, limit: limit, completion)
    }

    func respond(
        _ head: ResponseHead, _ body: ResponseBody,
        _ completion: @escaping (ResponseOutcome) -> Void
    ) {
        context.loop.assertCurrent()
        assert(!owner.isInCallback, "a response does not begin inside a callback")
        precondition(response == nil, "a request has one response")
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
        case .stream(let given):
            remaining = .max
            source = given
            isOpenEnded = true
        }
        let carriesLength = head.status != 204 && head.status != 304
        if case .none = body {
            let isKnown = isHead || head.fields.contains("content-length")
            if carriesLength && !isKnown { declaredLength = 0 }
        } else if carriesLength, !isOpenEnded {
            declaredLength = remaining
        }
        if isHead || !carriesLength { remaining = 0 }
        restartProgress()
        if isGone { return finish(complete: false) }
        owner.responseReady(self)
    }

    // MARK: Sending

    /// Reads the next bytes of the response's body into the start of `buffer`; `.end` after the last.
    /// - Throws: If the source fails or ends early.
    func read(into buffer: inout MutableRawSpan) throws -> SourceRead {
        guard remaining > 0 else { return .end }
        guard let source else { throw SourceEndedEarly() }
        let limit = Int(min(remaining, UInt64(buffer.byteCount)))
        let result: SourceRead
        do {
            result = try buffer.withUnsafeMutableBytes { raw in
                var part = UnsafeMutableRawBufferPointer(rebasing: raw[..<limit]).mutableBytes
                return try source.read(into: &part)
            }
        } catch {
            sourceFailure = error
            throw error
        }
        switch result {
        case .bytes(let count):
            if !isOpenEnded { remaining -= UInt64(count) }
            sent += UInt64(count)
            isDirect = mayBeDirect
            return .bytes(count)
        case .wait:
            waitForSource(source)
            return .wait
        case .end where isOpenEnded:
            remaining = 0
            return .end
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

    /// Bodies of at least this size go directly to a clear-text socket; smaller ones are sent with their head.
    private static let directBytes: UInt64 = 64 * 1024

    /// Whether the rest of the body may go directly to a socket.
    private(set) var isDirect = false
    private var mayBeDirect = false

    /// Moves the next bytes of the body directly to a socket. `.unsupported`: read them.
    /// - Throws: If the source or the socket fails.
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

    /// Ends the response. `complete`: the kernel has accepted all of it.
    func finish(complete: Bool) {
        source?.close()
        source = nil
        isWaitingForSource = false
        guard let done = completion else { return }
        assert(!owner.isInCallback, "a response does not end inside a callback")
        completion = nil
        let end: ResponseOutcome.End = complete ? .complete : sourceFailure.map { .sourceFailed($0) } ?? .peerGone
        done(ResponseOutcome(bodyBytes: sent, end: end))
    }

    /// Ends the response because of a failure on our side.
    func fail(_ error: any Error) {
        sourceFailure = error
        finish(complete: false)
    }

    /// Aborts everything that waits for the client or connection, which is gone.
    func abandon(_ error: BodyError = .clientGone) {
        guard !isGone else { return }
        isGone = true
        abandonment = error
        inbound?.fail(error)
        finish(complete: false)
        task?.cancel()
    }
}

/// A source had fewer bytes than its response declared.
struct SourceEndedEarly: Error, CustomStringConvertible {
    var description: String { "it ended early" }
}

/// Whether a direct transfer failed because of the socket. A file never fails with these errors.
private func isOfSocket(_ error: any Error) -> Bool {
    guard let code = (error as? SystemError)?.code else { return false }
    return [EPIPE, ECONNRESET, ECONNABORTED, ETIMEDOUT, ENOTCONN, EHOSTUNREACH, ENETUNREACH].contains(code)
}
