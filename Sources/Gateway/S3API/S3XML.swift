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
        var rest = text[...]
        while let byte = rest.first {
            if byte == UInt8(ascii: "&"), let (value, end) = reference(rest), let index = index(of: value) {
                result += replacement(index)
                rest = rest[end...]
            } else if let index = index(of: UInt32(byte)) {
                result += replacement(index)
                rest = rest.dropFirst()
            } else {
                result.append(byte)
                rest = rest.dropFirst()
            }
        }
        return result
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

    private static func replacement(_ index: UInt32) -> [UInt8] {
        Unicode.Scalar(base + index).map { Array(String(Character($0)).utf8) } ?? []
    }

    /// The value of a numeric reference at the start, and the index after it.
    private static func reference(_ text: ArraySlice<UInt8>) -> (value: UInt32, end: Int)? {
        guard text.starts(with: "&#".utf8), let end = text.prefix(12).firstIndex(of: UInt8(ascii: ";")) else {
            return nil
        }
        let digits = text[..<end].dropFirst(2)
        let isHexadecimal = digits.first.map { $0 | 0x20 == UInt8(ascii: "x") } ?? false
        let number = String(decoding: isHexadecimal ? digits.dropFirst() : digits, as: UTF8.self)
        // The initializer accepts a sign.
        guard digits.allSatisfy({ ASCII.isDigit($0) || ASCII.isLetter($0) }),
            let value = UInt32(number, radix: isHexadecimal ? 16 : 10)
        else { return nil }
        return (value, end + 1)
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
