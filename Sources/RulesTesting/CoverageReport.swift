import SecurityRules

/// Which values the expressions of one file of rules took, for people.
package struct CoverageReport: Sendable {
    private static let maximumValues = 6
    private static let maximumLength = 80

    private var coverage: Coverage
    private let fileName: String
    private let source: [Unicode.Scalar]

    /// A report on rules of which nothing was evaluated yet.
    package init(_ rules: Ruleset, source: String) {
        coverage = Coverage(of: rules)
        fileName = rules.fileName
        self.source = Array(source.unicodeScalars)
    }

    /// Adds what a case evaluated.
    package mutating func add(_ result: TestResult) { coverage.add(result.explanation) }

    /// A line for each expression: its place, its text, and its values with how often each was taken.
    ///
    /// `request` alone is left out; of many values, and of long ones, only the beginning is shown.
    package var text: String {
        let (all, evaluated) = coverage.totals
        var text = "\(fileName): \(evaluated) of \(all) expressions evaluated\n"
        for expression in coverage.expressions {
            let source = source(of: expression)
            if expression.count > 0, source == "request" { continue }
            let start = expression.range.lowerBound
            text += "\(start.line):\(start.column)  \(Self.cut(source))  → "
            text += values(of: expression, most: Self.maximumValues).joined(separator: ", ") + "\n"
        }
        return text
    }

    /// One page of HTML that needs nothing else: the source in colours, and a table of all expressions with their values.
    package var page: String {
        let rows = coverage.expressions.map { expression in
            let start = expression.range.lowerBound
            let isTruth = expression.values.allSatisfy { ["true", "false"].contains($0.value) }
            let kind =
                expression.count == 0
                ? "never" : isTruth && expression.values.count == 1 ? "always" : ""
            let values = values(of: expression, most: .max).map { "<li>\(Self.escaped($0))</li>" }
            return "<tr class=\"\(kind)\"><td>\(start.line):\(start.column)</td>"
                + "<td><code>\(Self.escaped(source(of: expression)))</code></td>"
                + "<td>\(expression.count)</td><td><ul>\(values.joined())</ul></td></tr>"
        }
        let table = """
            <style>
            table { border-collapse: collapse } ul { margin: 0; padding: 0; list-style: none }
            td, th { text-align: left; vertical-align: top; padding: .2em .8em; border-top: 1px solid #ccc }
            </style>
            <h2>Expressions</h2>
            <table><thead><tr><th>Place</th><th>Expression</th><th>Evaluated</th><th>Values</th></tr></thead>
            <tbody>
            \(rows.joined(separator: "\n"))
            </tbody></table>
            </body>
            """
        return coverage.html.replacing("</body>", with: table)
    }

    /// The values with how often each was taken: all of them, or so many and cut.
    private func values(of expression: Coverage.Expression, most: Int) -> [String] {
        if expression.count == 0 { return ["never evaluated"] }
        let shown = expression.values.prefix(most).map { value, count in
            "\(most == .max ? value : Self.cut(value)) ×\(count)"
        }
        let rest = expression.values.count - shown.count
        return rest > 0 ? shown + ["and \(rest) more"] : shown
    }

    private func source(of expression: Coverage.Expression) -> String {
        var text = String.UnicodeScalarView()
        text.append(
            contentsOf: source[
                expression.range.lowerBound.offset..<expression.range.upperBound.offset])
        return String(text).split { $0.isWhitespace }.joined(separator: " ")
    }

    private static func cut(_ text: String) -> String {
        text.count <= maximumLength ? text : text.prefix(maximumLength - 1) + "…"
    }

    private static func escaped(_ text: String) -> String {
        text.replacing("&", with: "&amp;").replacing("<", with: "&lt;").replacing(">", with: "&gt;")
    }
}
