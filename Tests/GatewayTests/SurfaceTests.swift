import Buckets
import HTTPServer
import Synchronization
import System
import Testing

@testable import Gateway

/// Decides by a closure and remembers what it was asked.
private final class Judge: Policy {
    private let rule: @Sendable (RequestedAccess, ProposedObject) -> Decision
    private let log = Lock<[(RequestedAccess, ProposedObject)]>([])

    init(_ rule: @escaping @Sendable (RequestedAccess, ProposedObject) -> Decision) {
        self.rule = rule
    }

    var asked: [(RequestedAccess, ProposedObject)] { log.withLock { $0 } }
    var names: [String] { asked.map(\.0.name) }

    func decide(_ question: AuthorizationRequest) -> Decision {
        log.withLock { $0.append((question.access, question.proposal)) }
        return rule(question.access, question.proposal)
    }

    func largestUpload(_ question: AuthorizationRequest) -> UInt64? { nil }

    func shadowDecision(_ question: AuthorizationRequest) -> Decision? { nil }
}

@Suite struct RoutingTests {
    let driver = MemoryBucket()

    @Test(
        arguments: [
            ("GET", "/", 404, "not-found"), ("GET", "/b/photos", 404, "not-found"),
            ("GET", "/b/none/o/a", 404, "bucket-not-found"),
            ("GET", "/b/none/o", 404, "bucket-not-found"),
            ("OPTIONS", "/b/none/o", 404, "bucket-not-found"), ("OPTIONS", "/x", 404, "not-found"),
            ("POST", "/b/none/o", 404, "bucket-not-found"),
            ("GET", "/b/%zz/o/a", 400, "invalid-name"),
            ("GET", "/b/photos/o/a%", 400, "invalid-name"),
            ("GET", "/b/photos/o/a/%2e%2e/b", 400, "invalid-name"),
            ("GET", "/b/photos/o/a%00", 400, "invalid-name"),
            ("PUT", "/b/photos/o/", 400, "invalid-name"),
            ("PUT", "/b/photos/o/a/", 400, "invalid-name"),
            ("PATCH", "/b/photos/o/a%2F", 400, "invalid-name"),
            ("DELETE", "/b/photos/o//a", 400, "invalid-name"),
            ("GET", "/b/photos/o/a/?metadata", 400, "invalid-name"),
            ("GET", "/b/photos/o/a%0D/", 400, "invalid-name"),
            ("GET", "/b/photos/o/%FF/", 400, "invalid-name"),
            ("GET", "/b/photos/o/a", 404, "object-not-found"), ("HEAD", "/b/photos/o/a", 404, nil),
            ("POST", "/b/photos/o/a", 405, "method-not-allowed"),
            ("PUT", "/b/photos/o", 405, "method-not-allowed"),
            ("get", "/b/photos/o/a", 405, "method-not-allowed"),
            ("BREW", "/b/photos/o/%00", 405, "method-not-allowed"),
            ("DELETE", "/b/photos/o/a?metadata", 405, "method-not-allowed"),
            ("PUT", "/b/photos/o/a?metadata", 405, "method-not-allowed"),
            ("GET", "/b/photos/o?maxResults=0", 400, "invalid-argument"),
            ("GET", "/b/photos/o?pageToken=AAAA", 400, "invalid-argument"),
            ("GET", "/b/photos/o?pageToken=", 400, "invalid-argument"),
            ("GET", "/b/photos/o/a/?prefix=b", 400, "invalid-argument"),
            ("GET", "/b/photos/o?prefix=%FF", 400, "invalid-argument"),
        ] as [(String, String, Int, String?)])
    func rejects(method: String, target: String, status: Int, code: String?) async {
        let client = Client(driver)
        let reply = await client.send(method, target)
        #expect(reply.status == status)
        #expect(reply.code == code)
        #expect((status == 405) == reply.fields.contains("allow"))
        #expect(reply.fields["x-request-id"] == client.records.last.requestId)
        #expect(client.records.last.status == status)
        #expect(client.records.count == 1)
        if status == 400 { #expect(driver.calls.isEmpty) }
    }

    @Test(arguments: [
        ("/b/photos/o/a", "GET, HEAD, PUT, PATCH, DELETE, OPTIONS"),
        ("/b/photos/o/a?metadata", "GET, HEAD, PATCH, OPTIONS"),
        ("/b/photos/o/a/", "GET, HEAD, OPTIONS"), ("/b/photos/o", "GET, HEAD, OPTIONS"),
        ("*", "GET, HEAD, PUT, PATCH, DELETE, OPTIONS"),
    ])
    func reportsAllowedMethods(target: String, allow: String) async {
        let client = Client(driver)
        let reply = await client.send("OPTIONS", target)
        #expect(reply.status == 204)
        #expect(reply.fields["allow"] == allow)
        if target != "*" {
            let other = await client.send("POST", target)
            #expect(other.status == 405)
            #expect(other.fields["allow"] == allow)
        }
    }

    @Test func theLogHasThePathButNotTheQuery() async {
        let client = Client(driver)
        _ = await client.send("GET", "/b/photos/o/a%20b?token=secret")
        #expect(client.records.last.path == "/b/photos/o/a%20b")
        #expect(client.records.last.bucket == "photos")
        _ = await client.send("GET", "/nowhere")
        #expect(client.records.last.bucket == nil)
        #expect(client.records.last.operation == nil)
    }

    @Test func pathRulesNarrow() async throws {
        let rules = try PathRules(allowed: ["ok/**"], denied: ["**/no"])
        driver.seed("ok/a")
        driver.seed("ok/no")
        driver.seed("other")
        let bucket = Bucket(
            name: BucketName("photos")!, driver: driver, policy: OpenPolicy(), pathRules: rules)
        let client = Client([bucket])
        for (name, status) in [("ok/a", 200), ("ok/no", 400), ("other", 400)] {
            let reply = await client.send("GET", "/b/photos/o/" + name)
            #expect(reply.status == status)
        }
        let list = await client.send("GET", "/b/photos/o")
        #expect(list.names == ["ok/a"])
    }
}

@Suite struct PolicyTests {
    let driver = MemoryBucket()

