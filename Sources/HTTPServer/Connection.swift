import EventLoop
import Glibc
import OpenSSL

/// A protocol on a connection: bytes in, bytes out when asked, and no I/O of its own.
protocol Engine: StreamOwner {
    /// Takes what the peer sent.
    func receive(_ bytes: UnsafeRawBufferPointer)
    /// The peer sends no more.
    func receiveEnd()
    /// Whether more bytes may be read now.
    var wantsRead: Bool { get }
    /// Bytes of bodies that wait for their sinks.
    var waitingBytes: Int { get }
    /// Places what is to be sent next into `output`, nothing where there is nothing now.
    func produce(_ output: OutputBuffer)
    /// Moves the next bytes of a body directly to the socket, in clear text; called where nothing was produced.
    func transfer(to socket: Int32) -> DirectTransfer
    /// All that was produced was given to the kernel.
    func flushed()
    /// Whether nothing of the peer is heeded any more: what is queued is sent, then the connection ends.
    var isEnding: Bool { get }
    /// Whether the connection ends once everything is flushed.
    var isFinished: Bool { get }
    /// The next moment at which something must have happened.
    func deadline(_ limits: ServerLimits) -> UInt64
    /// The deadline has passed.
    func expire(_ now: UInt64)
    /// Finish what is under way and take nothing new.
    func beginDrain()
    /// The connection is gone.
    func connectionLost()
}

/// One accepted socket: TLS if any, the choice of protocol, reading and writing with back-pressure, and time-outs.
/// Confined to its loop.
final class Connection: EventHandler {
    private enum State {
        case handshaking, sniffing, open, lingering, closed
    }
    let context: LoopContext
    private let listener: ListenerConfiguration
    /// The client's `host:port`.
    let peer: String
    private let descriptor: Int32
    private let tls: TLSSession?
    /// The version of the listener's credentials that the session was begun with.
    private let credentialsVersion: Int
    /// nil where the client showed no certificate.
    private(set) var verified: VerifiedPeer?
    // Of the properties below those that every turn touches have no check of exclusive access: nothing holds an access
    // to one of them while other code of the connection runs.
    @exclusivity(unchecked) private var registration: Registration?
    private var state: State {
        didSet { precondition(oldValue != .closed, "a connection that is closed stays closed") }
    }
    @exclusivity(unchecked) private var engine: (any Engine)?
    private var sniffed: [UInt8] = []
    private var isDirty = false
    private var readable = true
    private var writable = true
    private var hasHangup = false
    private var hasEnded = false
    private var hasFailed = false
    private var hasEndedSending = false
    @exclusivity(unchecked) private var unsent: [UInt8] = []
    private var unsentPlace = 0
    /// Bytes given to the kernel, how many they were at the last look at a peer that does not take them, and when.
    private var sentBytes: UInt64 = 0
    @exclusivity(unchecked) private var sentMark: (bytes: UInt64, time: UInt64)?
    private var lingered = 0
    private var stateSince: UInt64
    /// When the engine began to end, where it did.
    @exclusivity(unchecked) private var endingSince: UInt64?
    @exclusivity(unchecked) private var timer: LoopTimer?
    private var armedFor: UInt64 = .max

    init(
        _ context: LoopContext, descriptor: Int32, peer: String, tls: TLSSession?,
        credentialsVersion: Int, listener: ListenerConfiguration
    ) {
        self.context = context
        self.descriptor = descriptor
        self.peer = peer
        self.tls = tls
        self.credentialsVersion = credentialsVersion
        self.listener = listener
        state = tls == nil ? .sniffing : .handshaking
        stateSince = context.loop.now
    }

    /// Registers with the loop and begins.
    func open() {
        do throws(SystemError) {
            registration = try context.loop.register(descriptor, self)
        } catch {
            Glibc.close(descriptor)
            return
        }
        context.add(self)
        timer = LoopTimer { [unowned self] in timerFired() }
        markDirty()
    }

    var isSecure: Bool { tls != nil }
    var handler: RequestHandler { listener.handler }

