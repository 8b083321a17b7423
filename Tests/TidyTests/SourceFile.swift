import Foundation
import Testing

/// One Swift file, as it stands and with comments and strings blanked out.
struct SourceFile {
    /// From the top of the repository: `Sources/Gateway/Gateway.swift`.
    let path: String
    let lines: [String]
    /// ``lines`` with every character of a comment or string literal, interpolations included, as a space.
    let code: [String]

    init(path: String, text: String) {
        self.path = path
        lines = text.split(separator: "\n", omittingEmptySubsequences: false).map(String.init)
        code = blanked(Array(text.utf8)).split(separator: "\n", omittingEmptySubsequences: false)
            .map(String.init)
    }

    /// The target of `Sources/TARGET/…`.
    var target: String { String(path.split(separator: "/").dropFirst().first ?? "") }

    var name: String { String(path.split(separator: "/").last ?? "") }

    /// `file:line`, as an editor takes it; `index` counts from 0.
    func place(_ index: Int) -> String { "\(path):\(index + 1)" }

    /// The modules that the file imports.
    var imports: [String] {
        code.compactMap { line in
            guard line.contains("import ") else { return nil }
            return line.firstMatch(
                of:
                    /^\s*(?:@\w+\s+)?(?:public |package |internal |private )?import (?:(?:struct|class|enum|func|protocol|typealias|var|let) )?(\w+)/
            ).map { String($0.1) }
        }
    }

    /// Whether a doc comment covers the declaration: one right above it, or above the run of one-line declarations
    /// that it continues. The line that opens a type may begin such a run.
    func isDocumented(_ index: Int) -> Bool {
        let mayContinue = isOneLine(index)
        var index = index - 1
        while index >= 0 {
            if trimmed(index).hasPrefix("///") { return true }
            guard isAttribute(index) || mayContinue && (isOneLine(index) || opensType(index)) else {
                return false
            }
            index -= 1
        }
        return false
    }

    /// A stored property, or an enum's case.
    private func isOneLine(_ index: Int) -> Bool {
        let words = code[index].split(separator: " ").prefix { !$0.hasSuffix(":") }
        return !code[index].contains("{")
            && words.contains { ["var", "let", "case"].contains($0) }
    }

    private func opensType(_ index: Int) -> Bool {
        let words = code[index].split(separator: " ")
        return words.last == "{"
            && words.contains { ["struct", "class", "enum", "protocol"].contains($0) }
    }

    /// The comment above the declaration that the line is part of.
    func comment(above index: Int) -> String {
        var index = index - 1
        // A declaration may have begun on one of the lines above.
        while index >= 0, !trimmed(index).hasPrefix("//"), !trimmed(index).isEmpty,
            !code[index].contains("{"), !code[index].contains("}")
        {
            index -= 1
        }
        var comment: [String] = []
        while index >= 0, trimmed(index).hasPrefix("//") {
            comment.append(trimmed(index))
            index -= 1
        }
        return comment.reversed().joined(separator: "\n")
    }

    private func isAttribute(_ index: Int) -> Bool {
        trimmed(index).hasPrefix("@") || trimmed(index).hasPrefix("// swift-format-ignore")
    }

    func trimmed(_ index: Int) -> String { lines[index].trimmingCharacters(in: .whitespaces) }
}

/// The files below a folder of the repository whose names end in one of `suffixes`.
func files(below folder: String, suffixes: [String] = [".swift"]) throws -> [(String, String)] {
    let root = repository.appending(path: folder)
    guard let walk = FileManager.default.enumerator(atPath: root.path) else { return [] }
    return try walk.compactMap { $0 as? String }
        .filter { name in suffixes.contains { name.hasSuffix($0) } && !name.contains(".build") }
        .sorted()
        .map { name in
            let url = root.appending(path: name)
            return ("\(folder)/\(name)", try String(contentsOf: url, encoding: .utf8))
        }
}

