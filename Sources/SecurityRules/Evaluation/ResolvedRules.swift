import Wire

/// A checked ruleset as a tree in which every name is resolved: what an analysis reads.
package struct ResolvedRules: Sendable {
    /// An index into ``nodes``.
    package typealias NodeID = Int32

    /// One segment of a match path.
    package enum Segment: Sendable, Hashable {
        /// A text; `{name}`; `{name=**}`.
        case literal(String)
        case single
        case glob
    }

    /// A match block that has statements, with its full path.
    package struct Block: Sendable {
        /// The segments, beginning at the root.
        package var segments: [Segment]
    }

    /// An `allow` statement.
    package struct Statement: Sendable {
        /// The index of its block.
        package var block: Int
        /// The methods that it allows.
        package var methods: [Method]
        /// nil if it has no condition.
        package var condition: NodeID?
        /// From `allow` to its end.
        package var range: Range<SourcePosition>
    }

    /// A function of the rules. Its locals are the parameters, then the bindings.
    package struct Function: Sendable {
        /// The values of the let bindings, in order.
        package var bindings: [NodeID]
        /// The returned expression.
        package var result: NodeID
    }

    /// A record that expressions begin with.
    package enum Root: Sendable, Hashable {
        /// `request`; `resource`.
        case request, existing
    }

    /// An expression. The meaning of each case is that of `Operation`.
    package enum Node: Sendable {
        /// A literal, or an expression over literals.
        case constant(Value)
        /// A constant that no `Value` can represent.
        case otherConstant
        /// A segment of the request's path: by its index, or counted as if a glob before it were one segment.
        case segment(Int)
        case segmentBehindGlob(Int)
        /// The segments of the glob that begins at this index.
        case glob(Int)
        /// A local of the current function.
        case local(Int)
        case root(Root)
        /// An expression that is always an error.
        case failure
        case member(NodeID, String)
        case index(NodeID, NodeID)
        case slice(NodeID, NodeID?, NodeID?)
        case not(NodeID)
        case negate(NodeID)
        case binary(BinaryOperator, NodeID, NodeID)
        /// `&&` and `||`.
        case all([NodeID])
        case any([NodeID])
        /// Whether the value has the type of this name.
        case isType(NodeID, String)
        case conditional(NodeID, NodeID, NodeID)
        case list([NodeID])
        /// Keys and values in turn.
        case map([NodeID])
        case path([NodeID])
        /// A library function, by its full name; a method, whose first operand is the receiver; a function of the rules.
        case call(String, [NodeID])
        case method(String, [NodeID])
        case userCall(Int, [NodeID])
    }

    /// 1 or 2.
    package let version: Int
    /// The parts, in the order of the source.
    package let blocks: [Block]
    package let statements: [Statement]
    package let functions: [Function]
    package let nodes: [Node]
    /// For each node, the largest number of expressions that it counts as, without the cost of long values, and the
    /// depth of its evaluation. Both end at `Int32.max`.
    package let costs: [Int]
    package let depths: [Int]
    private let program: Program

    /// The number of expressions that a request may evaluate.
    package static var maximumCost: Int { EvaluationLimits.expressions }
    /// The largest depth of an expression.
    package static var maximumDepth: Int { EvaluationLimits.depth }
    /// The number of documents that a request may read.
    package static var maximumDocuments: Int { EvaluationLimits.documents }

    /// The number of segments behind the bucket's `o` that expressions name: of a whole path, by an index, a path or a string
    /// with slashes; and of a glob, by an index.
    package var namedSegments: (path: Int, glob: Int) {
        var named = (path: 0, glob: 0)
        for node in nodes {
            switch node {
            case .index(let object, let key):
                guard case .constant(.int(let index)) = self[key], (0..<100).contains(index) else { continue }
                if case .glob = self[object] {
                    named.glob = max(named.glob, Int(index) + 1)
                } else {
                    named.path = max(named.path, Int(index) - 2)
                }
            case .constant(.string(let text)):
                named.path = max(named.path, text.utf8.count { $0 == UInt8(ascii: "/") } + 1)
            case .constant(.path(let segments)): named.path = max(named.path, segments.count - 3)
            case .path(let parts): named.path = max(named.path, parts.count - 3)
            default: continue
            }
        }
        return named
    }

    /// The expression of an index.
    package subscript(id: NodeID) -> Node { nodes[Int(id)] }

    /// The source location of an expression.
    package func range(of id: NodeID) -> Range<SourcePosition> { program.source.range(program.balancedSpan(of: id)) }

    /// The source text of an expression.
    package func text(of id: NodeID) -> String { program.source.text(program.balancedSpan(of: id)) }

    fileprivate init(_ program: Program) {
        self.program = program
        version = program.version
        blocks = program.blocks.map { block in
            let segments = block.segments.map { segment -> Segment in
                switch segment.kind {
                case .literal(let text): .literal(text.string)
                case .single: .single
                case .glob: .glob
                }
            }
            return Block(segments: segments)
        }
        var owners = [Int](repeating: 0, count: program.allows.count)
        for (index, block) in program.blocks.enumerated() { for allow in block.allows { owners[allow] = index } }
        statements = program.allows.enumerated().map { index, allow in
            Statement(
                block: owners[index], methods: Method.allCases.filter { allow.methods.contains(Method.Set($0)) },
                condition: allow.condition < 0 ? nil : allow.condition, range: program.source.range(allow.span))
        }
        functions = program.functions.map { Function(bindings: program.list($0.bindings), result: $0.result) }
        nodes = program.operations.map { program.node($0) }
        var measures = Measures(program)
        for node in program.operations.indices { measures.measure(Int32(node)) }
        (costs, depths) = (measures.costs.map { $0 ?? 0 }, measures.depths)
    }
}

