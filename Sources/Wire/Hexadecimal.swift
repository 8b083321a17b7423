/// Hexadecimal digits in lower case (RFC 4648, section 8).
package enum Hexadecimal {
    private static let digits = Array("0123456789abcdef".utf8)

    /// Encodes each byte as two digits.
    package static func encode(_ bytes: [UInt8]) -> String {
        String(unsafeUninitializedCapacity: bytes.count * 2) { buffer in
            for (index, byte) in bytes.enumerated() {
                buffer[index * 2] = digits[Int(byte >> 4)]
                buffer[index * 2 + 1] = digits[Int(byte & 15)]
            }
            return bytes.count * 2
        }
    }

    /// Decodes digits in either case; nil if the text is not pairs of digits.
    package static func decode(_ text: some Collection<UInt8>) -> [UInt8]? {
        guard text.count % 2 == 0 else { return nil }
        var bytes: [UInt8] = []
        bytes.reserveCapacity(text.count / 2)
        var high: UInt8?
        for digit in text {
            guard let value = ASCII.hexadecimal(digit) else { return nil }
            if let first = high {
                bytes.append(first << 4 | value)
                high = nil
            } else {
                high = value
            }
        }
        return bytes
    }

    /// Decodes digits in either case, without the cost of a generic collection.
    package static func decode(_ text: Span<UInt8>) -> [UInt8]? {
        guard text.count % 2 == 0 else { return nil }
        var isValid = true
        let bytes = [UInt8](unsafeUninitializedCapacity: text.count / 2) { bytes, count in
            for index in 0..<text.count / 2 {
                guard let high = ASCII.hexadecimal(text[2 * index]), let low = ASCII.hexadecimal(text[2 * index + 1])
                else {
                    isValid = false
                    return
                }
                bytes.initializeElement(at: index, to: high << 4 | low)
                count = index + 1
            }
        }
        return isValid ? bytes : nil
    }
}
