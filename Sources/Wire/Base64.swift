/// Base64 (RFC 4648, sections 4 and 5).
package enum Base64 {
    private static let standard = Array(
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/".utf8)
    private static let urlSafe = Array(
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_".utf8)

    /// With padding, for digests.
    package static func append(
        _ bytes: some RandomAccessCollection<UInt8>, to output: inout [UInt8]
    ) {
        append(bytes, standard, padded: true, to: &output)
    }

    /// With padding, for digests.
    package static func encode(_ bytes: some RandomAccessCollection<UInt8>) -> String {
        var output: [UInt8] = []
        append(bytes, to: &output)
        return String(decoding: output, as: UTF8.self)
    }

    /// In the alphabet for URLs, without padding.
    package static func encodeForURL(_ bytes: some RandomAccessCollection<UInt8>) -> String {
        var output: [UInt8] = []
        append(bytes, urlSafe, padded: false, to: &output)
        return String(decoding: output, as: UTF8.self)
    }

    private static func append(
        _ bytes: some RandomAccessCollection<UInt8>, _ alphabet: [UInt8], padded: Bool,
        to output: inout [UInt8]
    ) {
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

    /// nil where a byte is not of the standard alphabet, the padding is not exact or left-over bits are not zero.
    package static func decode(_ text: ArraySlice<UInt8>) -> [UInt8]? {
        guard text.count % 4 == 0 else { return nil }
        var digits = text
        for _ in 0..<2 where digits.last == UInt8(ascii: "=") { digits.removeLast() }
        return decode(digits, UInt8(ascii: "+"), UInt8(ascii: "/"))
    }

    /// The alphabet for URLs, without padding.
    package static func decodeForURL(_ text: ArraySlice<UInt8>) -> [UInt8]? {
        decode(text, UInt8(ascii: "-"), UInt8(ascii: "_"))
    }

    private static func decode(_ digits: ArraySlice<UInt8>, _ plus: UInt8, _ slash: UInt8)
        -> [UInt8]?
    {
        guard digits.count % 4 != 1 else { return nil }
        var output: [UInt8] = []
        output.reserveCapacity(digits.count * 3 / 4)
        var bits: UInt32 = 0
        var count = 0
        for byte in digits {
            let value: UInt8
            switch byte {
            case 0x41...0x5a: value = byte - 0x41
            case 0x61...0x7a: value = byte - 0x61 + 26
            case 0x30...0x39: value = byte - 0x30 + 52
            case plus: value = 62
            case slash: value = 63
            default: return nil
            }
            bits = (bits << 6 | UInt32(value)) & 0xffff
            count += 6
            if count >= 8 {
                count -= 8
                output.append(UInt8(truncatingIfNeeded: bits >> UInt32(count)))
            }
        }
        return bits & (1 << UInt32(count) - 1) == 0 ? output : nil
    }
}
