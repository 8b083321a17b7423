import EventLoop
import Glibc
import OpenSSL

/// The bytes that one flush of a connection sends: one per loop, lent to the connection that flushes.
final class OutputBuffer {
    static let capacity = 48 * 1024 + HTTP2Connection.frameRoom
    let start = UnsafeMutableRawPointer.allocate(byteCount: OutputBuffer.capacity, alignment: 64)
    private(set) var count = 0

    deinit { start.deallocate() }

    var room: Int { OutputBuffer.capacity - count }
    var bytes: UnsafeRawBufferPointer { UnsafeRawBufferPointer(start: start, count: count) }

    func reset() { count = 0 }

    /// Where the next bytes go; ``advance(_:)`` tells how many were placed.
    var free: UnsafeMutableRawBufferPointer {
        UnsafeMutableRawBufferPointer(start: start + count, count: room)
    }

    func advance(_ more: Int) { count += more }

    func append(_ bytes: UnsafeRawBufferPointer) {
        guard let base = bytes.baseAddress else { return }
        (start + count).copyMemory(from: base, byteCount: bytes.count)
        count += bytes.count
    }
}

/// What the connections of one loop share: buffers, budgets, limits, and the list of those that are open.
final class LoopContext {
    let loop: EventLoop
    let limits: ServerLimits
    let statistics: ServerStatistics
    let output = OutputBuffer()
    let tlsOutput = TLSOutput()
    let input = UnsafeMutableRawBufferPointer.allocate(byteCount: 64 * 1024, alignment: 64)
    let http2 = HTTP2Settings()
    private(set) var connections: [ObjectIdentifier: Connection] = [:]
    /// Bytes of request bodies that wait in memory, over all connections.
    private(set) var waitingBytes = 0
    /// Receive windows granted beyond the initial ones, over all streams.
    private(set) var grownWindows = 0
    private(set) var isDraining = false
    private var whenEmpty: (() -> Void)?
    private var paused: [Connection] = []
    private var date: (second: Int, text: [UInt8]) = (-1, [])

    init(loop: EventLoop, limits: ServerLimits, statistics: ServerStatistics) {
        self.loop = loop
        self.limits = limits
        self.statistics = statistics
        http2.apply(limits)
    }

    deinit { input.deallocate() }

    // MARK: Connections

    func add(_ connection: Connection) {
        connections[ObjectIdentifier(connection)] = connection
        statistics.connectionOpened()
    }

    func remove(_ connection: Connection) {
        guard connections.removeValue(forKey: ObjectIdentifier(connection)) != nil else { return }
        paused.removeAll { $0 === connection }
        statistics.connectionClosed()
        if connections.isEmpty { whenEmpty?() }
    }

    /// Lets what is open finish and takes nothing new; `done` is called once no connection is left.
    func drain(_ done: @escaping () -> Void) {
        isDraining = true
        whenEmpty = { [unowned self] in
            whenEmpty = nil
            done()
        }
        for connection in connections.values { connection.beginDrain() }
        if connections.isEmpty { whenEmpty?() }
    }

    /// Ends what is still open.
    func closeAll() {
        for connection in connections.values {
            statistics.hit(.drainTimeout)
            connection.close()
        }
    }

    // MARK: Budgets

    /// Whether so many bytes more may wait for their peers to be read.
    func grow(_ bytes: Int) -> Bool {
        guard grownWindows + bytes <= limits.receiveBudget else { return false }
        grownWindows += bytes
        return true
    }

    func shrink(_ bytes: Int) { grownWindows -= bytes }

    /// Bytes of bodies came to wait, or ceased to.
    func waiting(_ change: Int) {
        waitingBytes += change
        if change < 0 && waitingBytes <= limits.receiveBudget && !paused.isEmpty {
            let resumed = paused
            paused = []
            for connection in resumed { connection.markDirty() }
        }
    }

    /// Whether connections that hold waiting bytes must not read more now.
    var isOverBudget: Bool { waitingBytes > limits.receiveBudget }

    /// Wakes `connection` once ``isOverBudget`` is over.
    func pause(_ connection: Connection) {
        if !paused.contains(where: { $0 === connection }) { paused.append(connection) }
    }

    // MARK: Date

    /// The `Date` field's value (RFC 9110, section 5.6.7), made once a second.
    var httpDate: [UInt8] {
        var now = time(nil)
        if now != date.second {
            var parts = tm()
            gmtime_r(&now, &parts)
            var buffer = [CChar](repeating: 0, count: 40)
            strftime_l(&buffer, buffer.count, "%a, %d %b %Y %H:%M:%S GMT", &parts, cLocale)
            date = (now, buffer.prefix { $0 != 0 }.map { UInt8(bitPattern: $0) })
        }
        return date.text
    }
    private let cLocale = newlocale(1 << LC_ALL, "C", nil)
}

/// A rate with a burst: `take` fails when more was taken than the rate gave back.
struct TokenBucket {
    private var tokens: Int
    private var filled: UInt64
    private let burst: Int
    private let rate: Int

    init(burst: Int, perSecond rate: Int, now: UInt64) {
        tokens = burst
        filled = now
        self.burst = burst
        self.rate = rate
    }

    mutating func take(_ now: UInt64) -> Bool {
        if tokens < burst {
            let gained = Int((now - filled) / 1_000_000) * rate / 1000
            if gained > 0 {
                tokens = min(burst, tokens + gained)
                filled = now
            }
        } else {
            filled = now
        }
        guard tokens > 0 else { return false }
        tokens -= 1
        return true
    }

    mutating func give(_ count: Int) { tokens = min(burst, tokens + count) }
}
