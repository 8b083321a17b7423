import Wire

/// Parses the declarations of a ruleset: version, service, match blocks, allow statements and functions.
///
/// `ParserExpressions.swift` parses expressions and `ParserPaths.swift` parses paths. After an error the parser
/// continues with the next statement, so that one run reports several errors.
struct Parser {
    /// An error that has already been reported. It unwinds to the next statement.
    struct Failure: Error {}

    /// The role of a token, which determines the spaces and line breaks around it in formatted text.
    enum Role {
        case plain, statement, binary, prefix, tight, open, close, separator, semicolon, blockOpen
        case blockClose
    }

    static let maximumMatchDepth = 10
    static let maximumArguments = 7
    /// The hosted service documents 10 and accepts 11.
    static let maximumBindings = 11

    var lexer: Lexer
    var sink: DiagnosticSink
    var token: Token
    var tree = SyntaxTree()
    /// The nesting depth of the current expression.
    var depth = 0
    /// Every token in order; nil unless the parser was created with `keepsTrail`.
    var trail: [(span: Span32, role: Role)]?
    /// Strings inside paths. Their tokens are not in the trail.
    var pathStrings: [Span32] = []
    private var previousEnd: Int32 = 0

    init(_ source: SourceText, keepsTrail: Bool = false) {
        lexer = Lexer(source)
        sink = DiagnosticSink(source)
        token = lexer.next()
        trail = keepsTrail ? [] : nil
    }

    var source: SourceText { lexer.source }

    // MARK: Tokens

    func isMark(_ text: StaticString) -> Bool { token.kind == .mark && spells(token, text) }

    func isWord(_ text: StaticString) -> Bool { token.kind == .word && spells(token, text) }

    private func spells(_ token: Token, _ text: StaticString) -> Bool {
        let range = Int(token.span.start)..<Int(token.span.end)
        guard range.count == text.utf8CodeUnitCount else { return false }
        return source.bytes[range].elementsEqual(text.description.utf8)
    }

    var tokenText: String { source.text(token.span) }

    @discardableResult
    mutating func advance(_ role: Role) -> Span32 {
        let span = token.span
        trail?.append((span, role))
        previousEnd = span.end
        token = lexer.next()
        return span
    }

    /// The end of the last token that was consumed.
    var lastEnd: Int32 { previousEnd }

    /// Continues at a byte offset that the path parser has reached.
    mutating func resume(at position: Int, recording span: Span32, _ role: Role) {
        trail?.append((span, role))
        previousEnd = span.end
        lexer.position = position
        token = lexer.next()
    }

    @discardableResult
    mutating func expect(_ mark: StaticString, _ role: Role, hint: String? = nil) throws(Failure)
        -> Span32
    {
        guard isMark(mark) else { throw unexpected(expected: "'\(mark)'", hint: hint) }
        return advance(role)
    }

    /// Reports the current token as unexpected.
    mutating func unexpected(expected: String? = nil, hint: String? = nil) -> Failure {
        let expectation = expected.map { "expected \($0)" }
        switch token.kind {
        case .end:
            sink.error("Unexpected end of file.", at: token.span, hint: hint ?? expectation)
        case .unknown where ["'", "\"", "b", "B"].contains(tokenText.prefix(1)):
            sink.error(
                "Unterminated string.", at: token.span,
                hint: "a string ends on its line, with the quote that began it")
        default:
            sink.error("Unexpected '\(tokenText)'.", at: token.span, hint: hint ?? expectation)
        }
        return Failure()
    }

    // Keys: names of our own.
    static let keywords: Set<String> = [
        "true", "false", "null", "in", "is", "if", "let", "return", "function", "match", "allow",
        "service", "rules_version", "import",
    ]

    mutating func identifier(_ what: String) throws(Failure) -> Name {
        guard token.kind == .word, !Self.keywords.contains(tokenText) else {
            throw unexpected(expected: what)
        }
        let text = tokenText
        return Name(text: text, span: advance(.plain))
    }

    // MARK: File

    /// Parses the whole file.
    mutating func parse() {
        version()
        fileFunctions()
        if isWord("service") {
            service()
            fileFunctions()
        }
        if token.kind != .end || !sink.hasErrors { afterService() }
        if let comment = lexer.openComment {
            sink.error("Unterminated comment.", at: comment, hint: "close it with '*/'")
        }
        warnOfDirections()
    }

    /// The maximum number of warnings about characters that change the direction of text.
    private static let maximumDirectionWarnings = 10

    /// Warns of invisible characters that change the direction of text: U+202A to U+202E, U+2066 to U+2069. In an editor
    /// rules with them read differently from what they do (CVE-2021-42574).
    private mutating func warnOfDirections() {
        let bytes = lexer.source.bytes
        var count = 0
        for start in bytes.indices.dropLast(2) where bytes[start] == 0xE2 && count < Parser.maximumDirectionWarnings {
            let character: Int
            switch (bytes[start + 1], bytes[start + 2]) {
            case (0x80, 0xAA...0xAE): character = 0x2000 + Int(bytes[start + 2]) - 0x80
            case (0x81, 0xA6...0xA9): character = 0x2040 + Int(bytes[start + 2]) - 0x80
            default: continue
            }
            count += 1
            sink.warning(
                "U+\(String(character, radix: 16, uppercase: true)) is invisible and changes the direction of text.",
                at: Span32(start, start + 3), hint: "the rules may read differently from what they do: remove it")
        }
    }

