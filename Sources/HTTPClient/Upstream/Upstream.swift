import System
import Wire

/// A remote service with one origin: its connections, queues, retries and circuit breaker.
///
/// Every loop has its own connections (``LoopConnectionPool``); the statistics count all of them. Our own transport
/// serves clear text and the buckets' requests over TLS, libcurl all others and those through a proxy.
public final class Upstream: Sendable {
    public let settings: UpstreamSettings
    public let statistics = UpstreamStatistics()
    let observer: (any UpstreamObserver)?
    let breaker: CircuitBreaker?
    private let budget = RetryBudget()
    /// The proxy for requests, if any.
    private let proxy: Result<ProxyAddress?, ProxyAddress.Malformed>
    private let tls: UpstreamTLS
    /// One per loop that has sent a request. They are few, so a search is cheaper than a dictionary.
    private let pools = Lock<(all: [Pool], isClosed: Bool)>(([], false))

    /// Safety: a pool is only used on its loop; here it is only stored.
    private struct Pool: @unchecked Sendable {
        let pool: LoopConnectionPool
    }

    /// Opens no connection yet.
    /// - Parameter observer: Receives a record of every attempt.
    /// - Parameter hasBreaker: Whether requests are rejected for a while after repeated failures. Not for a caller with
    ///   its own pauses, which expects an attempt after each of them.
    public init(
        _ settings: UpstreamSettings, observer: (any UpstreamObserver)? = nil,
        hasBreaker: Bool = true
    ) {
        self.settings = settings
        self.observer = observer
        breaker = hasBreaker ? CircuitBreaker() : nil
        proxy = Result { () throws(ProxyAddress.Malformed) in
            if settings.origin.scheme == .http { return nil }
            if let proxy = settings.proxy { return proxy }
            return try ProxyAddress.environment(for: settings.origin)
        }
        tls = UpstreamTLS(settings)
    }

    /// Why the circuit is open; nil when it is closed.
    public var openCircuit: String? { breaker?.openCause }

    /// Why every request fails: libcurl can't be loaded, or the environment's proxy can't be used; nil otherwise.
    public var fault: String? {
        do throws(ProxyAddress.Malformed) {
            let proxy = try proxy.get()
            guard usesLibcurl(proxy), let cause = curlFault() else { return nil }
            return "requests \(proxy == nil ? "over TLS" : "through a proxy") need libcurl: \(cause)"
        } catch { return error.description }
    }

    private func usesLibcurl(_ proxy: ProxyAddress?) -> Bool {
        settings.origin.scheme == .https && (settings.secureTransport == .libcurl || proxy != nil)
    }

    func makeTransport(_ loop: EventLoop) -> (any Transport)? {
        guard fault == nil, case .success(let proxy) = proxy else { return nil }
        if usesLibcurl(proxy) { return CurlTransport(settings, proxy, loop, statistics) }
        let tls = settings.origin.scheme == .https ? tls : nil
        return SocketTransport(settings, tls, loop, statistics)
    }

    private func pool() -> LoopConnectionPool {
        guard let loop = EventLoop.current else {
            preconditionFailure("a request begins on a loop")
        }
        return pools.withLock { pools in
            for known in pools.all where known.pool.loop === loop { return known.pool }
            let pool = LoopConnectionPool(self, loop, isClosed: pools.isClosed)
            pools.all.append(Pool(pool: pool))
            return pool
        }
    }

    /// Begins one attempt on the calling loop, without ``ClientRequest/authorize``.
    public func start(_ request: ClientRequest) -> ClientExchange {
        start(request, attempt: 1)
    }

    private func start(_ request: ClientRequest, attempt: Int) -> ClientExchange {
        let pool = pool()
        let exchange = ClientExchange(request, attempt: attempt, self, pool)
        pool.submit(exchange)
        return exchange
    }

