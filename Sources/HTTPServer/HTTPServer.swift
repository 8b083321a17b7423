import Glibc
import OpenSSL
import Synchronization
import System
import Wire

/// An address to listen on, and the handler of its requests.
public struct ListenerConfiguration: Sendable {
    public var address: SocketAddress
    /// A socket that already listens on this address and stays open; nil to bind one.
    public var inherited: Int32?
    /// nil for clear text: HTTP/2 with prior knowledge and HTTP/1.1 on the same port.
    public var credentials: TLSCredentials?
    public var handler: RequestHandler
    /// Called once for each connection with a client certificate. The result becomes ``Exchange/identity``.
    public var identify: (@Sendable (PeerCertificate) -> any AnyObject & Sendable)?
    /// Called on the loop for each client whose certificate was rejected, with its `host:port` and the reason.
    public var onUntrusted: @Sendable (_ peer: String, _ reason: String) -> Void
    /// Called on the request's loop for each request rejected before the handler.
    public var onRejection: @Sendable (RejectedRequest) -> Void
    /// The proxies that may name their clients.
    public var proxies: TrustedProxies
    /// The permissions of a Unix domain socket.
    public var mode: UInt32

    public init(
        address: SocketAddress, inherited: Int32? = nil, mode: UInt32 = 0o600,
        credentials: TLSCredentials? = nil, proxies: TrustedProxies = TrustedProxies(),
        identify: (@Sendable (PeerCertificate) -> any AnyObject & Sendable)? = nil,
        onUntrusted: @escaping @Sendable (_ peer: String, _ reason: String) -> Void = { _, _ in },
        onRejection: @escaping @Sendable (RejectedRequest) -> Void = { _ in }, handler: @escaping RequestHandler
    ) {
        self.address = address
        self.inherited = inherited
        self.mode = mode
        self.credentials = credentials
        self.proxies = proxies
        self.identify = identify
        self.onUntrusted = onUntrusted
        self.onRejection = onRejection
        self.handler = handler
    }

    /// The path to remove at the end; nil if there is none, or it belongs to another process.
    var boundPath: String? { inherited == nil ? address.path : nil }
}

/// Accepts connections on every loop (`SO_REUSEPORT`) and serves their requests.
public final class HTTPServer: Sendable {
    public let statistics: ServerStatistics
    private let workers: [Worker]
    /// The paths of its Unix domain sockets.
    private let paths = Lock<[String]>([])

    /// Creates a server on `loops`. It does not listen yet.
    public init(
        loops: [EventLoop], limits: ServerLimits = ServerLimits(), statistics: ServerStatistics = ServerStatistics()
    ) {
        self.statistics = statistics
        workers = loops.map { Worker(loop: $0, limits: limits, statistics: statistics) }
    }

    /// Binds every listener on every loop, then starts to accept.
    /// - Returns: The bound addresses, in order, for example to learn the port if 0 was requested.
    /// - Throws: ``SystemError`` naming the address that can't be bound; then nothing listens.
    public func start(_ listeners: [ListenerConfiguration]) throws(SystemError) -> [SocketAddress] {
        var bound: [SocketAddress] = []
        var sockets: [(Int32, ListenerConfiguration, Worker)] = []
        do throws(SystemError) {
            for listener in listeners {
                var address = listener.address
                let first = sockets.count
                for (index, worker) in workers.enumerated() {
                    let descriptor =
                        if let inherited = listener.inherited {
                            try Socket.duplicate(inherited)
                        } else if index > 0 && address.path != nil {
                            try Socket.duplicate(sockets[first].0)
                        } else {
                            try Socket.listen(address, joining: index > 0, mode: listener.mode)
                        }
                    sockets.append((descriptor, listener, worker))
                    if address.port == 0 { address = Socket.localAddress(descriptor) ?? address }
                }
                bound.append(address)
            }
        } catch {
            for (descriptor, listener, _) in sockets {
                if let path = listener.boundPath { unlink(path) }
                Socket.close(descriptor)
            }
            throw error
        }
        paths.withLock { $0 += listeners.compactMap(\.boundPath) }
        for (descriptor, listener, worker) in sockets {
            worker.loop.execute { worker.listen(descriptor, listener) }
        }
        return bound
    }

    /// Prepares a later drain: requests are served as before, but HTTP/1.1 connections announce their end and close
    /// after the next response, so clients reach other servers before idle connections are closed.
    public func announceDrain() {
        for worker in workers { worker.loop.execute { worker.announceDrain() } }
    }

    /// Stops accepting, lets open requests finish, and closes the connections: HTTP/2 by two GOAWAY frames, HTTP/1.1
    /// after the current response. Connections that remain after ``ServerLimits/drainTimeout`` are cut.
    public func drain() async {
        // Another process may listen on these paths from now on.
        for path in paths.withLock({ $0 }) { unlink(path) }
        for worker in workers { worker.loop.execute { worker.beginDrain() } }
        for worker in workers {
            await withCheckedContinuation { (done: CheckedContinuation<Void, Never>) in
                worker.loop.execute { worker.whenDrained { done.resume() } }
            }
        }
    }
}

