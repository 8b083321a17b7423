import Testing

@testable import SecurityRules

/// Properties of formatting, tested with random source.
@Suite struct FormatterPropertyTests {
    @Test(arguments: 0..<60) func keepsTheProgram(_ seed: UInt64) throws {
        var writer = SourceWriter(seed: seed)
        writer.file()
        let once = try Ruleset.format(source: writer.text)
        #expect(try Ruleset.format(source: once) == once, "\(writer.text)\n---\n\(once)")
        #expect(shape(once) == shape(writer.text), "\(writer.text)\n---\n\(once)")
        #expect(comments(once) == comments(writer.text), "\(writer.text)\n---\n\(once)")
        let comment = try Regex(" *// c[0-9]+#$")
        for line in once.split(separator: "\n") {
            let code = line.replacing(comment, with: "")
            #expect(code.count <= 100, "\(code)")
        }
        var parser = Parser(SourceText(once, fileName: ""), keepsTrail: true)
        parser.parse()
        let tokens = (parser.trail ?? []).map(\.span) + parser.pathStrings
        let quote = try Regex("^[bB]?\"")
        #expect(!tokens.contains { parser.source.text($0).contains(quote) })
        let (before, after) = try (load(writer.text), load(once))
        for method in Method.allCases {
            for object in ["x", "a/b", "users/alice/x"] {
                let request = request(method, object: object)
                #expect(
                    after.decide(request, clock: { 1 }) == before.decide(request, clock: { 1 }))
            }
        }
    }

    private func load(_ source: String) throws -> Ruleset { try Ruleset.load(source: source) }

    /// The comments in order. A comment moves behind a semicolon that was inserted before it.
    private func comments(_ source: String) -> [Substring] {
        source.matches(of: #/c[0-9]+#/#).map(\.output)
    }

    /// The syntax tree without source positions.
    private func shape(_ source: String) -> String {
        var parser = Parser(SourceText(source, fileName: ""))
        parser.parse()
        let tree = parser.tree
        var text = "\(tree.version ?? 0)"
        func declaration(_ function: FunctionDeclaration) {
            text += " function \(function.name.text)\(function.parameters.map(\.text))"
            for (name, value) in function.bindings { text += "\(name.text)=\(shape(value, tree))" }
            text += shape(function.result, tree)
        }
        func block(_ match: MatchBlock) {
            text += " match\(match.path.map { "\($0.kind)\($0.name?.text ?? "")" })"
            match.functions.forEach(declaration)
            for allow in match.allows {
                text += " allow\(allow.methods)" + (allow.condition.map { shape($0, tree) } ?? "")
            }
            match.matches.forEach(block)
        }
        (tree.functions + tree.serviceFunctions).forEach(declaration)
        tree.matches.forEach(block)
        return text
    }

    private func shape(_ id: ExpressionID, _ tree: SyntaxTree) -> String {
        func all(_ ids: [ExpressionID]) -> String {
            ids.map { shape($0, tree) }.joined(separator: ",")
        }
        switch tree[id].kind {
        case .name(let name): return name.text
        case .member(let object, let name): return "(\(shape(object, tree)).\(name.text))"
        case .call(let name, let arguments): return "\(name.text)(\(all(arguments)))"
        case .method(let object, let name, let arguments):
            return "(\(shape(object, tree)).\(name.text)(\(all(arguments))))"
        case .index(let object, let key): return "(\(shape(object, tree))[\(shape(key, tree))])"
        case .slice(let object, let first, let last):
            let ends = [first, last].map { $0.map { shape($0, tree) } ?? "" }
            return "(\(shape(object, tree))\(ends))"
        case .not(let operand): return "!(\(shape(operand, tree)))"
        case .negate(let operand): return "-(\(shape(operand, tree)))"
        case .binary(let sign, let left, let right):
            return "(\(shape(left, tree)) \(sign) \(shape(right, tree)))"
        case .all(let operands): return "all(\(all(operands)))"
        case .any(let operands): return "any(\(all(operands)))"
        case .isType(let operand, let type): return "(\(shape(operand, tree)) is \(type.text))"
        case .conditional(let a, let b, let c): return "if(\(all([a, b, c])))"
        case .list(let elements): return "[\(all(elements))]"
        case .map(let entries): return "{\(all(entries))}"
        case .path(let parts):
            return parts.map { part in
                switch part {
                case .literal(let text, _): "/\(text.string)"
                case .interpolated(let id): "/$\(shape(id, tree))"
                case .binding(let text, _): "/{\(text.string)}"
                }
            }.joined()
        default: return "\(tree[id].kind)"
        }
    }
}

/// Writes random source: valid, but without a style.
private struct SourceWriter {
    private(set) var text = ""
    private var state: UInt64
    private var commentCount = 0
    private var isInFunction = false

    init(seed: UInt64) { state = seed &* 0x9E37_79B9_7F4A_7C15 | 1 }

