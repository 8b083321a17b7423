import Glibc
import Wire

/// Operators on numbers.
enum Arithmetic {
    /// Integer arithmetic; nil for overflow, division by zero and comparisons.
    static func integer(_ operation: BinaryOperator, _ a: Int64, _ b: Int64) -> Int64? {
        let (value, overflow): (Int64, Bool)
        switch operation {
        case .add: (value, overflow) = a.addingReportingOverflow(b)
        case .subtract: (value, overflow) = a.subtractingReportingOverflow(b)
        case .multiply: (value, overflow) = a.multipliedReportingOverflow(by: b)
        case .divide where b != 0: (value, overflow) = a.dividedReportingOverflow(by: b)
        case .remainder where b != 0: (value, overflow) = a.remainderReportingOverflow(dividingBy: b)
        default: return nil
        }
        return overflow ? nil : value
    }

    /// Float arithmetic as in IEEE 754: x/0.0 is infinite or not a number.
    static func float(_ operation: BinaryOperator, _ a: Double, _ b: Double) -> Double? {
        switch operation {
        case .add: a + b
        case .subtract: a - b
        case .multiply: a * b
        case .divide: a / b
        case .remainder: fmod(a, b)
        default: nil
        }
    }

    static func compare<Value: Comparable>(_ operation: BinaryOperator, _ a: Value, _ b: Value)
        -> Bool
    {
        switch operation {
        case .less: a < b
        case .lessOrEqual: a <= b
        case .greater: a > b
        default: a >= b
        }
    }

    /// Compares bytes lexicographically.
    static func compare(_ operation: BinaryOperator, _ a: [UInt8], _ b: [UInt8]) -> Bool {
        switch operation {
        case .less: a.lexicographicallyPrecedes(b)
        case .lessOrEqual: !b.lexicographicallyPrecedes(a)
        case .greater: b.lexicographicallyPrecedes(a)
        default: !a.lexicographicallyPrecedes(b)
        }
    }
}

extension Evaluator {
    // MARK: Binary operators

    /// Evaluates both operands, the last first. If both fail, the first's error counts, for `in` the container's.
    mutating func binary(
        _ node: Int32, _ operation: BinaryOperator, _ left: Int32, _ right: Int32
    ) -> Datum {
        let b = evaluate(right)
        let a = evaluate(left)
        if case .failure = a {
            if operation == .isIn, case .failure = b { return b }
            return a
        }
        if case .failure = b { return b }
        switch (a, b) {
        case (.unknown(let x), .unknown(let y)): return .unknown(Unknown(bits: x.bits.union(y.bits), mayFail: true))
        case (.unknown(let x), _), (_, .unknown(let x)):
            if x.bits == .time, let known = throughout(node, operation, (left, a), (right, b)) {
                return known
            }
            let isEquality = operation == .equal || operation == .notEqual
            return .unknown(Unknown(bits: x.bits, mayFail: x.mayFail || !isEquality))
        default: break
        }
        switch operation {
        case .equal: return equality(node, a, b, isEqual: true)
        case .notEqual: return equality(node, a, b, isEqual: false)
        case .isIn: return membership(node, a, b)
        case .less, .lessOrEqual, .greater, .greaterOrEqual: return ordering(node, operation, a, b)
        case .add, .subtract, .multiply, .divide, .remainder: return arithmetic(node, operation, a, b)
        }
    }

    /// Compares `request.time`, if it is a period, with a timestamp. The result is nil if it is not the same during the
    /// whole period, and for all other operands. A comparison changes at most once, so equal results at both ends imply
    /// the same result between them.
    private mutating func throughout(
        _ node: Int32, _ operation: BinaryOperator, _ left: (node: Int32, value: Datum),
        _ right: (node: Int32, value: Datum)
    ) -> Datum? {
        guard [.less, .lessOrEqual, .greater, .greaterOrEqual].contains(operation), let last = context.request.lastTime
        else { return nil }
        let ends = [Datum.timestamp(context.request.time), .timestamp(last)].map { end in
            switch (left.value, right.value) {
            case (.unknown, .timestamp) where isTime(left.node): ordering(node, operation, end, right.value)
            case (.timestamp, .unknown) where isTime(right.node): ordering(node, operation, left.value, end)
            default: Datum.null
            }
        }
        guard case (.bool(let first), .bool(let second)) = (ends[0], ends[1]), first == second else { return nil }
        return ends[0]
    }

