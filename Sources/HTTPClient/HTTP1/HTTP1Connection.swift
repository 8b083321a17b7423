import Glibc
import System

/// One socket to an upstream in clear text: connecting, moving bytes, and the time-outs of both. It carries one
/// exchange after the other and rests in its transport between them. Confined to its loop.
final class HTTP1Connection: EventHandler {
    private enum State {
        case resolving, connecting, open, closed
    }
    /// What a read from the socket came to.
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
    /// What it carries; nil while it rests.
    @exclusivity(unchecked) private var exchange: HTTP1Exchange?
    /// Whether an exchange before this one completed on it: the upstream may have closed it meanwhile.
    private(set) var isReused = false
    private var isReadable = false
    private var isWritable = false
    private var hasHangup = false
    /// Whether bytes came that belong to no response.
    private var hasGarbage = false
    private var isDirty = false
    private var addresses: ArraySlice<SocketAddress> = []
    /// Why the address before was given up.
    private var lastFailure = "no address"
    /// When the connection must be there, and when the address that is tried is given up for the next.
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

    /// Tries the addresses in turn. None: the name is not known.
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

    /// The kernel has decided on the address.
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
            // Nothing was asked: it is an end, an error, or what no client should read.
            if isReadable { transport.discard(self) }
            return
        }
        exchange.settle()
        updateTimer()
    }

    /// Has the exchange go on at the end of the batch.
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

    /// Whether the socket is there and may take bytes.
    var canSend: Bool { state == .open && isWritable }

    /// Whether a read may find something.
    var canReceive: Bool { state == .open && isReadable }

    /// Gives bytes to the kernel, `head` before `body`, in one call.
    /// - Returns: How many it took, of both together.
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
                // What the upstream said before it closed may still be there.
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

    /// Reads what is there into `buffer`.
    /// - Parameter isLast: Whether nothing may follow these bytes. What does makes the connection unfit for another
    ///   request, and is not read as a response to it.
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

    /// Asks for one byte more than there may be.
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

    /// Whether nothing waits to be read and the upstream has not closed, as far as the kernel knows now.
    var isQuiet: Bool {
        var byte: UInt8 = 0
        let flags = Int32(MSG_PEEK | MSG_DONTWAIT)
        return recv(descriptor, &byte, 1, flags) < 0 && errno == EAGAIN
    }

    /// Bytes that the kernel still has to bring to the upstream.
    var unacknowledged: Int { Socket.unacknowledged(descriptor) }

    // MARK: Exchanges

    /// Carries another exchange.
    func carry(_ next: HTTP1Exchange) {
        exchange = next
        isReused = true
        markDirty()
    }

    /// The exchange has its response. The connection rests, or is closed where it can't carry another.
    func release(reusable: Bool) {
        exchange = nil
        guard state == .open, reusable, !hasGarbage, !hasHangup, !isReadable || isQuiet else {
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

    /// Closes the socket; false where it was closed already. Only the transport calls it, which keeps count.
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

    /// Arms the timer where the next deadline came nearer; one that moved away is seen when it fires.
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
            lastFailure = "\(transport.settings.origin.authority): no answer in time"
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
