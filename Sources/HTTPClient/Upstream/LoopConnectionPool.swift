import System

/// An upstream's connections on one loop, and its request queue. Confined to its loop.
final class LoopConnectionPool {
    let loop: EventLoop
    /// nil if no request can be sent.
    private let transport: (any Transport)?
    private var live = 0
    private let queue = Queue()
    private var timer: LoopTimer?
    private var isClosed: Bool

    init(_ upstream: Upstream, _ loop: EventLoop, isClosed: Bool) {
        self.isClosed = isClosed
        self.loop = loop
        transport = isClosed ? nil : upstream.makeTransport(loop)
        // Each queued request holds the pool. A weak reference would slow down every retain of the pool.
        timer = LoopTimer { [queue] in queue.first?.pool.dropLate() }
    }

    private final class Queue {
        private var exchanges: [ClientExchange] = []
        private var head = 0

        var count: Int { exchanges.count - head }
        var first: ClientExchange? { count > 0 ? exchanges[head] : nil }
        var all: ArraySlice<ClientExchange> { exchanges[head...] }

        func append(_ exchange: ClientExchange) { exchanges.append(exchange) }

        func removeFirst() -> ClientExchange {
            let first = exchanges[head]
            head += 1
            trim()
            return first
        }

        /// Returns whether it was queued.
        func remove(_ exchange: ClientExchange) -> Bool {
            guard let index = all.firstIndex(where: { $0 === exchange }) else { return false }
            exchanges.remove(at: index)
            trim()
            return true
        }

        /// Releases removed entries, immediately if the queue is empty.
        private func trim() {
            guard head == exchanges.count || head > 256 else { return }
            exchanges.removeSubrange(..<head)
            head = 0
        }
    }

    /// Closes what ``close()`` has not, on the loop, if the upstream was dropped. A stopped loop does not run it.
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
        let upstream = exchange.upstream
        if isClosed { return reject(exchange, .cancelled, "the client was closed") }
        if let fault = exchange.request.fault {
            return reject(exchange, .malformed, fault)
        }
        if transport == nil {
            return reject(exchange, .unreachable, upstream.fault ?? "there is no transport")
        }
        if let cause = upstream.breaker?.rejection(now: exchange.begun) {
            return reject(exchange, .circuitOpen, "the circuit of \(upstream.settings.name) is open: \(cause)")
        }
        upstream.statistics.live.add(1, ordering: .relaxed)
        if live < upstream.settings.maximumTransfers, queue.count == 0 {
            begin(exchange)
        } else if queue.count < upstream.settings.maximumQueue {
            queue.append(exchange)
            upstream.statistics.waiting.add(1, ordering: .relaxed)
            armTimer()
        } else {
            upstream.statistics.live.subtract(1, ordering: .relaxed)
            reject(exchange, .queueFull, "\(queue.count) requests are already queued")
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
        let upstream = exchange.upstream
        if wasBegun {
            live -= 1
            upstream.statistics.live.subtract(1, ordering: .relaxed)
        } else if queue.remove(exchange) {
            upstream.statistics.waiting.subtract(1, ordering: .relaxed)
            upstream.statistics.live.subtract(1, ordering: .relaxed)
        }
        while queue.count > 0, live < upstream.settings.maximumTransfers {
            let next = queue.removeFirst()
            upstream.statistics.waiting.subtract(1, ordering: .relaxed)
            begin(next)
        }
    }

    private func armTimer() {
        guard let timer, !timer.isArmed, let deadline = queue.first?.queueDeadline else { return }
        let now = EventLoop.monotonicNow()
        loop.arm(timer, after: deadline > now ? deadline - now : 1)
    }

    private func dropLate() {
        let now = EventLoop.monotonicNow()
        // The end of the exchange removes it from the queue.
        while let late = queue.first, late.queueDeadline <= now {
            late.reject(ClientError(.queueFull, "it waited too long for its turn: \(live) are under way"))
        }
        armTimer()
    }

    /// Fails queued requests and closes idle connections.
    func close() {
        loop.assertCurrent()
        guard !isClosed else { return }
        isClosed = true
        for exchange in queue.all {
            exchange.reject(ClientError(.cancelled, "the client was closed"))
        }
        transport?.close()
        if let timer { loop.disarm(timer) }
        timer = nil
    }
}
