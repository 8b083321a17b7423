extension Ruleset {
    /// The source in the one style: two spaces for each block, one statement a line, one space around operators.
    ///
    /// Comments stay, as do line breaks within expressions and single empty lines between statements. What is formatted
    /// already comes back as it was.
    ///
    /// - Throws: `RulesetError` where the source has a syntax error.
    public static func format(
        source: String, fileName: String = "storage.rules"
    ) throws(RulesetError) -> String {
        let text = SourceText(source, fileName: fileName)
        var parser = Parser(text, keepsTrail: true)
        parser.parse()
        guard !parser.sink.hasErrors else {
            throw RulesetError(diagnostics: parser.sink.diagnostics.sorted())
        }
        let pieces = FormatPieces(text, parser.trail ?? []).pieces
        var formatter = Formatter()
        for index in pieces.indices { formatter.add(pieces, index) }
        return formatter.finish()
    }
}

/// A token or a comment.
private struct FormatPiece {
    enum Kind {
        case token(Parser.Role)
        /// To the end of the line.
        case lineComment
        case blockComment
    }

    var kind: Kind
    var text: String
    /// The line breaks before it in the source.
    var breaks: Int

    var role: Parser.Role? { if case .token(let role) = kind { role } else { nil } }
}

/// Finds the comments between the tokens.
private struct FormatPieces {
    private(set) var pieces: [FormatPiece] = []
    private let source: SourceText
    private var breaks = 0

    init(_ source: SourceText, _ trail: [(span: Span32, role: Parser.Role)]) {
        self.source = source
        var end = source.bytes.starts(with: [0xEF, 0xBB, 0xBF]) ? 3 : 0
        for (span, role) in trail {
            comments(from: end, to: Int(span.start))
            add(.token(role), source.text(span))
            end = Int(span.end)
        }
        comments(from: end, to: source.bytes.count)
    }

    private mutating func add(_ kind: FormatPiece.Kind, _ text: String) {
        pieces.append(FormatPiece(kind: kind, text: text, breaks: breaks))
        breaks = 0
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

/// Puts pieces on lines.
private struct Formatter {
    private var output = ""
    private var line = ""
    private var depth = 0
    private var last: Parser.Role?
    private var isBehindLineComment = false

    mutating func add(_ pieces: [FormatPiece], _ index: Int) {
        let piece = pieces[index]
        guard let role = piece.role else { return comment(piece, next: pieces[index...]) }
        if role == .blockClose { depth = max(0, depth - 1) }
        if begins(role) {
            startLine(piece, indent: depth, mayBeApart: role != .blockClose)
        } else if isBehindLineComment || (piece.breaks > 0 && mayBreak(before: role)) {
            startLine(piece, indent: depth + (role == .close ? 0 : 2), mayBeApart: false)
        } else if !line.isEmpty, needsSpace(before: role) {
            line += " "
        }
        line += piece.text
        if role == .blockOpen { depth += 1 }
        last = role
        isBehindLineComment = false
    }

    /// Whether a token is the first of a statement.
    private func begins(_ role: Parser.Role) -> Bool {
        role == .statement || role == .blockClose || isBetweenStatements
    }

    private var isBetweenStatements: Bool {
        last == nil || last == .blockOpen || last == .blockClose || last == .semicolon
    }

    private func mayBreak(before role: Parser.Role) -> Bool {
        switch role {
        case .semicolon, .separator, .blockOpen, .tight: false
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
        if piece.breaks > 0 || (line.isEmpty && output.isEmpty) || isBehindLineComment {
            startLine(piece, indent: depth + (isApart ? 0 : 2), mayBeApart: isApart)
        } else if needsSpace(before: .plain) || isBetweenStatements {
            line += " "
        }
        line += piece.text
        if case .lineComment = piece.kind {
            isBehindLineComment = true
        } else if !isApart {
            last = .plain
        }
    }

    /// Ends the current line and begins the next.
    private mutating func startLine(_ piece: FormatPiece, indent: Int, mayBeApart: Bool) {
        if !line.isEmpty {
            let isFirst = line.hasSuffix("{") && last == .blockOpen
            output += line + "\n"
            if mayBeApart, piece.breaks > 1, !isFirst { output += "\n" }
        }
        isBehindLineComment = false
        line = String(repeating: "  ", count: indent)
    }

    consuming func finish() -> String { line.isEmpty ? output : output + line + "\n" }
}
