/// Why bytes are not a valid HTTP/1.1 message.
package struct HTTP1SyntaxError: Error, Equatable {
    /// The reason, for the peer and the operator.
    package var reason: String
    /// Whether the reason is a limit of length.
    package var isTooLong: Bool

    package init(_ reason: String, isTooLong: Bool = false) {
        self.reason = reason
        self.isTooLong = isTooLong
    }
}

/// The ranges of name and value in a field line (RFC 9112, section 5). Line folding, white space before the colon and
/// control characters are rejected.
package struct HTTP1FieldLine {
    /// The length of the name in bytes. The name begins at the start of the line.
    package let nameLength: Int
    /// The range of the value, without surrounding white space.
    package let value: Range<Int>

    /// Parses a line without its line end.
    /// - Throws: ``HTTP1SyntaxError`` if two parsers could read different fields.
    package init(_ line: Span<UInt8>) throws(HTTP1SyntaxError) {
        var nameEnd = 0
        var (start, end) = (0, line.count)
        line.withUnsafeBufferPointer { bytes in
            nameEnd = ASCII.tokenLength(bytes)
            start = nameEnd + 1
            while start < end, ASCII.isSpace(bytes[start]) { start += 1 }
            while end > start, ASCII.isSpace(bytes[end - 1]) { end -= 1 }
        }
        guard nameEnd > 0, nameEnd < line.count, line[nameEnd] == UInt8(ascii: ":"), nameEnd < 256
        else { throw HTTP1SyntaxError("malformed header field name") }
        guard !HTTP1FieldLine.hasControl(line.extracting(start..<end)) else {
            throw HTTP1SyntaxError("control character in a header field value")
        }
        nameLength = nameEnd
        value = start..<end
    }

    /// Whether `text` contains a control character other than the tab.
    package static func hasControl(_ text: Span<UInt8>) -> Bool {
        text.withUnsafeBufferPointer { bytes in
            if !mayHaveControl(UnsafeRawBufferPointer(bytes)) { return false }
            return bytes.contains { ASCII.isControl($0) && $0 != 0x09 }
        }
    }

    /// Whether any byte is a control character, which includes the tab. Eight bytes are tested at once; the last eight
    /// overlap those before them.
    private static func mayHaveControl(_ bytes: UnsafeRawBufferPointer) -> Bool {
        guard bytes.count >= 8 else { return bytes.contains(where: ASCII.isControl) }
        let last = bytes.count - 8
        var offset = 0
        while offset < last {
            if hasControl(bytes.loadUnaligned(fromByteOffset: offset, as: UInt64.self)) {
                return true
            }
            offset += 8
        }
        return hasControl(bytes.loadUnaligned(fromByteOffset: last, as: UInt64.self))
    }

    /// Whether a byte of `word` is less than 0x20, or 0x7f. A subtraction sets the upper bit of the first such byte if
    /// that byte did not have it before.
    private static func hasControl(_ word: UInt64) -> Bool {
        let ones: UInt64 = 0x0101_0101_0101_0101
        let deleted = word ^ (ones &* 0x7f)
        let low = (word &- ones &* 0x20) & ~word
        return (low | (deleted &- ones) & ~deleted) & (ones &* 0x80) != 0
    }
}