    /// Sends a request and returns its response. The request is repeated if the upstream did not receive it or if it is
    /// ``ClientRequest/isRepeatable``, after 408, 429, 500, 502, 503, 504, lost connections and timeouts: at most
    /// ``UpstreamSettings/attempts`` attempts, with growing random pauses of at least `Retry-After`, within a budget.
    public func send(_ request: ClientRequest) async throws(ClientError) -> ClientResponse {
        try await attempts(request, collecting: nil).take()
    }

    /// Sends a request and returns its response with the whole body, at most `limit` bytes. Repeats it as ``send(_:)``
    /// does, and also if the body is incomplete or ``ClientRequest/confirmsRepetition`` allows it.
    public func call(_ request: ClientRequest, limit: Int = 1 << 20) async throws(ClientError)
        -> CollectedResponse
    {
        let exchange = try await attempts(request, collecting: limit)
        return try exchange.collectedResponse()
    }

    /// The last attempt.
    /// - Parameter limit: The maximum size of the body in bytes, if it is read as a part of the attempt.
    private func attempts(_ request: ClientRequest, collecting limit: Int?) async throws(ClientError) -> ClientExchange
    {
        budget.requestBegan()
        let first =
            request.authorize == nil
            ? start(request, attempt: 1) : try await authorized(request, 1)
        await first.settled()
        let pause = repetition(request, 1, first)
        if pause == nil, limit == nil { return first }
        return try await furtherAttempts(request, after: first, pause, collecting: limit)
    }

    // Not inlined, so that not every request's task reserves memory for it.
    @inline(never)
    private func furtherAttempts(
        _ request: ClientRequest, after exchange: consuming ClientExchange, _ firstPause: UInt64?,
        collecting limit: Int?
    ) async throws(ClientError) -> ClientExchange {
        var (pause, attempt) = (firstPause, 1)
        while true {
            // If only the response's body can show whether a repetition makes sense, read it first.
            if let limit, exchange.hasResponse, pause == nil || !request.isRepeatable {
                await exchange.collect(limit: limit)
                if !exchange.hasResponse { pause = repetition(request, attempt, exchange) }
            }
            guard let delay = pause else { return exchange }
            if request.isRepeatable {
                if exchange.hasResponse { try exchange.result().body.close() }
            } else if !(try await isConfirmed(request, exchange, isCollected: limit != nil)) {
                return exchange
            }
            attempt += 1
            statistics.repeated.add(1, ordering: .relaxed)
            await Pause.sleep(delay)
            if Task.isCancelled { throw ClientError(.cancelled, "the caller went away") }
            exchange =
                request.authorize == nil ? start(request, attempt: attempt) : try await authorized(request, attempt)
            await exchange.settled()
            pause = repetition(request, attempt, exchange)
        }
    }

    /// Whether a request that is not repeatable may be sent again after this attempt.
    private func isConfirmed(
        _ request: ClientRequest, _ exchange: ClientExchange, isCollected: Bool
    ) async throws(ClientError) -> Bool {
        if exchange.hasResponse {
            guard isCollected, let confirm = request.confirmsRepetition else { return false }
            return await confirm(try exchange.collectedResponse())
        }
        do throws(ClientError) { _ = try exchange.result() } catch {
            if !error.mayHaveReached { return true }
        }
        return await request.confirmsRepetition?(nil) == true
    }

    // Not inlined for the same reason.
    @inline(never)
    private func authorized(_ request: ClientRequest, _ attempt: Int)
        async throws(ClientError) -> ClientExchange
    {
        let request = request.copy()
        try await request.authorize?(request)
        return start(request, attempt: attempt)
    }

    /// The pause before another attempt; nil if this result is final.
    private func repetition(_ request: ClientRequest, _ attempt: Int, _ exchange: ClientExchange)
        -> UInt64?
    {
        if let status = exchange.responseStatus, status < 400 { return nil }
        do throws(ClientError) {
            return repetition(request, attempt, try exchange.result())
        } catch {
            return repetition(request, attempt, error)
        }
    }

