/// Notes what an evaluation does. Where `isRecording` is false nothing of it remains in the compiled code.
protocol Recorder {
    static var isRecording: Bool { get }
    mutating func enter(_ node: Int32)
    mutating func leave(_ node: Int32, _ value: Datum, _ context: Context)
    mutating func failed(_ node: Int32, _ message: String)
}

/// Records nothing.
struct NoRecorder: Recorder {
    static var isRecording: Bool { false }
    mutating func enter(_ node: Int32) {}
    mutating func leave(_ node: Int32, _ value: Datum, _ context: Context) {}
    mutating func failed(_ node: Int32, _ message: String) {}
}

/// What evaluation reads.
struct Context {
    let program: Program
    let request: RequestState
    /// The segments of the request's path.
    let path: [Text]
}

/// Limits of one evaluation.
enum EvaluationLimits {
    /// Nodes of expressions for one request, each literal and each name too; large operands cost more than one.
    static let expressions = 1000
    /// Different documents for one request.
    static let documents = 2
    /// How deeply expressions nest, through all calls, so that a thread's stack suffices.
    static let depth = 300
    /// The longest string and the most elements that a rule can make.
    static let size = 64 << 10
    /// What compiling a computed regular expression costs, in expressions.
    static let computedPattern = 50
}

/// Evaluates conditions for one request.
///
/// Errors and unknown inputs are values that flow (`Datum`), so `&&` and `||` absorb them from either side. What might
/// be evaluated, because an unknown stands before it, is counted apart from what surely is: a limit then makes the
/// value unknown, not an error, and a decision once final stays so when more becomes known.
struct Evaluator<R: Recorder> {
    let context: Context
    var recorder: R
    /// The program's, at hand.
    private let operations: [Operation]
    private let operands: [Int32]

    /// How many segments the glob of the current block took.
    var globLength: Int32 = 0

    /// The parameters and let bindings of the functions that are being called; few need no memory.
    private var fewLocals = InlineArray<16, Datum>(repeating: .null)
    private var moreLocals: [Datum] = []
    private var frame = 0
    private var localCount = 0

    /// How deeply the current expression is nested, through all calls.
    private var depth = 0
    private(set) var sureSteps = 0
    private var possibleSteps = 0

    /// Whether the limit of expressions ended the request: nothing that comes later can allow it.
    var isExhausted: Bool { sureSteps > EvaluationLimits.expressions }
    /// What the result depends on where the limit may yet have ended the request before; nil where it has not.
    var possibleExhaustion: Unknown? {
        possibleSteps > EvaluationLimits.expressions
            ? Unknown(bits: pastGuards, mayFail: true) : nil
    }
    /// The unknowns on which it depends whether the current expression is evaluated.
    private var guards: InputBits = []
    /// All that ever were.
    private var pastGuards: InputBits = []
    /// The documents asked for, and which surely count.
    private(set) var documents: [(path: Text, isSure: Bool)] = []

    init(_ context: Context, _ recorder: R) {
        self.context = context
        self.recorder = recorder
        operations = context.program.operations
        operands = context.program.operands
    }

    var program: Program { context.program }

    // MARK: Failures and limits

    @inline(__always)
    mutating func fail(_ node: Int32, _ message: @autoclosure () -> String) -> Datum {
        if R.isRecording { recorder.failed(node, message()) }
        return .failure(Failure(node: node))
    }

    /// Counts work; the value to give instead where the limit is reached.
    @inline(__always)
    mutating func charge(_ node: Int32, _ steps: Int = 1) -> Datum? {
        possibleSteps &+= steps
        if guards.isEmpty { sureSteps &+= steps }
        if possibleSteps <= EvaluationLimits.expressions { return nil }
        return exhausted(node)
    }

    private mutating func exhausted(_ node: Int32) -> Datum {
        if !isExhausted, let unknown = possibleExhaustion { return .unknown(unknown) }
        return fail(
            node,
            "Unable to evaluate the expression as the maximum of \(EvaluationLimits.expressions) "
                + "expressions to evaluate has been reached.")
    }

    /// The cost of touching so many bytes or elements beyond a few.
    func cost(_ size: Int) -> Int { size >> 10 }

    // MARK: Evaluation

