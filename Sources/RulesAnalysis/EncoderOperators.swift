import SecurityRules
import Wire

/// How numbers are compared, as in the engine: `==`; `in` and methods of lists; inside values; in sets and differences.
enum NumberRule {
    case outermost, element, strict, byValue

    var inside: NumberRule { self == .byValue ? .byValue : .strict }
    /// Whether an integer may equal a float.
    var mixes: Bool { self == .outermost || self == .byValue }
}

extension Encoder {
    func condition(_ term: Term) -> Outcome { Outcome(term, terms) }

    /// A value under a condition without which it is an error.
    func guarded(_ condition: Term, _ value: Symbol) -> Outcome {
        var outcome = Outcome()
        outcome.add(condition, value, terms)
        return outcome
    }

    func binary(_ operation: BinaryOperator, _ a: Symbol, _ b: Symbol) -> Outcome {
        switch operation {
        case .equal: condition(equal(a, b, .outermost))
        case .notEqual: condition(terms.not(equal(a, b, .outermost)))
        case .isIn: contains(b, a)
        case .less, .lessOrEqual, .greater, .greaterOrEqual: ordering(operation, a, b)
        case .add, .subtract, .multiply, .divide, .remainder: arithmetic(operation, a, b)
        }
    }

    // MARK: Equality

    /// Whether two values are equal.
    func equal(_ a: Symbol, _ b: Symbol, _ rule: NumberRule) -> Term {
        switch (a, b) {
        case (.null, .null): return terms.yes
        case (.bool(let a), .bool(let b)): return terms.bool(a == b)
        case (.int(let a), .int(let b)), (.string(let a), .string(let b)), (.timestamp(let a), .timestamp(let b)),
            (.duration(let a), .duration(let b)):
            return terms.equal(a, b)
        case (.float(let a), .float(let b)):
            let (a, b) = (Double(bitPattern: a), Double(bitPattern: b))
            return rule == .strict
                ? terms.bool(a.bitPattern == b.bitPattern && !a.isNaN)
                : terms.bool(a == b || (rule == .byValue && a.isNaN && b.isNaN))
        case (.int(let a), .float(let b)), (.float(let b), .int(let a)):
            guard rule.mixes else { return terms.no }
            let value = Double(bitPattern: b)
            guard value.magnitude < Self.exactDoubles else { break }
            return Int64(exactly: value).map { terms.equal(a, terms.int($0)) } ?? terms.no
        case (.int, .opaque("float", _)), (.opaque("float", _), .int):
            if !rule.mixes { return terms.no }
            return opaqueEquality(a, b, rule)
        case (.path(let a), .path(let b)): return equal(a, b)
        case (.list(let a), .list(let b)):
            guard a.count == b.count else { return terms.no }
            return terms.and(zip(a, b).map { equal($0, $1, rule.inside) })
        case (.map(let a), .map(let b)): return equal(a, b, rule)
        case (.inputMap(let map), .map(let fields)), (.map(let fields), .inputMap(let map)):
            return equal(map, fields, rule)
        case (.inputMap(let x), .inputMap(let y)):
            // Maps may contain each other's keys at any depth.
            guard x == y || max(inputs.maps[x].depth, inputs.maps[y].depth) <= Self.maximumDepth else { break }
            return equal(maps: x, y, rule.inside)
        default: break
        }
        let isMixed = [a.type, b.type].allSatisfy { $0 == "int" || $0 == "float" } && rule.mixes
        guard a.type == b.type || isMixed else { return terms.no }
        return opaqueEquality(a, b, rule)
    }

    /// The largest depth of maps that are compared by their keys.
    private static var maximumDepth: Int { 2 }

    /// Integers below this are exact as doubles.
    static var exactDoubles: Double { 9_007_199_254_740_992 }

    private func opaqueEquality(_ a: Symbol, _ b: Symbol, _ rule: NumberRule) -> Term {
        let isEqual = unknown(
            "equality \(rule)", [a, b], "bool", "the equality of two values of type \(a.type)", mayFail: false)
        return isEqual.isBool(true, terms)
    }

    /// Whether two results, neither of which is an error, are equal.
    func equal(_ a: Outcome, _ b: Outcome, _ rule: NumberRule) -> Term {
        terms.or(
            a.cases.flatMap { x in
                b.cases.map { y in
                    let both = terms.and(x.guardTerm, y.guardTerm)
                    return both == terms.no ? both : terms.and(both, equal(x.value, y.value, rule))
                }
            })
    }

