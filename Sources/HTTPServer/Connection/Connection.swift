import Glibc
import OpenSSL
import System

/// One accepted socket: TLS, choice of protocol, back-pressure in both directions, timeouts. Confined to its loop.
final class Connection: EventHandler {
    enum State {
        case handshaking, sniffing, open, lingering, closed
    }
    let context: LoopContext
    let listener: ListenerConfiguration
    let peer: Peer
    let descriptor: Int32
    let tls: TLSSession?
    /// The version of the listener's credentials when the session began.
    let credentialsVersion: Int
    /// nil if the client sent no certificate.
    var verified: VerifiedPeer?
    private var registration: Registration?
    var state: State {
        didSet { precondition(oldValue != .closed, "a connection that is closed stays closed") }
    }
    private(set) var engine: (any Engine)?
    private var sniffed: [UInt8] = []
    /// The number of bytes read, after decryption.
    private var received = 0
    private var isDirty = false
    var readable = true
    private var coalescing = ReceiveCoalescing()
    private var hasHangup = false
    private var isBroken = false
    /// Whether the first bytes do not look like HTTP in clear text.
    var isTLS = false
    /// Whether the peer has stopped sending.
    private var hasEnded = false
    private var output: SocketOutput
    /// When the current state began.
    private var stateSince: UInt64
    /// Set while the state is `lingering`.
    private var linger: LingerState?
    /// When the engine began to end.
    private var endingSince: UInt64?
    private var timer: LoopTimer?
    private var armedFor: UInt64 = .max

    init(
        _ context: LoopContext, descriptor: Int32, peer: Peer, tls: TLSSession?,
        credentialsVersion: Int, listener: ListenerConfiguration
    ) {
        self.context = context
        self.descriptor = descriptor
        output = SocketOutput(descriptor, context.queued)
        self.peer = peer
        self.tls = tls
        self.credentialsVersion = credentialsVersion
        self.listener = listener
        state = tls == nil ? .sniffing : .handshaking
        stateSince = context.loop.now
        context.live.created(.connection)
    }

    deinit {
        assert(state == .closed && engine == nil, "a connection is closed before it is released")
        context.live.destroyed(.connection)
    }

    func open() {
        context.loop.assertCurrent()
        do throws(SystemError) {
            registration = try context.loop.register(descriptor, self)
        } catch {
            Glibc.close(descriptor)
            state = .closed
            return
        }
        context.add(self)
        timer = LoopTimer { [unowned self] in timerFired() }
        markDirty()
    }

    var isSecure: Bool { tls != nil }
    var handler: RequestHandler { listener.handler }

    func markDirty() {
        guard !isDirty, state != .closed else { return }
        isDirty = true
        context.loop.markDirty(self)
    }

    /// Marks the connection dirty, but lets others run first.
    func postpone() {
        guard !isDirty, state != .closed else { return }
        isDirty = true
        context.loop.postpone(self)
    }

    // MARK: EventHandler

    func ready(_ events: Readiness) {
        if events.contains(.hangup) { hasHangup = true }
        if events.contains(.readable) || events.contains(.hangup) {
            readable = true
            tls?.socketIsReadable(hangup: hasHangup)
        }
        if events.contains(.writable) { output.isWritable = true }
        if events.contains(.broken) { isBroken = true }
        markDirty()
    }

    func settle() {
        guard state != .closed else { return }
        // isDirty stays set during reading: the flush below serves all reasons to be dirty.
        let wasBlocked = output.isBlocked
        let hasMore = readAvailable()
        isDirty = false
        if isBroken && !hasMore && isRead { return close() }
        flush()
        if hasMore { postpone() }
        if wasBlocked && !output.isBlocked { markDirty() }
        coalesce()
        updateTimer()
    }

    // MARK: Reading

    /// Whether all received bytes were read. A peer that has ended is not read again. A body's sink may delay reading.
    private var isRead: Bool { hasEnded || (engine?.waitingBytes ?? 0) == 0 }

    /// Reads until the kernel or the engine stops it. Returns whether it stopped only to let other connections run.
    private func readAvailable() -> Bool {
        var steps = 0
        let before = received
        while readable && state != .closed && !hasEnded {
            // TLS responds to some records by itself, and must not while the peer reads nothing.
            if isSecure && output.isBlocked && state != .lingering { return false }
            if let engine, state == .open {
                guard engine.wantsRead else { return false }
                if context.isOverBudget && engine.waitingBytes > 0 {
                    context.pause(self)
                    return false
                }
            }
            if LoopContext.isShare(steps: steps, bytes: received - before) { return true }
            steps += 1
            if state == .handshaking {
                handshake()
            } else if let tls, state != .lingering {
                steps += readEncrypted(tls) - 1
            } else {
                readPlain()
            }
        }
        return false
    }

