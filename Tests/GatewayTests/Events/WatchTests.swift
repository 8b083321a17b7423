import BucketConformance
import Buckets
import System
import TestSupport
import Testing
import Wire

@testable import Gateway

/// Denies lists of `secret` and below, and what objects of `names` are.
private struct HidingPolicy: Policy {
    func decide(_ request: AuthorizationRequest) -> Decision {
        let name = request.access.name
        switch request.access.kind {
        case .list: return name == "secret" || name.hasPrefix("secret/") ? .deny(cause: "secret") : .allow
        case .get: return name.hasPrefix("names/") ? .deny(cause: "names") : .allow
        default: return .allow
        }
    }
    func largestUpload(_ request: AuthorizationRequest) -> UInt64? { nil }
    func shadowDecision(_ request: AuthorizationRequest) -> Decision? { nil }
}

@Suite("Watching a bucket", .timeLimit(.minutes(3)))
struct WatchTests {
    private let directory = TemporaryDirectory()
    private let driver: DirectoryBucket
    private let watches = Watches(limit: WatchTests.limit)
    private static let limit = 20
    private let policy = CurrentPolicy(HidingPolicy())
    private let client: Client

    init() throws {
        driver = try DirectoryBucket(
            path: directory.path + "/bucket", pool: BlockingPool(threads: 2), readers: 2, recording: .complete())
        let watch = BucketWatch.on(Watchers(driver, watches))
        client = Client([Bucket(name: BucketName("photos")!, driver: driver, policy: policy, watch: watch)])
    }

    private func put(_ names: String...) async {
        for name in names {
            let status = await client.send("PUT", "/b/photos/o/\(name)", text: name).status
            #expect(status == 200 || status == 201)
        }
    }

    private func target(_ sequence: Int, prefix: String = "", wait: Int = 0) -> String {
        "/b/photos/o?watch=\(sequence)&prefix=\(prefix)&wait=\(wait)s"
    }

    private func events(_ reply: Client.Reply) -> [[String: any Sendable]] {
        reply.json["events"] as? [[String: any Sendable]] ?? []
    }

    private func names(_ reply: Client.Reply) -> [String] { events(reply).compactMap { $0["name"] as? String } }

    private func sequence(_ reply: Client.Reply) throws -> Int {
        let text = try #require(reply.json["sequence"] as? String)
        return try #require(Int(text))
    }

    /// Begins a request and returns when it waits.
    private func waiting(_ target: String) async -> Client.Pending {
        let count = watches.count
        let pending = await client.begin("GET", target)
        await eventually { watches.count > count && watches.waiting > count }
        return pending
    }

    @Test func listsSayTheNewestNumber() async throws {
        let empty = await client.send("GET", "/b/photos/o")
        #expect(empty.fields["x-object-sequence"] == "0")
        await put("a", "b")
        for target in ["/b/photos/o", "/b/photos/o/", "/b/photos/o?prefix=x&delimiter=/"] {
            #expect(await client.send("GET", target).fields["x-object-sequence"] == "2")
        }
    }

    @Test func changesAreReportedAtOnceOrWhenTheyAreMade() async throws {
        await put("a")
        let first = await client.send("GET", target(0))
        #expect(names(first) == ["a"] && events(first)[0]["type"] as? String == "finalized")
        #expect(events(first)[0]["size"] as? String == "1" && events(first)[0]["sequence"] as? String == "1")
        let pending = await waiting(target(try sequence(first), prefix: "im", wait: 60))
        await put("other")
        await put("images/a")
        let reply = await pending.reply
        #expect(names(reply) == ["images/a"] && reply.status == 200)
        #expect(try sequence(reply) == 3)
        #expect(client.records.last.waitedNanoseconds > 0 || client.records.count > 0)
        _ = await client.send(
            "PATCH", "/b/photos/o/a", [("content-type", "application/json")], text: "{\"cacheControl\": \"x\"}")
        _ = await client.send("DELETE", "/b/photos/o/a")
        let rest = await client.send("GET", target(3))
        #expect(events(rest).compactMap { $0["type"] as? String } == ["metadataUpdated", "deleted"])
        #expect(await client.send("GET", target(5)).text == #"{"sequence":"5","events":[]}"#)
    }

    @Test func whatOthersChangeMovesTheNumber() async throws {
        let pending = await waiting(target(0, prefix: "images/", wait: 60))
        await put("other", "secret/x")
        watches.end()
        let reply = await pending.reply
        #expect(reply.text == #"{"sequence":"2","events":[]}"#)
    }

    @Test func rulesHideFoldersAndProperties() async throws {
        await put("secret/a", "names/b", "open/c", "secret/d/e")
        let reply = await client.send("GET", target(0))
        #expect(names(reply) == ["names/b", "open/c"] && reply.status == 200)
        #expect(Set(events(reply)[0].keys) == ["type", "sequence", "time", "name"])
        #expect(events(reply)[1]["generation"] != nil)
        #expect(try sequence(reply) == 4)
        #expect(await client.send("GET", target(0, prefix: "secret/")).status == 403)
        // A prefix within a folder's name is one of the folder above.
        #expect(names(await client.send("GET", target(0, prefix: "secre"))) == [])
    }

