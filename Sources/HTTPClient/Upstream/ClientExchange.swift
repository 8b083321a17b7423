import System
import Wire

/// One attempt of a request: it is queued and sent, and gets one response or failure.
///
/// Safety: confined to its loop. A cancellation on another thread goes through the loop.
public final class ClientExchange: TransferDelegate, @unchecked Sendable {
    let request: ClientRequest
    let attempt: Int
    let upstream: Upstream
    let pool: LoopConnectionPool
    /// When it began, in monotonic nanoseconds.
    let begun: UInt64
    private let trace: RequestTrace?
    private let span: TraceContext?
    /// nil before the request is sent and after its end.
    private var transfer: (any Transfer)?
    private var outcome: Result<ClientResponse, ClientError>?
    private var collected: [UInt8] = []
    private var waiter: UnsafeContinuation<Void, Never>?
    private var status: Int?
    private var firstByte: UInt64?
    private(set) var isOver = false
    let queueDeadline: UInt64

    init(_ request: ClientRequest, attempt: Int, _ upstream: Upstream, _ pool: LoopConnectionPool) {
        trace = RequestTrace.current
        span = trace?.child()
        if let span, upstream.settings.passesTrace {
            // Added after the signature, which does not cover them.
            self.request = request.copy()
            self.request.fields.append("traceparent", span.field)
            if let state = trace?.state { self.request.fields.append("tracestate", state) }
        } else {
            self.request = request
        }
        self.attempt = attempt
        self.upstream = upstream
        self.pool = pool
        begun = EventLoop.monotonicNow()
        upstream.statistics.alive.add(1, ordering: .relaxed)
        queueDeadline = begun &+ upstream.settings.queueTimeout
    }

    deinit { upstream.statistics.alive.subtract(1, ordering: .relaxed) }

    /// The response, once its head is complete. Cancelling the waiting task cancels the request. May be called once.
    public func response() async throws(ClientError) -> ClientResponse {
        await settled()
        return try take()
    }

    /// Moves the response out. The receiver then owns the body, which is closed when it is dropped.
    func take() throws(ClientError) -> ClientResponse {
        let settled = outcome.take()
        guard case .success(let response) = settled else {
            outcome = settled
            return try result()
        }
        outcome = .success(
            ClientResponse(
                status: response.status, fields: HeaderFields(), body: EmptySource.shared))
        return response
    }

    var responseStatus: Int? {
        if case .success(let response) = outcome { return response.status }
        return nil
    }

    /// Waits for the response's head, a failure, or the end of the waiting task. May be called once.
    func settled() async {
        guard outcome == nil else { return }
        await suspend { waiter in
            if outcome != nil { waiter.resume() } else { self.waiter = waiter }
        } onCancel: {
            pool.loop.runHere { self.cancel() }
        }
    }

    func result() throws(ClientError) -> ClientResponse {
        guard let outcome else { throw ClientError(.cancelled, "the caller went away") }
        return try outcome.get()
    }

    /// Whether there is a response. A body found incomplete while it was collected counts as a failure.
    var hasResponse: Bool {
        if case .success = outcome { return true }
        return false
    }

    /// Reads the response's body of at most `limit` bytes into ``collected``. A failure replaces the response.
    func collect(limit: Int) async {
        do throws(ClientError) {
            collected = try await result().collect(limit: limit)
        } catch {
            outcome = .failure(error)
        }
    }

    func collectedResponse() throws(ClientError) -> CollectedResponse {
        let response = try result()
        return CollectedResponse(status: response.status, fields: response.fields, body: collected)
    }

    /// Cancels the request at once. The body of a response then ends with an error. Called on the loop.
    public func cancel() {
        pool.loop.assertCurrent()
        if let transfer {
            transfer.cancel()
        } else if !isOver {
            reject(ClientError(.cancelled, "the request was given up"))
        }
    }

    /// Sends the request when it leaves the queue.
    func begin(on transport: any Transport) { transfer = transport.start(request, self) }

    func reject(_ error: ClientError) {
        failed(error)
        ended(error)
    }

    // MARK: TransferDelegate

    func received(_ response: consuming ClientResponse) {
        // The response to HEAD declares the length of the body that GET would have.
        if request.isHead { response.contentLength = 0 }
        status = response.status
        let time = EventLoop.monotonicNow() &- begun
        firstByte = time
        trace?.add(time)
        upstream.breaker?.succeeded()
        if case .pipe(let pipe) = request.body, !pipe.isExhausted {
            pipe.interrupt(.responded(status: response.status))
        }
        settle(.success(response))
    }

    func failed(_ error: ClientError) {
        if firstByte == nil { trace?.add(EventLoop.monotonicNow() &- begun) }
        if case .pipe(let pipe) = request.body { pipe.interrupt(.failed(error)) }
        switch error.code {
        case .unreachable, .timedOut, .connectionLost:
            if attempt == 1, !error.isRepeated {
                upstream.breaker?.failed(error.description, now: EventLoop.monotonicNow())
            }
        case .malformed, .cancelled, .queueFull, .tooLarge, .circuitOpen: break
        }
        settle(.failure(error))
    }

    func ended(_ failure: ClientError?) {
        guard !isOver else { return }
        isOver = true
        let wasBegun = transfer != nil
        transfer = nil
        if let observer = upstream.observer {
            let record = UpstreamRecord(
                upstream: upstream, method: request.method, status: status,
                error: failure?.code, attempt: attempt, timeToFirstByte: firstByte,
                begun: begun, duration: EventLoop.monotonicNow() &- begun,
                span: trace?.hasSpans == true ? span : nil, trace: trace)
            observer.finished(record)
        }
        pool.ended(self, wasBegun: wasBegun)
    }

    private func settle(_ result: consuming Result<ClientResponse, ClientError>) {
        guard outcome == nil else { return }
        outcome = result
        waiter?.resume()
        waiter = nil
    }
}
