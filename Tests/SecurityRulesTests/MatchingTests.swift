import Testing

@testable import SecurityRules

/// Which blocks match which paths, and the values of their captures.
@Suite struct MatchingTests {
    /// The captures of each block that matches an object.
    private func matches(_ body: String, _ object: String, version: Int = 2) throws -> [String] {
        let source = """
            rules_version = '\(version)';
            service firebase.storage { match /b/{bucket}/o { \(body) } }
            """
        let rules = try Ruleset.load(source: source)
        let explanation = rules.explain(Request(.get, bucket: "B", object: object, time: noon))
        return explanation.blocks.map { block in
            block.captures.filter { $0.name != "bucket" }.map { "\($0.name)=\($0.value)" }
                .joined(separator: " ")
        }
    }

    private static let never = "{ allow read: if false; }"

    @Test(arguments: [
        ("/{a}", "x", ["a='x'"]), ("/{a}", "x/y", []), ("/{a}/{b}", "x/y", ["a='x' b='y'"]),
        ("/images/{a}", "images/x", ["a='x'"]), ("/images/{a}", "image/x", []),
        ("/images", "images", [""]), ("/images", "images/x", []), ("/images/{a}", "images", []),
        ("/{all=**}", "", ["all="]), ("/{all=**}", "a", ["all=/a"]),
        ("/{all=**}", "a/b/c", ["all=/a/b/c"]),
        ("/images/{a}/{rest=**}", "images/x.png", ["a='x.png' rest="]),
        ("/images/{a}/{rest=**}", "images/x/y/z", ["a='x' rest=/y/z"]),
        ("/images/{a}/{rest=**}", "images", []), ("/{x=**}/secret", "secret", ["x="]),
        ("/{x=**}/secret", "a/b/secret", ["x=/a/b"]), ("/{x=**}/secret", "a/secret/b", []),
        ("/{x=**}/by/{who}", "a/by/bob", ["x=/a who='bob'"]),
        ("/{x=**}/by/{who}/{what}", "a/b/by/bob/it", ["x=/a/b who='bob' what='it'"]),
        ("/{x=**}/a/{y}", "a/a/a", ["x=/a y='a'"]), ("/{legacy=*}", "x", ["legacy='x'"]),
        ("/.hidden/a-b_c.d~e", ".hidden/a-b_c.d~e", [""]),
        ("/my%20files/{a}", "my files/x", ["a='x'"]),
        ("/100%/{a}", "100%/x", ["a='x'"]), ("/{a}", "é ü", ["a='é ü'"]),
        ("/{a}", "a%20b", ["a='a%20b'"]),
    ])
    func version2(_ path: String, _ object: String, _ expected: [String]) throws {
        #expect(try matches("match \(path) \(Self.never)", object) == expected)
    }

    @Test(arguments: [
        ("/{all=**}", "", []), ("/{all=**}", "a", ["all=/a"]), ("/{all=**}", "a/b", ["all=/a/b"]),
        ("/images/{rest=**}", "images", []), ("/images/{rest=**}", "images/x", ["rest=/x"]),
        ("/{a}/{rest=**}", "x", []),
    ])
    func version1(_ path: String, _ object: String, _ expected: [String]) throws {
        #expect(try matches("match \(path) \(Self.never)", object, version: 1) == expected)
    }

    @Test func nestedBlocks() throws {
        let body = """
            match /users/{uid} {
              allow read: if false;
              match /{file} { allow read: if uid == file; }
              match /deep/{rest=**} { allow read: if false; }
            }
            match /{x=**} { match /deep/{leaf} { allow read: if leaf == 'z' && string(x) == '/users/u'; } }
            """
        #expect(try matches(body, "users/u") == ["uid='u'"])
        #expect(try matches(body, "users/u/u") == ["uid='u' file='u'"])
        #expect(try matches(body, "users/u/deep") == ["uid='u' file='deep'", "uid='u' rest="])
        #expect(try matches(body, "users/u/deep/z") == ["uid='u' rest=/z", "x=/users/u leaf='z'"])
        #expect(try matches(body, "deep/z") == ["x= leaf='z'"])
    }

    @Test func rulesOfAParentDoNotReachDown() throws {
        let body = "match /a { allow read; match /b { allow read: if false; } }"
        #expect(try matches(body, "a/b") == [""])
        let source = "rules_version='2'; service firebase.storage { match /b/{x}/o { \(body) } }"
        let rules = try Ruleset.load(source: source)
        #expect(rules.decide(Request(.get, bucket: "B", object: "a", time: noon)) == .allowed)
        #expect(!rules.decide(Request(.get, bucket: "B", object: "a/b", time: noon)).isAllowed)
    }