    /// Tells who listens that a request was refused before any handler saw it; `head` has what was read of it.
    func refused(_ refusal: Refusal, _ body: [UInt8], of head: RequestHead?, _ version: HTTPVersion)
    {
        listener.onRefusal(
            RefusedRequest(
                requestId: refusal.instance, method: head?.method ?? "",
                target: head?.target ?? "", status: refusal.status, code: refusal.code,
                reason: refusal.detail,
                bodyBytes: body.count, version: version, isSecure: isSecure, peer: peer))
    }
    private var isBlocked: Bool { unsentPlace < unsent.count }

    func markDirty() {
        guard !isDirty, state != .closed else { return }
        isDirty = true
        context.loop.markDirty(self)
    }

    /// Bytes that may wait for the kernel: one output buffer with its records, and what TLS answers by itself.
    private static let maximumUnsent = 256 * 1024

    // MARK: EventHandler

    func ready(_ events: Readiness) {
        if events.contains(.readable) { readable = true }
        if events.contains(.writable) { writable = true }
        if events.contains(.hangup) {
            readable = true
            hasHangup = true
        }
        markDirty()
    }

    func settle() {
        guard state != .closed else { return }
        // While it reads, the connection stays listed: the flush below serves whatever marks it dirty.
        let wasBlocked = isBlocked
        let hasMore = readAvailable()
        isDirty = false
        flush()
        if hasMore || (wasBlocked && !isBlocked) { markDirty() }
        updateTimer()
    }

    // MARK: Reading

    /// Reads until the kernel has no more or the engine wants no more; true where it stopped to let others run.
    private func readAvailable() -> Bool {
        var rounds = 0
        while readable && state != .closed && !hasEnded {
            // TLS answers some of what it reads by itself: it must not, while the peer takes nothing.
            if isSecure && isBlocked { return false }
            if let engine, state == .open {
                guard engine.wantsRead else { return false }
                if context.isOverBudget && engine.waitingBytes > 0 {
                    context.pause(self)
                    return false
                }
            }
            if rounds == 4 { return true }
            rounds += 1
            if state == .handshaking {
                handshake()
            } else if tls != nil {
                readEncrypted()
            } else {
                readPlain()
            }
        }
        return false
    }

    private func handshake() {
        guard let tls else { return }
        let step = tls.handshake()
        let refusal = step == .failed ? tls.peerRefusal : nil
        drainTLS()
        if let refusal { listener.onUntrusted(peer, refusal) }
        // What was drained may have found the peer gone.
        guard state == .handshaking else { return }
        switch step {
        case .done:
            do throws(TLSError) {
                try identify(tls)
                state = tls.choseHTTP2 ? .open : .sniffing
            } catch {
                listener.onUntrusted(peer, error.description)
                context.statistics.handshakeFailed()
                close()
            }
        case .wantsRead: readable = false
        case .closed, .failed:
            context.statistics.handshakeFailed()
            close()
        }
    }

    private func identify(_ tls: TLSSession) throws(TLSError) {
        guard let identify = listener.identify, let certificate = try tls.peerCertificate() else {
            return
        }
        verified = VerifiedPeer(
            certificate, identity: identify(certificate), version: credentialsVersion,
            now: context.loop.now)
    }

    /// A request begins. Returns whether the connection is to end with its answer.
    func checkCertificate() -> Bool {
        guard verified != nil, let tls, let credentials = listener.credentials else { return false }
        return verified?.check(tls, credentials, now: context.loop.now) ?? false
    }

    // Not inlined: the optimizer of Swift 6.3 fails on the span otherwise.
    @inline(never)
    private func readEncrypted() {
        let input = context.input
        var span = input.mutableBytes
        let step = tls!.read(into: &span)
        drainTLS()
        guard state != .closed else { return }
        switch step {
        case .done(let count):
            take(UnsafeRawBufferPointer(rebasing: input[..<count]))
        case .wantsRead: readable = false
        case .closed: ended()
        case .failed: close()
        }
    }

