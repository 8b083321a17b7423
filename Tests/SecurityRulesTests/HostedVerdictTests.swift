import Testing

@testable import SecurityRules

/// Where the hosted service was asked, its answers, one row for each.
@Suite struct HostedVerdictTests {
    private func check(
        _ table: String, functions: String = "", _ location: SourceLocation = #_sourceLocation
    ) {
        for line in table.split(separator: "\n") {
            let sides = line.components(" → ")
            let found = outcome("debug(\(sides[0]))", functions: functions)
            let isRight =
                sides[1].hasPrefix("error ")
                ? found.hasPrefix("Error: ") && found.hasSuffix(sides[1].dropFirst("error ".count))
                : found == sides[1]
            #expect(isRight, "\(sides[0]) is \(found), not \(sides[1])", sourceLocation: location)
        }
    }

    // MARK: The limit of expressions

    /// How many expressions a condition counts for.
    private func cost(_ condition: String, functions: String = "") throws -> Int {
        let ruleset = try rules(condition, functions: functions)
        let request = request()
        let path = try #require(request.state.path)
        let context = Context(program: ruleset.program, request: request.state, path: path)
        var evaluator = Evaluator(context, NoRecorder())
        _ = evaluator.decide(ruleset.matchingBlocks(path))
        return evaluator.sureSteps
    }

    private static let functions = """
        function none() { return true; }
        function one(a) { return a; }
        function bound(a) { let b = a; let c = [1, 2]; return b; }
        """

    @Test(arguments: [
        ("true", 1), ("bucket", 1), ("resource", 1), ("request.auth.uid", 3), ("!true", 2),
        ("1 == 2", 3), ("1 + 2 * 3", 5), ("-1", 2), ("'a' + 'b' + 'c'", 5), ("bucket + 'a'", 3),
        ("true && true", 4), ("false && true", 2), ("true && true && true", 7),
        ("false && true && true", 3), ("true && (true && true)", 7), ("true || false", 2),
        ("false || true", 4), ("(1 == 1) && true", 6), ("true ? 1 : 2", 4), ("false ? 1 : 2", 6),
        ("1 is int", 3), ("[1, 2, 3]", 4), ("[1, bucket]", 3), ("[[1], [2]]", 5),
        ("{'a': 1}", 3), ("/a/b/c", 4), ("/a/$(bucket)", 3), ("math.abs(1)", 2),
        ("'a'.matches('a.*')", 3), ("bucket.matches('a' + '.*')", 5), ("'a'.size()", 2),
        ("[1][0]", 4), ("1 in [1, 2]", 5), ("none()", 2), ("one(1)", 3),
        // The call, its argument, two bindings with their values, the result.
        ("bound(1)", 1 + 1 + 2 + 4 + 1),
    ])
    func costs(_ condition: String, _ expected: Int) throws {
        #expect(try cost(condition, functions: Self.functions) == expected, "\(condition)")
    }

    /// So many terms, nested as little as possible.
    private func balanced(_ term: String, _ sign: String, _ count: Int) -> String {
        if count == 1 { return term }
        let half = count / 2
        return "(\(balanced(term, sign, half)) \(sign) \(balanced(term, sign, count - half)))"
    }

    @Test func limit() throws {
        let chain = [String](repeating: "true", count: 40).joined(separator: " && ")
        func functions(_ count: Int) -> String {
            (1...count).map { level in
                let next = level == count ? "" : " && f\(level + 1)()"
                return "function f\(level)() { return \(chain)\(next); }"
            }.joined(separator: "\n")
        }
        #expect(outcome("f1()", functions: functions(8)) == "true")
        #expect(outcome("f1()", functions: functions(10)).contains("maximum of 1000 expressions"))
        func terms(_ count: Int) -> String { balanced("request.auth.uid != 'x'", "&&", count) }
        #expect(outcome(terms(100)) == "true")
        // A term and its operator cost seven.
        #expect(outcome(terms(143)) == "true")
        #expect(outcome(terms(144)).contains("maximum of 1000 expressions"))
    }

    /// Where the limit is reached no later rule allows, not even one without a condition.
    @Test(arguments: ["allow create: if true;", "allow create;"])
    func limitEndsTheRequest(_ rule: String) throws {
        let heavy = balanced("false", "||", 400)
        func load(_ first: String) throws -> Ruleset {
            try Ruleset.load(
                source: """
                    rules_version = '2';
                    service firebase.storage {
                      match /b/{bucket}/o/{path=**} { allow create: if \(first); }
                      match /b/{bucket}/o/{path=**} { \(rule) }
                    }
                    """)
        }
        let denied = Decision.denied(Denial(reason: .notAllowed, readsCaller: false))
        let ruleset = try load(heavy)
        #expect(ruleset.decide(request()) == denied)
        let explanation = ruleset.explain(request())
        #expect(explanation.decision == denied)
        #expect(explanation.blocks.map(\.rules.count) == [1])
        // While it depends on something unknown whether it is reached, nothing is decided.
        let dependent = try load("resource == null && (\(heavy))")
        var early = request()
        early.existing = .unknown
        guard case .needs(let needs) = dependent.decide(early) else {
            Issue.record("decided: \(dependent.decide(early))")
            return
        }
        #expect(needs.existing)
        #expect(dependent.explain(early).decision == dependent.decide(early))
        early.existing = .absent
        #expect(dependent.decide(early) == denied)
        early.existing = .object(everything())
        #expect(dependent.decide(early) == .allowed)
    }

    @Test func argumentsAreLazyErrors() {
        check(
            """
            ignores(1 / 0) → true
            ignores(request.x) → true
            ignores(null.a) → true
            uses(1 / 0) → error Divide by zero error.
            uses(1) → false
            absorbs(1 / 0) → true
            passes(1 / 0) → true
            """,
            functions: """
                function ignores(a) { return true; }
                function uses(a) { return a == 0; }
                function absorbs(a) { return a == 0 || true; }
                function passes(a) { let b = a; return ignores(b); }
                """)
    }
}
