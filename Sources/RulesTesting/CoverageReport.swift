import SecurityRules
import Wire

/// A readable report of the values that the expressions of one rules file had.
package struct CoverageReport: Sendable {
    private static let maximumValues = 6
    private static let maximumLength = 80

    private var coverage: Coverage
    private let fileName: String

    /// Creates a report on rules that have not been evaluated yet.
    package init(_ rules: Ruleset) {
        coverage = Coverage(of: rules)
        fileName = rules.fileName
    }

    /// Adds the evaluation of a case.
    package mutating func add(_ result: TestResult) { coverage.add(result.explanation) }

    /// An allow statement or an expression.
    private struct Row {
        var start: SourcePosition
        var source: String
        var values: [(value: String, count: Int)]

        var count: Int { values.reduce(0) { $0 + $1.count } }
    }

    private var rows: [Row] {
        let statements = coverage.statements.map { ($0.head, $0.values) }
        let rows = statements + coverage.expressions.map { ($0.range, $0.values) }
        return rows.map { range, values in
            Row(start: range.lowerBound, source: coverage.line(range), values: values)
        }.enumerated().sorted {
            ($0.element.start.offset, $0.offset) < ($1.element.start.offset, $1.offset)
        }.map(\.element)
    }

    /// The totals, then a line for each allow statement and expression: location, text, values with counts.
    ///
    /// The expression `request` is left out. Long lists of values and long values are cut.
    package var text: String {
        var text = "\(VisibleText.escaped(fileName)): \(coverage.summary)\n"
        for row in rows where row.count == 0 || row.source != "request" {
            let values = values(of: row, most: Self.maximumValues).joined(separator: ", ")
            text += "\(row.start.line):\(row.start.column)  "
            text += VisibleText.escaped("\(Self.cut(row.source))  → \(values)") + "\n"
        }
        return text
    }

    /// A self-contained HTML page: the coloured source, and a table of allow statements and expressions.
    package var page: String {
        let rows = rows.map { row in
            let isTruth = row.values.allSatisfy { ["true", "false"].contains($0.value) }
            let kind = row.count == 0 ? "never" : isTruth && row.values.count == 1 ? "always" : ""
            let values = values(of: row, most: .max).map { "<li>\(Coverage.escaped($0))</li>" }
            let line = row.start.line
            return "<tr class=\"\(kind)\"><td><a href=\"#L\(line)\">\(line):\(row.start.column)</a></td>"
                + "<td><code>\(Coverage.escaped(row.source))</code></td>"
                + "<td>\(row.count)</td><td><ul>\(values.joined())</ul></td></tr>"
        }
        let table = """
            <h2>Statements and expressions</h2>
            <table class="values"><thead><tr><th>Place</th><th>Source</th><th>Evaluated</th><th>Values</th></tr></thead>
            <tbody>
            \(rows.joined(separator: "\n"))
            </tbody></table>
            </body>
            """
        return coverage.html.replacing("</body>", with: table)
    }

    /// The values with their counts: all of them, or the first `most`, each cut to the maximum length.
    private func values(of row: Row, most: Int) -> [String] {
        if row.count == 0 { return ["never evaluated"] }
        let shown = row.values.prefix(most).map { value, count in "\(most == .max ? value : Self.cut(value)) ×\(count)"
        }
        let rest = row.values.count - shown.count
        return rest > 0 ? shown + ["and \(rest) more"] : shown
    }

    private static func cut(_ text: String) -> String {
        text.count <= maximumLength ? text : text.prefix(maximumLength - 1) + "…"
    }
}
