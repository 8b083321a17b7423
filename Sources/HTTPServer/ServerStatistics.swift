import Synchronization
import System

/// A limit that was hit; see ``ServerLimits``.
public enum LimitKind: Int, CaseIterable, Sendable {
    case connections, connectionsPerAddress, waitingPerProxy, headerBytes, headerFields, targetBytes
    case concurrentStreams, resetsReceived, resetsSent, continuations, controlFrames
    case emptyFrames, queuedControlFrames
    case unsentBytes, handshakeTimeout, headerTimeout, idleTimeout, bodyProgress, drainTimeout, descriptors
}

/// A kind of object whose live instances are counted; see ``ServerStatistics/live(_:)``.
public enum LiveObject: String, CaseIterable, Sendable {
    /// An accepted socket.
    case connection
    /// The HTTP/1.1 or HTTP/2 state of a connection.
    case session
    /// A request on its connection.
    case stream
    /// A request held by its handler.
    case request
}

/// The server's counters. Any thread may read them.
public final class ServerStatistics: Sendable {
    private let open = Atomic<Int>(0)
    private let accepted = Atomic<Int>(0)
    private let waiting = Atomic<Int>(0)
    private let streams = Atomic<Int>(0)
    private let protocolErrors = Atomic<Int>(0)
    private let tlsFailures = Atomic<Int>(0)
    private let loops = Lock<[LiveCounts]>([])
    private let limits = Lock([Int](repeating: 0, count: LimitKind.allCases.count))

    public init() {}

    /// Open connections.
    public var openConnections: Int { open.load(ordering: .relaxed) }
    /// Sockets of trusted proxies from which no byte, or an incomplete PROXY header, has arrived.
    public var waitingConnections: Int { waiting.load(ordering: .relaxed) }
    /// Connections accepted since the start.
    public var acceptedConnections: Int { accepted.load(ordering: .relaxed) }
    /// Requests whose response has not ended.
    public var liveStreams: Int { streams.load(ordering: .relaxed) }
    /// Connections that ended because the peer violated the protocol.
    public var protocolErrorCount: Int { protocolErrors.load(ordering: .relaxed) }
    /// Failed TLS handshakes.
    public var failedHandshakes: Int { tlsFailures.load(ordering: .relaxed) }
    /// The number of hits of a limit since the start.
    public func hits(_ kind: LimitKind) -> Int { limits.withLock { $0[kind.rawValue] } }

    /// The number of objects of this kind in memory. Without connections it is 0; otherwise there is a leak.
    public func live(_ object: LiveObject) -> Int {
        loops.withLock { $0.reduce(0) { $0 + $1.change(object, by: 0) } }
    }

    /// Adds the counts of a loop.
    func addLoop() -> LiveCounts {
        let counts = LiveCounts()
        loops.withLock { $0.append(counts) }
        return counts
    }

    func connectionOpened() {
        open.add(1, ordering: .relaxed)
        accepted.add(1, ordering: .relaxed)
    }
    func connectionClosed() { open.subtract(1, ordering: .relaxed) }
    func waits(_ change: Int) { waiting.add(change, ordering: .relaxed) }
    func streamOpened() { streams.add(1, ordering: .relaxed) }
    func streamClosed() { streams.subtract(1, ordering: .relaxed) }
    func protocolError() { protocolErrors.add(1, ordering: .relaxed) }
    func handshakeFailed() { tlsFailures.add(1, ordering: .relaxed) }
    func hit(_ kind: LimitKind) { limits.withLock { $0[kind.rawValue] += 1 } }
}

/// The live objects of one loop. Loops with shared counters would wait for each other.
final class LiveCounts: Sendable {
    private let connections = Atomic<Int>(0)
    private let sessions = Atomic<Int>(0)
    private let streams = Atomic<Int>(0)
    private let requests = Atomic<Int>(0)

    func created(_ object: LiveObject) { change(object, by: 1) }

    func destroyed(_ object: LiveObject) {
        let left = change(object, by: -1)
        assert(left >= 0, "\(object): more were destroyed than created")
    }

    /// Returns the new count.
    @discardableResult
    func change(_ object: LiveObject, by count: Int) -> Int {
        switch object {
        case .connection: connections.add(count, ordering: .relaxed).newValue
        case .session: sessions.add(count, ordering: .relaxed).newValue
        case .stream: streams.add(count, ordering: .relaxed).newValue
        case .request: requests.add(count, ordering: .relaxed).newValue
        }
    }
}
