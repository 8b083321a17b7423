import Glibc
import System

@testable import HTTPServer

/// Sends a client's bytes to a real connection that detects its protocol, as the clear-text port does.
func fuzzConnection(_ bytes: [UInt8]) { converse(bytes) }

/// Sends a client's frames, after the preface, to a real HTTP/2 connection.
func fuzzHTTP2(_ bytes: [UInt8]) {
    converse(Array("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".utf8) + [0, 0, 0, 4, 0, 0, 0, 0, 0] + bytes)
}

/// Sends `bytes` in two pieces, reads the responses, and runs the loop until the server has closed. Afterwards no
/// stream, waiting byte or grown window may be left.
private func converse(_ bytes: [UInt8]) {
    guard bytes.count <= 64 * 1024 else { return }
    var pair: [Int32] = [-1, -1]
    let type = Int32(SOCK_STREAM.rawValue | SOCK_NONBLOCK.rawValue | SOCK_CLOEXEC.rawValue)
    guard socketpair(AF_UNIX, type, 0, &pair) == 0, let loop = try? EventLoop() else {
        fatalError()
    }
    let statistics = ServerStatistics()
    let context = LoopContext(loop: loop, limits: ServerLimits(), statistics: statistics)
    let client = Client(loop, pair[1], bytes)
    client.open()
    let listener = ListenerConfiguration(
        address: SocketAddress("127.0.0.1:0")!, handler: answer)
    Connection(
        context, descriptor: pair[0], peer: Peer(pair[0], listener.address, TrustedProxies()),
        tls: nil, credentialsVersion: 0, listener: listener
    ).open()
    var check: LoopTimer?
    check = LoopTimer {
        if statistics.openConnections == 0 && runningHandlers == 0 { return loop.stop() }
        check.map { loop.arm($0, after: 0) }
    }
    check.map { loop.arm($0, after: 0) }
    loop.run()
    check = nil
    client.close()
    precondition(statistics.liveStreams == 0)
    for object in LiveObject.allCases { precondition(statistics.live(object) == 0, "a leak") }
    precondition(context.waitingBytes == 0 && context.grownWindows == 0)
}

/// Safety: libFuzzer runs one input after the other, each on this one thread.
nonisolated(unsafe) private var runningHandlers = 0

/// Responds like a gateway: uploads go to a slow sink, downloads come from a slow source.
private let answer: RequestHandler = { exchange in
    runningHandlers += 1
    defer { runningHandlers -= 1 }
    switch exchange.head.method {
    case "PUT":
        var head = ResponseHead(status: 200)
        do {
            head.fields.append(
                "x-size", try await exchange.receive(into: Slow(exchange.loop), limit: 20_000))
        } catch {
            head.status = 400
        }
        await exchange.respond(head)
    case "DELETE": await exchange.respond(ResponseHead(status: 204))
    default:
        await exchange.respond(
            ResponseHead(status: 200), .source(Slow(exchange.loop), length: 3000))
    }
}

/// Accepts or produces up to 700 bytes at a time. Confined to its loop.
///
/// Safety: the handler's task and the connection run on that loop alone.
private final class Slow: ByteSink, ByteSource, @unchecked Sendable {
    private let loop: EventLoop
    private var isReady = true

    init(_ loop: EventLoop) { self.loop = loop }

    func write(_ bytes: RawSpan) -> Int {
        guard isReady else { return 0 }
        isReady = bytes.byteCount <= 700
        return min(bytes.byteCount, 700)
    }

    func whenWritable(_ resume: @escaping () -> Void) { later(resume) }

    func read(into buffer: inout MutableRawSpan) -> SourceRead {
        guard isReady else { return .wait }
        isReady = false
        return .bytes(min(buffer.byteCount, 700))
    }

    func whenReadable(_ resume: @escaping () -> Void) { later(resume) }

    func close() {}

    private func later(_ resume: @escaping () -> Void) {
        let timer = LoopTimer { [self] in
            isReady = true
            resume()
        }
        loop.arm(timer, after: 0)
    }
}

/// The client's end of the connection. Confined to its loop.
private final class Client: EventHandler {
    private let loop: EventLoop
    private let descriptor: Int32
    private var parts: [ArraySlice<UInt8>]
    private var registration: Registration?

    init(_ loop: EventLoop, _ descriptor: Int32, _ bytes: [UInt8]) {
        self.loop = loop
        self.descriptor = descriptor
        let middle = bytes.count - Int(bytes.last ?? 0) % max(1, bytes.count)
        parts = [bytes[middle...], bytes[..<middle]]
    }

    func open() {
        registration = try? loop.register(descriptor, self)
        loop.markDirty(self)
    }

    func ready(_ events: Readiness) {
        var buffer = [UInt8](repeating: 0, count: 65536)
        while recv(descriptor, &buffer, buffer.count, 0) > 0 {}
    }

    func settle() {
        if let part = parts.popLast() {
            part.withUnsafeBytes {
                _ = send(descriptor, $0.baseAddress, $0.count, Int32(MSG_NOSIGNAL))
            }
            // The next piece is sent after the server has read this one.
            let timer = LoopTimer { [self] in loop.markDirty(self) }
            loop.arm(timer, after: 0)
        } else {
            shutdown(descriptor, Int32(SHUT_WR))
        }
    }

    func close() {
        if let registration { loop.deregister(registration) }
        Glibc.close(descriptor)
    }
}
