/// What is wrong in one file, each finding as `file:line: what`. CONTRIBUTING.md says the rules in words.
enum Rules {
    static let maximumFileLines = 450
    static let maximumTestFileLines = 700
    static let maximumFunctionLines = 70
    static let maximumFolderFiles = 25

    // MARK: Length

    /// Functions, initializers and computed properties that are too long, from the declaration to the closing brace.
    static func longFunctions(_ file: SourceFile) -> [String] {
        functions(file).filter { $0.count > maximumFunctionLines }.map {
            "\(file.place($0.lowerBound)): \($0.count) lines, and may have \(maximumFunctionLines)"
        }
    }

    /// The lines of each function.
    static func functions(_ file: SourceFile) -> [Range<Int>] {
        file.code.indices.compactMap { index in
            let line = file.code[index]
            let begins = ["func ", "init", "subscript", "var "].contains { line.contains($0) }
            guard begins,
                line.contains(/(?:^|\s)(?:func\s|init[?!]?[(<]|deinit\b|subscript[(<])/)
                    || line.contains(/\bvar\s+\w+\s*:[^={]*\{\s*$/)
            else { return nil }
            return body(file, from: index)
        }
    }

    /// From a declaration's line to the end of its body; nil where it has none.
    private static func body(_ file: SourceFile, from start: Int) -> Range<Int>? {
        var parentheses = 0
        var braces = 0
        for index in start..<file.code.count {
            let line = file.code[index]
            if index > start, braces == 0, parentheses == 0,
                line.contains(/^\s*(?:func|var|let|init|static|case|@|public|private)\b/)
            {
                return nil
            }
            for character in line {
                switch character {
                case "(", "[": parentheses += 1
                case ")", "]": parentheses -= 1
                case "{" where parentheses == 0 || braces > 0: braces += 1
                case "}" where braces > 0:
                    braces -= 1
                    if braces == 0 { return start..<index + 1 }
                case "}" where parentheses == 0: return nil
                default: break
                }
            }
        }
        return nil
    }

    // MARK: What may be written

    /// Libraries leave standard output and standard error to the program.
    static func prints(_ file: SourceFile) -> [String] {
        let writing = /(?:^|[^.\w])(?:Swift\.)?(?:print|debugPrint|dump|puts|printf|fputs|perror)\(/
        let streams =
            /\b(?:stdout|stderr|STDOUT_FILENO|STDERR_FILENO|standardError|standardOutput)\b/
            // The default takes no boundary between a full stop and a letter.
            .wordBoundaryKind(.simple)
        return findings(file, "a library writes to no standard stream") {
            $0.contains(writing) || $0.contains(streams)
        }
    }

    /// What the compiler is told not to check is explained.
    static func unexplainedSafety(_ file: SourceFile) -> [String] {
        file.code.indices.filter { index in
            let line = file.code[index]
            return line.contains("@unchecked Sendable") || line.contains("nonisolated(unsafe)")
        }.filter { !file.comment(above: $0).contains("Safety: ") }.map {
            "\(file.place($0)): no 'Safety:' sentence in the comment above"
        }
    }

    /// Words that put work off.
    static func leftovers(path: String, text: String) -> [String] {
        let words = ["TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK"]
        return text.split(separator: "\n", omittingEmptySubsequences: false).enumerated().flatMap {
            index, line in
            words.filter { word in
                line.split { !$0.isLetter && !$0.isNumber && $0 != "_" }.contains(Substring(word))
            }.map { "\(path):\(index + 1): \($0) is left over" }
        }
    }

    // MARK: Documentation

    /// Public declarations, and cases and requirements of public types, without a doc comment. An initializer and an
    /// extension need none, nor does a witness: its protocol says what it does.
    static func undocumented(_ file: SourceFile, witnesses: Set<String> = []) -> [String] {
        let exempt = /\b(?:init[?!]?[(<]|extension\s|import\s)/
        var missing: [Int] = []
        for index in file.code.indices {
            let line = file.code[index]
            guard line.contains("public ") || line.contains("package ") else { continue }
            guard line.contains(/^\s*(?:@\w+(?:\([^)]*\))?\s+)*(?:public|package)\s/) else {
                continue
            }
            let isWitness = declaredName(line).map(witnesses.contains) ?? false
            if !isWitness, !line.contains(exempt), !file.isDocumented(index) {
                missing.append(index)
            }
            if line.contains(/\b(?:protocol|enum)\s/) {
                missing += undocumentedMembers(file, index)
            }
        }
        return missing.map { "\(file.place($0)): no doc comment" }
    }

    /// Cases of an enum, or requirements of a protocol, that begins at `start`: they are as public as their type.
    private static func undocumentedMembers(_ file: SourceFile, _ start: Int) -> [Int] {
        let isEnum = file.code[start].contains("enum ")
        let members =
            isEnum
            ? /^\s*(?:indirect )?case\b/
            : /^\s*(?:static )?(?:func|var|init|associatedtype|subscript)\b/
        var depth = 0
        var missing: [Int] = []
        for index in start..<file.code.count {
            let line = file.code[index]
            if depth == 1, index > start, line.contains(members), !file.isDocumented(index) {
                missing.append(index)
            }
            depth += line.count { $0 == "{" } - line.count { $0 == "}" }
            if depth == 0, line.contains("}") { break }
        }
        return missing
    }

    /// The names that public protocols of these files, and those of the libraries they use, require.
    static func requirements(_ files: [SourceFile]) -> Set<String> {
        var names: Set = [
            // The standard library.
            "description", "hash", "encode", "==", "<",
            // swift-log.
            "log", "metadataKey",
        ]
        for file in files {
            for index in file.code.indices
            where file.code[index].contains("public protocol ") {
                let end = body(file, from: index)?.upperBound ?? index
                names.formUnion(file.code[index + 1..<max(index + 1, end)].compactMap(declaredName))
            }
        }
        return names
    }

    /// The name of a function, property or subscript's first label that the line declares.
    private static func declaredName(_ line: String) -> String? {
        line.firstMatch(of: /\b(?:func|var|subscript)[ (](\w+|==|<)/).map { String($0.1) }
    }

    private static func findings(
        _ file: SourceFile, _ message: String, _ isBad: (String) -> Bool
    ) -> [String] {
        file.code.indices.filter { isBad(file.code[$0]) }.map { "\(file.place($0)): \(message)" }
    }
}
