import Wire

/// Parses expressions by operator precedence.
extension Parser {
    /// The maximum nesting, as in the hosted compiler. Each operator, parenthesis, bracket and argument list is one
    /// level, so a chain of n operators has n levels.
    static let maximumNesting = 99
    /// The maximum height of an expression tree, including consecutive properties and methods.
    static let maximumDepth = 200

    mutating func expression() throws(Failure) -> ExpressionID {
        depth += 1
        defer { depth -= 1 }
        guard depth <= Self.maximumNesting else { throw tooComplex() }
        let condition = try binary(minimum: 0)
        guard isMark("?") else { return condition }
        let mark = advance(.binary)
        let whenTrue = try expression()
        guard isMark(":") else {
            throw unexpected(expected: "':'", hint: "a conditional is: condition ? value : other")
        }
        advance(.binary)
        let whenFalse = try expression()
        let span = Span32(from: tree[condition].span, to: tree[whenFalse].span)
        return try add(
            .conditional(condition, whenTrue, whenFalse), span, [condition, whenTrue, whenFalse], mark: mark)
    }

    private mutating func tooComplex(at span: Span32? = nil) -> Failure {
        sink.error("Expression is too complex to evaluate safely.", at: span ?? token.span)
        return Failure()
    }

    mutating func add(
        _ kind: Expression.Kind, _ span: Span32, _ operands: [ExpressionID] = [],
        mark: Span32? = nil
    ) throws(Failure) -> ExpressionID {
        let depth = 1 + (operands.map { tree[$0].depth }.max() ?? 0)
        let levels = levels(kind, operands)
        if depth > Self.maximumDepth || levels > Self.maximumNesting { throw tooComplex(at: span) }
        tree.expressions.append(
            Expression(kind: kind, span: span, mark: (mark ?? span).start, depth: depth, levels: levels))
        return ExpressionID(tree.expressions.count - 1)
    }

    private func levels(_ kind: Expression.Kind, _ operands: [ExpressionID]) -> Int {
        let deepest = operands.map { tree[$0].levels }.max() ?? 0
        switch kind {
        case .member: return deepest
        case .method(let object, _, _), .index(let object, _), .slice(let object, _, _):
            // The receiver is not nested; the arguments are one level deeper.
            let inside = operands.dropFirst().map { tree[$0].levels }.max() ?? 0
            return max(tree[object].levels, inside + 1)
        case .all(let operands), .any(let operands):
            // The chain is left-associative: each operator has everything before it as its left operand.
            return operands.dropFirst().reduce(tree[operands[0]].levels) {
                1 + max($0, tree[$1].levels)
            }
        default: return deepest + 1
        }
    }

    // MARK: Binary operators

    private enum Operator {
        case any, all, isType
        case binary(BinaryOperator)
    }

    /// The operator at the current token, and its precedence.
    private func currentOperator() -> (Operator, Int)? {
        guard token.kind == .mark || token.kind == .word else { return nil }
        if isMark("||") { return (.any, 1) }
        if isMark("&&") { return (.all, 2) }
        if isWord("is") { return (.isType, 4) }
        let length = token.span.end - token.span.start
        guard length <= 2, let found = BinaryOperator(rawValue: tokenText) else { return nil }
        switch found {
        case .equal, .notEqual: return (.binary(found), 3)
        case .isIn: return (.binary(found), 5)
        case .less, .lessOrEqual, .greater, .greaterOrEqual: return (.binary(found), 6)
        case .add, .subtract: return (.binary(found), 7)
        case .multiply, .divide, .remainder: return (.binary(found), 8)
        }
    }

