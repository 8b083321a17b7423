import Testing

@testable import SecurityRules

/// The format of diagnostics on a terminal.
@Suite struct DiagnosticTextTests {
    private func rendered(_ source: String, fileName: String = "f") -> [String] {
        do {
            return try Ruleset.load(source: source, fileName: fileName).diagnostics
                .rendered(source: source)
        } catch { return error.diagnostics.rendered(source: source) }
    }

    private func file(_ condition: String) -> String {
        "rules_version='2';service firebase.storage{match /a{allow get: if\n\(condition)\n;}}"
    }

    // MARK: Large inputs

    /// Scanning the source once per diagnostic would take minutes.
    @Test(.timeLimit(.minutes(1))) func manyFindings() {
        let one = "allow get: if nobody\n;"
        let count = 11_000
        let source =
            "rules_version='2';service firebase.storage{match /a{"
            + String(repeating: one, count: count) + "}}"
        let texts = rendered(source)
        #expect(texts.count == count)
        #expect(
            texts[count - 1]
                == """
                f:\(count):16: warning: Invalid variable name: nobody.
                 \(count) | ;allow get: if nobody
                 \(String(repeating: " ", count: 5)) |                ^~~~~~
                """)
    }

    /// Comparing every unknown name with every known one would take minutes.
    @Test(.timeLimit(.minutes(1))) func manyNamesToCompare() {
        let functions = (0..<3000).map { "function name\($0)(){return nobody\($0)();}" }.joined()
        let texts = rendered("rules_version='2';service firebase.storage{\(functions)}")
        #expect(texts.count == 6000)
        #expect(texts.contains { $0.contains("hint: did you mean 'name") } == false)
    }

    @Test(.timeLimit(.minutes(1))) func manyCaptures() {
        let path = (0..<25_000).map { "/{c\($0)}" }.joined()
        let texts = rendered("service firebase.storage{match \(path){allow get;}}")
        #expect(texts.contains { $0.contains("at most 100 segments") })
    }

    // MARK: Long lines

    @Test func longLinesAreCut() throws {
        let sum = [String](repeating: "nobody", count: 60).joined(separator: " && ")
        let texts = rendered(file(sum))
        #expect(texts.count == 60)
        for (index, text) in texts.enumerated() {
            let lines = text.split(separator: "\n")
            let shown = lines[1].dropFirst(" 2 | ".count)
            let marks = lines[2].dropFirst("   | ".count)
            let caret = try #require(marks.firstIndex(of: "^"))
            let column = marks.distance(from: marks.startIndex, to: caret)
            #expect(shown.dropFirst(column).hasPrefix("nobody"), "\(text)")
            #expect(marks[caret...] == "^~~~~~")
            let isCut = (shown.hasPrefix("…"), shown.hasSuffix("…"))
            #expect(shown.count - (isCut.0 ? 1 : 0) - (isCut.1 ? 1 : 0) <= 160)
            if index == 0 { #expect(isCut == (false, true) && shown.count == 161) }
            if index == 59 { #expect(isCut.0 && !isCut.1) }
        }
    }

    @Test(.timeLimit(.minutes(1))) func aLineOfTheWholeFile() {
        let rule = "allow get: if nobody;"
        let source =
            "rules_version='2';service firebase.storage{match /a{"
            + String(repeating: rule, count: 4800) + "}}"
        let texts = rendered(source)
        #expect(texts.count == 4800)
        #expect(texts.reduce(0) { $0 + $1.utf8.count } < 4800 * 600)
    }

    @Test func wideCharactersAreCountedOnce() {
        let text = rendered(file("'" + String(repeating: "é😀", count: 200) + "' == nobody"))[0]
        let lines = text.split(separator: "\n")
        #expect(lines[0].hasPrefix("f:2:407: ") && lines[1].hasSuffix("é😀' == nobody"))
        #expect(lines[2].count == lines[1].count && lines[2].hasSuffix(" ^~~~~~"))
    }

    @Test func longMessagesAreCut() {
        let name = String(repeating: "x", count: 100_000)
        #expect(rendered(file(name))[0].utf8.count < 1500)
    }

    // MARK: Control characters

    @Test func controlCharactersAreEscaped() {
        let hidden = "\u{1B}[31m\u{9B}\u{202E}\u{7F}\u{2028}\u{E0041}"
        let source = file("'\(hidden)' == no\tbody // \u{7}\n&& \u{1B}")
        for text in rendered(source, fileName: "a\u{1B}]0;\nb\u{2066}") {
            #expect(text.unicodeScalars.allSatisfy { $0 == "\n" || $0 == "\t" || !isHidden($0) })
            #expect(text.hasPrefix("a\\u001b]0;\\nb\\u2066:"))
        }
        let text = rendered(file("'\u{1B}\u{E0041}' == nobody"))[0]
        #expect(
            text
                == """
                f:2:9: warning: Invalid variable name: nobody.
                 2 | '\\u001b\\udb40\\udc41' == nobody
                   |                         ^~~~~~
                """)
        #expect(rendered(file("nobody\u{1B}")).joined().contains("Unexpected '\\u001b'."))
    }

    @Test func json() {
        let diagnostic = Diagnostic(
            severity: .warning, fileName: "\u{9B}", message: "\u{202E}\u{E0041}é")
        #expect(
            diagnostic.json
                == #"{"sourcePosition": {"fileName": "\u009b"}, "#
                + #""description": "\u202e\udb40\udc41é", "severity": "WARNING"}"#)
    }

    @Test func valuesAreEscaped() {
        #expect(outcome("'\u{1B}\u{202E}\\u001b'") == "'\\u001b\\u202e\\u001b'")
    }

    private func isHidden(_ scalar: Unicode.Scalar) -> Bool {
        switch scalar.value {
        case 0..<0x20, 0x7F...0x9F, 0x61C, 0x200E...0x200F, 0x2028...0x202E, 0x2066...0x2069: true
        default: (0xE0000...0xE007F).contains(scalar.value)
        }
    }
}
