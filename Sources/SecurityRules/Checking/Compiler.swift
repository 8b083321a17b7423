import Wire

/// Checks a syntax tree and resolves every name in it, in one pass.
///
/// `CompilerExpressions.swift` compiles expressions and `CompilerCalls.swift` compiles calls.
struct Compiler {
    static let maximumCaptures = 20
    /// The hosted service documents 20 and accepts 21.
    static let maximumCallDepth = 21

    let source: SourceText
    let tree: SyntaxTree
    var sink: DiagnosticSink

    var operations: [Operation] = []
    var spans: [Span32] = []
    var marks: [Int32] = []
    /// The possible result types of each operation.
    var types: [TypeSet] = []
    /// Type warnings. They are reported only if there are no errors.
    var typeWarnings: [(message: String, span: Span32)] = []
    var operands: [Int32] = []
    var constants: [Datum] = []
    var names: [Text] = []
    var patterns: [Pattern] = []
    var patternIndices: [Text: Int32] = [:]
    /// The total size of the patterns, including invalid ones.
    var patternSize = 0
    var functionCodes: [FunctionCode] = []
    var blocks: [BlockCode] = []
    var allows: [AllowCode] = []

    /// The properties of a rules function besides its code.
    struct FunctionFacts {
        var name: Name
        var parameterCount: Int
        var reads: InputBits = []
        var calls: [Int32] = []
        var isUsed = false
    }

    /// The names that one block declares.
    struct Scope {
        // Keys: identifiers, which the lexer restricts to ASCII.
        var functions: [String: Int32] = [:]
        var captures: [String: Capture] = [:]
    }

    /// A variable of a match path.
    struct Capture {
        var operation: Operation
    }

    var facts: [FunctionFacts] = []
    /// The functions, each after those that it calls. Only valid without recursion.
    private(set) var calleesFirst: [Int32] = []
    /// The enclosing scopes, from the file inwards.
    var scopes: [Scope] = []
    /// The parameters and let bindings of the function that is being compiled.
    var locals: [(name: Name, isUsed: Bool, types: TypeSet)] = []
    /// The inputs that the current expression reads, and the functions that it calls.
    var reads: InputBits = []
    var calls: [Int32] = []
    private var nameIndices: [Text: Int32] = [:]
    /// The remaining number of name comparisons for hints, so that a file with thousands of errors stays cheap.
    private var comparisons = 50_000
    /// Whether hints may still be searched.
    var mayCompare: Bool { comparisons > 0 }

    init(_ source: SourceText, _ tree: SyntaxTree, _ sink: DiagnosticSink) {
        self.source = source
        self.tree = tree
        self.sink = sink
    }

    mutating func compile(lints: Bool) {
        if tree.version != 2 {
            sink.warning(
                "Ruleset uses old version (version [1]). Please update to the latest version (version [2]).",
                at: nil, hint: "begin the file with: rules_version = '2';")
        }
        scopes = [Scope()]
        declare(tree.functions) { compiler in
            compiler.scopes.append(Scope())
            compiler.declare(compiler.tree.serviceFunctions) { compiler in
                for match in compiler.tree.matches { compiler.match(match, prefix: []) }
            }
            compiler.scopes.removeLast()
        }
        checkCalls()
        guard !sink.hasErrors else { return }
        for warning in typeWarnings { sink.warning(warning.message, at: warning.span) }
        guard lints else { return }
        for warning in Lints.warnings(self) { sink.warning(warning.message, at: warning.span, hint: warning.hint) }
    }

    // MARK: Match blocks

    private mutating func match(_ block: MatchBlock, prefix: [MatchSegment]) {
        var scope = Scope()
        let path = prefix + block.path
        let glob = path.firstIndex { $0.kind == .glob }
        for (index, segment) in path.enumerated().dropFirst(prefix.count) {
            guard let name = segment.name else { continue }
            checkName(name)
            scope.captures[name.text] = Capture(operation: capture(at: index, glob: glob))
        }
        checkPath(block, path, prefix.count)
        scopes.append(scope)
        // Captures of enclosing blocks after this block's own glob cannot exist, because a path has at most one glob.
        declare(block.functions) { compiler in
            let first = compiler.allows.count
            var index: Int?
            if !block.allows.isEmpty {
                index = compiler.blocks.count
                let code = BlockCode(
                    segments: path, glob: Int32(glob ?? -1),
                    allows: first..<first, methods: [], pathSpan: block.pathSpan)
                compiler.blocks.append(code)
            }
            for allow in block.allows { compiler.allow(allow, path) }
            if let index {
                compiler.blocks[index].allows = first..<compiler.allows.count
                for allow in block.allows {
                    compiler.blocks[index].methods.formUnion(allow.methods)
                }
            }
            for match in block.matches { compiler.match(match, prefix: path) }
        }
        scopes.removeLast()
    }