/// The server on one loop.
///
/// Safety: everything but `loop` is used only on the loop's thread.
private final class Worker: @unchecked Sendable {
    let loop: EventLoop
    private let limits: ServerLimits
    private let statistics: ServerStatistics
    private var listeners: [Listener] = []
    private var isDrained = false
    private var waiters: [() -> Void] = []
    private lazy var context = LoopContext(loop: loop, limits: limits, statistics: statistics)

    init(loop: EventLoop, limits: ServerLimits, statistics: ServerStatistics) {
        self.loop = loop
        self.limits = limits
        self.statistics = statistics
    }

    func listen(_ descriptor: Int32, _ configuration: ListenerConfiguration) {
        listeners.append(Listener(context, descriptor, configuration))
    }

    func announceDrain() { context.isLeaving = true }

    func beginDrain() {
        for listener in listeners { listener.close() }
        listeners = []
        let timer = LoopTimer { [unowned self] in context.closeAll() }
        loop.arm(timer, after: limits.drainTimeout)
        context.drain { [unowned self] in
            loop.disarm(timer)
            isDrained = true
            for waiter in waiters { waiter() }
            waiters = []
        }
    }

    func whenDrained(_ done: @escaping () -> Void) {
        if isDrained { done() } else { waiters.append(done) }
    }
}

/// A listening socket on one loop. Confined to the loop.
private final class Listener: EventHandler {
    private let context: LoopContext
    private let descriptor: Int32
    private let configuration: ListenerConfiguration
    private var registration: Registration?
    private var retry: LoopTimer?
    private var isClosed = false
    /// Accepted sockets whose first bytes have not arrived.
    private var proxied: [ObjectIdentifier: ProxiedSocket] = [:]

    init(_ context: LoopContext, _ descriptor: Int32, _ configuration: ListenerConfiguration) {
        self.context = context
        self.descriptor = descriptor
        self.configuration = configuration
        do throws(SystemError) {
            registration = try context.loop.register(descriptor, self)
        } catch {
            fatalError("listener: \(error)")
        }
        retry = LoopTimer { [unowned self] in acceptAll() }
        acceptAll()
    }

    func ready(_ events: Readiness) { acceptAll() }

    func settle() { acceptAll() }

    /// Accepts the pending connections, then stops.
    func close() {
        guard !isClosed else { return }
        // A client in the backlog may already have sent a request.
        acceptAll(most: 4096)
        for socket in proxied.values { socket.cancel() }
        isClosed = true
        if let retry { context.loop.disarm(retry) }
        if let registration { context.loop.deregister(registration) }
        Socket.close(descriptor)
    }

    /// Accepts pending connections, at most `most` per turn.
    func acceptAll(most: Int = 64) {
        guard !isClosed else { return }
        do throws(SystemError) {
            for _ in 0..<most {
                guard let (socket, peer) = try Socket.accept(descriptor) else { return }
                take(socket, peer)
            }
            context.loop.markDirty(self)
        } catch {
            // Descriptors or memory are exhausted. Retry until some are free.
            context.statistics.hit(.descriptors)
            if let retry { context.loop.arm(retry, after: 100_000_000) }
        }
    }

    private func take(_ socket: Int32, _ address: SocketAddress) {
        let peer = Peer(socket, address, configuration.proxies)
        guard peer.isProxy else { return open(socket, peer) }
        guard context.connections.count + context.waitingCount < context.limits.connections else {
            context.statistics.hit(.connections)
            return Socket.close(socket)
        }
        guard context.waiting(of: peer.network) < context.limits.waitingPerProxy else {
            context.statistics.hit(.waitingPerProxy)
            return Socket.close(socket)
        }
        context.waits(peer.network, 1)
        let waiting = ProxiedSocket(context, socket, peer, configuration.proxies) {
            [unowned self] waiting, peer in
            proxied[ObjectIdentifier(waiting)] = nil
            context.waits(waiting.proxy.network, -1)
            if let peer { return open(socket, peer) }
            Socket.close(socket)
            if waiting.isMalformed {
                let rejection = Rejection(400, "malformed PROXY header")
                configuration.onRejection(RejectedRequest(rejection, .http1_1, isSecure: false, waiting.proxy))
            }
        }
        proxied[ObjectIdentifier(waiting)] = waiting
        waiting.begin()
    }

    /// Opens a connection within the limits. Proxies have no limit per address, because many clients share them.
    private func open(_ socket: Int32, _ peer: Peer) {
        guard context.connections.count < context.limits.connections else {
            context.statistics.hit(.connections)
            return Socket.close(socket)
        }
        let limit = peer.isProxy ? .max : context.limits.connectionsPerAddress
        guard context.connections(of: peer.network) < limit else {
            context.statistics.hit(.connectionsPerAddress)
            return Socket.close(socket)
        }
        var session: TLSSession?
        let version = configuration.credentials?.version ?? 0
        if let credentials = configuration.credentials {
            do throws(TLSError) {
                session = try TLSSession(credentials.current, descriptor: socket, output: context.tlsOutput)
            } catch {
                context.statistics.handshakeFailed()
                return Socket.close(socket)
            }
        }
        Connection(
            context, descriptor: socket, peer: peer, tls: session,
            credentialsVersion: version, listener: configuration
        ).open()
    }
}
