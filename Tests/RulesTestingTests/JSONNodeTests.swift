import SecurityRules
import Testing
import YAML

@testable import RulesTesting

/// JSON that is read into nodes.
@Suite struct JSONNodeTests {
    @Test func readsValuesWithTheirMarks() throws {
        let node = try Node.loadJSON("{\"a\": [1, -2.5e3, \"x\"],\n  \"b\": null}")
        let pairs = try #require(node.mapping)
        #expect(pairs.map { $0.key.scalar?.string } == ["a", "b"])
        #expect(pairs[0].value.sequence?.map { $0.scalar?.string } == ["1", "-2.5e3", "x"])
        #expect(pairs[0].value.sequence?.map { $0.scalar?.isPlain } == [true, true, false])
        #expect(pairs[1].value.mark == Mark(line: 2, column: 8) && pairs[1].value.isNull)
    }

    @Test func columnsCountCharacters() throws {
        let node = try Node.loadJSON("\u{feff}{\"é😀\": \"\\u00e9\", \"b\":\n\t\"\\n\"}")
        let pairs = try #require(node.mapping)
        #expect(pairs.map { $0.key.mark } == [Mark(line: 1, column: 2), Mark(line: 1, column: 18)])
        #expect(
            pairs.map { $0.value.mark } == [Mark(line: 1, column: 8), Mark(line: 2, column: 2)])
    }

    @Test func readsEscapes() throws {
        let node = try Node.loadJSON(#""\"\\\/\b\f\n\r\t\u00e9\ud83d\ude00""#)
        #expect(node.scalar?.string == "\"\\/\u{8}\u{c}\n\r\té😀")
    }

    @Test(arguments: [
        ("{\"a\" 1}", "':' is expected", 6), ("[1 2]", "',' or ']' is expected", 4),
        ("{a: 1}", "a name in quotes is expected", 2), ("[01]", "',' or ']' is expected", 3),
        ("\"\\ud83d\"", "a surrogate is alone", 8), ("\"a", "a string has no end", 1),
        ("\"\\x\"", "an escape is unknown", 3), ("{} 1", "something follows the value", 4),
        ("{\"a\": 1, \"a\": 2}", "'a' is given twice", 10), ("nul", "a value is expected", 1),
        ("", "a value is expected", 1),
    ])
    func rejects(text: String, reason: String, column: Int) {
        let error = #expect(throws: YAMLError.self) { try Node.loadJSON(text) }
        #expect(
            error == YAMLError(message: "not JSON: \(reason)", mark: Mark(line: 1, column: column)))
    }

    @Test func depthEnds() {
        #expect(throws: YAMLError.self) {
            try Node.loadJSON(String(repeating: "[", count: 100_000))
        }
    }

    @Test func writesWhatCanBeReadAgain() throws {
        let text = "a\"\\\n\r\t\u{1}\u{7f}é😀"
        let json = JSON.object([("k", .array([.string(text), .bool(true), .int(-1), .null]))])
        let values = try #require(try Node.loadJSON(json.text).mapping?[0].value.sequence)
        #expect(values.map { $0.scalar?.string } == [text, "true", "-1", "null"])
    }
}
