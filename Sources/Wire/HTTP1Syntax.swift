/// Why bytes are no HTTP/1.1 message.
package struct HTTP1SyntaxError: Error, Equatable {
    /// What is wrong, in words for a peer or an operator.
    package var reason: String
    /// Whether something is longer than allowed, and not malformed.
    package var isTooLong: Bool

    package init(_ reason: String, isTooLong: Bool = false) {
        self.reason = reason
        self.isTooLong = isTooLong
    }
}

/// Where name and value stand in a field line (RFC 9112, section 5), read strictly: no folding, no white space before the
/// colon, no control characters.
package struct HTTP1FieldLine {
    /// Bytes of the name, which stands at the line's start.
    package let nameLength: Int
    /// The value, without the white space around it.
    package let value: Range<Int>

    /// Reads a line without its end.
    /// - Throws: ``HTTP1SyntaxError`` where two readers could see different fields in it.
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

    /// Whether a control character other than the tab is among `text`.
    package static func hasControl(_ text: Span<UInt8>) -> Bool {
        // Looks at all of them: the compiler makes it steps of 16 bytes.
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
