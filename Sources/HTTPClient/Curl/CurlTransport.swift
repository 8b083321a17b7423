import CCurl
import Synchronization
import System
import Wire

/// Requests by libcurl's multi interface, driven by the loop: to upstreams behind a proxy and rarely used services.
///
/// libcurl handles connections, TLS and HTTP. This class handles timeouts, memory and the order of events. libcurl's
/// callbacks move bytes, register sockets and timers with the loop, and record everything else. ``settle()`` acts on
/// the records at the end of the batch, so no delegate is called within a callback.
final class CurlTransport: Transport, EventHandler {
    let settings: UpstreamSettings
    let proxy: ProxyAddress?
    let loop: EventLoop
    let statistics: UpstreamStatistics
    /// nil once the transport is closed, or if libcurl could not allocate it; every request then fails.
    private var multi: UnsafeMutableRawPointer?
    private var sockets: [Int32: CurlSocket] = [:]
    private var timer: LoopTimer?
    private var live: [UInt: CurlTransfer] = [:]
    /// Idle easy handles. Creating one costs more than a request.
    private var idle: [UnsafeMutableRawPointer] = []
    private var isDirty = false
    /// The numbers of connections included in the statistics.
    private var counted = (open: 0, idle: 0)
    private var changed: [CurlTransfer] = []

    private static let isInitialized = curl_global_init(Int(CURL_GLOBAL_DEFAULT)) == CURLE_OK
    private static let maximumIdle = 16

    init(
        _ settings: UpstreamSettings, _ proxy: ProxyAddress?, _ loop: EventLoop,
        _ statistics: UpstreamStatistics
    ) {
        self.settings = settings
        self.proxy = proxy
        self.loop = loop
        self.statistics = statistics
        guard CurlTransport.isInitialized, let multi = curl_multi_init() else { return }
        self.multi = multi
        timer = LoopTimer { [unowned self] in action(CURL_SOCKET_TIMEOUT, 0) }
        let this = Unmanaged.passUnretained(self).toOpaque()
        sluice_multi_pointer(multi, CURLMOPT_SOCKETDATA, this)
        sluice_multi_pointer(multi, CURLMOPT_TIMERDATA, this)
        sluice_multi_socket(multi) { easy, socket, what, this, _ in
            CurlTransport.from(this).watch(socket, what, for: easy)
            return 0
        }
        sluice_multi_timer(multi) { _, milliseconds, this in
            CurlTransport.from(this).arm(milliseconds)
            return 0
        }
        sluice_multi_long(multi, CURLMOPT_PIPELINING, Int(CURLPIPE_MULTIPLEX))
        sluice_multi_long(multi, CURLMOPT_MAXCONNECTS, settings.maximumTransfers)
    }

    private static func from(_ pointer: UnsafeMutableRawPointer?) -> CurlTransport {
        Unmanaged<CurlTransport>.fromOpaque(pointer!).takeUnretainedValue()
    }

    /// Updates the connection statistics. libcurl does not report which are idle: those in excess of the requests.
    private func countConnections() {
        let now = (open: sockets.count, idle: max(0, sockets.count - live.count))
        statistics.open.add(now.open - counted.open, ordering: .relaxed)
        statistics.idle.add(now.idle - counted.idle, ordering: .relaxed)
        counted = now
    }

    // MARK: Transport

    func start(_ request: ClientRequest, _ delegate: any TransferDelegate) -> any Transfer {
        loop.assertCurrent()
        guard let multi, let easy = idle.popLast() ?? curl_easy_init() else {
            let error = ClientError(.unreachable, "\(settings.name): libcurl has no memory left")
            return FailedTransfer(delegate, error, loop)
        }
        let transfer = CurlTransfer(easy, request, delegate, self)
        live[UInt(bitPattern: easy)] = transfer
        curl_multi_add_handle(multi, easy)
        countConnections()
        return transfer
    }

    func close() {
        loop.assertCurrent()
        guard let multi else { return }
        for transfer in Array(live.values) { transfer.cancel() }
        for handle in idle { curl_easy_cleanup(handle) }
        idle = []
        // Closes the idle connections; the callback deregisters their sockets.
        curl_multi_cleanup(multi)
        self.multi = nil
        if let timer { loop.disarm(timer) }
        timer = nil
    }

    // MARK: libcurl's sockets and timers

