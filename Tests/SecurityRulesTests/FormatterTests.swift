import Testing

@testable import SecurityRules

/// The results of `Ruleset.format`.
@Suite struct FormatterTests {
    @Test func formats() throws {
        let source = """
            // Header.


            rules_version='2'
            service firebase.storage{function f( a,b ){let x=a+ -1;return!x||b[0:1]=={'k':[1,2,],}.k}
            // Own line.
              match /b/{bucket}/o{ // Behind.
            match /a/{x=**} {

                allow read,write:if request.auth!=null&&f(1,2) // Why.
                  &&(request.time<timestamp.date(2024,1,1) /* in */||true)

                // Before the next.
                allow get : if a/ b == /x/$(y)/z ? 1:2;   allow list;
                /* Block comment. */
                allow delete
              }}
            }
            // The end.
            """
        let expected = """
            // Header.

            rules_version = '2';
            service firebase.storage {
              function f(a, b) {
                let x = a + -1;
                return !x || b[0:1] == {'k': [1, 2,],}.k;
              }
              // Own line.
              match /b/{bucket}/o { // Behind.
                match /a/{x=**} {
                  allow read, write: if request.auth != null && f(1, 2) // Why.
                      && (request.time < timestamp.date(2024, 1, 1) /* in */ || true);

                  // Before the next.
                  allow get: if a / b == /x/$(y)/z ? 1 : 2;
                  allow list;
                  /* Block comment. */
                  allow delete;
                }
              }
            }
            // The end.

            """
        let formatted = try Ruleset.format(source: source)
        #expect(formatted == expected, "\(formatted)")
        #expect(try Ruleset.format(source: formatted) == formatted)
    }

    private func formatted(_ body: String) throws -> [String] {
        let source = "service firebase.storage{match /a{\(body)\n}}"
        let once = try Ruleset.format(source: source)
        #expect(try Ruleset.format(source: once) == once)
        return once.split(separator: "\n").dropFirst(2).dropLast(2).map(String.init)
    }

    @Test func longLinesAreBroken() throws {
        let uid = "request.auth.uid == 'somebody with a long name'"
        #expect(
            try formatted("allow get:if \(uid) && (\(uid) || \(uid)) && \(uid) ? 1 == 1:false") == [
                "    allow get: if \(uid)",
                "        && (\(uid)",
                "        || \(uid))",
                "        && \(uid)",
                "        ? 1 == 1 : false;",
            ])
        let words = (1...12).map { "'word number \($0)'" }.joined(separator: ", ")
        #expect(
            try formatted("allow get: if x.hasAny([\(words)]); // \(words)") == [
                "    allow get: if x.hasAny(['word number 1', 'word number 2', 'word number 3', 'word number 4',",
                "        'word number 5', 'word number 6', 'word number 7', 'word number 8', 'word number 9',",
                "        'word number 10', 'word number 11', 'word number 12']); // \(words)",
            ])
        let call = ".replace('some pattern', 'some text')"
        #expect(
            try formatted("allow get: if name\(call)\(call)\(call) == ''") == [
                "    allow get: if name\(call)\(call)", "        \(call)", "        == '';",
            ])
        let methods = [String](repeating: "create", count: 14).joined(separator: ", ")
        #expect(
            try formatted("allow \(methods)") == [
                "    allow \(methods.prefix(87))", "        create, create, create;",
            ])
    }

    /// A line without a break position stays long, and comments are not broken.
    @Test func someLinesStayLong() throws {
        let text = String(repeating: "x", count: 120)
        #expect(try formatted("allow get: if '\(text)'") == ["    allow get: if '\(text)';"])
        #expect(
            try formatted("allow get; // a \(text)") == ["    allow get; // a \(text)"])
        #expect(
            try formatted("\n/* a \(text) */allow get") == [
                "    /* a \(text) */", "    allow get;",
            ])
    }

    @Test func oneKindOfQuotes() throws {
        #expect(
            try formatted(#"allow get: if "a" == 'b' + "it's \"x\" \\ \n" + '"' + B"\x41'" + b'"'"#)
                == [
                    #"    allow get: if 'a' == 'b' + 'it\'s "x" \\ \n' + '"' + b'\x41\'' + b'"';"#
                ])
        #expect(
            try formatted(#"allow get: if /it's/$("a" + f("b", /x/$("c")))/$('d')/'e'"#)
                == [
                    "    allow get: if /it's/$('a' + f('b', /x/$('c')))/$('d')/'e';"
                ])
    }

    @Test func semicolonsComeBeforeComments() throws {
        #expect(
            try formatted(
                "allow get // a\nallow list: if true // b\n;\n/* c */ allow create /* d */\n\n;allow delete"
            )
                == [
                    "    allow get; // a", "    allow list: if true; // b",
                    "    /* c */", "    allow create; /* d */",
                    "    allow delete;",
                ])
    }

    /// For any layout, a second pass changes nothing, and the program stays the same.
    @Test(arguments: [
        "service firebase.storage{match /a{allow get:if f( /* x */ a , // y\n b )// z\n;allow list}}",
        "/* a\n   b */service firebase.storage{/* c */}/* d */ // e",
        "service firebase.storage {\n\n\n// x\n\n\nmatch /a {\n\n}\n\n\n}\n\n",
        "service firebase.storage { match /a { allow get: if (\n(a)\n)\n.b\n[0]\n|| !\nc; } }",
        "service firebase.storage { match /a { allow get // x\n: if // y\ntrue // z\n allow list; } }",
    ])
    func isIdempotent(_ source: String) throws {
        let once = try Ruleset.format(source: source)
        #expect(try Ruleset.format(source: once) == once, "\(once)")
    }

    @Test func rejectsWhatDoesNotParse() {
        #expect(throws: RulesetError.self) { try Ruleset.format(source: "service {") }
    }
}
