/// The character classes that HTTP and JSON are made of.
enum ASCII {
    static func isDigit(_ byte: UInt8) -> Bool { byte >= 0x30 && byte <= 0x39 }

    static func isLowercase(_ byte: UInt8) -> Bool { byte >= 0x61 && byte <= 0x7a }

    static func isUppercase(_ byte: UInt8) -> Bool { byte >= 0x41 && byte <= 0x5a }

    static func isLetter(_ byte: UInt8) -> Bool { isLowercase(byte | 0x20) }

    /// `VCHAR`: what is seen, without the space.
    static func isVisible(_ byte: UInt8) -> Bool { byte >= 0x21 && byte <= 0x7e }

    static func isSpace(_ byte: UInt8) -> Bool { byte == 0x20 || byte == 0x09 }

    static func isControl(_ byte: UInt8) -> Bool { byte < 0x20 || byte == 0x7f }

    static func lowercased(_ byte: UInt8) -> UInt8 { isUppercase(byte) ? byte | 0x20 : byte }

    /// `tchar` (RFC 9110, section 5.6.2).
    static func isToken(_ byte: UInt8) -> Bool {
        if isLetter(byte) || isDigit(byte) { return true }
        switch byte {
        case UInt8(ascii: "!"), UInt8(ascii: "#"), UInt8(ascii: "$"), UInt8(ascii: "%"),
            UInt8(ascii: "&"), UInt8(ascii: "'"), UInt8(ascii: "*"), UInt8(ascii: "+"),
            UInt8(ascii: "-"), UInt8(ascii: "."), UInt8(ascii: "^"), UInt8(ascii: "_"),
            UInt8(ascii: "`"), UInt8(ascii: "|"), UInt8(ascii: "~"):
            return true
        default: return false
        }
    }

    /// The value of a hexadecimal digit.
    static func hexadecimal(_ byte: UInt8) -> UInt8? {
        switch byte {
        case 0x30...0x39: byte - 0x30
        case 0x41...0x46: byte - 0x41 + 10
        case 0x61...0x66: byte - 0x61 + 10
        default: nil
        }
    }

    /// Without the spaces and tabs around it.
    static func trimmed(_ bytes: ArraySlice<UInt8>) -> ArraySlice<UInt8> {
        var bytes = bytes
        while let first = bytes.first, isSpace(first) { bytes.removeFirst() }
        while let last = bytes.last, isSpace(last) { bytes.removeLast() }
        return bytes
    }

    /// A number of decimal digits alone; what is too big becomes the biggest.
    static func saturatingDecimal(_ bytes: ArraySlice<UInt8>) -> UInt64? {
        guard !bytes.isEmpty else { return nil }
        var value: UInt64 = 0
        var overflowed = false
        for byte in bytes {
            guard isDigit(byte) else { return nil }
            let (product, over) = value.multipliedReportingOverflow(by: 10)
            let (sum, more) = product.addingReportingOverflow(UInt64(byte - 0x30))
            overflowed = overflowed || over || more
            value = sum
        }
        return overflowed ? .max : value
    }
}

/// Base64 (RFC 4648, sections 4 and 5).
enum Base64 {
    private static let standard = Array(
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/".utf8)
    private static let urlSafe = Array(
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_".utf8)

    /// With padding, for digests.
    static func append(_ bytes: some RandomAccessCollection<UInt8>, to output: inout [UInt8]) {
        append(bytes, standard, padded: true, to: &output)
    }

    /// With padding, for digests.
    static func encode(_ bytes: some RandomAccessCollection<UInt8>) -> String {
        var output: [UInt8] = []
        append(bytes, to: &output)
        return String(decoding: output, as: UTF8.self)
    }

    /// In the alphabet for URLs, without padding.
    static func encodeForURL(_ bytes: some RandomAccessCollection<UInt8>) -> String {
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
    static func decode(_ text: ArraySlice<UInt8>) -> [UInt8]? {
        guard text.count % 4 == 0 else { return nil }
        var digits = text
        for _ in 0..<2 where digits.last == UInt8(ascii: "=") { digits.removeLast() }
        return decode(digits, UInt8(ascii: "+"), UInt8(ascii: "/"))
    }

    /// The alphabet for URLs, without padding.
    static func decodeForURL(_ text: ArraySlice<UInt8>) -> [UInt8]? {
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

/// Percent-encoding (RFC 3986, section 2.1).
enum PercentEncoding {
    /// Decodes exactly once; a `+` stays what it is.
    /// - Throws: ``Malformed``, where a `%` is not followed by two hexadecimal digits.
    static func decode(_ text: ArraySlice<UInt8>) throws(Malformed) -> [UInt8] {
        guard text.contains(UInt8(ascii: "%")) else { return Array(text) }
        var output: [UInt8] = []
        output.reserveCapacity(text.count)
        var index = text.startIndex
        while index < text.endIndex {
            guard text[index] == UInt8(ascii: "%") else {
                output.append(text[index])
                index += 1
                continue
            }
            guard text.endIndex - index > 2, let high = ASCII.hexadecimal(text[index + 1]),
                let low = ASCII.hexadecimal(text[index + 2])
            else { throw Malformed(offset: index - text.startIndex) }
            output.append(high << 4 | low)
            index += 3
        }
        return output
    }

    /// A path: everything but unreserved characters and `/` is encoded.
    static func encodePath(_ path: String) -> String {
        let digits = Array("0123456789ABCDEF".utf8)
        var output: [UInt8] = []
        output.reserveCapacity(path.utf8.count + 16)
        for byte in path.utf8 {
            switch byte {
            case 0x30...0x39, 0x41...0x5a, 0x61...0x7a, UInt8(ascii: "-"), UInt8(ascii: "."),
                UInt8(ascii: "_"), UInt8(ascii: "~"), UInt8(ascii: "/"):
                output.append(byte)
            default:
                output.append(UInt8(ascii: "%"))
                output.append(digits[Int(byte >> 4)])
                output.append(digits[Int(byte & 15)])
            }
        }
        return String(decoding: output, as: UTF8.self)
    }

    /// Where a sequence is broken.
    struct Malformed: Error, Equatable {
        /// Bytes from the beginning of the encoded text.
        var offset: Int
    }
}
