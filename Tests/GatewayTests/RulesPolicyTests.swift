import Buckets
import SecurityRules
import System
import Testing

@testable import Gateway

/// Rules of version 2 with these statements for every object of every bucket.
private func policy(
    _ statements: String, shadow: String? = nil, version: Int = 2,
    decisionClock: @escaping Ruleset.Clock = Ruleset.monotonicClock
) throws -> RulesPolicy {
    func load(_ statements: String) throws -> Ruleset {
        try Ruleset.load(
            source: """
                rules_version = '\(version)';
                service firebase.storage {
                  match /b/{bucket}/o {
                    match /{name=**} { \(statements) }
                  }
                }
                """)
    }
    let time = try #require(Timestamp(rfc3339: "2026-01-01T00:00:00Z"))
    return RulesPolicy(
        try load(statements), shadow: try shadow.map(load), decisionClock: decisionClock
    ) { time }
}

@Suite struct RulesPolicyTests {
    private let driver = MemoryBucket()
    private let target = "/b/photos/o/images/a.png"
    private let name = "images/a.png"

    @Test func folderMarkersAreServedWhereTheyAreAskedFor() throws {
        let bucket = Bucket(
            name: try #require(BucketName("photos")), driver: driver, policy: try policy("allow read;"),
            pathRules: try PathRules(allowed: ["a/**"], denied: []))
        for (name, isServed, withMarkers) in [
            ("a/b", true, true), ("a/b/", false, true), ("a//", false, false), ("b/", false, false),
            (".sluice/", false, false),
        ] {
            #expect(bucket.serves(name) == isServed && bucket.serves(name, markers: true) == withMarkers, "\(name)")
        }
        #expect(try bucket.objectName(decoded: "a/b/", markers: true).value == "a/b/")
        #expect(throws: Problem.self) { try bucket.objectName(decoded: "a/b/") }
    }

    @Test func folderMarkersHaveTheRulesOfTheFolder() throws {
        let rules = try policy(
            """
            allow get: if request.path == /b/photos/o/a/b && resource.name == 'a/b/';
            allow create: if request.path == /b/photos/o/a/b && request.resource.name == 'a/b/';
            """)
        let marker = try ObjectName(marker: "a/b/")
        let object = driver.seeded(marker.value)
        let caller = Caller(peer: "127.0.0.1:1", isSecure: false)
        for (name, isAllowed) in [(marker, true), (try ObjectName("a/b"), false), (try ObjectName("a"), false)] {
            for kind in [RequestedAccess.Kind.get, .create] {
                var request = AuthorizationRequest(RequestedAccess(kind, bucket: "photos", name), caller)
                if kind == .get, name == marker { request.existing = .object(object) }
                if kind == .get, name != marker { request.existing = .absent }
                #expect((rules.decide(request) == .allow) == isAllowed, "\(kind) \(name)")
            }
        }
    }

    @Test(arguments: [
        ("allow read: if true;", "GET", 200), ("allow list, create: if true;", "GET", 403),
        ("allow get: if request.path == /b/photos/o/images/a.png;", "GET", 200),
        ("allow get: if request.path[2] == 'images';", "GET", 403),
        ("allow get: if request.method == 'get' && request.resource == null;", "HEAD", 200),
        ("allow get: if request.time == timestamp.date(2026, 1, 1);", "GET", 200),
        ("allow get: if request.params.a == 'b c';", "GET", 200),
        ("allow create: if request.resource.contentType == 'image/png';", "PUT", 200),
        ("allow update: if true;", "PUT", 403), ("allow write: if true;", "DELETE", 204),
        ("allow create: if request.resource.metageneration == 1;", "PUT", 403),
    ])
    func methodsAndRequests(statements: String, method: String, status: Int) async throws {
        driver.seed(name, [1])
        let client = Client(driver, policy: try policy(statements))
        let reply = await client.send(method, target + "?a=b+c", text: "x")
        #expect(reply.status == status)
        #expect(client.records.last.decision == (status == 403 ? .denied : .allowed))
        #expect(client.records.last.decisionNanoseconds > 0)
    }