    mutating func evaluate(_ node: Int32) -> Datum {
        depth &+= 1
        defer { depth &-= 1 }
        if depth > EvaluationLimits.depth {
            return fail(node, "Expression is too complex to evaluate safely.")
        }
        if !R.isRecording { return compute(node) }
        recorder.enter(node)
        let value = compute(node)
        recorder.leave(node, value, context)
        return value
    }

    private mutating func compute(_ node: Int32) -> Datum {
        if let stop = charge(node) { return stop }
        switch operations[Int(node)] {
        case .constant(let index): return program.constants[Int(index)]
        case .folded(let index, let cost), .pattern(_, let index, let cost):
            return charge(node, Int(cost) - 1) ?? program.constants[Int(index)]
        case .segment(let place): return .string(context.path[Int(place)])
        case .segmentBehindGlob(let place):
            return .string(context.path[Int(place - 1 + globLength)])
        case .glob(let place): return .requestPath(place, place + globLength)
        case .local(let index): return local(frame + Int(index))
        case .record(let record): return self.record(record)
        case .undefined(let name):
            let text = program.names[Int(name)]
            return fail(node, "Variable not found error: Name: [\(text.string)].")
        case .member(let object, let name, let code):
            return member(node, evaluate(object), name: name, code)
        case .all(let operands): return chain(node, operands, absorbing: false)
        case .any(let operands): return chain(node, operands, absorbing: true)
        case .binary(let operation, let left, let right):
            return binary(node, operation, left, right)
        case .not(let operand): return not(node, evaluate(operand))
        default: return computeRare(node)
        }
    }

    @inline(never)
    private mutating func computeRare(_ node: Int32) -> Datum {
        switch program.operations[Int(node)] {
        case .index(let object, let key): return index(node, object, key)
        case .slice(let object, let first, let last): return slice(node, object, first, last)
        case .negate(let operand): return negate(node, evaluate(operand))
        case .isType(let operand, let type):
            // The type is a node too.
            return charge(node) ?? isType(evaluate(operand), type)
        case .conditional(let condition, let whenTrue, let whenFalse):
            return conditional(node, condition, whenTrue, whenFalse)
        case .list(let operands): return list(node, operands)
        case .map(let operands): return map(node, operands)
        case .path(let operands): return path(node, operands)
        case .call(let function, let operands): return call(node, function, operands)
        case .method(let name, let operands): return method(node, name, operands)
        case .userCall(let function, let operands): return userCall(function, operands)
        case .undefinedCall(let name):
            let text = program.names[Int(name)]
            return fail(node, "Function not found error: Name: [\(text.string)].")
        case .miscountedCall(let name): return miscounted(node, name)
        default: preconditionFailure("compute knows all others")
        }
    }

    private func record(_ record: Record) -> Datum {
        switch record {
        case .request: return .record(.request)
        case .incoming: return context.request.incoming == nil ? .null : .record(.incoming)
        case .existing:
            switch context.request.existing {
            case .unknown:
                // A list has no object of its own.
                if context.request.method == .list { return .null }
                return .unknown(Unknown(bits: .existing, mayFail: false))
            case .absent: return .null
            case .object: return .record(.existing)
            }
        }
    }

    // MARK: Logic

    /// `&&` and `||`, from the left until an operand decides; errors and unknowns give way to one that does.
    ///
    /// In the hosted service each operator is a node with two operands, that of the first operator innermost; what
    /// stands on its right costs one more where it is evaluated.
    private mutating func chain(_ node: Int32, _ operands: OperandList, absorbing: Bool) -> Datum {
        let outerGuards = guards
        defer { guards = outerGuards }
        var failure: Datum?
        var unknown: InputBits = []
        if let stop = charge(node, Int(operands.count) - 2) { return stop }
        for place in 0..<Int(operands.count) {
            let operand = self.operands[Int(operands.start) + place]
            switch place == 0 ? evaluate(operand) : charge(node) ?? evaluate(operand) {
            case .bool(let value):
                if value == absorbing { return .bool(value) }
            case .unknown(let found):
                unknown.formUnion(found.bits)
                guards.formUnion(found.bits)
                pastGuards.formUnion(found.bits)
            case .failure(let found): failure = failure ?? .failure(found)
            case let other:
                failure = failure ?? fail(node, Self.notBool(other, absorbing ? "||" : "&&", place))
            }
        }
        if !unknown.isEmpty { return .unknown(Unknown(bits: unknown, mayFail: true)) }
        return failure ?? .bool(!absorbing)
    }

