/// One operation of a compiled expression; its operands are earlier nodes. Trivial: needs no reference counts.
enum Operation: Sendable {
    case constant(Int32)
    /// The constant value of an expression over literals, with the cost of all its nodes.
    case folded(Int32, cost: Int32)
    /// A segment of the request's path, by its index.
    case segment(Int32)
    /// A segment after a glob, by its index as if the glob were one segment.
    case segmentBehindGlob(Int32)
    /// The segments matched by a glob that begins at this index.
    case glob(Int32)
    /// A parameter or a let binding of the current function.
    case local(Int32)
    case record(Record)
    /// An undefined name.
    case undefined(name: Int32)
    case member(Int32, name: Int32, FieldCode)
    case index(Int32, Int32)
    /// -1 for a bound that is not given.
    case slice(Int32, Int32, Int32)
    case not(Int32)
    case negate(Int32)
    case binary(BinaryOperator, Int32, Int32)
    case all(OperandList)
    case any(OperandList)
    case isType(Int32, TypeName)
    case conditional(Int32, Int32, Int32)
    case list(OperandList)
    case map(OperandList)
    case path(OperandList)
    /// A literal regular expression. Its value is its text.
    case pattern(Int32, constant: Int32, cost: Int32)
    case call(Function, OperandList)
    /// A method call. The first operand is the receiver.
    case method(name: Int32, OperandList)
    case userCall(Int32, OperandList)
    /// A call of an undefined function.
    case undefinedCall(name: Int32)
    /// A call with the wrong number of arguments. `expected` names the function with its parameter types.
    case miscountedCall(expected: Int32, received: Int32)
}

/// A range of `Program.operands`.
struct OperandList: Sendable {
    var start: Int32
    var count: Int32
}

/// A function declared in the rules.
struct FunctionCode: Sendable {
    var parameterCount: Int32
    /// The let bindings, in order.
    var bindings: OperandList
    var result: Int32
}

/// An allow statement.
struct AllowCode: Sendable {
    var methods: Method.Set
    /// -1 if there is no condition.
    var condition: Int32
    /// The inputs that the condition can read.
    var reads: InputBits
    var span: Span32
    var headSpan: Span32
}

/// A match block that has allow statements, with its full path.
struct BlockCode: Sendable {
    var segments: [MatchSegment]
    /// The index of the glob in the path; -1 if there is none.
    var glob: Int32
    /// The allow statements, in source order.
    var allows: Range<Int>
    var methods: Method.Set
    var pathSpan: Span32
}

/// A checked and resolved ruleset. Deciding a request needs no lookup by name.
final class Program: Sendable {
    let source: SourceText
    let version: Int
    let operations: [Operation]
    let spans: [Span32]
    /// For each node, the byte at which its errors are reported: its operator, or the name of the called function.
    let marks: [Int32]
    /// The parentheses around expressions, sorted by their start and by their end.
    private let groupsByStart: [Span32]
    private let groupsByEnd: [Span32]
    let operands: [Int32]
    let constants: [Datum]
    /// Names of properties and methods.
    let names: [Text]
    let methods: [MethodName]
    let patterns: [Pattern]
    let functions: [FunctionCode]
    let blocks: [BlockCode]
    let allows: [AllowCode]
    let index: MatchIndex
    let computedPatterns = PatternCache()

    init(_ parts: Compiler) {
        source = parts.source
        version = parts.tree.version ?? 1
        operations = parts.operations
        spans = parts.spans
        marks = parts.marks
        groupsByStart = parts.tree.groups.sorted { $0.start < $1.start }
        groupsByEnd = parts.tree.groups
        operands = parts.operands
        constants = parts.constants
        names = parts.names
        methods = parts.names.map { MethodName(name: $0.string) ?? .unknown }
        patterns = parts.patterns
        functions = parts.functionCodes
        blocks = parts.blocks
        allows = parts.allows
        index = MatchIndex(parts.blocks, version: parts.tree.version ?? 1)
    }
}

extension Program {
    /// The span of an expression, extended by the parentheses that are missing at its ends. The parentheses around an
    /// operand are not part of the operand's span.
    func balancedSpan(of node: Int32) -> Span32 {
        var span = spans[Int(node)]
        var before = groupsByStart.partition { $0.start >= span.start } - 1
        while before >= 0, case let group = groupsByStart[before], group.end > span.start,
            group.end <= span.end
        {
            (span.start, before) = (group.start, before - 1)
        }
        var after = groupsByEnd.partition { $0.end > span.end }
        while after < groupsByEnd.count, case let group = groupsByEnd[after],
            group.start >= span.start, group.start < span.end
        {
            (span.end, after) = (group.end, after + 1)
        }
        return span
    }
}

extension [Span32] {
    /// The index of the first span for which `isBehind` is true. It must be true for all later ones.
    fileprivate func partition(_ isBehind: (Span32) -> Bool) -> Int {
        var (low, high) = (0, count)
        while low < high {
            let middle = (low + high) / 2
            if isBehind(self[middle]) { high = middle } else { low = middle + 1 }
        }
        return low
    }
}

/// The names of methods, resolved at load time.
enum MethodName: UInt8, Sendable, CaseIterable {
    case lower, upper, trim, size, matches, split, replace, toUtf8
    case concat, hasAll, hasAny, hasOnly, join, removeAll, toSet
    case keys, values, get, diff
    case addedKeys, removedKeys, changedKeys, affectedKeys, unchangedKeys
    case difference, intersection, union
    case toBase64, toHexString
    case bind
    case date, time, year, month, day, dayOfWeek, dayOfYear, hours, minutes, seconds, nanos, toMillis
    case latitude, longitude, distance
    /// A name that no type has as a method.
    case unknown

    /// The name as used in rules.
    var name: String { String(describing: self) }

    private static let byName = Dictionary(uniqueKeysWithValues: allCases.map { ($0.name, $0) })

    init?(name: String) {
        guard let found = Self.byName[name], found != .unknown else { return nil }
        self = found
    }
}