    @Test func rulesDecideAgainAtTheResponse() async throws {
        for isEmpty in [false, true] {
            policy.replace(HidingPolicy())
            let start = try await sequence(client.send("GET", target(0)))
            let pending = await waiting(target(start, wait: 30))
            policy.replace(ClosedPolicy())
            if isEmpty { watches.end() } else { try await onLoop { [driver] in _ = try await driver.put("a", [1]) } }
            let reply = await pending.reply
            #expect(reply.status == 403 && reply.code == "unauthorized")
        }
    }

    @Test func numbersThatAreNotKeptHaveExpired() async throws {
        await put("a", "b", "c")
        #expect(await client.send("GET", target(4)).code == "watch-expired")
        _ = try await onLoop { [driver] in try await driver.trimEvents(before: .max, keeping: .max, limit: 2) }
        let expired = await client.send("GET", target(1, wait: 30))
        #expect(expired.status == 410 && expired.code == "watch-expired")
        #expect(names(await client.send("GET", target(2))) == ["c"])
    }

    @Test func theRequestIsChecked() async throws {
        for query in [
            "watch", "watch=x", "watch=-1", "watch=1&watch=1", "watch=9223372036854775808", "watch=0&wait=61s",
            "watch=0&wait=1m", "watch=0&wait=", "watch=0&delimiter=/", "watch=0&maxResults=3", "watch=0&view=full",
            "watch=0&pageToken=x", "watch=0&prefix=a%00",
        ] {
            #expect(await client.send("GET", "/b/photos/o?\(query)").code == "invalid-argument", "\(query)")
        }
        #expect(await client.send("POST", "/b/photos/o?watch=0").status == 405)
        let plain = Client([
            Bucket(name: BucketName("photos")!, driver: driver, policy: OpenPolicy(), watch: .off("Use X."))
        ])
        let reply = await plain.send("GET", target(0))
        #expect(reply.status == 501 && reply.json["detail"] as? String == "Use X.")
        #expect(await plain.send("GET", "/b/photos/o").fields["x-object-sequence"] == nil)
        let closed = Client([
            Bucket(name: BucketName("photos")!, driver: driver, policy: ClosedPolicy(), watch: .off("Use X."))
        ])
        #expect(await closed.send("GET", target(0)).status == 403)
    }

    @Test func waitsEndWithTheClientAndTheProcess() async throws {
        let gone = await waiting(target(0, wait: 60))
        await gone.leave()
        _ = await gone.reply
        await eventually { watches.count == 0 }
        let last = await waiting(target(0, wait: 60))
        watches.end()
        #expect(await last.reply.text == #"{"sequence":"0","events":[]}"#)
        #expect(await client.send("GET", target(0, wait: 60)).status == 200)
        #expect(watches.count == 0 && watches.waiting == 0)
    }

    @Test func tooManyAreRejected() async throws {
        // The threads of Swift's tasks may be occupied by other tests for longer than all these requests wait.
        try await onLoop {
            var pending: [Client.Pending] = []
            for _ in 0..<WatchTests.limit { pending.append(await client.begin("GET", target(0, wait: 60))) }
            await eventually { watches.waiting == WatchTests.limit }
            let over = await client.send("GET", target(0, wait: 60))
            #expect(over.status == 503 && over.code == "overloaded" && over.fields["retry-after"] == "5")
            await put("a")
            for request in pending { #expect(names(await request.reply) == ["a"]) }
        }
        #expect(watches.count == 0)
    }

    @Test("List, then watch: the state that the rules show, for every interleaving", arguments: 0..<3)
    func model(_ seed: Int) async throws {
        let all = ["a", "b", "names/c", "secret/d", "open/e/f", "secret/g/h"]
        let writer = Task {
            var random = SeededGenerator(UInt64(seed))
            for _ in 0..<150 {
                let name = all.randomElement(using: &random)!
                switch Int.random(in: 0..<4, using: &random) {
                case 0: _ = await client.send("DELETE", "/b/photos/o/\(name)")
                case 1:
                    _ = await client.send("POST", "/b/photos/o/\(name)?copyFrom=\(all.randomElement(using: &random)!)")
                default: await put(name)
                }
            }
        }
        // A list of the root with folders; what is in them follows from the events of the beginning.
        var state: [String: String] = [:]
        var position = 0
        var isOver = false
        while true {
            let reply = await client.send("GET", target(position, wait: isOver ? 0 : 1))
            try #require(reply.status == 200)
            for event in events(reply) {
                let name = try #require(event["name"] as? String)
                #expect(!name.hasPrefix("secret"))
                state[name] = event["type"] as? String == "deleted" ? nil : event["generation"] as? String ?? "?"
            }
            position = try sequence(reply)
            if isOver, events(reply).isEmpty { break }
            if watches.count == 0, position > 100 {
                await writer.value
                isOver = true
            }
        }
        var expected: [String: String] = [:]
        for name in all where !name.hasPrefix("secret") {
            let reply = await client.send("GET", "/b/photos/o/\(name)?metadata")
            if name.hasPrefix("names") {
                let listed = await client.send("GET", "/b/photos/o?prefix=names/").names
                if listed.contains(name) { expected[name] = "?" }
            } else if reply.status == 200 {
                expected[name] = reply.json["generation"] as? String
            }
        }
        #expect(state == expected)
    }
}
