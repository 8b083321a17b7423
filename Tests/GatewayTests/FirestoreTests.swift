import Buckets
import SecurityRules
import System
import TestSupport
import Testing
import Wire

@testable import Gateway

@Suite("Documents for the rules", .timeLimit(.minutes(2)))
struct FirestoreTests {
    private let pool = BlockingPool(threads: 1)

    private func client(_ statement: String, _ service: FakeService?, shadow: String? = nil) throws
        -> Client
    {
        func load(_ statement: String) throws -> Ruleset {
            try Ruleset.load(
                source: """
                    rules_version = '2';
                    service firebase.storage {
                      match /b/{bucket}/o { match /{name=**} { \(statement) } }
                    }
                    """)
        }
        let driver = MemoryBucket()
        driver.seed("a", [1])
        let firestore = service.map {
            FirestoreDocuments(
                project: "p", pool: pool,
                environment: ["FIRESTORE_EMULATOR_HOST": $0.origin.authority])
        }
        let policy = RulesPolicy(try load(statement), shadow: try shadow.map(load))
        return Client([
            Bucket(
                name: BucketName("photos")!, driver: driver, policy: policy, firestore: firestore)
        ])
    }

    private static let document = """
        {"name": "projects/p/databases/(default)/documents/users/a b", "fields": {
          "role": {"stringValue": "owner"}, "age": {"integerValue": "7"}, "ratio": {"doubleValue": 0.5},
          "tags": {"arrayValue": {"values": [{"stringValue": "x"}, {"nullValue": null}]}},
          "more": {"mapValue": {"fields": {"on": {"booleanValue": true}}}}, "none": {"arrayValue": {}},
          "since": {"timestampValue": "2026-01-02T03:04:05Z"}, "raw": {"bytesValue": "AQI="},
          "home": {"geoPointValue": {"latitude": 1.5}},
          "friend": {"referenceValue": "projects/p/databases/(default)/documents/users/c"}}}
        """

