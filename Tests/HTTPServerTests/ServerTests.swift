import Foundation
import HTTPServer
import System
import TestSupport
import Testing

/// A server of one loop with one handler, for curl.
final class TestServer {
    private static let loop: EventLoop = {
        let loop = try! EventLoop()
        _ = startThread { loop.run() }
        return loop
    }()
    let server = HTTPServer(loops: [TestServer.loop])
    let address: SocketAddress

    init(_ handler: @escaping RequestHandler) throws {
        let any = try #require(SocketAddress("127.0.0.1:0"))
        address = try server.start([ListenerConfiguration(address: any, handler: handler)])[0]
    }

    /// Runs curl on a path; returns its exit status and output.
    func curl(_ arguments: String...) throws -> (status: Int32, output: String) {
        let process = Process()
        let pipe = Pipe()
        process.executableURL = URL(fileURLWithPath: "/usr/bin/env")
        process.arguments =
            ["curl", "-sS", "--max-time", "60"] + arguments + ["http://\(address)/"]
        process.standardOutput = pipe
        process.standardError = pipe
        try process.run()
        let output = try pipe.fileHandleForReading.readToEnd() ?? Data()
        process.waitUntilExit()
        return (process.terminationStatus, String(decoding: output, as: UTF8.self))
    }
}

@Suite("The server")
struct ServerTests {
    @Test("A response whose header block nghttp2 can't send resets its stream and completes")
    func largeHead() async throws {
        let ends = AsyncStream<ResponseOutcome>.makeStream()
        let server = try TestServer { exchange in
            var head = ResponseHead(status: 200)
            for index in 0..<40 {
                head.fields.append(
                    name: "x-\(index)", ServerTests.noise(4000))
            }
            ends.continuation.yield(await exchange.respond(head, .bytes([1])))
        }
        // 92: the stream was not closed cleanly.
        #expect(try server.curl("--http2-prior-knowledge").status == 92)
        var outcomes = ends.stream.makeAsyncIterator()
        guard case .sourceFailed = await outcomes.next()?.end else {
            Issue.record("the handler is not told whose fault it is")
            return
        }
        // HTTP/1.1 has no such limit of ours.
        let plain = try server.curl("--http1.1", "-o", "/dev/null", "-w", "%{http_code}")
        #expect(plain.status == 0 && plain.output == "200")
    }

    /// The reset is noticed before the sink takes more than the first bytes.
    @Test(
        "What a client sent before it reset the connection reaches a body's sink that delays reading"
    )
    func resetWhileTheSinkIsBusy() async throws {
        let sinks = AsyncStream<SlowSink>.makeStream()
        let ends = AsyncStream<Int>.makeStream()
        let server = try TestServer { exchange in
            let sink = SlowSink(exchange.loop)
            sinks.continuation.yield(sink)
            await #expect(throws: BodyError.self) { try await exchange.receive(into: sink) }
            ends.continuation.yield(sink.taken)
            _ = await exchange.respond(ResponseHead(status: 200))
        }
        let client = try Socket.connect(server.address)
        let body = [UInt8](repeating: 1, count: 100_000)
        try ServerTests.send("PUT / HTTP/1.1\r\nhost: a\r\ncontent-length: 200000\r\n\r\n", client)
        try ServerTests.send(body, client)
        await eventually { Socket.unacknowledged(client) == 0 }
        var arrived = sinks.stream.makeAsyncIterator()
        let sink = try #require(await arrived.next())
        var linger = linger(l_onoff: 1, l_linger: 0)
        setsockopt(
            client, SOL_SOCKET, SO_LINGER, &linger, socklen_t(MemoryLayout.size(ofValue: linger)))
        close(client)
        sink.openInALaterTurn()
        var taken = ends.stream.makeAsyncIterator()
        #expect(await taken.next() == body.count)
    }

