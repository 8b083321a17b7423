import Testing

@testable import SecurityRules

/// Errors and warnings about source.
@Suite struct DiagnosticTests {
    /// The errors in the body of a match block. The body begins at line 2, column 1.
    private func errors(_ body: String) -> [String] {
        diagnostics("rules_version='2';service firebase.storage{match /a{\n\(body)\n}}")
            .filter { $0.hasPrefix("E") }
    }

    @Test(arguments: [
        ("allow read: true;", "E 2:13 Missing 'if' before conditional expression."),
        ("allow read if true;", "E 2:12 Unexpected 'if'."),
        ("allow reed: if true;", "E 2:7 Unexpected 'reed'."),
        ("allow : if true;", "E 2:7 Unexpected ':'."),
        ("allow read: if ;", "E 2:16 Missing conditional expression after 'if'."),
        ("allow read: if a === b;", "E 2:20 Unexpected '='."),
        ("allow read: if a = b;", "E 2:18 Unexpected '='."),
        ("allow read: if a & b;", "E 2:18 Unexpected '&'."),
        ("allow read: if a ?? b;", "E 2:19 Unexpected '?'."),
        ("allow read: if 'a\\.b' == c;", "E 2:18 Invalid escape sequence '\\.'."),
        ("allow read: if 'abc;", "E 2:16 Unterminated string."),
        ("allow read: if x is strin;", "E 2:21 Invalid type: strin."),
        ("allow read: if 99999999999999999999 > 1;", "E 2:16 Integer literal is out of range."),
        (
            "allow read: if 'a'.matches('(');",
            "E 2:28 Invalid regular expression pattern: missing ): (."
        ),
        (
            "allow read: if 'a'.matches('(?=a)');",
            "E 2:28 Invalid regular expression pattern: invalid perl operator: (?=."
        ),
        ("allow read: if math == 1;", "E 2:16 Invalid variable name: math."),
        ("allow read: if [1, 2;", "E 2:21 Unexpected ';'."),
        ("allow read: if a[:];", "E 2:19 Unexpected ']'."),
        ("allow read: if a.1;", "E 2:17 Unexpected '.1'."),
        ("allow read: if f(1,);", "E 2:20 Unexpected ')'."),
        ("allow read: if true ? 1;", "E 2:24 Unexpected ';'."),
        ("/x { }", "E 2:1 Missing 'match' keyword before path."),
        ("match x { }", "E 2:7 Unexpected 'x'."),
        (
            "match /x/ { allow read; }",
            "E 2:9 Forward slash '/' found where identifier or binding expected."
        ),
        ("match /x/{timestamp} { }", "E 2:11 Invalid variable name: timestamp."),
        ("match /x{y} { }", "E 2:9 Unexpected '{'."),
        (
            "match /{x=**}/{y=**} { }",
            "E 2:14 Invalid glob match expression. Only one glob match is permitted in a match "
                + "declaration path."
        ),
        ("function f() { let a = 1 return a; }", "E 2:25 missing ';' at 'return'"),
        ("function f() { 1 }", "E 2:16 Unexpected '1'."),
        ("function f() { return 1; return 2; }", "E 2:26 Unexpected 'return'."),
        ("function f(a, a) { return a; }", "E 2:15 Parameter a is declared twice."),
        ("foo;", "E 2:1 Unexpected 'foo'."),
        ("/* never", "E 2:1 Unterminated comment."),
    ])
    func oneError(_ body: String, _ expected: String) {
        #expect(errors(body).contains(expected), "\(errors(body))")
    }

