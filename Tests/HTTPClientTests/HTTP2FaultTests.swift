import Dispatch
import Synchronization
import System
import TestSupport
import Testing

@testable import HTTPClient

/// What an upstream with HTTP/2 can do wrong.
@Suite("A faulty upstream with HTTP/2", .timeLimit(.minutes(2)))
struct HTTP2FaultTests {
    /// Expects that nothing is left of the requests, and closes the client.
    private func end(_ upstream: Upstream) async {
        await eventually { upstream.statistics.objects == 0 && upstream.statistics.inFlight == 0 }
        await upstream.close()
        #expect(upstream.statistics.connections == 0 && upstream.statistics.idleConnections == 0)
    }

    // MARK: Requests that are not processed

    @Test("A refused request is sent again, a write as well", arguments: 0..<3)
    func refused(kind: Int) async throws {
        let bodies = Lock<[[UInt8]]>([])
        let server = ScriptedServer.http2 { peer, _, number in
            while let request = peer.request() {
                if number == 0 {
                    switch kind {
                    case 0: peer.reset(request.id, 7)
                    case 1: peer.goAway(last: max(request.id, 2) - 2)
                    default:
                        // GOAWAY alone does not end what was accepted.
                        peer.goAway(last: request.id)
                        bodies.withLock { $0.append(request.body) }
                        peer.respond(request.id, 200, "done")
                    }
                    continue
                }
                bodies.withLock { $0.append(request.body) }
                peer.respond(request.id, 200, "done")
            }
        }
        let upstream = server.upstream()
        #expect(await upstream.ask("POST", body: [1, 2]).text == "done")
        #expect(await upstream.ask("POST", body: [3, 4]).text == "done")
        #expect(bodies.withLock { $0 } == [[1, 2], [3, 4]])
        #expect(server.connections == 2)
        await end(upstream)
    }

    @Test("A server that refuses everything gets three requests, and did not act on any")
    func refusesAll() async throws {
        let server = ScriptedServer.http2 { peer, _, _ in
            while let request = peer.request() { peer.reset(request.id, 7) }
        }
        let upstream = server.upstream()
        guard case .failure(let error) = await upstream.ask("POST", body: [1]) else {
            Issue.record("a response from nobody")
            return
        }
        #expect(error.code == .connectionLost && !error.mayHaveReached, "\(error)")
        await end(upstream)
    }

    @Test("A refused request whose body was read from its writer is not sent again")
    func refusedPipe() async throws {
        let server = ScriptedServer.http2 { peer, _, _ in
            while let head = peer.head() {
                while peer.window(of: 0) > 0, peer.pump() {
                    peer.reset(head.id, 7)
                    break
                }
            }
        }
        let upstream = server.upstream()
        let code: ClientError? = try await TestLoop.run {
            let pipe = RequestBodyPipe(length: 200_000)
            let exchange = upstream.start(ClientRequest("PUT", "/", body: .pipe(pipe)))
            do {
                try await fill(pipe, 200_000)
                _ = try await exchange.response()
            } catch RequestBodyPipe.Interruption.failed(let error) {
                return error
            } catch {
                return error as? ClientError
            }
            return nil
        }
        #expect(code?.code == .connectionLost && code?.mayHaveReached == false)
        #expect(server.connections == 1)
        await end(upstream)
    }

    @Test("A stream that requires HTTP/1.1 gets it")
    func requiresHTTP1() async throws {
        let server = ScriptedServer.http2(
            http1: { peer in
                peer.respondToAll { peer.respond(200, "\($0.body)") }
            },
            script: { peer, _, _ in
                while let request = peer.request() { peer.reset(request.id, 13) }
            })
        let upstream = server.upstream()
        #expect(await upstream.ask("POST", body: [1]).text == "[1]")
        await end(upstream)
    }

    @Test("A request whose connection is lost is sent again if that is safe")
    func stale() async throws {
        let server = ScriptedServer.http2 { peer, raw, number in
            guard let first = peer.request() else { return }
            peer.respond(first.id, 200, "first")
            if peer.request() == nil || number > 0 { return }
            raw.reset()
        }
        let upstream = server.upstream()
        #expect(await upstream.ask().text == "first")
        #expect(await upstream.ask().text == "first")
        #expect(server.connections == 2)
        await upstream.close()
        let other = ScriptedServer.http2 { peer, _, _ in
            guard let first = peer.request() else { return }
            peer.respond(first.id, 200, "first")
            _ = peer.request()
        }
        let client = other.upstream()
        #expect(await client.ask().text == "first")
        guard case .failure(let error) = await client.ask("POST", body: [1]) else {
            Issue.record("a request was sent twice")
            return
        }
        #expect(error.code == .connectionLost && error.mayHaveReached)
        #expect(other.connections == 1)
        await end(client)
    }

