import Testing

/// The rules on samples: each finds what it must and nothing else.
@Suite struct RulesTests {
    private func file(_ text: String) -> SourceFile {
        SourceFile(path: "Sources/Sample/Sample.swift", text: text)
    }

    @Test func blanksCommentsAndStrings() {
        let text = ##"""
            let a = "} // \(f("{") + "x") {" // {
            let b = #"\("# /* { /* } */ */ + 1
            let c = "\"{"
            """##
        let expected = ["let a =", "let b =                        + 1", "let c ="]
        #expect(file(text).code.map(trimmedEnd) == expected)
    }

    @Test func blanksStringsOfSeveralLines() {
        let quotes = "\"\"\""
        let text = "let a = \(quotes)\n  { \" }\n  \(quotes)\nlet b = 1"
        #expect(file(text).code.map(trimmedEnd) == ["let a =", "", "", "let b = 1"])
    }

    @Test func measuresFunctions() {
        let sample = file(
            """
            protocol P {
                func none() -> Int
                func nothing()
            }
            struct S {
                init(a: Int = { 3 }()) {
                    self.init(b: "}")
                }
                func two(
                    _ a: Int
                ) -> Int {
                    if a > 0 { return [1].map { $0 }[0] }
                    return 0
                }
                var three: Int {
                    3
                }
                let closure = {
                    4
                }
                deinit { free() }
            }
            """)
        #expect(Rules.functions(sample) == [5..<8, 8..<14, 14..<17, 20..<21])
    }

    @Test func findsLongFunctions() {
        let body = (0..<69).map { "    call(\($0))" }.joined(separator: "\n")
        #expect(
            Rules.longFunctions(file("func long() {\n\(body)\n}"))
                == ["Sources/Sample/Sample.swift:1: 71 lines, and may have 70"])
        let shorter = (0..<68).map { "    call(\($0))" }.joined(separator: "\n")
        #expect(Rules.longFunctions(file("func long() {\n\(shorter)\n}")).isEmpty)
    }

    @Test(arguments: [
        ("print(1)", true), ("    Swift.print(1)", true), ("setting.print(self)", false),
        ("let print: Int", false), ("fputs(text, stderr)", true), ("write(STDERR_FILENO)", true),
        ("// print(1)", false), ("\"print(1)\"", false),
        ("FileHandle.standardError", true),
    ])
    func findsPrints(_ line: String, _ isBad: Bool) {
        #expect(Rules.prints(file(line)).isEmpty != isBad)
    }

    @Test func requiresSafetySentences() {
        let sample = file(
            """
            /// A thing.
            ///
            /// Safety: one owner.
            final class A: B,
                @unchecked Sendable
            {
            }

            /// A thing.
            final class C: @unchecked Sendable {}
            nonisolated(unsafe) var bare = 0
            // Safety: written once.
            nonisolated(unsafe) var covered = 0
            """)
        #expect(
            Rules.unexplainedSafety(sample).map { $0.prefix { $0 != "'" } } == [
                "Sources/Sample/Sample.swift:10: no ", "Sources/Sample/Sample.swift:11: no ",
            ])
    }

    @Test func requiresDocumentation() {
        let sample = file(
            """
            /// Said.
            public struct A: CustomStringConvertible {
                public var said = 0
                public var said = 0

                public var absent = 0
                /// Said.
                @inlinable
                public func said() {}
                public init() {}
                public var description: String { "" }
                var own = 0
            }
            /// Said.
            public enum E {
                /// Said.
                case said
                case said, too

                case missing
                func f() { switch self { case .said: 1 } }
            }
            public protocol P {
                func missing()
            }
            extension A: P {
                package static func missing2() {}
                public func missing() {}
            }
            """)
        let lines = Rules.undocumented(sample, witnesses: Rules.requirements([sample])).compactMap {
            $0.split(separator: ":").dropFirst().first
        }
        #expect(lines == ["6", "20", "23", "24", "27"])
    }

    @Test func findsPostponedWork() {
        let word = "TO" + "DO"
        #expect(
            Rules.leftovers(path: "a", text: "x\n// \(word): y") == ["a:2: \(word) is left over"])
        #expect(Rules.leftovers(path: "a", text: "\(word)S \(word.lowercased())").isEmpty)
    }

    @Test func readsImports() {
        let sample = file(
            """
            import A
            @testable import B
            package import C
            import struct D.E
            // import F
            let important = 1
            """)
        #expect(sample.imports == ["A", "B", "C", "D"])
    }

    private func trimmedEnd(_ text: String) -> String {
        String(text.reversed().drop { $0 == " " }.reversed())
    }
}
