/// Decodes the contents of a string literal.
struct StringLiteral {
    /// An unsupported escape.
    struct BadEscape: Error {
        /// The bytes of the escape, relative to the opening quote.
        var range: Range<Int>
        var text: String
    }

    private let bytes: ArraySlice<UInt8>
    private let isBytes: Bool
    private var result: [UInt8] = []
    private var index: Int

    /// Decodes a literal with its quotes. The `b` of a bytes literal must already be removed.
    static func decode(_ bytes: ArraySlice<UInt8>, isBytes: Bool) throws(BadEscape) -> [UInt8] {
        var literal = StringLiteral(bytes: bytes.dropFirst().dropLast(), isBytes: isBytes)
        return try literal.decode()
    }

    private init(bytes: ArraySlice<UInt8>, isBytes: Bool) {
        self.bytes = bytes
        self.isBytes = isBytes
        index = bytes.startIndex
    }

    private mutating func decode() throws(BadEscape) -> [UInt8] {
        while index < bytes.endIndex {
            let byte = bytes[index]
            if byte == UInt8(ascii: "\\") {
                try escape()
            } else {
                result.append(byte)
                index += 1
            }
        }
        return result
    }

    private mutating func escape() throws(BadEscape) {
        let start = index
        index += 1
        guard index < bytes.endIndex else { throw bad(start) }
        let letter = bytes[index]
        index += 1
        switch letter {
        case UInt8(ascii: "\\"), UInt8(ascii: "'"), UInt8(ascii: "\""): result.append(letter)
        case UInt8(ascii: "n"): result.append(0x0A)
        case UInt8(ascii: "r"): result.append(0x0D)
        case UInt8(ascii: "t"): result.append(0x09)
        case UInt8(ascii: "b"): result.append(0x08)
        case UInt8(ascii: "f"): result.append(0x0C)
        case UInt8(ascii: "x"): try append(number(start, digits: 2, radix: 16), start)
        case UInt8(ascii: "u") where !isBytes: try unit(start)
        case UInt8(ascii: "0")...UInt8(ascii: "3"):
            index -= 1
            try append(number(start, digits: 3, radix: 8), start)
        default: throw bad(start)
        }
    }

    /// Decodes a UTF-16 code unit, or a surrogate pair in two escapes.
    private mutating func unit(_ start: Int) throws(BadEscape) {
        let first = try number(start, digits: 4, radix: 16)
        guard UTF16.isLeadSurrogate(UInt16(first)) else { return try append(first, start) }
        guard bytes[index...].starts(with: "\\u".utf8) else { throw bad(start) }
        index += 2
        let second = try number(start, digits: 4, radix: 16)
        guard UTF16.isTrailSurrogate(UInt16(second)) else { throw bad(start) }
        try append(0x10000 + (first - 0xD800) << 10 + (second - 0xDC00), start)
    }

    private mutating func number(_ start: Int, digits: Int, radix: Int) throws(BadEscape) -> UInt32 {
        guard index + digits <= bytes.endIndex,
            bytes[index..<index + digits].allSatisfy({ Lexer.isWordPart($0) }),
            let value = UInt32(
                String(decoding: bytes[index..<index + digits], as: UTF8.self), radix: radix)
        else { throw bad(start) }
        index += digits
        return value
    }

    /// Appends a code point, or in a bytes literal a byte.
    private mutating func append(_ value: UInt32, _ start: Int) throws(BadEscape) {
        if isBytes {
            result.append(UInt8(truncatingIfNeeded: value))
        } else if let scalar = Unicode.Scalar(value) {
            result += Array(String(Character(scalar)).utf8)
        } else {
            throw bad(start)
        }
    }

    private func bad(_ start: Int) -> BadEscape {
        let end = max(index, start + 1)
        let origin = bytes.startIndex - 1
        return BadEscape(
            range: start - origin..<end - origin,
            text: String(decoding: bytes[start..<min(end, bytes.endIndex)], as: UTF8.self))
    }
}
