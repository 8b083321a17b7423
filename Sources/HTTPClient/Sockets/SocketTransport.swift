import Glibc
import OpenSSL
import Synchronization
import System
import Wire

/// HTTP on our own sockets, in clear text or over TLS: the requests and idle connections of one upstream on one loop, and
/// their shared buffers. It is HTTP/1.1 (RFC 9112), or HTTP/2 where TLS chooses it (``HTTP2Pool``).
///
/// libcurl's cost for a small request and its copies of a large body would exceed the gateway's own.
///
/// Safety: confined to its loop. Other threads only pass a reference back to the loop.
final class SocketTransport: Transport, EventHandler, @unchecked Sendable {
    let settings: UpstreamSettings
    let loop: EventLoop
    let statistics: UpstreamStatistics
    /// nil in clear text.
    let tls: UpstreamTLS?
    /// nil if HTTP/2 is not offered.
    private(set) var http2: HTTP2Pool?
    /// The line `host: …` with its line end.
    let hostLine: [UInt8]
    /// The buffer for reading heads; lent for the duration of a call.
    let input = UnsafeMutableRawBufferPointer.allocate(byteCount: 16 * 1024, alignment: 64)
    /// The buffer that joins a head and the first body bytes into one TLS record, per call. Empty in clear text.
    let record: UnsafeMutableRawBufferPointer
    /// The buffer for writing heads; lent for the duration of a call.
    private var output = UnsafeMutableRawBufferPointer.allocate(
        byteCount: 4096, alignment: 64)
    /// Idle connections, the most recently used last.
    private var idle: [SocketConnection] = []
    private(set) var isClosed = false
    /// The host's addresses, and their expiry.
    private var addresses: (list: [SocketAddress], until: UInt64) = ([], 0)
    /// The connections that wait for a lookup; nil if none is running.
    private var unresolved: [SocketConnection]?
    private var later: [() -> Void] = []

    init(
        _ settings: UpstreamSettings, _ tls: UpstreamTLS?, _ loop: EventLoop,
        _ statistics: UpstreamStatistics
    ) {
        self.settings = settings
        self.tls = tls
        self.loop = loop
        self.statistics = statistics
        record = .allocate(
            byteCount: tls == nil ? 0 : TLSClientSession.recordBytes, alignment: 64)
        hostLine = Array("host: \(settings.origin.authority)\r\n".utf8)
        // A numeric address needs no lookup.
        let numeric = SocketAddress.resolve(settings.origin.host, settings.origin.port, numeric: true)
        if !numeric.isEmpty { addresses = (numeric, .max) }
        if tls != nil, settings.http2 { http2 = HTTP2Pool(self) }
    }

    deinit {
        input.deallocate()
        record.deallocate()
        output.deallocate()
    }

    // MARK: Transport

    func start(_ request: ClientRequest, _ delegate: any TransferDelegate) -> any Transfer {
        if let http2, http2.takes(request) { return http2.start(request, delegate) }
        return startHTTP1(request, delegate)
    }

    func startHTTP1(_ request: ClientRequest, _ delegate: any TransferDelegate) -> any Transfer {
        let exchange = HTTP1Exchange(self, request, delegate)
        if isClosed {
            afterwards { exchange.connectionFailed(.cancelled, "the client was closed") }
        } else {
            connect(exchange, fresh: request.isAlone)
        }
        return exchange
    }

    func close() {
        loop.assertCurrent()
        isClosed = true
        while let connection = idle.last { discard(connection) }
        http2?.close()
    }

    // MARK: Connections

    /// Assigns an exchange to the most recently used connection, or to a new one.
    func connect(_ exchange: HTTP1Exchange, fresh: Bool = false) {
        loop.assertCurrent()
        while !fresh, let connection = idle.popLast() {
            statistics.idle.subtract(1, ordering: .relaxed)
            // A request that can't be repeated needs a connection that the upstream has not closed.
            guard exchange.isRepeatable || connection.isQuiet() else {
                discard(connection)
                continue
            }
            exchange.connection = connection
            return connection.carry(exchange)
        }
        exchange.connection = open(for: exchange, offersHTTP2: false)
    }

    func open(for user: any ConnectionUser, offersHTTP2: Bool) -> SocketConnection {
        statistics.open.add(1, ordering: .relaxed)
        let connection = SocketConnection(self, loop, for: user, offersHTTP2: offersHTTP2)
        if addresses.until > loop.now {
            afterwards { [self] in connection.connect(addresses.list) }
        } else {
            resolve(for: connection)
        }
        return connection
    }

    /// Whether an idle connection can carry an HTTP/1.1 request.
    var hasIdle: Bool { !idle.isEmpty }

    func rest(_ connection: SocketConnection) {
        if isClosed || idle.count >= settings.maximumTransfers { return discard(connection) }
        idle.append(connection)
        statistics.idle.add(1, ordering: .relaxed)
    }

    func discard(_ connection: SocketConnection) {
        loop.assertCurrent()
        if let index = idle.lastIndex(where: { $0 === connection }) {
            idle.remove(at: index)
            statistics.idle.subtract(1, ordering: .relaxed)
        }
        if connection.close() { statistics.open.subtract(1, ordering: .relaxed) }
    }

    // MARK: Names

    /// Shared by all upstreams, because lookups are rare.
    private static let resolver = BlockingPool(threads: 2)
    /// How long a name's addresses are valid, in nanoseconds.
    private static let addressLifetime: UInt64 = 5_000_000_000

    private func resolve(for connection: SocketConnection) {
        guard unresolved == nil else {
            unresolved?.append(connection)
            return
        }
        unresolved = [connection]
        let (host, port) = (settings.origin.host, settings.origin.port)
        SocketTransport.resolver.submit { [self] in
            let found = SocketAddress.resolve(host, port)
            loop.execute { [self] in resolved(found) }
        }
    }

    private func resolved(_ found: [SocketAddress]) {
        if !found.isEmpty { addresses = (found, loop.now + SocketTransport.addressLifetime) }
        let waiting = unresolved ?? []
        unresolved = nil
        for connection in waiting { connection.connect(found) }
    }

    // MARK: What exchanges share

    /// A buffer of at least this size for a head; lent for the duration of a call.
    func outputBuffer(_ count: Int) -> UnsafeMutableRawPointer {
        if output.count < count {
            output.deallocate()
            output = .allocate(byteCount: count, alignment: 64)
        }
        return output.baseAddress!
    }

    /// Runs `work` at the end of the batch, not within the current call.
    func afterwards(_ work: @escaping () -> Void) {
        if later.isEmpty { loop.markDirty(self) }
        later.append(work)
    }

    func settle() {
        let due = later
        later = []
        for work in due { work() }
    }

    func ready(_ events: Readiness) {}
}
