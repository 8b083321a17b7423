/// A token of the source: a word, a literal or a punctuation mark.
struct Token: Equatable {
    enum Kind: Equatable {
        case word
        case int
        case float
        case string
        case bytes
        /// Punctuation and operators.
        case mark
        case end
        /// Bytes that begin no token.
        case unknown
    }

    var kind: Kind
    var span: Span32
}

/// Splits source into tokens, one at a time, because the meaning of a slash depends on the parser's state.
struct Lexer {
    let source: SourceText
    /// The offset of the next byte to read.
    var position = 0
    /// The first unterminated comment.
    private(set) var openComment: Span32?

    init(_ source: SourceText) {
        self.source = source
        if source.bytes.starts(with: [0xEF, 0xBB, 0xBF]) { position = 3 }
    }

    private var bytes: [UInt8] { source.bytes }

    func byte(_ offset: Int = 0) -> UInt8? {
        position + offset < bytes.count ? bytes[position + offset] : nil
    }

    // MARK: Between tokens

    /// Whether the next byte is white space.
    var isAtBlank: Bool { byte().map { " \t\r\n".utf8.contains($0) } == true }

    /// Skips white space and comments.
    mutating func skipBlanks() {
        while let byte = byte() {
            switch byte {
            case UInt8(ascii: " "), UInt8(ascii: "\t"), UInt8(ascii: "\r"), UInt8(ascii: "\n"): position += 1
            case UInt8(ascii: "/") where self.byte(1) == UInt8(ascii: "/"):
                while let next = self.byte(), next != UInt8(ascii: "\n") { position += 1 }
            case UInt8(ascii: "/") where self.byte(1) == UInt8(ascii: "*"): skipComment()
            default: return
            }
        }
    }

    private mutating func skipComment() {
        let start = position
        position += 2
        while position < bytes.count {
            if byte() == UInt8(ascii: "*"), byte(1) == UInt8(ascii: "/") {
                position += 2
                return
            }
            position += 1
        }
        openComment = openComment ?? Span32(start, start + 2)
    }

    // MARK: Tokens

    mutating func next() -> Token {
        skipBlanks()
        let start = position
        guard let first = byte() else { return Token(kind: .end, span: Span32(start, start)) }
        let kind: Token.Kind
        if first | 0x20 == UInt8(ascii: "b"), let quote = byte(1), Self.isQuote(quote) {
            position += 1
            kind = scanQuoted() ? .bytes : .unknown
        } else if Self.isWordStart(first) {
            while let next = byte(), Self.isWordPart(next) { position += 1 }
            kind = .word
        } else if Self.isDigit(first)
            || (first == UInt8(ascii: ".") && byte(1).map(Self.isDigit) == true)
        {
            kind = scanNumber()
        } else if Self.isQuote(first) {
            kind = scanQuoted() ? .string : .unknown
        } else {
            kind = scanMark(first)
        }
        return Token(kind: kind, span: Span32(start, position))
    }

    private mutating func scanNumber() -> Token.Kind {
        while let next = byte(), Self.isDigit(next) { position += 1 }
        guard byte() == UInt8(ascii: "."), byte(1).map(Self.isWordStart) != true else {
            return .int
        }
        position += 1
        while let next = byte(), Self.isDigit(next) { position += 1 }
        return .float
    }

    /// Skips a string up to its closing quote. Returns false if the line ends first, with LF or CR.
    private mutating func scanQuoted() -> Bool {
        let quote = byte()
        position += 1
        while let next = byte(), !Self.endsLine(next) {
            position += 1
            if next == quote { return true }
            if next == UInt8(ascii: "\\"), let escaped = byte(), !Self.endsLine(escaped) {
                position += 1
            }
        }
        return false
    }

    private static func endsLine(_ byte: UInt8) -> Bool {
        byte == UInt8(ascii: "\n") || byte == UInt8(ascii: "\r")
    }

    private mutating func scanMark(_ first: UInt8) -> Token.Kind {
        let pairs: [(StaticString)] = ["&&", "||", "==", "!=", "<=", ">=", "**"]
        for pair in pairs where pair.description.utf8.first == first && pair.description.utf8.last == byte(1) {
            position += 2
            return .mark
        }
        position += 1
        if ":;,.(){}[]/+-*%!<>=?$".utf8.contains(first) { return .mark }
        // Consumes the continuation bytes of a multi-byte character.
        while let next = byte(), next & 0xC0 == 0x80 { position += 1 }
        return .unknown
    }

    // MARK: Paths

    /// Reads a literal path segment at the current position. The span is empty if there is none.
    mutating func pathSegment(inExpression: Bool) -> Span32 {
        let start = position
        while let next = byte(), isSegmentByte(next, inExpression) { position += 1 }
        return Span32(start, position)
    }

    private func isSegmentByte(_ byte: UInt8, _ inExpression: Bool) -> Bool {
        if Self.isWordPart(byte) { return true }
        switch byte {
        case UInt8(ascii: "&"): return self.byte(1) != byte
        case UInt8(ascii: "="), UInt8(ascii: "!"), UInt8(ascii: ","), UInt8(ascii: ";"), UInt8(ascii: "$"),
            UInt8(ascii: "("), UInt8(ascii: ")"), UInt8(ascii: "*"), UInt8(ascii: "+"):
            return !inExpression
        default: return "%-~'.:@".utf8.contains(byte)
        }
    }

    // MARK: Bytes

    static func isDigit(_ byte: UInt8) -> Bool {
        byte >= UInt8(ascii: "0") && byte <= UInt8(ascii: "9")
    }

    static func isWordStart(_ byte: UInt8) -> Bool {
        byte == UInt8(ascii: "_") || (byte | 0x20 >= UInt8(ascii: "a") && byte | 0x20 <= UInt8(ascii: "z"))
    }

    static func isWordPart(_ byte: UInt8) -> Bool { isWordStart(byte) || isDigit(byte) }

    private static func isQuote(_ byte: UInt8) -> Bool {
        byte == UInt8(ascii: "'") || byte == UInt8(ascii: "\"")
    }
}
