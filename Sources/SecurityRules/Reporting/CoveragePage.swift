import Wire

extension Coverage {
    /// The report as a self-contained HTML page: the source with line numbers, with allow statements and expressions
    /// coloured by their values. Hovering shows the values. The page fits narrow windows and has light and dark
    /// colours.
    public var html: String {
        let file = Self.escaped(program.source.fileName)
        let rules = statementTotals
        let (all, evaluated) = totals
        return """
            <!doctype html>
            <html lang="en"><head><meta charset="utf-8">
            <meta name="viewport" content="width=device-width, initial-scale=1">
            <title>\(file)</title>
            <style>
            \(Self.style)
            </style></head><body>
            <h1>\(file)</h1>
            <table class="totals">
            <tr><th>Expressions</th><td>\(all)</td></tr>
            <tr><th>evaluated</th><td>\(evaluated)</td></tr>
            <tr><th>never evaluated</th><td>\(all - evaluated)</td></tr>
            <tr><th>Allow statements</th><td>\(rules.all)</td></tr>
            <tr><th>several outcomes</th><td>\(rules.several)</td></tr>
            <tr><th>one outcome only</th><td>\(rules.constant)</td></tr>
            <tr><th>never asked</th><td>\(rules.never)</td></tr>
            </table>
            <p><span class="both">several values</span> <span class="always">one value only</span>
            <span class="never">never evaluated</span></p>
            <div class="source">
            \(sourceLines)</div>
            </body></html>

            """
    }

    private static let style = """
        :root { color-scheme: light dark; --text: #1c1c1c; --page: #fff; --faint: #6b6b6b; --rule: #ccc;
          --never: #f9c9c5; --always: #fbeeb4; --both: #cdeccf }
        @media (prefers-color-scheme: dark) {
          :root { --text: #e8e8e8; --page: #161616; --faint: #9a9a9a; --rule: #444;
            --never: #6b2320; --always: #5a4a10; --both: #1f4a26 }
        }
        body { font: 15px/1.5 system-ui, sans-serif; margin: 2em; color: var(--text); background: var(--page) }
        h1, td, th { overflow-wrap: anywhere }
        .source { font: 13px/1.6 ui-monospace, monospace; margin: 1em 0 }
        .line { display: grid; grid-template-columns: 3.5em minmax(0, 1fr) }
        .line a { color: var(--faint); text-align: right; padding-right: 1em; text-decoration: none; user-select: none }
        .line code { font: inherit; white-space: pre-wrap; overflow-wrap: anywhere }
        .line:target { outline: 1px solid var(--faint) }
        span { border-radius: 2px } span:hover { outline: 1px solid var(--faint) }
        .never { background: var(--never) } .always { background: var(--always) } .both { background: var(--both) }
        table { border-collapse: collapse } ul { margin: 0; padding: 0; list-style: none }
        td, th { text-align: left; vertical-align: top; padding: .2em .8em; border-top: 1px solid var(--rule) }
        @media (max-width: 40em) {
          body { margin: 1em .6em }
          .line { grid-template-columns: 2.6em minmax(0, 1fr) } .line a { padding-right: .6em }
          .values thead { display: none } .values td { display: block; border: 0; padding: 0 .4em }
          .values tr { display: block; padding: .4em 0; border-top: 1px solid var(--rule) }
        }
        """

    /// A highlighted range: its end offset and its opening tag.
    private typealias Mark = (end: Int, tag: String)

    /// The numbered lines of the source. A mark that spans several lines is closed and reopened on each.
    private var sourceLines: String {
        var marks: [Int: [Mark]] = [:]
        for statement in statements {
            marks[statement.head.lowerBound.offset, default: []].append(
                (statement.head.upperBound.offset, Self.tag(statement.values)))
        }
        for expression in expressions {
            marks[expression.range.lowerBound.offset, default: []].append(
                (expression.range.upperBound.offset, Self.tag(expression.values)))
        }
        var (text, number) = ("", 1)
        var open: [Mark] = []
        func begin() {
            text += "<div class=\"line\" id=\"L\(number)\"><a href=\"#L\(number)\">\(number)</a><code>"
            for mark in open { text += mark.tag }
        }
        func end() {
            text += String(repeating: "</span>", count: open.count) + "</code></div>\n"
        }
        begin()
        for (offset, scalar) in program.source.scalars.enumerated() {
            while let last = open.last, last.end <= offset {
                text += "</span>"
                open.removeLast()
            }
            for mark in marks[offset] ?? [] {
                text += mark.tag
                open.append(mark)
            }
            guard scalar == "\n" else {
                text += scalar == "\r" ? "" : Self.escaped(String(scalar))
                continue
            }
            end()
            number += 1
            begin()
        }
        end()
        return text
    }

    private static func tag(_ values: [(value: String, count: Int)]) -> String {
        let kind = values.isEmpty ? "never" : values.count == 1 ? "always" : "both"
        let shown = values.map { escaped("\($0.value) ×\($0.count)") }.joined(separator: "&#10;")
        return "<span class=\"\(kind)\" title=\"\(values.isEmpty ? "never evaluated" : shown)\">"
    }

    /// Escapes text for HTML. Hidden characters except tabs become visible escapes.
    package static func escaped(_ text: String) -> String {
        var result = ""
        for scalar in text.unicodeScalars {
            switch scalar {
            case "&": result += "&amp;"
            case "<": result += "&lt;"
            case ">": result += "&gt;"
            case "\"": result += "&quot;"
            case "\t": result += "\t"
            case _ where VisibleText.isHidden(scalar): result += VisibleText.escape(scalar)
            default: result.unicodeScalars.append(scalar)
            }
        }
        return result
    }
}
