import Testing

@testable import SecurityRules

/// The source that the hosted service's compiler accepts and rejects, as observed.
@Suite struct HostedCompilerTests {
    /// The issues of a block's body, which begins at line 2, column 1. Warnings about open rules are left out.
    private func issues(inBlock body: String) -> [String] {
        diagnostics("rules_version='2';service firebase.storage{match /a{\n\(body)\n}}").filter {
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

    // MARK: Literals

    @Test(arguments: [
        (#"'\ud83d\ude00' == '😀'"#, "true"), (#"'a\ud83d\ude00b'.size() == 4"#, "true"),
        (#"'\u00e9\uFFFF' == 'é\uFFFF'"#, "true"), (#"'\uD800\uDC00' == '𐀀'"#, "true"),
        (#"'\udbff\udfff'.size() == 2"#, "true"), (#"B'abc' == b"abc""#, "true"),
        (#"B"\x41" == b'A'"#, "true"), (#"'\n\r\t\b\f\x41\101\\\'\"'.size() == 10"#, "true"),
        (#"b'\n\r\t\b\f\x41\101\\\'\"'.size() == 10"#, "true"),
    ])
    func literals(_ condition: String, _ expected: String) {
        #expect(outcome(condition) == expected)
    }

    @Test(arguments: [
        #"\/"#, #"\a"#, #"\v"#, #"\?"#, #"\`"#, #"\U"#, #"\ud83d"#, #"\ude00"#, #"\ud83d\u0041"#,
        #"\ud83d\n"#, #"\ud83d\u"#, #"\ude00\ud83d"#, #"\u12g4"#, #"\400"#, #"\."#,
    ])
    func rejectedEscapes(_ escape: String) {
        let found = issues(inBlock: "allow get: if 'a\(escape)0001F600' == '';")
        #expect(
            found.count == 1 && found[0].hasPrefix(#"E 2:17 Invalid escape sequence '\"#),
            "\(found)")
    }

    @Test(arguments: [#"\/"#, #"\a"#, #"\v"#, #"\?"#, #"\u0041"#, #"\U0001F600"#])
    func rejectedEscapesOfBytes(_ escape: String) {
        let found = issues(inBlock: "allow get: if B'a\(escape)' == b'';")
        #expect(
            found.count == 1 && found[0].hasPrefix(#"E 2:18 Invalid escape sequence '\"#),
            "\(found)")
    }

    @Test func unterminated() {
        for literal in ["'a", "\"a", "b'a", "B'a", "'a\r' == 'a'", "b'a\rb' == b'a'", "'a\\\r'"] {
            #expect(
                issues(inBlock: "allow get: if \(literal)").contains("E 2:15 Unterminated string."))
        }
    }

    // MARK: Declarations

    @Test(arguments: [
        (
            "function a() { return true; } function a() { return false; } allow get: if a();",
            ["E 2:40 Function a is already defined."]
        ),
        (
            "function a() { return true; } function a(x) { return x; } allow get: if a();",
            ["E 2:40 Function a is already defined."]
        ),
        (
            """
            function f() { return true; }
            match /x { function f() { return true; } allow get: if f(); } allow get: if f();
            """, []
        ),
        (
            "function f() { let value = 1; let value = 2; return value; } allow get: if f() == 2;",
            [
                "W 2:20 Unused variable: value.",
                "E 2:35 The identifier [value] is already bound in the current scope.",
            ]
        ),
        (
            "function f() { let a = 1; return a; } function g() { let a = 1; return a; }"
                + "allow get: if f() == g();", []
        ),
        (
            "function f() { return f(); } allow get: if f();",
            ["E 2:10 Recursive call is not allowed."]
        ),
        (
            "function f() { return g(); } function g() { return f(); } allow get: if f();",
            ["E 2:39 Recursive call is not allowed."]
        ),
    ])
    func declarations(_ body: String, _ expected: [String]) {
        #expect(issues(inBlock: body).filter { !$0.contains("Unused function") } == expected)
    }

    // MARK: Slashes

    @Test(arguments: [
        ("4/2 == 2", 16), ("(1/0) == 1", 17), ("request/resource == 1", 22), ("4/(2) == 2", 16),
        ("4/-2 == 2", 16), ("4 /2 == 2", 17), ("1 + 4\n/2 == 2", 1), ("[4][0]/2 == 2", 21),
    ])
    func slashBeforePath(_ condition: String, _ column: Int) {
        let line = condition.contains("\n") ? 3 : 2
        #expect(
            issues(inBlock: "allow get: if \(condition);") == [
                "E \(line):\(column) Missing 'match' keyword before path."
            ])
    }

    @Test(arguments: [
        "4/ 2 == 2", "4/\n2 == 2", "4/\r\n2 == 2", "4/\t2 == 2", "4 / 2 == 2", "4\n/ 2 == 2",
        "4/ /* half */ 2 == 2", "4 / // half\n2 == 2", "[8][0]/ 2/ 2 == 2",
    ])
    func division(_ condition: String) throws {
        #expect(outcome(condition) == "true")
        let source = "service firebase.storage { match /a { allow get: if \(condition); } }"
        let formatted = try Ruleset.format(source: source)
        #expect(try Ruleset.format(source: formatted) == formatted)
    }

    // MARK: Messages

    @Test(arguments: [
        ("allow get: if ;", ["E 2:15 Missing conditional expression after 'if'."]),
        ("allow get: if }", ["E 2:15 Missing conditional expression after 'if'."]),
        (
            "allow get: if math.abs() == 1;",
            ["W 2:20 Incorrect number of arguments supplied to function: math.abs."]
        ),
        (
            "allow get: if int(1, 2) == 1;",
            ["W 2:15 Incorrect number of arguments supplied to function: int."]
        ),
        (
            "match /{x=**}/{y=**} { allow get; }",
            [
                "E 2:14 Invalid glob match expression. Only one glob match is permitted in a match "
                    + "declaration path."
            ]
        ),
        (
            "match /{x=**} { match /{y=**} { allow get; } }",
            [
                "E 2:23 Invalid glob match expression. Only one glob match is permitted in a match "
                    + "declaration path."
            ]
        ),
        (
            "match /users/{userId}-{timestamp}-{f} { allow get: if userId == f; }",
            ["E 2:7 Missing 'match' keyword before path."]
        ),
        (
            "match /users/{userId}.jpg { allow get: if userId != null; }",
            ["E 2:7 Missing 'match' keyword before path."]
        ),
        ("match /{a}_x { allow get; }", ["E 2:7 Missing 'match' keyword before path."]),
        ("match /my folder/{x} { allow get; }", ["E 2:7 Missing 'match' keyword before path."]),
        ("match /my folder { allow get; }", ["E 2:7 Missing 'match' keyword before path."]),
    ])
    func texts(_ body: String, _ expected: [String]) {
        let found = issues(inBlock: body)
        #expect(Array(found.prefix(expected.count)) == expected, "\(found)")
    }

    // MARK: JSON

    @Test func positionsInJSON() throws {
        let source = """
            rules_version = '2';
            service firebase.storage {
              match /a { allow get: if missingName; }
            }
            """
        let offset = try #require(source.range(of: "missingName")).lowerBound
        let start = source.distance(from: source.startIndex, to: offset)
        let diagnostic = try #require(
            try Ruleset.load(source: source, fileName: "f").diagnostics.first)
        #expect(diagnostic.message == "Invalid variable name: missingName.")
        #expect(diagnostic.range?.upperBound.offset == start + 11)
        #expect(
            diagnostic.json.contains("\"currentOffset\": \(start), \"endOffset\": \(start + 10)}"))
    }

    @Test func wholeFileAndNothingInJSON() {
        let position = SourcePosition(line: 1, column: 5, offset: 4)
        var diagnostic = Diagnostic(severity: .warning, fileName: "a\"b", message: "m")
        #expect(
            diagnostic.json
                == #"{"sourcePosition": {"fileName": "a\"b"}, "description": "m", "severity": "WARNING"}"#
        )
        diagnostic.range = position..<position
        #expect(diagnostic.json.contains(#""currentOffset": 4, "endOffset": 4}"#))
    }
}