    /// Decrypts records until the input is full, so that an engine sees as much at once as it does of clear text. Returns
    /// their number.
    private func readEncrypted(_ tls: TLSSession) -> Int {
        let input = UnsafeMutableRawBufferPointer(rebasing: context.input[..<readLimit])
        var (records, count) = (0, 0)
        var step = TLSStep.done(0)
        while case .done = step, count < input.count, records < Connection.recordsAtOnce, readable, !output.isBlocked {
            step = decrypt(tls, into: input[count...])
            drainTLS()
            guard state != .closed else { return records }
            records += 1
            switch step {
            case .done(let more):
                count += more
                readable = tls.canRead
            case .wantsRead: readable = false
            case .closed where count == 0: ended()
            case .failed where count == 0: close()
            // The next read finds the end again.
            case .closed, .failed: break
            }
        }
        if count > 0 { take(UnsafeMutableRawBufferPointer(rebasing: input[..<count])) }
        return records
    }

    /// The maximum number of records of one read, because a client may send small ones.
    private static let recordsAtOnce = 12

    // Not inlined: otherwise the optimizer of Swift 6.3 fails on the span.
    @inline(never)
    private func decrypt(_ tls: TLSSession, into free: Slice<UnsafeMutableRawBufferPointer>) -> TLSStep {
        var span = UnsafeMutableRawBufferPointer(rebasing: free).mutableBytes
        return tls.read(into: &span)
    }

    private var readLimit: Int { context.readLimit(expected: engine?.expectedBytes ?? 0) }

