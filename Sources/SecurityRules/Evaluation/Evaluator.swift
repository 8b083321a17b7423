/// Observes an evaluation. If `isRecording` is false, the compiled code contains no trace of it.
protocol Recorder {
    static var isRecording: Bool { get }
    mutating func enter(_ node: Int32)
    mutating func leave(_ node: Int32, _ value: Datum, _ context: Context)
    mutating func failed(_ node: Int32, _ message: String, atStart: Bool)
}

/// Records nothing.
struct NoRecorder: Recorder {
    static var isRecording: Bool { false }
    mutating func enter(_ node: Int32) {}
    mutating func leave(_ node: Int32, _ value: Datum, _ context: Context) {}
    mutating func failed(_ node: Int32, _ message: String, atStart: Bool) {}
}

/// The inputs of an evaluation.
struct Context {
    let program: Program
    let request: RequestState
    /// The segments of the request's path.
    let path: [Text]
}

/// The limits of one evaluation.
enum EvaluationLimits {
    /// Expression nodes per request, including each literal and name. Operations on large values cost more than one.
    static let expressions = 1000
    /// Different documents per request.
    static let documents = 2
    /// The nesting depth of expressions, through all calls. It bounds the stack that a thread needs.
    static let depth = 300
    /// The maximum size of a string in bytes, and of a collection in elements, that a rule can create.
    static let size = 64 << 10
    /// The cost of compiling a computed regular expression, in expressions.
    static let computedPattern = 50
    /// The units of work on values that cost as much as one expression; see `Work`.
    static let workPerExpression = 1024
    /// The time limit of one decision, in nanoseconds.
    static let time: UInt64 = 50_000_000
    /// The number of expressions between two reads of the clock.
    static let expressionsPerClockRead = 64
}

/// Counts the work that one operation does on its operands: 8 units for each pair of values compared, and 1 for each
/// byte. Nested values count at every depth, and shared values each time they are visited.
struct Work {
    private(set) var used = 0
    private let limit: Int

    init(limit: Int) { self.limit = limit }

    /// Whether the limit has been exceeded. The result of the operation is then meaningless.
    var isExhausted: Bool { used > limit }

    /// Counts units of work. Returns false if the limit has been exceeded.
    @inline(__always)
    mutating func take(_ units: Int) -> Bool {
        used &+= units
        return used <= limit
    }
}

/// Evaluates conditions for one request.
///
/// Errors and unknown inputs are values (`Datum`), so `&&` and `||` can absorb them on either side. Expressions that
/// are only evaluated depending on an unknown are counted separately from those that are certainly evaluated. If only
/// the former exceed a limit, the value is unknown rather than an error. A final decision therefore stays the same when
/// more becomes known.
struct Evaluator<R: Recorder> {
    let context: Context
    var recorder: R
    /// Copies of the program's arrays, for faster access.
    private let operations: [Operation]
    private let operands: [Int32]

    /// The number of segments that the glob of the current block matches.
    var globLength: Int32 = 0

    /// The parameters and let bindings of all active function calls. The first 16 need no allocation. nil before a
    /// function is called: most rules call none.
    private var fewLocals: InlineArray<16, Datum>?
    private var moreLocals: [Datum] = []
    private var frame = 0
    private var localCount = 0

    /// The nesting depth of the current expression, through all calls.
    private var depth = 0
    private(set) var sureSteps = 0
    private var possibleSteps = 0

    private let clock: Ruleset.Clock
    /// The number of expressions at which to read the clock or check the limits next.
    private var checkpoint = EvaluationLimits.expressionsPerClockRead
    /// The time limit of the decision; 0 before the first read of the clock.
    private var deadline: UInt64 = 0
    /// Whether the decision exceeded the time limit.
    private(set) var isTimedOut = false

    /// Whether a limit ended the evaluation, so that nothing can allow the request any more.
    var hasEnded: Bool { isTimedOut || isExhausted }
    /// Whether the limit of expressions was certainly exceeded.
    private var isExhausted: Bool { sureSteps > EvaluationLimits.expressions }
    /// The unknowns that decide whether the limit of expressions was exceeded; nil if it can't have been.
    var possibleExhaustion: Unknown? {
        possibleSteps > EvaluationLimits.expressions ? Unknown(bits: pastGuards, mayFail: true) : nil
    }
    /// The unknowns that determine whether the current expression is evaluated.
    private var guards: InputBits = []
    /// All unknowns that were ever in `guards`.
    private var pastGuards: InputBits = []
    /// The documents requested so far, and whether each lookup certainly happens.
    private(set) var documents: [(path: DocumentPath, isSure: Bool)] = []
    /// Lookups whose path is not known yet, and the inputs that it depends on.
    private var unnamedDocuments = 0
    private var unnamedBits: InputBits = []