    private func watch(
        _ descriptor: Int32, _ what: Int32, for easy: UnsafeMutableRawPointer?
    ) {
        if what == CURL_POLL_REMOVE {
            if let socket = sockets.removeValue(forKey: descriptor) {
                loop.deregister(socket.registration)
                countConnections()
            }
            return
        }
        var interest: Readiness = []
        if what == CURL_POLL_IN || what == CURL_POLL_INOUT { interest.insert(.readable) }
        if what == CURL_POLL_OUT || what == CURL_POLL_INOUT { interest.insert(.writable) }
        if let socket = sockets[descriptor] {
            loop.change(socket.registration, to: interest)
        } else {
            do throws(SystemError) {
                sockets[descriptor] = try CurlSocket(descriptor, interest, self)
                countConnections()
            } catch {
                live[UInt(bitPattern: easy)]?.unwatchable(error)
            }
        }
    }

    private func arm(_ milliseconds: Int) {
        guard let timer else { return }
        if milliseconds < 0 {
            loop.disarm(timer)
        } else {
            loop.arm(timer, after: UInt64(milliseconds) * 1_000_000)
        }
    }

    /// Lets libcurl process a socket, or its timers.
    func action(_ socket: Int32, _ events: Int32) {
        guard let multi else { return }
        var running: Int32 = 0
        curl_multi_socket_action(multi, socket, events, &running)
        collectFinished()
    }

    private func collectFinished() {
        guard let multi else { return }
        var rest: Int32 = 0
        while let message = curl_multi_info_read(multi, &rest) {
            guard message.pointee.msg == CURLMSG_DONE, let easy = message.pointee.easy_handle,
                let transfer = live[UInt(bitPattern: easy)]
            else { continue }
            transfer.finished(message.pointee.data.result)
        }
    }

    // MARK: The end of the batch

    func markChanged(_ transfer: CurlTransfer) {
        loop.assertCurrent()
        changed.append(transfer)
        if !isDirty {
            isDirty = true
            loop.markDirty(self)
        }
    }

    func ready(_ events: Readiness) {}

    func settle() {
        isDirty = false
        var transfers: [CurlTransfer] = []
        swap(&transfers, &changed)
        for transfer in transfers { transfer.act() }
        // A transfer that was unpaused may have ended within that call.
        collectFinished()
    }

    /// Recycles a handle. libcurl closes its connection if the response is incomplete.
    func release(_ easy: UnsafeMutableRawPointer) {
        if let multi { curl_multi_remove_handle(multi, easy) }
        // The buffer belongs to the transfer, but the handle is reused.
        sluice_easy_pointer(easy, CURLOPT_ERRORBUFFER, nil)
        live[UInt(bitPattern: easy)] = nil
        countConnections()
        if idle.count >= CurlTransport.maximumIdle {
            curl_easy_cleanup(easy)
        } else {
            idle.append(easy)
        }
    }
}

/// A request that could not be started. It fails in the loop's next turn.
///
/// Safety: confined to its loop.
private final class FailedTransfer: Transfer, @unchecked Sendable {
    private var delegate: (any TransferDelegate)?

    init(_ delegate: any TransferDelegate, _ error: ClientError, _ loop: EventLoop) {
        self.delegate = delegate
        loop.execute { self.end(error) }
    }

    func cancel() { end(ClientError(.cancelled, "the request was given up")) }

    private func end(_ error: ClientError) {
        let delegate = self.delegate.take()
        delegate?.failed(error)
        delegate?.ended(error)
    }
}

/// A libcurl socket in the loop.
private final class CurlSocket: EventHandler {
    private(set) var registration: Registration
    private let descriptor: Int32
    private unowned let transport: CurlTransport

    init(_ descriptor: Int32, _ interest: Readiness, _ transport: CurlTransport)
        throws(SystemError)
    {
        self.descriptor = descriptor
        self.transport = transport
        registration = Registration.none
        registration = try transport.loop.registerLevel(descriptor, self, for: interest)
    }

    func ready(_ events: Readiness) {
        var mask: Int32 = 0
        if events.contains(.readable) { mask |= CURL_CSELECT_IN }
        if events.contains(.writable) { mask |= CURL_CSELECT_OUT }
        if events.contains(.hangup) { mask |= CURL_CSELECT_ERR | CURL_CSELECT_IN }
        transport.action(descriptor, mask)
    }

    func settle() {}
}
