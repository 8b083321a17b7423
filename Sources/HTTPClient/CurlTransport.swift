import CCurl
import EventLoop
import Wire

/// Requests over TLS by libcurl's multi interface, driven by the loop.
///
/// libcurl owns connections, TLS and HTTP; this owns time, memory and the order of things. Its callbacks only record;
/// ``settle()`` runs at the end of the batch and acts.
final class CurlTransport: Transport, EventHandler {
    let settings: UpstreamSettings
    let loop: EventLoop
    private let multi: OpaquePointer
    private var sockets: [Int32: CurlSocket] = [:]
    private var timer: LoopTimer?
    private var live: [UInt: CurlTransfer] = [:]
    /// Easy handles at rest: making one costs more than a request.
    private var idle: [UnsafeMutableRawPointer] = []
    private var isDirty = false
    private var isClosed = false
    var onConnections: (() -> Void)?
    private var changed: [CurlTransfer] = []

    private static let isInitialized = curl_global_init(Int(CURL_GLOBAL_DEFAULT)) == CURLE_OK
    /// Handles that are kept at rest.
    private static let maximumIdle = 16

    init(_ settings: UpstreamSettings, _ loop: EventLoop) {
        precondition(CurlTransport.isInitialized, "libcurl can't be initialized")
        self.settings = settings
        self.loop = loop
        guard let multi = curl_multi_init() else { preconditionFailure("curl_multi_init") }
        self.multi = OpaquePointer(multi)
        timer = LoopTimer { [unowned self] in action(CURL_SOCKET_TIMEOUT, 0) }
        let this = Unmanaged.passUnretained(self).toOpaque()
        sluice_multi_pointer(multi, CURLMOPT_SOCKETDATA, this)
        sluice_multi_pointer(multi, CURLMOPT_TIMERDATA, this)
        sluice_multi_socket(multi) { _, socket, what, this, _ in
            CurlTransport.from(this).watch(socket, what)
            return 0
        }
        sluice_multi_timer(multi) { _, milliseconds, this in
            CurlTransport.from(this).arm(milliseconds)
            return 0
        }
        sluice_multi_long(multi, CURLMOPT_PIPELINING, Int(CURLPIPE_MULTIPLEX))
        sluice_multi_long(multi, CURLMOPT_MAXCONNECTS, settings.maximumTransfers)
    }

    deinit {
        for handle in idle { curl_easy_cleanup(handle) }
        curl_multi_cleanup(UnsafeMutableRawPointer(multi))
        if let timer { loop.disarm(timer) }
    }

    private static func from(_ pointer: UnsafeMutableRawPointer?) -> CurlTransport {
        Unmanaged<CurlTransport>.fromOpaque(pointer!).takeUnretainedValue()
    }

    private var handle: UnsafeMutableRawPointer { UnsafeMutableRawPointer(multi) }

    /// libcurl does not tell which of its connections are at rest: as many as no request uses.
    var connections: (open: Int, idle: Int) {
        (sockets.count, max(0, sockets.count - live.count))
    }

    // MARK: Transport

    func start(_ request: ClientRequest, _ delegate: any TransferDelegate) -> any Transfer {
        guard !isClosed, let easy = idle.popLast() ?? curl_easy_init() else {
            preconditionFailure("no request is begun on a closed transport")
        }
        let transfer = CurlTransfer(easy, request, delegate, self)
        live[UInt(bitPattern: easy)] = transfer
        curl_multi_add_handle(handle, easy)
        onConnections?()
        return transfer
    }

    func close() {
        isClosed = true
        for transfer in Array(live.values) { transfer.cancel() }
        for handle in idle { curl_easy_cleanup(handle) }
        idle = []
    }

    // MARK: What libcurl wants

    private func watch(_ descriptor: Int32, _ what: Int32) {
        if what == CURL_POLL_REMOVE {
            if let socket = sockets.removeValue(forKey: descriptor) {
                loop.deregister(socket.registration)
                onConnections?()
            }
            return
        }
        var interest: Readiness = []
        if what == CURL_POLL_IN || what == CURL_POLL_INOUT { interest.insert(.readable) }
        if what == CURL_POLL_OUT || what == CURL_POLL_INOUT { interest.insert(.writable) }
        if let socket = sockets[descriptor] {
            loop.change(socket.registration, to: interest)
        } else {
            sockets[descriptor] = try? CurlSocket(descriptor, interest, self)
            onConnections?()
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

    /// Has libcurl work on a socket, or on its timers.
    func action(_ socket: Int32, _ events: Int32) {
        var running: Int32 = 0
        curl_multi_socket_action(handle, socket, events, &running)
        collectFinished()
    }

    private func collectFinished() {
        var rest: Int32 = 0
        while let message = curl_multi_info_read(handle, &rest) {
            guard message.pointee.msg == CURLMSG_DONE, let easy = message.pointee.easy_handle,
                let transfer = live[UInt(bitPattern: easy)]
            else { continue }
            transfer.finished(message.pointee.data.result)
        }
    }

    // MARK: The end of the batch

    /// Has `transfer` act at the end of the batch.
    func markChanged(_ transfer: CurlTransfer) {
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
        // Whatever was paused and went on may have ended by that.
        collectFinished()
    }

    /// Takes a handle back; libcurl closes its connection where the response is not complete.
    func release(_ easy: UnsafeMutableRawPointer) {
        curl_multi_remove_handle(handle, easy)
        // The words belong to the transfer, and the handle lives on.
        sluice_easy_pointer(easy, CURLOPT_ERRORBUFFER, nil)
        live[UInt(bitPattern: easy)] = nil
        onConnections?()
        if isClosed || idle.count >= CurlTransport.maximumIdle {
            curl_easy_cleanup(easy)
        } else {
            idle.append(easy)
        }
    }
}

/// One socket of libcurl's in the loop.
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
