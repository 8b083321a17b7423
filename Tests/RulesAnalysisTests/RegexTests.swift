import SecurityRules
import TestSupport
import Testing
import Wire

@testable import RulesAnalysis

/// The regular expressions of the analysis match what the engine's match.
@Suite struct RegexTests {
    /// Whether the engine's `matches` accepts a text; nil if the pattern does not load.
    private func engine(_ pattern: String) -> ((String) -> Bool)? {
        func literal(_ text: String) -> String {
            text.unicodeScalars.map { scalar in
                scalar == "'" || scalar == "\\" ? "\\\(scalar)" : scalar == "\n" ? "\\n" : String(scalar)
            }.joined()
        }
        let source = """
            rules_version = '2'; service firebase.storage { match /b/{bucket}/o { match /{x} {
            allow get: if request.auth.uid.matches('\(literal(pattern))'); } } }
            """
        guard let rules = try? Ruleset.load(source: source) else { return nil }
        return { text in
            var request = ExampleRequest(.get)
            request.segments = ["x"]
            request.uid = text
            return request.isAllowed(by: rules) == true
        }
    }

    private static let texts = [
        "", "a", "A", "b", "ab", "abc", "aab", "a.b", "a-b", "\n", "a\n", "é", "e\u{301}", "K", "\u{212A}", "ſ", "s",
        "0", "07",
        "a b", "_", "]", "^", "image/png", "x@y.org", "x@yxorg", "😀", "aaaa", "aaaaaa", "\\", "$", "/", "ABC", "aBc",
        "\u{10FFFF}",
    ]

    @Test(arguments: [
        "", "a", "a.*", "^a.*$", "(^a|b)$", "a|b|", "[a-c]+", "[^a]", "[]a]", "[^]a]", "[a\\]]", "[-a]", "[a-]",
        "[\\w-]+", "\\d+", "\\D",
        "\\s", "\\S+", "\\W", "a{2}", "a{2,}", "a{0,2}", "a{,2}", "a{x", "(?i)abc", "(?i)k", "(?i)s", "(?i)[a-c]+",
        "(?i)[^a]", "(?i:a)B",
        "(?s).", ".", "a(?i)b", "\\x41", "\\x{41}", "[[:alpha:]]+", "[[:word:]]", "a*?", "a+?b", "(a|ab)(c|)",
        "(?P<n>a)b", "\\.", "a\\.b",
        ".*@y\\.org", ".*@y.org", "\\Aa\\z", "()", "(a*)*", "\\n", "[\\n]", "image/(png|jpeg)",
        "[A-Za-z0-9._%+-]+@[a-z.]+", "é", "[é]", "\\\\",
        "[^/]+", "(?i-s)a", "(?-i)a", "[a-z&&[^b]]", "\\/", "x{1}{2}", "(?:a|b)c?", "(((a)))", "[.]", "[$]", "a$|b",
        "^", "$", "^$", ".+\\..+",
    ])
    func matchesAsTheEngine(_ pattern: String) throws {
        guard let engine = engine(pattern), let regex = RegexParser.parse(pattern) else { return }
        for text in Self.texts {
            #expect(regex.matches(Characters(text).scalars) == engine(text), "\(pattern) on \(text)")
        }
    }

    @Test(arguments: ["a", "^a.*$", "(?i)abc", "[^/]+", "(^a|b)$", "a{0,2}", "[[:alpha:]]+", "\\d+"])
    func isSupported(_ pattern: String) { #expect(RegexParser.parse(pattern) != nil) }

    @Test(arguments: ["\\bx", "\\pL", "a^b", "a$b", "(?i)é", "[\u{20000}-\u{30000}]", "(?m)^a"])
    func isNotSupported(_ pattern: String) { #expect(RegexParser.parse(pattern) == nil) }

    @Test func randomPatterns() throws {
        var random = SeededGenerator(5)
        let parts = [
            "a", "b", ".", "[ab]", "[^a]", "(a|b)", "(?i)", "*", "+", "?", "{1,2}", "|", "(", ")", "^", "$", "\\w",
            "\\.", "A", "[", "]", "-",
        ]
        var compared = 0
        for _ in 0..<3_000 {
            let pattern = (0..<1 + random.below(6)).map { _ in random.pick(parts) }.joined()
            guard let regex = RegexParser.parse(pattern), let engine = engine(pattern) else { continue }
            compared += 1
            for text in Self.texts {
                #expect(regex.matches(Characters(text).scalars) == engine(text), "\(pattern) on \(text)")
            }
        }
        #expect(compared > 500)
    }

    /// Comparisons of patterns agree with their matches of texts.
    @Test func comparesPatterns() throws {
        var random = SeededGenerator(9)
        let parts = ["a", "b", ".", "[ab]", "[^a]", "(a|b)", "*", "+", "?", "{1,2}", "|", "(", ")", "\\w", "A"]
        let texts =
            Self.texts
            + (0..<200).map { _ in (0..<random.below(7)).map { _ in random.pick(["a", "b", "A"]) }.joined() }
        func pattern() -> String { (0..<1 + random.below(6)).map { _ in random.pick(parts) }.joined() }
        var included = 0
        for _ in 0..<800 {
            guard let a = RegexParser.parse(pattern()), let b = RegexParser.parse(pattern()),
                let comparison = RegexComparison(a, b)
            else { continue }
            if comparison.isIncluded, !comparison.isDisjoint { included += 1 }
            for text in texts {
                let (inA, inB) = (a.matches(Characters(text).scalars), b.matches(Characters(text).scalars))
                #expect(!(comparison.isIncluded && inA && !inB))
                #expect(!(comparison.isDisjoint && inA && inB))
            }
        }
        #expect(included > 8)
    }

    @Test(arguments: [
        (".*@x\\.org", ".*@x.org", true), (".*@x.org", ".*@x\\.org", false), ("image/png", "image/.*", true),
        ("a{3}", "a{2,4}", true),
        ("a{2,4}", "a{3}", false), ("(a|b)*", "(a*b*)*", true), ("", "a*", true), ("[a-z]+", "[^A]+", true),
    ])
    func includes(_ a: String, _ b: String, _ isIncluded: Bool) throws {
        let comparison = RegexComparison(try #require(RegexParser.parse(a)), try #require(RegexParser.parse(b)))
        #expect(comparison?.isIncluded == isIncluded)
    }

    @Test func largeComparisonsEnd() throws {
        let a = try #require(RegexParser.parse("(a|b)*a(a|b){20}"))
        let b = try #require(RegexParser.parse("(b|a)*b(b|a){20}"))
        _ = RegexComparison(a, b)
    }

    @Test func deepPatternsEnd() {
        let deep = String(repeating: "(", count: 5_000) + "a" + String(repeating: ")", count: 5_000)
        #expect(RegexParser.parse(deep) == nil)
    }
}
