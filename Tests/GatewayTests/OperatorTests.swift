import Foundation
import Glibc
import HTTPServer
import Synchronization
import System
import Testing

@testable import Gateway
@testable import Telemetry

/// A store whose health the test decides.
private final class Store: Sendable {
    struct Broken: Error, CustomStringConvertible {
        var description: String { "token=S3CRET\nforged ok" }
    }
    private struct State {
        var isBroken = false
        var checks = 0
        var isStuck = false
        var stuck: [CheckedContinuation<Void, Never>] = []
    }
    private let state = Lock(State())

    var checks: Int { state.withLock { $0.checks } }
    func breakDown(_ isBroken: Bool) { state.withLock { $0.isBroken = isBroken } }
    func stick() { state.withLock { $0.isStuck = true } }
    func release() {
        let all = state.withLock { state in
            state.isStuck = false
            defer { state.stuck = [] }
            return state.stuck
        }
        for one in all { one.resume() }
    }

    func check() async throws {
        await withCheckedContinuation { waiter in
            let isStuck = state.withLock { state in
                state.checks += 1
                if state.isStuck { state.stuck.append(waiter) }
                return state.isStuck
            }
            if !isStuck { waiter.resume() }
        }
        if state.withLock({ $0.isBroken }) { throw Broken() }
    }
}

private final class Clock: Sendable {
    private let time = Atomic<UInt64>(1)
    var now: UInt64 { time.load(ordering: .relaxed) }
    func advance(_ nanoseconds: UInt64) { time.add(nanoseconds, ordering: .relaxed) }
}

@Suite struct HealthTests {
    private let store = Store()
    private let clock = Clock()

    private func health(timeout: UInt64 = 60_000_000_000) -> Health {
        let health = Health(freshness: 1000, timeout: timeout) { [clock] in clock.now }
        health.add("store") { [store] in try await store.check() }
        return health
    }

    @Test func aResultIsCachedUntilItIsTooOld() async {
        let health = health()
        #expect(await health.report().isReady)
        store.breakDown(true)
        clock.advance(999)
        #expect(await health.report().isReady)
        #expect(store.checks == 1)
        clock.advance(1)
        let report = await health.report()
        #expect(!report.isReady)
        #expect(report.results == [.init(name: "store", failure: "\(Store.Broken())")])
        store.breakDown(false)
        clock.advance(1000)
        #expect(await health.report().isReady)
        #expect(store.checks == 3)
    }

