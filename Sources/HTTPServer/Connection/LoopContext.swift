import Glibc
import OpenSSL
import System
import Wire

/// The bytes that one flush of a connection sends. There is one buffer per loop, used by the connection that flushes.
final class OutputBuffer {
    /// Smaller batches take more system calls. With larger ones, a batch and what is read ahead (``EventLoop/readAhead``) no
    /// longer fit into a cache of 1 MiB.
    static let batch = 120 * 1024
    /// The rest of a batch that the kernel does not accept is queued. If much is queued, batches are small.
    private static let smallBatch = 48 * 1024 + HTTP2Connection.frameSpace
    let start = UnsafeMutableRawPointer.allocate(byteCount: OutputBuffer.batch, alignment: 64)
    private(set) var count = 0
    private var limit = OutputBuffer.batch

    deinit { start.deallocate() }

    var available: Int { limit - count }
    var bytes: UnsafeRawBufferPointer { UnsafeRawBufferPointer(start: start, count: count) }

    func reset(isSmall: Bool) {
        count = 0
        limit = isSmall ? OutputBuffer.smallBatch : OutputBuffer.batch
    }

    /// The free part of the buffer. ``advance(_:)`` follows with the number of bytes that were written.
    var free: UnsafeMutableRawBufferPointer {
        UnsafeMutableRawBufferPointer(start: start + count, count: available)
    }

    func advance(_ more: Int) { count += more }

    func append(_ bytes: UnsafeRawBufferPointer) {
        guard let base = bytes.baseAddress else { return }
        (start + count).copyMemory(from: base, byteCount: bytes.count)
        count += bytes.count
    }
}

/// The shared state of one loop's connections: buffers, budgets, limits, open connections. Confined to its loop.
final class LoopContext {
    let loop: EventLoop
    let limits: ServerLimits
    let statistics: ServerStatistics
    let live: LiveCounts
    let output = OutputBuffer()
    let queued = QueuedBytes()
    /// The number of queued bytes above which batches are small: 1 MiB.
    private static let largeBatchBudget = 1024 * 1024
    /// Whether the connections have queued so much that batches are small.
    var isMuchQueued: Bool { queued.count > LoopContext.largeBatchBudget }
    let tlsOutput = TLSOutput()
    /// Whether a connection has had its share of a turn. Steps count too, because a TLS record may be small.
    static func isShare(steps: Int, bytes: Int) -> Bool { bytes >= shareBytes || steps >= 16 }
    private static let shareBytes = 64 * 1024
    /// What one read receives or decrypts: as much as a fast body lets arrive (``ReceiveCoalescing/maximum``), so that it goes to
    /// an upstream with one system call. Saves 5 % of a large upload's CPU.
    let input = UnsafeMutableRawBufferPointer.allocate(byteCount: ReceiveCoalescing.maximum, alignment: 64)
    let http2 = HTTP2Callbacks()
    let handlers: HandlerTasks
    private(set) var connections: [ObjectIdentifier: Connection] = [:]
    private var networks: [NetworkPrefix: Int] = [:]
    /// Sockets of trusted proxies that wait for their first bytes.
    private var waiting: [NetworkPrefix: Int] = [:]
    private(set) var waitingCount = 0
    /// Bytes of request bodies that wait in memory, over all connections.
    private(set) var waitingBytes = 0
    /// Receive windows granted beyond the initial ones, over all streams.
    private(set) var grownWindows = 0
    private var roomMadeAt: UInt64 = 0
    /// Whether a drain was announced: each response over HTTP/1.1 is the last of its connection.
    var isLeaving = false
    private(set) var isDraining = false
    private var whenEmpty: (() -> Void)?
    private var paused: [Connection] = []
    private var date: (second: Int, text: [UInt8]) = (-1, [])

    init(loop: EventLoop, limits: ServerLimits, statistics: ServerStatistics) {
        self.loop = loop
        self.limits = limits
        self.statistics = statistics
        live = statistics.addLoop()
        handlers = HandlerTasks(loop)
        http2.apply(limits)
        loop.turnBudget = limits.turnBudget
    }

    deinit {
        handlers.close()
        input.deallocate()
    }

    // MARK: Connections

    func add(_ connection: Connection) {
        loop.assertCurrent()
        connections[ObjectIdentifier(connection)] = connection
        networks[connection.peer.network, default: 0] += 1
        statistics.connectionOpened()
    }

