import Wire

/// The types of terms.
enum Sort: String, Hashable, Sendable {
    case bool = "Bool"
    case int = "Int"
    case string = "String"
}

/// A formula, or a number or string in one: an index into ``Terms``. Equal terms have equal indices.
struct Term: Hashable, Sendable {
    let id: Int32
}

/// An operator of terms, with its meaning in SMT-LIB 2.
enum TermOperator: Hashable, Sendable {
    case not, and, or, ifThenElse
    case equal, less, lessOrEqual
    /// `quotient` and `remainder` are `div` and `mod`: the remainder is never negative.
    case add, multiply, quotient, remainder
    case concatenation, length
    case matches(Regex)
    /// A function about which nothing is known but that equal arguments have equal results.
    case function(String, Sort)
}

/// The terms of one question. Each is built once; formulas over literals are simplified.
final class Terms {
    enum Node: Hashable {
        case bool(Bool)
        case int(Int128)
        case string(Characters)
        case variable(String, Sort)
        case apply(TermOperator, [Term])
    }

    /// The largest number of terms of a question that is asked.
    private static let maximumTerms = 60_000

    private(set) var nodes: [Node] = []
    private(set) var sorts: [Sort] = []
    private var known: [Node: Term] = [:]
    let yes: Term
    let no: Term

    init() {
        (yes, no) = (Term(id: 0), Term(id: 1))
        _ = intern(.bool(true), .bool)
        _ = intern(.bool(false), .bool)
    }

    /// Whether the question has too many terms. Its formulas are then not complete.
    var isTooLarge: Bool { nodes.count > Self.maximumTerms }

    subscript(term: Term) -> Node { nodes[Int(term.id)] }

    func sort(_ term: Term) -> Sort { sorts[Int(term.id)] }

    private func intern(_ node: Node, _ sort: Sort) -> Term {
        if let term = known[node] { return term }
        let term = Term(id: Int32(nodes.count))
        nodes.append(node)
        sorts.append(sort)
        known[node] = term
        return term
    }

    // MARK: Literals and variables

    func bool(_ value: Bool) -> Term { value ? yes : no }
    func int(_ value: some BinaryInteger) -> Term { intern(.int(Int128(value)), .int) }
    func string(_ value: Characters) -> Term { intern(.string(value), .string) }
    func variable(_ name: String, _ sort: Sort) -> Term { intern(.variable(name, sort), sort) }

    private func int(_ term: Term) -> Int128? { if case .int(let value) = self[term] { value } else { nil } }
    func text(_ term: Term) -> Characters? { if case .string(let value) = self[term] { value } else { nil } }

    // MARK: Logic

    func not(_ a: Term) -> Term {
        switch self[a] {
        case .bool(let value): bool(!value)
        case .apply(.not, let operands): operands[0]
        default: intern(.apply(.not, [a]), .bool)
        }
    }

    func and(_ operands: [Term]) -> Term { chain(operands, .and, neutral: yes, absorbing: no) }
    func or(_ operands: [Term]) -> Term { chain(operands, .or, neutral: no, absorbing: yes) }
    func and(_ operands: Term...) -> Term { and(operands) }
    func or(_ operands: Term...) -> Term { or(operands) }
    func implies(_ a: Term, _ b: Term) -> Term { or(not(a), b) }

    private func chain(_ operands: [Term], _ operation: TermOperator, neutral: Term, absorbing: Term) -> Term {
        var seen: Set<Term> = []
        var flat: [Term] = []
        func add(_ term: Term) -> Bool {
            if term == neutral || seen.contains(term) { return true }
            if term == absorbing || seen.contains(not(term)) { return false }
            if case .apply(operation, let parts) = self[term] { return parts.allSatisfy(add) }
            seen.insert(term)
            flat.append(term)
            return true
        }
        guard operands.allSatisfy(add) else { return absorbing }
        if flat.isEmpty { return neutral }
        return flat.count == 1 ? flat[0] : intern(.apply(operation, flat), .bool)
    }

    func ifThenElse(_ condition: Term, _ a: Term, _ b: Term) -> Term {
        if condition == yes || a == b { return a }
        if condition == no { return b }
        return intern(.apply(.ifThenElse, [condition, a, b]), sort(a))
    }

    // MARK: Comparisons

    func equal(_ a: Term, _ b: Term) -> Term {
        if a == b { return yes }
        if a.id > b.id { return equal(b, a) }
        switch (self[a], self[b]) {
        case (.int, .int), (.string, .string): return no
        case (.bool(let value), _): return value ? b : not(b)
        case (_, .bool(let value)): return value ? a : not(a)
        case (.apply(.function(let name, _), let operands), .string(let text)),
            (.string(let text), .apply(.function(let name, _), let operands)):
            guard let mapping = LetterCase(rawValue: name) else { break }
            return matches(operands[0], .literal(text), after: mapping)
        case (.apply(.concatenation, let parts), .string(let text)),
            (.string(let text), .apply(.concatenation, let parts)):
            if let simpler = equal(parts, text) { return simpler }
        default: break
        }
        return intern(.apply(.equal, [a, b]), .bool)
    }

