import SecurityRules
import Testing

@testable import RulesAnalysis

/// Properties: how they are read, and what they find.
@Suite struct PropertyTests {
    private static let own = "allow read: if request.auth != null; allow write: if request.auth.uid == uid;"

    private func prove(_ property: String) throws -> RulesProof {
        RulesProof(try RulesProperty(property), of: try DiffTests.rules(Self.own), try Solver(), milliseconds: 10_000)
    }

    @Test(arguments: [
        "create, update, delete by anonymous", "write by anonymous", "get,list by anonymous",
        "write users/{uid}/** by other uid",
        "read public/**", "write /users/{id}/* by other id", "create when request.auth == null",
        "list users by anybody",
        "write by signed-in when request.auth.uid != request.path[4] // comment",
        "write by anonymous when request.auth.token.email == 'a@b.c'",
    ])
    func isProven(_ property: String) throws {
        guard case .proven = try prove(property).outcome else {
            Issue.record("\(try prove(property).text(explains: true))")
            return
        }
    }

    @Test(arguments: [
        "get users/{uid}/** by other uid", "read", "write by anybody", "create users/*/a.jpg", "delete by signed-in",
        "get when request.auth.token.email_verified == false",
    ])
    func isContradicted(_ property: String) throws {
        guard case .contradicted(var example, _) = try prove(property).outcome else {
            Issue.record("\(try prove(property).text(explains: true))")
            return
        }
        #expect(example.isAllowed(by: try DiffTests.rules(Self.own)) == true)
    }

    @Test(arguments: [
        ("", "expected a method"), ("gets", "'gets' is no method"), ("get,", "expected a method"),
        ("get a//b", "empty segment"),
        ("get by nobody", "'nobody' is no caller"), ("get by", "'' is no caller"),
        ("get a by other uid", "'other' needs the name of a segment"),
        ("get {uid} by other", "'other' needs"), ("get when", "'when' needs a condition"), ("get when )", ""),
        ("get a b", "'b' is too much"),
        ("get when request.auht == null", "Invalid property name"), ("get {a b", ""), ("get **/**", "glob"),
        ("get when true; } } } }", ""),
        ("get when true); allow write: if (true", "one expression"),
    ])
    func isMalformed(_ text: String, _ part: String) {
        #expect {
            try RulesProperty(text)
        } throws: {
            part.isEmpty || "\($0)".contains(part)
        }
    }

    @Test func readsAFile() throws {
        let text = "# comment\n\n  write by anonymous\r\nread users/** by anonymous\n"
        let properties = try RulesProperty.read(text, fileName: "safety.txt")
        #expect(properties.map(\.place) == ["safety.txt:3", "safety.txt:4"])
        #expect(throws: RulesProperty.Malformed.self) { try RulesProperty.read("get\nx\n", fileName: "f") }
    }
}