    @Test("A connection that ended while idle is not used again", arguments: [true, false])
    func closedWhileIdle(hasGoAway: Bool) async throws {
        let closed = AsyncStream<Void>.makeStream()
        let server = ScriptedServer.http2 { peer, raw, _ in
            guard let request = peer.request() else { return }
            peer.respond(request.id, 200, "ab")
            if hasGoAway { peer.goAway(last: request.id) } else { raw.close() }
            closed.continuation.yield()
            peer.waitForEnd()
        }
        let upstream = server.upstream()
        var steps = closed.stream.makeAsyncIterator()
        for count in 1...3 {
            #expect(await upstream.ask("POST", body: [1]).text == "ab")
            await steps.next()
            #expect(server.connections == count)
        }
        await end(upstream)
    }

    // MARK: Responses that do not end

    @Test("An incomplete response is an error, never a short body", arguments: 0..<6)
    func truncation(kind: Int) async throws {
        let server = ScriptedServer.http2 { peer, raw, _ in
            guard let request = peer.request() else { return }
            if kind > 1 {
                peer.headers(request.id, [(":status", "200")])
                peer.data(request.id, [1, 2, 3], ends: false)
            }
            switch kind {
            case 0, 2: raw.close()
            case 1, 3: raw.reset()
            case 4: peer.reset(request.id, 0)
            default: peer.reset(request.id, 2)
            }
            peer.waitForEnd()
        }
        let upstream = server.upstream()
        #expect(await upstream.ask().code == .connectionLost)
        #expect(server.connections == 1)
        await end(upstream)
    }

    @Test("An upstream that stalls times out, and gets no further requests", arguments: 0..<4)
    func stalls(place: Int) async throws {
        let server = ScriptedServer.http2 { peer, _, _ in
            peer.isStingy = true
            while let head = peer.head() {
                if head.target == "/quick" {
                    peer.respond(head.id, 200, "quick")
                    continue
                }
                switch place {
                case 0: peer.headers(head.id, [(":status", "103")])
                case 1: peer.headers(head.id, [(":status", "200"), ("content-length", "5")])
                case 2:
                    peer.headers(head.id, [(":status", "200")])
                    peer.data(head.id, [1, 2, 3], ends: false)
                default: break  // The window stays closed: the body is larger.
                }
            }
        }
        let upstream = server.upstream {
            $0.firstByteTimeout = 10_000_000_000
            $0.progressTimeout = 10_000_000_000
        }
        #expect(await upstream.ask("GET", "/quick").text == "quick")
        let body = [UInt8](repeating: 1, count: place == 3 ? 200_000 : 10)
        #expect(await upstream.ask("PUT", "/slow", body: body).code == .timedOut)
        #expect(await upstream.ask("GET", "/quick").text == "quick")
        #expect(server.connections == 2)
        await end(upstream)
    }

    @Test("Cancelling a request resets its stream, and the others go on", arguments: 0..<3)
    func cancellation(place: Int) async throws {
        let steps = AsyncStream<UInt32?>.makeStream()
        let server = ScriptedServer.http2 { peer, _, _ in
            guard let other = peer.request(), let head = peer.head() else { return }
            if place == 1 {
                peer.headers(head.id, [(":status", "200")])
                peer.data(head.id, [1, 2, 3], ends: false)
            }
            steps.continuation.yield(nil)
            steps.continuation.yield(peer.reset(of: head.id))
            peer.respond(other.id, 200, "other")
            peer.waitForEnd()
        }
        let upstream = server.upstream()
        async let other = upstream.ask("GET", "/other")
        await eventually { upstream.statistics.inFlight == 1 && server.connections == 1 }
        let task = Task(executorPreference: TestLoop.loop) {
            let body: RequestBody = place == 2 ? .pipe(RequestBodyPipe(length: 5)) : .none
            let exchange = upstream.start(ClientRequest("PUT", "/x", body: body))
            _ = try await exchange.response().collect(limit: 10)
        }
        var results = steps.stream.makeAsyncIterator()
        _ = await results.next()
        if place == 1 { for _ in 0..<4 { TestLoop.turn() } }
        task.cancel()
        let error = await #expect(throws: ClientError.self) { try await task.value }
        #expect(error?.code == .cancelled)
        #expect(await results.next() == 8)
        #expect(await other.text == "other")
        #expect(server.connections == 1)
        await end(upstream)
    }

    @Test("A body that is closed early resets its stream, and its connection is used again")
    func closedBody() async throws {
        let server = ScriptedServer.http2 { peer, _, _ in
            while let request = peer.request() {
                peer.headers(request.id, [(":status", "200"), ("content-length", "200000")])
                peer.data(request.id, [UInt8](repeating: 7, count: 200_000))
            }
        }
        let upstream = server.upstream()
        for _ in 0..<5 {
            try await TestLoop.run {
                try await upstream.send(ClientRequest("GET", "/")).body.close()
            }
        }
        // The connection's window is open again.
        #expect((try? await upstream.ask().get().body.count) == 200_000)
        #expect(server.connections == 1)
        await end(upstream)
    }