    private func equal(_ a: SymbolicPath, _ b: SymbolicPath) -> Term {
        if a == b { return terms.yes }
        if a.middle == nil, b.middle == nil {
            guard a.front.count == b.front.count else { return terms.no }
            return terms.and(zip(a.front, b.front).map { terms.equal($0, $1) })
        }
        // The middle of a path has at least one segment.
        for (long, exact) in [(a, b), (b, a)] where long.middle != nil && exact.middle == nil {
            if exact.front.count <= long.front.count + long.back.count { return terms.no }
        }
        return opaqueEquality(.path(a), .path(b), .outermost)
    }

    private func equal(_ a: [MapField], _ b: [MapField], _ rule: NumberRule) -> Term {
        guard a.count == b.count else { return terms.no }
        return terms.and(
            a.map { field in
                b.first { $0.key == field.key }.map { equal(field.value, $0.value, rule.inside) } ?? terms.no
            })
    }

    // MARK: Membership

    private func contains(_ container: Symbol, _ value: Symbol) -> Outcome {
        switch container {
        case .list(let elements): return condition(isMember(value, of: elements, .element))
        case .set(let elements): return condition(isMember(value, of: elements, .byValue))
        case .inputList(let list): return condition(inputs.isMember(list, value))
        case .keys(let map):
            guard case .string(let term) = value else { return condition(terms.no) }
            return condition(hasKey(map, term))
        case .inputMap(let map):
            guard case .string(let term) = value else { return .failure }
            return condition(hasKey(map, term))
        case .map(let fields):
            guard case .string(let term) = value else { return .failure }
            return condition(terms.or(fields.map { terms.equal(term, terms.string($0.key)) }))
        case .differenceKeys(let kind, let newer, let older):
            guard case .string(let term) = value, let key = terms.text(term) else {
                return unknown("in", [value, container], "bool", mayFail: false)
            }
            return condition(isDifferent(kind, newer, older, key))
        case .request, .incoming, .existing:
            guard case .string(let term) = value else { return .failure }
            guard let key = terms.text(term) else { return unknown("in", [value, container], "bool") }
            return condition(member(container, key).isValue(terms))
        case .opaque("list", _), .opaque("set", _), .opaque("map", _):
            return unknown("in", [value, container], "bool")
        default: return .failure
        }
    }

    func isMember(_ value: Symbol, of elements: [Outcome], _ rule: NumberRule) -> Term {
        terms.or(
            elements.flatMap { element in
                element.cases.map { terms.and($0.guardTerm, equal($0.value, value, rule)) }
            })
    }

    /// Whether a map of the request has a key.
    private func hasKey(_ map: Int, _ key: Term) -> Term {
        if let text = terms.text(key) { return inputs.field(map, text).present }
        return inputs.computedField(map, key).present
    }

    // MARK: Ordering

    private func ordering(_ operation: BinaryOperator, _ a: Symbol, _ b: Symbol) -> Outcome {
        switch (a, b) {
        case (.int(let a), .int(let b)), (.timestamp(let a), .timestamp(let b)), (.duration(let a), .duration(let b)):
            return condition(ordered(operation, a, b))
        case (.int(let a), .float(let b)): return ordered(operation, a, b)
        case (.float(let a), .int(let b)): return ordered(operation.mirrored, b, a)
        case (.float(let a), .float(let b)):
            let (a, b) = (Double(bitPattern: a), Double(bitPattern: b))
            switch operation {
            case .less: return condition(terms.bool(a < b))
            case .lessOrEqual: return condition(terms.bool(a <= b))
            case .greater: return condition(terms.bool(a > b))
            default: return condition(terms.bool(a >= b))
            }
        default:
            let numbers = ["int", "float"]
            let isOrdered =
                (numbers.contains(a.type) && numbers.contains(b.type))
                || (a.type == b.type && (a.type == "string" || a.type == "bytes"))
            guard isOrdered else { return .failure }
            return unknown(
                "order \(operation.rawValue)", [a, b], "bool", "the order of two values of type \(a.type)",
                mayFail: false)
        }
    }

    private func ordered(_ operation: BinaryOperator, _ a: Term, _ b: Term) -> Term {
        switch operation {
        case .less: terms.less(a, b)
        case .lessOrEqual: terms.lessOrEqual(a, b)
        case .greater: terms.less(b, a)
        default: terms.lessOrEqual(b, a)
        }
    }

    /// Compares an integer with a float. Where the float is exact as an integer's neighbour, rounding changes nothing.
    private func ordered(_ operation: BinaryOperator, _ a: Term, _ float: UInt64) -> Outcome {
        let value = Double(bitPattern: float)
        guard value.magnitude < Self.exactDoubles else {
            return unknown(
                "order \(operation.rawValue)", [.int(a), .float(float)], "bool", "a comparison with a large float",
                mayFail: false)
        }
        let (down, up) = (terms.int(Int64(value.rounded(.down))), terms.int(Int64(value.rounded(.up))))
        switch operation {
        case .less: return condition(terms.less(a, up))
        case .lessOrEqual: return condition(terms.lessOrEqual(a, down))
        case .greater: return condition(terms.less(down, a))
        default: return condition(terms.lessOrEqual(up, a))
        }
    }