    init(_ context: Context, _ recorder: R, clock: @escaping Ruleset.Clock = { 1 }) {
        self.context = context
        self.recorder = recorder
        self.clock = clock
        operations = context.program.operations
        operands = context.program.operands
    }

    var program: Program { context.program }

    // MARK: Failures and limits

    @inline(__always)
    mutating func fail(_ node: Int32, _ message: @autoclosure () -> String) -> Datum {
        if R.isRecording { recorder.failed(node, message(), atStart: false) }
        return .failure(Failure(node: node))
    }

    /// An error that is reported at the start of the expression.
    @inline(__always)
    mutating func fail(atStartOf node: Int32, _ message: @autoclosure () -> String) -> Datum {
        if R.isRecording { recorder.failed(node, message(), atStart: true) }
        return .failure(Failure(node: node))
    }

    /// Counts expressions. Returns the value to use instead if a limit has been exceeded.
    @inline(__always)
    mutating func charge(_ node: Int32, _ steps: Int = 1) -> Datum? {
        possibleSteps &+= steps
        if guards.isEmpty { sureSteps &+= steps }
        if possibleSteps < checkpoint { return nil }
        return checkLimits(node)
    }

    /// Reads the clock after the first 64 expressions and then at intervals.
    @inline(never)
    private mutating func checkLimits(_ node: Int32) -> Datum? {
        if !isTimedOut {
            let now = clock()
            if deadline == 0 { deadline = now &+ EvaluationLimits.time }
            isTimedOut = now > deadline
        }
        if isTimedOut {
            checkpoint = 0
            return fail(
                node,
                "Unable to evaluate the expression as the maximum of "
                    + "\(EvaluationLimits.time / 1_000_000) milliseconds has been reached.")
        }
        if possibleSteps > EvaluationLimits.expressions { return exhausted(node) }
        checkpoint = min(
            possibleSteps + EvaluationLimits.expressionsPerClockRead,
            EvaluationLimits.expressions + 1)
        return nil
    }

    private mutating func exhausted(_ node: Int32) -> Datum {
        if !isExhausted, let unknown = possibleExhaustion { return .unknown(unknown) }
        return fail(
            node,
            "Unable to evaluate the expression as the maximum of \(EvaluationLimits.expressions) "
                + "expressions to evaluate has been reached.")
    }

    /// Runs an operation that counts its work. Returns its result, or a substitute if a limit is exceeded.
    ///
    /// The operation stops when its work uses up the remaining expressions.
    @inline(__always)
    mutating func measured(
        _ node: Int32, _ operation: (_ context: Context, _ work: inout Work) -> Datum
    ) -> Datum {
        let left = max(0, EvaluationLimits.expressions - possibleSteps)
        var work = Work(limit: (left + 1) * EvaluationLimits.workPerExpression - 1)
        let value = operation(context, &work)
        return charge(node, work.used / EvaluationLimits.workPerExpression) ?? value
    }

    /// The cost of processing this many bytes or elements.
    func cost(_ size: Int) -> Int { size / EvaluationLimits.workPerExpression }

