/// Finds out, without evaluating an expression, when it can be true or false and which inputs that needs.
///
/// The request's method and whether it has a caller are known. The path and all other inputs can be anything. An
/// expression that the analysis does not understand is assumed to be true and false for uploads of any size.
struct StaticAnalysis {
    /// The maximum number of expressions analyzed for one condition, and for all conditions of a file.
    private static let expressions = 10_000
    private static let allExpressions = 200_000

    /// The requirements for an expression to have a given value.
    struct Condition {
        /// The largest `request.resource.size` with which it can have the value; nil if there is no limit.
        var limit: UInt64?
        /// The inputs without which it cannot have the value.
        var needs: InputBits

        func and(_ other: Condition) -> Condition {
            let limits = [limit, other.limit].compactMap { $0 }
            return Condition(limit: limits.min(), needs: needs.union(other.needs))
        }

        func or(_ other: Condition) -> Condition {
            let limit = self.limit.flatMap { limit in other.limit.map { max(limit, $0) } }
            return Condition(limit: limit, needs: needs.intersection(other.needs))
        }
    }

    /// The static knowledge about a value.
    enum Value {
        case any
        case known(Datum)
        /// An integer of at most this value.
        case atMost(Int64)
        case record(Record)
        /// `request.resource.size`, after operations with constants.
        case size([SizeStep])
        /// Always an error.
        case failure
    }

    /// An operation on the size. All of them are monotonic: the result grows with the size.
    enum SizeStep {
        case add(Int64)
        case multiply(Int64)
        case divide(Int64)
    }

    struct Outcome {
        var value: Value
        /// The inputs without which it has no value.
        var needs: InputBits
        /// nil if it is never true.
        var whenTrue: Condition?
        /// nil if it is never false.
        var whenFalse: Condition?

        init(_ value: Value, needs: InputBits = []) {
            self.value = value
            self.needs = needs
            let free = Condition(limit: nil, needs: needs)
            switch value {
            case .any: (whenTrue, whenFalse) = (free, free)
            case .known(.bool(let value)): (whenTrue, whenFalse) = (value ? free : nil, value ? nil : free)
            default: (whenTrue, whenFalse) = (nil, nil)
            }
        }

        init(whenTrue: Condition?, whenFalse: Condition?) {
            value = whenTrue == nil && whenFalse == nil ? .failure : .any
            self.whenTrue = whenTrue
            self.whenFalse = whenFalse
            needs = StaticAnalysis.either(whenTrue, whenFalse)?.needs ?? []
        }
    }

    let program: Program
    let method: Method
    /// Whether `request.auth` is null.
    let isAnonymous: Bool
    private var left: Int
    private var depth = 0
    private var locals: [Outcome] = []
    private var frame = 0

    private init(_ program: Program, _ method: Method, isAnonymous: Bool, expressions: Int) {
        self.program = program
        self.method = method
        self.isAnonymous = isAnonymous
        left = expressions
    }

    /// The requirements for a statement to allow; nil if it never does.
    static func condition(
        of allow: AllowCode, _ program: Program, _ method: Method, isAnonymous: Bool = false
    ) -> Condition? {
        guard allow.condition >= 0 else { return Condition(limit: nil, needs: []) }
        var analysis = StaticAnalysis(program, method, isAnonymous: isAnonymous, expressions: expressions)
        return analysis.outcome(allow.condition).whenTrue
    }

    /// For each statement, the largest upload that it can allow; nil if there is no limit.
    static func uploadLimits(_ program: Program, isAnonymous: Bool) -> [UInt64?] {
        var left = allExpressions
        return program.allows.map { allow in
            guard allow.condition >= 0, allow.methods.contains(Method.Set(.create)),
                allow.reads.contains(InputBits(.size))
            else { return nil }
            let own = min(left, expressions)
            var analysis = StaticAnalysis(program, .create, isAnonymous: isAnonymous, expressions: own)
            let condition = analysis.outcome(allow.condition).whenTrue
            left -= own - max(0, analysis.left)
            return condition.map(\.limit) ?? 0
        }
    }