    private func readPlain() {
        let count = recv(descriptor, context.input.baseAddress, context.input.count, 0)
        if count > 0 {
            if count < context.input.count && !hasHangup { readable = false }
            take(UnsafeRawBufferPointer(rebasing: context.input[..<count]))
        } else if count == 0 {
            ended()
        } else if errno == EAGAIN {
            readable = false
        } else if errno != EINTR {
            close()
        }
    }

    private func ended() {
        hasEnded = true
        readable = false
        if state == .lingering || engine == nil { return close() }
        engine?.receiveEnd()
    }

    private func take(_ bytes: UnsafeRawBufferPointer) {
        switch state {
        case .lingering:
            lingered += bytes.count
            if lingered > 1 << 20 { close() }
        case .sniffing: sniff(bytes)
        case .open:
            if engine == nil { engine = HTTP2Connection(self) }
            engine?.receive(bytes)
        case .handshaking, .closed: break
        }
    }

    /// Chooses the protocol by the first bytes: HTTP/2's preface begins with a method nobody else uses.
    private func sniff(_ bytes: UnsafeRawBufferPointer) {
        sniffed.append(contentsOf: bytes)
        let preface: StaticString = "PRI "
        let count = min(sniffed.count, 4)
        let isPreface = preface.withUTF8Buffer {
            $0.prefix(count).elementsEqual(sniffed.prefix(count))
        }
        if isPreface && count < 4 { return }
        engine = isPreface ? HTTP2Connection(self) : HTTP1Connection(self)
        state = .open
        let first = sniffed
        sniffed = []
        first.withUnsafeBytes { engine?.receive($0) }
    }

    // MARK: Writing

    private func flush() {
        var rounds = 0
        while state != .closed {
            if isBlocked && !writeUnsent() { return }
            if state == .lingering { endSending() }
            guard state == .open, let engine else { return }
            let output = context.output
            output.reset()
            engine.produce(output)
            if output.count > 0 {
                send(output.bytes)
                if isBlocked { return }
            } else {
                let moved = isSecure ? .unsupported : engine.transfer(to: descriptor)
                if moved == .socketWaits {
                    writable = false
                    return
                }
                guard case .bytes = moved else { break }
            }
            engine.flushed()
            rounds += 1
            if rounds == 4 { return markDirty() }
        }
        if state == .open, let engine {
            engine.flushed()
            if engine.isFinished { linger() }
        }
    }

    private func send(_ bytes: UnsafeRawBufferPointer) {
        guard let tls else { return write(bytes) }
        let step = tls.write(bytes.bytes)
        drainTLS()
        // Whatever was not encrypted is lost to the peer: the body would be short.
        guard case .done = step else { return close() }
    }

    private func drainTLS() {
        context.tlsOutput.drain { span in span.withUnsafeBytes { write($0) } }
    }

    /// Gives bytes to the kernel; what it does not take is kept.
    private func write(_ bytes: UnsafeRawBufferPointer) {
        guard state != .closed else { return }
        let place = isBlocked ? 0 : give(bytes, from: 0)
        if hasFailed { return close() }
        if unsent.count - unsentPlace + bytes.count - place > Connection.maximumUnsent {
            context.statistics.hit(.unsentBytes)
            return close()
        }
        if place < bytes.count { unsent.append(contentsOf: bytes[place...]) }
    }

    /// Gives the kernel what it did not take before; false while it still does not take all of it.
    private func writeUnsent() -> Bool {
        guard writable else { return false }
        unsentPlace = unsent.withUnsafeBytes { give($0, from: unsentPlace) }
        if hasFailed { close() }
        guard state != .closed, unsentPlace == unsent.count else { return false }
        unsent = []
        unsentPlace = 0
        engine?.flushed()
        return true
    }

    /// Sends from `start` on as far as the kernel takes it; returns where it stopped.
    private func give(_ bytes: UnsafeRawBufferPointer, from start: Int) -> Int {
        var place = start
        while place < bytes.count {
            let count = Glibc.send(
                descriptor, bytes.baseAddress! + place, bytes.count - place, Int32(MSG_NOSIGNAL))
            if count >= 0 {
                place += count
                sentBytes &+= UInt64(count)
            } else if errno == EAGAIN {
                writable = false
                break
            } else if errno != EINTR {
                hasFailed = true
                break
            }
        }
        return place
    }

