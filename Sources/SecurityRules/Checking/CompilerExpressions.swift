import Wire

/// Resolves expressions.
extension Compiler {
    mutating func expression(_ id: ExpressionID) -> Int32 {
        let node = compiled(id)
        marks[Int(node)] = tree[id].mark
        return node
    }

    private mutating func compiled(_ id: ExpressionID) -> Int32 {
        let expression = tree[id]
        let span = expression.span
        switch expression.kind {
        case .null: return literal(.null, span)
        case .bool(let value): return literal(.bool(value), span)
        case .int(let value): return literal(.int(value), span)
        case .float(let value): return literal(.float(value), span)
        case .string(let value): return literal(.string(value), span)
        case .bytes(let value): return literal(.bytes(value), span)
        case .name(let name): return variable(name)
        case .member(let object, let name): return member(object, name, span)
        case .call(let name, let arguments): return call(name, arguments, span)
        case .method(let receiver, let name, let arguments): return method(receiver, name, arguments, span)
        case .index(let object, let key):
            let object = self.expression(object)
            return emit(.index(object, self.expression(key)), span)
        case .slice(let object, let first, let last):
            let object = self.expression(object)
            let first = first.map { self.expression($0) } ?? -1
            return emit(.slice(object, first, last.map { self.expression($0) } ?? -1), span)
        case .not(let operand): return emit(.not(self.expression(operand)), span)
        case .negate(let operand): return negation(operand, span)
        case .binary(let operation, let left, let right): return binary(operation, left, right, span)
        case .all(let operands): return emit(.all(list(expressions(operands))), span)
        case .any(let operands): return emit(.any(list(expressions(operands))), span)
        case .isType(let operand, let type): return typeTest(operand, type, span)
        case .conditional(let condition, let whenTrue, let whenFalse):
            let nodes = expressions([condition, whenTrue, whenFalse])
            return emit(.conditional(nodes[0], nodes[1], nodes[2]), span)
        case .list(let elements): return listLiteral(elements, span)
        case .map(let entries): return mapLiteral(entries, span)
        case .path(let parts): return pathLiteral(parts, span)
        }
    }

    mutating func expressions(_ ids: [ExpressionID]) -> [Int32] { ids.map { expression($0) } }

    private mutating func literal(_ value: Datum, _ span: Span32) -> Int32 {
        emit(.constant(constant(value)), span)
    }

    /// The value of a node that consists only of literals.
    func constantValue(_ node: Int32) -> Datum? {
        switch operations[Int(node)] {
        case .constant(let index), .folded(let index, _): constants[Int(index)]
        default: nil
        }
    }

    /// The evaluation cost of nodes that consist only of literals.
    func constantCost(_ nodes: [Int32]) -> Int32 {
        nodes.reduce(0) { sum, node in
            if case .folded(_, let cost) = operations[Int(node)] { sum + cost } else { sum + 1 }
        }
    }

    /// Emits the value of an operator, list or path over literals. It costs one more than its operands.
    private mutating func folded(_ value: Datum, _ nodes: [Int32], _ span: Span32) -> Int32 {
        emit(.folded(constant(value), cost: 1 + constantCost(nodes)), span)
    }

    // MARK: Names

    /// Resolves a name, from the innermost scope outwards.
    private mutating func resolve(_ name: String) -> Operation? {
        if let index = locals.lastIndex(where: { $0.name.text == name }) {
            locals[index].isUsed = true
            return .local(Int32(index))
        }
        for scope in scopes.reversed() {
            if let capture = scope.captures[name] { return capture.operation }
        }
        switch name {
        case "request": return .record(.request)
        case "resource": return .record(.existing)
        default: return nil
        }
    }

    private mutating func variable(_ name: Name) -> Int32 {
        if let operation = resolve(name.text) {
            switch operation {
            // An expression that uses `request` as a whole may read all of it.
            case .record(.request): reads.formUnion([.auth, .incoming])
            case .record(.existing): reads.formUnion(.existing)
            default: break
            }
            return emit(operation, name.span)
        }
        if Library.namespaces.contains(name.text) {
            sink.error(
                "Invalid variable name: \(name.text).", at: name.span, hint: "\(name.text) is a namespace of functions")
        } else {
            let candidates =
                mayCompare
                ? scopes.flatMap(\.captures.keys) + locals.map(\.name.text) + [
                    "request", "resource",
                ]
                : []
            let near = nearest(to: name.text, among: candidates)
            let isFunction = scopes.contains { $0.functions[name.text] != nil }
            sink.warning(
                "Invalid variable name: \(name.text).", at: name.span,
                hint: isFunction
                    ? "a function is called with parentheses: \(name.text)()" : near.map { "did you mean '\($0)'?" })
        }
        return emit(.undefined(name: self.name(name.text)), name.span)
    }