extension Ruleset {
    /// The rules as a resolved tree.
    package var resolved: ResolvedRules { ResolvedRules(program) }
}

extension Program {
    fileprivate func list(_ operands: OperandList) -> [Int32] {
        Array(self.operands[Int(operands.start)..<Int(operands.start + operands.count)])
    }

    fileprivate func node(_ operation: Operation) -> ResolvedRules.Node {
        switch operation {
        case .constant(let index), .folded(let index, _), .pattern(_, let index, _):
            constants[Int(index)].asValue.map(ResolvedRules.Node.constant) ?? .otherConstant
        case .segment(let index): .segment(Int(index))
        case .segmentBehindGlob(let index): .segmentBehindGlob(Int(index))
        case .glob(let index): .glob(Int(index))
        case .local(let index): .local(Int(index))
        case .record(let record): .root(record == .request ? .request : .existing)
        case .undefined, .undefinedCall, .miscountedCall: .failure
        case .member(let object, let name, _): .member(object, names[Int(name)].string)
        case .index(let object, let key): .index(object, key)
        case .slice(let object, let first, let last): .slice(object, first < 0 ? nil : first, last < 0 ? nil : last)
        case .not(let operand): .not(operand)
        case .negate(let operand): .negate(operand)
        case .binary(let operation, let left, let right): .binary(operation, left, right)
        case .all(let operands): .all(list(operands))
        case .any(let operands): .any(list(operands))
        case .isType(let operand, let type): .isType(operand, type.rawValue)
        case .conditional(let condition, let whenTrue, let whenFalse): .conditional(condition, whenTrue, whenFalse)
        case .list(let operands): .list(list(operands))
        case .map(let operands): .map(list(operands))
        case .path(let operands): .path(list(operands))
        case .call(let function, let operands): .call(function.entry.fullName, list(operands))
        case .method(let name, let operands): .method(names[Int(name)].string, list(operands))
        case .userCall(let function, let operands): .userCall(Int(function), list(operands))
        }
    }

