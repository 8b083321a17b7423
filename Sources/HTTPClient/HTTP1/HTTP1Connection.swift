import Glibc
import System

/// One clear-text socket to an upstream: it connects, moves bytes, and enforces the timeouts of both. It carries one
/// exchange at a time and is idle between them. Confined to its loop.
final class HTTP1Connection: EventHandler {
    private enum State {
        case resolving, connecting, open, closed
    }
    /// The result of a read from the socket.
    enum Received {
        case bytes(Int)
        case wait
        case end
        case failed(SystemError)
    }
    private let transport: HTTP1Transport
    private let loop: EventLoop
    private var state = State.resolving
    @exclusivity(unchecked) private var descriptor: Int32 = -1
    @exclusivity(unchecked) private var registration: Registration?
    /// The exchange that it carries; nil while it is idle.
    @exclusivity(unchecked) private var exchange: HTTP1Exchange?
    /// Whether an earlier exchange has completed on it. If so, the upstream may have closed it meanwhile.
    private(set) var isReused = false
    private var isReadable = false
    private var isWritable = false
    private var hasHangup = false
    /// Whether bytes were received that belong to no response.
    private var hasGarbage = false
    private var isDirty = false
    private var addresses: ArraySlice<SocketAddress> = []
    /// Why the previous address failed.
    private var lastFailure = "no address"
    /// The deadline of the connection, and that of the current address.
    private var connectDeadline: UInt64
    private var addressDeadline: UInt64 = .max
    private var idleSince: UInt64 = 0
    @exclusivity(unchecked) private var timer: LoopTimer?
    private var armedFor: UInt64 = .max

    /// Begins to connect, for `exchange`.
    init(_ transport: HTTP1Transport, _ loop: EventLoop, for exchange: HTTP1Exchange) {
        self.transport = transport
        self.loop = loop
        self.exchange = exchange
        connectDeadline = loop.now &+ transport.settings.connectTimeout
        timer = LoopTimer { [unowned self] in timerFired() }
        updateTimer()
    }

    // MARK: Connecting

    /// Tries the addresses in turn. If there are none, the name is unknown.
    func connect(_ resolved: [SocketAddress]) {
        guard state == .resolving else { return }
        guard !resolved.isEmpty else {
            return fail(.unreachable, "the name \(transport.settings.origin.host) has no address")
        }
        addresses = resolved[...]
        tryNextAddress()
    }

    private func tryNextAddress() {
        while let address = addresses.popFirst() {
            state = .connecting
            (isReadable, isWritable, hasHangup) = (false, false, false)
            do throws(SystemError) {
                descriptor = try Socket.connect(address)
                registration = try loop.register(descriptor, self)
                let left = connectDeadline > loop.now ? connectDeadline - loop.now : 0
                addressDeadline = loop.now + left / UInt64(addresses.count + 1)
                return updateTimer()
            } catch {
                lastFailure = "\(address): \(String(cString: strerror(error.code)))"
                closeSocket()
            }
        }
        fail(.unreachable, "can't connect to \(lastFailure)")
    }

    /// The connection attempt to the address has ended.
    private func connected() {
        let code = Socket.failure(descriptor)
        if code != 0 {
            lastFailure =
                "\(transport.settings.origin.authority): \(String(cString: strerror(code)))"
            closeSocket()
            return tryNextAddress()
        }
        state = .open
        addresses = []
        exchange?.settle()
        updateTimer()
    }

    // MARK: EventHandler

    func ready(_ events: Readiness) {
        if events.contains(.readable) { isReadable = true }
        if events.contains(.writable) { isWritable = true }
        if events.contains(.hangup) {
            isReadable = true
            hasHangup = true
        }
        if state == .connecting {
            if isWritable || hasHangup { connected() }
            return
        }
        guard let exchange else {
            // No response is expected, so this is an end, an error, or bytes that must not be read as a response.
            if isReadable { transport.discard(self) }
            return
        }
        exchange.settle()
        updateTimer()
    }

    /// Lets the exchange continue at the end of the batch.
    func markDirty() {
        guard !isDirty else { return }
        isDirty = true
        loop.markDirty(self)
    }

    func settle() {
        isDirty = false
        guard state == .open, let exchange else { return }
        exchange.settle()
        updateTimer()
    }

    // MARK: Bytes

    /// Whether the socket is connected and may accept bytes.
    var canSend: Bool { state == .open && isWritable }

    /// Whether a read may return something.
    var canReceive: Bool { state == .open && isReadable }

    /// Writes `head` and then `body` with one system call.
    /// - Returns: The number of bytes written, of both together.
    func send(_ head: UnsafeRawBufferPointer, _ body: UnsafeRawBufferPointer) throws(SystemError)
        -> Int
    {
        let wanted = head.count + body.count
        guard canSend, wanted > 0 else { return 0 }
        while true {
            let count =
                head.isEmpty ? sendOne(body) : body.isEmpty ? sendOne(head) : sendBoth(head, body)
            if count >= 0 {
                if count < wanted { isWritable = false }
                return count
            }
            switch errno {
            case EINTR: continue
            case EAGAIN:
                isWritable = false
                return 0
            default:
                let error = SystemError("send")
                // A response that the upstream sent before it closed may still be readable.
                isReadable = true
                throw error
            }
        }
    }

