import Wire

/// Writes terms as SMT-LIB 2. Each term that is used more than once is defined once.
struct SMTText {
    private let terms: Terms
    private var uses: [Int32: Int] = [:]
    private var names: [Int32: String] = [:]
    private var definitions = 0
    /// Keys: names of our own.
    private var functions: Set<String> = []
    private(set) var lines: [String] = []
    /// The variables, in the order of their declaration.
    private(set) var variables: [(name: String, sort: Sort)] = []

    init(_ terms: Terms) { self.terms = terms }

    /// Adds assertions that all hold.
    mutating func assert(_ formulas: [Term]) {
        for formula in formulas { count(formula) }
        for formula in formulas {
            let text = write(formula)
            lines.append("(assert \(text))")
        }
    }

    private mutating func count(_ term: Term) {
        uses[term.id, default: 0] += 1
        guard uses[term.id] == 1, case .apply(_, let operands) = terms[term] else { return }
        for operand in operands { count(operand) }
    }

    private mutating func write(_ term: Term) -> String {
        if let name = names[term.id] { return name }
        switch terms[term] {
        case .bool(let value): return value ? "true" : "false"
        case .int(let value): return Self.number(value)
        case .string(let value): return Self.literal(value)
        case .variable(let name, let sort):
            lines.append("(declare-const \(name) \(sort.rawValue))")
            variables.append((name, sort))
            names[term.id] = name
            return name
        case .apply(let operation, let operands):
            let parts = operands.map { write($0) }
            let text = "(\(symbol(operation, operands)) \(parts.joined(separator: " "))\(Self.suffix(operation)))"
            guard uses[term.id, default: 0] > 1 else { return text }
            // Numbered in order: equal formulas of different questions have equal texts.
            let name = "t\(definitions)"
            definitions += 1
            lines.append("(define-fun \(name) () \(terms.sort(term).rawValue) \(text))")
            names[term.id] = name
            return name
        }
    }

    private mutating func symbol(_ operation: TermOperator, _ operands: [Term]) -> String {
        switch operation {
        case .not: return "not"
        case .and: return "and"
        case .or: return "or"
        case .ifThenElse: return "ite"
        case .equal: return "="
        case .less: return "<"
        case .lessOrEqual: return "<="
        case .add: return "+"
        case .multiply: return "*"
        case .quotient: return "div"
        case .remainder: return "mod"
        case .concatenation: return "str.++"
        case .length: return "str.len"
        case .matches: return "str.in_re"
        case .function(let name, let sort):
            if functions.insert(name).inserted {
                let types = operands.map { terms.sort($0).rawValue }.joined(separator: " ")
                lines.append("(declare-fun \(name) (\(types)) \(sort.rawValue))")
            }
            return name
        }
    }

    private static func suffix(_ operation: TermOperator) -> String {
        if case .matches(let regex) = operation { " " + text(regex) } else { "" }
    }

    private static func number(_ value: Int128) -> String { value < 0 ? "(- \(value.magnitude))" : "\(value)" }

    // MARK: Strings

    static func literal(_ text: Characters) -> String { "\"" + text.scalars.map(escaped).joined() + "\"" }

    /// A character of a string literal. Backslashes and quotation marks are always escaped.
    private static func escaped(_ scalar: UInt32) -> String {
        let isPlain = (0x20...0x7E).contains(scalar) && scalar != 0x22 && scalar != 0x5C
        return isPlain ? String(Character(Unicode.Scalar(UInt8(scalar)))) : "\\u{\(String(scalar, radix: 16))}"
    }

    // MARK: Regular expressions

    private static func text(_ regex: Regex) -> String {
        switch regex {
        case .everything: return "re.all"
        case .set(let set):
            let ranges = set.ranges.compactMap { range -> String? in
                guard range.lowerBound <= CharacterSet.lastOfSolver else { return nil }
                let (low, high) = (range.lowerBound, min(range.upperBound, CharacterSet.lastOfSolver))
                if low == 0, high == CharacterSet.lastOfSolver { return "re.allchar" }
                if low == high { return "(str.to_re \"\(escaped(low))\")" }
                return "(re.range \"\(escaped(low))\" \"\(escaped(high))\")"
            }
            return join(ranges, "re.union", none: "re.none")
        case .alternatives(let parts): return join(parts.map(text), "re.union", none: "re.none")
        case .sequence(let parts): return join(literalsJoined(parts), "re.++", none: "(str.to_re \"\")")
        case .repetition(let part, let least, let most):
            let inner = text(part)
            switch (least, most) {
            case (0, nil): return "(re.* \(inner))"
            case (1, nil): return "(re.+ \(inner))"
            case (0, 1?): return "(re.opt \(inner))"
            case (_, nil): return "(re.++ ((_ re.loop \(least) \(least)) \(inner)) (re.* \(inner)))"
            case (_, let most?) where most < least: return "re.none"
            case (_, let most?): return "((_ re.loop \(least) \(most)) \(inner))"
            }
        }
    }

    /// The parts of a sequence, with neighbouring single characters as one literal.
    private static func literalsJoined(_ parts: [Regex]) -> [String] {
        var result: [String] = []
        var literal = ""
        for part in parts + [.everything] {
            if case .set(let set) = part, set.ranges.count == 1, set.ranges[0].count == 1,
                set.ranges[0].lowerBound <= CharacterSet.lastOfSolver
            {
                literal += escaped(set.ranges[0].lowerBound)
                continue
            }
            if !literal.isEmpty { result.append("(str.to_re \"\(literal)\")") }
            literal = ""
            result.append(text(part))
        }
        return result.dropLast()
    }

    private static func join(_ parts: [String], _ operation: String, none: String) -> String {
        parts.isEmpty ? none : parts.count == 1 ? parts[0] : "(\(operation) \(parts.joined(separator: " ")))"
    }
}