    /// The operands of a node, and the cost of the node itself.
    fileprivate func operandsAndCost(_ node: Int32) -> ([Int32], Int) {
        switch operations[Int(node)] {
        case .constant, .segment, .segmentBehindGlob, .glob, .local, .record, .undefined, .undefinedCall,
            .miscountedCall:
            ([], 1)
        case .folded(_, let cost), .pattern(_, _, let cost): ([], Int(cost))
        case .member(let operand, _, _), .not(let operand), .negate(let operand): ([operand], 1)
        case .isType(let operand, _): ([operand], 2)
        case .index(let object, let key): ([object, key], 1)
        case .slice(let object, let first, let last): ([object, first, last].filter { $0 >= 0 }, 1)
        case .binary(_, let left, let right): ([left, right], 1)
        case .all(let operands), .any(let operands): (list(operands), 2 * Int(operands.count) - 2)
        case .conditional(let condition, let whenTrue, let whenFalse): ([condition, whenTrue, whenFalse], 4)
        // A computed pattern and a digest cost more than one.
        case .method(_, let operands), .call(_, let operands): (list(operands), 1 + EvaluationLimits.computedPattern)
        case .list(let operands), .map(let operands), .path(let operands): (list(operands), 1)
        case .userCall(_, let operands): (list(operands), 1)
        }
    }
}

/// Computes the costs and depths of nodes. Operands precede their node; functions are visited on demand, as they do
/// not call themselves.
private struct Measures {
    let program: Program
    var costs: [Int?]
    var depths: [Int]

    init(_ program: Program) {
        self.program = program
        costs = Array(repeating: nil, count: program.operations.count)
        depths = Array(repeating: 0, count: program.operations.count)
    }

    mutating func measure(_ node: Int32) {
        guard costs[Int(node)] == nil else { return }
        var (operands, cost) = program.operandsAndCost(node)
        if case .userCall(let number, _) = program.operations[Int(node)] {
            let function = program.functions[Int(number)]
            operands += program.list(function.bindings) + [function.result]
            cost += Int(function.bindings.count)
        }
        var depth = 0
        for operand in operands {
            measure(operand)
            cost += costs[Int(operand)] ?? 0
            depth = max(depth, depths[Int(operand)])
        }
        costs[Int(node)] = min(cost, Int(Int32.max))
        depths[Int(node)] = min(depth + 1, Int(Int32.max))
    }
}

extension Datum {
    /// The value; nil for what a constant never is, for paths with bindings, and for strings that are not UTF-8.
    fileprivate var asValue: Value? {
        switch self {
        case .null: return .null
        case .bool(let value): return .bool(value)
        case .int(let value): return .int(value)
        case .float(let value): return .float(value)
        case .string(let text): return text.valid.map(Value.string)
        case .bytes(let bytes): return .bytes(bytes)
        case .list(let elements):
            let values = elements.compactMap(\.asValue)
            return values.count == elements.count ? .list(values) : nil
        case .path(let path):
            var segments: [String] = []
            for segment in path.segments {
                guard case .text(let text) = segment, let valid = text.valid else { return nil }
                segments.append(valid)
            }
            return .path(segments)
        default: return nil
        }
    }
}

extension Text {
    fileprivate var valid: String? { String(validating: bytes, as: UTF8.self) }
}

extension ResolvedRules {
    /// The types of a method's result, separated by `|`, or `any`; nil if a call with arguments of these types is always
    /// an error.
    package static func result(ofMethod name: String, of type: String, _ arguments: [String]) -> String? {
        guard let name = MethodName(name: name), let type = TypeName(rawValue: type),
            let entry = Library.method(name, of: type), entry.accepts(types: arguments)
        else { return nil }
        return entry.result
    }

    /// The same for a function, by its full name.
    package static func result(ofFunction name: String, _ arguments: [String]) -> String? {
        guard let entry = Library.functionsByName[name]?.entry, entry.accepts(types: arguments) else { return nil }
        return entry.result
    }
}

extension LibraryEntry {
    /// Whether it accepts arguments of these types.
    fileprivate func accepts(types: [String]) -> Bool {
        guard types.count == parameters.count else { return false }
        return zip(types, parameters).allSatisfy { type, parameter in
            guard let type = TypeName(rawValue: type) else { return false }
            return TypeName.Mask(types: parameter).contains(type)
        }
    }
}
