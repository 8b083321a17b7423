import HTTPServer
import System
import Testing

/// A source that gives its bytes in pieces, each in a later turn. Confined to its loop.
private final class PiecesSource: ByteSource {
    private let loop: EventLoop
    private var pieces: [[UInt8]]
    private var isReady = false
    private let fails: Bool

    init(_ loop: EventLoop, _ pieces: [[UInt8]], fails: Bool = false) {
        self.loop = loop
        self.pieces = pieces
        self.fails = fails
    }

    func read(into buffer: inout MutableRawSpan) throws -> SourceRead {
        guard isReady else { return .wait }
        guard !pieces.isEmpty else {
            if fails { throw SystemError("read", 5) }
            return .end
        }
        let count = min(pieces[0].count, buffer.byteCount)
        buffer.withUnsafeMutableBytes { $0.copyBytes(from: pieces[0][..<count]) }
        pieces[0].removeFirst(count)
        if pieces[0].isEmpty {
            pieces.removeFirst()
            isReady = false
        }
        return .bytes(count)
    }

    func whenReadable(_ resume: @escaping () -> Void) {
        // Safety: both are used on their loop only.
        nonisolated(unsafe) let (resume, source) = (resume, self)
        loop.execute {
            source.isReady = true
            resume()
        }
    }

    func close() {}
}

@Suite("Response bodies of unknown length") struct OpenEndedTests {
    private static let pieces = [[UInt8]("a".utf8), [UInt8](repeating: 0x62, count: 200_000), [UInt8]("c".utf8)]
    private static let body = String(decoding: pieces.joined(), as: UTF8.self)

    private func server(_ pieces: [[UInt8]], fails: Bool = false) throws -> TestServer {
        try TestServer { exchange in
            await exchange.respond(
                ResponseHead(status: 200), .stream(PiecesSource(exchange.loop, pieces, fails: fails)))
        }
    }

    @Test(
        "All bytes arrive, and the connection is used again where it can be",
        arguments: ["--http1.0", "--http1.1", "--http2-prior-knowledge"])
    func whole(_ version: String) throws {
        let server = try server(OpenEndedTests.pieces)
        #expect(try server.curl(version) == (0, OpenEndedTests.body))
        #expect(try server.curl(version, "--head").output.contains("200"))
        // curl 7.88 can't use a connection twice with prior knowledge.
        if version == "--http2-prior-knowledge" { return }
        // Twice on one connection, unless its end is the end of the body.
        let twice = try server.curl(
            version, "-o", "/dev/null", "-o", "/dev/null", "-w", "%{num_connects}", "http://\(server.address)/")
        #expect(twice.output == (version == "--http1.0" ? "11" : "10"))
    }

    @Test("An empty body ends", arguments: ["--http1.0", "--http1.1", "--http2-prior-knowledge"])
    func empty(_ version: String) throws {
        #expect(try server([]).curl(version) == (0, ""))
    }

    /// The end of the connection is no failure to a client of HTTP/1.0, which can't tell.
    @Test("A failed source is seen as a failure", arguments: ["--http1.1", "--http2-prior-knowledge"])
    func failed(_ version: String) throws {
        #expect(try server(OpenEndedTests.pieces, fails: true).curl(version).status != 0)
    }
}