    private static func notBool(_ value: Datum, _ sign: String, _ place: Int) -> String {
        if case .null = value { return "Null value error." }
        let received =
            place == 0 ? "\(value.typeName) \(sign) bool" : "bool \(sign) \(value.typeName)"
        return "Unsupported operation error. Received: \(received). Expected: bool \(sign) bool."
    }

    private mutating func conditional(
        _ node: Int32, _ condition: Int32, _ whenTrue: Int32, _ whenFalse: Int32
    ) -> Datum {
        if let stop = charge(node) { return stop }
        switch evaluate(condition) {
        case .bool(true): return evaluate(whenTrue)
        case .bool(false): return charge(node, 2) ?? evaluate(whenFalse)
        case .failure(let failure): return .failure(failure)
        case .unknown(let unknown):
            // Both branches are possible; what they cost and look up is noted.
            let outerGuards = guards
            guards.formUnion(unknown.bits)
            pastGuards.formUnion(unknown.bits)
            _ = evaluate(whenTrue)
            _ = charge(node, 2) ?? evaluate(whenFalse)
            guards = outerGuards
            return .unknown(Unknown(bits: unknown.bits, mayFail: true))
        case .null: return fail(node, "Null value error.")
        case let other:
            return fail(
                node,
                "Unsupported operation error. Received: \(other.typeName) ? any : any. "
                    + "Expected: bool ? any : any.")
        }
    }

    // MARK: Functions of the rules

    private func local(_ index: Int) -> Datum {
        index < 16 ? fewLocals[index] : moreLocals[index - 16]
    }

    private mutating func setLocal(_ index: Int, _ value: Datum) {
        if index < 16 {
            fewLocals[index] = value
        } else {
            while moreLocals.count <= index - 16 { moreLocals.append(.null) }
            moreLocals[index - 16] = value
        }
    }

    /// Arguments are evaluated at the call, bindings in order; errors among them matter only where the name is used.
    private mutating func userCall(_ number: Int32, _ operands: OperandList) -> Datum {
        let function = program.functions[Int(number)]
        let base = localCount
        let outerFrame = frame
        localCount += Int(function.parameterCount + function.bindings.count)
        defer {
            localCount = base
            frame = outerFrame
        }
        for place in (0..<Int(operands.count)).reversed() {
            setLocal(base + place, evaluate(program.operands[Int(operands.start) + place]))
        }
        frame = base
        for place in 0..<Int(function.bindings.count) {
            let node = program.operands[Int(function.bindings.start) + place]
            setLocal(
                base + Int(function.parameterCount) + place, charge(node) ?? evaluate(node))
        }
        return evaluate(function.result)
    }

    // MARK: Documents

    /// What is known of a document, or the value to give instead.
    mutating func document(_ node: Int32, _ path: Text) -> Result<Lookup, Stop> {
        var place = documents.firstIndex { $0.path == path }
        if place == nil || (!documents[place ?? 0].isSure && guards.isEmpty) {
            let sure = documents.count { $0.isSure }
            let possible = documents.count + (place == nil ? 1 : 0)
            if sure >= EvaluationLimits.documents {
                let message =
                    "Service call error. At most \(EvaluationLimits.documents) different documents "
                    + "can be read for one request."
                return .failure(Stop(value: fail(node, message)))
            }
            if place == nil, documents.count < InputBits.maximumDocuments {
                documents.append((path, false))
                place = documents.count - 1
            }
            if possible > EvaluationLimits.documents {
                return .failure(Stop(value: .unknown(Unknown(bits: pastGuards, mayFail: true))))
            }
            if let place, guards.isEmpty { documents[place].isSure = true }
        }
        if let known = context.request.documents[path] { return .success(known) }
        let bits = place.map(InputBits.document) ?? pastGuards
        return .failure(Stop(value: .unknown(Unknown(bits: bits, mayFail: true))))
    }
}

/// A value that ends an operation before its result.
struct Stop: Error {
    var value: Datum
}
