import Wire

extension Diagnostic {
    /// The maximum number of columns of the source excerpt. An ellipsis marks a truncated line.
    static let maximumColumns = 160
    /// The maximum number of characters of a message or hint, because both can quote the source.
    static let maximumMessage = 500

    /// Formats the diagnostic like a compiler: position and message, the source line with a caret below, and the hint.
    ///
    /// Control characters are escaped. At most 160 columns of the line and 500 characters of the message are shown.
    /// `source` is the loaded text; without it only the first line is returned. To format several diagnostics of one
    /// source, call `rendered(source:)` on the array, which scans the source only once.
    public func rendered(source: String? = nil) -> String {
        rendered(in: source.map { SourceText($0, fileName: "") })
    }

    fileprivate func rendered(in source: SourceText?) -> String {
        let kind = severity == .error ? "error" : "warning"
        let file = VisibleText.escaped(fileName)
        let message = Self.shown(message)
        guard let range else { return "\(file): \(kind): \(message)\(hintLine(indent: "  "))" }
        let start = range.lowerBound
        var text = "\(file):\(start.line):\(start.column): \(kind): \(message)"
        if let excerpt = source?.excerpt(of: range, columns: Self.maximumColumns) {
            let number = String(start.line)
            let margin = String(repeating: " ", count: number.count)
            text += "\n \(number) | \(excerpt.line)\n \(margin) | \(excerpt.marks)"
        }
        return text + hintLine(indent: "   ")
    }

    private func hintLine(indent: String) -> String {
        hint.map { "\n\(indent)hint: \(Self.shown($0))" } ?? ""
    }

    private static func shown(_ text: String) -> String {
        let scalars = text.unicodeScalars
        let isLong = scalars.count > maximumMessage
        return VisibleText.escaped(String(scalars.prefix(maximumMessage))) + (isLong ? "…" : "")
    }
}

extension [Diagnostic] {
    /// Formats each diagnostic like `Diagnostic.rendered(source:)`. The time grows with the size of the source plus the
    /// number of diagnostics, not with their product.
    public func rendered(source: String) -> [String] {
        let text = SourceText(source, fileName: "")
        return map { $0.rendered(in: text) }
    }
}

extension SourceText {
    /// A source line and the marks to print below it.
    fileprivate struct Excerpt {
        var line = ""
        /// Spaces up to the range, a caret, and tildes to the end of the range.
        var marks = ""
    }

    /// The line where a range begins, truncated around the range; nil if the line does not exist.
    fileprivate func excerpt(of range: Range<SourcePosition>, columns: Int) -> Excerpt? {
        let start = range.lowerBound
        guard start.line <= lineCount else { return nil }
        let before = start.column - 1
        let skipped = before <= columns * 3 / 4 ? 0 : before - columns / 2
        let lineStart = start.offset - before
        let window = scalars(from: lineStart + skipped, most: columns, within: lineBytes(start.line))
        var excerpt = Excerpt(line: skipped > 0 ? "…" : "", marks: skipped > 0 ? " " : "")
        let isOneLine = range.upperBound.line == start.line
        let width = isOneLine ? Swift.max(1, range.upperBound.column - start.column) : 1
        for (index, scalar) in window.scalars.enumerated() {
            let shown = scalar == "\t" ? "\t" : VisibleText.escaped(String(scalar))
            excerpt.line += shown
            let column = skipped + index
            let length = shown.unicodeScalars.count
            if column < before {
                excerpt.marks += scalar == "\t" ? "\t" : String(repeating: " ", count: length)
            } else if column < before + width {
                let tildes = column == before ? length - 1 : length
                excerpt.marks += (column == before ? "^" : "") + String(repeating: "~", count: tildes)
            }
        }
        if window.scalars.count <= before - skipped { excerpt.marks += "^" }
        if window.isCut { excerpt.line += "…" }
        return excerpt
    }
}

extension Diagnostic {
    /// The diagnostic as the hosted service's JSON: `sourcePosition`, `description`, `severity`, and our `hint`.
    public var json: String {
        var members: [(String, JSON)] = [
            ("sourcePosition", JSON(fileName, range)), ("description", .string(message)),
            ("severity", .string(severity.rawValue)),
        ]
        if let hint { members.append(("hint", .string(hint))) }
        return JSON.object(members).text
    }
}
