import TestSupport
import Testing
import Wire

@testable import Gateway

@Suite struct ObjectNameTests {
    @Test(arguments: [
        ("a", "a"), ("images/forest.jpg", "images/forest.jpg"), ("a%2Fb", "a/b"),
        ("a%2fb", "a/b"), ("a%252Fb", "a%2Fb"), ("a+b", "a+b"), ("a%20b", "a b"),
        ("%C3%BC", "ü"), ("ü", "ü"), ("...", "..."), (".a", ".a"), ("a.", "a."), ("a/.b", "a/.b"),
        ("..a/b..", "..a/b.."), ("%23%5B%5D%2A%3F", "#[]*?"), ("a%09b%7F", "a\tb\u{7f}"),
        (".well-known/acme-challenge", ".well-known/acme-challenge"),
        (".well-known/acme-challenges/x", ".well-known/acme-challenges/x"),
        ("x/.well-known/acme-challenge/y", "x/.well-known/acme-challenge/y"),
        ("%EF%BF%BD", "\u{fffd}"), ("a\u{fffd}", "a\u{fffd}"), ("%F0%9F%8C%B2", "🌲"),
    ])
    func decodesExactlyOnce(path: String, name: String) throws {
        #expect(try ObjectName(percentEncoded: bytes(path)).value == name)
    }

    @Test func equivalentNamesAreDifferent() throws {
        let names = try ["caf\u{e9}", "cafe\u{301}"].map { try ObjectName($0) }
        #expect(names[0] != names[1] && Set(names).count == 2)
    }

    @Test(arguments: [
        ("", NameError(.empty, at: 0)),
        ("a%", NameError(.malformedEncoding, at: 1)),
        ("a%4", NameError(.malformedEncoding, at: 1)),
        ("ab%4g", NameError(.malformedEncoding, at: 2)),
        ("%%41", NameError(.malformedEncoding, at: 0)),
        ("a%00b", NameError(.nul, at: 1)),
        ("a/b%0Ac", NameError(.lineBreak, at: 3)),
        ("%0D", NameError(.lineBreak, at: 0)),
        ("/a", NameError(.emptySegment, at: 0)),
        ("a//b", NameError(.emptySegment, at: 2)),
        ("a/%2Fb", NameError(.emptySegment, at: 2)),
        ("a/", NameError(.trailingSlash, at: 1)),
        ("a%2F", NameError(.trailingSlash, at: 1)),
        (".", NameError(.dotSegment, at: 0)),
        ("..", NameError(.dotSegment, at: 0)),
        ("%2e%2E", NameError(.dotSegment, at: 0)),
        ("a/../b", NameError(.dotSegment, at: 2)),
        ("a/.%2fb", NameError(.dotSegment, at: 2)),
        ("a/b/..", NameError(.dotSegment, at: 4)),
        ("a/%2e", NameError(.dotSegment, at: 2)),
        (".well-known/acme-challenge/x", NameError(.reserved, at: 0)),
        (".sluice/x", NameError(.reserved, at: 0)),
        ("%2Esluice%2Fuploads/x", NameError(.reserved, at: 0)),
        ("%2ewell-known%2facme-challenge/x", NameError(.reserved, at: 0)),
        ("%FF", NameError(.notUTF8, at: 0)),
        ("ab%C3", NameError(.notUTF8, at: 2)),
        ("a%C0%AFb", NameError(.notUTF8, at: 1)),
        ("a%ED%A0%80", NameError(.notUTF8, at: 1)),
    ])
    func rejectsInvalidNames(path: String, error: NameError) {
        #expect(throws: error) { try ObjectName(percentEncoded: bytes(path)) }
    }

