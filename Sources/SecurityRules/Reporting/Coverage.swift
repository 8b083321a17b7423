import Wire

/// Counts the values of each expression in the rules, over many explanations.
public struct Coverage: Sendable {
    /// An expression in a condition or in a function.
    public struct Expression: Sendable {
        /// Its location in the source.
        public var range: Range<SourcePosition>
        /// Its results with their counts, most frequent first. The text is `Explanation.Outcome`'s.
        public var values: [(value: String, count: Int)]

        /// The number of evaluations.
        public var count: Int { values.reduce(0) { $0 + $1.count } }
    }

    /// An allow statement. Constant and missing conditions are not counted as expressions, but here.
    public struct Statement: Sendable {
        /// From `allow` to the last method.
        public var head: Range<SourcePosition>
        /// The results of the condition, most frequent first; true if it has none.
        public var values: [(value: String, count: Int)]

        /// The number of evaluations.
        public var count: Int { values.reduce(0) { $0 + $1.count } }
    }

    let program: Program
    /// The outcomes of each statement, keyed by its start offset.
    private var outcomes: [Int: [BytewiseString: Int]] = [:]
    private var counts: [Range<SourcePosition>: [BytewiseString: Int]] = [:]

    /// Creates empty coverage of a ruleset.
    public init(of ruleset: Ruleset) {
        program = ruleset.program
        for condition in program.allows.map(\.condition) + program.functions.map(\.result) where condition >= 0 {
            enlist(condition)
        }
        for function in program.functions {
            let bindings = function.bindings
            for index in bindings.start..<bindings.start + bindings.count {
                enlist(program.operands[Int(index)])
            }
        }
    }

    /// Adds the evaluations of one request. The explanation must belong to the same ruleset.
    public mutating func add(_ explanation: Explanation) {
        for block in explanation.blocks {
            for rule in block.rules {
                let start = rule.range.lowerBound.offset
                outcomes[start, default: [:]][rule.outcome.description, default: 0] += 1
                rule.condition.map { add($0) }
            }
        }
    }

    private mutating func add(_ step: Explanation.Step) {
        if step.kind != .literal {
            counts[step.range, default: [:]][step.outcome.description, default: 0] += 1
        }
        for part in step.parts { add(part) }
    }

    /// All expressions except literals, in source order. An expression comes before its parts.
    public var expressions: [Expression] {
        counts.map { range, values in
            Expression(range: range, values: Self.sorted(values))
        }.sorted {
            ($0.range.lowerBound.offset, -$0.range.upperBound.offset)
                < ($1.range.lowerBound.offset, -$1.range.upperBound.offset)
        }
    }

    /// All allow statements, in source order.
    public var statements: [Statement] {
        program.allows.map { allow in
            let head = program.source.range(allow.headSpan)
            return Statement(head: head, values: Self.sorted(outcomes[head.lowerBound.offset] ?? [:]))
        }.sorted { $0.head.lowerBound < $1.head.lowerBound }
    }

    private static func sorted(_ values: [BytewiseString: Int]) -> [(value: String, count: Int)] {
        values.sorted { $0.value != $1.value ? $0.value > $1.value : $0.key < $1.key }.map { ($0.key.text, $0.value) }
    }

    // MARK: Collecting expressions

    private mutating func enlist(_ root: Int32) {
        var waiting = [root]
        while let node = waiting.popLast() {
            let operation = program.operations[Int(node)]
            if Explanation.Step.Kind(operation) == .literal { continue }
            let range = program.source.range(program.balancedSpan(of: node))
            counts[range] = counts[range] ?? [:]
            waiting += parts(of: operation)
        }
    }

    private func parts(of operation: Operation) -> [Int32] {
        switch operation {
        case .constant, .folded, .pattern, .segment, .segmentBehindGlob, .glob, .local, .record,
            .undefined, .undefinedCall, .miscountedCall:
            []
        case .member(let node, _, _), .not(let node), .negate(let node), .isType(let node, _): [node]
        case .index(let a, let b), .binary(_, let a, let b): [a, b]
        case .slice(let a, let b, let c), .conditional(let a, let b, let c): [a, b, c].filter { $0 >= 0 }
        case .all(let list), .any(let list), .list(let list), .map(let list), .path(let list), .call(_, let list),
            .method(_, let list), .userCall(_, let list):
            (list.start..<list.start + list.count).map { program.operands[Int($0)] }
        }
    }
}

extension Coverage {
    /// The number of expressions, and of those evaluated at least once.
    public var totals: (expressions: Int, evaluated: Int) {
        (counts.count, counts.values.count { !$0.isEmpty })
    }

    /// The number of allow statements: all, with several outcomes, with one, and never evaluated.
    public var statementTotals: (all: Int, several: Int, constant: Int, never: Int) {
        let statements = statements
        return (
            statements.count, statements.count { $0.values.count > 1 },
            statements.count { $0.values.count == 1 }, statements.count { $0.values.isEmpty }
        )
    }

    /// The totals, in two sentences.
    package var summary: String {
        let (all, evaluated) = totals
        let rules = statementTotals
        return "\(evaluated) of \(all) expressions evaluated. \(rules.all) allow statements: "
            + "\(rules.several) with several outcomes, \(rules.constant) with one only, "
            + "\(rules.never) never asked."
    }

    /// The source text of a range, on one line.
    package func line(_ range: Range<SourcePosition>) -> String {
        let (start, end) = (range.lowerBound.offset, range.upperBound.offset)
        var text = String.UnicodeScalarView()
        text.append(contentsOf: program.source.scalars[start..<end])
        return String(text).split { $0.isWhitespace }.joined(separator: " ")
    }

    /// The report as text: the totals, then each allow statement and expression with its position, text and values.
    public var text: String {
        var rows = statements.map { ($0.head, $0.values) } + expressions.map { ($0.range, $0.values) }
        rows.sort { $0.0.lowerBound < $1.0.lowerBound }
        var text = "\(VisibleText.escaped(program.source.fileName)): \(summary)\n"
        for (range, values) in rows {
            let shown = values.map { "\($0.value) ×\($0.count)" }.joined(separator: ", ")
            let line = "\(line(range))  → \(values.isEmpty ? "never evaluated" : shown)"
            text += "\(range.lowerBound.line):\(range.lowerBound.column)  "
            text += VisibleText.escaped(line) + "\n"
        }
        return text
    }
}
