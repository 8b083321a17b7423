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
        while nameEnd < line.count, ASCII.isToken(line[nameEnd]) { nameEnd += 1 }
        guard nameEnd > 0, nameEnd < line.count, line[nameEnd] == UInt8(ascii: ":"), nameEnd < 256
        else { throw HTTP1SyntaxError("malformed header field name") }
        var start = nameEnd + 1
        var end = line.count
        while start < end, ASCII.isSpace(line[start]) { start += 1 }
        while end > start, ASCII.isSpace(line[end - 1]) { end -= 1 }
        guard !HTTP1FieldLine.hasControl(line.extracting(start..<end)) else {
            throw HTTP1SyntaxError("control character in a header field value")
        }
        nameLength = nameEnd
        value = start..<end
    }

    /// Whether `text` contains a control character other than the tab.
    package static func hasControl(_ text: Span<UInt8>) -> Bool {
        // No early exit: the compiler then vectorizes the loop, 16 bytes at a time.
        text.withUnsafeBufferPointer { bytes in
            var found: UInt8 = 0
            for byte in bytes {
                let isLow: UInt8 = byte < 0x20 ? 1 : 0
                let isNoTab: UInt8 = byte != 0x09 ? 1 : 0
                let isDelete: UInt8 = byte == 0x7f ? 1 : 0
                found |= isLow & isNoTab | isDelete
            }
            return found != 0
        }
    }
}