    @Test func concurrentRequestsShareOneCheck() async {
        let health = health()
        store.stick()
        await withTaskGroup { group in
            for _ in 0..<20 { group.addTask { #expect(await health.report().isReady) } }
            while store.checks == 0 { await Task.yield() }
            store.release()
        }
        #expect(store.checks == 1)
    }

    @Test func aStuckCheckFailsUntilItEndsAndIsNotRepeated() async {
        let health = health(timeout: 5_000_000)
        store.stick()
        #expect(!(await health.report().isReady))
        clock.advance(10_000_000_000)
        let report = await health.report()
        #expect(report.results[0].failure == "no result after 10000 ms")
        #expect(store.checks == 1)
        store.release()
        while await !health.report().isReady { await Task.yield() }
    }

    @Test func aCheckIsNotLeftOutBecauseItIsALittleEarly() async {
        let health = health()
        await health.watch()
        for expected in 2...5 {
            // Of calls that are meant to be half the freshness apart, each runs the check.
            clock.advance(490)
            await health.watch()
            #expect(store.checks == expected)
        }
    }

    @Test func aCheckThatCostsMoneyIsRunAtOnceIfSomethingElseHasFailed() async {
        let health = Health(freshness: 1000) { [clock] in clock.now }
        let isSuspect = Atomic(false)
        let store = store
        await confirmation(expectedCount: 0) { changed in
            health.onChange { report in if !report.isReady { changed() } }
            health.add(
                "service", interval: 10_000,
                isSuspect: { isSuspect.load(ordering: .relaxed) },
                { try await store.check() })
            await health.watch()
            store.breakDown(true)
            clock.advance(5000)
            await health.watch()
            #expect(store.checks == 1)
        }
        await confirmation { changed in
            health.onChange { report in if !report.isReady { changed() } }
            isSuspect.store(true, ordering: .relaxed)
            clock.advance(500)
            await health.watch()
            #expect(store.checks == 2)
        }
        // The end of the failure is found as fast, and only once.
        isSuspect.store(false, ordering: .relaxed)
        store.breakDown(false)
        for _ in 0..<3 {
            clock.advance(500)
            await health.watch()
        }
        #expect(store.checks == 3)
    }

    @Test func drainingIsNotReady() async {
        let health = health()
        health.beginDraining()
        let report = await health.report()
        #expect(report.isDraining && !report.isReady)
        #expect(report.results[0].failure == nil)
    }

    @Test func aLoopThatTakesNoTurnsFails() async throws {
        let loop = try EventLoop()
        let health = Health(freshness: 0, timeout: 5_000_000)
        health.add("loop 0", loop: loop)
        #expect(!(await health.report().isReady))
        let thread = startThread { loop.run() }
        while await !health.report().isReady { await Task.yield() }
        loop.stop()
        pthread_join(thread, nil)
    }
}

@Suite struct OperatorTests {
    private let store = Store()

    private func endpoints(on loop: EventLoop? = nil) -> (OperatorEndpoints, Health) {
        let health = Health(freshness: 0, executor: loop)
        health.add("bucket photos") { [store] in try await store.check() }
        let registry = PrometheusRegistry()
        registry.addProcess(BuildInfo(version: "1.2.3"))
        return (
            OperatorEndpoints(
                health: health, registry: registry,
                build: BuildInfo(version: "1.2.3", commit: "abc", date: "2026-01-31")), health
        )
    }

    private func text(_ response: OperatorEndpoints.Response) -> String {
        String(decoding: response.body, as: UTF8.self)
    }

    @Test func readinessFollowsTheChecks() async {
        let (endpoints, health) = endpoints()
        #expect(await endpoints.respond("GET", "/readyz", "r1") == .text(200, "ok\n"))
        let verbose = await endpoints.respond("GET", "/readyz?a=b&verbose", "r1")
        #expect(text(verbose) == "[+] \"bucket photos\" ok\n[+] not draining\nready\n")
        store.breakDown(true)
        #expect(await endpoints.respond("GET", "/readyz", "r1") == .text(503, "not ready\n"))
        let broken = await endpoints.respond("GET", "/readyz?verbose", "r1")
        #expect(broken.status == 503)
        // A line of a failure can't pass for that of a check, because it is indented.
        #expect(
            text(broken) == "[-] \"bucket photos\" failed:\n    token=<redacted>\n    forged ok\n"
                + "[+] not draining\nnot ready\n")
        #expect(await endpoints.respond("GET", "/livez", "r1").status == 200)
        store.breakDown(false)
        health.beginDraining()
        #expect(await endpoints.respond("GET", "/readyz", "r1").status == 503)
        #expect(await endpoints.respond("GET", "/healthz", "r1") == .text(200, "ok\n"))
    }

    @Test func otherMethodsAndPathsAreRejected() async throws {
        let (endpoints, _) = endpoints()
        let posted = await endpoints.respond("POST", "/metrics", "r1")
        #expect(posted.status == 405 && posted.allow == "GET, HEAD")
        #expect(posted.contentType == "application/problem+json")
        for path in ["/", "/metrics/", "/b/photos/o/a", "*", "/livezz", ""] {
            let response = await endpoints.respond("GET", path, "r1")
            #expect(response.status == 404)
            let problem = try object(text(response))
            #expect(problem["code"] as? String == "not-found")
            #expect(problem["instance"] as? String == "r1")
            #expect(problem["status"] as? Int == 404 && problem["detail"] is String)
        }
    }

    @Test func versionIsJSONAndMetricsAreText() async throws {
        let (endpoints, _) = endpoints()
        let version = await endpoints.respond("GET", "/version", "r1")
        let build = try object(text(version))
        #expect(build["version"] as? String == "1.2.3" && build["commit"] as? String == "abc")
        #expect(build["date"] as? String == "2026-01-31")
        #expect(BuildInfo(version: "1.2.3").description == "1.2.3")
        #expect(BuildInfo(version: "1", commit: "abc", date: "x").description == "1 (abc, x)")
        let metrics = await endpoints.respond("GET", "/metrics", "r1")
        #expect(metrics.contentType == "text/plain; version=0.0.4; charset=utf-8")
        #expect(try Exposition(metrics.body).kinds["sluice_build_info"] == "gauge")
    }

    /// Over a real listener: what a kubelet and a Prometheus server see.
    @Test func aListenerResponds() async throws {
        let loop = try EventLoop()
        let thread = startThread { loop.run() }
        defer {
            loop.stop()
            pthread_join(thread, nil)
        }
        let server = HTTPServer(loops: [loop])
        let (endpoints, _) = endpoints(on: loop)
        let bound = try server.start([
            .init(address: SocketAddress("127.0.0.1:0")!, handler: endpoints.handler)
        ])
        for (target, status) in [
            ("/readyz", 200), ("/metrics", 200), ("/version", 200), ("/x", 404),
        ] {
            let url = try #require(URL(string: "http://\(bound[0])\(target)"))
            let response = try await curl([url.absoluteString])
            #expect(response.hasSuffix("\n\(status)"))
        }
        store.breakDown(true)
        #expect(try await curl(["http://\(bound[0])/readyz"]) == "not ready\n\n503")
        #expect(try await curl(["-I", "http://\(bound[0])/livez"]).contains("content-length: 3"))
        await server.drain()
    }

    /// On a thread of its own: the response needs Swift's pool.
    private func curl(_ arguments: [String]) async throws -> String {
        let pool = BlockingPool(threads: 1)
        return try await pool.run { () throws -> String in try runCurl(arguments) }
    }

    private func runCurl(_ arguments: [String]) throws -> String {
        let process = Process()
        let output = Foundation.Pipe()
        process.executableURL = URL(fileURLWithPath: "/usr/bin/curl")
        process.arguments = ["-s", "-m", "20", "-w", "\n%{http_code}"] + arguments
        process.standardOutput = output
        try process.run()
        let data = output.fileHandleForReading.readDataToEndOfFile()
        process.waitUntilExit()
        return String(decoding: data, as: UTF8.self)
    }
}
