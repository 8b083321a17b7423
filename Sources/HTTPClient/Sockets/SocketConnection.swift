import Glibc
import OpenSSL
import System

/// The user of a connection: one HTTP/1.1 exchange at a time, or an HTTP/2 session.
protocol ConnectionUser: AnyObject {
    /// The connection has opened, may be able to move bytes, or was marked.
    func settle()
    /// The next deadline while the connection is open.
    var deadline: UInt64 { get }
    func expired(_ connection: SocketConnection)
    func connectionFailed(_ code: ClientError.Code, _ cause: String, isUntrusted: Bool)
}

/// A socket to an upstream with an optional TLS session: it connects, moves bytes, and enforces the timeouts of both.
/// Without a user it is idle. Confined to its loop.
final class SocketConnection: EventHandler {
    private enum State {
        case resolving, connecting, handshaking, open, closed
    }
    let transport: SocketTransport
    private let loop: EventLoop
    private var state = State.resolving
    private(set) var descriptor: Int32 = -1
    /// nil in clear text, and before the socket is connected.
    private(set) var session: TLSClientSession?
    private var registration: Registration?
    private let offersHTTP2: Bool
    /// The exchange or session; nil while it is idle.
    private var user: (any ConnectionUser)?
    /// Whether an earlier exchange has completed on it. If so, the upstream may have closed it meanwhile.
    private(set) var isReused = false
    /// The socket's readiness; with TLS, the session tracks it.
    var isReadable = false
    var isWritable = false
    var coalescing = ReceiveCoalescing()
    var hasHangup = false
    /// Whether bytes were received that belong to no response.
    var hasGarbage = false
    var isOpen: Bool { state == .open }
    private var isDirty = false
    private var addresses: ArraySlice<SocketAddress> = []
    private var lastFailure = "no address"
    /// The deadlines of the connection and of the current address.
    private var connectDeadline: UInt64
    private var addressDeadline: UInt64 = .max
    private var idleSince: UInt64 = 0
    private var timer: LoopTimer?
    private var armedFor: UInt64 = .max

    init(
        _ transport: SocketTransport, _ loop: EventLoop, for user: any ConnectionUser,
        offersHTTP2: Bool
    ) {
        self.transport = transport
        self.loop = loop
        self.user = user
        self.offersHTTP2 = offersHTTP2
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

    private func connected() {
        let code = Socket.failure(descriptor)
        if code != 0 {
            lastFailure = "\(transport.settings.origin.authority): \(String(cString: strerror(code)))"
            closeSocket()
            return tryNextAddress()
        }
        addresses = []
        guard let tls = transport.tls else { return opened() }
        state = .handshaking
        do throws(TLSError) {
            let new = try TLSClientSession(try tls.context(), descriptor: descriptor, offersHTTP2: offersHTTP2)
            new.socketIsReady(readable: isReadable, writable: true, hangup: hasHangup)
            session = new
        } catch {
            return fail(.unreachable, error.description)
        }
        shakeHands()
    }

    /// Continues the TLS handshake. A failure is final: another address would have the same certificate.
    private func shakeHands() {
        guard let session else { return }
        do throws(TLSError) {
            if try session.handshake() { opened() }
        } catch {
            fail(.unreachable, error.description, isUntrusted: session.isUntrusted)
        }
    }

    private func opened() {
        state = .open
        user?.settle()
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
        session?.socketIsReady(
            readable: events.contains(.readable), writable: events.contains(.writable), hangup: hasHangup)
        switch state {
        case .connecting:
            if isWritable || hasHangup { connected() }
            return
        case .handshaking: return shakeHands()
        case .resolving, .open, .closed: break
        }
        guard let user else {
            // No response is expected: this is an end, an error, a TLS ticket, or bytes that must not be read as a
            // response.
            if canReceive, !isQuiet() { transport.discard(self) }
            return
        }
        user.settle()
        updateTimer()
    }

    /// Lets the user continue at the end of the batch.
    func markDirty() {
        guard !isDirty else { return }
        isDirty = true
        loop.markDirty(self)
    }

    func settle() {
        isDirty = false
        guard state == .open, let user else { return }
        user.settle()
        updateTimer()
    }

    // MARK: What it carries

    func carry(_ next: HTTP1Exchange) {
        user = next
        markDirty()
    }

    /// Ends the exchange after its response. The connection becomes idle, or is closed if it can't be reused.
    /// - Parameter isUsed: Whether it carried anything.
    func release(isUsed: Bool = true) {
        user = nil
        isReused = isUsed
        coalescing.end(descriptor)
        guard state == .open, !hasGarbage, !hasHangup, !canReceive || isQuiet() else {
            return transport.discard(self)
        }
        idleSince = loop.now
        transport.rest(self)
        updateTimer()
    }

    private func fail(_ code: ClientError.Code, _ cause: String, isUntrusted: Bool = false) {
        let failed = user
        user = nil
        transport.discard(self)
        failed?.connectionFailed(code, cause, isUntrusted: isUntrusted)
    }

    /// Closes the socket; false if it was closed already. Only the transport calls it, and counts connections.
    func close() -> Bool {
        guard state != .closed else { return false }
        state = .closed
        user = nil
        if let timer { loop.disarm(timer) }
        timer = nil
        session?.shutdown()
        session = nil
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
        case .handshaking: connectDeadline
        case .open:
            min(
                user?.deadline ?? idleSince &+ transport.settings.idleTimeout, coalescing.deadline)
        case .closed: .max
        }
    }

    /// Arms the timer if the next deadline is earlier than the armed one. A later one is found when the timer fires.
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
        case .handshaking: fail(.timedOut, "no TLS handshake in time")
        case .resolving, .connecting:
            guard state == .connecting, connectDeadline > loop.now, !addresses.isEmpty else {
                return fail(.timedOut, "no connection in time")
            }
            lastFailure = "\(transport.settings.origin.authority): no response in time"
            closeSocket()
            tryNextAddress()
        case .open:
            guard let user else { return transport.discard(self) }
            if coalescing.deadline <= loop.now {
                coalescing.expired()
                lookAgain()
                user.settle()
            } else {
                user.expired(self)
            }
            updateTimer()
        case .closed: break
        }
    }
}
