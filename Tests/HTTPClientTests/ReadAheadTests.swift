import Dispatch
import System
import TestSupport
import Testing

@testable import HTTPClient

/// Bodies of which more is received than their readers have asked for. Each test has a loop of its own, because the loop's
/// buffers are counted.
@Suite("Reading ahead", .timeLimit(.minutes(2)))
struct ReadAheadTests {
    private static let size = 1_000_003
    private static let content = (0..<size).map { UInt8(truncatingIfNeeded: $0 &* 31 >> 3) }

    private let loop: EventLoop

    init() throws {
        loop = try EventLoop()
        _ = startThread { [loop] in loop.run() }
    }

    private func onLoop<Result: Sendable>(_ body: @escaping @Sendable () async throws -> Result)
        async throws -> Result
    {
        try await Task(executorPreference: loop) { try await body() }.value
    }

    /// Reads at most `limit` bytes in pieces.
    private static func read(_ body: any ByteSource, piece: Int, limit: Int = .max) async throws
        -> [UInt8]
    {
        var all: [UInt8] = []
        var buffer = [UInt8](repeating: 0, count: piece)
        while all.count < limit {
            var span = buffer.mutableSpan
            var bytes = span.mutableBytes
            switch try body.read(into: &bytes) {
            case .bytes(let count): all += buffer[..<count]
            case .wait: await Pause().wait { resume in body.whenReadable(resume) }
            case .end: return all
            }
        }
        return all
    }

    private func server(_ way: Way, surplus: String = "") -> ScriptedServer {
        ScriptedServer(way) { peer, _ in
            peer.respondToAll { _ in
                peer.send("HTTP/1.1 200 OK\r\ncontent-length: \(ReadAheadTests.size)\r\n\r\n")
                return peer.send(ReadAheadTests.content + Array(surplus.utf8))
            }
        }
    }

    @Test("Few bytes of a long body are read although no more follow", arguments: Way.own)
    func fewBytes(way: Way) async throws {
        let pieces = [4 << 20, 1000, 4 << 20, 1]
        let isRead = DispatchSemaphore(value: 0)
        let server = ScriptedServer(way) { peer, _ in
            guard peer.head() != nil else { return }
            peer.send("HTTP/1.1 200 OK\r\ncontent-length: \(16 << 20)\r\n\r\n")
            for count in pieces {
                peer.send([UInt8](repeating: 1, count: count))
                isRead.wait()
            }
        }
        let upstream = server.upstream()
        try await onLoop {
            let body = try await upstream.send(ClientRequest("GET", "/x")).body
            for count in pieces {
                let bytes = try await ReadAheadTests.read(body, piece: 65_536, limit: count)
                #expect(bytes.count == count)
                isRead.signal()
            }
        }
        await upstream.close()
        loop.stop()
    }

    /// A server whose bodies have the size that the target names.
    private static func sized(_ way: Way) -> ScriptedServer {
        ScriptedServer(way) { peer, _ in
            peer.respondToAll { request in
                let size = Int(request.target.dropFirst()) ?? 0
                return peer.respond(200, String(repeating: "a", count: size))
            }
        }
    }

    @Test("The kernel gathers the bytes of a fast body, and only of that", arguments: Way.own)
    func gathering(way: Way) async throws {
        let server = ReadAheadTests.sized(way)
        let upstream = server.upstream()
        let highest = try await onLoop { [port = server.port] in
            let request = ClientRequest("GET", "/\(64 << 20)")
            let body = try await upstream.start(request).response().body
            let descriptor = connection(to: port) ?? -1
            var (buffer, highest) = ([UInt8](repeating: 0, count: 65_536), 0)
            while true {
                var span = buffer.mutableSpan
                var bytes = span.mutableBytes
                switch try body.read(into: &bytes) {
                case .bytes: continue
                case .wait:
                    highest = max(highest, lowWaterMark(descriptor))
                    await Pause().wait { resume in body.whenReadable(resume) }
                case .end: return highest
                }
            }
        }
        #expect(highest >= 32 * 1024)
        #expect(lowWaterMark(try #require(connection(to: server.port))) == 1)
        await upstream.close()
        loop.stop()
    }

