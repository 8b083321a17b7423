import SecurityRules
import Wire

extension ExampleRequest {
    /// The request on one line: the method, the object, the caller, and the inputs that matter.
    package var text: String {
        let object = segments.isEmpty ? "the whole bucket" : VisibleText.escaped(name)
        return "\(method.name) \(object)   \(inputs.joined(separator: ", "))"
    }

    private var inputs: [String] {
        var inputs: [String] = []
        if let uid {
            inputs.append("auth.uid = \(Value.string(uid).text)")
            inputs += Self.texts(token.map { ("auth.token.\($0.key.text)", $0.value) })
        } else {
            inputs.append("anonymous")
        }
        if bucket != "b" { inputs.append("bucket = \(Value.string(bucket).text)") }
        if let incoming { inputs += Self.texts(incoming, prefix: "") }
        if let existing {
            let note = method == .create ? ["an object is stored"] : []
            let isPlain = existing == [.size: .int(1)]
            inputs += note + (isPlain ? [] : Self.texts(existing, prefix: "resource."))
        } else if method == .update || method == .get || method == .delete {
            inputs.append("no object is stored")
        }
        inputs += Self.texts(parameters.map { ("params.\($0.key.text)", $0.value) })
        if time != Self.defaultTime { inputs.append("time = \(time)") }
        for (path, lookup) in documents.sorted(by: { $0.key.description < $1.key.description }) {
            let name = String(path.description.dropFirst("/databases/(default)/documents".utf8.count))
            switch lookup {
            case .absent: inputs.append("no document \(VisibleText.escaped(name))")
            case .failed: inputs.append("the document \(VisibleText.escaped(name)) can't be read")
            case .present(let fields):
                inputs.append("document \(VisibleText.escaped(name)) = \(Value.map(fields).text)")
            }
        }
        return inputs
    }

    private static func texts(_ properties: [ObjectField: Value], prefix: String) -> [String] {
        texts(
            properties.flatMap { field, value -> [(String, Value)] in
                guard field == .metadata, case .map(let fields) = value, !fields.isEmpty else {
                    return [(prefix + field.key, value)]
                }
                return fields.map { (prefix + "metadata.\($0.key.text)", $0.value) }
            })
    }

    private static func texts(_ values: [(String, Value)]) -> [String] {
        values.sorted { $0.0 < $1.0 }.map { "\(VisibleText.escaped($0.0)) = \($0.1.text)" }
    }
}

extension Value {
    /// The value in the syntax of the rules language.
    var text: String {
        switch self {
        case .null: return "null"
        case .bool(let value): return value ? "true" : "false"
        case .int(let value): return "\(value)"
        case .float(let value): return "\(value)"
        case .string(let text):
            var quoted = ""
            VisibleText.quote(text, in: "\"", to: &quoted)
            return quoted
        case .bytes(let bytes): return "\(bytes.count) bytes"
        case .list(let values): return "[" + values.map(\.text).joined(separator: ", ") + "]"
        case .map(let fields):
            let texts = fields.sorted { $0.key.text < $1.key.text }.map { key, value in
                "\(Value.string(key.text).text): \(value.text)"
            }
            return "{" + texts.joined(separator: ", ") + "}"
        case .path(let segments): return segments.map { "/" + VisibleText.escaped($0) }.joined()
        case .timestamp(let moment): return "\(moment)"
        case .duration(let span): return "\(span)"
        case .latlng(let latitude, let longitude): return "latlng(\(latitude), \(longitude))"
        }
    }
}

extension Obstacle {
    /// One line: the place, and why the analysis does not know more about it.
    package var text: String {
        switch self {
        case .limit(let limit): return "reached: \(limit)"
        case .approximation(let fileName, let position, let text, let reason):
            let words = text.utf8.split { $0 <= 0x20 }.compactMap { String($0) }.joined(separator: " ")
            let scalars = words.unicodeScalars
            let short = scalars.count > 60 ? String(String.UnicodeScalarView(scalars.prefix(59))) + "…" : words
            return "\(VisibleText.escaped(fileName)):\(position.line):\(position.column): "
                + "\(VisibleText.escaped(short)): \(VisibleText.escaped(reason))"
        }
    }
}

extension RulesDiff {
    /// The result in words. Every line ends with a line feed.
    ///
    /// - Parameters:
    ///   - old, new: The names of the files.
    ///   - explains: Whether to say why a question was not decided.
    package func text(_ old: String, _ new: String, explains: Bool) -> String {
        let (old, new) = (VisibleText.escaped(old), VisibleText.escaped(new))
        var text = ""
        for change in opened.changes { text += change.text("allows what \(old) denies") }
        for change in closed.changes { text += change.text("allowed what \(new) denies") }
        for open in opened.open { text += open.text("allows more than \(old)", explains) }
        for open in closed.open { text += open.text("allowed more than \(new)", explains) }
        text += "\(changedStatements) of \(statements) statements changed. "
        text += opened.summary("Newly allowed") + " " + closed.summary("Newly denied") + "\n"
        return text
    }
}

extension RulesDiff.Change {
    fileprivate func text(_ what: String) -> String {
        let start = range.lowerBound
        return "\(VisibleText.escaped(fileName)):\(start.line):\(start.column) \(what), for example:\n"
            + examples.map { "  \($0.text)\n" }.joined()
    }
}

extension RulesDiff.Open {
    fileprivate func text(_ what: String, _ explains: Bool) -> String {
        let start = range.lowerBound
        let names = methods.map(\.name).joined(separator: ", ")
        return
            "\(VisibleText.escaped(fileName)):\(start.line):\(start.column) not decided whether it \(what), for \(names)\n"
            + (explains ? obstacles.map { "  \($0.text)\n" }.joined() : "")
    }
}

extension RulesDiff.Side {
    fileprivate func summary(_ what: String) -> String {
        let found = Method.allCases.filter { method in
            changes.contains { $0.examples.contains { $0.method == method } }
        }
        let undecided = Method.allCases.filter { method in
            !found.contains(method) && open.contains { $0.methods.contains(method) }
        }
        if provenMethods.count == Method.allCases.count { return "\(what): nothing (proven)." }
        func names(_ methods: [Method]) -> String { methods.map(\.name).joined(separator: ", ") }
        var parts: [String] = []
        if !found.isEmpty { parts.append(names(found)) }
        if !undecided.isEmpty { parts.append("not decided for \(names(undecided))") }
        if !provenMethods.isEmpty { parts.append("nothing for \(names(provenMethods)) (proven)") }
        return "\(what): \(parts.joined(separator: "; "))."
    }
}
