import Glibc
import SecurityRules
import Testing
import Wire

@testable import RulesAnalysis

/// What `RulesDiff` finds in small rules.
@Suite struct DiffTests {
    /// Rules of one block in a bucket.
    static func rules(_ statements: String, path: String = "/users/{uid}/{file=**}", version: Int = 2) throws -> Ruleset
    {
        try Ruleset.load(
            source: """
                rules_version = '\(version)';
                service firebase.storage { match /b/{bucket}/o {
                  match \(path) { \(statements) }
                } }
                """, fileName: "storage.rules")
    }

    private func diff(_ old: String, _ new: String, milliseconds: Int = 10_000) throws -> RulesDiff {
        RulesDiff(from: try Self.rules(old), to: try Self.rules(new), try Solver(), milliseconds: milliseconds)
    }

    private static func condition(_ condition: String) -> String { "allow create: if \(condition);" }

    /// Conditions over two values, for which the engine alone knows the decision: no proof contradicts it. They are
    /// parameters, because the engine would fold constants before the analysis sees them.
    @Test(arguments: [
        ("{'a': a} == {'a': b}", "1, 1.0"), ("{'a': a} == {'a': b}", "null, null"),
        ("{'a': [a]} == {'a': [b]}", "1, 1.0"),
        ("{'a': {'b': a}} == {'a': {'b': b}}", "1, 1.0"), ("[a] == [b]", "1, 1.0"), ("a == b", "1, 1.0"),
        ("a in [b]", "1, 1.0"), ("[a].hasAll([b])", "1, 1.0"), ("[a].toSet() == [b].toSet()", "1, 1.0"),
        ("{'a': a}.diff({'a': b}).affectedKeys().size() == 0", "1, 1.0"),
        ("a == b", "9007199254740993, 9007199254740992.0"),
        ("a / b == -3", "-7, 2"), ("a % b == -1", "-7, 2"), ("a / b == 1", "-9223372036854775807, 0"),
        ("a == b", "'é', 'e\u{301}'"),
        ("a.size() == b", "'\u{1F600}', 2"), ("a + b == 0", "9223372036854775807, 1"), ("a < b", "1, 1.5"),
    ])
    func agreesOnValues(_ condition: String, _ values: String) throws {
        let text = "function f(a, b) { return \(condition); } \(Self.condition("f(\(values))"))"
        let rules = try Self.rules(text)
        var request = ExampleRequest(.create)
        request.segments = ["users", "a", "b"]
        let decision = request.isAllowed(by: rules)
        let isAllowed = try #require(decision as Bool?)
        let diff = try diff(Self.condition("\(!isAllowed)"), text)
        let side = isAllowed ? diff.opened : diff.closed
        #expect(!side.provenMethods.contains(.create), "\(isAllowed): \(diff.text("old", "new", explains: true))")
    }

    /// Conditions that allow the same requests.
    @Test(arguments: [
        ("request.auth.uid == uid", "uid == request.auth.uid && request.auth != null"),
        ("request.resource.size < 5", "!(request.resource.size >= 5)"),
        ("request.resource.size < 5 * 1024 * 1024", "request.resource.size / 1024 < 5 * 1024"),
        (
            "request.resource.contentType.matches('image/(png|jpeg)')",
            "request.resource.contentType in ['image/png', 'image/jpeg']"
        ),
        ("request.auth.token.email.matches('.*@x[.]org')", "request.auth.token.email.matches('.*@x\\\\.org')"),
        ("request.resource.size < 2.5", "request.resource.size <= 2"),
        ("request.auth.uid.lower() == 'a'", "request.auth.uid in ['a', 'A']"),
        (
            "request.resource.metadata.keys().hasOnly(['x'])",
            "request.resource.metadata.size() == 0 || (request.resource.metadata.size() == 1 && 'x' in request.resource.metadata)"
        ),
        ("(request.auth.token.x.y == 1) || true", "true"), ("request.auth.token.a > 1 && false", "false"),
        (
            "request.resource.name == 'users/a/b'",
            "uid == 'a' && request.path[5] == 'b' && file[0] == 'b' && request.path == /b/$(bucket)/o/users/a/b"
        ),
        ("request.time < timestamp.date(2026, 1, 1)", "request.time < timestamp.value(1767225600000)"),
        (
            "request.auth.token.roles.hasAny(['a', 'b'])",
            "'a' in request.auth.token.roles && request.auth.token.roles is list || request.auth.token.roles.hasAny(['b'])"
        ),
        ("request.auth.uid.size() > 0", "request.auth.uid != ''"),
        ("request.auth.uid.size() == 2 && request.auth.uid == '😀'", "request.auth.uid == '😀'"),
        ("request.auth.uid == 'é' && request.auth.uid == 'e\\u0301'", "false"),
    ])
    func provesEquivalence(_ old: String, _ new: String) throws {
        let diff = try diff(Self.condition(old), Self.condition(new))
        for side in [diff.opened, diff.closed] {
            #expect(side.provenMethods == Method.allCases, "\(diff.text("old", "new", explains: true))")
        }
    }

