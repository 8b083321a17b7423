import Wire

extension Ruleset {
    /// Formats the source in the standard style: two spaces per block, one statement per line with a semicolon, one
    /// space around operators, and strings in single quotes.
    ///
    /// Lines of more than 100 columns are broken after commas, before operators and between method calls, outermost and
    /// loosest first. A line without such a position stays long. Comments, line breaks within expressions and single
    /// empty lines between statements are kept. Formatted source is returned unchanged.
    ///
    /// - Throws: `RulesetError` if the source has a syntax error.
    public static func format(
        source: String, fileName: String = "storage.rules"
    ) throws(RulesetError) -> String {
        let text = SourceText(source, fileName: fileName)
        var parser = Parser(text, keepsTrail: true)
        parser.parse()
        guard !parser.sink.hasErrors else {
            throw RulesetError(diagnostics: parser.sink.diagnostics.sorted())
        }
        let pieces = FormatPieces(text, parser.trail ?? [], parser.pathStrings).pieces
        var formatter = Formatter()
        for index in pieces.indices { formatter.add(pieces, index) }
        return formatter.finish()
    }
}

/// Collects the tokens and the comments between them, and normalizes strings and semicolons.
private struct FormatPieces {
    private(set) var pieces: [FormatPiece] = []
    private let source: SourceText
    /// The strings inside paths that are still to be processed, the next one last.
    private var pathStrings: [Span32]
    private var breaks = 0
    /// The index after the last token in `pieces`.
    private var end = 0
    /// Whether the current statement still needs a semicolon.
    private var lacksSemicolon = false

    init(
        _ source: SourceText, _ trail: [(span: Span32, role: Parser.Role)],
        _ pathStrings: [Span32]
    ) {
        self.source = source
        self.pathStrings = pathStrings.sorted { $0.start > $1.start }
        var byte = source.bytes.starts(with: [0xEF, 0xBB, 0xBF]) ? 3 : 0
        for (span, role) in trail {
            if role == .statement || role == .blockClose { endStatement() }
            comments(from: byte, to: Int(span.start))
            let text = text(span)
            if role == .semicolon {
                endStatement()
                breaks = 0
            } else {
                add(.token(role), text)
                end = pieces.count
            }
            if role == .statement {
                lacksSemicolon = ["allow", "return", "let", "rules_version"].contains(text)
            }
            byte = Int(span.end)
        }
        comments(from: byte, to: source.bytes.count)
    }

    /// Inserts a semicolon right after the last token, before any comment.
    private mutating func endStatement() {
        guard lacksSemicolon else { return }
        lacksSemicolon = false
        pieces.insert(FormatPiece(kind: .token(.semicolon), text: ";", breaks: 0), at: end)
        end += 1
    }

    private mutating func add(_ kind: FormatPiece.Kind, _ text: String) {
        pieces.append(FormatPiece(kind: kind, text: text, breaks: breaks))
        breaks = 0
    }

    /// The text of a token, with its strings in single quotes.
    private mutating func text(_ span: Span32) -> String {
        guard pathStrings.last.map({ $0.start < span.end }) == true else {
            return Self.singleQuoted(source.text(span))
        }
        var text = ""
        var start = Int(span.start)
        while let string = pathStrings.last, string.start < span.end {
            pathStrings.removeLast()
            text += source.text(Span32(start, Int(string.start)))
            text += Self.singleQuoted(source.text(string))
            start = Int(string.end)
        }
        return text + source.text(Span32(start, Int(span.end)))
    }

    /// Converts a string or bytes literal to single quotes. Other tokens are returned unchanged.
    private static func singleQuoted(_ text: String) -> String {
        let prefix = text.first == "b" || text.first == "B" ? "b" : ""
        var inner = text.unicodeScalars.dropFirst(prefix.unicodeScalars.count)
        guard let quote = inner.popFirst(), quote == "'" || quote == "\"" else { return text }
        inner.removeLast()
        if quote == "'" { return "\(prefix)'\(String(inner))'" }
        var result = ""
        var isEscaped = false
        for scalar in inner {
            switch scalar {
            case "\\" where !isEscaped: isEscaped = true
            case "\"" where isEscaped:
                result += "\""
                isEscaped = false
            case "'" where !isEscaped: result += "\\'"
            default:
                if isEscaped { result += "\\" }
                result.unicodeScalars.append(scalar)
                isEscaped = false
            }
        }
        return "\(prefix)'\(result)'"
    }