    // MARK: Expressions

    private static func either(_ a: Condition?, _ b: Condition?) -> Condition? {
        guard let a, let b else { return a ?? b }
        return a.or(b)
    }

    private static func both(_ a: Condition?, _ b: Condition?) -> Condition? {
        guard let a, let b else { return nil }
        return a.and(b)
    }

    private mutating func outcome(_ node: Int32) -> Outcome {
        depth += 1
        left -= 1
        defer { depth -= 1 }
        guard left > 0, depth <= EvaluationLimits.depth else { return Outcome(.any) }
        switch program.operations[Int(node)] {
        case .constant(let index), .folded(let index, _), .pattern(_, let index, _):
            return Outcome(.known(program.constants[Int(index)]))
        case .local(let index): return locals[frame + Int(index)]
        case .record(let record): return self.record(record)
        case .member(let object, _, let code): return member(outcome(object), code)
        case .index(let object, let key): return index(outcome(object), outcome(key))
        case .not(let operand):
            let operand = outcome(operand)
            return Outcome(whenTrue: operand.whenFalse, whenFalse: operand.whenTrue)
        case .all(let operands): return chain(operands, isAll: true)
        case .any(let operands): return chain(operands, isAll: false)
        case .conditional(let condition, let whenTrue, let whenFalse):
            return conditional(outcome(condition), outcome(whenTrue), outcome(whenFalse))
        case .binary(let operation, let left, let right): return binary(operation, outcome(left), outcome(right))
        case .call(.debug, let operands): return outcome(operand(operands, 0))
        case .call(let function, let operands):
            var result = strict(outcomes(operands))
            let looksUp = function == .firestoreGet || function == .firestoreExists
            if looksUp { result = Outcome(.any, needs: result.needs.union(.documents)) }
            return result
        case .method(let name, let operands): return method(name, outcomes(operands))
        case .userCall(let function, let operands): return userCall(function, outcomes(operands))
        case .negate(let operand), .isType(let operand, _): return strict([outcome(operand)])
        case .slice(let object, let first, let last):
            return strict([object, first, last].filter { $0 >= 0 }.map { outcome($0) })
        case .list(let operands), .map(let operands), .path(let operands): return strict(outcomes(operands))
        case .segment, .segmentBehindGlob, .glob: return Outcome(.any)
        case .undefined, .undefinedCall, .miscountedCall: return Outcome(.failure)
        }
    }

    private func operand(_ operands: OperandList, _ index: Int32) -> Int32 {
        program.operands[Int(operands.start + index)]
    }

    private mutating func outcomes(_ operands: OperandList) -> [Outcome] {
        (0..<operands.count).map { outcome(operand(operands, $0)) }
    }

    /// The outcome of an operation that needs all operands.
    private func strict(_ operands: [Outcome]) -> Outcome {
        Outcome(.any, needs: operands.reduce([]) { $0.union($1.needs) })
    }

    private func record(_ record: Record) -> Outcome {
        switch record {
        case .request: Outcome(.record(.request))
        case .incoming: Outcome(.record(.incoming))
        case .existing:
            method == .list
                ? Outcome(.known(.null)) : Outcome(.record(.existing), needs: .existing)
        }
    }

    private func member(_ object: Outcome, _ code: FieldCode) -> Outcome {
        switch object.value {
        case .record(.request):
            switch code.request {
            case .auth: return isAnonymous ? Outcome(.known(.null)) : Outcome(.any, needs: .auth)
            case .resource:
                let isWritten = method == .create || method == .update
                return Outcome(isWritten ? .record(.incoming) : .known(.null))
            case .method: return Outcome(.known(.string(Text(method.name))))
            case .path, .time, .params: return Outcome(.any)
            case nil: return Outcome(.failure)
            }
        case .record(.incoming):
            guard let field = code.object else { return Outcome(.any) }
            return Outcome(field == .size ? .size([]) : .any, needs: InputBits(field))
        case .known(.null), .failure, .size, .atMost: return Outcome(.failure)
        case .any, .known, .record(.existing): return Outcome(.any, needs: object.needs)
        }
    }

