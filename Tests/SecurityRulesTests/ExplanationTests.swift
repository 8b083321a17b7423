import Testing

@testable import SecurityRules

/// The contents of explanations and coverage.
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

    /// Listed and counted expressions are the same; literals are in neither.
    @Test func coverageListsWhatItCounts() throws {
        let rules = try rules(
            "!(1 == 2.0) && ({'a': 1}.a == 1) && /a/$(bucket) != /a/b && [1, bucket][0] == -1")
        var coverage = Coverage(of: rules)
        let listed = coverage.expressions.map(\.range)
        coverage.add(rules.explain(request()))
        #expect(coverage.expressions.map(\.range) == listed)
        #expect(coverage.totals.evaluated == listed.count)
    }

    /// Constant and missing conditions are not expressions. They are counted as statements.
    @Test func coverageCountsStatements() throws {
        let source = """
            rules_version = '2';
            service firebase.storage {
              match /b/{bucket}/o/{name} {
                allow get: if name == 'a'
                    || name == 'b';
                allow list;
                allow create: if true;
                allow delete: if false;
              }
            }
            """
        let rules = try Ruleset.load(source: source, fileName: "f.rules")
        var coverage = Coverage(of: rules)
        #expect(coverage.statementTotals == (all: 4, several: 0, constant: 0, never: 4))
        for object in ["a", "b", "c"] { coverage.add(rules.explain(request(.get, object: object))) }
        coverage.add(rules.explain(request(.create, object: "a")))
        coverage.add(rules.explain(request(.create, object: "b")))
        coverage.add(rules.explain(request(.list, object: "a")))
        #expect(coverage.statementTotals == (all: 4, several: 1, constant: 2, never: 1))
        let text = coverage.text
        #expect(
            text.hasPrefix(
                "f.rules: 5 of 5 expressions evaluated. 4 allow statements: 1 with several outcomes, "
                    + "2 with one only, 1 never asked.\n"))
        #expect(text.contains("4:5  allow get  → true ×2, false ×1\n"))
        #expect(text.contains("6:5  allow list  → true ×1\n"))
        #expect(text.contains("7:5  allow create  → true ×2\n"))
        #expect(text.contains("8:5  allow delete  → never evaluated\n"))
        let html = coverage.html
        #expect(
            html.contains("<span class=\"always\" title=\"true ×2\">allow create</span>: if true;"))
        #expect(html.contains("<tr><th>never asked</th><td>1</td></tr>"))
        let lines = html.matches(
            of: /<div class="line" id="L(\d+)"><a href="#L\d+">(\d+)<\/a><code>(.*)<\/code><\/div>/)
        #expect(lines.map { String($0.1) } == (1...10).map { "\($0)" })
        #expect(lines.map { String($0.2) } == (1...10).map { "\($0)" })
        for line in lines {
            let opened = line.3.matches(of: /<span/).count
            #expect(opened == line.3.matches(of: /<\/span>/).count)
        }
        let plain = lines.map { $0.3.replacing(/<[^>]*>/, with: "") }
        #expect(plain.joined(separator: "\n") == source)
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
        #expect(html.contains("title=\"false ×1&#10;true ×1\""))
        #expect(html.components("<span").count == html.components("</span>").count)
        let plain = html.replacing(/<span[^>]*>|<\/span>/, with: "")
        #expect(
            plain.contains("allow create: if request.resource.size &lt; 10 || resource == null;"),
            "\(plain)")
    }
}
