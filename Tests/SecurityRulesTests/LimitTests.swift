import Testing

@testable import SecurityRules

/// Evaluation ends at a limit, whatever a ruleset does.
@Suite struct LimitTests {
    private static let exhausted = "maximum of 1000 expressions"

    /// Functions that each call the previous one twice.
    private func bomb(_ depth: Int, _ leaf: String) -> String {
        (1...depth).map { level in
            let previous = level == 1 ? leaf : "f\(level - 1)()"
            return "function f\(level)() { return \(previous) && \(previous); }"
        }.joined(separator: "\n")
    }

    /// `count` comparisons that are all false, in groups that are shallow enough to load.
    private func comparisons(_ count: Int) -> String {
        stride(from: 0, to: count, by: 50).map { start in
            let group = (start..<start + 50).map { "request.auth.uid == 'a\($0)'" }
            return "(" + group.joined(separator: " || ") + ")"
        }.joined(separator: " || ")
    }

    @Test func expressions() {
        let many = comparisons(400)
        #expect(outcome(many).contains(Self.exhausted))
        let some = comparisons(100)
        #expect(outcome(some) == "false")
        #expect(
            outcome("f19()", functions: bomb(19, "request.auth != null")).contains(Self.exhausted))
        #expect(outcome("f5()", functions: bomb(5, "request.auth != null")) == "true")
        #expect(
            outcome("f19() || true", functions: bomb(19, "request.auth != null")).contains(
                Self.exhausted))
    }

    @Test func depth() {
        let sum = [String](repeating: "1", count: 90).joined(separator: " + ")
        let functions = (1...5).map {
            "function f\($0)() { return \($0 == 1 ? "request.time.day()" : "f\($0 - 1)()") + \(sum); }"
        }
        #expect(
            outcome("f4() == 361", functions: functions.joined(separator: "\n")).contains(
                "too complex"))
        #expect(outcome("f1() == 91", functions: functions.joined(separator: "\n")) == "true")
    }

    @Test func oneBudgetForAllRules() throws {
        let heavy = comparisons(300)
        let rules = try Ruleset.load(
            source: """
                rules_version = '2';
                service firebase.storage { match /b/{b}/o/{all=**} {
                  allow get: if \(heavy);
                  allow get: if request.auth.uid == 'alice';
                  allow list: if request.auth.uid == 'alice';
                } }
                """)
        #expect(!rules.decide(request(.get)).isAllowed)
        #expect(rules.decide(request(.list)).isAllowed)
    }

    @Test func growth() {
        let double = (1...19).map { level in
            let previous = level == 1 ? "s" : "d\(level - 1)(s)"
            return "function d\(level)(s) { let t = \(previous); return t + t; }"
        }.joined(separator: "\n")
        let long = "'" + String(repeating: "x", count: 1000) + "'"
        #expect(
            outcome("d19(\(long)).size() > 0", functions: double).contains("more than 65536 bytes"))
        let lists = double.replacing("t + t", with: "t.concat(t)")
        #expect(outcome("d19([1, request.time]).size() > 0", functions: lists).contains("Error: "))
        #expect(
            outcome(
                "'\(String(repeating: "a", count: 4000))'.replace('a', 'bbbbbbbbbbbbbbbbbbbb').size() > 0"
            ).contains("Error: "))
    }

    @Test func computedPatterns() {
        let bomb = "'a'.matches('((a{100}){100}){100}' + string(path)[1:1])"
        #expect(outcome(bomb).contains("Invalid regular expression pattern"))
        let functions = "function m(i) { return !'a'.matches('x' + i) && !'a'.matches('y' + i); }"
        let calls = (0..<15).map { "m('\($0)')" }.joined(separator: " && ")
        #expect(outcome(calls, functions: functions).contains(Self.exhausted))
        let long =
            "'a'.matches('" + String(repeating: "a", count: 600) + "' + '"
            + String(repeating: "b", count: 600) + "' + string(path)[1:1])"
        #expect(outcome(long).contains("Invalid regular expression pattern"))
    }

    @Test func longLists() {
        let list = "[" + (0..<20_000).map(String.init).joined(separator: ", ") + "]"
        #expect(outcome("1 in \(list)").contains(Self.exhausted))
        let short = "[" + (0..<980).map(String.init).joined(separator: ", ") + "]"
        #expect(outcome("979 in \(short)") == "true")
    }

    @Test func longNames() throws {
        let rules = try rules("path[499] == 'x' && request.path.size() == 1 || path[0] == 'x'")
        let name = [String](repeating: "x", count: 500).joined(separator: "/")
        #expect(rules.decide(Request(.get, bucket: "B", object: name, time: noon)) == .allowed)
    }

    private func errors(_ body: String, functions: String = "") -> [String] {
        do {
            _ = try Ruleset.load(
                source:
                    "rules_version = '2';\nservice firebase.storage { \(functions) \(body) }")
            return []
        } catch { return error.diagnostics.filter { $0.severity == .error }.map(\.message) }
    }

    @Test func staticLimits() {
        func nested(_ depth: Int) -> String {
            String(repeating: "match /a { ", count: depth) + "allow get;"
                + String(repeating: "}", count: depth)
        }
        #expect(errors(nested(10)).isEmpty)
        #expect(errors(nested(11)) == ["Match blocks are nested more than 10 deep."])
        #expect(!errors(nested(5000)).isEmpty)
        func path(_ count: Int) -> String {
            "match \(String(repeating: "/a", count: count)) { allow get; }"
        }
        #expect(errors(path(100)).isEmpty)
        #expect(errors(path(101)) == ["A match path may have at most 100 segments."])
        func captures(_ count: Int) -> String {
            "match \((0..<count).map { "/{a\($0)}" }.joined()) { allow get; }"
        }
        #expect(errors(captures(20)).isEmpty)
        #expect(errors(captures(21)) == ["A match path may have at most 20 captures."])
        func parameters(_ count: Int) -> String {
            "function f(\((0..<count).map { "a\($0)" }.joined(separator: ", "))) { return true; }"
        }
        #expect(errors("", functions: parameters(7)).isEmpty)
        #expect(
            errors("", functions: parameters(8)) == ["A function may have at most 7 arguments."])
    }

    @Test func staticLimitsOfFunctions() {
        func bindings(_ count: Int) -> String {
            "function f() { \((0..<count).map { "let a\($0) = 1; " }.joined()) return true; }"
        }
        #expect(errors("", functions: bindings(11)).isEmpty)
        #expect(
            errors("", functions: bindings(12)) == [
                "Maximum allowed variable count of 10 for a given function has been reached."
            ])
        func chain(_ count: Int) -> String {
            (1...count).map {
                "function f\($0)() { return \($0 == count ? "true" : "f\($0 + 1)()"); }"
            }.joined()
        }
        let stack = (1...21).map { "f\($0)" }.joined(separator: "->")
        #expect(errors("", functions: chain(21)).isEmpty)
        for count in [22, 23, 40] {
            #expect(
                errors("", functions: chain(count)) == [
                    "Maximum allowed call depth of 20 is reached for [\(stack)] call stack."
                ])
        }
        #expect(
            errors("", functions: "function f() { return g(); } function g() { return f(); }")
                == ["Recursive call is not allowed."])
        #expect(
            errors("", functions: "function f() { return f(); }")
                == ["Recursive call is not allowed."])
    }

    @Test func staticLimitsOfExpressions() {
        let deep = String(repeating: "(", count: 5000) + "1" + String(repeating: ")", count: 5000)
        #expect(
            errors("match /a { allow get: if \(deep); }").contains(
                "Expression is too complex to evaluate safely."))
        let minus = String(repeating: "!", count: 5000) + "true"
        #expect(
            errors("match /a { allow get: if \(minus); }").contains(
                "Expression is too complex to evaluate safely."))
        let sum = [String](repeating: "'a'", count: 5000).joined(separator: "+")
        #expect(
            errors("match /a { allow get: if \(sum); }").contains(
                "Expression is too complex to evaluate safely."))
        let wide = [String](repeating: "true", count: 5000).joined(separator: " && ")
        #expect(
            errors("match /a { allow get: if \(wide); }") == [
                "Expression is too complex to evaluate safely."
            ])
    }

    @Test func sourceLength() {
        let comment = "//" + String(repeating: "x", count: 256 << 10)
        #expect(throws: RulesetError.self) { try Ruleset.load(source: comment) }
    }
}