    private func readPlain() {
        let limit = readLimit
        let count = recv(descriptor, context.input.baseAddress, limit, 0)
        if count > 0 {
            if count < limit && !hasHangup { readable = false }
            take(UnsafeMutableRawBufferPointer(rebasing: context.input[..<count]))
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
        if linger != nil { return act(on: .peerEnded) }
        if engine == nil { return close() }
        engine?.receiveEnd()
    }

    private func take(_ bytes: UnsafeMutableRawBufferPointer) {
        received += bytes.count
        coalescing.received(bytes.count)
        switch state {
        case .lingering: act(on: .received(bytes.count, now: context.loop.now))
        case .sniffing: sniff(UnsafeRawBufferPointer(bytes))
        case .open:
            if engine == nil { engine = HTTP2Connection(self) }
            engine?.receive(bytes)
        case .handshaking, .closed: break
        }
    }

    private func sniff(_ bytes: UnsafeRawBufferPointer) {
        sniffed.append(contentsOf: bytes)
        switch ProtocolChoice(sniffed, isSecure: isSecure) {
        case .undecided: return
        case .http1: engine = HTTP1Connection(self)
        case .http2: engine = HTTP2Connection(self)
        }
        state = .open
        var first = sniffed
        sniffed = []
        first.withUnsafeMutableBytes { engine?.receive($0) }
    }

    /// Lets more of a long body arrive before the loop reports the socket.
    private func coalesce() {
        if state == .closed || readable && state == .open { return }
        guard state == .open, let expected = engine?.expectedBytes else {
            return coalescing.end(descriptor)
        }
        coalescing.wait(descriptor, for: expected, context.loop.now)
    }

    // MARK: Writing

    private func flush() {
        var (steps, bytes) = (0, 0)
        while state != .closed {
            if output.isBlocked && !writeUnsent() { return }
            if state == .lingering { act(on: .flushed) }
            guard state == .open, let engine else { return }
            let buffer = context.output
            buffer.reset(isSmall: context.isMuchQueued)
            engine.produce(buffer)
            if buffer.count > 0 {
                bytes += buffer.count
                send(buffer.bytes)
                if output.isBlocked { return }
            } else {
                let moved = isSecure ? .unsupported : engine.transfer(to: descriptor)
                if moved == .socketWaits {
                    output.isWritable = false
                    return
                }
                guard case .bytes(let count) = moved else { break }
                bytes += count
            }
            engine.flushed()
            steps += 1
            if LoopContext.isShare(steps: steps, bytes: bytes) { return postpone() }
        }
        if state == .open, let engine {
            engine.flushed()
            if engine.isFinished { beginLinger() }
        }
    }

    private func send(_ bytes: UnsafeRawBufferPointer) {
        guard let tls else { return write(bytes) }
        let step = tls.write(bytes.bytes)
        drainTLS()
        // Bytes that were not encrypted never reach the peer: the body would be short.
        guard case .done = step else { return close() }
    }

    func drainTLS() {
        context.tlsOutput.drain { span in span.withUnsafeBytes { write($0) } }
    }

    func write(_ bytes: UnsafeRawBufferPointer) {
        guard state != .closed else { return }
        switch output.write(bytes) {
        case .sent, .blocked: break
        case .failed: close()
        case .overflow:
            context.statistics.hit(.unsentBytes)
            close()
        }
    }

    /// Sends the queued bytes; false if some remain queued.
    private func writeUnsent() -> Bool {
        switch output.flush() {
        case .sent:
            engine?.flushed()
            return true
        case .blocked, .overflow: return false
        case .failed:
            close()
            return false
        }
    }

    // MARK: Ending

    /// Ends the connection gracefully. A first request may be in transit, so it has a short time to arrive.
    func beginDrain() {
        context.loop.assertCurrent()
        if let engine {
            engine.beginDrain()
        } else if state != .lingering {
            stateSince = context.loop.now
        }
        markDirty()
    }

    /// Ends the sending side, then reads and drops the peer's remaining bytes.
    func beginLinger() {
        let allowance = engine is HTTP2Connection ? LingerState.http2Allowance : Int.max
        engine?.connectionLost()
        engine = nil
        if let tls, state != .handshaking {
            tls.shutdown()
            drainTLS()
        }
        guard state != .closed else { return }
        if hasEnded && !output.isBlocked { return close() }
        linger = LingerState(
            now: context.loop.now, allowance: allowance, hasPeerEnded: hasEnded)
        state = .lingering
        markDirty()
    }

    private func act(on event: LingerState.Event) {
        switch linger?.handle(event) {
        case .endSending: shutdown(descriptor, Int32(SHUT_WR))
        case .close: close()
        case nil, .some(.none): break
        }
    }

    /// Closes the connection immediately.
    func close() {
        guard state != .closed else { return }
        context.loop.assertCurrent()
        assert(engine?.isInCallback != true, "a connection is not closed inside a callback of nghttp2")
        state = .closed
        engine?.connectionLost()
        engine = nil
        if let timer { context.loop.disarm(timer) }
        if let registration { context.loop.deregister(registration) }
        Glibc.close(descriptor)
        output.discard()
        context.remove(self)
    }

    // MARK: Time

    /// Nanoseconds within which the peer must read the last bytes.
    private static let endingTimeout: UInt64 = 2_000_000_000

    /// Arms the timer if the next deadline is earlier than the armed one. A later one is found when the timer fires.
    private func updateTimer() {
        guard state != .closed, let timer else { return }
        let now = context.loop.now
        if endingSince == nil && engine?.isEnding == true { endingSince = now }
        output.updateProgress(now)
        let wanted = nextDeadline()
        guard wanted < armedFor else { return }
        armedFor = wanted
        context.loop.arm(timer, after: wanted > now ? wanted - now : 0)
    }

    private func nextDeadline() -> UInt64 {
        let limits = context.limits
        return switch state {
        case .handshaking, .sniffing: firstRequestDeadline
        case .lingering: linger?.deadline(limits, isDraining: context.isDraining) ?? .max
        case .open:
            if let endingSince {
                endingSince + Connection.endingTimeout
            } else {
                min(engineDeadline, output.progressDeadline(limits), coalescing.deadline)
            }
        case .closed: .max
        }
    }

    private var engineDeadline: UInt64 { engine?.deadline(context.limits) ?? firstRequestDeadline }

    private var firstRequestDeadline: UInt64 {
        stateSince
            + (context.isDraining ? LingerState.drainGrace : context.limits.handshakeTimeout)
    }

    private func timerFired() {
        armedFor = .max
        let now = context.loop.now
        guard nextDeadline() <= now else { return updateTimer() }
        if state == .open, endingSince == nil, let engine {
            if output.isStuck(now, context.limits) {
                context.statistics.hit(.bodyProgress)
                return close()
            }
            if coalescing.deadline <= now {
                // Received bytes count as progress, so they are read before the engine checks its deadlines.
                coalescing.expired()
                readable = true
                tls?.socketIsReadable(hangup: hasHangup)
            } else if engineDeadline <= now {
                engine.expire(now)
            }
            // The flush that follows arms the timer again.
            return markDirty()
        }
        if state != .lingering && endingSince == nil { context.statistics.hit(.handshakeTimeout) }
        close()
    }
}
