import OpenSSL
import RulesTesting
import SecurityRules
import System
import Testing
import Wire

@testable import Console
@testable import Gateway
@testable import HTTPServer

@Suite struct ConsoleAccessTests {
    private let clock = TestClock()

    private func access(hosts: [String] = []) -> ConsoleAccess {
        let digest = Digest(.sha256)
        digest.update(Array("the token".utf8).span.bytes)
        return ConsoleAccess(token: digest.finish(), hosts: hosts, now: clock.read)
    }

    private func head(_ authority: String?, _ fields: [(String, String)] = []) -> RequestHead {
        var head = RequestHead(
            method: "GET", target: "/api/state", authority: authority, fields: HeaderFields(), hasBody: false,
            expectsContinue: false)
        for (name, value) in fields { head.fields.append(name: name, value) }
        return head
    }

    private func status(_ body: () throws -> Void) -> Int {
        do {
            try body()
            return 200
        } catch {
            return (error as? Problem)?.code.status ?? 0
        }
    }

    @Test(arguments: [
        ("127.0.0.1:9091", 200), ("localhost:9091", 200), ("[::1]:9091", 200), ("localhost", 200), ("LOCALHOST", 200),
        ("evil.example", 421), ("127.0.0.1.evil.example", 421), ("10.0.0.1:9091", 421), ("0.0.0.0:9091", 421),
        ("127.1:9091", 421), ("", 421), ("console.example", 200), ("CONSOLE.example:8443", 200),
        ("a.console.example", 421),
    ]) func hosts(authority: String, wanted: Int) {
        let access = access(hosts: ["Console.Example"])
        #expect(status { try access.check(head(authority)) } == wanted)
        #expect(status { try access.check(head(nil)) } == 421)
    }

    @Test(arguments: [
        ("origin", "http://127.0.0.1:9091", 200), ("origin", "http://127.0.0.1:9092", 403),
        ("origin", "https://127.0.0.1:9091", 403), ("origin", "http://localhost:9091", 403), ("origin", "null", 403),
        ("origin", "http://evil.example", 403), ("origin", "", 403), ("sec-fetch-site", "same-origin", 200),
        ("sec-fetch-site", "none", 200), ("sec-fetch-site", "same-site", 403), ("sec-fetch-site", "cross-site", 403),
    ]) func pages(name: String, value: String, wanted: Int) {
        #expect(status { try access().check(head("127.0.0.1:9091", [(name, value)])) } == wanted)
    }

    @Test func aProxyMayHaveAnotherSchemeAndPort() {
        let access = access(hosts: ["console.example"])
        #expect(status { try access.check(head("console.example", [("origin", "https://console.example")])) } == 200)
        #expect(status { try access.check(head("console.example", [("origin", "https://other.example")])) } == 403)
    }

