/// Why bytes are not a valid HTTP/1.1 message.
package struct HTTP1SyntaxError: Error, Equatable {
    /// The reason, for the peer and the operator.
    package var reason: String
    /// Whether a length limit was exceeded.
    package var isTooLong: Bool

    package init(_ reason: String, isTooLong: Bool = false) {
        self.reason = reason
        self.isTooLong = isTooLong
    }
}

/// The ranges of the name and value in a field line (RFC 9112, section 5).
package struct HTTP1FieldLine {
    /// The length in bytes of the name, which begins at the start of the line.
    package let nameLength: Int
    /// The range of the value, without surrounding white space.
    package let value: Range<Int>

    /// Whether `text` contains a control character other than the tab.
    package static func hasControl(_ text: Span<UInt8>) -> Bool {
        text.withUnsafeBufferPointer { bytes in
            if !mayHaveControl(UnsafeRawBufferPointer(bytes)) { return false }
            return bytes.contains { ASCII.isControl($0) && $0 != 0x09 }
        }
    }

    /// Whether any byte is a control character or tab. Tests eight bytes at once; the last eight overlap.
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

    /// Copies a value. Returns false if it has a control character other than the tab; the copy may then be incomplete.
    @inline(__always)
    fileprivate static func copy(
        _ value: UnsafeRawPointer, count: Int, to output: UnsafeMutableRawPointer
    ) -> Bool {
        if count < 8 {
            for index in 0..<count {
                let byte = value.load(fromByteOffset: index, as: UInt8.self)
                if ASCII.isControl(byte), byte != 0x09 { return false }
                output.storeBytes(of: byte, toByteOffset: index, as: UInt8.self)
            }
            return true
        }
        // The last eight bytes overlap the preceding ones.
        let last = count &- 8
        var offset = 0
        var controls: UInt64 = 0
        while offset < last {
            let word = value.loadUnaligned(fromByteOffset: offset, as: UInt64.self)
            output.storeBytes(of: word, toByteOffset: offset, as: UInt64.self)
            controls |= controlBits(word)
            offset &+= 8
        }
        let word = value.loadUnaligned(fromByteOffset: last, as: UInt64.self)
        output.storeBytes(of: word, toByteOffset: last, as: UInt64.self)
        if controls | controlBits(word) == 0 { return true }
        let bytes = UnsafeRawBufferPointer(start: value, count: count)
        return !bytes.contains { ASCII.isControl($0) && $0 != 0x09 }
    }

    /// Whether a byte of `word` is below 0x20, or 0x7f. A subtraction sets the first such byte's high bit if clear.
    private static func hasControl(_ word: UInt64) -> Bool { controlBits(word) != 0 }

    @inline(__always)
    private static func controlBits(_ word: UInt64) -> UInt64 {
        let ones: UInt64 = 0x0101_0101_0101_0101
        let deleted = word ^ (ones &* 0x7f)
        let low = (word &- ones &* 0x20) & ~word
        return (low | (deleted &- ones) & ~deleted) & (ones &* 0x80)
    }
}

extension HeaderFields {
    /// Adds the field of an HTTP/1.1 line without its line end, in one pass. The name is converted to lower case.
    /// - Throws: ``HTTP1SyntaxError``, and adds no field, if parsers could disagree about the field: for line folding,
    ///   white space before the colon, and control characters.
    package mutating func append(line: Span<UInt8>) throws(HTTP1SyntaxError) -> HTTP1FieldLine {
        var fault: StaticString?
        var (nameLength, value) = (0, 0..<0)
        append(capacity: line.count) { field in
            line.withUnsafeBytes { line in
                nameLength = ASCII.copyToken(line, lowercasedTo: UnsafeMutableRawBufferPointer(field))
                guard nameLength > 0, nameLength < line.count, line[nameLength] == UInt8(ascii: ":"), nameLength < 256
                else {
                    fault = "malformed header field name"
                    return nil
                }
                var (start, end) = (nameLength + 1, line.count)
                while start < end, ASCII.isSpace(line[start]) { start += 1 }
                while end > start, ASCII.isSpace(line[end - 1]) { end -= 1 }
                value = start..<end
                let isText = HTTP1FieldLine.copy(
                    line.baseAddress! + start, count: end - start, to: field.baseAddress! + nameLength)
                guard isText else {
                    fault = "control character in a header field value"
                    return nil
                }
                return (nameLength, value.count)
            }
        }
        if let fault { throw HTTP1SyntaxError("\(fault)") }
        return HTTP1FieldLine(nameLength: nameLength, value: value)
    }
}