    private func index(_ object: Outcome, _ key: Outcome) -> Outcome {
        if case .record = object.value, case .known(.string(let name)) = key.value {
            return member(object, FieldCode(name))
        }
        return strict([object, key])
    }

    private func method(_ name: Int32, _ operands: [Outcome]) -> Outcome {
        switch operands[0].value {
        case .known(.null), .failure: Outcome(.failure)
        // The default of `get` is needed only if the key is missing.
        default: strict(program.methods[Int(name)] == .get ? Array(operands.prefix(2)) : operands)
        }
    }

    // MARK: Logic

    private mutating func chain(_ operands: OperandList, isAll: Bool) -> Outcome {
        var all: Condition? = Condition(limit: nil, needs: [])
        var some: Condition?
        for outcome in outcomes(operands) {
            all = Self.both(all, isAll ? outcome.whenTrue : outcome.whenFalse)
            some = Self.either(some, isAll ? outcome.whenFalse : outcome.whenTrue)
        }
        return isAll ? Outcome(whenTrue: all, whenFalse: some) : Outcome(whenTrue: some, whenFalse: all)
    }

    private func conditional(
        _ condition: Outcome, _ first: Outcome, _ second: Outcome
    ) -> Outcome {
        func result(_ path: KeyPath<Outcome, Condition?>) -> Condition? {
            Self.either(
                Self.both(condition.whenTrue, first[keyPath: path]),
                Self.both(condition.whenFalse, second[keyPath: path]))
        }
        var outcome = Outcome(whenTrue: result(\.whenTrue), whenFalse: result(\.whenFalse))
        if let a = Self.upperLimit(first.value), let b = Self.upperLimit(second.value) {
            outcome = Outcome(.atMost(max(a, b)))
        } else if outcome.whenTrue == nil, outcome.whenFalse == nil {
            outcome = Outcome(.any)
        }
        outcome.needs = condition.needs.union(first.needs.intersection(second.needs))
        return outcome
    }

    private mutating func userCall(_ number: Int32, _ arguments: [Outcome]) -> Outcome {
        let function = program.functions[Int(number)]
        let (outerFrame, outerCount) = (frame, locals.count)
        frame = locals.count
        locals += arguments
        for index in 0..<function.bindings.count {
            let value = outcome(operand(function.bindings, index))
            locals.append(value)
        }
        let result = outcome(function.result)
        frame = outerFrame
        locals.removeLast(locals.count - outerCount)
        return result
    }
}

// MARK: - Comparisons

extension StaticAnalysis {
    private func binary(_ operation: BinaryOperator, _ a: Outcome, _ b: Outcome) -> Outcome {
        let needs = a.needs.union(b.needs)
        if case .failure = a.value { return Outcome(.failure) }
        if case .failure = b.value { return Outcome(.failure) }
        if case .known(let x) = a.value, case .known(let y) = b.value {
            return Outcome(Self.constant(operation, x, y), needs: needs)
        }
        switch operation {
        case .add, .subtract, .multiply, .divide, .remainder:
            return Outcome(Self.arithmetic(operation, a.value, b.value), needs: needs)
        default: break
        }
        var outcome = Outcome(.any, needs: needs)
        let sides: (steps: [SizeStep], other: Value, operation: BinaryOperator)
        switch (a.value, b.value) {
        case (.size(let steps), let other): sides = (steps, other, operation)
        case (let other, .size(let steps)): sides = (steps, other, operation.mirrored)
        default: return outcome
        }
        if operation == .isIn {
            if case .known(.list(let elements)) = b.value, case .size(let steps) = a.value {
                let numbers = elements.compactMap(\.int)
                outcome.whenTrue = numbers.max().flatMap {
                    Self.limited(steps, atMost: $0, needs)
                }
            }
            return outcome
        }
        guard let limit = Self.upperLimit(sides.other) else { return outcome }
        let (below, _) = limit.subtractingReportingOverflow(1)
        switch sides.operation {
        case .less: outcome.whenTrue = Self.limited(sides.steps, atMost: below, needs)
        case .lessOrEqual, .equal: outcome.whenTrue = Self.limited(sides.steps, atMost: limit, needs)
        case .greater, .notEqual: outcome.whenFalse = Self.limited(sides.steps, atMost: limit, needs)
        case .greaterOrEqual: outcome.whenFalse = Self.limited(sides.steps, atMost: below, needs)
        default: break
        }
        return outcome
    }