    @Test func tokens() {
        let access = access()
        func status(_ fields: [(String, String)]) -> Int {
            self.status { try access.authenticate(head("localhost", fields)) }
        }
        #expect(status([("x-console-token", "the token")]) == 200)
        for _ in 0..<20 { #expect(status([]) == 401) }
        #expect(status([("authorization", "Bearer the token")]) == 401)
        #expect(status([("x-console-token", "the token"), ("x-console-token", "the token")]) == 401)
        for _ in 0..<9 { #expect(status([("x-console-token", "guess")]) == 401) }
        // Further guesses are not answered, until the minute has passed. The right token always is.
        #expect(status([("x-console-token", "guess")]) == 429)
        #expect(status([("x-console-token", "the token")]) == 200)
        clock.advance(seconds: 61)
        #expect(status([("x-console-token", "guess")]) == 401)
    }
}

@Suite struct ConsoleRulesTests {
    private static let source = """
        rules_version = '2';
        service firebase.storage {
          match /b/{bucket}/o {
            match /users/{uid}/{file=**} {
              allow get: if request.params.key == 'a-secret-key';
              allow create: if request.auth.uid == uid && request.resource.size < 10;
            }
          }
        }
        """

    private func request(uid: String, size: Int64) throws -> Request {
        var facts = ObjectFacts(name: "users/bob/a", bucket: "photos")
        facts.set(.size, .known(.int(size)))
        facts.set(.md5Hash, .unknown)
        return Request(
            .create, bucket: "photos", object: "users/bob/a", caller: Caller(uid: uid, token: ["admin": .bool(true)]),
            time: try #require(Timestamp(seconds: 1_700_000_000)), existing: .absent, incoming: facts)
    }

    private func run(_ evaluations: some RulesEvaluations) throws -> JSONValue {
        var evaluations = evaluations
        while evaluations.step() {}
        return try JSONReader.parse(try evaluations.response().body)
    }

    @Test(
        "The inputs, sent back, give the same explanation and a test case that passes",
        arguments: [("bob", 5), ("bob", 50), ("eve", 5)])
    func inputsRoundTrip(uid: String, size: Int64) throws {
        let rules = try Ruleset.load(source: Self.source)
        let request = try request(uid: uid, size: size)
        let explanation = rules.explain(request)
        let inputs = try JSONReader.parse(Array(JSON.object(request.json).text.utf8))
        let again = try JSONReader.parse(Array(try RulesWorkbench.explain(rules, inputs).text.utf8))
        #expect(again["text"]?.text == explanation.text(rules.fileName))
        let suite = TestCase.text(request.json, isAllowed: rules.decide(request).isAllowed)
        let result = try run(SuiteRun(rules, suite))
        #expect(result["passed"]?.integer == 1 && result["failed"]?.integer == 0, "\(suite)")
    }

    @Test func secretParametersAreHidden() throws {
        let rules = try Ruleset.load(source: Self.source)
        var request = Request(
            .get, bucket: "photos", object: "users/bob/a", time: try #require(Timestamp(seconds: 1_700_000_000)))
        request.setParameters(["key": .string("another-secret"), "prefix": .string("users/")])
        let redaction = ParameterRedaction(request)
        for source in [
            "request.params.key.lower() == 'a'", "request.params.key.split('-')[0] == 'a'",
            "request.params.key == 'a-secret-key'", "reads(request.params.key)", "bound()",
        ] {
            let rules = try Ruleset.load(
                source: Self.source.replacing("request.params.key == 'a-secret-key'", with: source).replacing(
                    "match /b/{bucket}/o {",
                    with: """
                        match /b/{bucket}/o {
                        function reads(text) { return text.upper() == 'A'; }
                        function bound() { let text = request.params.key; return text.lower() == 'a'; }

                        """))
            let explanation = redaction.applied(to: rules.explain(request))
            var coverage = Coverage(of: rules)
            coverage.add(explanation)
            let shown = explanation.text("a") + explanation.json("a").text + "\(coverage.expressions.map(\.values))"
            #expect(!shown.lowercased().contains("another") && !shown.contains("secret'"), "\(source): \(shown)")
        }
        let explanation = redaction.applied(to: rules.explain(request))
        let text =
            explanation.text("a") + explanation.json("a").text + JSON.object(redaction.applied(to: request).json).text
        #expect(!text.contains("another-secret") && text.contains(ParameterRedaction.text) && text.contains("users/"))
    }

    @Test func replay() throws {
        let rules = try Ruleset.load(source: Self.source)
        let edited = try Ruleset.load(source: Self.source.replacing("size < 10", with: "size < 100"))
        let entries = try [("bob", 5), ("bob", 50), ("eve", 5)].enumerated().map { index, input in
            let request = try request(uid: input.0, size: Int64(input.1))
            let decision: Verdict = rules.decide(request).isAllowed ? .allowed : .denied
            return RequestFeed.Entry(
                UInt64(index + 1),
                finished(index, decision, evaluation: RulesEvaluation(request, rules)))
        }
        let result = try run(Replay(edited, entries))
        #expect(result["evaluated"]?.integer == 3 && result["same"]?.integer == 2 && result["allowed"]?.integer == 1)
        let changed = try #require(result["changed"]?.elements?.first)
        #expect(changed["was"]?.text == "denied" && changed["now"]?.text == "allowed")
        #expect(changed["request"]?.text == "request1" && changed["position"]?["line"]?.integer == 6)
        // Each edit is decided as the rules would: the same rules change nothing.
        let unchanged = try run(Replay(rules, entries))
        #expect(unchanged["same"]?.integer == 3 && unchanged["coverage"]?["conditions"]?.elements?.count == 2)
    }

    @Test func wrongInputsAreNamed() throws {
        let rules = try Ruleset.load(source: Self.source)
        func findings(_ json: String) throws -> [String] {
            let inputs = try JSONReader.parse(Array(json.utf8))
            let result = try JSONReader.parse(Array(try RulesWorkbench.explain(rules, inputs).text.utf8))
            return result["findings"]?.elements?.compactMap(\.text) ?? []
        }
        #expect(try findings(#"{"method":"creat","path":"/b/photos/o/a"}"#).first?.hasPrefix("method: error: ") == true)
        #expect(try findings(#"{"method":"create","path":"photos"}"#) == ["path: error: must be like /b/BUCKET/o/NAME"])
        #expect(try findings(#"{"method":"create","path":"/b/a/o/b","new":{"siz":1}}"#).count == 1)
        #expect(try findings(#"{"method":"get","path":"/b/a/o/b","auth":"x"}"#).isEmpty)
        #expect(throws: Problem.self) { _ = try SuiteRun(rules, "cases: 1") }
        let check = try JSONReader.parse(Array(RulesWorkbench.check("service").text.utf8))
        #expect(check["issues"]?.elements?.isEmpty == false && check["formatted"] == .null)
    }

    @Test func explanationsHaveTheirOwnTime() async throws {
        let rules = try Ruleset.load(source: Self.source)
        let request = try request(uid: "bob", size: 5)
        let entry = RequestFeed.Entry(1, finished(1, evaluation: RulesEvaluation(request, rules)))
        let entries = Array(repeating: entry, count: 4000)
        let pool = BlockingPool(threads: 1)
        let workbench = RulesWorkbench(pool)
        try await onLoop {
            // Until the time for many evaluations is used up.
            var refused: Problem?
            for _ in 0..<100_000 where refused == nil {
                do throws(Problem) {
                    _ = try await workbench.run { () throws(Problem) in Replay(rules, entries) }
                } catch {
                    refused = error
                }
            }
            #expect(refused?.code == .tooManyRequests && refused?.field != nil)
            let response = try await workbench.run { () throws(Problem) in .json(RulesWorkbench.check("service")) }
            #expect(response.status == 200)
        }
    }
}
