import Glibc
import Synchronization
import System
import TestSupport
import Testing

@testable import HTTPClient

/// What a request leaves behind: no object, no connection, however it ends.
@Suite("The objects of a request", .timeLimit(.minutes(2)))
struct LifetimeTests {
    /// How a request ends.
    enum End: String, CaseIterable, Sendable, CustomTestStringConvertible {
        case read, empty, collected, upload, closedEarly, dropped, notTaken, failed, broken,
            malformed
        case timedOut, stalledBody, cancelled, cancelledUpload, earlyResponse, interruptedUpload
        var testDescription: String { rawValue }
    }

    /// A server for all of these, by the target.
    private func server(_ way: Way) -> ScriptedServer {
        // Uploads of a gigabyte use HTTP/1.1 in any case.
        if way == .http2 {
            return .http2(http1: Self.serve, script: { peer, _, _ in Self.serve(peer) })
        }
        return ScriptedServer(way) { peer, _ in Self.serve(peer) }
    }

    private static func serve(_ peer: HTTP2Peer) {
        while let head = peer.head() {
            switch head.target {
            case "/empty": peer.headers(head.id, [(":status", "204")], ends: true)
            case "/large": peer.respond(head.id, 200, [UInt8](repeating: 7, count: 4 << 20))
            case "/cut": return
            case "/broken":
                peer.headers(head.id, [(":status", "200"), ("content-length", "10")])
                peer.data(head.id, [1, 2, 3], ends: false)
                return
            case "/malformed":
                peer.headers(head.id, [(":status", "200"), ("content-length", "a")])
            case "/stall": peer.waitForEnd()
            case "/stalled-body":
                peer.headers(head.id, [(":status", "200"), ("content-length", "10")])
                peer.data(head.id, [1, 2, 3], ends: false)
            default:
                guard peer.body(of: head.id) != nil, peer.respond(head.id, 200, "hello") else {
                    return
                }
            }
        }
    }

    private static func serve(_ peer: Peer) {
        while let head = peer.head() {
            switch head.target {
            case "/empty": peer.send("HTTP/1.1 204 X\r\n\r\n")
            case "/large":
                let size = 4 << 20
                peer.send("HTTP/1.1 200 X\r\ncontent-length: \(size)\r\n\r\n")
                guard peer.send([UInt8](repeating: 7, count: size)) else { return }
            case "/cut": return
            case "/broken":
                peer.send("HTTP/1.1 200 X\r\ncontent-length: 10\r\n\r\nabc")
                return
            case "/malformed":
                peer.send("HTTP/1.1 200 X\r\ncontent-length: 99999999999999999999\r\n\r\n")
                return
            case "/early":
                // A client that has sent everything when it reads the response could use the connection again.
                peer.respond(403, "no", fields: "connection: close\r\n")
                peer.waitForEnd()
                return
            case "/stall":
                peer.waitForEnd()
                return
            case "/stalled-body":
                peer.send("HTTP/1.1 200 X\r\ncontent-length: 10\r\n\r\nabc")
                peer.waitForEnd()
                return
            default:
                let length = head.fields["content-length"].flatMap { Int($0) } ?? 0
                guard peer.body(length) != nil, peer.respond(200, "hello") else { return }
            }
        }
    }