    private mutating func member(_ object: ExpressionID, _ name: Name, _ span: Span32) -> Int32 {
        let code = FieldCode(Text(name.text))
        let kept = reads
        let base = expression(object)
        switch operations[Int(base)] {
        case .record(.request):
            reads = kept
            switch code.request {
            case .auth: reads.formUnion(.auth)
            case .resource: reads.formUnion(.incoming)
            case nil: warnUnknown(name, of: "request", among: RequestField.keys)
            default: break
            }
        case .record(.existing) where code.object == nil: warnUnknown(name, of: "resource", among: ObjectField.keys)
        case .member(let request, _, let field) where field.request == .resource:
            guard case .record(.request) = operations[Int(request)] else { break }
            reads = kept
            if let field = code.object, field.isIncoming {
                reads.formUnion(InputBits(field))
            } else {
                let keys = ObjectField.allCases.filter(\.isIncoming).map { Text($0.key) }
                warnUnknown(name, of: "request.resource", among: keys)
            }
        default: break
        }
        return emit(.member(base, name: self.name(name.text), code), span)
    }

    private mutating func warnUnknown(_ name: Name, of object: String, among keys: [Text]) {
        let hints = [
            "data": "an object of storage has no data; its custom metadata is in .metadata",
            "timeUpdated": "did you mean 'updated'?", "contentLength": "did you mean 'size'?",
            "type": "did you mean 'contentType'?",
        ]
        let near = nearest(to: name.text, among: keys.map(\.string))
        sink.warning(
            "Invalid property name: \(object).\(name.text).", at: name.span,
            hint: hints[name.text] ?? near.map { "did you mean '\($0)'?" })
    }

    // MARK: Operators

    private mutating func negation(_ operand: ExpressionID, _ span: Span32) -> Int32 {
        let node = expression(operand)
        switch constantValue(node) {
        case .int(let value) where value != .min: return folded(.int(-value), [node], span)
        case .float(let value): return folded(.float(-value), [node], span)
        default: return emit(.negate(node), span)
        }
    }

    private mutating func binary(
        _ operation: BinaryOperator, _ left: ExpressionID, _ right: ExpressionID, _ span: Span32
    ) -> Int32 {
        let left = expression(left)
        let right = expression(right)
        if case .int(let a)? = constantValue(left), case .int(let b)? = constantValue(right),
            let folded = Arithmetic.integer(operation, a, b)
        {
            return self.folded(.int(folded), [left, right], span)
        }
        if operation == .add, case .string(let a)? = constantValue(left), case .string(let b)? = constantValue(right),
            a.count + b.count <= EvaluationLimits.size
        {
            return folded(.string(a + b), [left, right], span)
        }
        return emit(.binary(operation, left, right), span)
    }

    private mutating func typeTest(_ operand: ExpressionID, _ type: Name, _ span: Span32) -> Int32 {
        let node = expression(operand)
        guard let known = TypeName(rawValue: type.text) else {
            let near = nearestName(to: type.text, among: TypeName.allCases.map(\.rawValue))
            sink.error(
                "Invalid type: \(type.text).", at: type.span,
                hint: near.map { "did you mean '\($0)'?" }
                    ?? "the types are \(TypeName.allCases.map(\.rawValue).joined(separator: ", "))")
            return node
        }
        return emit(.isType(node, known), span)
    }

    // MARK: Composed values

    private mutating func listLiteral(_ elements: [ExpressionID], _ span: Span32) -> Int32 {
        let nodes = expressions(elements)
        let values = nodes.compactMap { constantValue($0) }
        if values.count == nodes.count {
            return folded(.list(values), nodes, span)
        }
        return emit(.list(list(nodes)), span)
    }

    private mutating func mapLiteral(_ entries: [ExpressionID], _ span: Span32) -> Int32 {
        var seen: Set<Text> = []
        for key in stride(from: 0, to: entries.count, by: 2) {
            guard case .string(let text) = tree[entries[key]].kind else { continue }
            if !seen.insert(text).inserted {
                sink.warning(
                    "Duplicate key in map: \(text.string).", at: tree[entries[key]].span, hint: "the last one counts")
            }
        }
        return emit(.map(list(expressions(entries))), span)
    }

    private mutating func pathLiteral(_ parts: [PathPart], _ span: Span32) -> Int32 {
        var isConstant = true
        var nodes: [Int32] = []
        var segments: [PathValue.Segment] = []
        for part in parts {
            var location = span
            switch part {
            case .literal(let text, let own):
                segments.append(.text(text))
                location = own
            case .binding(let name, let own):
                segments.append(.binding(name))
                location = own
            case .interpolated(let id):
                if case .name(let name) = tree[id].kind, resolve(name.text) == nil,
                    !Library.namespaces.contains(name.text)
                {
                    // An undefined name is left for bind() to fill in.
                    _ = variable(name)
                    segments.append(.binding(Text(name.text)))
                    location = name.span
                    break
                }
                isConstant = false
                nodes.append(expression(id))
                continue
            }
            // A literal segment among interpolated ones is a path of one segment.
            nodes.append(literal(.path(PathValue([segments[segments.count - 1]])), location))
        }
        if isConstant { return folded(.path(PathValue(segments)), nodes, span) }
        return emit(.path(list(nodes)), span)
    }
}