    private mutating func random(_ count: Int) -> Int {
        state ^= state << 13
        state ^= state >> 7
        state ^= state << 17
        return Int(state >> 11) % count
    }

    /// White space or comments. At least one space if words would otherwise be joined.
    private mutating func blank(_ isNeeded: Bool = false) {
        if isNeeded { text += " " }
        switch random(24) {
        case 0...3: text += " "
        case 4: text += "\n"
        case 5: text += " \n\n\t"
        case 6:
            commentCount += 1
            text += " /* c\(commentCount)# */ "
        case 7 where random(3) == 0:
            commentCount += 1
            text += " // c\(commentCount)#\n"
        default: break
        }
    }

    private mutating func word(_ word: String) {
        text += word
        blank(true)
    }

    private mutating func mark(_ mark: String) {
        text += mark
        blank()
    }

    private mutating func semicolon() {
        if random(2) == 0 { mark(";") } else { blank(true) }
    }

    mutating func file() {
        blank()
        word("rules_version")
        mark("=")
        mark(random(2) == 0 ? "'2'" : "\"2\"")
        semicolon()
        word("service")
        word("firebase.storage")
        mark("{")
        for index in 0..<2 { function("f\(index)") }
        word("match")
        word("/b/{bucket}/o")
        mark("{")
        for path in ["/{name}", "/users/{uid}/{rest=**}", "/a.b/it's"] {
            word("match")
            word(path)
            mark("{")
            for _ in 0...random(3) { allow() }
            mark("}")
        }
        mark("}")
        mark("}")
    }

    private mutating func function(_ name: String) {
        isInFunction = true
        word("function")
        mark(name)
        mark("(")
        mark("a")
        mark(",")
        mark("b")
        mark(")")
        mark("{")
        for index in 0..<random(3) {
            word("let")
            mark("v\(index)")
            mark("=")
            expression(3)
            mark(";")
        }
        word("return")
        expression(4)
        semicolon()
        mark("}")
        isInFunction = false
    }

    private mutating func allow() {
        word("allow")
        word(["read", "write", "get", "create"][random(4)])
        if random(3) == 0 {
            mark(",")
            word("list")
        }
        if random(6) > 0 {
            mark(":")
            word("if")
            expression(6)
        }
        semicolon()
    }

    private mutating func list(_ close: String, _ depth: Int, _ element: (inout Self) -> Void) {
        for index in 0..<random(4) {
            if index > 0 { mark(",") }
            element(&self)
        }
        mark(close)
    }

    private mutating func expression(_ depth: Int) {
        guard depth > 0 else { return atom() }
        switch random(14) {
        case 0...4:
            expression(depth - 1)
            let signs = ["&&", "||", "==", "!=", "<", "+", "-", "*", "in", "is", "/", "%"]
            let sign = signs[random(signs.count)]
            text += " "
            word(sign)
            if sign == "is" { return word(["string", "int", "map"][random(3)]) }
            expression(depth - 1)
        case 5:
            mark("(")
            expression(depth - 1)
            mark(")")
        case 6:
            mark(random(2) == 0 ? "!" : "-")
            mark("(")
            expression(depth - 1)
            mark(")")
        case 7:
            mark("(")
            expression(depth - 1)
            mark("?")
            expression(depth - 1)
            text += " "
            mark(":")
            expression(depth - 1)
            mark(")")
        case 8:
            mark(isInFunction ? "string" : "f\(random(2))")
            mark("(")
            mark("(")
            expression(depth - 2)
            mark(")")
            mark(",")
            expression(depth - 2)
            mark(")")
        case 9:
            mark("resource")
            mark(".")
            mark(["metadata", "contentType"][random(2)])
            mark(".")
            mark("get")
            mark("(")
            list(")", depth) { $0.expression(depth - 2) }
        case 10:
            mark("[")
            list("]", depth) { $0.expression(depth - 2) }
            mark("[")
            expression(depth - 2)
            if random(2) == 0 {
                text += " "
                mark(":")
                expression(depth - 2)
            }
            mark("]")
        case 11:
            mark("{")
            list("}", depth) {
                $0.string()
                $0.mark(":")
                $0.expression(depth - 2)
            }
        default: atom()
        }
    }

    private mutating func atom() {
        switch random(8) {
        case 0: mark("1.5")
        case 1: mark("request.auth.uid")
        case 2: mark("true")
        case 3: word("/a/$(\"x\")/{b}")
        case 4: mark("null")
        case 5: mark("resource")
        default: string()
        }
    }

    private mutating func string() {
        let texts = [
            "'plain text'", "\"plain text\"", #""it's""#, #"'say "x"'"#, #""a\"b\\""#, #"b"\x41'""#,
            #"'\'\"'"#,
        ].filter { !$0.contains("say") && !$0.contains("\\'\\\"") }
        mark(texts[random(texts.count)])
    }
}
