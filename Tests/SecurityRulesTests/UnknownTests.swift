import Testing

@testable import SecurityRules

/// Decisions with unknown inputs.
@Suite struct UnknownTests {
    private static let users = "/databases/(default)/documents/users"

    /// An upload with unknown size and hashes. The existing object and documents are unknown too.
    private var early: Request {
        var incoming = ObjectFacts(name: "dir/cat.png", bucket: "photos")
        incoming.set(.size, .unknown)
        incoming.set(.md5Hash, .unknown)
        incoming.set(.crc32c, .unknown)
        incoming.set(.contentType, .known("image/png"))
        return Request(
            .create, bucket: "photos", object: "dir/cat.png", caller: alice, time: noon,
            incoming: incoming)
    }

    /// `allowed`, `denied`, or the inputs that are needed.
    private func decide(_ condition: String, functions: String = "", _ request: Request? = nil)
        throws -> String
    {
        switch try rules(condition, functions: functions).decide(request ?? early) {
        case .allowed: "allowed"
        case .denied: "denied"
        case .needs(let needs):
            ((needs.existing ? ["resource"] : []) + needs.incoming.map(\.key).sorted()
                + needs.documents.map(\.description))
                .joined(separator: " ")
        }
    }

    @Test(arguments: [
        ("request.resource.size < 5 * 1024 * 1024", "size"),
        ("request.resource.contentType.matches('image/.*')", "allowed"),
        ("request.resource.contentType.matches('video/.*')", "denied"),
        ("request.resource.size < 5 && request.resource.contentType == 'text/plain'", "denied"),
        ("request.resource.contentType == 'text/plain' && request.resource.size < 5", "denied"),
        ("request.resource.size < 5 || request.resource.contentType == 'image/png'", "allowed"),
        ("request.resource.size < 5 && request.resource.contentType == 'image/png'", "size"),
        ("request.resource.md5Hash != resource.md5Hash", "resource md5Hash"),
        ("resource == null", "resource"), ("resource == null || true", "allowed"),
        ("resource != null && false", "denied"), ("!(resource == null)", "resource"),
        ("resource.size > 3 ? true : true", "resource"), ("request.resource.size", "size"),
        ("request.resource.size + request.resource.foo == 1", "denied"),
        ("request.resource.foo == 1 || request.resource.size < 3", "size"),
        ("request.resource.foo == 1 && request.resource.size < 3", "size"),
        ("'size' in request.resource", "allowed"),
        ("request.resource.keys().size() > 1", "crc32c md5Hash size"),
        ("request.resource.get('contentType', 'x') == 'image/png'", "allowed"),
        ("request.resource.get('size', 0) < 5", "size"),
        ("[request.resource.size][0] == 1", "size"),
        ("{'a': resource}.a == null", "resource"), ("request.resource == resource", "resource"),
        ("request.resource != null", "allowed"), ("request.resource is map", "allowed"),
        ("request.resource.size is int", "size"),
        ("request.resource.size.foo(request.x)", "denied"),
        ("firestore.exists(\(users)/alice)", "\(users)/alice"),
        (
            "firestore.get(\(users)/alice).data.a == 1 && firestore.exists(\(users)/bob)",
            "\(users)/alice \(users)/bob"
        ),
        ("firestore.exists(\(users)/$(resource.metadata.owner))", "resource"),
        ("false && firestore.exists(\(users)/alice)", "denied"),
        ("debug(request.resource.size) < 3", "size"),
    ])
    func conditions(_ condition: String, _ expected: String) throws {
        #expect(try decide(condition) == expected, "\(condition)")
    }

    @Test func functionsAndBindings() throws {
        let functions = """
            function isImage(r) { return r.contentType.matches('image/.*'); }
            function ignores(x) { return true; }
            function lets(x) { let y = x.foo; let z = request.resource.size; return x == null || true; }
            """
        #expect(try decide("isImage(request.resource)", functions: functions) == "allowed")
        #expect(try decide("ignores(resource)", functions: functions) == "allowed")
        #expect(try decide("lets(resource)", functions: functions) == "allowed")
        // An argument that is an error, or may become one, matters only if it is used.
        #expect(try decide("ignores(resource.size)", functions: functions) == "allowed")
        #expect(try decide("ignores(request.foo)", functions: functions) == "allowed")
    }