    @Test("A small response after a fast one arrives on the same connection", arguments: Way.own)
    func smallAfterLarge(way: Way) async throws {
        let server = ReadAheadTests.sized(way)
        let upstream = server.upstream()
        for count in [16 << 20, 1, 16 << 20, 1] {
            let found = try await onLoop {
                let request = ClientRequest("GET", "/\(count)")
                let body = try await upstream.start(request).response().body
                return try await ReadAheadTests.read(body, piece: 65_536).count
            }
            #expect(found == count)
        }
        #expect(server.connections == 1)
        await upstream.close()
        loop.stop()
    }

    @Test(
        "A body in pieces of every size is complete, and its connection is used again",
        arguments: Way.own)
    func pieces(way: Way) async throws {
        let server = server(way)
        let upstream = server.upstream()
        for piece in [700, 16 * 1024, 65_536, 300_000, 2_000_000] {
            let found = try await onLoop {
                let body = try await upstream.start(ClientRequest("GET", "/")).response().body
                return try await ReadAheadTests.read(body, piece: piece)
            }
            #expect(found == ReadAheadTests.content)
        }
        #expect(server.connections == 1)
        let used = try await onLoop { [loop] in loop.readAhead.used }
        #expect(used == 0)
        await upstream.close()
        loop.stop()
    }

    @Test("Bytes after a body are not read as a response", arguments: Way.own)
    func surplus(way: Way) async throws {
        let server = server(way, surplus: "HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil")
        let upstream = server.upstream()
        for count in 1...3 {
            let found = try await onLoop {
                let body = try await upstream.start(ClientRequest("GET", "/")).response().body
                return try await ReadAheadTests.read(body, piece: 16 * 1024)
            }
            #expect(found == ReadAheadTests.content)
            #expect(server.connections == count)
        }
        await upstream.close()
        loop.stop()
    }

    @Test("Readers that stop give their buffers back", arguments: Way.own)
    func stopping(way: Way) async throws {
        let server = server(way)
        let upstream = server.upstream()
        for limit in [1, 16 * 1024, 100_000, ReadAheadTests.size - 1] {
            try await onLoop {
                let body = try await upstream.start(ClientRequest("GET", "/")).response().body
                let found = try await ReadAheadTests.read(body, piece: 8 * 1024, limit: limit)
                #expect(found[...] == ReadAheadTests.content[..<found.count])
            }
            try await eventually { try await onLoop { [loop] in loop.readAhead.used == 0 } }
        }
        await upstream.close()
        loop.stop()
    }

    @Test(
        "More readers than buffers receive complete bodies, and stalled ones hold no more than the buffers"
    )
    func manyReaders() async throws {
        let server = server(.clear)
        let upstream = server.upstream { $0.maximumTransfers = 64 }
        let readers = 40
        let found = try await onLoop { [loop] in
            var bodies: [any ByteSource] = []
            for _ in 0..<readers {
                bodies.append(try await upstream.start(ClientRequest("GET", "/")).response().body)
            }
            // Each reads a little and stops, until every buffer is in use.
            var starts: [[UInt8]] = []
            for body in bodies {
                starts.append(try await ReadAheadTests.read(body, piece: 4096, limit: 300_000))
            }
            let used = loop.readAhead.used
            var complete = 0
            for (body, start) in zip(bodies, starts) {
                let rest = try await ReadAheadTests.read(body, piece: 50_000)
                if start + rest == ReadAheadTests.content { complete += 1 }
            }
            return (used, complete, loop.readAhead.used)
        }
        #expect(found.0 > 0 && found.0 <= 16)
        #expect(found.1 == readers && found.2 == 0)
        await upstream.close()
        loop.stop()
    }
}
