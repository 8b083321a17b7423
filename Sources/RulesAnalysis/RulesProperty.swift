import SecurityRules
import Wire

/// A statement about all requests, such as `get users/{uid}/** by other uid`: rules must never allow such a request.
///
/// It is translated to rules that allow exactly the requests that it is about, so its conditions mean what they mean in rules.
package struct RulesProperty: Sendable {
    /// The property as it was written, without white space at its ends.
    package let text: String
    /// Its place, such as `safety.txt:3`; nil for an argument.
    package let place: String?
    let rules: AnalyzedRules

    /// A property that can't be read.
    package struct Malformed: Error, CustomStringConvertible {
        package var description: String
    }

    /// The words behind `by`.
    private static let callers = "anybody, anonymous, signed-in, or other NAME"

    /// Parses a property: methods, then optionally a path, `by` a caller and `when` a condition.
    package init(_ text: String, place: String? = nil) throws(Malformed) {
        self.text = Self.trimmed(text)
        self.place = place
        var words = PropertyWords(self.text)
        let methods = try Self.methods(&words)
        var path = "{path=**}"
        var captures: [String] = []
        if let next = words.peek, next != "by", next != "when" {
            (path, captures) = try Self.path(words.next() ?? "")
        }
        var conditions: [String] = []
        if words.skip("by") { conditions.append(try Self.caller(&words, captures)) }
        if words.skip("when") {
            let condition = words.takeRest()
            guard !condition.isEmpty else { throw Malformed(description: "'when' needs a condition") }
            conditions.append("(\(condition)\n)")
        }
        guard words.rest.isEmpty else {
            throw Malformed(description: "'\(words.rest)' is too much: expected 'by CALLER' or 'when CONDITION'")
        }
        // Always true, but not a literal: for a literal the rules would be reported as open to everybody.
        let condition = (["request.path[0] == 'b'"] + conditions).joined(separator: " && ")
        let source = """
            rules_version = '2';
            service firebase.storage {
              match /b/{bucket}/o {
                match /\(path) { allow \(methods): if \(condition); }
              }
            }
            """
        rules = AnalyzedRules(try Self.load(source))
    }

    private static func load(_ source: String) throws(Malformed) -> Ruleset {
        do {
            let rules = try Ruleset.load(source: source, fileName: "property", lints: false)
            guard rules.resolved.statements.count == 1 else {
                throw Malformed(description: "the condition must be one expression")
            }
            if let warning = rules.diagnostics.first { throw Malformed(description: describe(warning)) }
            return rules
        } catch let error as RulesetError {
            throw Malformed(description: error.diagnostics.first.map(describe) ?? "it can't be read")
        } catch let error as Malformed {
            throw error
        } catch {
            throw Malformed(description: "\(error)")
        }
    }

    private static func describe(_ diagnostic: Diagnostic) -> String {
        diagnostic.message + (diagnostic.hint.map { " (\($0))" } ?? "")
    }

    /// Reads a file of properties: one on each line; `#` begins a comment.
    package static func read(_ text: String, fileName: String) throws(Malformed) -> [RulesProperty] {
        var properties: [RulesProperty] = []
        let lines = text.utf8.split(separator: UInt8(ascii: "\n"), omittingEmptySubsequences: false)
        for (index, line) in lines.enumerated() {
            let content = trimmed(String(line) ?? "")
            if content.isEmpty || content.utf8.first == UInt8(ascii: "#") { continue }
            do {
                properties.append(try RulesProperty(content, place: "\(fileName):\(index + 1)"))
            } catch {
                throw Malformed(description: "\(fileName):\(index + 1): error: \(error.description)")
            }
        }
        return properties
    }

    private static func trimmed(_ text: String) -> String {
        let bytes = Array(text.utf8)
        guard let start = bytes.firstIndex(where: { $0 > 0x20 }), let end = bytes.lastIndex(where: { $0 > 0x20 }) else {
            return ""
        }
        return String(decoding: bytes[start...end], as: UTF8.self)
    }

    // MARK: Parts

    private static let words = Method.allCases.map(\.name) + ["read", "write"]

    private static func methods(_ words: inout PropertyWords) throws(Malformed) -> String {
        var methods: [String] = []
        var isOpen = true
        while isOpen, let word = words.next() {
            // Both `get, list` and `get,list` are read.
            let names = word.utf8.split(separator: UInt8(ascii: ","), omittingEmptySubsequences: false).map {
                String($0) ?? ""
            }
            isOpen = names.last == "" || words.peek == ","
            for name in names where !name.isEmpty {
                guard Self.words.contains(name) else {
                    throw Malformed(
                        description: "'\(name)' is no method: expected \(Self.words.joined(separator: ", "))")
                }
                methods.append(name)
            }
        }
        guard !methods.isEmpty, !isOpen else {
            throw Malformed(description: "expected a method: \(Self.words.joined(separator: ", "))")
        }
        return methods.joined(separator: ", ")
    }

    /// Translates a path with `*`, `{name}` and `**` to a path of a match, and lists its names.
    private static func path(_ text: String) throws(Malformed) -> (path: String, captures: [String]) {
        var segments: [String] = []
        var captures: [String] = []
        let parts = text.utf8.split(separator: UInt8(ascii: "/"), omittingEmptySubsequences: false).map {
            String($0) ?? ""
        }
        for (index, part) in (parts.first == "" ? Array(parts.dropFirst()) : parts).enumerated() {
            switch part {
            case "": throw Malformed(description: "the path '\(text)' has an empty segment")
            case "*": segments.append("{any\(index)}")
            case "**": segments.append("{rest\(index)=**}")
            default:
                segments.append(part)
                if part.utf8.first == UInt8(ascii: "{"), part.utf8.last == UInt8(ascii: "}") {
                    let inner = part.utf8.dropFirst().dropLast().split(separator: UInt8(ascii: "=")).first
                    captures.append(inner.flatMap { String($0) } ?? "")
                }
            }
        }
        return (segments.joined(separator: "/"), captures)
    }

    private static func caller(_ words: inout PropertyWords, _ captures: [String]) throws(Malformed) -> String {
        switch words.next() {
        case "anybody": return "true"
        case "anonymous": return "request.auth == null"
        case "signed-in": return "request.auth != null"
        case "other":
            guard let name = words.next(), captures.contains(name) else {
                throw Malformed(description: "'other' needs the name of a segment, such as {uid} in the path")
            }
            return "(request.auth == null || request.auth.uid != \(name))"
        case let word: throw Malformed(description: "'\(word ?? "")' is no caller: expected \(callers)")
        }
    }
}

/// The words of a property.
private struct PropertyWords {
    private var bytes: ArraySlice<UInt8>

    init(_ text: String) { bytes = Array(text.utf8)[...] }

    /// What has not been read.
    var rest: String { String(decoding: bytes.drop { $0 <= 0x20 }, as: UTF8.self) }

    mutating func takeRest() -> String {
        defer { bytes = [] }
        return rest
    }

    var peek: String? {
        var copy = self
        return copy.next()
    }

    mutating func next() -> String? {
        bytes = bytes.drop { $0 <= 0x20 }
        guard !bytes.isEmpty else { return nil }
        let word = bytes.prefix { $0 > 0x20 }
        bytes = bytes.dropFirst(word.count)
        return String(decoding: word, as: UTF8.self)
    }

    mutating func skip(_ word: String) -> Bool {
        guard peek == word else { return false }
        _ = next()
        return true
    }
}