    /// A possible lookup counts toward the limit, but decides nothing until it is known.
    @Test func documentLimit() throws {
        let (a, b, c) = ("\(Self.users)/a", "\(Self.users)/b", "\(Self.users)/c")
        var known = early
        for path in [a, b, c] { known.setDocument(document(path), .present([:])) }
        let condition =
            "(resource == null && !firestore.exists(\(a))) || (firestore.exists(\(b)) && firestore.exists(\(c)))"
        #expect(try decide(condition, known) == "resource")
        known.existing = .absent
        #expect(try decide(condition, known) == "denied")
        known.existing = .object(ObjectFacts())
        #expect(try decide(condition, known) == "allowed")
        let three = "firestore.exists(\(a)) && firestore.exists(\(b)) && firestore.exists(\(c))"
        #expect(try decide(three, known) == "denied")
        #expect(try decide(three) == "\(a) \(b)")
        #expect(
            try decide(
                "firestore.exists(\(a)) && firestore.exists(\(b)) && firestore.exists(\(a))", known)
                == "allowed")
    }

    /// A lookup whose path is unknown may be one of the first two, so the third document decides nothing yet.
    @Test func documentLimitAndUnknownPaths() throws {
        let (a, b) = ("\(Self.users)/a", "\(Self.users)/b")
        let sized = "\(Self.users)/$(string(request.resource.size))"
        let condition =
            "firestore.exists(\(sized)) || (firestore.exists(\(a)) && firestore.exists(\(b)))"
        var known = early
        for path in [a, b] { known.setDocument(document(path), .present([:])) }
        known.setDocument(document("\(Self.users)/5"), .absent)
        #expect(try decide(condition, known) == "size")
        known.incoming?.set(.size, .known(5))
        #expect(try decide(condition, known) == "denied")
        known.setDocument(document("\(Self.users)/5"), .present([:]))
        #expect(try decide(condition, known) == "allowed")
    }

    @Test func rulesAreJoined() throws {
        let rules = try Ruleset.load(
            source: """
                rules_version = '2';
                service firebase.storage { match /b/{b}/o/{all=**} {
                  allow create: if request.resource.size < 10;
                  allow create: if resource == null;
                  allow get: if request.auth.uid == 'bob';
                } }
                """)
        guard case .needs(let needs) = rules.decide(early) else { return #expect(Bool(false)) }
        #expect(needs.existing && needs.incoming == [.size] && needs.documents.isEmpty)
        var later = early
        later.existing = .absent
        #expect(rules.decide(later) == .allowed)
        later.existing = .object(ObjectFacts())
        later.incoming?.set(.size, .known(10))
        #expect(rules.decide(later) == .denied(Denial(reason: .notAllowed, readsCaller: false)))
    }

    @Test func inputs() throws {
        func inputs(_ condition: String, functions: String = "", _ method: Method = .create) throws
            -> Inputs
        {
            try rules(condition, functions: functions).inputs(
                for: Request(method, bucket: "B", object: "x", time: noon))
        }
        let size = try inputs("request.resource.size < 5 && request.auth != null")
        #expect(
            size.incoming == [.size] && size.caller && !size.existing && !size.documents
                && size.hasRules)
        #expect(
            try inputs(
                "f()",
                functions: "function f() { return g(1) } function g(x) { return resource == null }"
            ).existing)
        let nothing = try inputs("true")
        #expect(
            !nothing.existing && nothing.incoming.isEmpty && !nothing.caller && nothing.hasRules)
        #expect(
            try inputs("f(request)", functions: "function f(r) { return r.auth != null }").caller)
        #expect(
            try inputs("f(request.resource)", functions: "function f(r) { return r.size < 1 }")
                .incoming.contains(.size))
        #expect(try inputs("firestore.exists(/a/b)").documents)
        #expect(try inputs("request['auth'] != null").caller)
        let narrow = try Ruleset.load(
            source:
                "rules_version='2'; service firebase.storage { match /b/{b}/o/a { allow get: if resource.size < 1; } }"
        )
        #expect(!narrow.inputs(for: Request(.get, bucket: "B", object: "b", time: noon)).hasRules)
        #expect(
            !narrow.inputs(for: Request(.delete, bucket: "B", object: "a", time: noon)).hasRules)
        #expect(narrow.inputs(for: Request(.get, bucket: "B", object: "a", time: noon)).existing)
    }

    @Test func listsAndReadsHaveFewerInputs() throws {
        let rules = try rules("resource == null && request.resource == null")
        let list = Request(.list, bucket: "B", object: "", time: noon)
        #expect(rules.decide(list) == .allowed)
        let inputs = rules.inputs(for: list)
        #expect(!inputs.existing && inputs.incoming.isEmpty)
        let get = rules.inputs(for: Request(.get, bucket: "B", object: "x", time: noon))
        #expect(get.existing && get.incoming.isEmpty)
    }

    @Test func denialsSayWhetherACallerMatters() throws {
        var anonymous = early
        anonymous.setCaller(nil)
        #expect(
            try rules("request.auth.uid == 'a'").decide(anonymous)
                == .denied(Denial(reason: .notAllowed, readsCaller: true)))
        #expect(
            try rules("request.path == null").decide(anonymous)
                == .denied(Denial(reason: .notAllowed, readsCaller: false)))
    }
}
