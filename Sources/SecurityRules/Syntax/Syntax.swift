/// A name in the source, with its location.
struct Name: Sendable {
    var text: String
    var span: Span32
}

/// An expression, by its index in `SyntaxTree.expressions`. A tree of indices is freed without recursion.
typealias ExpressionID = Int32

/// Binary operators that always evaluate both operands.
package enum BinaryOperator: String, Sendable, CaseIterable {
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

    /// The equivalent operator for exchanged operands, if it is a comparison.
    package var mirrored: BinaryOperator {
        switch self {
        case .less: .greater
        case .lessOrEqual: .greaterOrEqual
        case .greater: .less
        case .greaterOrEqual: .lessOrEqual
        default: self
        }
    }
}

/// A parsed expression.
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
        /// `a && b && …`, as one chain.
        case all([ExpressionID])
        /// `a || b || …`, as one chain.
        case any([ExpressionID])
        case isType(ExpressionID, Name)
        case conditional(ExpressionID, ExpressionID, ExpressionID)
        case list([ExpressionID])
        case map([ExpressionID])
        case path([PathPart])
    }

    var kind: Kind
    var span: Span32
    /// The byte at which its errors are reported: its operator, or the name of the called function.
    var mark: Int32
    /// The height of its tree, which determines the stack that compiling and evaluating need.
    var depth: Int
    /// Its nesting levels as the hosted compiler counts them.
    var levels: Int
}

/// One segment of a path in an expression, with its location after the slash.
enum PathPart: Sendable {
    case literal(Text, Span32)
    /// `$(…)`
    case interpolated(ExpressionID)
    /// `{name}`, which `bind` replaces.
    case binding(Text, Span32)
}

/// One segment of a match block's path.
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
    /// From `allow` to the end of the method list.
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

/// A parsed file. Declarations with syntax errors are left out.
struct SyntaxTree: Sendable {
    var expressions: [Expression] = []
    /// 1 or 2; nil if the file does not declare it.
    var version: Int?
    /// The functions of the file.
    var functions: [FunctionDeclaration] = []
    /// The functions of the service.
    var serviceFunctions: [FunctionDeclaration] = []
    var matches: [MatchBlock] = []
    /// The parentheses around expressions, in closing order.
    var groups: [Span32] = []

    subscript(id: ExpressionID) -> Expression { expressions[Int(id)] }
}