    /// The cost of looking up a key in a map.
    func cost(key: Text) -> Int { cost(key.count) * 8 }

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
        case .segment(let index): return .string(context.path[Int(index)])
        case .segmentBehindGlob(let index): return .string(context.path[Int(index - 1 + globLength)])
        case .glob(let index): return .requestPath(index, index + globLength)
        case .local(let index): return local(frame + Int(index))
        case .record(let record): return self.record(record)
        case .undefined(let name):
            let text = program.names[Int(name)]
            return fail(node, "Variable not found error: Name: [\(text.string)].")
        case .member(let object, let name, let code): return member(node, evaluate(object), name: name, code)
        case .all(let operands): return chain(node, operands, absorbing: false)
        case .any(let operands): return chain(node, operands, absorbing: true)
        case .binary(let operation, let left, let right): return binary(node, operation, left, right)
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
            // The type counts as a node too.
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
            return fail(atStartOf: node, "Function not found error: Name: [\(text.string)].")
        case .miscountedCall(let expected, let received):
            return miscounted(node, Int(received), program.names[Int(expected)].string)
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
                // A list request has no existing object.
                if context.request.method == .list { return .null }
                return .unknown(Unknown(bits: .existing, mayFail: false))
            case .absent: return .null
            case .object: return .record(.existing)
            }
        }
    }

    // MARK: Logic

    /// Evaluates `&&` and `||` from the left until an operand decides, which overrides errors and unknowns.
    ///
    /// The hosted service counts each operator as a node with two operands, innermost first, and one more for each
    /// right operand that it evaluates.
    private mutating func chain(_ node: Int32, _ operands: OperandList, absorbing: Bool) -> Datum {
        let outerGuards = guards
        defer { guards = outerGuards }
        var failure: Datum?
        var unknown: InputBits = []
        if let stop = charge(node, Int(operands.count) - 2) { return stop }
        for index in 0..<Int(operands.count) {
            let operand = self.operands[Int(operands.start) + index]
            switch index == 0 ? evaluate(operand) : charge(node) ?? evaluate(operand) {
            case .bool(let value):
                if value == absorbing { return .bool(value) }
            case .unknown(let found):
                unknown.formUnion(found.bits)
                guards.formUnion(found.bits)
                pastGuards.formUnion(found.bits)
            case .failure(let found): failure = failure ?? .failure(found)
            case let other: failure = failure ?? fail(node, Self.notBool(other, absorbing ? "||" : "&&", index))
            }
        }
        if !unknown.isEmpty { return .unknown(Unknown(bits: unknown, mayFail: true)) }
        return failure ?? .bool(!absorbing)
    }

    private static func notBool(_ value: Datum, _ sign: String, _ index: Int) -> String {
        if case .null = value { return "Null value error." }
        let received = index == 0 ? "\(value.typeName) \(sign) bool" : "bool \(sign) \(value.typeName)"
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
            // Either branch may be evaluated, so the costs and lookups of both are recorded.
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
        index < 16 ? fewLocals![index] : moreLocals[index - 16]
    }

    private mutating func setLocal(_ index: Int, _ value: Datum) {
        if index < 16 {
            if fewLocals == nil { fewLocals = InlineArray(repeating: .null) }
            fewLocals![index] = value
        } else {
            while moreLocals.count <= index - 16 { moreLocals.append(.null) }
            moreLocals[index - 16] = value
        }
    }

    /// Evaluates arguments, then bindings, in order. An error matters only if its name is used.
    private mutating func userCall(_ number: Int32, _ operands: OperandList) -> Datum {
        let function = program.functions[Int(number)]
        let base = localCount
        let outerFrame = frame
        localCount += Int(function.parameterCount + function.bindings.count)
        defer {
            localCount = base
            frame = outerFrame
        }
        for index in (0..<Int(operands.count)).reversed() {
            setLocal(base + index, evaluate(program.operands[Int(operands.start) + index]))
        }
        frame = base
        for index in 0..<Int(function.bindings.count) {
            let node = program.operands[Int(function.bindings.start) + index]
            setLocal(
                base + Int(function.parameterCount) + index, charge(node) ?? evaluate(node))
        }
        return evaluate(function.result)
    }

    // MARK: Documents

    /// Returns the lookup of a document, or the value to use instead.
    mutating func document(_ node: Int32, _ path: DocumentPath) -> Result<Lookup, Stop> {
        var index = documents.firstIndex { $0.path == path }
        if index == nil || (!documents[index ?? 0].isSure && guards.isEmpty) {
            let sure = documents.count { $0.isSure }
            let possible = documents.count + unnamedDocuments + (index == nil ? 1 : 0)
            if sure >= EvaluationLimits.documents {
                let message =
                    "Service call error. At most \(EvaluationLimits.documents) different documents "
                    + "can be read for one request."
                return .failure(Stop(value: fail(node, message)))
            }
            if index == nil, documents.count < InputBits.maximumDocuments {
                documents.append((path, false))
                index = documents.count - 1
            }
            if possible > EvaluationLimits.documents {
                let bits = pastGuards.union(unnamedBits)
                return .failure(Stop(value: .unknown(Unknown(bits: bits, mayFail: true))))
            }
            if let index, guards.isEmpty { documents[index].isSure = true }
        }
        if let known = context.request.documents[path] { return .success(known) }
        let bits = index.map(InputBits.document) ?? pastGuards
        return .failure(Stop(value: .unknown(Unknown(bits: bits, mayFail: true))))
    }

    /// Counts a lookup whose path is unknown: it may be one of the first, which the limit lets through.
    mutating func lookUpLater(_ path: Datum) {
        guard case .unknown(let unknown) = path else { return }
        unnamedDocuments += 1
        unnamedBits.formUnion(unknown.bits)
    }
}

/// A value that replaces the result of an operation.
struct Stop: Error {
    var value: Datum
}