    func remove(_ connection: Connection) {
        loop.assertCurrent()
        guard connections.removeValue(forKey: ObjectIdentifier(connection)) != nil else { return }
        paused.removeAll { $0 === connection }
        let left = connections(of: connection.peer.network) - 1
        networks[connection.peer.network] = left > 0 ? left : nil
        assert(!connections.isEmpty || networks.isEmpty, "a network without connections")
        statistics.connectionClosed()
        if connections.isEmpty {
            handlers.endIdle()
            whenEmpty?()
        }
    }

    /// How many sockets of a trusted proxy wait for their first bytes.
    func waiting(of proxy: NetworkPrefix) -> Int { waiting[proxy] ?? 0 }

    /// Counts a socket that begins or ends to wait for its first bytes.
    /// - Parameter change: 1 or -1.
    func waits(_ proxy: NetworkPrefix, _ change: Int) {
        let count = waiting(of: proxy) + change
        waiting[proxy] = count > 0 ? count : nil
        waitingCount += change
        statistics.waits(change)
    }

    /// How many connections are open from a network.
    func connections(of network: NetworkPrefix) -> Int { networks[network] ?? 0 }

    /// Ends every connection in order. `done` is called once none is left.
    func drain(_ done: @escaping () -> Void) {
        loop.assertCurrent()
        isDraining = true
        whenEmpty = { [unowned self] in
            whenEmpty = nil
            done()
        }
        for connection in connections.values { connection.beginDrain() }
        if connections.isEmpty { whenEmpty?() }
    }

    /// Closes the connections that are still open.
    func closeAll() {
        loop.assertCurrent()
        for connection in connections.values {
            statistics.hit(.drainTimeout)
            connection.close()
        }
    }

    // MARK: Budgets

    /// The limit of all windows beyond the initial ones, as a multiple of ``ServerLimits/receiveBudget``. It is high because
    /// nothing is queued while the sink keeps up; ``isOverBudget`` bounds the queued bytes.
    private static let promisedBudgets = 128
    /// Nanoseconds between two attempts to reclaim windows, each of which visits all connections.
    private static let roomInterval: UInt64 = 100_000_000

    /// Grants a stream up to `bytes` of receive window beyond the initial one. If the budget is used up, stalled streams lose
    /// their windows and others are limited to their share.
    /// - Returns: How many bytes were granted.
    func grow(_ bytes: Int) -> Int {
        let most = LoopContext.promisedBudgets * limits.receiveBudget
        if grownWindows + bytes > most, roomMadeAt + LoopContext.roomInterval <= loop.now {
            roomMadeAt = loop.now
            let grown = limitWindows(to: most)
            if grownWindows + bytes > most { _ = limitWindows(to: most / (grown + 1)) }
        }
        let granted = max(0, min(bytes, most - grownWindows))
        grownWindows += granted
        return granted
    }

    private func limitWindows(to most: Int) -> Int {
        connections.values.reduce(0) { $0 + ($1.engine?.limitWindows(to: most, loop.now) ?? 0) }
    }

    func shrink(_ bytes: Int) { grownWindows -= bytes }

    /// The number of waiting bytes of request bodies changed by `change`.
    func waiting(_ change: Int) {
        loop.assertCurrent()
        waitingBytes += change
        if change < 0 && waitingBytes <= limits.receiveBudget && !paused.isEmpty {
            let resumed = paused
            paused = []
            for connection in resumed { connection.markDirty() }
        }
    }

    /// The maximum number of bytes to read at once. Only a body fills all of ``input``: further requests are queued in memory.
    /// The limit is lower once much is waiting, because bytes that a sink does not accept are queued as well.
    /// - Parameter expected: The bytes that are still missing of a body whose sink waits.
    func readLimit(expected: Int) -> Int {
        if waitingBytes > limits.receiveBudget / 4 { return 16 * 1024 }
        return expected >= input.count ? input.count : LoopContext.shareBytes
    }

    /// Whether connections with waiting bytes must not read more now.
    var isOverBudget: Bool { waitingBytes > limits.receiveBudget }

    /// Wakes `connection` once ``isOverBudget`` is over.
    func pause(_ connection: Connection) {
        if !paused.contains(where: { $0 === connection }) { paused.append(connection) }
    }

    // MARK: Date

    /// The `Date` field's value (RFC 9110, section 5.6.7), made once a second.
    var httpDate: [UInt8] {
        let now = time(nil)
        if now != date.second {
            date = (now, Array(HTTPDate.imfFixdate(seconds: Int64(now)).utf8))
        }
        return date.text
    }
}
