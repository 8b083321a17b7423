import HTTPServer
import SecurityRules
import System
import Testing

@testable import Console
@testable import Gateway

/// A clock that a test sets, in nanoseconds.
final class TestClock: Sendable {
    let now = Lock<UInt64>(1_000_000_000_000)
    @Sendable func read() -> UInt64 { now.withLock { $0 } }
    func advance(seconds: UInt64) { now.withLock { $0 += seconds * 1_000_000_000 } }
}

func finished(
    _ number: Int, status: Int = 200, _ decision: Verdict? = .allowed, bucket: String? = "photos",
    path: String = "/b/photos/o/a", principal: String? = nil, evaluation: RulesEvaluation? = nil
) -> RequestRecord {
    let record = RequestRecord(
        requestId: "request\(number)", operation: .get, bucket: bucket, method: "GET", path: path, status: status,
        peer: "127.0.0.1:1", version: .http1_1)
    record.decision = decision
    record.principal = principal
    record.evaluation = evaluation
    record.started = 1
    return record
}

/// Runs a body on a loop, as requests do.
func onLoop<Result: Sendable>(_ body: @escaping @Sendable () async throws -> Result) async throws -> Result {
    let loop = try EventLoop()
    _ = startThread { loop.run() }
    defer { loop.stop() }
    return try await Task(executorPreference: loop, operation: body).value
}

@Suite struct RequestFeedTests {
    private let clock = TestClock()

    private func feed(remembers: Bool = false) -> RequestFeed {
        RequestFeed(remembersDenials: remembers, now: clock.read)
    }

    private func isWatched(_ feed: RequestFeed) -> Bool { feed.watch.map { $0.until > clock.read() } ?? false }

    private func poll(
        _ feed: RequestFeed, _ filter: RequestFilter = RequestFilter(), after: UInt64? = nil
    ) async throws -> RequestFeed.Page {
        try await onLoop { await feed.poll(filter, after: after, wait: 0) }
    }

    /// Not faster than requests are kept.
    private func finishMany(_ feed: RequestFeed, _ numbers: ClosedRange<Int>) {
        for number in numbers {
            if number % 25 == 0 { clock.now.withLock { $0 += 100_000_000 } }
            feed.finished(finished(number))
        }
    }

    @Test func nothingIsKeptBeforeAPollAndLongAfter() async throws {
        let feed = feed()
        #expect(!isWatched(feed))
        feed.finished(finished(1))
        #expect(try await poll(feed).entries.isEmpty)
        #expect(isWatched(feed))
        feed.finished(finished(2))
        #expect(try await poll(feed).entries.map(\.record.requestId) == ["request2"])
        clock.advance(seconds: 31)
        #expect(!isWatched(feed))
        feed.expire()
        #expect(feed.entry("request2") == nil)
    }

    @Test func pagesAreInOrderAndWithoutGaps() async throws {
        let feed = feed()
        _ = try await poll(feed)
        finishMany(feed, 1...300)
        // The first page has the newest.
        let first = try await poll(feed)
        #expect(first.entries.count == RequestFeed.pageSize && first.entries.last?.record.requestId == "request300")
        #expect(first.next == 300 && first.lost == 0)
        var page = try await poll(feed, after: 10)
        #expect(page.entries.map(\.sequence) == Array(11...210) && page.next == 210)
        page = try await poll(feed, after: page.next)
        #expect(page.entries.map(\.sequence) == Array(211...300) && page.next == 300)
        // The number of another process.
        #expect(try await poll(feed, after: 5000).entries.first?.sequence == 1)
    }

    @Test func lostRequestsAreCounted() async throws {
        let feed = feed()
        _ = try await poll(feed)
        finishMany(feed, 1...700)
        let page = try await poll(feed, after: 100)
        #expect(page.lost == 88 && page.entries.first?.sequence == 189)
    }

    @Test func memoryIsBounded() async throws {
        let feed = feed()
        _ = try await poll(feed)
        let long = String(repeating: "a", count: 64 << 10)
        for number in 1...200 {
            if number % 25 == 0 { clock.advance(seconds: 1) }
            feed.finished(finished(number, path: long))
        }
        let page = try await poll(feed)
        #expect((10...32).contains(page.entries.count) && page.entries.last?.record.requestId == "request200")
    }

    @Test func replacedRulesAreBounded() async throws {
        let feed = feed()
        _ = try await poll(feed)
        let text = "rules_version = '2'; service firebase.storage {}"
        let time = try #require(Timestamp(seconds: 1_700_000_000))
        // Twelve rulesets of a fifth of a MiB each, with two requests each.
        for version in 0..<12 {
            let padding = String(repeating: "/", count: RequestFeed.maximumRules / 10)
            let rules = try Ruleset.load(source: "\(text)//\(version)\(padding)")
            for number in 0..<2 {
                let request = Request(.get, bucket: "photos", object: "a", time: time)
                feed.finished(finished(version * 2 + number, evaluation: RulesEvaluation(request, rules)))
            }
        }
        feed.expire()
        let page = try await poll(feed, after: 0)
        #expect(page.entries.map(\.sequence) == Array(7...24) && page.lost == 6)
    }

