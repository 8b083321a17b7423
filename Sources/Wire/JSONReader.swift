/// A JSON value as it stands in a text.
package indirect enum JSONValue: Equatable, Sendable {
    case null
    case boolean(Bool)
    /// As it is written: what it is read as is for the reader to say.
    case number(String)
    case string(String)
    case array([JSONValue])
    /// In the text's order.
    case object([JSONMember])

    /// The value of an object's member; nil where this is no object or has none of that name.
    package subscript(_ key: String) -> JSONValue? {
        guard case .object(let members) = self else { return nil }
        return members.first { BytewiseString.areEqual($0.key, key) }?.value
    }

    /// A string's text; nil where this is none.
    package var text: String? {
        if case .string(let text) = self { text } else { nil }
    }

    /// The elements of an array; nil where this is none.
    package var elements: [JSONValue]? {
        if case .array(let elements) = self { elements } else { nil }
    }

    /// A whole number, also where it is written as a string, as 64-bit numbers are by convention.
    package var integer: Int64? {
        switch self {
        case .number(let text), .string(let text): Int64(text)
        default: nil
        }
    }
}

/// A name and its value within an object.
package struct JSONMember: Equatable, Sendable {
    package var key: String
    package var value: JSONValue

    package init(key: String, value: JSONValue) {
        self.key = key
        self.value = value
    }
}

