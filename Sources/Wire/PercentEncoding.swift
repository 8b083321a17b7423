/// Percent-encoding (RFC 3986, section 2.1).
package enum PercentEncoding {
    /// Decodes once. A `+` is left unchanged. A text without `%` is returned without a copy.
    /// - Throws: ``Malformed`` if a `%` is not followed by two hexadecimal digits.
    package static func decode(_ text: ArraySlice<UInt8>) throws(Malformed) -> ArraySlice<UInt8> {
        guard var percent = ASCII.firstIndex(of: "%", in: text.span, from: 0) else { return text }
        var output: [UInt8] = []
        output.reserveCapacity(text.count)
        var rest = text
        while true {
            output += rest.prefix(percent)
            rest = rest.dropFirst(percent)
            guard !rest.isEmpty else { return output[...] }
            let digits = rest.dropFirst().prefix(2)
            guard digits.count == 2, let high = ASCII.hexadecimal(digits[digits.startIndex]),
                let low = ASCII.hexadecimal(digits[digits.startIndex + 1])
            else { throw Malformed(offset: rest.startIndex - text.startIndex) }
            output.append(high << 4 | low)
            rest = rest.dropFirst(3)
            percent = ASCII.firstIndex(of: "%", in: rest.span, from: 0) ?? rest.count
        }
    }

    /// Encodes a path: every character except unreserved ones and `/`.
    package static func encodePath(_ path: String) -> String { encode(path, keeping: "/") }

    /// Appends a slash and the encoded `path` to `root`, which is already encoded.
    package static func encodePath(_ path: String, below root: String) -> String {
        var (root, path) = (root, encodePath(path))
        return String(unsafeUninitializedCapacity: root.utf8.count + 1 + path.utf8.count) {
            output in
            let start = root.withUTF8 { output.initialize(fromContentsOf: $0) }
            output.initializeElement(at: start, to: UInt8(ascii: "/"))
            return path.withUTF8 { output[(start + 1)...].initialize(fromContentsOf: $0) }
        }
    }

    /// Encodes one segment of a path, or one name or value of a query: every character except unreserved ones.
    package static func encodeSegment(_ text: String) -> String { encode(text, keeping: "~") }

    /// Encodes a segment of bytes that need not be UTF-8.
    package static func encodeSegment(_ bytes: [UInt8]) -> String {
        encode(bytes, keeping: UInt8(ascii: "~"), bytes.count { !ASCII.isUnreserved($0) })
    }

    private static func encode(_ text: String, keeping kept: Unicode.Scalar) -> String {
        let kept = UInt8(ascii: kept)
        // Most texts need no encoding and are returned without a copy.
        let count = text.utf8.count { !ASCII.isUnreserved($0) && $0 != kept }
        return count == 0 ? text : encode(text.utf8, keeping: kept, count)
    }

    /// - Parameter count: The number of bytes to encode.
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

    /// A malformed escape sequence.
    package struct Malformed: Error, Equatable {
        /// In bytes from the start of the encoded text.
        package var offset: Int
    }
}
