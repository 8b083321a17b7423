import Testing

@testable import SecurityRules

/// Warnings about expressions whose types are known at load time and cannot fit.
@Suite struct TypeWarningTests {
    /// The type warnings of a condition, each with its column in the condition.
    private func warnings(_ condition: String, functions: String = "") throws -> [String] {
        let column = "    allow read, write: if ".count
        return try rules(condition, functions: functions).diagnostics.compactMap {
            guard $0.severity == .warning,
                $0.message.hasPrefix("Invalid type.") || $0.message.contains("not comparable"),
                let start = $0.range?.lowerBound
            else { return nil }
            return "\(start.column - column): \($0.message)"
        }
    }

    private static func type(_ found: String, _ expected: String) -> String {
        "Invalid type. Received one of [\(found)]. Expected one of [\(expected)]."
    }

    static let comparable = "The sub-expressions are not comparable, so this comparison will always"

    @Test(arguments: [
        ("1 && true", 1, type("int", "bool")), ("true || 'a'", 9, type("string", "bool")),
        ("-'a' == 1", 2, type("string", "float, int")), ("!1", 2, type("int", "bool")),
        ("path('/a').size() == 1", 1, type("path", "bytes, list, map, set, string")),
        ("null.size() == 1", 1, type("null", "bytes, list, map, set, string")),
        ("'a'.length == 1", 1, type("string", "map")),
        ("null['a'] == 1", 1, type("null", "list, map, path, string")),
        ("{'a': 1}[1] == 1", 10, type("int", "string")),
        ("[1]['a'] == 1", 5, type("string", "int")),
        ("1[0:1] == 'a'", 1, type("int", "bytes, list, path, string")),
        ("'abc'['a':] == 'a'", 7, type("string", "int")),
        ("'a' + 1 == 'a1'", 7, type("int", "string")),
        ("1 - 'a' == 1", 5, type("string", "float, int")),
        ("true + 1 == 2", 1, type("bool", "duration, float, int, string, timestamp")),
        ("[1] * 2 == 2", 1, type("list", "float, int")),
        ("request.time + 1 == request.time", 16, type("int", "duration")),
        ("request.time < 1", 16, type("int", "timestamp")),
        ("true < 1", 1, type("bool", "bytes, duration, float, int, string, timestamp")),
        ("1 in 2", 6, type("int", "list, map, set")),
        ("1 in {'a': 1}", 1, type("int", "string")),
        ("1 ? true : false", 1, type("int", "bool")),
        ("{1: 2} == {}", 2, type("int", "string")),
        ("/a/$(true) == /a/b", 6, type("bool", "int, path, string")),
        ("'a'.matches(1)", 13, type("int", "string")),
        ("[1].hasAll({'a': 1})", 12, type("map", "list")),
        ("math.abs('a') == 1", 10, type("string", "float, int")),
        ("firestore.exists('/a')", 18, type("string", "path")),
        ("1", 1, type("int", "bool")), ("request.path", 1, type("path", "bool")),
        ("(true ? null : 1).x", 2, type("int, null", "map")),
    ])
    func operands(_ condition: String, _ column: Int, _ message: String) throws {
        #expect(try warnings(condition) == ["\(column): \(message)"])
    }

    @Test(arguments: [
        ("['a'].toSet() == ['a']", 1, "false"), ("[1] != [1].toSet()", 1, "true"),
        ("true && 1 == 'a'", 9, "false"), ("path == 'a/b'", 1, "false"),
        ("bucket == /a", 1, "false"), ("1 == null", 1, "false"),
        ("{}.diff({}).addedKeys() == ['a']", 1, "false"),
        ("request.resource.size == '10'", 1, "false"), ("request.time != '2026'", 1, "true"),
        ("resource == 'none'", 1, "false"), ("request.auth != 'alice'", 1, "true"),
    ])
    func comparisons(_ condition: String, _ column: Int, _ result: String) throws {
        #expect(
            try warnings(condition) == ["\(column): \(Self.comparable) return \(result)."])
    }

    /// There is no warning if any evaluation can succeed.
    @Test(arguments: [
        "request.auth.uid == 1", "request.auth.token.level + 1 == 2", "1 == 1.0", "1.5 in [1]",
        "resource == null || resource.size == null", "request.auth != null && resource != null",
        "(resource == null ? null : resource.metadata).owner == 'a'",
        "(true ? 1 : 'a') + 1 == 2", "request.time + duration.value(1, 'h') > request.time",
        "/a/{b}.bind({'b': 'c'}).b == 'c'", "request.path[1] == bucket && path[0] == 'a'",
        "request.resource.metadata.keys().hasAll(['a'])", "request.params['x'] == 'y'",
        "['a'].toSet().hasAll(['a'])", "{'a': 1}.get(['a'], 0) == 1",
        "firestore.get(/a/b).data.list[0] == 1", "unknownName && unknownFunction(1)",
        "string(1) + 'a' == '1a'", "hashing.md5('a') == b'a'", "debug(1) == 'a'",
        "request.resource.size / 2 < 10 && -request.resource.size < 0",
    ])
    func fits(_ condition: String) throws {
        #expect(try warnings(condition) == [])
    }

    @Test func variablesAndFunctions() throws {
        let functions = """
            function text() { let x = 'a'; let y = x; return y; }
            function any(x) { return x; }
            """
        #expect(
            try warnings("text() && any(1)", functions: functions) == [
                "1: \(Self.type("string", "bool"))"
            ])
        #expect(try warnings("any(1) == 'a' && text() == 'a'", functions: functions) == [])
    }

    @Test func onlyWithoutErrors() {
        do {
            _ = try rules("1 && true && math == 1")
            Issue.record("loaded")
        } catch {
            #expect(error.diagnostics.map(\.message) == ["Invalid variable name: math."])
        }
    }
}
