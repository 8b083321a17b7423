import System

/// An upstream's connections on one loop, and the queue of requests for them. Confined to its loop.
final class LoopConnectionPool {
    /// The upstream owns this pool, and every exchange holds the upstream.
    private unowned let upstream: Upstream
    let loop: EventLoop
    /// nil if no request can be sent.
    private let transport: (any Transport)?
    // Exclusive access holds for these: no access to them is held while other code runs.
    @exclusivity(unchecked) private var live = 0
    @exclusivity(unchecked) private var queue: [ClientExchange] = []
    @exclusivity(unchecked) private var head = 0
    @exclusivity(unchecked) private var timer: LoopTimer?
    @exclusivity(unchecked) private var isClosed: Bool

    init(_ upstream: Upstream, _ loop: EventLoop, isClosed: Bool) {
        self.isClosed = isClosed
        self.upstream = upstream
        self.loop = loop
        transport = isClosed ? nil : upstream.makeTransport(loop)
        timer = LoopTimer { [weak self] in self?.dropLate() }
    }

    /// Closes on the loop what ``close()`` has not. ``Upstream/close()`` is the orderly way. This one is for an
    /// upstream that is dropped without it, on whatever thread releases the last reference. A stopped loop does not
    /// run it.
    deinit {
        guard !isClosed else { return }
        let (loop, open) = (loop, Open(transport: transport, timer: timer))
        loop.execute {
            open.transport?.close()
            if let timer = open.timer { loop.disarm(timer) }
        }
    }

    /// Safety: only passed to the loop.
    private struct Open: @unchecked Sendable {
        let transport: (any Transport)?
        let timer: LoopTimer?
    }

    func submit(_ exchange: ClientExchange) {
        loop.assertCurrent()
        let upstream = upstream
        if isClosed { return reject(exchange, .cancelled, "the client was closed") }
        if let fault = exchange.request.fault {
            return reject(exchange, .malformed, fault)
        }
        if transport == nil {
            return reject(exchange, .unreachable, upstream.fault ?? "there is no transport")
        }
        if let cause = upstream.breaker?.rejection(now: exchange.begun) {
            return reject(
                exchange, .circuitOpen, "\(upstream.settings.name) is left alone for now: \(cause)")
        }
        upstream.statistics.live.add(1, ordering: .relaxed)
        if live < upstream.settings.maximumTransfers, queue.count == head {
            begin(exchange)
        } else if queue.count - head < upstream.settings.maximumQueue {
            queue.append(exchange)
            upstream.statistics.waiting.add(1, ordering: .relaxed)
            armTimer()
        } else {
            upstream.statistics.live.subtract(1, ordering: .relaxed)
            reject(exchange, .queueFull, "\(queue.count - head) requests wait already")
        }
    }

    private func begin(_ exchange: ClientExchange) {
        guard let transport else { return }
        live += 1
        exchange.begin(on: transport)
    }

    /// Fails a request in the loop's next turn, not within the call that submitted it.
    private func reject(_ exchange: ClientExchange, _ code: ClientError.Code, _ cause: String) {
        loop.execute { exchange.reject(ClientError(code, cause)) }
    }

    func ended(_ exchange: ClientExchange, wasBegun: Bool) {
        loop.assertCurrent()
        if wasBegun {
            live -= 1
            upstream.statistics.live.subtract(1, ordering: .relaxed)
        } else if let index = queue[head...].firstIndex(where: { $0 === exchange }) {
            queue.remove(at: index)
            leftQueue()
            upstream.statistics.live.subtract(1, ordering: .relaxed)
        }
        while live < upstream.settings.maximumTransfers, head < queue.count {
            let next = queue[head]
            head += 1
            leftQueue()
            begin(next)
        }
        if head > 0, head == queue.count || head > 256 {
            queue.removeSubrange(..<head)
            head = 0
        }
    }

    private func leftQueue() { upstream.statistics.waiting.subtract(1, ordering: .relaxed) }

    private func armTimer() {
        guard let timer, !timer.isArmed, head < queue.count else { return }
        let now = EventLoop.monotonicNow()
        let deadline = queue[head].queueDeadline
        loop.arm(timer, after: deadline > now ? deadline - now : 1)
    }

    private func dropLate() {
        let now = EventLoop.monotonicNow()
        while head < queue.count, queue[head].queueDeadline <= now {
            // The end of the exchange removes it from the queue.
            let late = queue[head]
            late.reject(
                ClientError(.queueFull, "it waited too long for its turn: \(live) are under way"))
        }
        armTimer()
    }

    /// Fails queued requests and closes idle connections.
    func close() {
        loop.assertCurrent()
        guard !isClosed else { return }
        isClosed = true
        for exchange in queue[head...] {
            exchange.reject(ClientError(.cancelled, "the client was closed"))
        }
        transport?.close()
        if let timer { loop.disarm(timer) }
        timer = nil
    }
}
