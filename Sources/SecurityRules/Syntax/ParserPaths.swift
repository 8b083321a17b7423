import Wire

/// Parses paths, whose segments are not tokens: `/images/.thumbs/{name=**}` and `/databases/(default)/$(id)`.
extension Parser {
    static let maximumSegments = 100

    /// Parses the path of a match block.
    mutating func matchPath() throws(Failure) -> [MatchSegment] {
        guard isMark("/") else {
            throw unexpected(expected: "'/'", hint: "a match path begins with '/': match /\(tokenText)")
        }
        var segments: [MatchSegment] = []
        while isMark("/") { segments.append(try matchSegment(isFirst: segments.isEmpty)) }
        return segments
    }

    private mutating func matchSegment(isFirst: Bool) throws(Failure) -> MatchSegment {
        let slash = token.span
        lexer.position = Int(slash.end)
        let span = lexer.pathSegment(inExpression: false)
        if span.start < span.end {
            let whole = Span32(from: slash, to: span)
            resume(at: Int(span.end), recording: whole, isFirst ? .plain : .close)
            if isMark("{"), token.span.start == span.end, isBinding() {
                throw unexpected(hint: "a segment is either text or a capture, not both")
            }
            return MatchSegment(kind: .literal(Self.decode(source, span)), span: whole)
        }
        token = lexer.next()
        guard isMark("{") else {
            if token.kind == .end { throw unexpected(expected: "a path segment") }
            sink.error(
                "Forward slash '/' found where identifier or binding expected.", at: slash,
                hint: tokenText == "/" ? "a segment is missing between the slashes" : nil)
            throw Failure()
        }
        token = lexer.next()
        guard token.kind == .word, !Self.keywords.contains(tokenText) else {
            throw endsWithSlash(slash)
        }
        return try capture(from: slash, isFirst: isFirst)
    }

    private mutating func endsWithSlash(_ slash: Span32) -> Failure {
        sink.error(
            "Forward slash '/' found where identifier or binding expected.", at: slash,
            hint: "a match path does not end with '/'")
        return Failure()
    }

    /// Whether the brace at the current token opens a capture rather than a block.
    private func isBinding() -> Bool {
        var ahead = lexer
        guard ahead.next().kind == .word else { return false }
        let mark = ahead.source.text(ahead.next().span)
        return mark == "}" || mark == "="
    }

    /// Parses a capture. The current token is the one after `/{`.
    private mutating func capture(from slash: Span32, isFirst: Bool) throws(Failure) -> MatchSegment {
        let name = Name(text: tokenText, span: token.span)
        token = lexer.next()
        var kind = MatchSegment.Kind.single
        if isMark("=") {
            token = lexer.next()
            guard isMark("**") || isMark("*") else { throw unexpected(expected: "'**'") }
            kind = isMark("**") ? .glob : .single
            token = lexer.next()
        }
        guard isMark("}") else {
            if token.kind == .word || tokenText == ":" { throw endsWithSlash(slash) }
            throw unexpected(expected: "'}'")
        }
        let whole = Span32(from: slash, to: token.span)
        resume(at: Int(whole.end), recording: whole, isFirst ? .plain : .close)
        return MatchSegment(kind: kind, name: name, span: whole)
    }

    /// Parses a path in an expression. The current token is its first slash.
    mutating func pathLiteral() throws(Failure) -> ExpressionID {
        let start = token.span
        var parts: [PathPart] = []
        var end = Int(start.start)
        let kept = trail
        while lexer.source.bytes.indices.contains(end), source.bytes[end] == UInt8(ascii: "/"),
            !isComment(end)
        {
            lexer.position = end + 1
            parts.append(try pathPart(slash: end))
            end = lexer.position
        }
        if let inner = trail?.dropFirst(kept?.count ?? 0) {
            pathStrings += inner.map(\.span).filter { span in
                // A bytes literal starts with a letter, then a quote.
                source.bytes[Int(span.start)..<Int(span.end)].prefix(2).contains {
                    $0 == UInt8(ascii: "'") || $0 == UInt8(ascii: "\"")
                }
            }
        }
        trail = kept
        let span = Span32(Int(start.start), end)
        resume(at: end, recording: span, .plain)
        if parts.count > Self.maximumSegments {
            sink.error("A path may have at most \(Self.maximumSegments) segments.", at: span)
        }
        let inner = parts.compactMap { part -> ExpressionID? in if case .interpolated(let id) = part { id } else { nil }
        }
        return try add(.path(parts), span, inner)
    }

    private func isComment(_ slash: Int) -> Bool {
        guard slash + 1 < source.bytes.count else { return false }
        return source.bytes[slash + 1] == UInt8(ascii: "/") || source.bytes[slash + 1] == UInt8(ascii: "*")
    }

    /// Parses one segment after its slash, and leaves the lexer right behind it.
    private mutating func pathPart(slash: Int) throws(Failure) -> PathPart {
        let span = lexer.pathSegment(inExpression: true)
        if span.start < span.end { return .literal(Self.decode(source, span), span) }
        switch lexer.byte() {
        case UInt8(ascii: "$") where lexer.byte(1) == UInt8(ascii: "("):
            lexer.position += 2
            token = lexer.next()
            let value = try expression()
            guard isMark(")") else { throw unexpected(expected: "')'") }
            lexer.position = Int(token.span.end)
            return .interpolated(value)
        case UInt8(ascii: "{"):
            lexer.position += 1
            token = lexer.next()
            guard token.kind == .word else { throw unexpected(expected: "a name") }
            let name = Text(tokenText)
            token = lexer.next()
            guard isMark("}") else { throw unexpected(expected: "'}'") }
            lexer.position = Int(token.span.end)
            return .binding(name, Span32(slash + 1, lexer.position))
        case UInt8(ascii: "("):
            lexer.position += 1
            let inner = lexer.pathSegment(inExpression: true)
            guard inner.start < inner.end, lexer.byte() == UInt8(ascii: ")") else {
                token = lexer.next()
                throw unexpected(hint: "an expression in a path is written $(…)")
            }
            lexer.position += 1
            return .literal(
                Text("(" + source.text(inner) + ")"), Span32(slash + 1, lexer.position))
        default:
            sink.error(
                "Forward slash '/' found where identifier or binding expected.",
                at: Span32(slash, slash + 1))
            token = lexer.next()
            throw Failure()
        }
    }

    /// Decodes the percent escapes of a literal segment, because rules are matched against decoded object names.
    private static func decode(_ source: SourceText, _ span: Span32) -> Text {
        percentDecoded(source.bytes[Int(span.start)..<Int(span.end)])
    }

    private static func percentDecoded(_ bytes: ArraySlice<UInt8>) -> Text {
        guard bytes.contains(UInt8(ascii: "%")) else { return Text(Array(bytes)) }
        var result: [UInt8] = []
        var index = bytes.startIndex
        while index < bytes.endIndex {
            if bytes[index] == UInt8(ascii: "%"), index + 2 < bytes.endIndex,
                let value = UInt8(String(decoding: bytes[index + 1...index + 2], as: UTF8.self), radix: 16)
            {
                result.append(value)
                index += 3
            } else {
                result.append(bytes[index])
                index += 1
            }
        }
        let isText = String(validating: result, as: UTF8.self) != nil
        return Text(isText ? result : Array(bytes))
    }
}
