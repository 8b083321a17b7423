import Foundation
import Testing

/// Text is compared by its bytes: `Sources/Wire/BytewiseText.swift` says why.
@Suite struct TextComparisonTests {
    /// Swift's own `==` and `<` of strings, as the compiler names them.
    private static let operators = ["$sSS2eeoiySbSS_SStFZ", "$sSS1loiySbSS_SStFZ"]

    #if DEBUG
        /// A file that compares strings imports Wire, which hides Swift's operators. Only the compiler knows which do, so
        /// the objects that it made are searched. Optimised objects hold the operators' bodies instead.
        @Test func noObjectUsesSwiftsOwnComparison() throws {
            let folder = URL(filePath: "/proc/self/exe").resolvingSymlinksInPath()
                .deletingLastPathComponent()
            var wrong: [String] = []
            var count = 0
            for (path, _) in try files(below: "Sources") {
                let parts = path.split(separator: "/")
                let object = folder.appending(path: "\(parts[1]).build/\(parts.last!).o")
                guard let code = try? Data(contentsOf: object) else { continue }
                count += 1
                if Self.operators.contains(where: { code.range(of: Data($0.utf8)) != nil }) {
                    wrong.append("\(path) compares strings and does not import Wire")
                }
            }
            #expect(count > 200, "the objects were not found")
            #expect(wrong.isEmpty, Comment(rawValue: wrong.joined(separator: "\n")))
        }
    #endif

    @Test func keysAreCompared() throws {
        let found = try sources().flatMap(Rules.textKeys)
        #expect(found.isEmpty, Comment(rawValue: found.joined(separator: "\n")))
    }

    @Test func lettersChangeCaseInASCII() throws {
        let found = try sources().flatMap(Rules.unicodeCase)
        #expect(found.isEmpty, Comment(rawValue: found.joined(separator: "\n")))
    }

    @Test func theRulesFindViolations() {
        let file = SourceFile(
            path: "Sources/X/x.swift",
            text: """
                let a: [String: Int] = [:]

                var b = Set<String>()

                /// Keys: names of our own.
                let c: [String: Int] = [:]

                let d: [BytewiseString: String] = [:]

                let e: Set = ["K"]
                let f = text.lowercased()
                let g = ASCII.lowercased(byte)
                """)
        #expect(Rules.textKeys(file).count == 3)
        #expect(Rules.unicodeCase(file).count == 1)
    }

    private func sources() throws -> [SourceFile] {
        try files(below: "Sources").map { SourceFile(path: $0.0, text: $0.1) }
    }
}

extension Rules {
    /// Dictionaries and sets keyed by `String`, which takes different bytes for one key. Text of our own may be a key: a
    /// comment `Keys:` above says so.
    fileprivate static func textKeys(_ file: SourceFile) -> [String] {
        let pattern = /\[String ?: |\bSet<String>|\bDictionary<String,/
        let literal = /: Set = \["/
        return file.code.indices.filter {
            (file.code[$0].contains(pattern) || file.lines[$0].contains(literal))
                && !file.comment(above: $0).contains("Keys: ")
        }.map { "\(file.place($0)): keyed by String; use BytewiseString" }
    }

    /// Changes of case beyond ASCII make "k" of U+212A.
    fileprivate static func unicodeCase(_ file: SourceFile) -> [String] {
        file.code.indices.filter { file.code[$0].contains(/\.(?:lower|upper)cased\(\)/) }
            .map { "\(file.place($0)): use asciiLowercased() or asciiUppercased()" }
    }
}
