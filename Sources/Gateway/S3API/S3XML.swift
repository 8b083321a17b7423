import Wire

/// Characters in requests that XML 1.0 does not have, such as U+0001, as they are or as references. S3 writes them in
/// lists, and clients send them back. They are passed through the parser as private characters.
enum S3XML {
    private static let base: UInt32 = 0x10_ff00

    /// The document with a private character in place of each such character. A document that has private characters
    /// already stays as it is, so that the parser rejects it.
    static func withReferences(_ text: [UInt8]) -> [UInt8] {
        guard text.contains(where: { $0 == UInt8(ascii: "#") || index(of: UInt32($0)) != nil }), !text.contains(0xf4)
        else {
            return text
        }
        var result: [UInt8] = []
        result.reserveCapacity(text.count)
        text.withUnsafeBufferPointer { text in
            var offset = 0
            while offset < text.count {
                if text[offset] == UInt8(ascii: "&"), let (value, end) = reference(text, offset),
                    let index = index(of: value)
                {
                    result += replacements[Int(index)]
                    offset = end
                } else if let index = index(of: UInt32(text[offset])) {
                    result += replacements[Int(index)]
                    offset += 1
                } else {
                    result.append(text[offset])
                    offset += 1
                }
            }
        }
        return result
    }

    /// The maximum length of a tag in bytes. The parser reads a tag at once.
    private static let maximumTag = 4096

    /// Whether a document has at most this many tags, none of which is long. Parsing other ones would block the loop.
    static func isShort(_ text: [UInt8], tags maximum: Int) -> Bool {
        var (tags, offset) = (0, 0)
        while let start = ASCII.firstIndex(of: "<", in: text.span, from: offset) {
            tags += 1
            let rest = text.span.extracting(start..<min(text.count, start + maximumTag))
            guard tags <= maximum, let end = ASCII.firstIndex(of: ">", in: rest, from: 0) else { return false }
            offset = start + end
        }
        return true
    }

    /// The place of a character among those that XML 1.0 does not have; nil for any other. NUL has no place: no key has it.
    private static func index(of scalar: UInt32) -> UInt32? {
        switch scalar {
        case 9, 10, 13: nil
        case 1..<0x20: scalar
        case 0xfffe, 0xffff: scalar - 0xfffe + 0x20
        default: nil
        }
    }

    /// The private characters by index.
    private static let replacements: [[UInt8]] = (0..<0x22).map { index in
        Unicode.Scalar(base + index).map { Array(String(Character($0)).utf8) } ?? []
    }

    /// The value of a numeric reference at an offset, and the offset after it.
    private static func reference(_ text: UnsafeBufferPointer<UInt8>, _ start: Int) -> (value: UInt32, end: Int)? {
        var offset = start + 2
        guard offset < text.count, text[start + 1] == UInt8(ascii: "#") else { return nil }
        let isHexadecimal = text[offset] | 0x20 == UInt8(ascii: "x")
        if isHexadecimal { offset += 1 }
        let first = offset
        var value: UInt32 = 0
        while offset < text.count, offset < start + 12, let digit = ASCII.hexadecimal(text[offset]) {
            guard isHexadecimal || digit < 10 else { return nil }
            value = value &* (isHexadecimal ? 16 : 10) &+ UInt32(digit)
            offset += 1
        }
        // Seven digits do not overflow.
        guard offset > first, offset - first <= 7, offset < text.count, text[offset] == UInt8(ascii: ";") else {
            return nil
        }
        return (value, offset + 1)
    }

    /// The text with the characters that the references meant.
    static func restored(_ text: String) -> String {
        guard text.utf8.contains(0xf4) else { return text }
        return String(
            String.UnicodeScalarView(
                text.unicodeScalars.map { scalar in
                    guard scalar.value >= base, scalar.value < base + 0x22 else { return scalar }
                    let index = scalar.value - base
                    return Unicode.Scalar(index < 0x20 ? index : index - 0x20 + 0xfffe) ?? scalar
                }))
    }
}
