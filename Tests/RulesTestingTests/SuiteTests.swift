import SecurityRules
import Testing
import YAML

@testable import RulesTesting

/// What suites are read into, and what their cases come to.
@Suite struct SuiteTests {
    private let now = Timestamp(rfc3339: "2026-05-01T12:00:00Z")!

    private func value(_ text: String, isTyped: Bool = true) throws -> Value {
        var reader = NodeReader(fileName: "test")
        let value = reader.value(try Node.read(text, fileName: "test"), isTyped: isTyped)
        #expect(reader.findings.isEmpty)
        return value
    }

    @Test(arguments: [
        ("1", Value.int(1)), ("-1.0", .int(-1)), ("1e2", .int(100)), ("1.5", .float(1.5)),
        ("9223372036854775807", .int(.max)), ("9223372036854775808", .float(0x1p63)),
        ("'1'", .string("1")), ("inf", .string("inf")), ("0x10", .string("0x10")),
        ("true", .bool(true)), ("'true'", .string("true")), ("yes", .string("yes")),
        ("null", .null), ("~", .null), ("[1, a]", .list([1, "a"])),
        ("{a: {b: null}}", .map(["a": .map(["b": .null])])),
        ("{doubleValue: 2}", .float(2)),
        ("{doubleValue: 2, other: 1}", .map(["doubleValue": 2, "other": 1])),
        ("{geoPointValue: {latitude: 1.5, longitude: -2}}", .latlng(latitude: 1.5, longitude: -2)),
        ("{referenceValue: /a/b}", .path(["a", "b"])),
    ])
    func valuesOfNodes(text: String, expected: Value) throws {
        #expect(try value(text) == expected)
    }

    @Test func timesWithoutQuotesAreTimestamps() throws {
        let noon = Value.timestamp(now)
        #expect(try value("2026-05-01T12:00:00Z") == noon)
        #expect(try value("2026-05-01T14:00:00+02:00") == noon)
        #expect(try value("{timestampValue: '2026-05-01T12:00:00Z'}") == noon)
        #expect(try value("'2026-05-01T12:00:00Z'") == "2026-05-01T12:00:00Z")
        #expect(
            try value("2026-05-01T12:00:00Z", isTyped: false) == "2026-05-01T12:00:00Z")
    }

    @Test func untypedJSONIsUnchanged() throws {
        #expect(try value("{\"doubleValue\": 2}", isTyped: false) == .map(["doubleValue": 2]))
    }

    private func rules(_ condition: String) throws -> Ruleset {
        try Ruleset.load(
            source: """
                rules_version = '2';
                service firebase.storage {
                  match /b/{bucket}/o/{name=**} { allow read, write: if \(condition); }
                }
                """)
    }

    private func isAllowed(_ condition: String, _ suite: String) throws -> Bool {
        let read = try TestSuite.read(suite, fileName: "suite", now: now)
        let result = read.cases[0].run(try rules(condition))
        #expect(result.decision == result.explanation.decision)
        return result.decision.isAllowed
    }

    /// The gateway has null where the hosted service's test API makes reading an error.
    @Test(arguments: [
        ("request.auth == null && request.resource == null && resource == null", true),
        ("resource.contentType == null", false),
        ("request.time == timestamp.date(2026, 5, 1) + duration.value(12, 'h')", true),
        ("request.method == 'get' && request.path[1] == 'x'", true),
        ("request.params.size() == 0", true),
    ])
    func omittedProperties(condition: String, allowed: Bool) throws {
        let yaml = "cases: [{method: get, path: /b/x/o/y/z, expect: allow}]"
        #expect(try isAllowed(condition, yaml) == allowed)
        let api = """
            {"testCases": [{"expectation": "ALLOW", "request": {"method": "get", "path": "/b/x/o/y/z"}}]}
            """
        #expect(try isAllowed(condition, api) == allowed)
    }

    @Test(arguments: [
        ("resource.name == 'y' && resource.bucket == 'x'", true, false),
        ("resource.contentType == null && resource.metadata == null", true, false),
        ("resource.cacheControl == null && resource.storageClass == null", true, false),
        ("resource.timeCreated == request.time", true, true),
        ("resource.generation is int && resource.size == 5", true, true),
        ("resource.md5Hash == null", false, false),
    ])
    func anObjectHasTheDefaultsOfTheGateway(
        condition: String, allowed: Bool, allowedByAPI: Bool
    ) throws {
        let yaml = """
            cases:
            - method: get
              path: /b/x/o/y
              resource: { timeCreated: 2026-05-01T12:00:00Z, generation: 5, size: 5 }
              expect: allow
            """
        #expect(try isAllowed(condition, yaml) == allowed)
        let api = """
            {"testCases": [{
              "expectation": "ALLOW", "request": {"method": "get", "path": "/b/x/o/y"},
              "resource": {"timeCreated": "2026-05-01T12:00:00Z", "generation": 5, "size": 5}
            }]}
            """
        #expect(try isAllowed(condition, api) == allowedByAPI)
    }

    @Test func metadataAreStrings() throws {
        let suite = """
            cases:
            - { method: get, path: /b/x/o/y, resource: { metadata: { a: 1 } }, expect: allow }
            """
        #expect(try isAllowed("resource.metadata.a == '1'", suite))
    }

    @Test func onlyEvaluatedLookupsAreMade() throws {
        let suite = """
            documents: { c/a: { ok: false } }
            cases: [{ method: get, path: /b/x/o/y, expect: allow }]
            """
        let get = "firestore.get(/databases/(default)/documents/c/"
        let rules = try rules("\(get)a).data.ok || true || \(get)b).data.ok")
        let result = try TestSuite.read(suite, fileName: "suite", now: now).cases[0].run(rules)
        #expect(result.passed && result.messages.isEmpty)
        #expect(
            result.explanation.functionCalls.map(\.argument) == [
                "/databases/(default)/documents/c/a"
            ])
        let shown = ExplanationText(result.explanation, fileName: "f").text
        #expect(shown.contains(".data.ok → false\n"))
    }

    @Test func nestedArgumentsOfLookupsAreFound() throws {
        let suite = """
            documents: { c/a: { next: b }, c/b: { ok: true } }
            cases: [{ method: get, path: /b/x/o/y, expect: allow }]
            """
        let path = "/databases/(default)/documents/c/"
        let rules = try rules(
            "firestore.get(\(path)$(firestore.get(\(path)a).data.next)).data.ok == true")
        let result = try TestSuite.read(suite, fileName: "suite", now: now).cases[0].run(rules)
        #expect(result.passed, "\(result.failure ?? "")")
        #expect(Set(result.explanation.functionCalls.map(\.argument)) == [path + "a", path + "b"])
    }
}