    /// Strips literals at both ends of a concatenation that is compared with a literal.
    private func equal(_ parts: [Term], _ text: Characters) -> Term? {
        var (parts, text) = (parts[...], text.scalars[...])
        while let first = parts.first, let literal = self.text(first)?.scalars {
            guard text.starts(with: literal) else { return no }
            text = text.dropFirst(literal.count)
            parts.removeFirst()
        }
        while let last = parts.last, let literal = self.text(last)?.scalars {
            guard text.suffix(literal.count).elementsEqual(literal) else { return no }
            text = text.dropLast(literal.count)
            parts.removeLast()
        }
        guard parts.count < 2 else { return nil }
        return parts.first.map { equal($0, string(Characters(Array(text)))) } ?? bool(text.isEmpty)
    }

    func less(_ a: Term, _ b: Term) -> Term {
        if let x = int(a), let y = int(b) { return bool(x < y) }
        return a == b ? no : intern(.apply(.less, [a, b]), .bool)
    }

    func lessOrEqual(_ a: Term, _ b: Term) -> Term { not(less(b, a)) }

    // MARK: Numbers

    func add(_ a: Term, _ b: Term) -> Term {
        if let x = int(a), let y = int(b) { return int(x + y) }
        return intern(.apply(.add, [a, b]), .int)
    }

    func sum(_ terms: [Term]) -> Term { terms.reduce(int(0)) { int($0) == 0 ? $1 : add($0, $1) } }

    func multiply(_ a: Term, by factor: Int128) -> Term {
        if let x = int(a), !x.multipliedReportingOverflow(by: factor).overflow { return int(x * factor) }
        return intern(.apply(.multiply, [int(factor), a]), .int)
    }

    /// Euclidean division.
    func divide(_ a: Term, by divisor: Int128, _ operation: TermOperator) -> Term {
        intern(.apply(operation, [a, int(divisor)]), .int)
    }

    // MARK: Strings

    func concatenate(_ terms: [Term]) -> Term {
        var parts: [Term] = []
        for term in terms {
            if case .apply(.concatenation, let inner) = self[term] { parts += inner } else { parts.append(term) }
        }
        var joined: [Term] = []
        for part in parts {
            if let text = text(part)?.scalars {
                if text.isEmpty { continue }
                if let last = joined.last, let before = self.text(last)?.scalars {
                    joined[joined.count - 1] = string(Characters(before + text))
                    continue
                }
            }
            joined.append(part)
        }
        if joined.count < 2 { return joined.first ?? string(Characters("")) }
        return intern(.apply(.concatenation, joined), .string)
    }

    /// The number of characters, which Z3 counts in code points.
    func length(_ a: Term) -> Term {
        if let text = text(a) { return int(text.scalars.count) }
        return intern(.apply(.length, [a]), .int)
    }

    /// Whether a string matches as a whole.
    func matches(_ a: Term, _ regex: Regex) -> Term {
        if let text = text(a) { return bool(regex.matches(text.scalars)) }
        if case .apply(.function(let name, _), let operands) = self[a], let mapping = LetterCase(rawValue: name) {
            return matches(operands[0], regex, after: mapping)
        }
        switch regex {
        case .set(let set) where set.ranges.isEmpty: return no
        case .everything: return yes
        default: return intern(.apply(.matches(regex), [a]), .bool)
        }
    }

    private func matches(_ a: Term, _ regex: Regex, after mapping: LetterCase) -> Term {
        matches(a, regex.before(mapping))
    }

    /// A string with its ASCII letters in one case.
    func mapped(_ a: Term, to letterCase: LetterCase) -> Term {
        if let text = text(a) { return string(Characters(text.scalars.map(letterCase.apply))) }
        return function(letterCase.rawValue, [a], .string)
    }

    func function(_ name: String, _ operands: [Term], _ sort: Sort) -> Term {
        intern(.apply(.function(name, sort), operands), sort)
    }
}

/// A string as code points. Two are equal only if their code points are.
struct Characters: Hashable, Sendable {
    var scalars: [UInt32]

    init(_ scalars: [UInt32]) { self.scalars = scalars }
    init(_ text: String) { scalars = text.unicodeScalars.map(\.value) }

    /// The string; code points that are not characters become U+FFFD.
    var text: String {
        var text = ""
        text.unicodeScalars.append(contentsOf: scalars.map { Unicode.Scalar($0) ?? "\u{FFFD}" })
        return text
    }
}

/// `lower()` and `upper()`, which change ASCII letters alone.
enum LetterCase: String {
    case lower, upper

    func apply(_ scalar: UInt32) -> UInt32 {
        switch self {
        case .lower: (0x41...0x5A).contains(scalar) ? scalar + 32 : scalar
        case .upper: (0x61...0x7A).contains(scalar) ? scalar - 32 : scalar
        }
    }
}