    /// Parses operators with a precedence above `minimum`. All are left-associative.
    private mutating func binary(minimum: Int) throws(Failure) -> ExpressionID {
        var left = try unary()
        while let (found, strength) = currentOperator(), strength > minimum {
            if isMark("/"), !lexer.isAtBlank {
                sink.error(
                    "Missing 'match' keyword before path.", at: token.span,
                    hint: "a slash before anything but a space begins a path; to divide, write: a / b")
                throw Failure()
            }
            let mark = advance(.binary)
            switch found {
            case .isType:
                guard token.kind == .word else { throw unexpected(expected: "a type") }
                let type = Name(text: tokenText, span: token.span)
                advance(.plain)
                let span = Span32(from: tree[left].span, to: type.span)
                left = try add(.isType(left, type), span, [left], mark: mark)
            case .any, .all:
                if isMark("|") || isMark("&") { throw unexpected() }
                left = try chain(left, strength, mark)
            case .binary(let operation):
                let right = try rightOperand(strength)
                let span = Span32(from: tree[left].span, to: tree[right].span)
                left = try add(
                    .binary(operation, left, right), span, [left, right], mark: mark)
            }
        }
        return left
    }

    /// Parses the right operand of an operator, one level deeper.
    private mutating func rightOperand(_ strength: Int) throws(Failure) -> ExpressionID {
        depth += 1
        defer { depth -= 1 }
        guard depth <= Self.maximumNesting else { throw tooComplex() }
        return try binary(minimum: strength)
    }

    /// Parses the rest of `left && …` or `left || …`. The current token is the one after the first operator.
    private mutating func chain(
        _ left: ExpressionID, _ strength: Int, _ mark: Span32
    ) throws(Failure) -> ExpressionID {
        var operands = [left, try rightOperand(strength)]
        while strength == 1 ? isMark("||") : isMark("&&") {
            advance(.binary)
            operands.append(try rightOperand(strength))
        }
        let span = Span32(from: tree[left].span, to: tree[operands[operands.count - 1]].span)
        return try add(
            strength == 1 ? .any(operands) : .all(operands), span, operands, mark: mark)
    }

    // MARK: Unary operators and what follows a value

    private mutating func unary() throws(Failure) -> ExpressionID {
        guard isMark("!") || isMark("-") else { return try postfix(primary()) }
        depth += 1
        defer { depth -= 1 }
        guard depth <= Self.maximumNesting else { throw tooComplex() }
        let isNot = isMark("!")
        let start = advance(.prefix)
        if !isNot, token.kind == .int, UInt64(tokenText) == UInt64(Int64.max) + 1 {
            let span = Span32(from: start, to: token.span)
            advance(.plain)
            return try postfix(add(.int(.min), span))
        }
        let operand = try unary()
        let span = Span32(from: start, to: tree[operand].span)
        return try add(isNot ? .not(operand) : .negate(operand), span, [operand])
    }

    private mutating func postfix(_ primary: ExpressionID) throws(Failure) -> ExpressionID {
        var value = primary
        while true {
            let start = tree[value].span
            if isMark(".") {
                advance(.tight)
                guard token.kind == .word else {
                    throw unexpected(expected: "a property or a method")
                }
                let name = Name(text: tokenText, span: token.span)
                advance(.plain)
                if isMark("(") {
                    let arguments = try arguments()
                    let span = Span32(Int(start.start), Int(lastEnd))
                    value = try add(.method(value, name, arguments), span, [value] + arguments, mark: name.span)
                } else {
                    value = try add(.member(value, name), Span32(from: start, to: name.span), [value])
                }
            } else if isMark("[") {
                value = try subscripted(value)
            } else {
                return value
            }
        }
    }

    private mutating func subscripted(_ value: ExpressionID) throws(Failure) -> ExpressionID {
        advance(.tight)
        let first = isMark(":") ? nil : try expression()
        var isSlice = false
        var last: ExpressionID?
        if isMark(":") {
            isSlice = true
            advance(.tight)
            if !isMark("]") { last = try expression() }
        }
        if isSlice, first == nil, last == nil {
            throw unexpected(hint: "a range has at least one of its ends")
        }
        try expect("]", .close)
        let span = Span32(Int(tree[value].span.start), Int(lastEnd))
        let operands = [value] + [first, last].compactMap(\.self)
        guard !isSlice, let first else {
            return try add(.slice(value, first, last), span, operands)
        }
        return try add(.index(value, first), span, operands)
    }

    /// Parses `(a, b)`. The current token is the opening parenthesis.
    private mutating func arguments() throws(Failure) -> [ExpressionID] {
        advance(.tight)
        return try elements(until: ")", trailingComma: false)
    }

