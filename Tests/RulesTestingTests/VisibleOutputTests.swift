import SecurityRules
import Testing
import Wire

@testable import RulesTesting

/// Nothing that a file of rules, a suite or a request holds reaches a terminal as a command.
@Suite struct VisibleOutputTests {
    private static let hidden = "\u{1B}[2J\u{9B}31m\u{202E}\u{7}\u{2028}"
    private static let escaped = #"\u001b[2J\u009b31m\u202e\u0007\u2028"#

    private func isVisible(_ text: String) -> Bool {
        !text.unicodeScalars.contains { $0 != "\n" && VisibleText.isHidden($0) }
    }

    @Test func explanationsResultsAndCoverage() throws {
        let source = """
            rules_version = '2';
            service firebase.storage {
              match /b/{bucket}/o/{name} {
                allow get /* \(Self.hidden) */: if name == '\(Self.hidden)' /* \(Self.hidden) */ && {}['\(Self.hidden)'];
              }
            }
            """
        let rules = try Ruleset.load(source: source, fileName: "f\(Self.hidden)\n.rules")
        let name = "\"\(Self.escaped)\""
        let suite = try TestSuite.read(
            #"{"cases": [{"name": \#(name), "method": "get", "bucket": "b", "object": \#(name), "#
                + #""expect": "allow"}]}"#,
            fileName: "s\(Self.hidden)", now: Timestamp(rfc3339: "2026-05-01T12:00:00Z")!)
        let result = suite.cases[0].run(rules)
        let text = result.text(rules, colour: false)
        #expect(isVisible(text), "\(text)")
        #expect(text.hasPrefix("FAIL \(Self.escaped)\n     s\(Self.escaped):1:"))
        #expect(
            text.contains("name = '\(Self.escaped)'") && text.contains("Property \(Self.escaped)"))
        #expect(text.contains("f\(Self.escaped)\\n.rules:3:9"))
        let colours = result.text(rules, colour: true).replacing(/\x1b\[[0-9]+m/, with: "")
        #expect(colours == text)
        #expect(isVisible(result.json(rules, coverage: true).text))
        var report = CoverageReport(rules)
        report.add(result)
        #expect(isVisible(report.page))
        #expect(isVisible(report.text) && report.text.contains("'\(Self.escaped)'"))
    }

    @Test func findingsOfSuites() throws {
        let hidden = Self.hidden.replacing("\u{2028}", with: "")
        do {
            _ = try TestSuite.read(
                "{cases: [{method: \"\(Self.escaped)\"}]}", fileName: "s\(hidden)\n",
                now: Timestamp(rfc3339: "2026-05-01T12:00:00Z")!)
            Issue.record("read")
        } catch {
            #expect(isVisible("\(error)"), "\(error)")
        }
    }
}
