import Testing

@testable import SecurityRules

/// Warnings about conditions that cannot mean what is written.
@Suite struct LintTests {
    /// The warnings of a condition, as `column: message | hint`. The column is counted in the condition; in functions it
    /// is `line:column` of the file.
    private func warnings(_ condition: String, functions: String = "") throws -> [String] {
        let prefix = "    allow read, write: if ".count
        let line = 5 + functions.utf8.count { $0 == UInt8(ascii: "\n") }
        let found = try rules(condition, functions: functions).diagnostics
        return found.compactMap { diagnostic in
            guard diagnostic.severity == .warning, let start = diagnostic.range?.lowerBound else { return nil }
            guard !diagnostic.message.contains("Anyone in the world") else { return nil }
            let position =
                start.line == line ? "\(start.column - prefix)" : "\(start.line):\(start.column)"
            return "\(position): \(diagnostic.message) | \(diagnostic.hint ?? "")"
        }
    }

    /// Whether the only warning of a condition is at `column` and has `parts` in its text.
    private func expect(
        _ condition: String, functions: String = "", at position: String, _ parts: String...,
        location: SourceLocation = #_sourceLocation
    ) throws {
        let found = try warnings(condition, functions: functions)
        #expect(found.count == 1, sourceLocation: location)
        #expect(found.first?.hasPrefix("\(position): ") == true, "\(found)", sourceLocation: location)
        for part in parts { #expect(found.first?.contains(part) == true, "\(found)", sourceLocation: location) }
    }

    // MARK: Paths and methods

    @Test(arguments: [
        ("request.path[0] == 'images'", "request.path[0] is always 'b', never 'images'"),
        ("'o' != request.path[0]", "request.path[0] is always 'b'"),
        ("request.path[0] in ['images', 'videos']", "request.path[0] is always 'b'"),
        ("request.path[2] == 'users'", "request.path[2] is always 'o'"),
    ])
    func pathSegments(_ condition: String, _ message: String) throws {
        try expect(condition, at: "1", message, "request.path[3]")
    }

    @Test(arguments: [
        ("request.method == 'write'", "'write'", "['create', 'update', 'delete']"),
        ("'read' == request.method", "'read'", "['get', 'list']"),
        ("request.method != 'GET'", "'GET'", "did you mean 'get'?"),
        ("request.method in ['get', 'POST']", "'POST'", "'create'"),
        ("request['method'] == 'Create'", "'Create'", "did you mean 'create'?"),
        ("request.method in [request.params.m, 'head']", "'head'", "'get'"),
        ("request.method == 'x'", "'x'", "'get', 'list', 'create', 'update' or 'delete'"),
    ])
    func methods(_ condition: String, _ name: String, _ hint: String) throws {
        try expect(condition, at: "1", "request.method is never \(name).", hint)
    }

    // MARK: Types

    @Test(arguments: [
        ("request.auth.token.email_verified == 'true'", "is a Boolean, so this comparison is always false"),
        ("request.auth.token['email_verified'] != 'false'", "is a Boolean, so this comparison is always true"),
        ("request.auth.uid == 5", "request.auth.uid is a string"),
        ("request.auth.token.firebase.sign_in_provider == true", "sign_in_provider is a string"),
        ("request.auth.token.auth_time == '2026-01-01'", "auth_time is a number of seconds"),
        ("request.auth.token.exp > request.time", "this operation with a timestamp is an error"),
        ("duration.value(1, 'h') > request.auth.token.iat", "this operation with a duration is an error"),
        ("request.auth.token.iat in [1, 'x']", "an element of another type never equals it"),
        ("resource.metadata.public == true", "resource.metadata.public is a string"),
        ("request.resource.metadata.level == 3", "write: '3'"),
        ("request.auth.token == 'admin'", "request.auth.token is a map"),
    ])
    func types(_ condition: String, _ message: String) throws { try expect(condition, at: "1", message) }

    // MARK: Addresses

    private static let unverified = "proves nothing before it is verified"

    @Test(arguments: [
        ("request.auth.token.email == 'a@b.c'", 1), ("true && request.auth.token.email in ['a@b.c']", 9),
        ("request.auth.token.email.matches('.*@b[.]c')", 1), ("!(request.auth.token.email != 'a@b.c')", 3),
        ("request.auth.token.email == 'a' || request.auth.token.email == 'b' && request.auth.token.email_verified", 1),
        ("request.auth.token.email.split('@')[1] == 'b.c'", 1),
        ("request.auth != null ? request.auth.token.email == 'a' : false", 24),
        ("firestore.exists(/databases/(default)/documents/admins/$(request.auth.token.email))", 1),
        ("request.auth.token.get('email', '') == 'a@b.c'", 1),
        ("(request.auth.token.email == 'a') == true", 2), ("!!(request.auth.token.email == 'a')", 4),
    ])
    func unverifiedAddresses(_ condition: String, _ column: Int) throws {
        try expect(condition, at: "\(column)", Self.unverified, "request.auth.token.email_verified")
    }

    private static let functions = """
        function email() { return request.auth.token.email; }
        function verified() { let token = request.auth.token; return token.email_verified == true; }
        function isAdmin() { let mail = email(); return mail == 'a@b.c'; }
        function isEqual(x, y) { return x == y; }
        function hasDomain(mail, domain) { return mail.split('@')[1] == domain; }
        """

    @Test(arguments: [
        "isAdmin() && verified()", "verified() && (isAdmin() || email() == 'b')",
        "verified() ? isAdmin() : false", "!(!verified() || !isAdmin())",
        "isAdmin() && request.auth.token.get('email_verified', false)",
        "isAdmin() && request.auth.token.firebase.sign_in_provider == 'google.com'",
        "isAdmin() && request.auth.token.admin == true",
        "isAdmin() && firestore.get(/databases/(default)/documents/u/a).data.emailVerified",
        "request.auth.token.email != null", "request.auth.token.email is string",
        "'email' in request.auth.token", "request.auth.token.email.size() > 0",
        "request.auth.token.email != 'banned@b.c'", "false && isAdmin()",
        "isEqual(request.auth.uid, 'a')",
    ])
    func verifiedAddresses(_ condition: String) throws {
        let found = try warnings(condition, functions: Self.functions)
        #expect(found.filter { $0.contains(Self.unverified) } == [])
    }

    @Test func addressesInFunctions() throws {
        let found = { (condition: String) in
            try self.warnings(condition, functions: Self.functions).filter { $0.contains(Self.unverified) }.map {
                $0.prefix { $0 != " " }
            }
        }
        #expect(try found("isAdmin() || isAdmin() && verified()") == ["5:49:"])
        #expect(try found("isAdmin() && email() == 'b'") == ["5:49:"])
        #expect(try found("isAdmin() || verified()") == ["5:49:"])
        #expect(try found("isEqual(email(), 'a') || isEqual('b', request.auth.uid)") == ["1:"])
        #expect(try found("isEqual('b', request.auth.uid) || isEqual(email(), 'a')") == ["35:"])
        #expect(try found("hasDomain(email(), 'b.c')") == ["7:43:"])
        #expect(try found("hasDomain(email(), 'b.c') && verified()") == [])
    }

    // MARK: Patterns

    private func pattern(_ pattern: String, of value: String = "request.auth.token.email") throws -> [String] {
        try warnings("request.auth.token.email_verified && \(value).matches('\(pattern)')").map {
            $0.components(": ").dropFirst().joined(separator: ": ")
        }
    }

    @Test(arguments: [
        (".*@example.com", "The dot in 'example.com' matches any character. | write [.] for a dot: example[.]com"),
        (".*@a[.]example.com", "The dot in 'example.com'"), (".*example.com", "The dot in 'example.com'"),
        ("(.*@b[.]c|.*@d.e)", "The dot in 'd.e'"),
        (".*@example[.]com.*", "such as 'example.com.example.org'"), (".*@example\\\\.com.+$", "without '.+'"),
        ("@example[.]com", "begin with '.*@'"), ("^@example\\\\.com$", "begin with '.*@'"),
    ])
    func domains(_ pattern: String, _ message: String) throws {
        let found = try self.pattern(pattern)
        #expect(found.count == 1 && found.first?.contains(message) == true, "\(found)")
    }

    @Test(arguments: [
        ".*@example[.]com", ".*@example\\\\.com$", "^[a-z]+@example[.]com$", ".*@.*", ".*@.*[.]com", "a.*@b[.]c",
        "[^@]+@(a|b)[.]com", "(?i).*@example[.]com", ".*@.+[.]example[.]org", "",
    ])
    func soundPatterns(_ pattern: String) throws { #expect(try self.pattern(pattern) == []) }

    @Test func patternsOfOtherTexts() throws {
        #expect(try pattern("image/.*.png", of: "request.resource.contentType") == [])
        #expect(try pattern("@team.*", of: "request.resource.name") == [])
        #expect(try pattern(".*@a.b", of: "request.resource.metadata.mail").count == 1)
    }

    /// A pattern that ends within a class, an escape or a group does not load, or is read to its end.
    @Test(arguments: ["@a[", "@a[^", "@a[]", "@a\\\\", "@a.b(", "[[:alpha:]]@a.b", "@a.é", "@é.b", "@a.b\\u0301"])
    func strangePatterns(_ pattern: String) {
        _ = try? warnings("request.auth.token.email.matches('\(pattern)')")
    }

    // MARK: Metadata

    private static let missing = "is not set, this is an error and the rule denies"

    @Test(arguments: [
        ("resource.metadata.owner != 'bob'", 1, "|| !('owner' in resource.metadata)) || …"),
        ("!(request.resource.metadata.x == 'y')", 3, "'x' in request.resource.metadata && …"),
        ("resource.metadata['a b'] == null || resource == null", 1, "!('a b' in resource.metadata))"),
        ("!resource.metadata.x.matches('y')", 2, "&& …"),
        ("(resource.metadata.x == 'y' ? false : true)", 2, "&& …"),
        ("(resource.metadata.x == 'y') == false", 2, "&& …"),
    ])
    func missingMetadata(_ condition: String, _ column: Int, _ hint: String) throws {
        try expect(condition, at: "\(column)", Self.missing, hint)
    }

    @Test func membershipInMissingMetadata() throws {
        try expect("!('x' in resource.metadata)", at: "3", "resource.metadata is null if nothing is set", "!= null")
        #expect(try warnings("resource.metadata != null && !('x' in resource.metadata)") == [])
    }

    @Test(arguments: [
        "resource.metadata.owner == 'a'", "resource.metadata.owner == 'a' || resource == null",
        "resource.metadata.owner != null && resource.metadata.owner != 'a'", "'owner' in resource.metadata",
        "'x' in resource.metadata && resource.metadata.x != 'y'",
        "resource.metadata == null || !('x' in resource.metadata) || resource.metadata.x != 'y'",
        "resource.metadata.keys().hasAll(['x']) && resource.metadata.x != 'y'",
        "resource.metadata.get('x', 'z') != 'y'", "has('x') && resource.metadata.x != 'y'",
        "has('x') && differs()", "resource.metadata.x is string && resource.metadata.x != ''",
        "request.resource.metadata.owner == resource.metadata.owner",
    ])
    func presentMetadata(_ condition: String) throws {
        let functions = """
            function has(key) { return key in resource.metadata; }
            function differs() { return resource.metadata.x != 'y'; }
            """
        #expect(try warnings(condition, functions: functions).filter { $0.contains("error") } == [])
    }

    /// The check counts only if every condition that calls a function has it.
    @Test func metadataInFunctions() throws {
        func found(_ conditions: String...) throws -> Int {
            let allows = conditions.map { "allow get: if \($0);" }.joined(separator: "\n")
            let source = """
                rules_version = '2';
                service firebase.storage { match /b/{bucket}/o {
                function differs() { return resource.metadata.x != 'y'; }
                \(allows)
                } }
                """
            return try Ruleset.load(source: source).diagnostics.count
        }
        #expect(try found("'x' in resource.metadata && differs()") == 0)
        #expect(try found("'x' in resource.metadata && differs()", "differs()") == 1)
        #expect(try found("differs()", "'x' in resource.metadata && differs()") == 1)
        #expect(try found("'x' in request.resource.metadata && differs()") == 1)
    }

    // MARK: Sound conditions

    @Test(arguments: [
        "request.path[0] == 'b' && request.path[1] == bucket && request.path[3] == 'images'",
        "request.method in ['create', 'update'] || request.method == 'delete'", "request.params.method == 'GET'",
        "request.auth.token.email_verified == true || request.auth.token.email_verified == 'true'",
        "request.auth.uid != null && request.auth.uid in ['a', 'b']", "request.auth.token.level == 'x'",
        "request.auth.token.auth_time > request.time.toMillis() / 1000 - 3600", "request.auth.token.aud == ['x']",
        "resource.metadata.count == string(3)", "request.auth.token.firebase.identities['google.com'][0] == 1",
        "request.auth.token['x'] == true && request.auth['uid'] == 'x'", "request.path[9223372036854775807] == 'x'",
    ])
    func sound(_ condition: String) throws { #expect(try warnings(condition) == []) }

    /// `é` in one and in two code points are different names.
    @Test func claimsAreComparedByBytes() throws {
        #expect(try warnings("request.method == 'ge\\u0301t'").count == 1)
        #expect(try warnings("request.auth.token['\\u00e9'] == 'e\\u0301'") == [])
    }

    @Test func longAndStrangeTextsAreCut() throws {
        let long = String(repeating: "e\u{301}", count: 500)
        let found = try warnings("request.method == '\(long)'")
        #expect(found.count == 1 && found[0].utf8.count < 250 && found[0].contains("…'"))
    }

    // MARK: Work

    /// The time grows linearly with deep calls, many callers and long files.
    @Test func largeFiles() throws {
        let levels = (1...20).map { level in
            let calls = (1...40).map { _ in level == 20 ? "leaf()" : "f\(level + 1)()" }.joined(separator: " && ")
            return "function f\(level)() { return \(calls); }"
        }
        let functions =
            levels.joined(separator: "\n") + """

                function leaf() { return request.auth.token.email == 'a' && resource.metadata.x != 'y'; }
                """
        let found = try warnings("f1() || !f1()", functions: functions)
        #expect(found.count == 2)
        let long = (1...1500).map { _ in "    allow get: if request.method == 'GET' && request.auth.token.email == 'a';"
        }
        let source = """
            rules_version = '2';
            service firebase.storage { match /b/{bucket}/o {
            \(long.joined(separator: "\n"))
            } }
            """
        #expect(try Ruleset.load(source: source).diagnostics.count == 3000)
    }

    @Test func onlyWithoutErrors() {
        do {
            _ = try rules("request.method == 'GET' && math == 1")
            Issue.record("loaded")
        } catch {
            #expect(error.diagnostics.map(\.message) == ["Invalid variable name: math."])
        }
    }
}
