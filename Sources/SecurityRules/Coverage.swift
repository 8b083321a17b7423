/// Which values each expression of the conditions took, over many explanations, and how often.
public struct Coverage: Sendable {
    /// An expression of a condition or of a function.
    public struct Expression: Sendable {
        /// Where it stands in the source.
        public var range: Range<SourcePosition>
        /// What it came to, as `Explanation.Outcome` describes it, most frequent first.
        public var values: [(value: String, count: Int)]

        /// How often it was evaluated.
        public var count: Int { values.reduce(0) { $0 + $1.count } }
    }

    private let program: Program
    private var counts: [Range<SourcePosition>: [String: Int]] = [:]

    /// Coverage of a ruleset of which nothing was evaluated yet.
    public init(of ruleset: Ruleset) {
        program = ruleset.program
        for condition in program.allows.map(\.condition) + program.functions.map(\.result)
        where condition >= 0 {
            enlist(condition)
        }
        for function in program.functions {
            let bindings = function.bindings
            for place in bindings.start..<bindings.start + bindings.count {
                enlist(program.operands[Int(place)])
            }
        }
    }

    /// Counts what one request evaluated; the explanation must be of the same ruleset.
    public mutating func add(_ explanation: Explanation) {
        for block in explanation.blocks {
            for rule in block.rules { rule.condition.map { add($0) } }
        }
    }

    private mutating func add(_ step: Explanation.Step) {
        if step.kind != .literal {
            counts[step.range, default: [:]][step.outcome.description, default: 0] += 1
        }
        for part in step.parts { add(part) }
    }

    /// Every expression but literals, in source order, an expression before its parts.
    public var expressions: [Expression] {
        counts.map { range, values in
            let sorted = values.sorted {
                $0.value != $1.value ? $0.value > $1.value : $0.key < $1.key
            }
            return Expression(range: range, values: sorted.map { ($0.key, $0.value) })
        }.sorted {
            ($0.range.lowerBound.offset, -$0.range.upperBound.offset)
                < ($1.range.lowerBound.offset, -$1.range.upperBound.offset)
        }
    }

    // MARK: All there is

    private mutating func enlist(_ root: Int32) {
        var waiting = [root]
        while let node = waiting.popLast() {
            let operation = program.operations[Int(node)]
            if Explanation.Step.Kind(operation) == .literal { continue }
            let range = program.source.range(
                program.source.balanced(program.spans[Int(node)]))
            counts[range] = counts[range] ?? [:]
            waiting += parts(of: operation)
        }
    }

    private func parts(of operation: Operation) -> [Int32] {
        switch operation {
        case .constant, .folded, .pattern, .segment, .segmentBehindGlob, .glob, .local, .record,
            .undefined, .undefinedCall, .miscountedCall:
            []
        case .member(let node, _, _), .not(let node), .negate(let node), .isType(let node, _):
            [node]
        case .index(let a, let b), .binary(_, let a, let b): [a, b]
        case .slice(let a, let b, let c), .conditional(let a, let b, let c):
            [a, b, c].filter { $0 >= 0 }
        case .all(let list), .any(let list), .list(let list), .map(let list), .path(let list),
            .call(_, let list), .method(_, let list), .userCall(_, let list):
            (list.start..<list.start + list.count).map { program.operands[Int($0)] }
        }
    }
}

extension Coverage {
    /// How many expressions there are, and how many were evaluated at least once.
    public var totals: (expressions: Int, evaluated: Int) {
        (counts.count, counts.values.count { !$0.isEmpty })
    }

    /// The report as text: each expression with its place, its text and its values.
    public var text: String {
        let (all, evaluated) = totals
        var text = "\(program.source.fileName): \(evaluated) of \(all) expressions evaluated\n"
        let scalars = program.source.scalars
        for expression in expressions {
            let start = expression.range.lowerBound
            let values = expression.values.map { "\($0.value) ×\($0.count)" }.joined(
                separator: ", ")
            text += "\(start.line):\(start.column)  \(Self.line(scalars, expression.range))  → "
            text += values.isEmpty ? "never evaluated\n" : values + "\n"
        }
        return text
    }

    /// The source of an expression in one line.
    private static func line(_ scalars: [Unicode.Scalar], _ range: Range<SourcePosition>) -> String
    {
        var text = String.UnicodeScalarView()
        text.append(contentsOf: scalars[range.lowerBound.offset..<range.upperBound.offset])
        return String(text).split { $0.isWhitespace }.joined(separator: " ")
    }

    /// The report as one page of HTML that needs nothing else: the source, its expressions coloured by what they took,
    /// their values on hovering.
    public var html: String {
        let (all, evaluated) = totals
        let scalars = program.source.scalars
        var opens: [Int: [Expression]] = [:]
        var closes: [Int: Int] = [:]
        for expression in expressions {
            opens[expression.range.lowerBound.offset, default: []].append(expression)
            closes[expression.range.upperBound.offset, default: 0] += 1
        }
        var body = ""
        for offset in 0...scalars.count {
            body += String(repeating: "</span>", count: closes[offset] ?? 0)
            for expression in opens[offset] ?? [] { body += Self.tag(expression) }
            if offset < scalars.count { body += Self.escaped(String(scalars[offset])) }
        }
        return """
            <!doctype html>
            <html lang="en"><head><meta charset="utf-8"><title>\(Self.escaped(program.source.fileName))</title>
            <style>
            body { font: 15px/1.5 system-ui, sans-serif; margin: 2em; color: #1c1c1c; background: #fff }
            pre { font: 13px/1.6 ui-monospace, monospace }
            span { border-radius: 2px } span:hover { outline: 1px solid #888 }
            .never { background: #f9c9c5 } .always { background: #fbeeb4 } .both { background: #cdeccf }
            </style></head><body>
            <h1>\(Self.escaped(program.source.fileName))</h1>
            <p>\(evaluated) of \(all) expressions evaluated.
            <span class="both">several values</span> <span class="always">one value only</span>
            <span class="never">never evaluated</span></p>
            <pre>\(body)</pre>
            </body></html>

            """
    }

    private static func tag(_ expression: Expression) -> String {
        let kind =
            expression.values.isEmpty ? "never" : expression.values.count == 1 ? "always" : "both"
        let values = expression.values.map { "\($0.value) ×\($0.count)" }.joined(separator: "\n")
        return
            "<span class=\"\(kind)\" title=\"\(escaped(values.isEmpty ? "never evaluated" : values))\">"
    }

    private static func escaped(_ text: String) -> String {
        var result = ""
        for character in text.unicodeScalars {
            switch character {
            case "&": result += "&amp;"
            case "<": result += "&lt;"
            case ">": result += "&gt;"
            case "\"": result += "&quot;"
            default: result.unicodeScalars.append(character)
            }
        }
        return result
    }
}
