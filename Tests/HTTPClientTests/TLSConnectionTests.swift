import COpenSSL
import Dispatch
import Glibc
import Synchronization
import System
import TestSupport
import Testing

@testable import HTTPClient

/// What happens on a connection of our transport over TLS.
@Suite("A connection over TLS", .timeLimit(.minutes(2)))
struct TLSConnectionTests {
    @Test(
        "An end without close_notify breaks off a body that ends with its connection",
        arguments: [true, false])
    func truncation(isOrderly: Bool) async throws {
        let server = ScriptedServer(.tls) { peer, _ in
            guard peer.request() != nil else { return }
            peer.send("HTTP/1.1 200 OK\r\n\r\nabc")
            if !isOrderly { peer.cut() }
        }
        let upstream = server.upstream()
        let outcome = await upstream.ask()
        #expect(outcome.text == (isOrderly ? "abc" : nil))
        #expect(outcome.code == (isOrderly ? nil : .connectionLost))
        await upstream.close()
    }

    @Test("A body of known length is complete without close_notify")
    func completeWithoutEnd() async throws {
        let server = ScriptedServer(.tls) { peer, _ in
            guard peer.request() != nil else { return }
            peer.respond(200, "hello")
            peer.cut()
        }
        let upstream = server.upstream()
        for count in 1...3 {
            #expect(await upstream.ask().text == "hello")
            await eventually { upstream.statistics.connections == 0 }
            #expect(server.connections == count)
        }
        await upstream.close()
    }

    @Test("Head and body of a small request share a record")
    func oneRecord() async throws {
        let sizes = Lock<[Int]>([])
        let server = ScriptedServer(.tls) { peer, _ in
            while case let count = peer.record(), count > 0 {
                sizes.withLock { $0.append(count) }
                guard count < 16_384, peer.respond() else { continue }
            }
        }
        let upstream = server.upstream()
        #expect(await upstream.ask("PUT", body: [UInt8](repeating: 7, count: 5000)).status == 200)
        #expect(await upstream.ask("PUT", body: [UInt8](repeating: 7, count: 20_000)).status == 200)
        let records = sizes.withLock { $0 }
        #expect(records.count == 3 && records[0] > 5000 && records[0] < 5200, "\(records)")
        #expect(records[1] == 16_384, "\(records)")
        await upstream.close()
    }

    // MARK: Sessions

