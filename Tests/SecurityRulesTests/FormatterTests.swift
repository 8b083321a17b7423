import Testing

@testable import SecurityRules

/// What `Ruleset.format` makes of source.
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

            rules_version = '2'
            service firebase.storage {
              function f(a, b) {
                let x = a + -1;
                return !x || b[0:1] == {'k': [1, 2,],}.k
              }
              // Own line.
              match /b/{bucket}/o { // Behind.
                match /a/{x=**} {
                  allow read, write: if request.auth != null && f(1, 2) // Why.
                      && (request.time < timestamp.date(2024, 1, 1) /* in */ || true)

                  // Before the next.
                  allow get: if a / b == /x/$(y)/z ? 1 : 2;
                  allow list;
                  /* Block comment. */
                  allow delete
                }
              }
            }
            // The end.

            """
        let formatted = try Ruleset.format(source: source)
        #expect(formatted == expected, "\(formatted)")
        #expect(try Ruleset.format(source: formatted) == formatted)
    }

    /// Whatever the layout, a second pass changes nothing, and the program stays the same.
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

    @Test func refusesWhatDoesNotParse() {
        #expect(throws: RulesetError.self) { try Ruleset.format(source: "service {") }
    }
}