    @Test("A response before the body's end is delivered, and ends the body")
    func earlyResponse() async throws {
        let resets = Lock<[UInt32?]>([])
        let server = ScriptedServer.http2 { peer, _, _ in
            peer.isStingy = true
            while let head = peer.head() {
                if head.method == "GET" {
                    peer.respond(head.id, 200, "next")
                    continue
                }
                peer.respond(head.id, 403, "no")
                let code = peer.reset(of: head.id)
                resets.withLock { $0.append(code) }
            }
        }
        let upstream = server.upstream()
        let text = try await TestLoop.run {
            let pipe = RequestBodyPipe(length: 200_000)
            let exchange = upstream.start(ClientRequest("PUT", "/x", body: .pipe(pipe)))
            await #expect(throws: RequestBodyPipe.Interruption.responded(status: 403)) {
                try await fill(pipe, 200_000)
            }
            return String(
                decoding: try await exchange.response().collect(limit: 10), as: UTF8.self)
        }
        #expect(text == "no")
        #expect(await upstream.ask().text == "next")
        #expect(resets.withLock { $0 } == [8] && server.connections == 1)
        await end(upstream)
    }

    // MARK: A hostile server

    /// What it does on the stream of a request.
    enum Attack: String, CaseIterable, Sendable, CustomTestStringConvertible {
        case longerThanDeclared, shorterThanDeclared, endWithLength, noStatus, badStatus
        case switching, upperCase, connectionField, control, twoLengths, hugeLength, dataFirst
        case manyFields, largeFields, largeTrailers, interim, push, settings, pings, unknown
        case emptyData, priorities, continuations, resetsOfNothing, windowOverflow
        case streamWindowOverflow, zeroWindowUpdate, beyondWindow, evenStream, unopened
        case frameTooLarge, garbage, badCompression, headersAfterEnd, dataAfterEnd, http1
        var testDescription: String { rawValue }
    }

    private static func run(_ attack: Attack, _ peer: HTTP2Peer, _ raw: Peer, _ id: UInt32) {
        let ok = [(":status", "200")]
        func flood(_ frame: () -> Bool) { while frame() {} }
        switch attack {
        case .longerThanDeclared:
            peer.headers(id, ok + [("content-length", "2")])
            peer.data(id, [1, 2, 3])
        case .shorterThanDeclared:
            peer.headers(id, ok + [("content-length", "4")])
            peer.data(id, [1, 2, 3])
        case .endWithLength: peer.headers(id, ok + [("content-length", "4")], ends: true)
        case .noStatus: peer.headers(id, [("x", "y")], ends: true)
        case .badStatus: peer.headers(id, [(":status", "700")], ends: true)
        case .switching: peer.headers(id, [(":status", "101")])
        case .upperCase: peer.headers(id, ok + [("X-Name", "y")], ends: true)
        case .connectionField: peer.headers(id, ok + [("transfer-encoding", "chunked")])
        case .control: peer.headers(id, ok + [("x", "a\r\nb")], ends: true)
        case .twoLengths:
            peer.headers(id, ok + [("content-length", "1"), ("content-length", "1")])
        case .hugeLength: peer.headers(id, ok + [("content-length", "9223372036854775808")])
        case .dataFirst: peer.data(id, [1])
        case .manyFields: peer.headers(id, ok + Array(repeating: ("a", "b"), count: 1100))
        case .largeFields:
            // Indexed once and then repeated by single bytes.
            let long = String(repeating: "v", count: 2000)
            var block = HTTP2Peer.block(ok)
            block += [0x40] + HTTP2Peer.block([("aa", long)])[1...]
            block += [UInt8](repeating: 0xbe, count: 1000)
            peer.send(.headers, 4, id, block)
        case .largeTrailers:
            peer.headers(id, ok)
            peer.headers(id, Array(repeating: ("a", "b"), count: 1100), ends: true)
        case .interim: flood { peer.headers(id, [(":status", "103")]) }
        case .push: peer.send(.push, 4, id, HTTP2Peer.bytes(2) + HTTP2Peer.block(ok))
        case .settings: flood { peer.send(.settings, 0, 0, []) }
        case .pings: flood { peer.send(.ping, 0, 0, [UInt8](repeating: 1, count: 8)) }
        case .unknown: flood { peer.send(type: 0xbb, 0, 0, [1]) }
        case .emptyData:
            peer.headers(id, ok)
            flood { peer.send(.data, 0, id, []) }
        case .priorities: flood { peer.send(.priority, 0, id, [0, 0, 0, 0, 1]) }
        case .continuations:
            peer.send(.headers, 0, id, HTTP2Peer.block(ok))
            flood { peer.send(.continuation, 0, id, HTTP2Peer.block([("a", "b")])) }
        case .resetsOfNothing:
            peer.headers(id, ok)
            flood { peer.send(.priority, 0, 99, [0, 0, 0, 0, 1]) }
        case .windowOverflow:
            for _ in 0..<2 { peer.send(.windowUpdate, 0, 0, HTTP2Peer.bytes(0x7fff_ffff)) }
        case .streamWindowOverflow:
            for _ in 0..<2 { peer.send(.windowUpdate, 0, id, HTTP2Peer.bytes(0x7fff_ffff)) }
        case .zeroWindowUpdate: peer.send(.windowUpdate, 0, 0, HTTP2Peer.bytes(0))
        case .beyondWindow:
            peer.headers(id, ok)
            for _ in 0..<12 { peer.send(.data, 0, id, [UInt8](repeating: 7, count: 16_384)) }
        case .evenStream: peer.headers(2, ok, ends: true)
        case .unopened: peer.send(.data, 0, 99, [1])
        case .frameTooLarge: peer.send(.data, 0, id, [UInt8](repeating: 1, count: 20_000))
        case .garbage: raw.send([UInt8](repeating: 0xff, count: 4096))
        case .badCompression: peer.send(.headers, 5, id, [0xff, 0xff, 0xff, 0xff, 0xff, 0xff])
        case .headersAfterEnd:
            peer.headers(id, ok)
            peer.headers(id, [("x", "y")])
        case .dataAfterEnd:
            peer.headers(id, ok + [("content-length", "1")])
            peer.data(id, [1, 2], ends: false)
        case .http1: raw.send("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        }
    }

    @Test("A hostile server gets an error, and leaves nothing", arguments: Attack.allCases)
    func hostile(attack: Attack) async throws {
        let server = ScriptedServer.http2 { peer, raw, number in
            while let request = peer.request() {
                guard request.target == "/attack" else {
                    peer.respond(request.id, 200, "ab")
                    continue
                }
                HTTP2FaultTests.run(attack, peer, raw, request.id)
            }
        }
        let upstream = server.upstream()
        #expect(await upstream.ask().text == "ab")
        let outcome: Result<CollectedResponse, ClientError>
        if attack == .beyondWindow {
            // Its reader reads nothing.
            outcome = try await TestLoop.run {
                do throws(ClientError) {
                    let response = try await upstream.start(ClientRequest("POST", "/attack"))
                        .response()
                    while upstream.statistics.inFlight > 0 { await Pause.sleep(5_000_000) }
                    return .success(
                        CollectedResponse(
                            status: 200, fields: response.fields,
                            body: try await response.collect(limit: 1 << 30)))
                } catch {
                    return .failure(error)
                }
            }
        } else {
            outcome = await upstream.ask("POST", "/attack", limit: 1 << 30)
        }
        #expect(outcome.code == .malformed, "\(outcome)")
        // Its stream was reset, and it goes on: a flood now.
        if attack == .interim { await eventually { upstream.statistics.connections == 0 } }
        #expect(await upstream.ask().text == "ab")
        await end(upstream)
    }

    @Test("A flood on an idle connection closes it")
    func idleFlood() async throws {
        let server = ScriptedServer.http2 { peer, _, _ in
            guard let request = peer.request(), peer.respond(request.id, 200, "ab") else { return }
            while peer.send(.ping, 0, 0, [UInt8](repeating: 1, count: 8)) {}
        }
        let upstream = server.upstream()
        #expect(await upstream.ask().text == "ab")
        await eventually { upstream.statistics.connections == 0 }
        await end(upstream)
    }

    @Test("An idle connection responds to PING and SETTINGS, and closes after its time")
    func idle() async throws {
        let pinged = AsyncStream<Bool>.makeStream()
        let server = ScriptedServer.http2 { peer, _, _ in
            guard let request = peer.request() else { return }
            peer.respond(request.id, 200, "ab")
            peer.send(.settings, 0, 0, [])
            peer.send(.ping, 0, 0, [UInt8](repeating: 1, count: 8))
            while peer.acknowledgedPings == 0 { guard peer.pump() else { break } }
            pinged.continuation.yield(peer.acknowledgedPings == 1)
            peer.waitForEnd()
            pinged.continuation.yield(true)
        }
        let upstream = server.upstream { $0.idleTimeout = 3_000_000_000 }
        #expect(await upstream.ask().text == "ab")
        var steps = pinged.stream.makeAsyncIterator()
        #expect(await steps.next() == true)
        #expect(await steps.next() == true)
        await eventually { upstream.statistics.connections == 0 }
        await end(upstream)
    }
}
