import Testing
import Wire

/// Comparison without regard to the case of ASCII letters, and of the nearness of words.
@Suite struct ASCIITests {
    private func isEqual(_ text: String, _ lower: StaticString) -> Bool {
        ASCII.isEqual(text.utf8.span, ignoringCase: lower)
    }

    private func firstDash(in text: String, from start: Int) -> Int? {
        ASCII.firstIndex(of: "-", in: text.utf8.span, from: start)
    }

    private func hasPrefix(_ text: String, _ prefix: StaticString) -> Bool {
        ASCII.hasPrefix(text.utf8.span, prefix)
    }

    @Test(arguments: [
        ("chunked", true), ("CHUNKED", true), ("cHuNkEd", true), ("chun\u{212A}ed", false),
        ("chunke", false), ("chunkedd", false), ("", false), ("chunke\u{4}", false),
        ("chunked ", false),
    ])
    func comparesLettersAlone(text: String, expected: Bool) {
        #expect(isEqual(text, "chunked") == expected)
    }

    @Test func foldsNothingButLetters() {
        // 0x5b is '[' and 0x7b is '{': they differ in the bit that tells upper case from lower case.
        #expect(!isEqual("[@", "{`"))
        #expect(isEqual("100-Continue", "100-continue"))
    }

    @Test func findsBytes() {
        let text = "a-b-c"
        #expect(firstDash(in: text, from: 0) == 1)
        #expect(firstDash(in: text, from: 2) == 3)
        #expect(firstDash(in: text, from: 4) == nil)
        #expect(firstDash(in: text, from: 5) == nil)
        #expect(hasPrefix(text, "a-") && hasPrefix(text, "a-b-c"))
        #expect(!hasPrefix(text, "a-b-cd") && !hasPrefix(text, "A"))
    }

    @Test func tokensEndAtTheFirstOtherByte() {
        // Every byte at every offset of a text of several words and a rest.
        for length in [0, 1, 7, 8, 9, 16, 23] {
            for offset in 0..<max(length, 1) {
                for byte in UInt8.min ... .max {
                    var text = [UInt8]("Content-MD5_x.y~Zz09-a!#b".utf8.prefix(length))
                    if !text.isEmpty { text[offset] = byte }
                    let expected = text.prefix { ASCII.isToken($0) }.map(ASCII.lowercased)
                    var copy = [UInt8](repeating: 0, count: length)
                    let count = text.withUnsafeBytes { text in
                        copy.withUnsafeMutableBytes { ASCII.copyToken(text, lowercasedTo: $0) }
                    }
                    #expect(copy.prefix(count) == expected[...])
                }
            }
        }
    }

    @Test(arguments: [
        ("kitten", "sitting", 3), ("ab", "ba", 1), ("", "", 0), ("", "abc", 3), ("abc", "", 3),
        ("a", "a", 0), ("ca", "abc", 3),
    ])
    func distances(a: String, b: String, distance: Int) {
        #expect(EditDistance.between(Array(a.utf8), Array(b.utf8)) == distance)
    }
}