    @Test("A new connection resumes a session", arguments: [TLS1_2_VERSION, TLS1_3_VERSION])
    func resumption(version: Int32) async throws {
        let resumed = Lock<[Bool]>([])
        let context = TestIdentity.shared.context { limit($0, to: version) }
        let server = ScriptedServer(.tls, context: context) { peer, _ in
            guard peer.request() != nil else { return }
            resumed.withLock { $0.append(peer.isResumed) }
            peer.respond(200, "ab", fields: "connection: close\r\n")
            peer.waitForEnd()
        }
        let upstream = server.upstream()
        for _ in 0..<4 { #expect(await upstream.ask().text == "ab") }
        #expect(resumed.withLock { $0 } == [false, true, true, true])
        await upstream.close()
    }

    @Test("A ticket of TLS 1.3 is used once")
    func singleUse() async throws {
        let resumed = Lock<[Bool]>([])
        let gate = DispatchSemaphore(value: 0)
        let context = TestIdentity.shared.context { SSL_CTX_set_num_tickets($0, 1) }
        let server = ScriptedServer(.tls, context: context) { peer, number in
            guard peer.request() != nil else { return }
            resumed.withLock { $0.append(peer.isResumed) }
            // The first connection leaves one ticket; the next two are open at once, and get theirs with the response.
            if number > 0 { gate.wait() }
            peer.respond(200, "ab", fields: "connection: close\r\n")
            peer.waitForEnd()
        }
        let upstream = server.upstream()
        #expect(await upstream.ask().text == "ab")
        async let first = upstream.ask()
        async let second = upstream.ask()
        await eventually { resumed.withLock { $0.count } == 3 }
        gate.signal()
        gate.signal()
        let texts = await [first.text, second.text]
        #expect(texts == ["ab", "ab"])
        // A server sends its ticket with the handshake, so the second connection may have one of the first.
        let all = resumed.withLock { $0 }
        #expect(!all[0] && all[1...].contains(true))
        await upstream.close()
    }

    // MARK: Messages of TLS itself

    @Test("Tickets and key updates on an idle connection do not close it")
    func idleMessages() async throws {
        let sent = AsyncStream<Void>.makeStream()
        let server = ScriptedServer(.tls) { peer, _ in
            for _ in 0..<4 {
                guard peer.request() != nil, peer.respond(200, "ab") else { return }
                for _ in 0..<2 { TestLoop.turn() }
                peer.sendTicket()
                peer.updateKeys()
                for _ in 0..<2 { TestLoop.turn() }
                sent.continuation.yield()
            }
            peer.waitForEnd()
        }
        let upstream = server.upstream()
        var steps = sent.stream.makeAsyncIterator()
        for method in ["GET", "POST", "PUT", "DELETE"] as [StaticString] {
            #expect(await upstream.ask(method).text == "ab")
            await steps.next()
            #expect(upstream.statistics.idleConnections == 1)
        }
        #expect(server.connections == 1)
        await upstream.close()
    }

    @Test("A server that sends nothing but messages of TLS is dropped")
    func flood() async throws {
        let server = ScriptedServer(.tls) { peer, _ in
            guard peer.request() != nil, peer.respond(200, "ab") else { return }
            while peer.sendTicket() {}
        }
        let upstream = server.upstream()
        #expect(await upstream.ask().text == "ab")
        await eventually { upstream.statistics.connections == 0 }
        await upstream.close()
    }

    @Test("Keys are updated in the middle of bodies, in both directions")
    func keyUpdates() async throws {
        let size = 1 << 20
        let server = ScriptedServer(.tls) { peer, _ in
            guard peer.head() != nil else { return }
            for _ in 0..<16 {
                peer.updateKeys()
                guard peer.body(size / 16) != nil else { return }
            }
            peer.send("HTTP/1.1 200 OK\r\ncontent-length: \(size)\r\n\r\n")
            for _ in 0..<16 {
                peer.send([UInt8](repeating: 7, count: size / 16))
                peer.updateKeys()
            }
            peer.waitForEnd()
        }
        let upstream = server.upstream()
        let body = [UInt8](repeating: 3, count: size)
        let outcome = await upstream.ask("PUT", body: body, limit: size)
        #expect((try? outcome.get().body) == [UInt8](repeating: 7, count: size))
        await upstream.close()
    }

    @Test("A renegotiation is refused")
    func renegotiation() async throws {
        let agreed = Lock<Bool?>(nil)
        let context = TestIdentity.shared.context { limit($0, to: TLS1_2_VERSION) }
        let server = ScriptedServer(.tls, context: context) { peer, number in
            guard peer.request() != nil, peer.respond(200, "ab") else { return }
            guard number == 0 else { return }
            let isAgreed = peer.renegotiate()
            agreed.withLock { $0 = isAgreed }
        }
        let upstream = server.upstream()
        #expect(await upstream.ask().text == "ab")
        await eventually { agreed.withLock { $0 } != nil }
        #expect(agreed.withLock { $0 } == false)
        #expect(await upstream.ask().text == "ab")
        await upstream.close()
    }

    @Test("A request that the server rejects after the handshake is a lost connection")
    func lateRejection() async throws {
        let server = ScriptedServer(.tls) { peer, _ in
            _ = peer.head()
            peer.cut()
        }
        let upstream = server.upstream()
        guard case .failure(let error) = await upstream.ask("POST", body: [1]) else {
            Issue.record("a response from nobody")
            return
        }
        #expect(error.code == .connectionLost && error.mayHaveReached)
        await upstream.close()
    }
}

/// Requests through an HTTP proxy, which libcurl makes.
@Suite("A proxy", .timeLimit(.minutes(2)))
struct ProxyTests {
    /// A proxy for one upstream, and the heads that it got.
    private func proxy(
        to port: UInt16, _ heads: Lock<[Peer.Request]>, status: Int = 200
    ) -> ScriptedServer {
        ScriptedServer { peer, _ in
            guard let head = peer.head() else { return }
            heads.withLock { $0.append(head) }
            guard status == 200 else {
                peer.respond(status)
                return
            }
            peer.send("HTTP/1.1 200 Connection established\r\nx-proxy: 1\r\n\r\n")
            peer.relay(to: port)
        }
    }