    private func capture(at index: Int, glob: Int?) -> Operation {
        if let glob, index > glob { return .segmentBehindGlob(Int32(index)) }
        return index == glob ? .glob(Int32(index)) : .segment(Int32(index))
    }

    private mutating func checkPath(_ block: MatchBlock, _ path: [MatchSegment], _ own: Int) {
        let globs = path.indices.filter { path[$0].kind == .glob }
        if let glob = globs.last, glob >= own {
            if tree.version != 2, glob != path.count - 1 {
                sink.error(
                    "Invalid glob match expression. Glob matches are permitted as the last segment in a "
                        + "match declaration path.", at: path[glob].span,
                    hint: "rules_version = '2' permits it anywhere")
            } else if globs.count > 1 {
                sink.error(
                    "Invalid glob match expression. Only one glob match is permitted in a match " + "declaration path.",
                    at: path[glob].span)
            }
        }
        if path.count > Parser.maximumSegments {
            sink.error(
                "A match path may have at most \(Parser.maximumSegments) segments.",
                at: block.pathSpan)
        }
        if path.count(where: { $0.name != nil }) > Self.maximumCaptures {
            sink.error(
                "A match path may have at most \(Self.maximumCaptures) captures.",
                at: block.pathSpan)
        }
    }

    private mutating func allow(_ statement: AllowStatement, _ path: [MatchSegment]) {
        (reads, calls, locals) = ([], [], [])
        let condition = statement.condition.map { expression($0) } ?? -1
        if condition >= 0 { require(condition, .bool) }
        var isOpen = condition < 0
        if case .constant(let index) = condition < 0 ? .local(0) : operations[Int(condition)],
            case .bool(true) = constants[Int(index)]
        {
            isOpen = true
        }
        if isOpen { warnOpen(statement, path) }
        allows.append(
            AllowCode(
                methods: statement.methods, condition: condition, reads: reads, span: statement.span,
                headSpan: statement.headSpan))
        pendingCalls.append(calls)
    }

    /// The functions that each allow statement calls.
    private var pendingCalls: [[Int32]] = []

    private mutating func warnOpen(_ statement: AllowStatement, _ path: [MatchSegment]) {
        let coversAll = path.count >= 4 && path[3].kind == .glob && path.count == 4 || path.first?.kind == .glob
        let writes = !statement.methods.isDisjoint(with: .write)
        let reads = !statement.methods.isDisjoint(with: .read)
        guard writes || (reads && coversAll) else { return }
        let verb = writes && reads ? "read and write" : writes ? "write" : "read"
        let what = coversAll ? "every object of every bucket" : "here"
        sink.warning(
            "Anyone in the world may \(verb) \(what).", at: statement.headSpan,
            hint: "a condition such as 'request.auth != null' asks for a signed-in caller")
    }

    // MARK: Functions

    /// Compiles functions, adds them to the innermost scope while `body` runs, then reports unused ones.
    private mutating func declare(
        _ declarations: [FunctionDeclaration], _ body: (inout Compiler) -> Void
    ) {
        var numbers: [Int32] = []
        for declaration in declarations {
            let number = Int32(functionCodes.count)
            let scope = scopes.count - 1
            if scopes[scope].functions[declaration.name.text] == nil {
                scopes[scope].functions[declaration.name.text] = number
            } else {
                sink.error(
                    "Function \(declaration.name.text) is already defined.",
                    at: declaration.name.span)
            }
            functionCodes.append(
                FunctionCode(
                    parameterCount: Int32(declaration.parameters.count),
                    bindings: OperandList(start: 0, count: 0), result: -1))
            facts.append(
                FunctionFacts(name: declaration.name, parameterCount: declaration.parameters.count))
            numbers.append(number)
        }
        for (declaration, number) in zip(declarations, numbers) {
            function(declaration, Int(number))
        }
        body(&self)
        for number in numbers where !facts[Int(number)].isUsed {
            let name = facts[Int(number)].name
            sink.warning("Unused function: \(name.text).", at: name.span)
        }
    }

