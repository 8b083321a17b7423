/// Percent-encoding (RFC 3986, section 2.1).
package enum PercentEncoding {
    /// Decodes exactly once; a `+` stays what it is.
    /// - Throws: ``Malformed``, where a `%` is not followed by two hexadecimal digits.
    package static func decode(_ text: ArraySlice<UInt8>) throws(Malformed) -> [UInt8] {
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
    package static func encodePath(_ path: String) -> String { encode(path, keeping: "/") }

    /// One segment of a path, or one name or value of a query: everything but unreserved characters is encoded.
    package static func encodeSegment(_ text: String) -> String { encode(text, keeping: "~") }

    private static func encode(_ text: String, keeping kept: Unicode.Scalar) -> String {
        let digits = Array("0123456789ABCDEF".utf8)
        var output: [UInt8] = []
        output.reserveCapacity(text.utf8.count + 16)
        for byte in text.utf8 {
            switch byte {
            case 0x30...0x39, 0x41...0x5a, 0x61...0x7a, UInt8(ascii: "-"), UInt8(ascii: "."),
                UInt8(ascii: "_"), UInt8(ascii: "~"), UInt8(ascii: kept):
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
    package struct Malformed: Error, Equatable {
        /// Bytes from the beginning of the encoded text.
        package var offset: Int
    }
}