    @Test func aDenialComesBeforeAnythingElse() async {
        driver.seed("there")
        let judge = Judge { _, _ in .deny(cause: "storage.rules:7") }
        let client = Client(driver, policy: judge)
        for (method, target, kind) in [
            ("GET", "/b/photos/o/there", "get"), ("GET", "/b/photos/o/missing", "get"),
            ("HEAD", "/b/photos/o/there", "get"), ("GET", "/b/photos/o/there?metadata", "get"),
            ("PUT", "/b/photos/o/there", "create"), ("PATCH", "/b/photos/o/there", "update"),
            ("DELETE", "/b/photos/o/missing", "delete"), ("GET", "/b/photos/o/", "list"),
        ] {
            let reply = await client.send(method, target, text: "{}")
            #expect(reply.status == 403)
            #expect(!reply.wasContinued)
            #expect(client.records.last.errorCode == "unauthorized")
            #expect(client.records.last.cause == "storage.rules:7")
            #expect(client.records.last.operation?.rawValue == kind)
            #expect(!reply.text.contains("rules"))
        }
        #expect(driver.calls.isEmpty)
    }

    @Test func anAnonymousCallerIsAskedForCredentials() async {
        let client = Client(driver, policy: Judge { _, _ in .unauthenticated(cause: "no token") })
        let reply = await client.send("GET", "/b/photos/o/a")
        #expect(reply.status == 401)
        #expect(reply.code == "unauthenticated")
        #expect(reply.fields["www-authenticate"] == "Bearer")
    }

    @Test func anUploadIsDecidedAgainWithTheTrueFacts() async {
        driver.seed("a", [9])
        let judge = Judge { _, proposal in
            (proposal.size ?? 0) > 3 ? .deny(cause: "too big") : .allow
        }
        let client = Client(driver, policy: judge)
        let declared = await client.send("PUT", "/b/photos/o/a", text: "0123")
        #expect(declared.status == 403 && !declared.wasContinued)
        let streamed = await client.send(
            "PUT", "/b/photos/o/a", body: Array("0123".utf8), declared: .some(nil))
        #expect(streamed.status == 403 && streamed.wasContinued)
        #expect(driver.bytes(of: "a") == [9])
        #expect(driver.calls == ["begin a", "abort a"])
        let last = judge.asked.last
        #expect(last?.1.size == 4 && last?.1.md5?.count == 16 && last?.1.crc32c != nil)
        #expect(last?.1.attributes?.contentType == "application/octet-stream")
        #expect(judge.asked[1].1.size == nil)
    }