    @Test func pathsAreWholeAndBegin() throws {
        let rules = try rules("request.path == path('/b/photos/o/a/b')")
        for path in ["/b/photos/o/a/b", "b/photos/o/a/b", "/b/photos/o/a/b/"] {
            #expect(rules.decide(Request(.get, path: path, time: noon)) == .allowed)
        }
        let slashes = ["a//b", "/a", "a/", "/"]
        for name in slashes {
            let request = Request(.get, bucket: "photos", object: name, time: noon)
            #expect(
                rules.decide(request) == .denied(Denial(reason: .invalidPath, readsCaller: false)))
        }
    }

    @Test func methodsOfWords() throws {
        let words: [(String, Set<Method>)] = [
            ("read", [.get, .list]), ("write", [.create, .update, .delete]), ("get", [.get]),
            ("list", [.list]), ("create", [.create]), ("update", [.update]), ("delete", [.delete]),
            ("read, delete", [.get, .list, .delete]), ("get, read", [.get, .list]),
        ]
        for (word, expected) in words {
            let rules = try Ruleset.load(
                source: """
                    rules_version = '2';
                    service firebase.storage { match /b/{b}/o/{all=**} { allow \(word): if true } }
                    """)
            for method in Method.allCases {
                let decision = rules.decide(Request(method, bucket: "B", object: "x", time: noon))
                #expect(decision.isAllowed == expected.contains(method), "\(word) \(method)")
                if !decision.isAllowed {
                    #expect(decision == .denied(Denial(reason: .noMatch, readsCaller: false)))
                }
            }
        }
    }

    @Test func listNeedsVersion2() throws {
        let source =
            "service firebase.storage { match /b/{b}/o { match /{all=**} { allow read; } } }"
        let rules = try Ruleset.load(source: source)
        #expect(rules.version == 1)
        let decision = rules.decide(Request(.list, bucket: "B", object: "", time: noon))
        guard case .denied(let denial) = decision else { return #expect(Bool(false)) }
        #expect(denial.reason == .listNeedsVersion2)
        #expect(
            denial.message
                == "Listing objects in a bucket is disallowed for rules_version = \"1\". Please "
                + "update storage security rules to rules_version = \"2\" to use list.")
        #expect(rules.decide(Request(.get, bucket: "B", object: "x", time: noon)) == .allowed)
    }

    /// The index finds the same blocks as trying every block, in the same order.
    @Test func indexAgreesWithTryingAll() {
        var random = Generator(state: 7)
        let alphabet: [Text] = ["a", "b", "c"]
        for version in [1, 2] {
            for _ in 0..<300 {
                let blocks = (0..<12).map { _ in
                    BlockCode(
                        segments: segments(&random, alphabet, version), glob: -1, allows: 0..<0,
                        methods: [], pathSpan: Span32(0, 0))
                }
                let index = MatchIndex(blocks, version: version)
                for _ in 0..<20 {
                    let path = (0..<random.next(6)).map { _ in alphabet[random.next(3)] }
                    var found = BlockList()
                    index.find(path, into: &found)
                    let expected = blocks.indices.filter {
                        naive(blocks[$0].segments[...], path[...], version)
                    }
                    #expect((0..<found.count).map { Int(found[$0]) } == expected)
                }
            }
        }
    }

    private func segments(
        _ random: inout Generator, _ alphabet: [Text], _ version: Int
    ) -> [MatchSegment] {
        let count = random.next(5)
        let glob =
            random.next(2) == 0 && count > 0 ? (version == 1 ? count - 1 : random.next(count)) : -1
        return (0..<count).map { place in
            let kind: MatchSegment.Kind =
                place == glob
                ? .glob : random.next(2) == 0 ? .single : .literal(alphabet[random.next(3)])
            return MatchSegment(kind: kind, span: Span32(0, 0))
        }
    }

    private func naive(
        _ segments: ArraySlice<MatchSegment>, _ path: ArraySlice<Text>, _ version: Int
    ) -> Bool {
        guard let first = segments.first else { return path.isEmpty }
        switch first.kind {
        case .glob:
            let least = version == 1 ? 1 : 0
            return stride(from: least, through: path.count, by: 1).contains {
                naive(segments.dropFirst(), path.dropFirst($0), version)
            }
        case .single: return !path.isEmpty && naive(segments.dropFirst(), path.dropFirst(), version)
        case .literal(let text):
            return path.first == text && naive(segments.dropFirst(), path.dropFirst(), version)
        }
    }
}

/// A deterministic random number generator.
struct Generator {
    var state: UInt64

    mutating func next(_ bound: Int) -> Int {
        state = state &* 6_364_136_223_846_793_005 &+ 1_442_695_040_888_963_407
        return Int(state >> 33) % bound
    }
}