    private mutating func version() {
        guard isWord("rules_version") else { return }
        advance(.statement)
        do {
            try expect("=", .binary)
            guard token.kind == .string else { throw unexpected(expected: "'2'") }
            let value = tokenText.dropFirst().dropLast()
            if value == "1" || value == "2" {
                tree.version = value == "1" ? 1 : 2
            } else {
                sink.error("Unknown rules_version '\(value)'.", at: token.span, hint: "use '2'")
            }
            advance(.plain)
            if isMark(";") { advance(.semicolon) }
        } catch {
            while token.kind != .end, !isWord("service"), !isWord("function") { advance(.plain) }
        }
    }

    private mutating func fileFunctions() {
        var functions: [FunctionDeclaration] = []
        while isWord("function") { function(into: &functions) }
        tree.functions += functions
    }

    private mutating func afterService() {
        guard token.kind != .end else {
            if !hasService {
                sink.error(
                    "Missing 'service' declaration.", at: token.span,
                    hint: "the rules stand in: service firebase.storage { match /b/{bucket}/o { … } }")
            }
            return
        }
        let hint: String? =
            switch tokenText {
            case "rules_version": "rules_version must be the first statement of the file"
            case "import", "include": "a ruleset is one file"
            case "service": "a file has one service"
            case "match", "allow": "it belongs inside: service firebase.storage { … }"
            default: hasService ? nil : "expected 'service' or 'function'"
            }
        _ = unexpected(hint: hint)
    }

    private var hasService = false

    private mutating func service() {
        hasService = true
        advance(.statement)
        do {
            let start = token.span
            var name = try identifier("a service name").text
            while isMark(".") {
                advance(.tight)
                name += "." + (try identifier("a service name").text)
            }
            if name != "firebase.storage" {
                sink.error(
                    "Unknown service '\(name)'.", at: Span32(Int(start.start), Int(lastEnd)),
                    hint: "only firebase.storage is served here")
            }
            try expect("{", .blockOpen)
        } catch {
            recover()
            if isMark("{") { advance(.blockOpen) }
        }
        var block = MatchBlock(path: [], pathSpan: token.span)
        body(of: &block, depth: 0)
        tree.serviceFunctions = block.functions
        tree.matches = block.matches
    }

    // MARK: Blocks

    /// Parses statements up to and including the closing brace.
    private mutating func body(of block: inout MatchBlock, depth: Int) {
        while token.kind != .end, !isMark("}") {
            switch token.kind == .word ? tokenText : "" {
            case "match": match(into: &block, depth: depth + 1)
            case "allow":
                if depth == 0 {
                    sink.error(
                        "Unexpected 'allow'.", at: token.span, hint: "an allow statement belongs inside a match block")
                }
                allow(into: &block)
            case "function": function(into: &block.functions)
            default:
                if isMark("/") {
                    sink.error("Missing 'match' keyword before path.", at: token.span)
                } else {
                    _ = unexpected(expected: "'match', 'allow', 'function' or '}'")
                }
                advance(.plain)
                recover()
            }
        }
        if token.kind == .end {
            _ = unexpected(expected: "'}'", hint: "a block is not closed")
        } else {
            advance(.blockClose)
        }
    }

    private mutating func match(into parent: inout MatchBlock, depth: Int) {
        let start = advance(.statement)
        if depth == Self.maximumMatchDepth + 1 {
            sink.error("Match blocks are nested more than \(Self.maximumMatchDepth) deep.", at: start)
        }
        do {
            let pathStart = token.span
            let path = try matchPath()
            var block = MatchBlock(
                path: path, pathSpan: Span32(Int(pathStart.start), Int(lastEnd)))
            if !isMark("{"), mayContinueSegment { throw brokenSegment(pathStart) }
            try expect("{", .blockOpen, hint: "the match path is followed by '{'")
            guard depth <= 2 * Self.maximumMatchDepth else { throw Failure() }
            body(of: &block, depth: depth)
            parent.matches.append(block)
        } catch {
            recover()
            if isMark("{") {
                advance(.blockOpen)
                var ignored = MatchBlock(path: [], pathSpan: start)
                if depth <= 2 * Self.maximumMatchDepth { body(of: &ignored, depth: depth) }
            }
        }
    }

    /// Whether the current token, which follows a path, looks like a continuation of the path.
    private var mayContinueSegment: Bool {
        switch token.kind {
        case .end: false
        case .word: !Self.keywords.contains(tokenText)
        case .mark: !isMark(";") && !isMark("}")
        default: true
        }
    }