    @Test func folderMarkersEndInOneSlash() throws {
        for name in ["a/", "a/b/", "ü/", " /", ".a/", String(repeating: "a", count: 1023) + "/"] {
            let marker = try ObjectName(marker: name)
            #expect(marker.value == name && marker.isMarker)
            #expect(marker.rulesPath == String(name.dropLast()))
            #expect(throws: NameError(.trailingSlash, at: name.utf8.count - 1)) { try ObjectName(name) }
        }
        // Other names are as they are.
        let plain = try ObjectName(marker: "a/b")
        #expect(try plain == ObjectName("a/b") && !plain.isMarker && plain.rulesPath == "a/b")
        let invalid: [(String, NameError)] = [
            ("", NameError(.empty, at: 0)), ("/", NameError(.emptySegment, at: 0)),
            ("a//", NameError(.emptySegment, at: 2)), ("//", NameError(.emptySegment, at: 0)),
            ("./", NameError(.dotSegment, at: 0)), ("a/../", NameError(.dotSegment, at: 2)),
            (".sluice/", NameError(.reserved, at: 0)), (".sluice/a/", NameError(.reserved, at: 0)),
            (".well-known/acme-challenge/", NameError(.reserved, at: 0)), ("a\n/", NameError(.lineBreak, at: 1)),
            (String(repeating: "a", count: 1024) + "/", NameError(.tooLong, at: 1024)),
        ]
        for (name, error) in invalid { #expect(throws: error) { try ObjectName(marker: name) } }
    }

    @Test func countsBytesAfterDecoding() throws {
        let longest = String(repeating: "%C3%BC", count: 512)
        #expect(try ObjectName(percentEncoded: bytes(longest)).value.utf8.count == 1024)
        #expect(throws: NameError(.tooLong, at: 1024)) {
            try ObjectName(percentEncoded: bytes(longest + "a"))
        }
    }

    @Test func checksDecodedNamesTheSame() {
        #expect(throws: NameError(.dotSegment, at: 2)) { try ObjectName("a/..") }
        #expect(throws: Never.self) { try ObjectName("a%2F..b") }
    }

    @Test func reportsTheLimitAndOffset() {
        #expect(NameError(.dotSegment, at: 2).description.contains("byte 2"))
        #expect(NameError(.tooLong, at: 1024).description.contains("1024"))
    }

    @Test func survivesAnyBytes() throws {
        var random = SeededGenerator(1)
        let seeds = [
            "a/b", "a%2F..%2fb", "%C3%BC/%ff", ".well-known/acme-challenge/x", "%", "//", "",
        ]
        for _ in 0..<20_000 {
            let input = random.mutation(of: seeds)
            guard let name = try? ObjectName(percentEncoded: input[...]) else { continue }
            // What was accepted keeps to the limits by another reckoning, and comes back from its encoding.
            let segments = name.value.split(separator: "/", omittingEmptySubsequences: false)
            #expect((1...1024).contains(name.value.utf8.count))
            #expect(!segments.contains { $0.isEmpty || $0 == "." || $0 == ".." })
            #expect(!name.value.utf8.contains { $0 == 0 || $0 == 10 || $0 == 13 })
            let encoded = PercentEncoding.encodePath(name.value)
            #expect(
                try Array(ObjectName(percentEncoded: bytes(encoded)).value.utf8)
                    == Array(name.value.utf8))
        }
    }

    @Test func bucketNames() {
        for name in ["a", "photos", "my-project.appspot.com", "a_b", "0"] {
            #expect(BucketName(name)?.value == name)
        }
        for name in [
            "", "A", "a/b", "-a", "a-", ".a", "a b", "ü", String(repeating: "a", count: 223),
        ] {
            #expect(BucketName(name) == nil)
        }
    }
}

@Suite struct PathRulesTests {
    private func matches(_ pattern: String, _ name: String) throws -> Bool {
        let rules = try PathRules(allowed: [pattern], denied: [])
        return (try? rules.check(ObjectName(name))) != nil
    }