    private mutating func function(_ declaration: FunctionDeclaration, _ number: Int) {
        (reads, calls) = ([], [])
        locals = []
        for parameter in declaration.parameters {
            checkName(parameter)
            if locals.contains(where: { $0.name.text == parameter.text }) {
                sink.error("Parameter \(parameter.text) is declared twice.", at: parameter.span)
            }
            locals.append((parameter, true, .any))
        }
        var values: [Int32] = []
        for binding in declaration.bindings {
            checkName(binding.name)
            if locals.dropFirst(declaration.parameters.count).contains(where: {
                $0.name.text == binding.name.text
            }) {
                sink.error(
                    "The identifier [\(binding.name.text)] is already bound in the current scope.",
                    at: binding.name.span)
            }
            values.append(expression(binding.value))
            locals.append((binding.name, false, types[Int(values[values.count - 1])]))
        }
        functionCodes[number].result = expression(declaration.result)
        functionCodes[number].bindings = list(values)
        for local in locals where !local.isUsed {
            sink.warning("Unused variable: \(local.name.text).", at: local.name.span)
        }
        facts[number].reads = reads
        facts[number].calls = calls
        locals = []
    }

    private mutating func checkName(_ name: Name) {
        guard Library.namespaces.contains(name.text) else { return }
        sink.error(
            "Invalid variable name: \(name.text).", at: name.span,
            hint: "\(name.text) is a namespace of functions; choose another name")
    }

    // MARK: Calls

    /// Rejects recursion and call chains that are too long, and adds the inputs of functions to their callers.
    private mutating func checkCalls() {
        var heights = [Int](repeating: 0, count: facts.count)
        var states = [UInt8](repeating: 0, count: facts.count)
        var isRecursive = false
        for number in facts.indices {
            visit(number, &heights, &states, &isRecursive)
        }
        for (index, calls) in pendingCalls.enumerated() {
            for call in calls { allows[index].reads.formUnion(facts[Int(call)].reads) }
        }
        guard !isRecursive else { return }
        let called = Set(facts.flatMap(\.calls))
        for number in facts.indices where heights[number] > Self.maximumCallDepth && !called.contains(Int32(number)) {
            sink.error(
                "Maximum allowed call depth of 20 is reached for "
                    + "[\(deepestCalls(from: number, heights))] call stack.", at: facts[number].name.span)
        }
    }

    /// The functions of the longest call chain, up to the permitted length.
    private func deepestCalls(from first: Int, _ heights: [Int]) -> String {
        var names = [facts[first].name.text]
        var last = first
        while names.count < Self.maximumCallDepth,
            let next = facts[last].calls.first(where: { heights[Int($0)] == heights[last] - 1 })
        {
            last = Int(next)
            names.append(facts[last].name.text)
        }
        return names.joined(separator: "->")
    }

    /// Depth-first search; `states`: 0 new, 1 in progress, 2 done. The stack has at most one entry per function.
    private mutating func visit(
        _ start: Int, _ heights: inout [Int], _ states: inout [UInt8], _ isRecursive: inout Bool
    ) {
        guard states[start] == 0 else { return }
        var way: [(number: Int, next: Int)] = [(start, 0)]
        states[start] = 1
        while let (number, next) = way.last {
            if next < facts[number].calls.count {
                way[way.count - 1].next += 1
                let callee = Int(facts[number].calls[next])
                if states[callee] == 0 {
                    states[callee] = 1
                    way.append((callee, 0))
                } else if states[callee] == 1 {
                    isRecursive = true
                    let name = facts[number].name
                    sink.error(
                        "Recursive call is not allowed.", at: name.span,
                        hint: "\(name.text) calls \(facts[callee].name.text)")
                }
            } else {
                states[number] = 2
                calleesFirst.append(Int32(number))
                for callee in facts[number].calls {
                    heights[number] = max(heights[number], heights[Int(callee)])
                    facts[number].reads.formUnion(facts[Int(callee)].reads)
                }
                heights[number] += 1
                way.removeLast()
            }
        }
    }

    /// The candidate that `name` is probably a misspelling of; nil if none is similar or the budget is used up.
    mutating func nearest(to name: String, among candidates: [String]) -> String? {
        guard mayCompare else { return nil }
        comparisons -= candidates.count
        return nearestName(to: name, among: candidates)
    }

    // MARK: Code

    mutating func emit(_ operation: Operation, _ span: Span32) -> Int32 {
        types.append(infer(operation, span))
        operations.append(operation)
        spans.append(span)
        marks.append(span.start)
        return Int32(operations.count - 1)
    }

    mutating func list(_ nodes: [Int32]) -> OperandList {
        let start = operands.count
        operands += nodes
        return OperandList(start: Int32(start), count: Int32(nodes.count))
    }

    mutating func constant(_ value: Datum) -> Int32 {
        constants.append(value)
        return Int32(constants.count - 1)
    }

    mutating func name(_ text: String) -> Int32 {
        let key = Text(text)
        if let known = nameIndices[key] { return known }
        names.append(key)
        nameIndices[key] = Int32(names.count - 1)
        return Int32(names.count - 1)
    }
}