    /// Whether a node is `request.time` itself.
    private func isTime(_ node: Int32) -> Bool {
        guard case .member(let object, _, let code) = program.operations[Int(node)],
            code.request == .time, case .record(.request) = program.operations[Int(object)]
        else { return false }
        return true
    }

    private mutating func equality(_ node: Int32, _ a: Datum, _ b: Datum, isEqual: Bool) -> Datum {
        switch (a, b) {
        case (.record, .null), (.null, .record): return .bool(!isEqual)
        case (.int(let a), .int(let b)): return .bool((a == b) == isEqual)
        default:
            let (x, y) = (context.whole(a), context.whole(b))
            if case .unknown = x { return x }
            if case .unknown = y { return y }
            return measured(node) { context, work in
                .bool(context.equal(x, y, .outermost, &work) == isEqual)
            }
        }
    }

    private mutating func membership(_ node: Int32, _ value: Datum, _ container: Datum) -> Datum {
        switch container {
        case .list(let elements), .set(let elements):
            let value = context.whole(value)
            if case .unknown = value { return value }
            var rule = NumberRule.element
            if case .set = container { rule = .byValue }
            return measured(node) { context, work in
                .bool(context.contains(elements, value, rule, &work))
            }
        case .map, .record:
            guard case .string(let key) = value else {
                return fail(
                    node,
                    "Unsupported operation error. Received: map.in(\(value.typeName)). " + "Expected: map.in(string).")
            }
            return charge(node, cost(key: key)) ?? .bool(context.entry(container, key, FieldCode(key)) != nil)
        case .null: return fail(node, "Null value error.")
        default: return fail(node, "Function not found error: Name: [in].")
        }
    }

    mutating func unsupported(
        _ node: Int32, _ sign: String, _ a: Datum, _ b: Datum, _ expected: String
    ) -> Datum {
        fail(
            node,
            "Unsupported operation error. Received: \(a.typeName) \(sign) \(b.typeName). " + "Expected: \(expected).")
    }

    private mutating func ordering(
        _ node: Int32, _ operation: BinaryOperator, _ a: Datum, _ b: Datum
    ) -> Datum {
        switch (a, b) {
        case (.int(let a), .int(let b)): return .bool(Arithmetic.compare(operation, a, b))
        case (.float(let a), .float(let b)): return .bool(Arithmetic.compare(operation, a, b))
        case (.int(let a), .float(let b)): return .bool(Arithmetic.compare(operation, Double(a), b))
        case (.float(let a), .int(let b)): return .bool(Arithmetic.compare(operation, a, Double(b)))
        case (.string(let a), .string(let b)):
            return charge(node, cost(min(a.count, b.count))) ?? .bool(Arithmetic.compare(operation, a, b))
        case (.bytes(let a), .bytes(let b)):
            return charge(node, cost(min(a.count, b.count))) ?? .bool(Arithmetic.compare(operation, a, b))
        case (.timestamp(let a), .timestamp(let b)): return .bool(Arithmetic.compare(operation, a, b))
        case (.duration(let a), .duration(let b)): return .bool(Arithmetic.compare(operation, a, b))
        default:
            let sign = operation.rawValue
            let type = ["float", "string", "bytes", "timestamp", "duration"].first { $0 == a.typeName } ?? "int"
            return unsupported(node, sign, a, b, "\(type) \(sign) \(type)")
        }
    }

