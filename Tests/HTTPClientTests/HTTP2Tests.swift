import Dispatch
import Glibc
import Synchronization
import System
import TestSupport
import Testing

@testable import HTTPClient

/// Requests over HTTP/2. What any transport must do is in the other suites; this is what many requests on one connection
/// change.
@Suite("HTTP/2 to an upstream", .timeLimit(.minutes(2)))
struct HTTP2Tests {
    @Test("A request is sent unchanged, with the fields of HTTP/2")
    func request() async throws {
        let seen = Lock<[HTTP2Peer.Request]>([])
        let server = ScriptedServer.http2 { peer, _, _ in
            while let request = peer.request() {
                seen.withLock { $0.append(request) }
                peer.respond(request.id, 200, Array("hello".utf8), fields: [("x-name", "a b")])
            }
        }
        let upstream = server.upstream()
        let response = try await TestLoop.run {
            let request = ClientRequest("GET", "/b/o%2Fx?y=%20z")
            request.fields.append("x-amz-date", "now")
            request.fields.append("authorization", "secret")
            return try await upstream.call(request)
        }
        #expect(response.status == 200 && response.fields["x-name"] == "a b")
        #expect(response.fields[":status"] == nil && response.body == Array("hello".utf8))
        _ = await upstream.ask("PUT", body: Array("1234".utf8))
        _ = await upstream.ask("POST")
        _ = await upstream.ask("DELETE")
        let requests = seen.withLock { $0 }
        #expect(
            requests[0].fields.map(\.name) == [
                ":method", ":scheme", ":authority", ":path", "user-agent", "x-amz-date",
                "authorization",
            ])
        #expect(requests.map(\.method) == ["GET", "PUT", "POST", "DELETE"])
        #expect(requests[0].target == "/b/o%2Fx?y=%20z" && requests[0][":scheme"] == "https")
        // Byte for byte what SigV4 signs as `host`.
        #expect(requests[0][":authority"] == upstream.settings.origin.authority)
        #expect(requests[0]["x-amz-date"] == "now" && requests[0]["authorization"] == "secret")
        #expect(requests[1].body == Array("1234".utf8))
        #expect(requests.map { $0["content-length"] } == [nil, "4", "0", nil])
        #expect(server.connections == 1 && upstream.statistics.idleConnections == 1)
        await upstream.close()
        #expect(upstream.statistics.connections == 0)
    }

    @Test("Every status is delivered, and HEAD, 204 and 304 have no body")
    func statuses() async throws {
        let server = ScriptedServer.http2 { peer, _, _ in
            while let request = peer.request() {
                let status = request.target.dropFirst()
                if status == "204" {
                    peer.headers(request.id, [(":status", "204")], ends: true)
                } else if request.method == "HEAD" || status == "304" {
                    // It forgets the end of the stream, and the body's length is that of GET.
                    peer.headers(
                        request.id, [(":status", String(status)), ("content-length", "5000")],
                        ends: request.target != "/200")
                } else {
                    peer.headers(request.id, [(":status", "103"), ("link", "a")])
                    peer.headers(request.id, [(":status", "100")])
                    peer.headers(request.id, [(":status", String(status))])
                    peer.data(request.id, Array("ab".utf8), ends: false)
                    peer.headers(request.id, [("x-trailer", "1")], ends: true)
                }
            }
        }
        let upstream = server.upstream()
        for status in [200, 201, 204, 206, 301, 304, 404, 412, 416, 500, 599] {
            let response = await upstream.ask("GET", "/\(status)")
            #expect(response.status == status)
            #expect(response.text == (status == 204 || status == 304 ? "" : "ab"))
            #expect((try? response.get().fields["x-trailer"]) == nil as String?)
            let head = await upstream.ask("HEAD", "/\(status)")
            #expect(head.status == status && head.text == "")
        }
        #expect(server.connections == 1)
        await upstream.close()
    }

    @Test("Bodies arrive complete in both directions, large uploads by HTTP/1.1")
    func bodies() async throws {
        let pattern = (0..<3_000_003).map { UInt8(truncatingIfNeeded: $0 &* 31 >> 3) }
        let server = ScriptedServer.http2(
            http1: { peer in
                peer.respondToAll {
                    peer.respond(200, "HTTP/1.1 \($0.body.count) \($0.body == pattern)")
                }
            },
            script: { peer, _, _ in
                while let request = peer.request() {
                    if request.method == "GET" {
                        peer.headers(request.id, [(":status", "200")])
                        peer.data(request.id, pattern)
                    } else {
                        let isRight = pattern.starts(with: request.body)
                        peer.respond(request.id, 200, "HTTP/2 \(request.body.count) \(isRight)")
                    }
                }
            })
        let upstream = server.upstream()
        let download = await upstream.ask("GET", "/", limit: pattern.count)
        #expect((try? download.get().body) == pattern)
        for size in [1, 16_384, 65_535, 65_536, 200_000, 256 * 1024] {
            let body = Array(pattern[..<size])
            #expect(await upstream.ask("PUT", body: body).text == "HTTP/2 \(size) true")
            let text = try await TestLoop.run {
                let pipe = RequestBodyPipe(length: UInt64(size))
                let exchange = upstream.start(ClientRequest("PUT", "/x", body: .pipe(pipe)))
                var place = 0
                while place < size {
                    let piece = min(10_000, size - place)
                    let count = try pipe.write(body.span.bytes.extracting(place..<place + piece))
                    place += count
                    if count == 0 {
                        await withUnsafeContinuation { done in
                            pipe.whenWritable { done.resume() }
                        }
                    }
                }
                let body = try await exchange.response().collect(limit: 100)
                return String(decoding: body, as: UTF8.self)
            }
            #expect(text == "HTTP/2 \(size) true")
        }
        #expect(server.connections == 1)
        #expect(await upstream.ask("PUT", body: pattern).text == "HTTP/1.1 3000003 true")
        #expect(server.connections == 2)
        let empty = try await TestLoop.run {
            let request = ClientRequest("PUT", "/", body: .pipe(RequestBodyPipe(length: 0)))
            return try await upstream.call(request).body
        }
        #expect(String(decoding: empty, as: UTF8.self) == "HTTP/2 0 true")
        await upstream.close()
    }

    @Test("Requests at once share a connection, and responses may come in any order")
    func parallel() async throws {
        let server = ScriptedServer.http2 { peer, _, _ in
            var requests: [HTTP2Peer.Request] = []
            while requests.count < HTTP2Pool.maximumStreams {
                guard let request = peer.request() else { return }
                requests.append(request)
            }
            for request in requests.reversed() { peer.respond(request.id, 200, request.target) }
            peer.waitForEnd()
        }
        let upstream = server.upstream()
        let count = 3 * HTTP2Pool.maximumStreams
        try await upstream.askAtOnce("GET", count)
        #expect(server.connections == 3)
        await eventually { upstream.statistics.idleConnections == 3 }
        #expect(upstream.statistics.inFlight == 0 && upstream.statistics.objects == 0)
        await upstream.close()
    }

    @Test("A connection that is lost with many requests does not open the circuit")
    func oneFailure() async throws {
        let server = ScriptedServer.http2 { peer, _, number in
            if number > 0 {
                while let request = peer.request() { peer.respond(request.id, 200, "again") }
            }
            for _ in 0..<HTTP2Pool.maximumStreams { _ = peer.request() }
        }
        let upstream = server.upstream()
        await withTaskGroup { group in
            for _ in 0..<HTTP2Pool.maximumStreams {
                group.addTask { await upstream.ask("PUT", body: [1]).code }
            }
            for await code in group { #expect(code == .connectionLost) }
        }
        #expect(CircuitBreaker.threshold < HTTP2Pool.maximumStreams)
        #expect(upstream.openCircuit == nil)
        #expect(await upstream.ask().text == "again")
        await upstream.close()
    }

    @Test("The upstream's limit of streams is kept", arguments: [1, 3] as [UInt32])
    func concurrency(limit: UInt32) async throws {
        let most = Atomic<Int>(0)
        // Nothing is responded before all six have arrived, so that none finds a connection free again.
        let arriving = DispatchGroup()
        for _ in 0..<6 { arriving.enter() }
        let server = ScriptedServer.http2(settings: [(3, limit)]) { peer, _, _ in
            var held: [HTTP2Peer.Request] = []
            while let request = peer.request() {
                held.append(request)
                if held.count > limit {
                    // The client had not seen the limit yet.
                    peer.reset(held.removeLast().id, 7)
                    continue
                }
                most.max(held.count, ordering: .relaxed)
                if request.target != "/last" { arriving.leave() }
                if held.count == limit || request.target == "/last" {
                    if request.target != "/last" { arriving.wait() }
                    for request in held { peer.respond(request.id, 200, "ab") }
                    held = []
                }
            }
        }
        let upstream = server.upstream()
        #expect(await upstream.ask("POST", "/last", body: [1]).text == "ab")
        await withTaskGroup { group in
            for _ in 0..<6 {
                group.addTask { await upstream.ask("POST", "/", body: [1]).text == "ab" }
            }
            for await isRight in group { #expect(isRight) }
        }
        #expect(most.load(ordering: .relaxed) == Int(limit))
        #expect(server.connections == 6 / Int(limit))
        await upstream.close()
    }

    @Test(
        "A reader that does not read neither stalls the others nor makes the client buffer more than a window"
    )
    func slowReader() async throws {
        let sent = Atomic<Int>(0)
        let server = ScriptedServer.http2 { peer, _, _ in
            guard let slow = peer.request() else { return }
            // The other request comes before the slow body is known to be large.
            guard let quick = peer.request() else { return }
            peer.headers(slow.id, [(":status", "200")])
            let window = peer.window(of: slow.id)
            peer.data(slow.id, [UInt8](repeating: 7, count: window), ends: false)
            sent.store(window, ordering: .relaxed)
            peer.respond(quick.id, 200, [UInt8](repeating: 8, count: 1 << 20))
            #expect(peer.window(of: slow.id) == 0)
            peer.data(slow.id, [UInt8](repeating: 9, count: 1 << 20))
            peer.waitForEnd()
        }
        let upstream = server.upstream { $0.progressTimeout = 50_000_000_000 }
        try await TestLoop.run {
            let first = upstream.start(ClientRequest("GET", "/slow"))
            let second = upstream.start(ClientRequest("GET", "/quick"))
            let slow = try await first.response()
            let quick = try await second.response()
            #expect(try await quick.collect(limit: 1 << 20).count == 1 << 20)
            #expect(sent.load(ordering: .relaxed) == HTTP2Session.initialWindow)
            let body = try await slow.collect(limit: 2 << 20)
            #expect(body.count == (1 << 20) + HTTP2Session.initialWindow && body.last == 9)
        }
        #expect(server.connections == 1)
        await upstream.close()
    }

    @Test("The window of a large body opens before its first byte has arrived")
    func largeBodyOpensItsWindow() async throws {
        let length = HTTP2Session.maximumWindow
        let server = ScriptedServer.http2 { peer, _, _ in
            guard let request = peer.request() else { return }
            peer.headers(request.id, [(":status", "200"), ("content-length", "\(length)")])
            while peer.window(of: request.id) < length { guard peer.pump() else { return } }
            peer.data(request.id, [UInt8](repeating: 7, count: length))
            peer.waitForEnd()
        }
        let upstream = server.upstream()
        try await TestLoop.run {
            let response = try await upstream.start(ClientRequest("GET", "/large")).response()
            #expect(try await response.collect(limit: length).count == length)
        }
        await upstream.close()
    }

    @Test("A request that times out beside others does not end their connection")
    func oneStalls() async throws {
        let isOver = Atomic<Bool>(false)
        defer { isOver.store(true, ordering: .relaxed) }
        let server = ScriptedServer.http2 { peer, _, _ in
            while let head = peer.head() {
                switch head.target {
                case "/quick": peer.respond(head.id, 200, "quick")
                case "/endless":
                    // Its bytes keep arriving, whenever the test's tasks run.
                    peer.headers(head.id, [(":status", "200")])
                    while !isOver.load(ordering: .relaxed) {
                        peer.data(head.id, [7], ends: false)
                        usleep(20_000)
                    }
                    peer.data(head.id, [7])
                default: break
                }
            }
        }
        let upstream = server.upstream { $0.firstByteTimeout = 8_000_000_000 }
        try await TestLoop.run {
            let stalled = upstream.start(ClientRequest("GET", "/stalled"))
            let endless = try await upstream.start(ClientRequest("GET", "/endless")).response()
            do throws(ClientError) {
                _ = try await stalled.response()
                Issue.record("a response to a request that has none")
            } catch {
                #expect(error.code == .timedOut)
            }
            isOver.store(true, ordering: .relaxed)
            _ = try await endless.collect(limit: 1 << 20)
        }
        #expect(await upstream.ask("GET", "/quick").text == "quick")
        #expect(server.connections == 1)
        await upstream.close()
    }

    @Test("A connection that receives a large body takes no further requests until it is complete")
    func largeBody() async throws {
        let server = ScriptedServer.http2 { peer, _, number in
            while let request = peer.request() {
                guard request.target == "/large" else {
                    peer.respond(request.id, 200, "\(number)")
                    continue
                }
                peer.headers(request.id, [(":status", "200"), ("content-length", "300000")])
                peer.data(request.id, [UInt8](repeating: 7, count: 300_000))
            }
        }
        let upstream = server.upstream()
        try await TestLoop.run {
            let large = try await upstream.send(ClientRequest("GET", "/large"))
            let small = try await upstream.call(ClientRequest("GET", "/small"))
            #expect(String(decoding: small.body, as: UTF8.self) == "1")
            #expect(try await large.collect(limit: 300_000).count == 300_000)
            let after = try await upstream.call(ClientRequest("GET", "/small"))
            #expect(String(decoding: after.body, as: UTF8.self) == "0")
        }
        #expect(server.connections == 2)
        await upstream.close()
    }

    @Test("A download is sent by HTTP/1.1 while the last response to it was large")
    func largeDownload() async throws {
        let (large, small) = ([UInt8](repeating: 7, count: 300_000), [UInt8]("small".utf8))
        let served = Atomic<Int>(0)
        let server = ScriptedServer.http2(
            http1: { peer in
                while peer.head() != nil {
                    let number = served.add(1, ordering: .relaxed).newValue
                    let body = number == 2 || number == 3 ? small : large
                    let head = "HTTP/1.1 \(number == 3 ? 404 : 200) \r\ncontent-length: "
                    guard peer.send(head + "\(body.count)\r\n\r\n"), peer.send(body) else { return }
                }
            },
            script: { peer, _, _ in
                while let request = peer.request() {
                    let body = request.target == "/large" ? large : small
                    peer.respond(request.id, 200, body)
                }
            })
        let upstream = server.upstream()
        func get(_ target: String, range: String? = nil) async throws -> (size: Int, http1: Int) {
            let size = try await TestLoop.run {
                let request = ClientRequest("GET", target)
                request.isBulk = true
                if let range { request.fields.append("range", range) }
                return try await upstream.send(request).collect(limit: large.count).count
            }
            return (size, served.load(ordering: .relaxed))
        }
        // By HTTP/2, which shows that it is large.
        #expect(try await get("/large") == (300_000, 0))
        #expect(try await get("/small") == (5, 0))
        #expect(try await get("/large", range: "bytes=0-299999") == (300_000, 0))
        // By HTTP/1.1. The second time it is small.
        #expect(try await get("/large") == (300_000, 1))
        #expect(try await get("/small") == (5, 1))
        #expect(try await get("/large") == (5, 2))
        #expect(try await get("/large") == (300_000, 2))
        // A response without the object does not count.
        #expect(try await get("/large") == (5, 3))
        #expect(try await get("/large") == (300_000, 4))
        await upstream.close()
    }

    @Test("A large download from an upstream whose HTTP/1.1 fails is sent by HTTP/2 again")
    func largeDownloadWithoutHTTP1() async throws {
        let large = [UInt8](repeating: 7, count: 300_000)
        let server = ScriptedServer.http2(
            http1: { _ in },
            script: { peer, _, _ in
                while let request = peer.request() { peer.respond(request.id, 200, large) }
            })
        let upstream = server.upstream()
        for _ in 0..<4 {
            let size = try await TestLoop.run {
                let request = ClientRequest("GET", "/large")
                request.isBulk = true
                return try await upstream.send(request).collect(limit: large.count).count
            }
            #expect(size == large.count)
        }
        await upstream.close()
    }

    @Test("The end of a large body in a frame of its own completes it")
    func separateEnd() async throws {
        let server = ScriptedServer.http2 { peer, _, _ in
            while let request = peer.request() {
                #expect(peer.resets.isEmpty)
                peer.headers(request.id, [(":status", "200"), ("content-length", "300000")])
                peer.data(request.id, [UInt8](repeating: 7, count: 300_000), ends: false)
                peer.data(request.id, [])
            }
        }
        let upstream = server.upstream()
        for _ in 0..<10 {
            try await TestLoop.run {
                let response = try await upstream.send(ClientRequest("GET", "/"))
                #expect(try await response.collect(limit: 300_000).count == 300_000)
            }
        }
        await upstream.close()
    }

    @Test("A request alone on its connection, and HTTP/2 that is switched off, are HTTP/1.1")
    func http1() async throws {
        let server = ScriptedServer.http2(
            http1: { peer in
                peer.respondToAll { peer.respond(200, $0.fields["connection"] ?? "none") }
            },
            script: { peer, _, _ in
                while let request = peer.request() { peer.respond(request.id, 200, "HTTP/2") }
            })
        let upstream = server.upstream()
        let text = try await TestLoop.run {
            let request = ClientRequest("GET", "/")
            request.isAlone = true
            return String(decoding: try await upstream.call(request).body, as: UTF8.self)
        }
        #expect(text == "close")
        #expect(await upstream.ask().text == "HTTP/2")
        await upstream.close()
        let other = server.upstream { $0.http2 = false }
        #expect(await other.ask().text == "none")
        await other.close()
    }

    @Test("A server that chooses HTTP/1.1 gets the requests that waited for its choice")
    func fallback() async throws {
        let server = ScriptedServer(.tls) { peer, _ in
            peer.respondToAll { peer.respond(200, $0.target) }
        }
        let upstream = server.upstream { $0.maximumTransfers = 4 }
        try await upstream.askAtOnce("POST", 20)
        #expect(server.connections == 4 && upstream.statistics.connections == 4)
        #expect(upstream.statistics.idleConnections == 4)
        await upstream.close()
    }

    @Test("A request that was cancelled before the server chose leaves nothing")
    func cancelledEarly() async throws {
        let server = ScriptedServer(.tls, context: nil) { peer, _ in _ = peer.body(1 << 20) }
        let upstream = server.upstream { $0.connectTimeout = 600_000_000_000 }
        let task = Task(executorPreference: TestLoop.loop) {
            _ = try await upstream.start(ClientRequest("GET", "/")).response()
        }
        await eventually { server.connections == 1 }
        task.cancel()
        let error = await #expect(throws: ClientError.self) { try await task.value }
        #expect(error?.code == .cancelled)
        await eventually {
            upstream.statistics.connections == 0 && upstream.statistics.objects == 0
        }
        await upstream.close()
    }
}
