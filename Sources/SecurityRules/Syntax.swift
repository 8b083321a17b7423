/// A name in the source, and where it stands.
struct Name: Sendable {
    var text: String
    var span: Span32
}

/// An expression, by its place in `SyntaxTree.expressions`: a tree of indices is freed without recursion.
typealias ExpressionID = Int32

/// Operators between two operands that need both.
enum BinaryOperator: String, Sendable, CaseIterable {
    case add = "+"
    case subtract = "-"
    case multiply = "*"
    case divide = "/"
    case remainder = "%"
    case less = "<"
    case lessOrEqual = "<="
    case greater = ">"
    case greaterOrEqual = ">="
    case equal = "=="
    case notEqual = "!="
    case isIn = "in"
}

/// An expression as it was written.
struct Expression: Sendable {
    enum Kind: Sendable {
        case null
        case bool(Bool)
        case int(Int64)
        case float(Double)
        case string(Text)
        case bytes([UInt8])
        case name(Name)
        case member(ExpressionID, Name)
        case call(Name, [ExpressionID])
        case method(ExpressionID, Name, [ExpressionID])
        case index(ExpressionID, ExpressionID)
        case slice(ExpressionID, ExpressionID?, ExpressionID?)
        case not(ExpressionID)
        case negate(ExpressionID)
        case binary(BinaryOperator, ExpressionID, ExpressionID)
        /// `a && b && …`, as one.
        case all([ExpressionID])
        /// `a || b || …`, as one.
        case any([ExpressionID])
        case isType(ExpressionID, Name)
        case conditional(ExpressionID, ExpressionID, ExpressionID)
        case list([ExpressionID])
        case map([ExpressionID])
        case path([PathPart])
    }

    var kind: Kind
    var span: Span32
    /// How high its tree is, counted from its leaves: what compiling and evaluating it take of a stack.
    var depth: Int
    /// How deeply the hosted compiler has it nested, counted from its leaves.
    var levels: Int
}

/// One segment of a path in an expression, and where it stands behind its slash.
enum PathPart: Sendable {
    case literal(Text, Span32)
    /// `$(…)`
    case interpolated(ExpressionID)
    /// `{name}`, which `bind` replaces.
    case binding(Text, Span32)
}

/// One segment of the path of a match block.
struct MatchSegment: Sendable {
    enum Kind: Sendable, Equatable {
        case literal(Text)
        /// `{name}`
        case single
        /// `{name=**}`
        case glob
    }

    var kind: Kind
    /// The capture's name.
    var name: Name?
    var span: Span32
}

struct AllowStatement: Sendable {
    var methods: Method.Set
    var condition: ExpressionID?
    var span: Span32
    /// From `allow` to the end of the methods.
    var headSpan: Span32
}

struct FunctionDeclaration: Sendable {
    var name: Name
    var parameters: [Name]
    var bindings: [(name: Name, value: ExpressionID)]
    var result: ExpressionID
    var span: Span32
}

struct MatchBlock: Sendable {
    var path: [MatchSegment]
    var functions: [FunctionDeclaration] = []
    var allows: [AllowStatement] = []
    var matches: [MatchBlock] = []
    var pathSpan: Span32
}

/// A file as it was written, without what could not be read.
struct SyntaxTree: Sendable {
    var expressions: [Expression] = []
    /// 1 or 2; nil where the file does not say.
    var version: Int?
    /// Those of the file.
    var functions: [FunctionDeclaration] = []
    /// Those of the service.
    var serviceFunctions: [FunctionDeclaration] = []
    var matches: [MatchBlock] = []

    subscript(id: ExpressionID) -> Expression { expressions[Int(id)] }
}