    @Test(arguments: [
        ("allow create: if request.resource.generation == null;", "PUT", 200),
        ("allow create: if request.resource.metageneration == null;", "PUT", 200),
        ("allow create: if request.resource.etag == null;", "PUT", 200),
        ("allow create: if request.resource.storageClass == null;", "PUT", 200),
        ("allow create: if request.resource.cacheControl == null;", "PUT", 200),
        ("allow create: if request.resource.metadata == null;", "PUT", 200),
        ("allow create: if !('updated' in request.resource);", "PUT", 200),
        ("allow get: if resource.metadata == null && resource.cacheControl == null;", "GET", 200),
        ("allow get: if resource.storageClass == null;", "GET", 200),
        ("allow update: if request.resource.generation == resource.generation;", "PATCH", 200),
        ("allow update: if request.resource.etag == resource.etag;", "PATCH", 200),
        (
            "allow update: if request.resource.metageneration == resource.metageneration;", "PATCH",
            200
        ),
        ("allow update: if request.resource.cacheControl == 'no-store';", "PATCH", 200),
        ("allow update: if request.resource.metadata == null;", "PATCH", 200),
        ("allow update: if request.resource.storageClass == null;", "PATCH", 200),
    ])
    func properties(statements: String, method: String, status: Int) async throws {
        driver.seed(name, [1])
        let client = Client(driver, policy: try policy(statements))
        let reply = await client.send(
            method, target, text: method == "PATCH" ? #"{"cacheControl":"no-store"}"# : "x")
        #expect(reply.status == status, "\(statements)")
    }

    @Test func aDecisionThatTakesTooLongIsADenial() async throws {
        let work = (0..<90).map { "request.method != '\($0)'" }.joined(separator: " && ")
        let time = Lock(UInt64(0))
        let slow = try policy("allow get: if \(work);") {
            time.withLock {
                $0 += 60_000_000
                return $0
            }
        }
        driver.seed(name, [1])
        let client = Client(driver, policy: slow)
        #expect(await client.send("GET", target).status == 403)
        #expect(client.records.last.isDecisionTimedOut)
        #expect(client.records.last.cause?.contains("took longer than") == true)
        #expect(!driver.calls.contains("open \(name)"))
    }

    @Test func theStoreIsReadOnlyIfTheRulesReadIt() async throws {
        driver.seed(name, [1])
        let blind = Client(driver, policy: try policy("allow read, write: if true;"))
        for method in ["PUT", "GET", "DELETE"] {
            _ = await blind.send(method, target, text: "x")
        }
        #expect(
            driver.calls == [
                "begin \(name)", "commit \(name)", "open \(name)", "delete \(name)",
            ])
        driver.seed(name, [1])
        driver.with { $0.calls = [] }
        let seeing = Client(driver, policy: try policy("allow read: if resource.size == 1;"))
        #expect(await seeing.send("GET", target).status == 200)
        #expect(await seeing.send("HEAD", target).status == 200)
        #expect(await seeing.send("GET", target + "?metadata").status == 200)
        #expect(driver.calls == ["open \(name)", "stat \(name)", "stat \(name)"])
        driver.with { $0.calls = [] }
        #expect(await seeing.send("PUT", target, text: "x").status == 403)
        #expect(driver.calls.isEmpty)
        #expect(driver.openReaders == 0)
    }

    @Test func aMissingObjectIsDeniedOrNotFoundByTheRules() async throws {
        let open = Client(driver, policy: try policy("allow read, delete: if resource == null;"))
        let closed = Client(
            driver, policy: try policy("allow read, delete: if resource.size < 5;"))
        for (method, suffix) in [("GET", ""), ("HEAD", ""), ("GET", "?metadata"), ("DELETE", "")] {
            #expect(await open.send(method, target + suffix).status == 404)
            #expect(await closed.send(method, target + suffix).status == 403)
        }
    }

    @Test func theReasonOfADenialIsOnlyInTheLog() async throws {
        let client = Client(
            driver, policy: try policy("allow get: if resource == null && request.path[0] == 'x';"))
        let reply = await client.send("GET", target)
        #expect(reply.status == 403)
        let cause = try #require(client.records.last.cause)
        #expect(cause.hasPrefix("storage.rules:4:"))
        #expect(cause.hasSuffix("request.path[0] == 'x' is false"))
        #expect(!reply.text.contains("path["))
    }

    @Test func anAnonymousCallerIsAskedForCredentials() async throws {
        let client = Client(
            driver, policy: try policy("allow read: if request.auth != null;"))
        let reply = await client.send("GET", target)
        #expect(reply.status == 401)
        #expect(reply.fields["www-authenticate"] == "Bearer")
    }