    /// Conditions of which the second allows more.
    @Test(arguments: [
        ("request.auth.uid == uid", "request.auth != null"),
        ("request.resource.size < 5", "request.resource.size <= 5"),
        ("request.auth.token.admin == true", "request.auth.token.admin != false"),
        ("request.auth.token.email.matches('.*@x\\\\.org')", "request.auth.token.email.matches('.*@x.org')"),
        ("'a' in request.auth.token.roles", "'a' in request.auth.token.roles || 'b' in request.auth.token.roles"),
        (
            "firestore.exists(/databases/(default)/documents/admins/$(request.auth.uid))",
            "request.auth.uid.size() > 3 || firestore.exists(/databases/(default)/documents/admins/$(request.auth.uid))"
        ),
        (
            "firestore.get(/databases/(default)/documents/users/$(uid)).data.role == 'a'",
            "firestore.get(/databases/(default)/documents/users/$(uid)).data.role in ['a', 'b']"
        ),
        (
            "request.resource.metadata.diff(resource.metadata).affectedKeys().hasOnly(['x'])",
            "request.resource.metadata.diff(resource.metadata).affectedKeys().hasOnly(['x', 'y'])"
        ),
        ("resource == null", "resource == null || resource.metadata.owner == request.auth.uid"),
        ("request.auth.uid == 'a\\u0301'", "request.auth.uid in ['a\\u0301', 'á']"),
        ("request.time < timestamp.date(2026, 1, 1)", "request.time <= timestamp.date(2026, 1, 1)"),
        ("false", "uid == 'x' && file[2] == 'y'"),
        ("false", "request.auth.token.a.b.c == 3"), ("false", "request.auth.uid.matches('[^a-z]{3}')"),
        ("false", "request.resource.size == 9223372036854775807"),
    ])
    func findsWhatOpens(_ old: String, _ new: String) throws {
        let (before, after) = (try Self.rules(Self.condition(old)), try Self.rules(Self.condition(new)))
        let diff = RulesDiff(from: before, to: after, try Solver(), milliseconds: 10_000)
        #expect(diff.closed.provenMethods == Method.allCases, "\(diff.text("old", "new", explains: true))")
        var example = try #require(
            diff.opened.changes.first?.examples.first, "\(diff.text("old", "new", explains: true))")
        #expect(example.isAllowed(by: after) == true)
        #expect(example.isAllowed(by: before) == false)
        #expect(diff.opened.open.isEmpty)
    }

    @Test func namesTheStatementAndTheSmallestRequest() throws {
        let diff = try diff("allow write: if request.auth.uid == uid;", "allow write: if request.auth != null;")
        #expect(
            diff.text("old", "new", explains: false) == """
                storage.rules:3:34 allows what old denies, for example:
                  create users/bob/a.jpg   auth.uid = "alice", size = 1
                  update users/bob/a.jpg   auth.uid = "alice", size = 1
                  delete users/bob/a.jpg   auth.uid = "alice"
                1 of 1 statements changed. Newly allowed: create, update, delete; nothing for get, list (proven). Newly denied: nothing (proven).

                """)
    }

    @Test func wideningAPathIsFound() throws {
        let old = try Self.rules("allow read;", path: "/public/{file}")
        let new = try Self.rules("allow read;", path: "/public/{file=**}")
        let diff = RulesDiff(from: old, to: new, try Solver(), milliseconds: 10_000)
        #expect(diff.opened.changes.first?.examples.map(\.name) == ["public", "public"])
        #expect(diff.closed.provenMethods == Method.allCases)
    }

    @Test func version1ListsNothing() throws {
        let old = try Self.rules("allow read;", version: 1)
        let new = try Self.rules("allow read;")
        let diff = RulesDiff(from: old, to: new, try Solver(), milliseconds: 10_000)
        #expect(diff.opened.changes.first?.examples.map(\.method).contains(.list) == true)
    }

    /// What the analysis does not know is no proof, and its place is named.
    @Test func whatIsNotModelledIsUndetermined() throws {
        let diff = try diff(
            Self.condition("hashing.md5(request.auth.uid).toHexString() == 'A'"),
            Self.condition("hashing.sha256(request.auth.uid).toHexString() == 'B'"))
        #expect(diff.opened.provenMethods == [.get, .list, .update, .delete])
        #expect(diff.opened.changes.isEmpty)
        let text = diff.opened.open.flatMap(\.obstacles).map(\.text).joined()
        #expect(text.contains("storage.rules:3:") && text.contains("hashing.sha256(request.auth.uid)"))
    }

    /// Requests that use up the limit of expressions are denied, so equal conditions behind much work are not equal.
    @Test func limitsOfTheEngineAreNotForgotten() throws {
        let work = (0..<60).map { "request.auth.token.c\($0) != \($0)" }.joined(separator: " && ")
        let statement = "allow create: if \(work); "
        let old = (0..<6).map { _ in statement }.joined() + "allow create: if request.auth.uid == 'a';"
        let diff = try diff(old, "allow create: if request.auth.uid == 'a';")
        #expect(!diff.opened.provenMethods.contains(.create))
    }

    /// So do statements that are never true.
    @Test func falseStatementsUseUpTheLimit() throws {
        let work = (0..<70).map { _ in "false" }.joined(separator: " || ")
        let old =
            (0..<6).map { _ in "allow create: if \(work); " }.joined() + "allow create: if request.auth.uid == 'a';"
        let diff = try diff(old, "allow create: if request.auth.uid == 'a';")
        #expect(diff.opened.changes.first?.examples.map(\.method) == [.create])
    }

    /// Half a character of a string is matched by nothing.
    @Test func halfCharacters() throws {
        let diff = try diff(
            Self.condition("request.auth.uid[0:1].matches('.')"), Self.condition("request.auth.uid[0:1].size() == 1"))
        #expect(!diff.opened.provenMethods.contains(.create))
    }

    /// A function's result depends on its arguments, also where it is not modelled.
    @Test func functionsAreNotMixedUp() throws {
        func rules(_ condition: String) throws -> Ruleset {
            try Self.rules("function f(x) { return [request.resource, x]; } allow create: if \(condition);")
        }
        let diff = RulesDiff(
            from: try rules("f(1) == f(2) && f(1)[1] == 2"), to: try rules("f(1)[1] == 1"), try Solver(),
            milliseconds: 10_000)
        #expect(!diff.opened.provenMethods.contains(.create))
    }

    /// Without time for the solver, random requests find what is obvious.
    @Test func obviousExamplesNeedNoSolver() throws {
        let condition = "request.auth.uid == uid && request.resource.name.matches('.*\\\\.(png|jpg)$')"
        let diff = try diff(Self.condition(condition), Self.condition("true || \(condition)"), milliseconds: 0)
        #expect(diff.opened.changes.flatMap(\.examples).map(\.method) == [.create])
        #expect(!diff.closed.provenMethods.contains(.create) && diff.closed.changes.isEmpty)
    }

    private static func exist(_ names: [String]) -> String {
        names.map { "firestore.exists(/databases/(default)/documents/a/\($0))" }.joined(separator: " && ")
    }

    @Test func aThirdDocumentIsAnError() throws {
        let diff = try diff(Self.condition(Self.exist(["x", "y", "z"])), Self.condition("true"))
        #expect(diff.opened.changes.first?.examples.first?.method == .create)
        #expect(!diff.closed.provenMethods.isEmpty)
    }

    /// A look-up counts, too, if its path is not known.
    @Test func aThirdDocumentOfUnknownPathIsAnError() throws {
        let unknown = "firestore.exists(path('/databases/(default)/documents/a/' + request.auth.uid))"
        let two = Self.exist(["x", "y"])
        let diff = try diff(Self.condition(two), Self.condition("(\(unknown) || true) && \(two)"))
        #expect(!diff.closed.provenMethods.contains(.create))
    }

    /// The limit of memory is for what the solver needs, not for what its process has inherited.
    @Test func aLargeProcessCanStartTheSolver() throws {
        let size = 4 << 30
        let memory = mmap(nil, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
        try #require(memory != MAP_FAILED)
        defer { munmap(memory, size) }
        let diff = try diff(Self.condition("false"), Self.condition("request.auth != null"))
        #expect(diff.opened.changes.count == 1)
    }

    @Test func aStoppedSolverIsEnded() throws {
        let solver = try Solver()
        let id = try #require(solver.process?.id)
        kill(id, SIGSTOP)
        // More than the socket holds.
        let script = String(repeating: "(assert true)\n", count: 100_000)
        guard case .ended("the time limit") = solver.evaluate(script, milliseconds: 50) else {
            Issue.record("a stopped process has answered")
            return
        }
        guard case .text("sat\n") = solver.evaluate("(check-sat)\n", milliseconds: 5_000) else {
            Issue.record("it did not start again")
            return
        }
    }

    @Test func theTimeLimitIsKept() throws {
        let start = ContinuousClock().now
        let diff = try diff(
            Self.condition("request.auth.uid.matches('(a|b)*a(a|b){12}') && request.auth.token.x.matches('(a|b){40}')"),
            Self.condition(
                "request.auth.uid.matches('(b|a)*a(b|a){12}') || request.auth.token.x == request.auth.uid + uid"),
            milliseconds: 1_000)
        #expect(ContinuousClock().now - start < .seconds(20))
        #expect(!diff.opened.open.isEmpty || !diff.opened.changes.isEmpty)
    }

    /// Maps that contain each other's keys have no end.
    @Test func nestedMapsEnd() throws {
        let diff = try diff(
            Self.condition("request.auth.token == request.auth.token.role"),
            Self.condition(
                "request.auth.token.role == request.auth.token.role.role || request.auth.token.x == request.auth.token")
        )
        #expect(diff.statements == 1)
    }

    @Test(arguments: [
        ("false", "request.auth.uid in firestore.get(/databases/(default)/documents/teams/$(uid)).data.members"),
        ("false", "firestore.get(/databases/(default)/documents/teams/$(uid)).data.roles[request.auth.uid] == 'admin'"),
        ("false", "true"), ("false", "request.params.x == 'y'"),
    ])
    func findsOpeningsThatReadLittle(_ old: String, _ new: String) throws {
        let (before, after) = (try Self.rules(Self.condition(old)), try Self.rules(Self.condition(new)))
        let diff = RulesDiff(from: before, to: after, try Solver(), milliseconds: 10_000)
        #expect(diff.opened.changes.first?.examples.count == 1, "\(diff.text("old", "new", explains: true))")
        #expect(diff.opened.open.isEmpty)
    }

    @Test func statementsThatAreUseless() throws {
        let rules = try Self.rules(
            """
            allow get: if request.auth.uid == null;
            allow list: if request.auth != null;
            allow read: if request.auth.uid == uid || request.auth != null;
            allow create: if request.resource.size >= 0 || true;
            allow delete: if uid == 'a' && uid == 'b';
            allow update: if request.auth.uid == uid;
            """)
        let found = StatementFindings.warnings(rules, try Solver(), milliseconds: 10_000)
        #expect(
            found.map { "\($0.range?.lowerBound.line ?? 0) \($0.message)" } == [
                "3 This statement never allows a request.", "4 Other statements allow all that this one allows.",
                "6 This condition always holds.", "7 This statement never allows a request.",
            ])
    }

    @Test func deepConditionsEnd() throws {
        let deep = String(repeating: "!(", count: 40) + "request.auth != null" + String(repeating: ")", count: 40)
        let diff = try diff(Self.condition(deep), Self.condition("request.auth != null"))
        #expect(diff.opened.provenMethods == Method.allCases)
    }
}
