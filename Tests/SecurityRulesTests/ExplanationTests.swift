import Testing

@testable import SecurityRules

/// What explanations and coverage say.
@Suite struct ExplanationTests {
    private static let source = """
        rules_version = '2';
        service firebase.storage {
          function owns(id) { return request.auth.uid == id; }
          match /b/{bucket}/o {
            match /users/{uid}/{file=**} {
              allow read: if owns(uid) && request.params.x == 1;
              allow get: if 1 + 'a';
              allow create: if request.resource.size < 10 || resource == null;
              allow delete;
            }
          }
        }
        """

    @Test func explains() throws {
        let rules = try Ruleset.load(source: Self.source, fileName: "f.rules")
        let explanation = rules.explain(request(.get, object: "users/alice/a/b"))
        #expect(explanation.decision == .denied(Denial(reason: .notAllowed, readsCaller: true)))
        let block = try #require(explanation.blocks.first)
        #expect(block.path == "/b/{bucket}/o/users/{uid}/{file=**}")
        #expect(
            block.captures.map { "\($0.name)=\($0.value)" } == [
                "bucket='photos'", "uid='alice'", "file=/a/b",
            ])
        #expect(block.rules.map(\.methods) == ["read", "get"])
        let first = try #require(block.rules[0].condition)
        #expect(first.text == "owns(uid) && request.params.x == 1")
        #expect(
            first.outcome
                == .error(
                    "Error: f.rules line [6], column [35]. Property x is undefined on object."))
        #expect(first.parts.map(\.text) == ["owns(uid)", "request.params.x == 1"])
        #expect(first.parts[0].outcome == .value("true"))
        #expect(
            first.parts[0].parts.map { "\($0.text) = \($0.outcome)" }
                == ["request.auth.uid == id = true", "uid = 'alice'"])
        #expect(
            block.rules[1].outcome.description.hasSuffix(
                "Received: int + string. Expected: int + int."))
    }

    @Test func explainsUnknowns() throws {
        let rules = try Ruleset.load(source: Self.source)
        var early = request(.create, object: "users/alice/a")
        early.existing = .unknown
        early.incoming?.set(.size, .unknown)
        let explanation = rules.explain(early)
        #expect(
            explanation.blocks[0].rules[0].outcome.description
                == "unknown: resource, request.resource.size")
        #expect(
            rules.explain(request(.delete, object: "users/x")).blocks[0].rules[0].outcome
                == .value("true"))
    }

    private func condition(_ text: String) throws -> Explanation.Step {
        try #require(rules(text).explain(request()).blocks[0].rules[0].condition)
    }

    private func all(_ step: Explanation.Step) -> [Explanation.Step] {
        [step] + step.parts.flatMap(all)
    }

    @Test func parenthesesBelongToText() throws {
        let both = try condition("!(1 == 2.0) && (true) && (2 == 2.0)")
        #expect(both.text == "!(1 == 2.0) && (true) && (2 == 2.0)")
        #expect(both.parts.map(\.text) == ["!(1 == 2.0)", "true", "2 == 2.0"])
        let sum = "(bucket) == ((')' + bucket))"
        #expect(try condition(sum).text == sum)
        #expect(try condition("((bucket).size() > (0))").text == "(bucket).size() > (0)")
        let lines = try condition("( /* ( */ bucket // )\n ) != (bucket /* x */ )")
        #expect(lines.text.hasSuffix("!= (bucket /* x */ )"))
    }

    @Test func kindsAndSegments() throws {
        let steps = all(
            try condition(
                "firestore.exists(/databases/(default)/documents/$('u' + 'sers')/$(request.auth.uid))"
                    + " && 'a'.size() == 1 && 'abc'.matches('a' + bucket)"))
        func texts(_ kind: Explanation.Step.Kind) -> [String] {
            steps.filter { $0.kind == kind }.map(\.text)
        }
        #expect(
            texts(.literal).sorted() == [
                "'a'", "'a'", "'abc'", "'u' + 'sers'", "(default)", "1", "databases", "documents",
            ])
        #expect(texts(.lookUp).count == 1)
        #expect(texts(.call) == ["'a'.size()", "'abc'.matches('a' + bucket)"])
        #expect(texts(.other).contains("request.auth.uid"))
    }

    /// What is counted is what is listed: literals are neither.
    @Test func coverageListsWhatItCounts() throws {
        let rules = try rules(
            "!(1 == 2.0) && ({'a': 1}.a == 1) && /a/$(bucket) != /a/b && [1, bucket][0] == -1")
        var coverage = Coverage(of: rules)
        let listed = coverage.expressions.map(\.range)
        coverage.add(rules.explain(request()))
        #expect(coverage.expressions.map(\.range) == listed)
        #expect(coverage.totals.evaluated == listed.count)
    }

    @Test func covers() throws {
        let rules = try Ruleset.load(source: Self.source, fileName: "f.rules")
        var coverage = Coverage(of: rules)
        #expect(coverage.totals.evaluated == 0 && coverage.totals.expressions > 10)
        coverage.add(rules.explain(request(.create, object: "users/alice/a")))
        coverage.add(rules.explain(request(.get, object: "users/alice/a")))
        coverage.add(rules.explain(request(.get, object: "users/bob/a")))
        #expect(coverage.text.contains("6:22  owns(uid)  → false ×1, true ×1\n"))
        #expect(coverage.text.contains("8:24  request.resource.size < 10  → false ×1\n"))
        let html = coverage.html
        #expect(html.contains("title=\"false ×1\ntrue ×1\""))
        #expect(html.components("<span").count == html.components("</span>").count)
        let plain = html.replacing(/<span[^>]*>|<\/span>/, with: "")
        #expect(
            plain.contains("allow create: if request.resource.size &lt; 10 || resource == null;"),
            "\(plain)")
    }
}
