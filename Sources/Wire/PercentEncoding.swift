/// Percent-encoding (RFC 3986, section 2.1).
package enum PercentEncoding {
    /// Decodes exactly once; a `+` stays what it is. Without a `%` it is the text itself.
    /// - Throws: ``Malformed``, where a `%` is not followed by two hexadecimal digits.
    package static func decode(_ text: ArraySlice<UInt8>) throws(Malformed) -> ArraySlice<UInt8> {
        guard text.contains(UInt8(ascii: "%")) else { return text }
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
        return output[...]
    }

    /// A path: everything but unreserved characters and `/` is encoded.
    package static func encodePath(_ path: String) -> String { encode(path, keeping: "/") }

    /// One segment of a path, or one name or value of a query: everything but unreserved characters is encoded.
    package static func encodeSegment(_ text: String) -> String { encode(text, keeping: "~") }

    /// The same of bytes, which need not be UTF-8.
    package static func encodeSegment(_ bytes: [UInt8]) -> String {
        encode(bytes, keeping: UInt8(ascii: "~"), bytes.count { !ASCII.isUnreserved($0) })
    }

    private static func encode(_ text: String, keeping kept: Unicode.Scalar) -> String {
        let kept = UInt8(ascii: kept)
        // Most texts have nothing to encode: they are given back as they are.
        let count = text.utf8.count { !ASCII.isUnreserved($0) && $0 != kept }
        return count == 0 ? text : encode(text.utf8, keeping: kept, count)
    }

    /// - Parameter count: How many of the bytes are encoded.
    private static func encode(_ bytes: some Collection<UInt8>, keeping kept: UInt8, _ count: Int)
        -> String
    {
        let digits: StaticString = "0123456789ABCDEF"
        return String(unsafeUninitializedCapacity: bytes.count + 2 * count) { output in
            var offset = 0
            for byte in bytes {
                if ASCII.isUnreserved(byte) || byte == kept {
                    output[offset] = byte
                    offset += 1
                } else {
                    output[offset] = UInt8(ascii: "%")
                    output[offset + 1] = digits.utf8Start[Int(byte >> 4)]
                    output[offset + 2] = digits.utf8Start[Int(byte & 15)]
                    offset += 3
                }
            }
            return offset
        }
    }

    /// Where a sequence is broken.
    package struct Malformed: Error, Equatable {
        /// Bytes from the beginning of the encoded text.
        package var offset: Int
    }
}
