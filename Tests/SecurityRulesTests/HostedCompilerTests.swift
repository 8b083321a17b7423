import Testing

@testable import SecurityRules

/// What the hosted service's compiler takes and refuses, as observed.
@Suite struct HostedCompilerTests {
    /// The errors and warnings of a ruleset, each behind its place.
    private func issues(_ source: String) -> [String] {
        let found: [Diagnostic]
        do {
            found = try Ruleset.load(source: source, fileName: "f").diagnostics
        } catch { found = error.diagnostics }
        return found.map {
            let place = $0.range.map { "\($0.lowerBound.line):\($0.lowerBound.column) " } ?? ""
            return "\($0.severity == .error ? "E" : "W") \(place)\($0.message)"
        }
    }

    /// The issues of a block's body that begins at line 2, column 1; none are about open rules.
    private func issues(inBlock body: String) -> [String] {
        issues("rules_version='2';service firebase.storage{match /a{\n\(body)\n}}").filter {
            !$0.contains("Anyone in the world")
        }
    }

    private func times(_ count: Int, _ text: String) -> String {
        String(repeating: text, count: count)
    }

    private static let tooComplex = "Expression is too complex to evaluate safely."

    // MARK: Limits

    enum Nest: String, CaseIterable, Sendable {
        case parenthesesAroundComparison, parenthesesAroundTrue, lists, listsOfCaller, flatChain
        case flatAlternatives, rightNested, flatSum, negations, arguments
    }

    private func nested(_ nest: Nest, _ count: Int) -> String {
        let comparison = "request.auth.uid == 'a'"
        switch nest {
        case .parenthesesAroundComparison: return times(count, "(") + comparison + times(count, ")")
        case .parenthesesAroundTrue: return times(count, "(") + "true" + times(count, ")")
        case .lists: return "1 == " + times(count, "[") + "1" + times(count, "]")
        case .listsOfCaller: return times(count, "[") + "request.auth" + times(count, "]") + " == 1"
        case .flatChain:
            return [String](repeating: comparison, count: count).joined(separator: " && ")
        case .flatAlternatives:
            return [String](repeating: comparison, count: count).joined(separator: " || ")
        case .rightNested:
            return times(count - 1, comparison + " && (") + comparison + times(count - 1, ")")
        case .flatSum: return [String](repeating: "1", count: count).joined(separator: " + ")
        case .negations: return times(count, "!") + "true"
        case .arguments: return times(count, "string(") + "1" + times(count, ")")
        }
    }

    @Test(arguments: [
        (Nest.parenthesesAroundComparison, 97), (.parenthesesAroundTrue, 98), (.lists, 97),
        (.listsOfCaller, 97), (.flatChain, 98), (.flatAlternatives, 98), (.rightNested, 49),
        (.flatSum, 99), (.negations, 98), (.arguments, 98),
    ])
    func nesting(_ nest: Nest, _ most: Int) {
        func errors(_ count: Int) -> [String] {
            issues(inBlock: "allow get: if \(nested(nest, count));").filter { $0.hasPrefix("E") }
        }
        #expect(errors(most) == [])
        #expect(errors(most + 1).count == 1)
        #expect(errors(most + 1).first?.hasSuffix(Self.tooComplex) == true)
        #expect(errors(5_000).first?.hasSuffix(Self.tooComplex) == true)
    }

    @Test func nestedDeepWithEveryOperator() {
        let level = "true || true && true == true is bool in [] < 1 + 1 * ("
        #expect(
            issues(inBlock: "allow get: if \(times(2000, level))1\(times(2000, ")"));").contains {
                $0.hasSuffix(Self.tooComplex)
            })
    }

    @Test func deepestThatLoadsEvaluates() {
        #expect(outcome(nested(.parenthesesAroundComparison, 97)) == "false")
        #expect(outcome(nested(.lists, 97)) == "false")
        #expect(outcome(nested(.listsOfCaller, 97)) == "false")
        #expect(outcome(nested(.flatChain, 98)) == "false")
        #expect(outcome(nested(.rightNested, 49)) == "false")
    }

    @Test func variables() {
        func function(_ count: Int) -> String {
            let lets = (0..<count).map { "let a\($0) = \($0 == 0 ? "1" : "a\($0 - 1)"); " }.joined()
            return "function f() { \(lets)\nreturn a\(count - 1) == 1; }\nallow get: if f();"
        }
        #expect(issues(inBlock: function(11)) == [])
        #expect(
            issues(inBlock: function(12)) == [
                "E 3:8 Maximum allowed variable count of 10 for a given function has been reached."
            ])
    }
}
