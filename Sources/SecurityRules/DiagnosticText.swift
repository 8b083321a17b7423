extension Diagnostic {
    /// The diagnostic as a compiler would print it: place and message, the line with a caret below, the hint.
    ///
    /// `source` is the text that was loaded; without it only the first line is given.
    public func rendered(source: String? = nil) -> String {
        let kind = severity == .error ? "error" : "warning"
        guard let range else { return "\(fileName): \(kind): \(message)\(hintLine(indent: "  "))" }
        let start = range.lowerBound
        var text = "\(fileName):\(start.line):\(start.column): \(kind): \(message)"
        if let source, let line = Self.line(start.line, of: source) {
            let number = String(start.line)
            let margin = String(repeating: " ", count: number.count)
            let isOneLine = range.upperBound.line == start.line
            let width = isOneLine ? max(1, range.upperBound.column - start.column) : 1
            let visible = line.unicodeScalars.count - start.column + 1
            let carets = String(repeating: "~", count: max(0, min(width, visible) - 1))
            let padding = line.unicodeScalars.prefix(start.column - 1).map {
                $0 == "\t" ? "\t" : " "
            }
            text += "\n \(number) | \(line)\n \(margin) | \(padding.joined())^\(carets)"
        }
        return text + hintLine(indent: "   ")
    }

    private func hintLine(indent: String) -> String { hint.map { "\n\(indent)hint: \($0)" } ?? "" }

    private static func line(_ number: Int, of source: String) -> String? {
        let text = SourceText(source, fileName: "")
        return number <= text.lineCount ? text.line(number) : nil
    }

    /// The diagnostic as the hosted service's JSON: `sourcePosition`, `description`, `severity`, and our `hint`.
    ///
    /// As there, `endOffset` is that of the last code point, not the one behind it.
    public var json: String {
        var writer = JSONText()
        writer.object {
            $0.field("sourcePosition") {
                $0.object {
                    $0.field("fileName") { $0.string(fileName) }
                    guard let range else { return }
                    let start = range.lowerBound
                    $0.field("line") { $0.raw("\(start.line)") }
                    $0.field("column") { $0.raw("\(start.column)") }
                    $0.field("currentOffset") { $0.raw("\(start.offset)") }
                    $0.field("endOffset") {
                        $0.raw("\(max(start.offset, range.upperBound.offset - 1))")
                    }
                }
            }
            $0.field("description") { $0.string(message) }
            $0.field("severity") { $0.string(severity.rawValue) }
            if let hint { $0.field("hint") { $0.string(hint) } }
        }
        return writer.text
    }
}

/// Writes JSON.
package struct JSONText {
    private(set) var text = ""
    private var needsComma = false

    mutating func raw(_ value: String) { text += value }

    mutating func string(_ value: String) {
        JSONText.quote(value, to: &text)
    }

    /// Adds a string in quotes, with what JSON or a terminal would take otherwise escaped.
    package static func quote(_ value: String, to text: inout String) {
        text += "\""
        for scalar in value.unicodeScalars {
            switch scalar {
            case "\"": text += "\\\""
            case "\\": text += "\\\\"
            case "\n": text += "\\n"
            case "\r": text += "\\r"
            case "\t": text += "\\t"
            case _ where scalar.value < 0x20 || scalar.value == 0x7F:
                let digits = String(scalar.value, radix: 16)
                text += "\\u" + String(repeating: "0", count: 4 - digits.count) + digits
            default: text.unicodeScalars.append(scalar)
            }
        }
        text += "\""
    }

    mutating func object(_ body: (inout JSONText) -> Void) { nested("{", "}", body) }

    mutating func array(_ body: (inout JSONText) -> Void) { nested("[", "]", body) }

    mutating func field(_ name: String, _ body: (inout JSONText) -> Void) {
        element {
            $0.string(name)
            $0.raw(": ")
            body(&$0)
        }
    }

    mutating func element(_ body: (inout JSONText) -> Void) {
        if needsComma { text += ", " }
        needsComma = false
        body(&self)
        needsComma = true
    }

    private mutating func nested(_ open: String, _ close: String, _ body: (inout JSONText) -> Void)
    {
        text += open
        needsComma = false
        body(&self)
        text += close
        needsComma = true
    }
}