    @Test func aRareRequestIsNotDisplaced() async throws {
        let feed = feed()
        let denied = RequestFilter(decision: .denied)
        _ = try await poll(feed, denied)
        feed.finished(finished(1, status: 403, .denied))
        for number in 2...5000 { feed.finished(finished(number)) }
        let page = try await poll(feed, denied, after: 0)
        #expect(page.entries.map(\.record.requestId) == ["request1"] && page.lost == 0)
    }

    @Test func tooManyAreLostAndDenialsAreNot() async throws {
        let feed = feed()
        _ = try await poll(feed)
        for number in 1...1000 { feed.finished(finished(number)) }
        for number in 1001...1010 { feed.finished(finished(number, status: 403, .denied)) }
        let page = try await poll(feed, after: 0)
        #expect(page.entries.count == 42 && page.lost == 968 && page.next == 1010)
        #expect(page.entries.suffix(10).allSatisfy { $0.record.decision == .denied })
        clock.advance(seconds: 1)
        feed.finished(finished(1011))
        #expect(try await poll(feed, after: 1010).entries.count == 1)
    }

    @Test func filters() {
        var filter = RequestFilter(decision: .denied, status: .statusClass(4), bucket: "photos")
        filter.path = "users/"
        filter.caller = "ali"
        let matching = finished(1, status: 403, .denied, path: "/b/photos/o/users/a", principal: "alice")
        #expect(filter.matches(matching))
        for other in [
            finished(1, status: 403, .allowed, path: "/b/photos/o/users/a", principal: "alice"),
            finished(1, status: 500, .denied, path: "/b/photos/o/users/a", principal: "alice"),
            finished(1, status: 403, .denied, bucket: "other", path: "/b/photos/o/users/a", principal: "alice"),
            finished(1, status: 403, .denied, bucket: nil, path: "/b/photos/o/users/a", principal: "alice"),
            finished(1, status: 403, .denied, path: "/b/photos/o/user", principal: "alice"),
            finished(1, status: 403, .denied, path: "/b/photos/o/users/a", principal: "bob"),
            finished(1, status: 403, .denied, path: "/b/photos/o/users/a"),
        ] { #expect(!filter.matches(other)) }
        #expect(RequestFilter(status: .status(403)).matches(matching))
        var anonymous = RequestFilter()
        anonymous.caller = "anonymous"
        #expect(anonymous.matches(finished(1)) && !anonymous.matches(matching))
        // The paths of the other protocols.
        for path in ["/photos/users/a", "/v0/b/photos/o/users/a"] {
            var byPath = RequestFilter()
            byPath.path = "users/"
            #expect(byPath.matches(finished(1, path: path)), "\(path)")
        }
    }

    @Test func aPollWaitsForTheFirstRequest() async throws {
        let feed = RequestFeed()
        _ = try await poll(feed)
        async let page = onLoop { await feed.poll(RequestFilter(), after: 0, wait: 20_000_000_000) }
        while feed.waitingCount == 0 { await Task.yield() }
        let record = finished(1)
        record.started = EventLoop.monotonicNow()
        feed.finished(record)
        let found = try await page
        #expect(found.entries.map(\.record.requestId) == ["request1"] && feed.waitingCount == 0)
    }

    @Test func aViewerThatLeavesEndsItsWait() async throws {
        let feed = RequestFeed()
        try await onLoop {
            let task = Task(executorPreference: EventLoop.current) {
                await feed.poll(RequestFilter(), after: 0, wait: 20_000_000_000)
            }
            while feed.waitingCount == 0 { await Task.yield() }
            task.cancel()
            let page = await task.value
            #expect(page.entries.isEmpty)
        }
        #expect(feed.waitingCount == 0)
    }

    @Test func oneViewerMoreEndsTheOldestPoll() async throws {
        let feed = RequestFeed()
        try await onLoop {
            func poll(_ status: Int) -> Task<RequestFeed.Page, Never> {
                Task(executorPreference: EventLoop.current) {
                    await feed.poll(RequestFilter(status: .status(status)), after: 0, wait: 20_000_000_000)
                }
            }
            let tasks = (0..<RequestFeed.maximumViewers).map { poll(200 + $0) }
            while feed.waitingCount < RequestFeed.maximumViewers { await Task.yield() }
            let last = poll(500)
            #expect(await tasks[0].value.entries.isEmpty)
            #expect(feed.waitingCount == RequestFeed.maximumViewers)
            for task in tasks + [last] { task.cancel() }
            for task in tasks { _ = await task.value }
        }
    }

    @Test func denialsAreRemembered() async throws {
        let feed = feed(remembers: true)
        feed.finished(finished(1))
        feed.finished(finished(2, status: 403, .denied))
        clock.advance(seconds: 100)
        feed.expire()
        #expect(try await poll(feed).entries.map(\.record.requestId) == ["request2"])
        // While somebody looks all are kept, and afterwards denials again.
        feed.finished(finished(3))
        #expect(try await poll(feed).entries.count == 2)
        clock.advance(seconds: 100)
        feed.expire()
        feed.finished(finished(4))
        for number in 5..<100 { feed.finished(finished(number, status: 403, .denied)) }
        feed.expire()
        #expect(feed.entry("request3") == nil && feed.entry("request4") == nil && feed.entry("request99") != nil)
        #expect(try await poll(feed).entries.count == RequestFeed.rememberedDenials)
    }
}