    @Test(
        "What arrives of a fast upload before it pauses or ends early reaches its sink",
        .timeLimit(.minutes(2)))
    func uploadThatPauses() async throws {
        let taken = AsyncStream<(bytes: Int, lowWater: Int)>.makeStream()
        let ends = AsyncStream<BodyError?>.makeStream()
        let server = try TestServer { exchange in
            do {
                let port = exchange.peer.split(separator: ":").last.flatMap { UInt16($0) }
                _ = try await exchange.receive(
                    into: CountingSink(
                        taken.continuation, connection: connection(to: port ?? 0) ?? -1))
                ends.continuation.yield(nil)
            } catch {
                ends.continuation.yield(error as? BodyError)
            }
            _ = await exchange.respond(ResponseHead(status: 200))
        }
        let client = try Socket.connect(server.address)
        _ = fcntl(client, F_SETFL, 0)
        defer { close(client) }
        var counts = taken.stream.makeAsyncIterator()
        try ServerTests.send(
            "PUT / HTTP/1.1\r\nhost: a\r\ncontent-length: \(64 << 20)\r\n\r\n", client)
        var (sent, highest) = (0, 0)
        for count in [16 << 20, 1000, 16 << 20, 1] {
            try ServerTests.send([UInt8](repeating: 1, count: count), client)
            sent += count
            while let all = await counts.next() {
                highest = max(highest, all.lowWater)
                if all.bytes == sent { break }
            }
        }
        #expect(highest >= 32 * 1024, "the kernel gathers the bytes of a fast body")
        shutdown(client, Int32(SHUT_WR))
        var errors = ends.stream.makeAsyncIterator()
        guard case .clientGone?? = await errors.next() else {
            Issue.record("the handler is not told that the body is not complete")
            return
        }
    }

    private static func send(_ text: String, _ descriptor: Int32) throws {
        try send(Array(text.utf8), descriptor)
    }

    private static func send(_ bytes: [UInt8], _ descriptor: Int32) throws {
        var rest = bytes[...]
        while !rest.isEmpty {
            let count = rest.withUnsafeBytes {
                Glibc.send(descriptor, $0.baseAddress, $0.count, Int32(MSG_NOSIGNAL))
            }
            try #require(count > 0)
            rest = rest.dropFirst(count)
        }
    }

    /// Text that no table of codes makes shorter.
    private static func noise(_ count: Int) -> String {
        String(decoding: (0..<count).map { _ in UInt8.random(in: 0x21...0x7e) }, as: UTF8.self)
    }
}

/// A sink that takes everything, and tells how many bytes it has taken, and the low-water mark of their connection.
///
/// Safety: confined to its loop.
private final class CountingSink: ByteSink, @unchecked Sendable {
    private let counts: AsyncStream<(bytes: Int, lowWater: Int)>.Continuation
    private let connection: Int32
    private var taken = 0

    init(
        _ counts: AsyncStream<(bytes: Int, lowWater: Int)>.Continuation, connection: Int32
    ) {
        self.counts = counts
        self.connection = connection
    }

    func write(_ bytes: RawSpan) throws -> Int {
        taken += bytes.byteCount
        counts.yield((taken, lowWaterMark(connection)))
        return bytes.byteCount
    }

    func whenWritable(_ resume: @escaping () -> Void) {}
}

/// A sink that takes one byte, and no more until it is opened.
///
/// Safety: confined to its loop, but for ``openInALaterTurn()``.
private final class SlowSink: ByteSink, @unchecked Sendable {
    private let loop: EventLoop
    private(set) var taken = 0
    private var isOpen = false
    private var resume: (() -> Void)?

    init(_ loop: EventLoop) { self.loop = loop }

    func write(_ bytes: RawSpan) throws -> Int {
        let count = isOpen ? bytes.byteCount : taken == 0 ? 1 : 0
        taken += count
        return count
    }

    func whenWritable(_ resume: @escaping () -> Void) { self.resume = resume }

    /// After the loop has handled what its sockets report now.
    func openInALaterTurn() {
        loop.execute { [self] in
            loop.execute { [self] in
                isOpen = true
                resume.take()?()
            }
        }
    }
}