    /// Waits as ``send(_:)`` does before a further attempt. For a caller that continues with another request, such as
    /// one for the rest of a body.
    /// - Parameters:
    ///   - failures: The number of consecutive failed attempts, at least 1.
    ///   - retryAfter: The `Retry-After` of the last response.
    /// - Returns: Whether to retry: not without ``UpstreamSettings/attempts`` or budget left, or if the task ended.
    public func mayTryAgain(after failures: Int, retryAfter: String? = nil) async -> Bool {
        let wanted = pause(retryAfter)
        guard failures < settings.attempts, wanted <= settings.maximumRetryDelay, mayRetry() else { return false }
        statistics.repeated.add(1, ordering: .relaxed)
        await Pause.sleep(max(wanted, backoff(failures)))
        return !Task.isCancelled
    }

    /// The pause before repeating the request after a response; nil if the response is final.
    private func repetition(_ request: ClientRequest, _ attempt: Int, _ response: ClientResponse)
        -> UInt64?
    {
        guard [408, 429, 500, 502, 503, 504].contains(response.status), isSafe(request),
            mayRepeat(request, attempt)
        else { return nil }
        let wanted = pause(response.fields["retry-after"])
        guard wanted <= settings.maximumRetryDelay, mayRetry() else { return nil }
        return max(wanted, backoff(attempt))
    }

    /// The pause before repeating the request after a failure; nil if the failure is final.
    private func repetition(_ request: ClientRequest, _ attempt: Int, _ error: ClientError)
        -> UInt64?
    {
        switch error.code {
        case .timedOut where request.waitLimit != nil && error.mayHaveReached: return nil
        case .unreachable, .timedOut, .connectionLost, .malformed:
            guard isSafe(request) || !error.mayHaveReached, mayRepeat(request, attempt), mayRetry() else { return nil }
            return backoff(attempt)
        case .tooLarge, .queueFull, .circuitOpen, .cancelled: return nil
        }
    }

    /// Whether the request may be repeated although it may have been executed, as far as that needs no check.
    private func isSafe(_ request: ClientRequest) -> Bool {
        request.isRepeatable || request.confirmsRepetition != nil
    }

    private func mayRepeat(_ request: ClientRequest, _ attempt: Int) -> Bool {
        if case .pipe(let pipe) = request.body, pipe.sent > 0 || pipe.interruption != nil {
            return false
        }
        return attempt < min(request.attempts, settings.attempts)
    }

    private func mayRetry() -> Bool { budget.take(now: EventLoop.monotonicNow()) }

    private func backoff(_ attempt: Int) -> UInt64 {
        let bound = min(settings.retryDelay << UInt64(attempt - 1), settings.maximumRetryDelay)
        return UInt64.random(in: 0...bound)
    }

    /// The delay of a `Retry-After` field in nanoseconds (RFC 9110, section 10.2.3).
    private func pause(_ retryAfter: String?) -> UInt64 {
        guard let text = retryAfter else { return 0 }
        let seconds: UInt64
        if let number = UInt64(text) {
            seconds = number
        } else {
            let now = SystemClock.seconds()
            guard let date = HTTPDate.parse(text.utf8.span, now: now), date > now else {
                return 0
            }
            seconds = UInt64(date - now)
        }
        let (nanoseconds, isTooLong) = seconds.multipliedReportingOverflow(by: 1_000_000_000)
        return isTooLong ? .max : nanoseconds
    }

    /// Fails queued requests and closes idle connections, each on its loop. Later requests fail as cancelled.
    public func close() async {
        let open = pools.withLock { pools in
            pools.isClosed = true
            return pools.all
        }
        for entry in open {
            await withUnsafeContinuation { waiter in
                entry.pool.loop.runHere {
                    entry.pool.close()
                    waiter.resume()
                }
            }
        }
    }
}