/// Reads one JSON text (RFC 8259), strictly: UTF-8 without a byte order mark, no key twice in an object, no lone
/// surrogate, at most 64 levels. (A library's parser would keep one of two equal keys and not say so.)
package struct JSONReader {
    /// Where and why a text is not JSON.
    package struct Malformed: Error, Equatable {
        package var reason: String
        /// Bytes from the beginning.
        package var offset: Int
    }
    private static let maximumDepth = 64
    private static let fewMembers = 16
    private let text: [UInt8]
    private var place = 0
    /// Values that may still come.
    private var room: Int

    /// Reads the whole text.
    /// - Parameter maximumValues: A value takes many times the room of the two bytes that it may be written in.
    package static func parse(_ text: [UInt8], maximumValues: Int = 100_000) throws(Malformed)
        -> JSONValue
    {
        guard String(validating: text, as: UTF8.self) != nil else {
            throw Malformed(reason: "it is not valid UTF-8", offset: 0)
        }
        var reader = JSONReader(text: text, room: maximumValues)
        let value = try reader.value(depth: 0)
        reader.skipWhiteSpace()
        if reader.place < text.count { throw reader.fail("something follows the value") }
        return value
    }

    private init(text: [UInt8], room: Int) {
        self.text = text
        self.room = room
    }

    private func fail(_ reason: String) -> Malformed { Malformed(reason: reason, offset: place) }

    private var next: UInt8? { place < text.count ? text[place] : nil }

    private mutating func skipWhiteSpace() {
        while let byte = next, byte == 0x20 || byte == 0x09 || byte == 0x0a || byte == 0x0d {
            place += 1
        }
    }

    private mutating func skip(_ character: Unicode.Scalar) -> Bool {
        guard next == UInt8(ascii: character) else { return false }
        place += 1
        return true
    }

    private mutating func value(depth: Int) throws(Malformed) -> JSONValue {
        if depth > JSONReader.maximumDepth { throw fail("it is nested too deeply") }
        room -= 1
        if room < 0 { throw fail("it has too many values") }
        skipWhiteSpace()
        switch next {
        case UInt8(ascii: "{"): return try object(depth)
        case UInt8(ascii: "["): return try array(depth)
        case UInt8(ascii: "\""): return .string(try string())
        case UInt8(ascii: "t"): return try word("true", .boolean(true))
        case UInt8(ascii: "f"): return try word("false", .boolean(false))
        case UInt8(ascii: "n"): return try word("null", .null)
        default: return try number()
        }
    }

    private mutating func word(_ word: String, _ value: JSONValue) throws(Malformed) -> JSONValue {
        guard text[place...].starts(with: word.utf8) else { throw fail("a value is expected") }
        place += word.utf8.count
        return value
    }

    private mutating func object(_ depth: Int) throws(Malformed) -> JSONValue {
        place += 1
        var members: [JSONMember] = []
        // Few names are compared with each other; many are put into a table, which takes longer to make.
        var keys: Set<BytewiseString> = []
        skipWhiteSpace()
        if skip("}") { return .object(members) }
        repeat {
            skipWhiteSpace()
            let key = try string()
            let isNew: Bool
            if members.count < JSONReader.fewMembers {
                isNew = !members.contains { BytewiseString.areEqual($0.key, key) }
            } else {
                if keys.isEmpty { keys = Set(members.map { BytewiseString($0.key) }) }
                isNew = keys.insert(BytewiseString(key)).inserted
            }
            guard isNew else { throw fail("'\(key.prefix(64))' is given twice") }
            skipWhiteSpace()
            guard skip(":") else { throw fail("':' is expected") }
            members.append(JSONMember(key: key, value: try value(depth: depth + 1)))
            skipWhiteSpace()
        } while skip(",")
        guard skip("}") else { throw fail("',' or '}' is expected") }
        return .object(members)
    }

    private mutating func array(_ depth: Int) throws(Malformed) -> JSONValue {
        place += 1
        var values: [JSONValue] = []
        skipWhiteSpace()
        if skip("]") { return .array(values) }
        repeat {
            values.append(try value(depth: depth + 1))
            skipWhiteSpace()
        } while skip(",")
        guard skip("]") else { throw fail("',' or ']' is expected") }
        return .array(values)
    }

    private mutating func number() throws(Malformed) -> JSONValue {
        let start = place
        _ = skip("-")
        if !skip("0"), !digits() { throw fail("a value is expected") }
        if skip("."), !digits() { throw fail("a digit is expected") }
        if skip("e") || skip("E") {
            if !skip("+") { _ = skip("-") }
            if !digits() { throw fail("a digit is expected") }
        }
        return .number(String(decoding: text[start..<place], as: UTF8.self))
    }

    private mutating func digits() -> Bool {
        let start = place
        while let byte = next, ASCII.isDigit(byte) { place += 1 }
        return place > start
    }

    private mutating func string() throws(Malformed) -> String {
        guard skip("\"") else { throw fail("a string is expected") }
        let start = place
        while let byte = next, byte >= 0x20, byte != UInt8(ascii: "\\") {
            if byte == UInt8(ascii: "\"") {
                defer { place += 1 }
                return String(decoding: text[start..<place], as: UTF8.self)
            }
            place += 1
        }
        // It has an escape, or is malformed: the rest goes byte by byte.
        var bytes = Array(text[start..<place])
        while let byte = next {
            if byte < 0x20 { throw fail("a control character must be escaped") }
            place += 1
            if byte == UInt8(ascii: "\"") { return String(decoding: bytes, as: UTF8.self) }
            if byte == UInt8(ascii: "\\") {
                bytes.append(contentsOf: String(Character(try escape())).utf8)
            } else {
                bytes.append(byte)
            }
        }
        throw fail("a string has no end")
    }

    private mutating func escape() throws(Malformed) -> Unicode.Scalar {
        guard let letter = next else { throw fail("a string has no end") }
        place += 1
        switch letter {
        case UInt8(ascii: "\""), UInt8(ascii: "\\"), UInt8(ascii: "/"):
            return Unicode.Scalar(letter)
        case UInt8(ascii: "b"): return "\u{8}"
        case UInt8(ascii: "f"): return "\u{c}"
        case UInt8(ascii: "n"): return "\n"
        case UInt8(ascii: "r"): return "\r"
        case UInt8(ascii: "t"): return "\t"
        case UInt8(ascii: "u"): break
        default: throw fail("an escape is unknown")
        }
        let first = try codeUnit()
        if let scalar = Unicode.Scalar(first) { return scalar }
        guard first < 0xdc00, skip("\\"), skip("u") else { throw fail("a surrogate is alone") }
        let second = try codeUnit()
        guard (0xdc00...0xdfff).contains(second),
            let scalar = Unicode.Scalar(0x10000 + (first - 0xd800) << 10 + (second - 0xdc00))
        else { throw fail("a surrogate is alone") }
        return scalar
    }

    private mutating func codeUnit() throws(Malformed) -> UInt32 {
        var value: UInt32 = 0
        for _ in 0..<4 {
            guard let byte = next, let digit = ASCII.hexadecimal(byte) else {
                throw fail("four hexadecimal digits are expected")
            }
            value = value << 4 | UInt32(digit)
            place += 1
        }
        return value
    }
}
