import Synchronization
import System
import TestSupport
import Testing

@testable import HTTPClient

/// What an upstream does with many requests and with failures.
@Suite("An upstream", .timeLimit(.minutes(2)))
struct UpstreamTests {
    /// Attempts as they ended.
    private final class Records: UpstreamObserver {
        let all = Lock<[UpstreamRecord]>([])
        func finished(_ record: UpstreamRecord) { all.withLock { $0.append(record) } }
    }

    @Test("A thousand requests at once share a few connections", arguments: Way.http1)
    func thousand(way: Way) async throws {
        let server = ScriptedServer(way) { peer, _ in
            peer.respondToAll { peer.respond(200, $0.target) }
        }
        let records = Records()
        let upstream = server.upstream(records) {
            $0.maximumTransfers = 8
            $0.queueTimeout = 60_000_000_000
        }
        await withTaskGroup { group in
            for index in 0..<1000 {
                group.addTask { await upstream.ask("GET", "/\(index)").text == "/\(index)" }
            }
            for await isRight in group { #expect(isRight) }
        }
        #expect(server.connections <= 8)
        #expect(upstream.statistics.inFlight == 0 && upstream.statistics.queued == 0)
        await eventually { records.all.withLock { $0.count } == 1000 }
        await upstream.close()
    }

    @Test("A body that breaks off is no success", arguments: Way.http1)
    func brokenBody(way: Way) async throws {
        let server = ScriptedServer(way) { peer, _ in
            guard peer.request() != nil else { return }
            peer.send("HTTP/1.1 200 OK\r\ncontent-length: 800\r\n\r\nabc")
        }
        let records = Records()
        let upstream = server.upstream(records)
        #expect(await upstream.ask().code == .connectionLost)
        await eventually { records.all.withLock { !$0.isEmpty } }
        let ends = records.all.withLock { $0 }
        #expect(ends.map(\.status) == [200] && ends.map(\.error) == [.connectionLost])
        await upstream.close()
    }

    /// A server that responds only once `gate` was closed, and a client of one request at a time.
    private func blocked(_ way: Way, _ change: (inout UpstreamSettings) -> Void) -> (
        ScriptedServer, Upstream
    ) {
        let server = ScriptedServer(way) { peer, _ in
            _ = peer.request()
            peer.waitForEnd()
        }
        let upstream = server.upstream {
            $0.maximumTransfers = 1
            $0.firstByteTimeout = 110_000_000_000
            change(&$0)
        }
        return (server, upstream)
    }

    @Test("A request that finds the queue full fails at once")
    func fullQueue() async throws {
        let (server, upstream) = blocked(.clear) {
            $0.queueTimeout = 110_000_000_000
            $0.maximumQueue = 2
        }
        let first = Task { await upstream.ask() }
        await eventually { upstream.statistics.inFlight == 1 }
        let second = Task { await upstream.ask() }
        let third = Task { await upstream.ask() }
        await eventually { upstream.statistics.queued == 2 }
        #expect(await upstream.ask().code == .queueFull)
        #expect(upstream.statistics.queued == 2)
        await upstream.close()
        for task in [first, second, third] { task.cancel() }
        withExtendedLifetime(server) {}
    }

    @Test("A request that waits too long in the queue fails")
    func queueTimeout() async throws {
        let (server, upstream) = blocked(.clear) { $0.queueTimeout = 50_000_000 }
        let first = Task { await upstream.ask() }
        await eventually { upstream.statistics.inFlight == 1 }
        #expect(await upstream.ask().code == .queueFull)
        #expect(upstream.statistics.inFlight == 1 && upstream.statistics.queued == 0)
        await upstream.close()
        first.cancel()
        withExtendedLifetime(server) {}
    }

    @Test("A closed upstream sends nothing", arguments: Way.http1)
    func closing(way: Way) async throws {
        let server = ScriptedServer(way) { peer, _ in peer.respondToAll { _ in peer.respond() } }
        let upstream = server.upstream()
        #expect(await upstream.ask().status == 200)
        await upstream.close()
        #expect(await upstream.ask().code == .cancelled)
    }

    // MARK: Retries

    /// Sends with retries; the status or the error's code.
    private func send(
        _ upstream: Upstream, _ method: StaticString = "GET", isRepeatable: Bool? = nil
    ) async -> String {
        let text = try? await TestLoop.run {
            let request = ClientRequest(
                method, "/x", body: .bytes([1]), isRepeatable: isRepeatable)
            do throws(ClientError) {
                let response = try await upstream.call(request)
                return "\(response.status) \(String(decoding: response.body, as: UTF8.self))"
            } catch {
                return error.code.rawValue
            }
        }
        return text ?? ""
    }

    @Test("A repeatable request is repeated until it succeeds", arguments: Way.http1)
    func retries(way: Way) async throws {
        let count = Atomic<Int>(0)
        let server = ScriptedServer(way) { peer, _ in
            peer.respondToAll { _ in
                switch count.add(1, ordering: .relaxed).oldValue {
                case 0: peer.respond(503, "no")
                case 1: peer.respond(429, "no", fields: "retry-after: 0\r\n")
                case 2: peer.send("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nab") && false
                default: peer.respond(200, "yes")
                }
            }
        }
        let records = Records()
        let upstream = server.upstream(records) { $0.retryDelay = 1_000_000 }
        #expect(await send(upstream) == "200 yes")
        #expect(upstream.statistics.retries == 3)
        #expect(records.all.withLock { $0.map(\.attempt) } == [1, 2, 3, 4])
        await upstream.close()
    }

    @Test("A request that is not repeatable is sent once", arguments: Way.http1)
    func onlyOnce(way: Way) async throws {
        let count = Atomic<Int>(0)
        let server = ScriptedServer(way) { peer, _ in
            peer.respondToAll { _ in
                count.add(1, ordering: .relaxed).oldValue == 0 && peer.respond(503, "no")
            }
        }
        let upstream = server.upstream { $0.retryDelay = 1_000_000 }
        #expect(await send(upstream, "POST") == "503 no")
        #expect(await send(upstream, "POST") == "connection-lost")
        #expect(count.load(ordering: .relaxed) == 2 && upstream.statistics.retries == 0)
        await upstream.close()
    }

    @Test("Retry-After is honoured, and one that is too long ends the attempts")
    func retryAfter() async throws {
        let server = ScriptedServer { peer, _ in
            peer.respondToAll { _ in peer.respond(503, "no", fields: "retry-after: 3600\r\n") }
        }
        let upstream = server.upstream()
        #expect(await send(upstream) == "503 no")
        #expect(upstream.statistics.retries == 0)
        await upstream.close()

        let count = Atomic<Int>(0)
        let other = ScriptedServer { peer, _ in
            peer.respondToAll { _ in
                count.add(1, ordering: .relaxed).oldValue > 0
                    ? peer.respond(200, "yes")
                    : peer.respond(503, "no", fields: "retry-after: 1\r\n")
            }
        }
        let patient = other.upstream { $0.retryDelay = 1 }
        let begun = EventLoop.monotonicNow()
        #expect(await send(patient) == "200 yes")
        #expect(EventLoop.monotonicNow() - begun >= 1_000_000_000)
        await patient.close()
    }

    @Test("A huge Retry-After ends the attempts", arguments: Way.http1)
    func endlessRetryAfter(way: Way) async throws {
        for text in ["Fri, 31 Dec 9999 23:59:59 GMT", "18446744073709551615", "20000000000"] {
            let server = ScriptedServer(way) { peer, _ in
                peer.respondToAll { _ in peer.respond(503, "no", fields: "retry-after: \(text)\r\n")
                }
            }
            let upstream = server.upstream()
            #expect(await send(upstream) == "503 no")
            #expect(upstream.statistics.retries == 0)
            await upstream.close()
        }
    }

    @Test("A request may ask for fewer attempts than the upstream allows")
    func fewerAttempts() async throws {
        let server = ScriptedServer { peer, _ in peer.respondToAll { _ in peer.respond(503, "no") }
        }
        let upstream = server.upstream { $0.retryDelay = 1 }
        let status = try await TestLoop.run {
            let request = ClientRequest("GET", "/x")
            request.attempts = 2
            return try await upstream.call(request).status
        }
        #expect(status == 503 && upstream.statistics.retries == 1)
        await upstream.close()
    }

    @Test("Retries have a budget: a tenth of the requests, some each second, and a reserve")
    func budget() async throws {
        let second: UInt64 = 1_000_000_000
        let budget = RetryBudget()
        func taken(at now: UInt64) -> Int { (0..<1000).count { _ in budget.take(now: now) } }
        #expect(taken(at: second) == RetryBudget.reserve)
        #expect(taken(at: second) == 0)
        #expect(taken(at: second * 2) == 10)
        for _ in 0..<35 { budget.requestBegan() }
        #expect(taken(at: second * 2) == 3)
        #expect(taken(at: second * 1000) == RetryBudget.reserve)

        let server = ScriptedServer { peer, _ in
            peer.respondToAll { _ in peer.respond(503, "no") }
        }
        let upstream = server.upstream { $0.retryDelay = 1 }
        for _ in 0..<10 { _ = await send(upstream) }
        #expect(upstream.statistics.retries == 10 * (upstream.settings.attempts - 1))
        await upstream.close()
    }

    // MARK: The breaker

    @Test(
        "The circuit opens after repeated failures, and closes again",
        arguments: Way.http1)
    func breaker(way: Way) async throws {
        let isUp = Atomic<Bool>(false)
        let server = ScriptedServer(way) { peer, _ in
            peer.respondToAll { _ in isUp.load(ordering: .relaxed) && peer.respond(200, "yes") }
        }
        let upstream = server.upstream()
        for _ in 0..<CircuitBreaker.threshold {
            #expect(await upstream.ask("POST").code == .connectionLost)
        }
        #expect(upstream.openCircuit != nil)
        // Between two attempts, which a loaded machine may be late for.
        await eventually {
            let before = server.connections
            let code = await upstream.ask("POST").code
            return code == .circuitOpen && server.connections == before
        }
        isUp.store(true, ordering: .relaxed)
        await eventually { await upstream.ask("POST").status == 200 }
        #expect(upstream.openCircuit == nil)
        await upstream.close()
    }

    @Test(
        "A slow upload as the first attempt does not block other requests",
        arguments: Way.http1)
    func slowTrial(way: Way) async throws {
        let isUp = Atomic<Bool>(false)
        let server = ScriptedServer(way) { peer, _ in
            guard isUp.load(ordering: .relaxed) else { return }
            peer.respondToAll { _ in peer.respond(200, "yes") }
        }
        let upstream = server.upstream()
        while upstream.openCircuit == nil { _ = await upstream.ask("POST") }
        isUp.store(true, ordering: .relaxed)
        // Its client sends nothing at all.
        let uploads = Task(executorPreference: TestLoop.loop) {
            var exchange: ClientExchange?
            while !Task.isCancelled {
                let pipe = RequestBodyPipe(length: 5)
                let next = upstream.start(ClientRequest("PUT", "/slow", body: .pipe(pipe)))
                for _ in 0..<4 where pipe.interruption == nil { await Pause.sleep(1_000_000) }
                guard pipe.interruption != nil else {
                    exchange = next
                    break
                }
            }
            return exchange
        }
        let slow = await uploads.value
        #expect(upstream.openCircuit != nil, "the upload is under way, and nothing is known")
        await eventually { await upstream.ask().status == 200 }
        #expect(upstream.openCircuit == nil)
        TestLoop.loop.execute { slow?.cancel() }
        await upstream.close()
    }

    @Test("One request with incomplete or malformed responses does not open the circuit")
    func poison() async throws {
        let server = ScriptedServer { peer, _ in
            peer.respondToAll { request in
                if request.target == "/cut" { return false }
                return peer.send("HTTP/1.1 200 OK\r\nx: \(String(repeating: "a", count: 70_000))")
            }
        }
        let upstream = server.upstream { $0.retryDelay = 1 }
        for _ in 0..<20 { #expect(await upstream.ask("GET", "/long").code == .malformed) }
        for _ in 1..<CircuitBreaker.threshold {
            let code = try await TestLoop.run {
                do throws(ClientError) {
                    _ = try await upstream.call(ClientRequest("GET", "/cut"))
                    return nil as ClientError.Code?
                } catch { return error.code }
            }
            #expect(code == .connectionLost)
        }
        #expect(upstream.openCircuit == nil && upstream.statistics.retries > 0)
        await upstream.close()
    }

    @Test("Connections are counted while their requests are in progress", arguments: Way.http1)
    func connectionNumbers(way: Way) async throws {
        let (server, upstream) = blocked(way) { _ in }
        let first = Task(executorPreference: TestLoop.loop) {
            _ = try? await upstream.start(ClientRequest("GET", "/x")).response()
        }
        await eventually { upstream.statistics.connections == 1 }
        #expect(upstream.statistics.idleConnections == 0)
        first.cancel()
        await upstream.close()
        await eventually { upstream.statistics.connections == 0 }
        withExtendedLifetime(server) {}
    }
}