    @Test func listsNeedVersion2() async throws {
        let old = Client(driver, policy: try policy("allow read: if true;", version: 1))
        let reply = await old.send("GET", "/b/photos/o/images/")
        #expect(reply.status == 400)
        #expect(
            reply.json["detail"] as? String
                == "Listing objects in a bucket is disallowed for rules_version = \"1\". "
                + "Please update storage security rules to rules_version = \"2\" to use list.")
        let new = Client(driver, policy: try policy("allow list: if resource == null;"))
        #expect(await new.send("GET", "/b/photos/o/images/").status == 200)
        #expect(await new.send("GET", "/b/photos/o").status == 200)
    }

    /// A full view shows the properties of what the caller may get, and only the names of the rest.
    @Test(arguments: [
        ("allow read;", true), ("allow list;", false), ("allow list, create, update;", false),
        ("allow list; allow get: if request.path == /b/photos/o/images/a.png;", true),
        ("allow list; allow get: if request.path == /b/photos/o/images/b.png;", false),
        ("allow list; allow get: if request.params.view == 'full';", true),
        // A rule that reads the object, which the list does not have as a whole, is not asked.
        ("allow list; allow get: if resource.size == 1;", false),
        ("allow list; allow get: if resource.metadata == null;", false),
        ("allow list; allow get: if resource.size == 1 || true;", true),
        ("allow list; allow get: if firestore.exists(/databases/(default)/documents/a/b);", false),
    ])
    func aFullViewNeedsGet(statements: String, isShown: Bool) async throws {
        driver.seed(name, [7], ObjectAttributes(contentType: "image/png"))
        let client = Client(driver, policy: try policy(statements))
        for target in ["/b/photos/o/images/?view=full", "/b/photos/o?view=full"] {
            let reply = await client.send("GET", target)
            #expect(reply.status == 200 && reply.names == [name])
            #expect(client.records.last.decision == .allowed)
            let item = (reply.json["items"] as? [[String: any Sendable]])?.first ?? [:]
            #expect(item.count == (isShown ? 10 : 3))
            #expect(item["size"] as? String == (isShown ? "1" : nil))
            #expect(item["contentType"] as? String == (isShown ? "image/png" : nil))
        }
        #expect(driver.calls == ["list images/", "list "], "one request a page")
    }

    @Test func bodiesAreDecidedByTheirTrueProperties() async throws {
        driver.seed(name, [9])
        let client = Client(
            driver,
            policy: try policy(
                """
                allow create: if request.resource.size <= 3
                  && request.resource.md5Hash == 'ICy5YqxZB1uWSwcVLSNLcA==';
                """))
        // Declared: the response comes before the body.
        let large = await client.send("PUT", target, text: "0123")
        #expect(large.status == 403 && !large.wasContinued)
        // Not declared: after it, and nothing is stored.
        let streamed = await client.send(
            "PUT", target, body: Array("0123".utf8), declared: .some(nil))
        #expect(streamed.status == 403 && streamed.wasContinued)
        let other = await client.send("PUT", target, text: "124")
        #expect(other.status == 403)
        #expect(driver.bytes(of: name) == [9])
        #expect(await client.send("PUT", target, text: "123").status == 200)
        #expect(driver.bytes(of: name) == Array("123".utf8))
    }

    /// A constant limit of the rules ends a body of unknown length where it is reached.
    @Test(arguments: [
        "request.resource.size <= 10", "10 >= request.resource.size && resource == null",
        "request.resource.size < 4 + 7 && request.resource.contentType == 'a/b'",
    ])
    func aBodyEndsAtTheLimitOfTheRules(condition: String) async throws {
        let client = Client(driver, policy: try policy("allow create: if \(condition);"))
        for (count, status) in [(1000, 403), (11, 403), (10, 201)] {
            let reply = await client.send(
                "PUT", target, [("content-type", "a/b")], body: Array(repeating: 1, count: count),
                declared: .some(nil))
            #expect(reply.status == status)
            #expect(client.records.last.bytesIn <= 10)
        }
    }

    @Test func statementsThatCanNeverAllowAreFound() throws {
        let rules = try Ruleset.load(
            source: """
                rules_version = '2';
                service firebase.storage { match /b/photos/o/{name=**} {
                  allow create: if request.resource.size < 5;
                  allow create: if resource == null;
                  allow update: if request.resource.contentType == 'a/b';
                  allow update: if request.auth != null;
                  allow delete: if resource.size < 5 || request.auth.uid == 'a';
                  allow delete: if resource.size < 5;
                  allow write: if false && resource.size < 5;
                } }
                """)
        func lines(_ bucket: String, _ capabilities: Capabilities) -> [Int] {
            rules.impossibleStatements(bucket: bucket, capabilities).map(\.position.line)
        }
        #expect(lines("photos", .all) == [])
        #expect(lines("photos", .weak) == [4, 5, 8])
        #expect(lines("other", .weak) == [])
        // What S3 does: an update is pinned to bytes, which is enough for what it leaves behind.
        #expect(lines("photos", S3Bucket.mostCapabilities(decidesConditions: true)) == [])
        let text = rules.impossibleStatements(bucket: "photos", .weak)[2].description
        #expect(text.hasPrefix("storage.rules:8:"))
        #expect(text.contains("can never allow a delete in bucket 'photos'"))
    }

    @Test func uploadsWithoutALimitAreFound() throws {
        let rules = try Ruleset.load(
            source: """
                rules_version = '2';
                service firebase.storage { match /b/photos/o/{name=**} {
                  allow create: if request.resource.size < 5;
                  allow create: if request.auth != null;
                  allow write: if request.resource.contentType == 'a/b';
                } }
                """)
        #expect(rules.unboundedUploads(bucket: "photos").map(\.position.line) == [5])
    }

    @Test func theObjectThatWasReadIsPinned() async throws {
        let client = Client(driver, policy: try policy("allow create: if resource == null;"))
        let name = name
        driver.with { $0.beforeChange = { $0.seed(name, [7]) } }
        // Somebody else creates it between the decision and the commit.
        #expect(await client.send("PUT", target, text: "x").status == 403)
        #expect(driver.bytes(of: name) == [7])
        #expect(await client.send("PUT", target, text: "x").status == 403)

        // Where the rules still allow, it is committed again, without the body.
        let owner = Client(driver, policy: try policy("allow create: if resource.size < 5;"))
        driver.with { $0.beforeChange = { $0.seed(name, [8]) } }
        #expect(await owner.send("PUT", target, text: "y").status == 200)
        #expect(driver.bytes(of: name) == Array("y".utf8))
        // Where the store has lost the bytes by then, the client may try again.
        driver.with {
            $0.losesUploads = true
            $0.beforeChange = { $0.seed(name, [8]) }
        }
        let overtaken = await owner.send("PUT", target, text: "y")
        #expect(overtaken.status == 503 && overtaken.fields["retry-after"] == "1")
        #expect(driver.bytes(of: name) == [8])
        driver.with { $0.losesUploads = false }
        #expect(await owner.send("PUT", target, text: "y").status == 200)
        // A condition of the client's own keeps its response.
        let conditional = await owner.send(
            "PUT", target, [("x-object-generation-match", "1")], text: "y")
        #expect(conditional.status == 412)
    }

    @Test func preconditionsRevealNothingToADeniedCaller() async throws {
        let client = Client(
            driver, policy: try policy("allow create: if request.resource.md5Hash == 'x';"))
        driver.seed(name, [1])
        for target in [target, "/b/photos/o/missing"] {
            for field in [
                ("if-none-match", "*"), ("if-match", "*"), ("x-object-generation-match", "0"),
            ] {
                #expect(await client.send("PUT", target, [field], text: "x").status == 403)
            }
        }
        // Who may is told before the body.
        let open = Client(driver, policy: try policy("allow create;"))
        let early = await open.send("PUT", target, [("if-none-match", "*")], text: "x")
        #expect(early.status == 412 && !early.wasContinued)
    }

    @Test func aPageRevealsALimitedNumberOfFolders() async throws {
        for number in 0..<20 {
            let folders = Array(repeating: "a", count: 200).joined(separator: "/")
            driver.seed("\(10 + number)/\(folders)/x")
        }
        let client = Client(driver, policy: try policy("allow list;"))
        var names: [String] = []
        var query = ""
        var pages = 0
        while pages < 10 {
            let page = await client.send("GET", "/b/photos/o" + query)
            #expect(page.status == 200)
            names += page.names
            pages += 1
            guard let token = page.json["nextPageToken"] as? String else { break }
            query = "?pageToken=" + token
        }
        #expect(names.count == 20 && Set(names).count == 20)
        #expect(pages == 2)
    }

    @Test func aChangedPolicyAppliesToOpenUploads() async throws {
        let current = CurrentPolicy(try policy("allow create;"))
        let client = Client(driver, policy: current)
        let closed = try policy("allow get;")
        driver.with { $0.beforeUpload = { _ in current.replace(closed) } }
        #expect(await client.send("PUT", target, text: "x").status == 403)
        #expect(driver.bytes(of: name) == nil)
    }

    @Test func reasonsKeepWhatAQueryCarries() async throws {
        let client = Client(
            driver, policy: try policy("allow get: if {'a': 1}[request.params.token] == 1;"))
        #expect(await client.send("GET", target + "?token=SECRETTOKEN").status == 403)
        let cause = try #require(client.records.last.cause)
        #expect(cause.contains("<redacted>") && !cause.contains("SECRETTOKEN"))
    }

    @Test func aDeletionIsDecidedAgainIfTheObjectChanged() async throws {
        let client = Client(driver, policy: try policy("allow delete: if resource.size == 1;"))
        let name = name
        driver.seed(name, [1])
        driver.with { $0.beforeChange = { $0.seed(name, [2]) } }
        #expect(await client.send("DELETE", target).status == 204)
        driver.seed(name, [1])
        driver.with { $0.beforeChange = { $0.seed(name, [1, 2]) } }
        #expect(await client.send("DELETE", target).status == 403)
        #expect(driver.bytes(of: name) == [1, 2])
    }

    @Test func anUpdateIsDecidedOnItsResult() async throws {
        let client = Client(
            driver,
            policy: try policy(
                """
                allow update: if request.resource.contentType == 'text/plain'
                  && request.resource.metadata.owner == resource.metadata.owner
                  && request.resource.size == resource.size;
                """))
        driver.seed(
            name, [1],
            ObjectAttributes(contentType: "text/plain", customMetadata: ["owner": "alice"]))
        for (patch, status) in [
            (#"{"cacheControl":"no-cache"}"#, 200), (#"{"contentType":"text/html"}"#, 403),
            (#"{"customMetadata":{"owner":"bob"}}"#, 403), (#"{"customMetadata":null}"#, 403),
            (#"{"customMetadata":{"b":"c"}}"#, 200),
        ] {
            let reply = await client.send("PATCH", target, text: patch)
            #expect(reply.status == status, "\(patch)")
        }
        #expect(await client.send("PATCH", "/b/photos/o/none", text: "{}").status == 403)
        let missing = Client(
            driver,
            policy: try policy(
                "allow update: if resource == null && request.resource.contentType == 'x/y';"))
        let reply = await missing.send(
            "PATCH", "/b/photos/o/none", text: #"{"contentType":"x/y"}"#)
        #expect(reply.status == 404)
    }

    @Test func aStoreThatCanNotPinIsRejected() async throws {
        let weak = MemoryBucket(.weak)
        let client = Client(weak, policy: try policy("allow create: if resource == null;"))
        #expect(await client.send("PUT", target, text: "x").status == 501)
        #expect(weak.bytes(of: name) == nil)
    }

    @Test func documentsCanNotBeLookedUp() async throws {
        let client = Client(
            driver,
            policy: try policy(
                "allow read: if !firestore.exists(/databases/(default)/documents/a/b);"))
        #expect(await client.send("GET", target).status == 403)
    }

    @Test(arguments: [
        ("allow read: if true;", "allow read: if true;", nil),
        ("allow read: if true;", "allow read: if false;", "denied"),
        ("allow read: if false;", "allow read: if true;", "allowed"),
        ("allow read: if false;", "allow read: if resource.size == 1;", "undetermined"),
        ("allow read: if true;", "allow read: if resource.size == 1;", nil),
        ("allow read: if true;", "allow read: if resource.size == 2;", "denied"),
    ])
    func shadowRulesChangeNothing(rules: String, shadow: String, difference: String?) async throws {
        driver.seed(name, [1])
        let client = Client(driver, policy: try policy(rules, shadow: shadow))
        let reply = await client.send("GET", target)
        #expect(reply.status == (rules.contains("true") ? 200 : 403))
        #expect(client.records.last.shadow?.rawValue == difference)
    }
}