    @Test func aPatchIsDecidedAgainWithWhatItChanges() async {
        driver.seed("a")
        let judge = Judge { _, proposal in
            proposal.patch?.cacheControl == .set("x") ? .deny(cause: "") : .allow
        }
        let client = Client(driver, policy: judge)
        let denied = await client.send("PATCH", "/b/photos/o/a", text: #"{"cacheControl":"x"}"#)
        #expect(denied.status == 403)
        let allowed = await client.send("PATCH", "/b/photos/o/a", text: #"{"cacheControl":"y"}"#)
        #expect(allowed.status == 200)
        #expect(judge.asked.map { $0.1.patch == nil } == [true, false, true, false])
    }

    @Test func aListIsDecidedOnTheFolderItReveals() async {
        let judge = Judge { operation, _ in operation.name == "no" ? .deny(cause: "") : .allow }
        let client = Client(driver, policy: judge)
        for (target, folder, status) in [
            ("/b/photos/o", "", 200), ("/b/photos/o/", "", 200), ("/b/photos/o/a/b/", "a/b", 200),
            ("/b/photos/o?prefix=images/a&delimiter=/", "images", 200),
            ("/b/photos/o?prefix=images/", "images", 200), ("/b/photos/o/no/", "no", 403),
        ] {
            let reply = await client.send("GET", target)
            #expect(reply.status == status)
            #expect(judge.names.last == folder)
        }
    }

    @Test func aListWithoutDelimiterIsDecidedOnEveryFolder() async {
        for name in ["a/b/c/1", "a/b/c/2", "a/d", "x/no/1", "top"] { driver.seed(name) }
        let judge = Judge { operation, _ in operation.name == "x/no" ? .deny(cause: "") : .allow }
        let client = Client(driver, policy: judge)
        let some = await client.send("GET", "/b/photos/o?prefix=a/")
        #expect(some.names == ["a/b/c/1", "a/b/c/2", "a/d"])
        #expect(judge.names == ["a", "a/b", "a/b/c"])
        let all = await client.send("GET", "/b/photos/o")
        #expect(all.status == 403)
        #expect(judge.names.suffix(6) == ["", "a", "a/b", "a/b/c", "x", "x/no"])
        let folded = await client.send("GET", "/b/photos/o?delimiter=/")
        #expect(folded.names == ["top"] && folded.prefixes == ["a/", "x/"])
    }
}

@Suite struct ListTests {
    let driver = MemoryBucket()

    @Test func theExampleOfTheContract() async {
        for name in ["correctPrefix/happyItem", "wrongPrefix//sadItem", "lonelyItem/"] {
            driver.seed(name)
        }
        let client = Client(driver)
        let root = await client.send("GET", "/b/photos/o/")
        #expect(root.prefixes == ["correctPrefix/", "lonelyItem/", "wrongPrefix/"])
        #expect(root.names.isEmpty)
        #expect(client.records.last.operation == .list)
        for (folder, names) in [
            ("correctPrefix/", ["correctPrefix/happyItem"]), ("wrongPrefix/", []),
            ("lonelyItem/", []), ("wrongPrefix//", []),
            ("correctPrefix%2F", ["correctPrefix/happyItem"]),
        ] {
            let reply = await client.send("GET", "/b/photos/o/" + folder)
            #expect(reply.status == 200)
            #expect(reply.names == names)
        }
        let flat = await client.send("GET", "/b/photos/o")
        #expect(flat.names == ["correctPrefix/happyItem"])
    }

    @Test func writesExactJSON() async {
        driver.seed("images/a.png")
        driver.seed("images/uid/x")
        let reply = await Client(driver).send("GET", "/b/photos/o/images/")
        #expect(
            reply.text
                == #"{"prefixes":["images/uid/"],"items":[{"bucket":"photos","fullPath":"images/a.png","name":"a.png"}]}"#
        )
        let head = await Client(driver).send("HEAD", "/b/photos/o/images/")
        #expect(head.fields["content-length"] == String(reply.body.count))
        #expect(head.body.isEmpty)
    }

    @Test(arguments: ["/b/photos/o?maxResults=2", "/b/photos/o/?maxResults=2"])
    func pagesReturnEverythingOnce(target: String) async {
        for number in 0..<7 { driver.seed("n\(number)") }
        let client = Client(driver)
        var names: [String] = []
        var token: String?
        var pages = 0
        repeat {
            let reply = await client.send(
                "GET", target + (token.map { "&pageToken=" + $0 } ?? ""))
            names += reply.names
            token = reply.json["nextPageToken"] as? String
            pages += 1
        } while token != nil && pages < 10
        #expect(names == (0..<7).map { "n\($0)" })
        #expect(pages == 4)
    }

    @Test func aTokenOfAnotherListIsRejected() async {
        for number in 0..<3 { driver.seed("p/n\(number)") }
        let other = Bucket(
            name: BucketName("other")!, driver: driver, policy: OpenPolicy())
        let client = Client([Client.bucket(driver), other])
        let first = await client.send("GET", "/b/photos/o/p/?maxResults=1")
        guard let token = first.json["nextPageToken"] as? String else {
            Issue.record("no token")
            return
        }
        for (target, status) in [
            ("/b/photos/o/p/?pageToken=", 200),
            ("/b/photos/o?prefix=p/&delimiter=/&pageToken=", 200),
            ("/b/other/o/p/?pageToken=", 400), ("/b/photos/o/?pageToken=", 400),
            ("/b/photos/o/p/?delimiter=&pageToken=", 400),
            ("/b/photos/o?prefix=p/&pageToken=", 400),
        ] {
            let reply = await client.send("GET", target + token)
            #expect(reply.status == status, "\(target)")
            let damaged = await client.send("GET", target + token.dropLast())
            #expect(damaged.status == 400)
        }
    }

    /// They mean nothing there, and what means nothing is ignored.
    @Test(arguments: [
        "maxResults=0", "delimiter=x", "prefix=%FF", "pageToken=", "prefix=a&prefix=b",
    ])
    func parametersOfListsAreIgnoredElsewhere(query: String) async {
        driver.seed("a", [1])
        let client = Client(driver)
        #expect(await client.send("GET", "/b/photos/o/a?" + query).status == 200)
        #expect(await client.send("GET", "/b/photos/o/a?metadata&" + query).status == 200)
        #expect(await client.send("PUT", "/b/photos/o/a?" + query, text: "x").status == 200)
        #expect(await client.send("DELETE", "/b/photos/o/a?" + query).status == 204)
    }

    @Test func pathRulesHoldForListsToo() async throws {
        for name in ["a", "tmp/a", "tmp/b/c", "x/tmp/a", "deep/1/2/3", "deep/1/a", "only/4", "z"] {
            driver.seed(name)
        }
        let rules = try PathRules(
            allowed: ["*", "tmp/**", "x/**", "deep/**"], denied: ["tmp/**", "**/tmp/*"],
            maximumDepth: 3)
        let bucket = Bucket(
            name: BucketName("photos")!, driver: driver, policy: OpenPolicy(), pathRules: rules)
        let client = Client([bucket])
        let root = await client.send("GET", "/b/photos/o/")
        #expect(root.names == ["a", "z"])
        // x/ may have other names than x/tmp/a, so it is a folder like any other.
        #expect(root.prefixes == ["deep/", "x/"])
        #expect(await client.send("GET", "/b/photos/o/deep/1/").prefixes == [])
        let all = await client.send("GET", "/b/photos/o")
        #expect(all.names == ["a", "deep/1/a", "z"])
        let calls = driver.calls.count
        for denied in ["tmp/", "tmp/b/", "only/", "deep/1/2/", "only/4/"] {
            let reply = await client.send("GET", "/b/photos/o/" + denied)
            #expect(reply.text == #"{"prefixes":[],"items":[]}"#, "\(denied)")
        }
        #expect(driver.calls.count == calls)
    }

    @Test(arguments: ["/b/photos/o?maxResults=1", "/b/photos/o/?maxResults=1"])
    func aPageIsEmptyOnlyAtTheEnd(target: String) async throws {
        for number in 0..<20 { driver.seed("hidden\(number)") }
        for name in ["a", "hidden/x", "i", "line\nbreak/x"] { driver.seed(name) }
        let rules = try PathRules(allowed: [], denied: ["hidden*", "hidden/**"])
        let bucket = Bucket(
            name: BucketName("photos")!, driver: driver, policy: OpenPolicy(), pathRules: rules)
        let client = Client([bucket])
        let first = await client.send("GET", target)
        #expect(first.names == ["a"] && first.prefixes == [])
        let token = try #require(first.json["nextPageToken"] as? String)
        let second = await client.send("GET", target + "&pageToken=" + token)
        #expect(second.names == ["i"] && second.prefixes == [])
        // What follows can't be shown, and is known: the page was filled from one of many names.
        #expect(second.json["nextPageToken"] == nil)
    }

    @Test func namesThatCanNotBeOpenedAreNotShown() async {
        for name in ["ok", "a\nb", "..", String(repeating: "x", count: 1025)] { driver.seed(name) }
        let reply = await Client(driver).send("GET", "/b/photos/o")
        #expect(reply.names == ["ok"])
    }
}

@Suite struct CORSTests {
    let driver = MemoryBucket()
    private let origin = ("origin", "https://app.example")

