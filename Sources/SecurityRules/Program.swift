/// One operation of a compiled expression; its operands are nodes before it. Trivial, so that reading one touches no
/// reference count.
enum Operation: Sendable {
    case constant(Int32)
    /// What literals of several nodes come to, with the cost of all of them.
    case folded(Int32, cost: Int32)
    /// A segment of the request's path, counted from its beginning.
    case segment(Int32)
    /// The segment behind a glob; counted as if the glob were one segment.
    case segmentBehindGlob(Int32)
    /// What a glob that begins at this segment took.
    case glob(Int32)
    /// A parameter or a let binding of the current function.
    case local(Int32)
    case record(Record)
    /// A name that stands for nothing.
    case undefined(name: Int32)
    case member(Int32, name: Int32, FieldCode)
    case index(Int32, Int32)
    /// -1 for an end that is not given.
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
    /// A literal regular expression; as a value, its text.
    case pattern(Int32, constant: Int32, cost: Int32)
    case call(Function, OperandList)
    /// The first operand is the receiver.
    case method(name: Int32, OperandList)
    case userCall(Int32, OperandList)
    /// A call of what does not exist.
    case undefinedCall(name: Int32)
    /// A call with more or fewer arguments than the function takes.
    case miscountedCall(name: Int32)
}

/// Operands side by side in `Program.operands`.
struct OperandList: Sendable {
    var start: Int32
    var count: Int32
}

/// A function of the rules.
struct FunctionCode: Sendable {
    var parameterCount: Int32
    /// The let bindings, in order.
    var bindings: OperandList
    var result: Int32
}

/// An allow statement.
struct AllowCode: Sendable {
    var methods: Method.Set
    /// -1 for none.
    var condition: Int32
    /// What the condition can read.
    var reads: InputBits
    var span: Span32
    var headSpan: Span32
}

/// A match block that has allow statements, with the whole of its path.
struct BlockCode: Sendable {
    var segments: [MatchSegment]
    /// The place of the glob in the path; -1 for none.
    var glob: Int32
    /// The allow statements, in source order.
    var allows: Range<Int>
    var methods: Method.Set
    var pathSpan: Span32
}

/// A ruleset, checked and resolved: nothing is looked up by name when a request is decided.
final class Program: Sendable {
    let source: SourceText
    let version: Int
    let operations: [Operation]
    let spans: [Span32]
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

/// The names of methods, resolved while loading.
enum MethodName: UInt8, Sendable, CaseIterable {
    case lower, upper, trim, size, matches, split, replace, toUtf8
    case concat, hasAll, hasAny, hasOnly, join, removeAll, toSet
    case keys, values, get, diff
    case addedKeys, removedKeys, changedKeys, affectedKeys, unchangedKeys
    case difference, intersection, union
    case toBase64, toHexString
    case bind
    case date, time, year, month, day, dayOfWeek, dayOfYear, hours, minutes, seconds, nanos,
        toMillis
    case latitude, longitude, distance
    /// No type has such a method.
    case unknown

    /// As the rules write it.
    var name: String { String(describing: self) }

    private static let byName = Dictionary(uniqueKeysWithValues: allCases.map { ($0.name, $0) })

    init?(name: String) {
        guard let found = Self.byName[name], found != .unknown else { return nil }
        self = found
    }
}
