import Wire

/// `Content-Disposition` as responses carry it (RFC 6266).
enum ContentDisposition {
    /// The value as a header field, in ASCII: clients interpret other bytes differently.
    ///
    /// A file name with other characters is sent twice: in `filename` with `_` for each of them, and exactly in
    /// `filename*` (RFC 8187, section 3.2), unless the value has that parameter already. Everywhere else, such a
    /// character becomes `_`.
    static func field(_ value: String) -> String {
        guard !value.utf8.allSatisfy(isASCII) else { return value }
        var text = String(decoding: replaced(value.utf8), as: UTF8.self)
        guard let name = fileName(in: Array(value.utf8)), !name.allSatisfy(isASCII) else {
            return text
        }
        text += "; filename*=UTF-8''\(PercentEncoding.encodeSegment(name))"
        return text
    }

    private static func isASCII(_ byte: UInt8) -> Bool { byte < 0x80 }

    /// Each character outside ASCII as `_`.
    private static func replaced(_ text: String.UTF8View) -> [UInt8] {
        // The bytes 10xxxxxx continue a character.
        text.filter { $0 & 0xc0 != 0x80 }.map { isASCII($0) ? $0 : UInt8(ascii: "_") }
    }

    /// The value of `filename`; nil if there is none, if there is a `filename*`, or if a quoted string does not end.
    private static func fileName(in value: [UInt8]) -> [UInt8]? {
        var found: [UInt8]?
        var rest = value[...]
        // The first part is the type.
        _ = parameter(&rest)
        while !rest.isEmpty {
            guard let part = parameter(&rest) else { return nil }
            switch String(decoding: part.name.map(ASCII.lowercased), as: UTF8.self) {
            case "filename*": return nil
            case "filename": found = found ?? part.value
            default: break
            }
        }
        return found
    }

    /// Takes the text up to the next semicolon outside quotes.
    /// - Returns: The name, and the value without quotes and escapes; nil if a quoted string does not end.
    private static func parameter(_ rest: inout ArraySlice<UInt8>) -> (
        name: ArraySlice<UInt8>, value: [UInt8]
    )? {
        let end = rest.firstIndex { $0 == UInt8(ascii: "=") || $0 == UInt8(ascii: ";") }
        let name = ASCII.trimmed(rest[..<(end ?? rest.endIndex)])
        rest = rest[(end ?? rest.endIndex)...]
        guard rest.popFirst() == UInt8(ascii: "=") else { return (name, []) }
        rest = rest.drop(while: ASCII.isSpace)
        guard rest.first == UInt8(ascii: "\"") else {
            let value = rest.prefix { $0 != UInt8(ascii: ";") }
            rest = rest[value.endIndex...].dropFirst()
            return (name, Array(ASCII.trimmed(value)))
        }
        rest = rest.dropFirst()
        var value: [UInt8] = []
        while let byte = rest.popFirst() {
            if byte == UInt8(ascii: "\"") {
                rest = rest.drop { $0 != UInt8(ascii: ";") }.dropFirst()
                return (name, value)
            }
            guard byte == UInt8(ascii: "\\") else {
                value.append(byte)
                continue
            }
            guard let escaped = rest.popFirst() else { return nil }
            value.append(escaped)
        }
        return nil
    }
}