    private mutating func arithmetic(
        _ node: Int32, _ operation: BinaryOperator, _ a: Datum, _ b: Datum
    ) -> Datum {
        var result: Double?
        switch (a, b) {
        case (.int(let a), .int(let b)):
            if let value = Arithmetic.integer(operation, a, b) { return .int(value) }
            let divides = operation == .divide || operation == .remainder
            return fail(node, divides && b == 0 ? "Divide by zero error." : "Integer overflow error.")
        case (.float(let a), .float(let b)): result = Arithmetic.float(operation, a, b)
        case (.int(let a), .float(let b)): result = Arithmetic.float(operation, Double(a), b)
        case (.float(let a), .int(let b)): result = Arithmetic.float(operation, a, Double(b))
        case (.string(let a), .string(let b)) where operation == .add:
            guard a.count + b.count <= EvaluationLimits.size else { return tooLarge(node) }
            return charge(node, cost(a.count + b.count)) ?? .string(a + b)
        case (.timestamp, .duration), (.duration, .timestamp), (.timestamp, .timestamp),
            (.duration, .duration):
            if let value = time(operation, a, b) {
                return value ?? fail(node, "Timestamp or duration is out of range.")
            }
        default: break
        }
        if let result { return .float(result) }
        let sign = operation.rawValue
        let type =
            ["float", "string"].first { $0 == a.typeName && (sign == "+" || $0 == "float") }
            ?? "int"
        return unsupported(node, sign, a, b, "\(type) \(sign) \(type)")
    }

    /// Adds or subtracts times. The outer nil means that the operation does not exist, the inner nil that it overflows.
    private func time(_ operation: BinaryOperator, _ a: Datum, _ b: Datum) -> Datum?? {
        switch (operation, a, b) {
        case (.add, .timestamp(let moment), .duration(let span)),
            (.add, .duration(let span), .timestamp(let moment)):
            return .some(moment.advanced(by: span).map(Datum.timestamp))
        case (.subtract, .timestamp(let moment), .duration(let span)):
            return .some(span.negated.flatMap { moment.advanced(by: $0) }.map(Datum.timestamp))
        case (.subtract, .timestamp(let a), .timestamp(let b)): return .some(a.distance(from: b).map(Datum.duration))
        case (.add, .duration(let a), .duration(let b)): return .some((a + b).map(Datum.duration))
        case (.subtract, .duration(let a), .duration(let b)):
            return .some(b.negated.flatMap { a + $0 }.map(Datum.duration))
        default: return nil
        }
    }

    mutating func tooLarge(_ node: Int32) -> Datum {
        fail(
            node,
            "Unable to evaluate the expression as a value would take more than "
                + "\(EvaluationLimits.size) bytes or elements.")
    }

    // MARK: Unary operators and types

    mutating func not(_ node: Int32, _ value: Datum) -> Datum {
        switch value {
        case .bool(let value): return .bool(!value)
        case .unknown(let unknown): return .unknown(Unknown(bits: unknown.bits, mayFail: true))
        case .failure: return value
        case .null: return fail(node, "Null value error.")
        default:
            return fail(
                node, "Unsupported operation error. Received: !\(value.typeName). Expected: !bool.")
        }
    }

    mutating func negate(_ node: Int32, _ value: Datum) -> Datum {
        switch value {
        case .int(.min): return fail(node, "Integer overflow error.")
        case .int(let value): return .int(-value)
        case .float(let value): return .float(-value)
        case .unknown(let unknown): return .unknown(Unknown(bits: unknown.bits, mayFail: true))
        case .failure: return value
        case .null: return fail(node, "Null value error.")
        default:
            return fail(
                node, "Unsupported operation error. Received: -\(value.typeName). Expected: -int.")
        }
    }

    func isType(_ value: Datum, _ type: TypeName) -> Datum {
        guard let actual = value.type else { return value }
        if type == .number { return .bool(actual == .int || actual == .float) }
        return .bool(actual == type)
    }
}
