/// Base64 (RFC 4648, sections 4 and 5).
package enum Base64 {
    private static let standard = Array("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/".utf8)
    private static let urlSafe = Array("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_".utf8)

    /// Appends the encoding with padding.
    package static func append(_ bytes: [UInt8], to output: inout [UInt8]) {
        append(bytes, standard, padded: true, to: &output)
    }

    /// Encodes with padding.
    package static func encode(_ bytes: [UInt8]) -> String {
        var output: [UInt8] = []
        append(bytes, to: &output)
        return String(decoding: output, as: UTF8.self)
    }

    /// Encodes in the URL alphabet, without padding.
    package static func encodeForURL(_ bytes: [UInt8]) -> String {
        var output: [UInt8] = []
        append(bytes, urlSafe, padded: false, to: &output)
        return String(decoding: output, as: UTF8.self)
    }

    private static func append(
        _ bytes: [UInt8], _ alphabet: [UInt8], padded: Bool, to output: inout [UInt8]
    ) {
        output.reserveCapacity(output.count + (bytes.count + 2) / 3 * 4)
        var bits: UInt32 = 0
        var count = 0
        for byte in bytes {
            bits = bits << 8 | UInt32(byte)
            count += 8
            while count >= 6 {
                count -= 6
                output.append(alphabet[Int(bits >> UInt32(count) & 0x3f)])
            }
        }
        guard count > 0 else { return }
        output.append(alphabet[Int(bits << UInt32(6 - count) & 0x3f)])
        if padded {
            output.append(UInt8(ascii: "="))
            if count == 2 { output.append(UInt8(ascii: "=")) }
        }
    }

    /// Decodes the standard alphabet; nil if a byte is not in it, the padding is wrong or unused bits are not zero.
    package static func decode(_ text: ArraySlice<UInt8>) -> [UInt8]? {
        guard text.count % 4 == 0 else { return nil }
        var digits = text
        for _ in 0..<2 where digits.last == UInt8(ascii: "=") { digits.removeLast() }
        return decode(digits, standardValues)
    }

    /// Decodes the URL alphabet without padding; nil if a byte is not in it or unused bits are not zero.
    package static func decodeForURL(_ text: ArraySlice<UInt8>) -> [UInt8]? {
        decode(text, urlSafeValues)
    }

    private static let standardValues = values(standard)
    private static let urlSafeValues = values(urlSafe)

    /// The value of each byte as a digit; 0xff if it is not a digit.
    private static func values(_ alphabet: [UInt8]) -> [UInt8] {
        var values = [UInt8](repeating: 0xff, count: 256)
        for (value, digit) in alphabet.enumerated() { values[Int(digit)] = UInt8(value) }
        return values
    }

    private static func decode(_ digits: ArraySlice<UInt8>, _ values: [UInt8]) -> [UInt8]? {
        guard digits.count % 4 != 1 else { return nil }
        let output = digits.withUnsafeBufferPointer { digits in
            values.withUnsafeBufferPointer { values in
                [UInt8](unsafeUninitializedCapacity: digits.count * 3 / 4) { output, count in
                    if let written = decode(digits, values, output) { count = written }
                }
            }
        }
        return output.count == digits.count * 3 / 4 ? output : nil
    }

    /// - Returns: The number of bytes written; nil if a byte is not a digit, or unused bits are not zero.
    private static func decode(
        _ digits: UnsafeBufferPointer<UInt8>, _ values: UnsafeBufferPointer<UInt8>,
        _ output: UnsafeMutableBufferPointer<UInt8>
    ) -> Int? {
        var (offset, count) = (0, 0)
        while offset &+ 4 <= digits.count {
            let (a, b) = (values[Int(digits[offset])], values[Int(digits[offset &+ 1])])
            let (c, d) = (values[Int(digits[offset &+ 2])], values[Int(digits[offset &+ 3])])
            if (a | b | c | d) & 0x80 != 0 { return nil }
            output[count] = a << 2 | b >> 4
            output[count &+ 1] = b << 4 | c >> 2
            output[count &+ 2] = c << 6 | d
            offset &+= 4
            count &+= 3
        }
        guard offset < digits.count else { return count }
        let (a, b) = (values[Int(digits[offset])], values[Int(digits[offset + 1])])
        let c = offset + 2 < digits.count ? values[Int(digits[offset + 2])] : 0
        if (a | b | c) & 0x80 != 0 { return nil }
        output[count] = a << 2 | b >> 4
        if offset + 2 == digits.count { return b & 15 == 0 ? count + 1 : nil }
        output[count + 1] = b << 4 | c >> 2
        return c & 3 == 0 ? count + 2 : nil
    }
}