    @Test(arguments: [
        "data.role == 'owner'", "data.age == 7", "data.ratio == 0.5",
        "data.tags == ['x', null]", "data.more.on", "data.none.size() == 0",
        "data.since == timestamp.date(2026, 1, 2) + duration.time(3, 4, 5, 0)",
        "data.raw == b'\\001\\002'", "data.home.latitude() == 1.5",
        "data.friend == /databases/(default)/documents/users/c",
    ])
    func valuesOfAllTypes(condition: String) async throws {
        let service = FakeService { request in
            #expect(request.fields["authorization"] == "Bearer owner")
            #expect(
                request.target
                    == "/v1/projects/p/databases/%28default%29/documents/users/a%20b")
            return .json(Self.document)
        }
        let lookup = "firestore.get(/databases/(default)/documents/users/$('a b'))"
        let client = try client(
            "allow get: if \(lookup).\(condition) && \(lookup) != null;", service)
        #expect(await client.send("GET", "/b/photos/o/a").status == 200)
        #expect(service.log.count == 1)
    }

    @Test(arguments: [
        (404, #"{"error": {"message": "Document \"x\" not found."}}"#, 403, 200),
        (404, #"{"error": {"message": "The database (default) does not exist"}}"#, 403, 403),
        (403, "{}", 403, 403), (200, #"{"fields": {"a": {"odd": 1}}}"#, 403, 403),
        (200, "{}", 200, 403),
    ])
    func whatIsNotThereAndWhatFails(status: Int, body: String, exists: Int, absent: Int)
        async throws
    {
        let service = FakeService { _ in .json(body, status) }
        let lookup = "firestore.exists(/databases/(default)/documents/a/b)"
        for (statement, wanted) in [(lookup, exists), ("!\(lookup)", absent)] {
            let client = try client("allow get: if \(statement);", service)
            #expect(await client.send("GET", "/b/photos/o/a").status == wanted)
            if exists == absent {
                #expect(
                    client.records.last.cause?.contains("a look-up in Firestore failed") == true)
            }
        }
    }

    @Test func withoutAProjectEveryLookupFails() async throws {
        let client = try client(
            "allow get: if !firestore.exists(/databases/(default)/documents/a/b);", nil)
        #expect(await client.send("GET", "/b/photos/o/a").status == 403)
        #expect(client.records.last.cause?.contains("no firestore.project is configured") == true)
    }

    @Test func shadowRulesLookNothingUp() async throws {
        let service = FakeService { _ in .json("{}") }
        let client = try client(
            "allow get: if true;", service,
            shadow: "allow get: if firestore.exists(/databases/(default)/documents/a/b);")
        #expect(await client.send("GET", "/b/photos/o/a").status == 200)
        #expect(client.records.last.shadow == .undetermined)
        #expect(service.log.isEmpty)
    }

    /// A slash in what a rule interpolates stays in its segment: it leads to no other document.
    @Test(arguments: [
        ("lobby/guests/mallory", "lobby%2Fguests%2Fmallory"), ("a%2Fb", "a%252Fb"),
        ("a?b=c&d#e", "a%3Fb%3Dc%26d%23e"), ("..;", "..%3B"), ("...", "..."),
    ])
    func anInterpolatedValueIsOneSegment(team: String, encoded: String) async throws {
        let service = FakeService { _ in .json("{}", 404) }
        let client = try client(
            "allow get: if firestore.exists(/databases/(default)/documents/teams"
                + "/$(request.params.team)/members/alice);", service)
        let query = PercentEncoding.encodeSegment(team)
        let reply = await client.send("GET", "/b/photos/o/a?team=\(query)")
        #expect(reply.status == 403)
        #expect(
            service.log.map(\.target) == [
                "/v1/projects/p/databases/%28default%29/documents/teams/\(encoded)/members/alice"
            ])
    }

    @Test(arguments: ["", ".", "..", "../users/alice", "a//b", "/a", "a/./b"])
    func anInvalidSegmentIsAnError(name: String) async throws {
        // A value of one segment; and a path that is made from text, which has as many as the text says.
        let fails = "/databases/(default)/documents/users/$(request.params.name)"
        let made = "path('/databases/(default)/documents/users/' + request.params.name + '/x/y')"
        for path in [fails, made] where path == made || !name.contains("/") {
            let service = FakeService { _ in .json("{}") }
            let client = try client(
                "allow get: if firestore.exists(\(path)) || !firestore.exists(\(path));", service)
            let query = PercentEncoding.encodeSegment(name)
            #expect(await client.send("GET", "/b/photos/o/a?name=\(query)").status == 403)
            #expect(service.log.isEmpty)
        }
    }

    /// Names that look alike, and are canonically equivalent, are two documents.
    @Test(arguments: [("a\u{212A}b", "aKb"), ("e\u{301}", "\u{E9}"), ("\u{2126}", "\u{3A9}")])
    func equivalentNamesAreLookedUpOnceEach(one: String, other: String) async throws {
        let service = FakeService { request in
            .json("{}", request.target.hasSuffix(PercentEncoding.encodeSegment(one)) ? 200 : 404)
        }
        let users = "/databases/(default)/documents/users"
        let client = try client(
            "allow get: if firestore.exists(\(users)/$(request.params.one))"
                + " && !firestore.exists(\(users)/$(request.params.other));", service)
        let query = [one, other].map(PercentEncoding.encodeSegment)
        let reply = await client.send(
            "GET", "/b/photos/o/a?one=\(query[0])&other=\(query[1])")
        #expect(reply.status == 200)
        #expect(service.log.count == 2)
    }

    @Test func nothingIsLookedUpForADisconnectedClient() async throws {
        let service = FakeService { _ in .json("{}") }
        let client = try client(
            "allow get: if firestore.exists(/databases/(default)/documents/a/b);", service)
        _ = await client.send("GET", "/b/photos/o/a", [], .gone)
        #expect(service.log.isEmpty && client.records.last.status == 499)
    }
}