    private mutating func brokenSegment(_ path: Span32) -> Failure {
        sink.error(
            "Missing 'match' keyword before path.", at: Span32(from: path, to: token.span),
            hint: "'\(tokenText)' cannot stand there: a segment is either text or one capture; "
                + "a space in a name is written %20")
        return Failure()
    }

    private mutating func allow(into block: inout MatchBlock) {
        let start = advance(.statement)
        do {
            var methods = try methodWord()
            while isMark(",") {
                advance(.separator)
                methods.formUnion(try methodWord())
            }
            let head = Span32(Int(start.start), Int(lastEnd))
            var condition: ExpressionID?
            if isMark(":") {
                advance(.separator)
                if isWord("if") {
                    advance(.plain)
                } else {
                    sink.error(
                        "Missing 'if' before conditional expression.", at: token.span,
                        hint: "write: \(source.text(head)): if \(tokenText)…")
                }
                guard !isMark(";"), !isMark("}") else {
                    sink.error("Missing conditional expression after 'if'.", at: token.span)
                    throw Failure()
                }
                condition = try expression()
            } else if isWord("if") {
                throw unexpected(hint: "a colon stands before the condition: \(source.text(head)): if …")
            }
            let span = Span32(Int(start.start), Int(lastEnd))
            if isMark(";") { advance(.semicolon) }
            block.allows.append(AllowStatement(methods: methods, condition: condition, span: span, headSpan: head))
        } catch { recover() }
    }

    private mutating func methodWord() throws(Failure) -> Method.Set {
        guard token.kind == .word, let methods = Method.Set(word: tokenText) else {
            let words = ["read", "write", "get", "list", "create", "update", "delete"]
            let near = token.kind == .word ? nearestName(to: tokenText, among: words) : nil
            throw unexpected(
                hint: near.map { "did you mean '\($0)'?" }
                    ?? "the methods are read, write, get, list, create, update and delete")
        }
        advance(.plain)
        return methods
    }

    // MARK: Functions

    private mutating func function(into functions: inout [FunctionDeclaration]) {
        let start = advance(.statement)
        do {
            let name = try identifier("a function name")
            let parameters = try parameters()
            if parameters.count > Self.maximumArguments {
                sink.error("A function may have at most \(Self.maximumArguments) arguments.", at: name.span)
            }
            try expect("{", .blockOpen)
            var bindings: [(name: Name, value: ExpressionID)] = []
            while isWord("let") { bindings.append(try binding()) }
            guard isWord("return") else {
                throw unexpected(hint: "a function is let bindings, then one return statement")
            }
            advance(.statement)
            let result = try expression()
            if bindings.count > Self.maximumBindings {
                sink.error(
                    "Maximum allowed variable count of 10 for a given function has been reached.",
                    at: tree[result].span, hint: "\(Self.maximumBindings) are still accepted")
            }
            if isMark(";") { advance(.semicolon) }
            try expect("}", .blockClose, hint: "a function ends after its return statement")
            functions.append(
                FunctionDeclaration(
                    name: name, parameters: parameters, bindings: bindings, result: result,
                    span: Span32(Int(start.start), Int(lastEnd))))
        } catch {
            recover()
            skipFunctionRest()
        }
    }

    private mutating func parameters() throws(Failure) -> [Name] {
        try expect("(", .tight)
        var parameters: [Name] = []
        while !isMark(")") {
            if !parameters.isEmpty { try expect(",", .separator) }
            parameters.append(try identifier("a parameter name"))
        }
        advance(.close)
        return parameters
    }

    private mutating func binding() throws(Failure) -> (name: Name, value: ExpressionID) {
        let start = advance(.statement)
        if tree.version != 2 {
            sink.error("Unexpected 'let'.", at: start, hint: "let needs rules_version = '2'; at the top")
        }
        let name = try identifier("a variable name")
        try expect("=", .binary)
        let value = try expression()
        guard isMark(";") else {
            let at = Span32(Int(lastEnd), Int(lastEnd))
            sink.error("missing ';' at '\(tokenText)'", at: at, hint: "a let binding ends with ';'")
            return (name, value)
        }
        advance(.semicolon)
        return (name, value)
    }

    // MARK: Recovery

    /// Skips the rest of a failed statement: past its semicolon, or up to a token that begins or ends another statement.
    private mutating func recover() {
        var open = 0
        while token.kind != .end {
            switch tokenText {
            case ";" where open == 0:
                advance(.semicolon)
                return
            case "match", "allow", "function", "service": return
            case "{" where open == 0: return
            case "(", "[": open += 1
            case ")", "]": open = max(0, open - 1)
            case "}": return
            default: break
            }
            advance(.plain)
        }
    }

    /// Skips the rest of a function's body after an error.
    private mutating func skipFunctionRest() {
        if isMark("{") { advance(.blockOpen) }
        while isWord("let") || isWord("return") || token.kind == .mark && !isMark("}") {
            advance(.plain)
            recover()
        }
        if isMark("}") { advance(.blockClose) }
    }
}