    // MARK: Ending

    /// A connection on which nothing was asked yet may have its first request on the way: it gets a moment.
    func beginDrain() {
        if let engine { engine.beginDrain() } else { stateSince = context.loop.now }
        markDirty()
    }

    /// Ends the sending side and waits a moment for the peer to end its own, so that what was sent last is not
    /// destroyed by a reset.
    private func linger() {
        engine?.connectionLost()
        engine = nil
        if let tls {
            tls.shutdown()
            drainTLS()
        }
        guard state != .closed else { return }
        if hasEnded && !isBlocked { return close() }
        state = .lingering
        stateSince = context.loop.now
        markDirty()
    }

    /// Everything was given to the kernel, the end of TLS too.
    private func endSending() {
        guard !hasEndedSending else { return }
        hasEndedSending = true
        shutdown(descriptor, Int32(SHUT_WR))
        if hasEnded { close() }
    }

    /// Ends the connection now.
    func close() {
        guard state != .closed else { return }
        state = .closed
        engine?.connectionLost()
        engine = nil
        if let timer { context.loop.disarm(timer) }
        if let registration { context.loop.deregister(registration) }
        Glibc.close(descriptor)
        unsent = []
        context.remove(self)
    }

    // MARK: Time

    /// How long a peer may take to accept the last bytes and to end its own side.
    private static let endingTimeout: UInt64 = 2_000_000_000

    /// How long a connection without a request stays once a drain has begun.
    private static let drainGrace: UInt64 = 1_000_000_000

    /// Arms the timer where the next deadline came nearer; a deadline that moved away is seen when it fires.
    private func updateTimer() {
        guard state != .closed, let timer else { return }
        let now = context.loop.now
        if endingSince == nil && engine?.isEnding == true { endingSince = now }
        if !isBlocked { sentMark = nil } else if sentMark == nil { sentMark = (sentBytes, now) }
        let wanted = nextDeadline()
        guard wanted < armedFor else { return }
        armedFor = wanted
        context.loop.arm(timer, after: wanted > now ? wanted - now : 0)
    }

    private func nextDeadline() -> UInt64 {
        switch state {
        case .handshaking, .sniffing: firstRequestDeadline
        case .lingering: stateSince + Connection.endingTimeout
        case .open:
            if let endingSince {
                endingSince + Connection.endingTimeout
            } else {
                min(
                    engineDeadline,
                    sentMark.map { $0.time + context.limits.progressInterval } ?? .max)
            }
        case .closed: .max
        }
    }

    private var engineDeadline: UInt64 {
        engine?.deadline(context.limits) ?? firstRequestDeadline
    }

    private var firstRequestDeadline: UInt64 {
        stateSince
            + (context.isDraining ? Connection.drainGrace : context.limits.handshakeTimeout)
    }

    /// Whether the peer has taken nearly nothing of what was sent for a whole interval. The engine's own looks are
    /// not enough: a reset that can't be sent ends no stream.
    private func isStuck(_ now: UInt64) -> Bool {
        guard let mark = sentMark, mark.time + context.limits.progressInterval <= now else {
            return false
        }
        sentMark = isBlocked ? (sentBytes, now) : nil
        return isBlocked && sentBytes - mark.bytes < context.limits.minimumProgress
    }

    private func timerFired() {
        armedFor = .max
        let now = context.loop.now
        guard nextDeadline() <= now else { return updateTimer() }
        if state == .open, endingSince == nil, let engine {
            if isStuck(now) {
                context.statistics.hit(.bodyProgress)
                return close()
            }
            if engineDeadline <= now { engine.expire(now) }
            // The flush that follows arms the timer again.
            return markDirty()
        }
        if state != .lingering && endingSince == nil { context.statistics.hit(.handshakeTimeout) }
        close()
    }
}