    @Test(arguments: [
        ("a", "a", true), ("a", "b", false), ("a", "a/b", false), ("*", "abc", true),
        ("*", "a/b", false), ("*.jpg", "x.jpg", true), ("*.jpg", ".jpg", true),
        ("*.jpg", "x.jpg.gz", false), ("a*a", "a", false), ("a*a", "aa", true),
        ("a*b*c", "aXbYbZc", true), ("a*b*c", "acb", false), ("*ab*", "xxabxx", true),
        ("images/*", "images/a", true), ("images/*", "images/a/b", false),
        ("images/*", "images", false), ("images/**", "images/a/b/c", true),
        ("images/**", "images", false), ("images/**", "imagesx/a", false), ("**", "a", true),
        ("**", "a/b/c", true), ("**/a", "a", true), ("**/a", "x/y/a", true), ("**/a", "xa", false),
        ("a/**/b", "a/b", true), ("a/**/b", "a/x/y/b", true), ("a/**/b", "a/x", false),
        ("**/*.png", "a/b/c.png", true), ("**/x/**", "a/x/b", true), ("**/x/**", "x/b", true),
        ("**/x/**", "a/x", false), ("**/**/a", "a", true), ("a?", "a?", true), ("a?", "ab", false),
        ("[a]", "[a]", true), ("ü*", "üx", true),
    ])
    func matchesSegmentBySegment(pattern: String, name: String, expected: Bool) throws {
        #expect(try matches(pattern, name) == expected)
    }

    @Test(arguments: ["", "/a", "a/", "a//b", "a**b", "***", "**a", ".", "a/..", "a\nb"])
    func rejectsUselessPatterns(pattern: String) {
        #expect(throws: PathRules.PatternError.self) {
            try PathRules(allowed: [pattern], denied: [])
        }
        #expect(throws: PathRules.PatternError.self) {
            try PathRules(allowed: [], denied: ["ok", pattern])
        }
    }

    @Test func deniedTakesPrecedenceAndDepthIsLimited() throws {
        let rules = try PathRules(
            allowed: ["images/**", "docs/*"], denied: ["**/secret/**"], maximumDepth: 3,
            rejectsDiscouraged: true)
        func error(_ name: String) -> NameError? {
            do throws(NameError) {
                try rules.check(try ObjectName(name))
                return nil
            } catch { return error }
        }
        #expect(error("images/a") == nil)
        #expect(error("docs/a/b") == NameError(.notAllowed, at: 0))
        #expect(error("images/secret/b") == NameError(.denied("**/secret/**"), at: 0))
        #expect(error("images/a/b/c") == NameError(.tooDeep(3), at: 11))
        #expect(error("images/a*") == NameError(.discouraged("*"), at: 8))
    }

    @Test func folderMarkersAreCheckedWithoutTheirSlash() throws {
        let rules = try PathRules(allowed: ["images/*", "docs"], denied: ["**/secret/**"], maximumDepth: 2)
        for (name, isAllowed) in [
            ("images/a/", true), ("images/a", true), ("docs/", true), ("images/", false), ("docs/a/", false),
            ("images/a/b/", false),
        ] {
            #expect(((try? rules.check(ObjectName(marker: name))) != nil) == isAllowed, "\(name)")
        }
    }

    @Test func withoutRulesEverythingIsAllowed() throws {
        try PathRules.none.check(ObjectName("a/b/c/#"))
    }

    /// A pattern that makes a matcher with backtracking run for longer than anybody waits.
    @Test func matchesWithoutBacktracking() throws {
        let pattern = String(repeating: "*a", count: 200) + "b"
        #expect(try !matches(pattern, String(repeating: "a", count: 1000)))
        let deep = (Array(repeating: "**/a", count: 100) + ["b"]).joined(separator: "/")
        #expect(try !matches(deep, Array(repeating: "a", count: 500).joined(separator: "/")))
    }

    @Test func survivesAnyPattern() {
        var random = SeededGenerator(2)
        for _ in 0..<10_000 {
            let pattern = String(
                decoding: random.mutation(of: ["a/**/b*", "**", "*a*b", "x/../y"]), as: UTF8.self)
            let text = String(
                decoding: random.mutation(of: ["a/x/b", "ab", "xaxb"]), as: UTF8.self)
            guard let name = try? ObjectName(text),
                let rules = try? PathRules(allowed: [pattern], denied: [])
            else { continue }
            _ = try? rules.check(name)
        }
    }
}