    /// An upper bound of a value as an integer. A float is rounded up.
    private static func upperLimit(_ value: Value) -> Int64? {
        switch value {
        case .known(.int(let value)), .atMost(let value): return value
        case .known(.float(let value)):
            // Above 2^53, integers are rounded before the comparison.
            guard value.magnitude < 9_007_199_254_740_992 else { return nil }
            return Int64(value.rounded(.up))
        default: return nil
        }
    }

    /// The requirements for the size, after these steps, to be at most `limit`; nil if it never is.
    private static func limited(
        _ steps: [SizeStep], atMost limit: Int64, _ needs: InputBits
    ) -> Condition? {
        var limit = limit
        for step in steps.reversed() {
            let (value, isTooLarge): (Int64, Bool)
            switch step {
            case .add(let term): (value, isTooLarge) = limit.subtractingReportingOverflow(term)
            case .multiply(let factor): (value, isTooLarge) = (limit / factor, false)
            case .divide(let divisor):
                // Division truncates toward zero.
                let (product, overflow) = limit.multipliedReportingOverflow(by: divisor)
                let (sum, more) = product.addingReportingOverflow(divisor - 1)
                (value, isTooLarge) = (sum, overflow || more)
            }
            if isTooLarge { return Condition(limit: nil, needs: needs) }
            limit = value
        }
        return limit < 0 ? nil : Condition(limit: UInt64(limit), needs: needs)
    }

    private static func arithmetic(
        _ operation: BinaryOperator, _ a: Value, _ b: Value
    ) -> Value {
        switch (operation, a, b) {
        case (.add, .size(let steps), .known(.int(let term))),
            (.add, .known(.int(let term)), .size(let steps)):
            .size(steps + [.add(term)])
        case (.subtract, .size(let steps), .known(.int(let term))) where term != .min: .size(steps + [.add(-term)])
        case (.multiply, .size(let steps), .known(.int(let factor))) where factor > 0,
            (.multiply, .known(.int(let factor)), .size(let steps)) where factor > 0:
            .size(steps + [.multiply(factor)])
        case (.divide, .size(let steps), .known(.int(let divisor))) where divisor > 0: .size(steps + [.divide(divisor)])
        default: .any
        }
    }

    /// Evaluates an operator on constants.
    private static func constant(_ operation: BinaryOperator, _ a: Datum, _ b: Datum) -> Value {
        let isEqual: Bool
        switch (a, b) {
        case (.int(let a), .int(let b)):
            switch operation {
            case .add, .subtract, .multiply, .divide, .remainder:
                return Arithmetic.integer(operation, a, b).map { .known(.int($0)) } ?? .failure
            case .less, .lessOrEqual, .greater, .greaterOrEqual:
                return .known(.bool(Arithmetic.compare(operation, a, b)))
            default: isEqual = a == b
            }
        case (.null, .null): isEqual = true
        case (.bool(let a), .bool(let b)): isEqual = a == b
        case (.string(let a), .string(let b)): isEqual = a == b
        case (.null, _), (_, .null): isEqual = false
        default: return .any
        }
        switch operation {
        case .equal: return .known(.bool(isEqual))
        case .notEqual: return .known(.bool(!isEqual))
        default: return .any
        }
    }
}
