import Wire

/// Resolves calls.
extension Compiler {
    mutating func call(_ name: Name, _ arguments: [ExpressionID], _ span: Span32) -> Int32 {
        for scope in scopes.reversed() {
            guard let number = scope.functions[name.text] else { continue }
            facts[Int(number)].isUsed = true
            let nodes = expressions(arguments)
            let wanted = facts[Int(number)].parameterCount
            guard nodes.count == wanted else {
                sink.warning(
                    "Incorrect number of arguments supplied to function: \(name.text).", at: name.span,
                    hint: "\(name.text) takes \(wanted) argument\(wanted == 1 ? "" : "s")")
                let types = [String](repeating: "any", count: wanted).joined(separator: ", ")
                return miscounted("\(name.text)(\(types))", nodes, span)
            }
            calls.append(number)
            return emit(.userCall(number, list(nodes)), span)
        }
        return libraryCall(name.text, name, arguments, span)
    }

    private mutating func libraryCall(
        _ fullName: String, _ name: Name, _ arguments: [ExpressionID], _ span: Span32
    ) -> Int32 {
        let nodes = expressions(arguments)
        guard let function = Library.functionsByName[fullName] else {
            let hint = functionHint(fullName)
            sink.warning("Invalid function name: \(fullName).", at: name.span, hint: hint)
            return undefinedCall(fullName, span)
        }
        let entry = function.entry
        guard nodes.count == entry.parameters.count else {
            sink.warning(
                "Incorrect number of arguments supplied to function: \(fullName).", at: name.span,
                hint: "it is called as \(entry.signature)")
            return miscounted(entry.expected, nodes, span)
        }
        if let warning = entry.warning {
            sink.warning("Invalid function name: \(fullName).", at: name.span, hint: warning)
        }
        if function == .firestoreGet || function == .firestoreExists { reads.formUnion(.documents) }
        return emit(.call(function, list(nodes)), span)
    }

    private mutating func functionHint(_ name: String) -> String? {
        switch name {
        case "get", "exists", "getAfter", "existsAfter":
            return "in rules for storage a document is read with firestore.get() or firestore.exists()"
        case "math.isInfinite": return "the hosted service documents it but does not have it; compare with a bound"
        case "bool": return "compare with a string instead: x == 'true'"
        default:
            guard mayCompare else { return nil }
            let own = scopes.flatMap(\.functions.keys)
            let near = nearest(to: name, among: own + Array(Library.functionsByName.keys))
            return near.map { "did you mean '\($0)'?" }
        }
    }

    private mutating func miscounted(
        _ expected: String, _ nodes: [Int32], _ span: Span32
    ) -> Int32 {
        emit(
            .miscountedCall(expected: self.name(expected), received: Int32(nodes.count)), span)
    }

    private mutating func undefinedCall(_ name: String, _ span: Span32) -> Int32 {
        emit(.undefinedCall(name: self.name(name)), span)
    }

    // MARK: Methods

    mutating func method(
        _ receiver: ExpressionID, _ name: Name, _ arguments: [ExpressionID], _ span: Span32
    ) -> Int32 {
        if case .name(let namespace) = tree[receiver].kind,
            Library.namespaces.contains(namespace.text)
        {
            return libraryCall("\(namespace.text).\(name.text)", name, arguments, span)
        }
        let object = expression(receiver)
        let nodes = arguments.enumerated().map { index, argument in
            index == 0 ? firstArgument(argument, of: name.text) : expression(argument)
        }
        let entries = Library.methodsByName[name.text] ?? []
        if entries.isEmpty {
            let hint = methodHint(name.text)
            sink.warning("Invalid function name: \(name.text).", at: name.span, hint: hint)
        } else if !entries.contains(where: { $0.parameters.count == nodes.count }) {
            let forms = entries.map(\.signature).joined(separator: ", ")
            sink.warning(
                "Invalid function name: \(name.text).", at: name.span,
                hint: "it is called as \(forms)")
        }
        return emit(.method(name: self.name(name.text), list([object] + nodes)), span)
    }

    /// Compiles a constant regular expression at load time. For `matches`, a single literal must be valid.
    private mutating func firstArgument(_ argument: ExpressionID, of method: String) -> Int32 {
        let node = expression(argument)
        guard ["matches", "split", "replace"].contains(method),
            case .string(let text)? = constantValue(node)
        else { return node }
        let span = tree[argument].span
        do throws(Pattern.Invalid) {
            guard let index = try pattern(text, at: span) else { return node }
            return emit(
                .pattern(
                    index, constant: constant(.string(text)), cost: constantCost([node])), span)
        } catch {
            let message = "Invalid regular expression pattern: \(error.reason)."
            let lookarounds = ["(?=", "(?!", "(?<"]
            let hint =
                lookarounds.contains { text.string.contains($0) }
                ? "RE2 has no lookahead, lookbehind or back-references" : nil
            if method == "matches", case .string = tree[argument].kind {
                sink.error(message, at: span, hint: hint)
            } else {
                sink.warning(message, at: span, hint: hint ?? "the expression is always an error")
            }
            return node
        }
    }

    /// The index of a compiled regular expression; nil if all of them are too large. Equal ones share one.
    private mutating func pattern(
        _ text: Text, at span: Span32
    ) throws(Pattern.Invalid) -> Int32? {
        if let known = patternIndices[text] { return known }
        guard patternSize <= Pattern.maximumTotalSize else { return nil }
        // Rejecting a pattern as too large takes as long as compiling the largest permitted one.
        var size = Pattern.maximumSize
        defer {
            patternSize += size
            if patternSize > Pattern.maximumTotalSize {
                sink.error("The regular expressions are too large together.", at: span)
            }
        }
        let pattern: Pattern
        do {
            pattern = try Pattern(text)
        } catch {
            if !error.reason.contains("too large") { size = text.count }
            throw error
        }
        size = pattern.size
        patterns.append(pattern)
        patternIndices[text] = Int32(patterns.count - 1)
        return Int32(patterns.count - 1)
    }

    private mutating func methodHint(_ name: String) -> String? {
        switch name {
        case "contains", "includes", "indexOf":
            return "for a list or map write: x in list; for a string: text.matches('.*x.*')"
        case "startsWith": return "write: text.matches('prefix.*')"
        case "endsWith": return "write: text.matches('.*suffix')"
        case "substring", "substr": return "write: text[from:to]"
        case "length", "count": return "write: size()"
        case "toLowerCase": return "write: lower()"
        case "toUpperCase": return "write: upper()"
        default:
            return nearest(to: name, among: Array(Library.methodsByName.keys)).map {
                "did you mean '\($0)'?"
            }
        }
    }
}
