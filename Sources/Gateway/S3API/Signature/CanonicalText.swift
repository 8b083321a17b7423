import Wire

/// Canonical forms of Signature Version 4, appended to a buffer.
extension [UInt8] {
    /// Appends the canonical form of percent-encoded text: decoded, and encoded again with upper-case digits, all but
    /// unreserved characters. A `%` without two digits counts as itself.
    /// - Parameters:
    ///   - slash: Whether `/` is kept, as in a path.
    ///   - plus: Whether `+` is a space, as in a query.
    mutating func append(canonical text: Span<UInt8>, slash: Bool, plus: Bool) {
        text.withUnsafeBufferPointer { append(canonical: $0, slash: slash, plus: plus) }
    }

    private mutating func append(canonical text: UnsafeBufferPointer<UInt8>, slash: Bool, plus: Bool) {
        var index = 0
        while index < text.count {
            let end = ASCII.firstReserved(in: text, from: index)
            if end > index { append(contentsOf: UnsafeBufferPointer(rebasing: text[index..<end])) }
            if end == text.count { return }
            var byte = text[end]
            index = end
            index += 1
            if byte == UInt8(ascii: "%"), index + 1 < text.count, let high = ASCII.hexadecimal(text[index]),
                let low = ASCII.hexadecimal(text[index + 1])
            {
                byte = high << 4 | low
                index += 2
            } else if byte == UInt8(ascii: "+"), plus {
                byte = 0x20
            }
            if ASCII.isUnreserved(byte) || (byte == UInt8(ascii: "/") && slash) {
                append(byte)
            } else {
                append(UInt8(ascii: "%"))
                append(upperHexadecimal: byte >> 4)
                append(upperHexadecimal: byte & 15)
            }
        }
    }

    private mutating func append(upperHexadecimal digit: UInt8) {
        append(digit < 10 ? 0x30 + digit : 0x41 - 10 + digit)
    }

    /// Appends the bytes as pairs of lower-case digits.
    mutating func append(hexadecimal bytes: Span<UInt8>) {
        func digit(_ value: UInt8) -> UInt8 { value < 10 ? 0x30 + value : 0x61 - 10 + value }
        withUnsafeTemporaryAllocation(of: UInt8.self, capacity: 2 * bytes.count) { digits in
            for index in bytes.indices {
                digits.initializeElement(at: 2 * index, to: digit(bytes[index] >> 4))
                digits.initializeElement(at: 2 * index + 1, to: digit(bytes[index] & 15))
            }
            append(contentsOf: digits)
        }
    }

    /// Appends a field's value, trimmed, and with single spaces for white space.
    mutating func append(trimmed value: UnsafeBufferPointer<UInt8>) {
        // Most values are in canonical form.
        var isCanonical = true
        var previous: UInt8 = 0x20
        for byte in value {
            if ASCII.isSpace(byte), byte == 0x09 || previous == 0x20 { isCanonical = false }
            previous = byte
        }
        if isCanonical, previous != 0x20 {
            append(contentsOf: value)
            return
        }
        var isSpaced = false
        let start = count
        for byte in value {
            if byte == 0x20 || byte == 0x09 {
                isSpaced = true
                continue
            }
            if isSpaced, count > start { append(0x20) }
            isSpaced = false
            append(byte)
        }
    }

    mutating func append(_ text: StaticString) { text.withUTF8Buffer { append(contentsOf: $0) } }

    mutating func append(_ text: String) {
        var text = text
        text.withUTF8 { append(contentsOf: $0) }
    }
}

extension Span<UInt8> {
    /// The bytes as text. Invalid UTF-8 is replaced.
    var text: String { withUnsafeBufferPointer { String(decoding: $0, as: UTF8.self) } }

    var array: [UInt8] { withUnsafeBufferPointer { Array($0) } }

    func equals(_ text: StaticString) -> Bool { withUnsafeBufferPointer { $0.matches(text) } }
}
