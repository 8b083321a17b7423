import EventLoop
import Synchronization

/// A limit that was hit; see ``ServerLimits``.
public enum LimitKind: Int, CaseIterable, Sendable {
    case connections, headerBytes, headerFields, targetBytes, concurrentStreams, resetsReceived
    case resetsSent, continuations, controlFrames, emptyFrames, queuedControlFrames
    case unsentBytes, handshakeTimeout, headerTimeout, idleTimeout, bodyProgress, drainTimeout,
        descriptors
}

/// What the server counts. Any thread may read it.
public final class ServerStatistics: Sendable {
    private let open = Atomic<Int>(0)
    private let accepted = Atomic<Int>(0)
    private let streams = Atomic<Int>(0)
    private let protocolErrors = Atomic<Int>(0)
    private let tlsFailures = Atomic<Int>(0)
    private let limits = Lock([Int](repeating: 0, count: LimitKind.allCases.count))

    public init() {}

    /// Connections that are open now.
    public var openConnections: Int { open.load(ordering: .relaxed) }
    /// Connections accepted since the start.
    public var acceptedConnections: Int { accepted.load(ordering: .relaxed) }
    /// Requests whose answer has not ended yet.
    public var liveStreams: Int { streams.load(ordering: .relaxed) }
    /// Connections that ended because the peer broke the protocol.
    public var protocolErrorCount: Int { protocolErrors.load(ordering: .relaxed) }
    /// TLS handshakes that failed.
    public var failedHandshakes: Int { tlsFailures.load(ordering: .relaxed) }
    /// How often a limit was hit since the start.
    public func hits(_ kind: LimitKind) -> Int { limits.withLock { $0[kind.rawValue] } }

    func connectionOpened() {
        open.add(1, ordering: .relaxed)
        accepted.add(1, ordering: .relaxed)
    }
    func connectionClosed() { open.subtract(1, ordering: .relaxed) }
    func streamOpened() { streams.add(1, ordering: .relaxed) }
    func streamClosed() { streams.subtract(1, ordering: .relaxed) }
    func protocolError() { protocolErrors.add(1, ordering: .relaxed) }
    func handshakeFailed() { tlsFailures.add(1, ordering: .relaxed) }
    func hit(_ kind: LimitKind) { limits.withLock { $0[kind.rawValue] += 1 } }
}