    @Test func structure() {
        #expect(diagnostics("") == ["E 1:1 Missing 'service' declaration."])
        #expect(diagnostics("match /a {}") == ["E 1:1 Unexpected 'match'."])
        #expect(
            diagnostics("import 'x';\nservice firebase.storage {}") == [
                "E 1:1 Unexpected 'import'."
            ])
        #expect(
            diagnostics("service firebase.storage {}\nrules_version = '2';").contains(
                "E 2:1 Unexpected 'rules_version'."))
        #expect(
            diagnostics("service firebase.storage {}\nservice firebase.storage {}").contains(
                "E 2:1 Unexpected 'service'."))
        #expect(
            diagnostics("service cloud.firestore {}").contains(
                "E 1:9 Unknown service 'cloud.firestore'."))
        #expect(
            diagnostics("rules_version = '3';\nservice firebase.storage {}").contains(
                "E 1:17 Unknown rules_version '3'."))
        #expect(diagnostics("rules_version = '2'\nservice firebase.storage {}") == [])
        #expect(
            diagnostics("// comment\n/* more */ rules_version = \"2\"; service firebase.storage {}")
                == [])
        #expect(
            diagnostics("service firebase.storage { allow read; }").contains(
                "E 1:28 Unexpected 'allow'."))
        #expect(
            diagnostics("service firebase.storage {").contains("E 1:27 Unexpected end of file."))
        #expect(
            diagnostics("service firebase.storage { match /{a=**}/b { } }").contains(
                "E 1:34 Invalid glob match expression. Glob matches are permitted as the last segment in a match "
                    + "declaration path."))
        #expect(
            diagnostics("service firebase.storage { function f() { let a = 1; return a; } }")
                .contains(
                    "E 1:43 Unexpected 'let'."))
    }

    @Test func severalAtOnce() {
        let found = errors(
            """
            allow read: true;
            allow wrote: if true;
            match /x { allow get: if 1 +; }
            function f( { return 1; }
            allow write: if a ==;
            """)
        #expect(found.count == 5, "\(found)")
    }

    @Test func warnings() {
        let found = diagnostics(
            """
            service firebase.storage {
              function unused() { return true; }
              match /b/{bucket}/o {
                match /{all=**} {
                  allow read;
                  allow write: if true;
                  allow create: if reqest.auth != null && exists(/a/b) && math.isInfinite(1.0);
                  allow get: if resource.data.x == request.resource.timeCreated && request.user == 1;
                  allow list: if 'a'.startsWith('b') && f();
                }
              }
            }
            """)
        #expect(
            found == [
                "W Ruleset uses old version (version [1]). Please update to the latest version (version [2]).",
                "W 2:12 Unused function: unused.",
                "W 5:7 Anyone in the world may read every object of every bucket.",
                "W 6:7 Anyone in the world may write every object of every bucket.",
                "W 7:24 Invalid variable name: reqest.", "W 7:47 Invalid function name: exists.",
                "W 7:68 Invalid function name: math.isInfinite.",
                "W 8:30 Invalid property name: resource.data.",
                "W 8:57 Invalid property name: request.resource.timeCreated.",
                "W 8:80 Invalid property name: request.user.",
                "W 9:26 Invalid function name: startsWith.", "W 9:45 Invalid function name: f.",
            ], "\(found.joined(separator: "\n"))")
    }

    @Test func hints() throws {
        func hint(_ condition: String) throws -> String? {
            try rules(condition).diagnostics.first {
                $0.hint != nil && $0.message.hasPrefix("Invalid")
            }?.hint
        }
        #expect(try hint("reqest.auth != null") == "did you mean 'request'?")
        #expect(try hint("request.ath != null") == "did you mean 'auth'?")
        #expect(try hint("resource.contenttype == ''") == "did you mean 'contentType'?")
        #expect(try hint("'a'.mathces('b')") == "did you mean 'matches'?")
        #expect(try hint("firestore.exist(/a/b)") == "did you mean 'firestore.exists'?")
        #expect(
            try hint("'a'.size(1) == 1")?.hasPrefix("it is called as string.size(), list.size()")
                == true)
    }

    @Test func positionsAreCodePoints() throws {
        let source =
            "rules_version='2';/*é😀*/service firebase.storage{match /a{allow read: if 'é' == x;}}"
        let diagnostic = try #require(
            try Ruleset.load(source: source, fileName: "f").diagnostics.first)
        let range = try #require(diagnostic.range)
        let offset = try #require(source.unicodeScalars.firstIndex(of: "x"))
        let expected = source.unicodeScalars.distance(from: source.startIndex, to: offset)
        #expect(range.lowerBound.column == expected + 1 && range.lowerBound.offset == expected)
        #expect(range.upperBound.offset == expected + 1)
    }

    @Test func rendering() throws {
        let source =
            "rules_version = '2';\nservice firebase.storage {\n\tmatch /a { allow read: true; }\n}"
        do {
            _ = try Ruleset.load(source: source, fileName: "storage.rules")
            Issue.record("loaded")
        } catch {
            let diagnostic = try #require(error.diagnostics.first)
            #expect(
                diagnostic.rendered(source: source)
                    == """
                    storage.rules:3:25: error: Missing 'if' before conditional expression.
                     3 | \tmatch /a { allow read: true; }
                       | \t                       ^~~~
                       hint: write: allow read: if true…
                    """)
            #expect(
                diagnostic.json
                    == """
                    {"sourcePosition": {"fileName": "storage.rules", "line": 3, "column": 25, \
                    "currentOffset": 72, "endOffset": 75}, "description": "Missing 'if' before conditional \
                    expression.", "severity": "ERROR", "hint": "write: allow read: if true…"}
                    """)
        }
    }
}