    private func sendOne(_ bytes: UnsafeRawBufferPointer) -> Int {
        Glibc.send(descriptor, bytes.baseAddress, bytes.count, Int32(MSG_NOSIGNAL))
    }

    private func sendBoth(_ head: UnsafeRawBufferPointer, _ body: UnsafeRawBufferPointer) -> Int {
        var parts = (
            iovec(iov_base: .init(mutating: head.baseAddress), iov_len: head.count),
            iovec(iov_base: .init(mutating: body.baseAddress), iov_len: body.count)
        )
        return withUnsafeMutablePointer(to: &parts) { pointer in
            pointer.withMemoryRebound(to: iovec.self, capacity: 2) { vectors in
                var message = msghdr()
                message.msg_iov = vectors
                message.msg_iovlen = 2
                return sendmsg(descriptor, &message, Int32(MSG_NOSIGNAL))
            }
        }
    }

    /// Reads available bytes into `buffer`.
    /// - Parameter isLast: Whether nothing may follow these bytes. If something does, it is not read as a response,
    ///   and the connection is not used again.
    func receive(into buffer: UnsafeMutableRawBufferPointer, isLast: Bool = false) -> Received {
        while canReceive {
            let count =
                isLast
                ? receiveLast(buffer) : recv(descriptor, buffer.baseAddress, buffer.count, 0)
            if count > 0 {
                let wanted = isLast ? buffer.count + 1 : buffer.count
                if count < wanted && !hasHangup { isReadable = false }
                if count > buffer.count { hasGarbage = true }
                return .bytes(min(count, buffer.count))
            }
            if count == 0 {
                hasHangup = true
                return .end
            }
            switch errno {
            case EINTR: continue
            case EAGAIN: isReadable = false
            default: return .failed(SystemError("recv"))
            }
        }
        return .wait
    }

    /// Reads one byte more than expected.
    private func receiveLast(_ buffer: UnsafeMutableRawBufferPointer) -> Int {
        var surplus: UInt8 = 0
        return withUnsafeMutablePointer(to: &surplus) { surplus in
            var parts = (
                iovec(iov_base: buffer.baseAddress, iov_len: buffer.count),
                iovec(iov_base: surplus, iov_len: 1)
            )
            return withUnsafePointer(to: &parts) { pointer in
                pointer.withMemoryRebound(to: iovec.self, capacity: 2) {
                    readv(descriptor, $0, 2)
                }
            }
        }
    }

    /// Whether there is nothing to read and the upstream has not closed the connection, as far as the kernel knows.
    var isQuiet: Bool {
        var byte: UInt8 = 0
        let flags = Int32(MSG_PEEK | MSG_DONTWAIT)
        return recv(descriptor, &byte, 1, flags) < 0 && errno == EAGAIN
    }

    /// The number of bytes that the kernel has not delivered to the upstream yet.
    var unacknowledged: Int { Socket.unacknowledged(descriptor) }

    // MARK: Exchanges

    /// Starts another exchange.
    func carry(_ next: HTTP1Exchange) {
        exchange = next
        isReused = true
        markDirty()
    }

    /// Ends the exchange after its response. The connection becomes idle, or is closed if it can't be used again.
    func release() {
        exchange = nil
        guard state == .open, !hasGarbage, !hasHangup, !isReadable || isQuiet else {
            return transport.discard(self)
        }
        isReadable = false
        idleSince = loop.now
        transport.rest(self)
        updateTimer()
    }

    private func fail(_ code: ClientError.Code, _ cause: String) {
        let failed = exchange
        exchange = nil
        transport.discard(self)
        failed?.connectionFailed(code, cause)
    }

    /// Closes the socket; returns false if it was closed already. Only called by the transport, which counts
    /// connections.
    func close() -> Bool {
        guard state != .closed else { return false }
        state = .closed
        exchange = nil
        if let timer { loop.disarm(timer) }
        timer = nil
        closeSocket()
        return true
    }

    private func closeSocket() {
        if let registration { loop.deregister(registration) }
        registration = nil
        if descriptor >= 0 { Socket.close(descriptor) }
        descriptor = -1
    }

    // MARK: Time

    private var deadline: UInt64 {
        switch state {
        case .resolving: connectDeadline
        case .connecting: min(connectDeadline, addressDeadline)
        case .open: exchange?.deadline ?? idleSince &+ transport.settings.idleTimeout
        case .closed: .max
        }
    }

    /// Arms the timer if the next deadline is earlier now. A later deadline is noticed when the timer fires.
    func updateTimer() {
        let wanted = deadline
        guard wanted < armedFor, let timer else { return }
        armedFor = wanted
        loop.arm(timer, after: wanted > loop.now ? wanted - loop.now : 0)
    }

    private func timerFired() {
        armedFor = .max
        guard deadline <= loop.now else { return updateTimer() }
        switch state {
        case .resolving, .connecting:
            guard state == .connecting, connectDeadline > loop.now, !addresses.isEmpty else {
                return fail(.timedOut, "no connection in time")
            }
            lastFailure = "\(transport.settings.origin.authority): no response in time"
            closeSocket()
            tryNextAddress()
        case .open:
            guard let exchange else { return transport.discard(self) }
            exchange.expired(self)
            updateTimer()
        case .closed: break
        }
    }
}
