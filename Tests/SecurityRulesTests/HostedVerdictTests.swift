import Testing

@testable import SecurityRules

/// Results of the hosted service, as observed, one per row.
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

    /// The number of expressions that a condition counts for.
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
        // The call, its argument, two bindings with their values, and the result.
        ("bound(1)", 1 + 1 + 2 + 4 + 1),
    ])
    func costs(_ condition: String, _ expected: Int) throws {
        #expect(try cost(condition, functions: Self.functions) == expected, "\(condition)")
    }

    /// A balanced tree of `count` terms, nested as little as possible.
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

    /// After the limit is exceeded, no later rule allows, not even one without a condition.
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
        #expect(ruleset.decide(request(), clock: { 1 }) == denied)
        let explanation = ruleset.explain(request())
        #expect(explanation.decision == denied)
        #expect(explanation.blocks.map(\.rules.count) == [1])
        // While it depends on an unknown input whether the limit is exceeded, there is no decision.
        let dependent = try load("resource == null && (\(heavy))")
        var early = request()
        early.existing = .unknown
        guard case .needs(let needs) = dependent.decide(early, clock: { 1 }) else {
            Issue.record("decided: \(dependent.decide(early))")
            return
        }
        #expect(needs.existing)
        #expect(dependent.explain(early).decision == dependent.decide(early, clock: { 1 }))
        early.existing = .absent
        #expect(dependent.decide(early, clock: { 1 }) == denied)
        early.existing = .object(everything())
        #expect(dependent.decide(early, clock: { 1 }) == .allowed)
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

    // MARK: Errors

    /// The messages of errors and their positions. A condition begins at column 27.
    @Test(arguments: [
        (
            "1 < 'a'", 29,
            "Unsupported operation error. Received: int < string. Expected: int < int."
        ),
        (
            "1 + 'a' == 2", 29,
            "Unsupported operation error. Received: int + string. Expected: int + int."
        ),
        ("1 / 0 == 2", 29, "Divide by zero error."),
        (
            "true && 1", 32,
            "Unsupported operation error. Received: bool && int. Expected: bool && bool."
        ),
        (
            "1 ? true : false", 29,
            "Unsupported operation error. Received: int ? any : any. Expected: bool ? any : any."
        ),
        ("!1", 27, "Unsupported operation error. Received: !int. Expected: !bool."),
        (
            "int('x') == 1", 27,
            "Type conversion error. Argument: [x], From type: [string], To type: [int]."
        ),
        (
            "1 == int('x')", 32,
            "Type conversion error. Argument: [x], From type: [string], To type: [int]."
        ),
        (
            "math.sqrt() == 1", 32,
            "Incorrect number of arguments. Received: 0. Expected: math.sqrt(float)."
        ),
        (
            "math.sqrt('a') == 1", 32,
            "Unsupported operation error. Received: math.sqrt(string). Expected: math.sqrt(int|float)."
        ),
        (
            "'abc'.matches(1)", 33,
            "Unsupported operation error. Received: string.matches(int). Expected: string.matches(string)."
        ),
        ("'abc'.nothing()", 27, "Function not found error: Name: [nothing]."),
        ("nothing()", 27, "Function not found error: Name: [nothing]."),
        ("[1, 2, 3, 4][3:1] == []", 27, "Illegal range error. From index: [3] , To index: [1]."),
        ("'abcd'[3:1] == ''", 27, "Illegal range error. From index: [3] , To index: [1]."),
        (
            "[1]['length'] == 1", 27,
            "Unsupported operation error. Received: list[string]. Expected: list[int]."
        ),
        ("resource.nothing == 1", 27, "Property nothing is undefined on object."),
    ])
    func errors(_ condition: String, _ column: Int, _ text: String) {
        #expect(outcome(condition) == "Error: storage.rules line [5], column [\(column)]. \(text)")
    }

    /// An invalid pattern loads, except in `matches`.
    @Test(arguments: ["replace('(', 'x') == 'a'", "split('(') == []"])
    func invalidPatterns(_ call: String) throws {
        #expect(
            try rules("'abc'.\(call)").diagnostics.map(\.message).contains {
                $0.hasPrefix("Invalid regular expression pattern: missing )")
            })
        #expect(
            outcome("'abc'.\(call)").hasSuffix("Invalid regular expression pattern. Pattern: (."))
        #expect(outcome("'abc'.matches('(')").hasPrefix("load: Invalid regular expression"))
    }

    // MARK: Values

    @Test func membership() {
        check(
            """
            1 in [1.0] → false
            1.0 in [1] → false
            0 in [-0.0] → false
            -0.0 in [0.0] → true
            1 in [2, 1] → true
            [0.0] in [[-0.0]] → false
            [1].hasAny([1.0]) → false
            [1].hasAll([1.0]) → false
            [1].hasOnly([1.0]) → false
            [1].hasOnly([1, 1.0]) → true
            [[0.0]].hasAny([[-0.0]]) → false
            [1, 2].removeAll([1.0]) == [1, 2] → true
            [1.0, 2].removeAll([1]) == [1.0, 2] → true
            [1.0, 2].removeAll([2]) == [1.0] → true
            [0.0] == [-0.0] → false
            {'a': -0.0} == {'a': 0.0} → false
            0.0 == -0.0 → true
            1 in [1.0].toSet() → true
            0 in [-0.0].toSet() → true
            {'a': 0.0}.diff({'a': -0.0}).changedKeys().size() → 0
            {'a': 1}.diff({'a': 1.0}).changedKeys().size() → 0
            ['a'].hasAll(['a'].toSet()) → error Unsupported operation error. Received: list.hasAll(set). Expected: list.hasAll(list).
            ['a'].hasAny(['a'].toSet()) → error Unsupported operation error. Received: list.hasAny(set). Expected: list.hasAny(list).
            ['a'].hasOnly(['a'].toSet()) → error Unsupported operation error. Received: list.hasOnly(set). Expected: list.hasOnly(list).
            ['a'].toSet().hasAll(['a']) → true
            1 in {'a': 1} → error Unsupported operation error. Received: map.in(int). Expected: map.in(string).
            'b' in {'a': 1} → false
            'a' in 'str' → error Function not found error: Name: [in].
            """)
    }

    @Test func notANumber() {
        check(
            """
            math.sqrt(-1) in [math.sqrt(-1)].toSet() → true
            [math.sqrt(-1), math.sqrt(-1)].toSet().size() == 1 → true
            [math.sqrt(-1), 1].toSet().size() → 2
            {'x': math.sqrt(-1)}.diff({'x': math.sqrt(-1)}).changedKeys().size() == 0 → true
            {'x': math.sqrt(-1)}.diff({'x': 1}).changedKeys().size() → 1
            math.sqrt(-1) == math.sqrt(-1) → false
            [math.sqrt(-1)] == [math.sqrt(-1)] → false
            {'x': math.sqrt(-1)} == {'x': math.sqrt(-1)} → false
            [[math.sqrt(-1)]] == [[math.sqrt(-1)]] → false
            math.sqrt(-1) in [math.sqrt(-1)] → false
            [math.sqrt(-1)] in [[math.sqrt(-1)]] → false
            math.sqrt(-1) → NaN
            -math.sqrt(-1) → NaN
            """)
    }

    @Test func slices() {
        check(
            """
            'abc'[0:0] → error Index out of bound error. Index: [-1] , size: [3].
            'abc'[3:3] → error Index out of bound error. Index: [3] , size: [3].
            'abc'[1:1] → ''
            'abc'[2:2] → ''
            'abc'[0:3] → 'abc'
            'abc'[2:3] → 'c'
            'abc'[0:4] → error Index out of bound error. Index: [3] , size: [3].
            'abc'[2:1] → error Illegal range error. From index: [2] , To index: [1].
            ''[0:0] → error Index out of bound error. Index: [0] , size: [0].
            ''[0:] → error Index out of bound error. Index: [0] , size: [0].
            'abc'[3:] → error Index out of bound error. Index: [3] , size: [3].
            'abc'[:0] → error Index out of bound error. Index: [-1] , size: [3].
            [1, 2, 3][0:0] → error Index out of bound error. Index: [-1] , size: [3].
            [1, 2, 3][3:3] → error Index out of bound error. Index: [3] , size: [3].
            [1, 2, 3][1:1] → []
            [1, 2, 3][2:2] → []
            [1, 2, 3][1:3] → [2, 3]
            [][0:0] → error Index out of bound error. Index: [0] , size: [0].
            """)
    }

    @Test func numbers() {
        check(
            """
            math.ceil(1.5) is int → false
            math.ceil(1.5) → 2.0
            math.floor(-1.5) → -2.0
            math.ceil(2) is float → true
            math.floor(2) is float → true
            math.round(1.5) is int → true
            int(float('1e20')) == 9223372036854775807 → true
            int(float('-1e20')) → -9223372036854775808
            int(math.sqrt(-1)) → 0
            int(-2.7) → -2
            math.round(math.sqrt(-1)) → 0
            math.round(1.0 / 0) → 9223372036854775807
            math.round(-1.0 / 0) → -9223372036854775808
            math.round(-2.5) → -2
            math.abs(-9223372036854775808) → -9223372036854775808
            math.abs(-5) → 5
            int('x') → error Type conversion error. Argument: [x], From type: [string], To type: [int].
            float('x') → error Type conversion error. Argument: [x], From type: [string], To type: [float].
            math.abs() → error Incorrect number of arguments. Received: 0. Expected: math.abs(float).
            f() → error Incorrect number of arguments. Received: 0. Expected: f(any).
            'a'.matches() → error Incorrect number of arguments. Received: 0. Expected: string.matches(string).
            """, functions: "function f(a) { return f2(a); } function f2(a) { return a; }")
    }

    @Test func floatsToText() {
        check(
            """
            string(123456789.0) → '1.23456789E8'
            string(9999999.0) → '9999999.0'
            string(10000000.0) → '1.0E7'
            string(12345678.5) → '1.23456785E7'
            string(0.001) → '0.001'
            string(0.00123) → '0.00123'
            string(0.000999) → '9.99E-4'
            string(float('1e-4')) → '1.0E-4'
            string(float('1e20')) → '1.0E20'
            string(float('1e23')) → '1.0E23'
            string(float('4.9e-324')) → '4.9E-324'
            string(float('1e-323')) → '9.9E-324'
            string(float('2e-323')) → '2.0E-323'
            string(float('5e-323')) → '4.9E-323'
            string(float('2.2250738585072014E-308')) → '2.2250738585072014E-308'
            string(float('1.7976931348623157e308')) → '1.7976931348623157E308'
            string(-0.0) → '-0.0'
            string(100.0) → '100.0'
            string(-1.5) → '-1.5'
            string(123.25) → '123.25'
            string(1.0 / 3) → '0.3333333333333333'
            string(1.0 / 0) → 'Infinity'
            string(-1.0 / 0) → '-Infinity'
            string(math.sqrt(-1)) → 'NaN'
            [10000000.0, 1.5].join(' ') → '1.0E7 1.5'
            """)
    }

    @Test func textToFloats() {
        check(
            """
            math.isNaN(float('NaN')) → true
            math.isNaN(float('-NaN')) → true
            float('Infinity') == 1.0 / 0 → true
            float('+Infinity') == 1.0 / 0 → true
            float('-Infinity') == -1.0 / 0 → true
            float('1.5f') → 1.5
            float('1.5d') → 1.5
            float('1.5D') → 1.5
            float('0x1p3') → 8.0
            float('-0x1.8P-1') → -0.75
            float('0x.8p1') → 1.0
            float(' 2.5') → 2.5
            float('2.5 ') → 2.5
            float('+2.') → 2.0
            float('.5') → 0.5
            float('1e3f') → 1000.0
            float('1e999') == 1.0 / 0 → true
            float('inf') → error Type conversion error. Argument: [inf], From type: [string], To type: [float].
            float('nan') → error Type conversion error. Argument: [nan], From type: [string], To type: [float].
            float('') → error Type conversion error. Argument: [], From type: [string], To type: [float].
            float(' ') → error Type conversion error. Argument: [ ], From type: [string], To type: [float].
            float('.') → error Type conversion error. Argument: [.], From type: [string], To type: [float].
            float('1e') → error Type conversion error. Argument: [1e], From type: [string], To type: [float].
            float('0x1') → error Type conversion error. Argument: [0x1], From type: [string], To type: [float].
            float('1.5x') → error Type conversion error. Argument: [1.5x], From type: [string], To type: [float].
            float('1.5fd') → error Type conversion error. Argument: [1.5fd], From type: [string], To type: [float].
            float('NaNf') → error Type conversion error. Argument: [NaNf], From type: [string], To type: [float].
            float('1 2') → error Type conversion error. Argument: [1 2], From type: [string], To type: [float].
            float('--1') → error Type conversion error. Argument: [--1], From type: [string], To type: [float].
            """)
    }

    @Test func mapsAndBytes() {
        check(
            """
            {'b': 1, 'a': 2}.values() → [1, 2]
            {'b': 1, 'a': 2, 'b': 3}.values() → [3, 2]
            {'b': 1, 'a': 2, 'b': 3}.keys() → ['a', 'b']
            {'j': 1, 'i': 2, 'h': 3, 'g': 4, 'f': 5, 'e': 6, 'd': 7, 'c': 8, 'b': 9}.values() → [1, 2, 3, 4, 5, 6, 7, 8, 9]
            {'j': 1, 'i': 2, 'h': 3, 'g': 4, 'f': 5, 'e': 6, 'd': 7, 'c': 8, 'b': 9}.e → 6
            {'😀': 1, '\\uFFFD': 2}.keys() == ['\\uFFFD', '😀'] → true
            {'b': 1, 'a': 2} == {'a': 2, 'b': 1} → true
            request.resource.metadata.values() → ['alice', 'red']
            b'abc' < b'abd' → true
            b'abc' < b'ab' → false
            b'ab' <= b'ab' → true
            b'\\xff' > b'a' → true
            b'b' >= b'a' → true
            b'a' < 'b' → error Unsupported operation error. Received: bytes < string. Expected: bytes < bytes.
            """)
    }
}
