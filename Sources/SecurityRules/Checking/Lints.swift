import Wire

/// Warns about conditions that load and whose types fit, but that cannot mean what is written.
///
/// It reads the compiled operations. `LintSubjects.swift` finds out what an expression refers to, `LintComparisons.swift`
/// and `LintPatterns.swift` check single expressions, and `LintConditions.swift` checks whole conditions. The time is
/// linear in the number of operations: each step visits a function once, however often it is called.
struct Lints {
    /// A warning with advice.
    struct Warning {
        var message: String
        var span: Span32
        var hint: String
    }

    /// The operations of one function or of one condition. The root is the last one.
    struct Body {
        var nodes: Range<Int>
        /// -1 for the condition of an allow statement.
        var function: Int

        var root: Int { nodes.upperBound - 1 }
    }

    let code: Compiler
    private(set) var warnings: [Warning] = []
    private(set) var bodies: [Body] = []
    /// The index of each function's body.
    private(set) var bodyOfFunction: [Int] = []
    /// Indices of bodies; those of functions after those that they call, then the conditions.
    private(set) var calleesFirst: [Int] = []

    /// What each operation refers to.
    var subjects: [Subject]
    /// The common subject of each function's arguments over all calls; nil if there was no call yet.
    var parameters: [[Subject?]]

    private init(_ code: Compiler) {
        self.code = code
        subjects = Array(repeating: .other, count: code.operations.count)
        parameters = code.facts.map { Array(repeating: nil, count: $0.parameterCount) }
        findBodies()
    }

    /// The warnings of a compiled source without errors.
    static func warnings(_ code: Compiler) -> [Warning] {
        var lints = Lints(code)
        lints.resolveSubjects()
        lints.checkComparisons()
        lints.checkPatterns()
        return ConditionLints.check(lints).warnings
    }

    /// Bodies are compiled one after the other, and their root last.
    private mutating func findBodies() {
        var roots: [(root: Int, function: Int)] = []
        for (number, function) in code.functionCodes.enumerated() { roots.append((Int(function.result), number)) }
        for allow in code.allows where allow.condition >= 0 { roots.append((Int(allow.condition), -1)) }
        roots.sort { $0.root < $1.root }
        bodyOfFunction = Array(repeating: -1, count: code.functionCodes.count)
        var start = 0
        var conditions: [Int] = []
        for (root, function) in roots {
            if function >= 0 { bodyOfFunction[function] = bodies.count } else { conditions.append(bodies.count) }
            bodies.append(Body(nodes: start..<root + 1, function: function))
            start = root + 1
        }
        calleesFirst = code.calleesFirst.map { bodyOfFunction[Int($0)] } + conditions
    }

    mutating func warn(_ message: String, at node: Int32, hint: String) {
        warnings.append(Warning(message: message, span: code.spans[Int(node)], hint: hint))
    }

    // MARK: Operations

    func operands(_ list: OperandList) -> ArraySlice<Int32> {
        code.operands[Int(list.start)..<Int(list.start + list.count)]
    }

    /// The direct operands of an operation.
    func operands(of node: Int) -> [Int32] {
        switch code.operations[node] {
        case .constant, .folded, .segment, .segmentBehindGlob, .glob, .local, .record, .undefined, .pattern,
            .undefinedCall, .miscountedCall:
            []
        case .member(let object, _, _): [object]
        case .index(let object, let key): [object, key]
        case .slice(let object, let first, let last): [object, first, last].filter { $0 >= 0 }
        case .not(let operand), .negate(let operand), .isType(let operand, _): [operand]
        case .binary(_, let left, let right): [left, right]
        case .conditional(let condition, let whenTrue, let whenFalse): [condition, whenTrue, whenFalse]
        case .all(let list), .any(let list), .list(let list), .map(let list), .path(let list), .call(_, let list),
            .method(_, let list), .userCall(_, let list):
            Array(operands(list))
        }
    }

    /// The let binding that an operation of a body reads; nil if it reads a parameter.
    func binding(_ local: Int32, in body: Body) -> Int32? {
        guard body.function >= 0 else { return nil }
        let function = code.functionCodes[body.function]
        let index = local - function.parameterCount
        return index < 0 ? nil : code.operands[Int(function.bindings.start + index)]
    }

    func string(_ node: Int32) -> Text? {
        switch code.operations[Int(node)] {
        case .pattern(_, let constant, _):
            if case .string(let text) = code.constants[Int(constant)] { return text }
            return nil
        default:
            if case .string(let text)? = code.constantValue(node) { return text }
            return nil
        }
    }

    func isNull(_ node: Int32) -> Bool {
        if case .null? = code.constantValue(node) { return true }
        return false
    }

    /// A string literal for a message, cut if it is long.
    func quoted(_ text: Text) -> String {
        let scalars = String.UnicodeScalarView(text.string.unicodeScalars.prefix(41))
        return scalars.count > 40
            ? "'\(String(String.UnicodeScalarView(scalars.prefix(40))))…'" : "'\(String(scalars))'"
    }
}