    private mutating func comments(from start: Int, to end: Int) {
        let bytes = source.bytes
        var index = start
        while index < end {
            if bytes[index] == UInt8(ascii: "\n") { breaks += 1 }
            guard bytes[index] == UInt8(ascii: "/") else {
                index += 1
                continue
            }
            let begin = index
            let isLine = bytes[index + 1] == UInt8(ascii: "/")
            index += 2
            if isLine {
                while index < end, bytes[index] != UInt8(ascii: "\n") { index += 1 }
            } else {
                while bytes[index] != UInt8(ascii: "*") || bytes[index + 1] != UInt8(ascii: "/") {
                    index += 1
                }
                index += 2
            }
            var text = source.text(Span32(begin, index))[...]
            while text.last?.isWhitespace == true { text.removeLast() }
            add(isLine ? .lineComment : .blockComment, String(text))
        }
    }
}

/// Arranges pieces in lines.
private struct Formatter {
    private var output = ""
    private var line = FormatLine(indent: 0)
    private var depth = 0
    private var last: Parser.Role?
    private var isBehindLineComment = false
    private var isInServiceName = false

    mutating func add(_ pieces: [FormatPiece], _ index: Int) {
        let piece = pieces[index]
        guard let role = piece.role else { return comment(piece, next: pieces[index...]) }
        if role == .blockClose { depth = max(0, depth - 1) }
        if begins(role) {
            startLine(piece, indent: depth, mayBeApart: role != .blockClose)
        } else if isBehindLineComment || (piece.breaks > 0 && mayBreak(before: piece, role)) {
            startLine(piece, indent: depth + (role == .close ? 0 : 2), mayBeApart: false)
        }
        line.append(piece, hasSpace: needsSpace(before: role), isInServiceName ? nil : last)
        if role == .statement { isInServiceName = piece.text == "service" }
        if role == .blockOpen {
            depth += 1
            isInServiceName = false
        }
        last = role
        isBehindLineComment = false
    }

    /// Whether a token begins a statement.
    private func begins(_ role: Parser.Role) -> Bool {
        role == .statement || role == .blockClose || isBetweenStatements
    }

    private var isBetweenStatements: Bool {
        last == nil || last == .blockOpen || last == .blockClose || last == .semicolon
    }

    private func mayBreak(before piece: FormatPiece, _ role: Parser.Role) -> Bool {
        switch role {
        case .tight: piece.text == "." && !isInServiceName
        case .semicolon, .separator, .blockOpen: false
        case .close: last != .tight && last != .open
        default: last != .tight && last != .prefix
        }
    }

    private func needsSpace(before role: Parser.Role) -> Bool {
        switch role {
        case .tight, .close, .separator, .semicolon: return false
        default: return last != .tight && last != .open && last != .prefix
        }
    }

    private mutating func comment(_ piece: FormatPiece, next: ArraySlice<FormatPiece>) {
        let following = next.lazy.compactMap(\.role).first
        let isApart =
            isBetweenStatements || following == .statement || following == .blockClose
            || following == nil
        var hasSpace = false
        if piece.breaks > 0 || (line.isEmpty && output.isEmpty) || isBehindLineComment {
            startLine(piece, indent: depth + (isApart ? 0 : 2), mayBeApart: isApart)
        } else {
            hasSpace = needsSpace(before: .plain) || isBetweenStatements
        }
        line.append(piece, hasSpace: hasSpace, last)
        if case .lineComment = piece.kind {
            isBehindLineComment = true
        } else if !isApart {
            last = .plain
        }
    }

    /// Ends the current line and starts the next one.
    private mutating func startLine(_ piece: FormatPiece, indent: Int, mayBeApart: Bool) {
        if !line.isEmpty {
            let isFirst = line.endsWithBrace && last == .blockOpen
            endLine()
            if mayBeApart, piece.breaks > 1, !isFirst { output += "\n" }
        }
        isBehindLineComment = false
        line = FormatLine(indent: indent, continuation: depth + 2)
    }

    private mutating func endLine() {
        for text in line.texts() { output += text + "\n" }
    }

    consuming func finish() -> String {
        if !line.isEmpty { endLine() }
        return output
    }
}