/// The number of files directly in each folder of the repository. What `.gitignore` names does not count, and no hidden
/// file or folder except `.ci`.
func folderSizes() throws -> [String: Int] {
    let keys: [URLResourceKey] = [.isDirectoryKey]
    let root = try #require(
        FileManager.default.enumerator(at: repository, includingPropertiesForKeys: keys))
    let ignored: Set = ["__pycache__", "data", "Packages"]
    var sizes: [String: Int] = [:]
    for case let url as URL in root {
        let isFolder = try url.resourceValues(forKeys: Set(keys)).isDirectory == true
        let name = url.lastPathComponent
        if ignored.contains(name) || name.hasPrefix(".") && name != ".ci" {
            if isFolder { root.skipDescendants() }
        } else if !isFolder {
            let folder = url.deletingLastPathComponent().path
            sizes[String(folder.dropFirst(repository.path.count)), default: 0] += 1
        }
    }
    return sizes
}

/// The top of the repository.
let repository = URL(filePath: #filePath)
    .deletingLastPathComponent().deletingLastPathComponent().deletingLastPathComponent()

/// A text with comments and string literals as spaces; line ends stay.
func blanked(_ text: [UInt8]) -> String {
    var scanner = Blanker(text: text, result: text)
    scanner.code(until: nil)
    return String(decoding: scanner.result, as: UTF8.self)
}

/// Walks over Swift as far as telling code from comments and strings takes. Regex literals count as code.
private struct Blanker {
    let text: [UInt8]
    var result: [UInt8]
    var index = 0

    init(text: [UInt8], result: [UInt8]) {
        self.text = text
        self.result = result
    }

    private func at(_ expected: StaticString) -> Bool {
        guard index + expected.utf8CodeUnitCount <= text.count else { return false }
        for offset in 0..<expected.utf8CodeUnitCount
        where text[index + offset] != expected.utf8Start[offset] {
            return false
        }
        return true
    }

    /// Whether `hashes` number signs stand at `place`.
    private func hasHashes(_ hashes: Int, at place: Int) -> Bool {
        place + hashes <= text.count && text[place..<place + hashes].allSatisfy { $0 == 0x23 }
    }

    private mutating func blank(_ count: Int = 1) {
        for _ in 0..<count where index < text.count {
            if text[index] != 0x0a { result[index] = 0x20 }
            index += 1
        }
    }

    /// Goes on to `end` on the same depth of parentheses, or the end of the text.
    mutating func code(until end: UInt8?) {
        var depth = 0
        while index < text.count {
            switch text[index] {
            case UInt8(ascii: "/") where at("//"):
                while index < text.count, text[index] != 0x0a { blank() }
            case UInt8(ascii: "/") where at("/*"): blockComment()
            case UInt8(ascii: "\""): string()
            case UInt8(ascii: "#") where at("#\"") || at("##\""): string()
            case UInt8(ascii: ")") where depth == 0 && end != nil: return
            case UInt8(ascii: "("):
                depth += 1
                index += 1
            case UInt8(ascii: ")"):
                depth -= 1
                index += 1
            default: index += 1
            }
        }
    }

    private mutating func blockComment() {
        var depth = 0
        repeat {
            if at("/*") {
                depth += 1
                blank(2)
            } else if at("*/") {
                depth -= 1
                blank(2)
            } else {
                blank()
            }
        } while depth > 0 && index < text.count
    }

    private mutating func string() {
        let start = index
        let hashes = text[index...].prefix { $0 == 0x23 }.count
        blank(hashes)
        let quotes = at("\"\"\"") ? 3 : 1
        blank(quotes)
        while index < text.count {
            let isQuote = quotes == 3 ? at("\"\"\"") : at("\"")
            if isQuote, hasHashes(hashes, at: index + quotes) { break }
            if at("\\"), hasHashes(hashes, at: index + 1) {
                blank(1 + hashes)
                if at("(") {
                    blank()
                    code(until: UInt8(ascii: ")"))
                }
            }
            blank()
        }
        blank(quotes + hashes)
        for place in start..<min(index, text.count) where text[place] != 0x0a {
            result[place] = 0x20
        }
    }
}