    private mutating func elements(
        until close: StaticString, trailingComma: Bool
    ) throws(Failure) -> [ExpressionID] {
        var elements: [ExpressionID] = []
        while !isMark(close) {
            elements.append(try expression())
            guard isMark(",") else { break }
            advance(.separator)
            if isMark(close), !trailingComma { throw unexpected(expected: "an argument") }
        }
        try expect(close, .close)
        return elements
    }

    // MARK: Values

    private mutating func primary() throws(Failure) -> ExpressionID {
        let span = token.span
        switch token.kind {
        case .int:
            guard let value = Int64(tokenText) else {
                sink.error("Integer literal is out of range.", at: span)
                throw Failure()
            }
            advance(.plain)
            return try add(.int(value), span)
        case .float:
            var digits = tokenText
            if digits.hasPrefix(".") { digits = "0" + digits }
            if digits.hasSuffix(".") { digits += "0" }
            advance(.plain)
            return try add(.float(Double(digits) ?? .nan), span)
        case .string, .bytes: return try string()
        case .word: return try word()
        case .mark: return try bracketed()
        case .end, .unknown: throw unexpected(expected: "an expression")
        }
    }

    private mutating func string() throws(Failure) -> ExpressionID {
        let span = token.span
        let isBytes = token.kind == .bytes
        let start = Int(span.start) + (isBytes ? 1 : 0)
        do {
            let value = try StringLiteral.decode(source.bytes[start..<Int(span.end)], isBytes: isBytes)
            advance(.plain)
            return try add(isBytes ? .bytes(value) : .string(Text(value)), span)
        } catch let error as StringLiteral.BadEscape {
            let at = Span32(start + error.range.lowerBound, start + error.range.upperBound)
            sink.error(
                "Invalid escape sequence '\(error.text)'.", at: at,
                hint: error.text.hasPrefix("\\u")
                    ? "each \\u is one unit of UTF-16; surrogates come in pairs: '\\ud83d\\ude00'"
                    : "for a backslash in a pattern write '\\\(error.text)', or a class such as '[.]'")
            advance(.plain)
            return try add(.string(""), span)
        } catch { throw Failure() }
    }

    private mutating func word() throws(Failure) -> ExpressionID {
        let span = token.span
        switch tokenText {
        case "true", "false":
            let value = isWord("true")
            advance(.plain)
            return try add(.bool(value), span)
        case "null":
            advance(.plain)
            return try add(.null, span)
        case let text:
            if Self.keywords.contains(text) { throw unexpected(expected: "an expression") }
            advance(.plain)
            let name = Name(text: text, span: span)
            guard isMark("(") else { return try add(.name(name), span) }
            let arguments = try arguments()
            return try add(
                .call(name, arguments), Span32(Int(span.start), Int(lastEnd)), arguments)
        }
    }

    private mutating func bracketed() throws(Failure) -> ExpressionID {
        let start = token.span
        if isMark("/") { return try pathLiteral() }
        if isMark("(") {
            advance(.open)
            let value = try expression()
            try expect(")", .close)
            tree.groups.append(Span32(Int(start.start), Int(lastEnd)))
            tree.expressions[Int(value)].levels += 1
            return value
        }
        if isMark("[") {
            advance(.open)
            let elements = try elements(until: "]", trailingComma: true)
            return try add(.list(elements), Span32(Int(start.start), Int(lastEnd)), elements)
        }
        guard isMark("{") else { throw unexpected(expected: "an expression", hint: operatorHint()) }
        advance(.open)
        var entries: [ExpressionID] = []
        while !isMark("}") {
            entries.append(try expression())
            try expect(":", .separator)
            entries.append(try expression())
            guard isMark(",") else { break }
            advance(.separator)
        }
        try expect("}", .close)
        return try add(.map(entries), Span32(Int(start.start), Int(lastEnd)), entries)
    }

    private func operatorHint() -> String? {
        isMark("=") ? "equality is written '==', and there is no '==='" : nil
    }
}
