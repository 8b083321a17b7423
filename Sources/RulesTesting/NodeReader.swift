import SecurityRules
import Wire
import YAML

/// All errors in a test suite or in an argument.
package struct SuiteError: Error, CustomStringConvertible {
    /// One sentence for each error, with its location.
    package var findings: [String]

    /// One line for each error: `file:line:column: error: sentence`.
    package var description: String { findings.joined(separator: "\n") }
}

/// Converts nodes to values and collects errors.
struct NodeReader {
    /// The maximum number of errors that are collected.
    private static let maximumFindings = 50

    let fileName: String
    private(set) var findings: [String] = []

    init(fileName: String) { self.fileName = fileName }

    mutating func fail(_ message: String, _ mark: Mark?) {
        guard findings.count < Self.maximumFindings else { return }
        let location = mark.map { ":\($0.line):\($0.column)" } ?? ""
        findings.append(VisibleText.escaped("\(fileName)\(location): error: \(message)"))
    }

    /// The members of a mapping by key. A key that is not `known` is an error.
    mutating func members(_ node: Node, _ what: String, known: [String]) -> [BytewiseString: Node]? {
        guard let pairs = node.mapping else {
            fail("\(what) must be a mapping", node.mark)
            return nil
        }
        var members: [BytewiseString: Node] = [:]
        for (key, value) in pairs {
            guard let scalar = key.scalar else {
                fail("a key of \(what) must be a text", key.mark)
                continue
            }
            if known.contains(scalar.string) {
                members[scalar.string] = value
            } else {
                let near = Ruleset.suggestion(for: scalar.string, among: known)
                let hint =
                    near.map { "did you mean '\($0)'?" }
                    ?? "known are \(known.joined(separator: ", "))"
                fail("\(what) has no '\(scalar.string)'; \(hint)", scalar.mark)
            }
        }
        return members
    }

    /// All members of a mapping, in order.
    mutating func entries(_ node: Node, _ what: String) -> [(key: Node.Scalar, value: Node)] {
        guard let pairs = node.mapping else {
            fail("\(what) must be a mapping", node.mark)
            return []
        }
        return pairs.compactMap { key, value in
            key.scalar.map { ($0, value) }
        }
    }

    mutating func string(_ node: Node, _ what: String) -> String? {
        guard let scalar = node.scalar, !node.isNull else {
            fail("\(what) must be a text", node.mark)
            return nil
        }
        return scalar.string
    }

    /// Reads one of several words.
    mutating func word(_ node: Node, _ what: String, of words: [String]) -> String? {
        guard let word = node.scalar?.string, words.contains(word) else {
            let near = node.scalar.flatMap { Ruleset.suggestion(for: $0.string, among: words) }
            let hint = near.map { "; did you mean '\($0)'?" } ?? ""
            fail("\(what) must be one of \(words.joined(separator: ", "))\(hint)", node.mark)
            return nil
        }
        return word
    }

    // MARK: Values of the language

    /// Converts a node to a value. Whole numbers become integers and other numbers floats, as in claims and documents.
    ///
    /// With `isTyped`, unquoted RFC 3339 times become timestamps, and mappings like `{doubleValue: 1}` their type.
    mutating func value(_ node: Node, isTyped: Bool) -> Value {
        switch node {
        case .scalar(let scalar): return scalar.isPlain ? plain(scalar.string, isTyped) : .string(scalar.string)
        case .sequence(let nodes, _): return .list(nodes.map { value($0, isTyped: isTyped) })
        case .mapping(let pairs, _):
            if isTyped, pairs.count == 1, let key = pairs[0].key.scalar?.string, let value = typed(key, pairs[0].value)
            {
                return value
            }
            return .map(map(node, isTyped: isTyped))
        }
    }

    /// The members of a mapping as values.
    mutating func map(_ node: Node, isTyped: Bool) -> [BytewiseString: Value] {
        var map: [BytewiseString: Value] = [:]
        for (key, value) in entries(node, "this") {
            map[key.string] = self.value(value, isTyped: isTyped)
        }
        return map
    }

    private func plain(_ text: String, _ isTyped: Bool) -> Value {
        switch text {
        case "", "~", "null", "Null", "NULL": return .null
        case "true", "True", "TRUE": return .bool(true)
        case "false", "False", "FALSE": return .bool(false)
        default: break
        }
        if let number = Int64(text) { return .int(number) }
        if text.utf8.allSatisfy({ Self.numberBytes.contains($0) }), let number = Double(text) {
            return Value(number: number)
        }
        if isTyped, let moment = Timestamp(rfc3339: text) { return .timestamp(moment) }
        return .string(text)
    }

    private static let numberBytes = Set("0123456789+-.eE".utf8)

    /// Values that JSON has no notation for, with the type names of the Firestore protocol.
    private mutating func typed(_ key: String, _ node: Node) -> Value? {
        switch key {
        case "doubleValue":
            guard let number = node.scalar.flatMap({ Double($0.string) }) else {
                fail("doubleValue must be a number", node.mark)
                return .null
            }
            return .float(number)
        case "timestampValue": return time(node, "timestampValue").map(Value.timestamp) ?? .null
        case "referenceValue":
            guard let path = string(node, "referenceValue") else { return .null }
            return .path(path.split(separator: "/").map(String.init))
        case "geoPointValue":
            let members = self.members(node, "geoPointValue", known: ["latitude", "longitude"])
            let degrees = ["latitude", "longitude"].map { name in
                members?[name]?.scalar.flatMap { Double($0.string) } ?? 0
            }
            return .latlng(latitude: degrees[0], longitude: degrees[1])
        default: return nil
        }
    }

    /// Reads a time: RFC 3339, seconds since 1970, or `{seconds, nanos}`.
    mutating func time(_ node: Node, _ what: String) -> Timestamp? {
        let found: Timestamp?
        if let scalar = node.scalar {
            found =
                Timestamp(rfc3339: scalar.string)
                ?? Int64(scalar.string).flatMap { Timestamp(seconds: $0) }
        } else {
            let members = self.members(node, what, known: ["seconds", "nanos"]) ?? [:]
            let seconds = members["seconds"]?.scalar.flatMap { Int64($0.string) }
            let nanoseconds = members["nanos"].map { $0.scalar.flatMap { Int32($0.string) } } ?? 0
            found = seconds.flatMap { seconds in
                nanoseconds.flatMap { Timestamp(seconds: seconds, nanoseconds: $0) }
            }
        }
        if found == nil {
            fail(
                "\(what) must be a time such as 2026-05-01T12:00:00Z, or {seconds, nanos}",
                node.mark)
        }
        return found
    }
}

extension Node {
    /// Whether the node is null.
    var isNull: Bool {
        guard let scalar else { return false }
        return scalar.isPlain && ["", "~", "null", "Null", "NULL"].contains(scalar.string)
    }

    /// Reads a text as JSON if it is an object or array, otherwise as YAML.
    static func read(_ text: String, fileName: String) throws(SuiteError) -> Node {
        do throws(YAMLError) {
            let isJSON = fileName.hasSuffix(".json")
            let start = text.unicodeScalars.first {
                !$0.properties.isWhitespace && $0 != "\u{FEFF}"
            }
            if isJSON { return try loadJSON(text) }
            if start == "{" || start == "[", let node = try? loadJSON(text) { return node }
            guard let node = try Node.load(text) else {
                throw YAMLError(message: "there is nothing in it", mark: nil)
            }
            return node
        } catch {
            var reader = NodeReader(fileName: fileName)
            reader.fail(error.message, error.mark)
            throw SuiteError(findings: reader.findings)
        }
    }
}