    @Test func isOffByDefault() async {
        let client = Client(driver)
        let preflight = await client.send(
            "OPTIONS", "/b/photos/o/a", [origin, ("access-control-request-method", "PUT")])
        #expect(preflight.status == 204)
        #expect(!preflight.fields.contains("access-control-allow-origin"))
        #expect(!preflight.fields.contains("vary"))
    }

    @Test func respondsToPreflights() async {
        let cors = CORSPolicy(origins: ["https://app.example"], maximumAge: 60)
        let client = Client(driver, policy: Judge { _, _ in .deny(cause: "") }, cors: cors)
        let fields = [
            origin, ("access-control-request-method", "PUT"),
            ("access-control-request-headers", "content-type,x-object-meta-a"),
        ]
        let reply = await client.send("OPTIONS", "/b/photos/o/a", fields)
        #expect(reply.status == 204)
        #expect(reply.fields["access-control-allow-origin"] == "https://app.example")
        #expect(reply.fields["access-control-allow-methods"]?.contains("PUT") == true)
        #expect(reply.fields["access-control-allow-headers"] == "content-type,x-object-meta-a")
        #expect(reply.fields["access-control-max-age"] == "60")
        #expect(reply.fields.list("vary")?.contains("Origin") == true)
        let other = await client.send(
            "OPTIONS", "/b/photos/o/a",
            [("origin", "https://evil.example"), ("access-control-request-method", "PUT")])
        #expect(!other.fields.contains("access-control-allow-origin"))
        #expect(!other.fields.contains("access-control-allow-methods"))
        #expect(other.fields.list("vary")?.contains("Origin") == true)
    }

    @Test func decoratesEveryResponse() async {
        driver.seed("a")
        let some = Client(driver, cors: CORSPolicy(origins: ["https://app.example"]))
        let all = Client(driver, cors: CORSPolicy(origins: ["*"], exposedHeaders: ["ETag"]))
        for target in ["/b/photos/o/a", "/b/photos/o/none", "/b/photos/o"] {
            let one = await some.send("GET", target, [origin])
            #expect(one.fields["access-control-allow-origin"] == "https://app.example")
            #expect(one.fields["access-control-expose-headers"] == "*")
            #expect(one.fields["vary"] == "Origin")
            let plain = await some.send("GET", target)
            #expect(!plain.fields.contains("access-control-allow-origin"))
            #expect(plain.fields["vary"] == "Origin")
            let any = await all.send("GET", target, [origin])
            #expect(any.fields["access-control-allow-origin"] == "*")
            #expect(any.fields["access-control-expose-headers"] == "ETag")
            #expect(!any.fields.contains("vary"))
        }
    }
}
