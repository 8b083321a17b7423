import Glibc
import System

/// A socket of a trusted proxy, until its first bytes show whether it begins with a PROXY header. Confined to its loop.
final class ProxiedSocket: EventHandler {
    /// Called once, which gives the descriptor to the caller, with the peer named by the header, or the proxy itself;
    /// nil if the socket is to be closed.
    private let completion: (ProxiedSocket, Peer?) -> Void
    private let context: LoopContext
    let descriptor: Int32
    let proxy: Peer
    private let proxies: TrustedProxies
    private var registration: Registration?
    private var timer: LoopTimer?
    private var hasEnded = false
    private var isOver = false
    /// Whether the first bytes begin like a header but are malformed.
    private(set) var isMalformed = false

    init(
        _ context: LoopContext, _ descriptor: Int32, _ proxy: Peer, _ proxies: TrustedProxies,
        _ completion: @escaping (ProxiedSocket, Peer?) -> Void
    ) {
        self.context = context
        self.descriptor = descriptor
        self.proxy = proxy
        self.proxies = proxies
        self.completion = completion
    }

    /// Waits for the first bytes for up to ``ServerLimits/handshakeTimeout``.
    func begin() {
        do throws(SystemError) {
            registration = try context.loop.register(descriptor, self)
        } catch {
            return finish(nil)
        }
        let timer = LoopTimer { [unowned self] in
            context.statistics.hit(.handshakeTimeout)
            finish(nil)
        }
        self.timer = timer
        context.loop.arm(timer, after: context.limits.handshakeTimeout)
        context.loop.markDirty(self)
    }

    func ready(_ events: Readiness) {
        if events.contains(.hangup) { hasEnded = true }
        context.loop.markDirty(self)
    }

    /// Peeks at the bytes, because those after the header belong to the connection.
    func settle() {
        guard !isOver else { return }
        let input = context.input
        let count = recv(descriptor, input.baseAddress, ProxyHeader.limit, Int32(MSG_PEEK))
        if count < 0 && (errno == EAGAIN || errno == EINTR) {
            if errno == EINTR { context.loop.markDirty(self) }
            return
        }
        guard count > 0 else { return finish(nil) }
        switch ProxyHeader(UnsafeRawBufferPointer(rebasing: input[..<count])) {
        case .absent: finish(proxy)
        case .incomplete: if hasEnded { finish(nil) }
        case .malformed:
            context.statistics.protocolError()
            isMalformed = true
            finish(nil)
        case .complete(let length, let client, let port):
            guard recv(descriptor, input.baseAddress, length, 0) == length else {
                return finish(nil)
            }
            finish(client.map { Peer($0, port: port, proxies) } ?? proxy)
        }
    }

    func cancel() { finish(nil) }

    private func finish(_ peer: Peer?) {
        guard !isOver else { return }
        isOver = true
        if let timer { context.loop.disarm(timer) }
        if let registration { context.loop.deregister(registration) }
        completion(self, peer)
    }
}