    // MARK: Arithmetic

    func negate(_ a: Symbol) -> Outcome {
        switch a {
        case .int(let value):
            let negated = terms.multiply(value, by: -1)
            return guarded(inputs.isInteger(negated), .int(negated))
        case .float(let bits): return Outcome(.float((-Double(bitPattern: bits)).bitPattern), terms)
        case .opaque("float", _): return unknown("negation", [a], "float", mayFail: false)
        default: return .failure
        }
    }

    private func arithmetic(_ operation: BinaryOperator, _ a: Symbol, _ b: Symbol) -> Outcome {
        switch (a, b) {
        case (.int(let x), .int(let y)): return integers(operation, x, y)
        case (.string(let x), .string(let y)) where operation == .add:
            return Outcome(.string(terms.concatenate([x, y])), terms)
        case (.timestamp(let x), .duration(let y)) where operation == .add || operation == .subtract,
            (.duration(let y), .timestamp(let x)) where operation == .add:
            let sum = terms.add(x, operation == .add ? y : terms.multiply(y, by: -1))
            return guarded(inputs.timeRange(sum), .timestamp(sum))
        case (.timestamp(let x), .timestamp(let y)) where operation == .subtract:
            let difference = terms.add(x, terms.multiply(y, by: -1))
            return guarded(inputs.durationRange(difference), .duration(difference))
        case (.duration(let x), .duration(let y)) where operation == .add || operation == .subtract:
            let sum = terms.add(x, operation == .add ? y : terms.multiply(y, by: -1))
            return guarded(inputs.durationRange(sum), .duration(sum))
        default:
            let numbers = ["int", "float"]
            guard numbers.contains(a.type), numbers.contains(b.type) else { return .failure }
            if let x = number(a), let y = number(b), let result = Self.floats(operation, x, y) {
                return Outcome(.float(result.bitPattern), terms)
            }
            return unknown("\(operation.rawValue)", [a, b], "float", "arithmetic with floats", mayFail: false)
        }
    }

    private func number(_ symbol: Symbol) -> Double? {
        switch symbol {
        case .float(let bits): return Double(bitPattern: bits)
        case .int(let term):
            guard case .int(let value) = terms[term] else { return nil }
            return Double(Int64(value))
        default: return nil
        }
    }

    private static func floats(_ operation: BinaryOperator, _ a: Double, _ b: Double) -> Double? {
        switch operation {
        case .add: a + b
        case .subtract: a - b
        case .multiply: a * b
        case .divide: a / b
        case .remainder: a.isFinite && b.isFinite && b != 0 ? a.truncatingRemainder(dividingBy: b) : nil
        default: nil
        }
    }

    private func integers(_ operation: BinaryOperator, _ a: Term, _ b: Term) -> Outcome {
        let result: Term
        switch operation {
        case .add: result = terms.add(a, b)
        case .subtract: result = terms.add(a, terms.multiply(b, by: -1))
        case .multiply:
            if case .int(let factor) = terms[a] {
                result = terms.multiply(b, by: factor)
            } else if case .int(let factor) = terms[b] {
                result = terms.multiply(a, by: factor)
            } else {
                return unknown("multiplication", [.int(a), .int(b)], "int", "a product of two variables")
            }
        default:
            guard case .int(let divisor) = terms[b] else {
                return unknown("\(operation.rawValue)", [.int(a), .int(b)], "int", "a division by a variable")
            }
            if divisor == 0 { return .failure }
            result = operation == .divide ? truncatedQuotient(a, divisor) : truncatedRemainder(a, divisor)
        }
        return guarded(inputs.isInteger(result), .int(result))
    }

    /// Division that rounds toward zero.
    func truncatedQuotient(_ a: Term, _ divisor: Int128) -> Term {
        let positive = terms.divide(a, by: divisor, .quotient)
        let negative = terms.multiply(terms.divide(terms.multiply(a, by: -1), by: divisor, .quotient), by: -1)
        return terms.ifThenElse(terms.less(a, terms.int(0)), negative, positive)
    }

    func truncatedRemainder(_ a: Term, _ divisor: Int128) -> Term {
        let positive = terms.divide(a, by: divisor, .remainder)
        let negative = terms.multiply(terms.divide(terms.multiply(a, by: -1), by: divisor, .remainder), by: -1)
        return terms.ifThenElse(terms.less(a, terms.int(0)), negative, positive)
    }
}