    /// Makes one request that ends so.
    private func run(_ end: End, _ upstream: Upstream) async throws {
        switch end {
        case .read: _ = try await upstream.call(ClientRequest("GET", "/x"))
        case .empty: _ = try await upstream.call(ClientRequest("DELETE", "/empty"))
        case .collected:
            _ = try await upstream.start(ClientRequest("GET", "/x")).response().collect(limit: 9)
        case .upload:
            let pipe = RequestBodyPipe(length: 100_000)
            let exchange = upstream.start(ClientRequest("PUT", "/x", body: .pipe(pipe)))
            try await fill(pipe, 100_000)
            _ = try await exchange.response().collect(limit: 9)
        case .closedEarly:
            try await upstream.send(ClientRequest("GET", "/large")).body.close()
        case .dropped: _ = try await upstream.send(ClientRequest("GET", "/large"))
        case .notTaken:
            let exchange = upstream.start(ClientRequest("GET", "/large"))
            await exchange.settled()
            exchange.cancel()
        case .failed: _ = try? await upstream.start(ClientRequest("POST", "/cut")).response()
        case .broken:
            _ = try? await upstream.send(ClientRequest("GET", "/broken")).collect(limit: 99)
        case .malformed:
            _ = try? await upstream.start(ClientRequest("GET", "/malformed")).response()
        case .timedOut: _ = try? await upstream.start(ClientRequest("GET", "/stall")).response()
        case .stalledBody:
            _ = try? await upstream.send(ClientRequest("GET", "/stalled-body")).collect(limit: 99)
        case .cancelled:
            let exchange = upstream.start(ClientRequest("GET", "/stall"))
            for _ in 0..<3 { await Task.yield() }
            exchange.cancel()
        case .cancelledUpload:
            let pipe = RequestBodyPipe(length: 1 << 30)
            let exchange = upstream.start(ClientRequest("PUT", "/stall", body: .pipe(pipe)))
            try await fill(pipe, 100_000)
            exchange.cancel()
        case .earlyResponse:
            let pipe = RequestBodyPipe(length: 1 << 30)
            let exchange = upstream.start(ClientRequest("PUT", "/early", body: .pipe(pipe)))
            try? await fill(pipe, 1 << 30)
            _ = try await exchange.response().collect(limit: 9)
        case .interruptedUpload:
            let pipe = RequestBodyPipe(length: 1 << 30)
            let exchange = upstream.start(ClientRequest("PUT", "/cut", body: .pipe(pipe)))
            try? await fill(pipe, 1 << 30)
            _ = try? await exchange.response()
        }
    }

    @Test("A request leaves no objects, however it ends", arguments: Way.allCases, End.allCases)
    func nothingStays(way: Way, end: End) async throws {
        let server = server(way)
        let upstream = server.upstream {
            $0.attempts = 1
            // Only those that are to meet a time-out have a short one: a loaded machine may be slow.
            guard end == .timedOut || end == .stalledBody else { return }
            $0.firstByteTimeout = 500_000_000
            $0.progressTimeout = 500_000_000
        }
        for _ in 0..<3 { try await TestLoop.run { try await run(end, upstream) } }
        await eventually { upstream.statistics.objects == 0 }
        #expect(upstream.statistics.inFlight == 0)
        await eventually {
            upstream.statistics.connections == upstream.statistics.idleConnections
        }
        await upstream.close()
        #expect(upstream.statistics.connections == 0)
    }

    @Test("Requests that leave the queue leave no objects, sent or cancelled")
    func queue() async throws {
        let server = server(.clear)
        let upstream = server.upstream {
            $0.maximumTransfers = 1
            $0.queueTimeout = 600_000_000_000
            $0.firstByteTimeout = 600_000_000_000
        }
        try await TestLoop.run {
            let exchanges = (0..<3).map { _ in upstream.start(ClientRequest("GET", "/stall")) }
            #expect(upstream.statistics.queued == 2)
            // The second is sent, then the third leaves from behind it.
            exchanges[0].cancel()
            #expect(upstream.statistics.queued == 1)
            exchanges[2].cancel()
            exchanges[1].cancel()
        }
        await eventually { upstream.statistics.objects == 0 && upstream.statistics.inFlight == 0 }
        await upstream.close()
    }

    @Test(
        "Requests in progress when the client is closed leave no objects",
        arguments: Way.allCases)
    func closing(way: Way) async throws {
        let server = server(way)
        let upstream = server.upstream {
            $0.maximumTransfers = 1
            $0.queueTimeout = 600_000_000_000
            $0.firstByteTimeout = 600_000_000_000
        }
        let tasks = (0..<3).map { _ in
            Task(executorPreference: TestLoop.loop) {
                _ = try? await upstream.start(ClientRequest("GET", "/stall")).response()
            }
        }
        await eventually { upstream.statistics.inFlight == 3 && upstream.statistics.queued == 2 }
        await upstream.close()
        for task in tasks {
            task.cancel()
            await task.value
        }
        await eventually {
            upstream.statistics.objects == 0 && upstream.statistics.connections == 0
        }
    }

    @Test(
        "A client that is dropped without being closed closes its connections",
        arguments: Way.allCases)
    func droppedClient(way: Way) async throws {
        let ended = Atomic<Int>(0)
        let server =
            way == .http2
            ? .http2 { peer, _, _ in
                while let request = peer.request() { peer.respond(request.id) }
                ended.add(1, ordering: .relaxed)
            }
            : ScriptedServer(way) { peer, _ in
                peer.respondToAll { _ in peer.respond() }
                ended.add(1, ordering: .relaxed)
            }
        do {
            let upstream = server.upstream()
            #expect(await upstream.ask().status == 200)
        }
        await eventually { ended.load(ordering: .relaxed) == 1 }
    }
}