    @Test("Requests over TLS go through it, and only TLS does", arguments: Way.http1)
    func proxied(way: Way) async throws {
        let server = ScriptedServer(way) { peer, _ in
            peer.respondToAll { peer.respond(200, "\($0.body.count)") }
        }
        let heads = Lock<[Peer.Request]>([])
        let proxy = proxy(to: server.port, heads)
        let upstream = server.upstream {
            $0.proxy = ProxyAddress("http://user:secret@127.0.0.1:\(proxy.port)/")
        }
        for count in [0, 100_000] {
            let outcome = await upstream.ask("PUT", body: [UInt8](repeating: 1, count: count))
            #expect(outcome.text == "\(count)", "\(outcome)")
            #expect((try? outcome.get().fields["x-proxy"]) == nil as String?)
        }
        let seen = heads.withLock { $0 }
        #expect(seen.count == (way == .clear ? 0 : 1))
        if let head = seen.first {
            #expect(head.line == "CONNECT 127.0.0.1:\(server.port) HTTP/1.1")
            #expect(head.fields["proxy-authorization"] == "Basic dXNlcjpzZWNyZXQ=")
        }
        await upstream.close()
    }

    @Test(
        "A proxy that refuses or is missing makes the upstream unreachable",
        arguments: [403, 407, 0])
    func refusal(status: Int) async throws {
        let server = ScriptedServer(.tls) { _, _ in Issue.record("a connection past the proxy") }
        let heads = Lock<[Peer.Request]>([])
        var port: UInt16 = 1
        let proxy = proxy(to: server.port, heads, status: status)
        if status > 0 { port = proxy.port }
        let upstream = server.upstream {
            $0.proxy = ProxyAddress("http://user:secret@127.0.0.1:\(port)")
        }
        guard case .failure(let error) = await upstream.ask("POST", body: [1]) else {
            Issue.record("a response from nobody")
            return
        }
        #expect(error.code == .unreachable && !error.mayHaveReached, "\(error)")
        #expect(
            !error.cause.contains("secret") && (status == 0 || error.cause.contains("\(status)")))
        await upstream.close()
    }

    @Test("The environment's proxy is for other hosts than those of NO_PROXY and loopback")
    func environment() throws {
        func found(_ url: String, _ exceptions: String, proxy: String = "proxy.test:3128")
            -> String?
        {
            try? ProxyAddress.environment(
                for: Origin(url)!, ["HTTPS_PROXY": proxy, "no_proxy": exceptions])?.url
        }
        #expect(found("https://a.example.com", "") == "http://proxy.test:3128")
        #expect(found("https://a.example.com", "b.example.com, .other") != nil)
        for exceptions in ["*", "a.example.com", "example.com", ".example.com", "x,A.Example.com"] {
            #expect(found("https://a.example.com", exceptions) == nil)
        }
        #expect(found("https://aexample.com", "example.com") != nil)
        #expect(found("http://a.example.com", "") == nil && found("https://127.0.0.1", "") == nil)
        #expect(found("https://a.test", "", proxy: "http://u:p@h:1/") == "http://u:p@h:1")
        #expect(throws: ProxyAddress.Malformed.self) {
            try ProxyAddress.environment(
                for: Origin("https://a.test")!, ["https_proxy": "socks5://proxy.test"])
        }
        #expect(
            ProxyAddress("http://user:secret@h:1")?.description == "http://<redacted>@h:1")
        for url in ["http://<redacted>@h:1", "http://h:1/path", "h:1", "http://u:p@", "ftp://h"] {
            #expect(ProxyAddress(url) == nil)
        }
    }
}
