/// Writes JSON (RFC 8259) as UTF-8, without white space.
package struct JSONWriter {
    /// The text so far.
    package private(set) var bytes: [UInt8] = []
    private var needsComma = false

    package init(reserving capacity: Int) { bytes.reserveCapacity(capacity) }

    /// Begins an object; its members and ``endObject()`` follow.
    package mutating func beginObject() { open(UInt8(ascii: "{")) }

    /// Ends an object.
    package mutating func endObject() { close(UInt8(ascii: "}")) }

    /// Begins an array; its values and ``endArray()`` follow.
    package mutating func beginArray() { open(UInt8(ascii: "[")) }

    /// Ends an array.
    package mutating func endArray() { close(UInt8(ascii: "]")) }

    /// Writes a member's key; its value must follow.
    package mutating func key(_ key: StaticString) {
        comma()
        bytes.append(UInt8(ascii: "\""))
        key.withUTF8Buffer { bytes.append(contentsOf: $0) }
        bytes.append(UInt8(ascii: "\""))
        bytes.append(UInt8(ascii: ":"))
    }

    /// Writes a member's key that is known only at run time; its value must follow.
    package mutating func key(text: String) {
        string(text)
        bytes.append(UInt8(ascii: ":"))
        needsComma = false
    }

    /// Writes a value that is JSON already: a number, `true` or `false`.
    package mutating func raw(_ value: String) {
        comma()
        bytes.append(contentsOf: value.utf8)
        needsComma = true
    }

    /// Writes a `null`.
    package mutating func null() {
        comma()
        bytes.append(contentsOf: "null".utf8)
        needsComma = true
    }

    /// A member with a string.
    package mutating func member(_ key: StaticString, _ value: String) {
        self.key(key)
        needsComma = false
        string(value)
    }

    /// A member with a string.
    package mutating func member(_ key: StaticString, _ value: Substring) {
        self.key(key)
        needsComma = false
        string(value)
    }

    /// Writes a member with a number.
    package mutating func member(_ key: StaticString, _ value: Int64) {
        self.key(key)
        bytes.append(contentsOf: String(value).utf8)
        needsComma = true
    }

    /// Writes a member with `null`, whose key is known only at run time.
    package mutating func memberNull(key: String) {
        string(key)
        bytes.append(UInt8(ascii: ":"))
        needsComma = false
        null()
    }

    /// Writes a member with a string, whose key is known only at run time.
    package mutating func member(key: String, _ value: String) {
        string(key)
        bytes.append(UInt8(ascii: ":"))
        needsComma = false
        string(value)
    }

    /// Writes a member whose value is JSON already.
    package mutating func member(key: String, json: some Sequence<UInt8>) {
        string(key)
        bytes.append(UInt8(ascii: ":"))
        bytes.append(contentsOf: json)
        needsComma = true
    }

    /// Writes a string. Escapes only the characters that RFC 8259, section 7, requires to be escaped.
    package mutating func string(_ value: some StringProtocol) {
        comma()
        bytes.append(UInt8(ascii: "\""))
        for byte in value.utf8 {
            switch byte {
            case UInt8(ascii: "\""), UInt8(ascii: "\\"):
                bytes.append(UInt8(ascii: "\\"))
                bytes.append(byte)
            case 0x08: escape("b")
            case 0x09: escape("t")
            case 0x0a: escape("n")
            case 0x0c: escape("f")
            case 0x0d: escape("r")
            case 0..<0x20:
                escape("u")
                let digits: StaticString = "0123456789abcdef"
                bytes.append(contentsOf: [0x30, 0x30, 0x30 + (byte >> 4)])
                bytes.append(digits.utf8Start[Int(byte & 15)])
            default: bytes.append(byte)
            }
        }
        bytes.append(UInt8(ascii: "\""))
        needsComma = true
    }

    private mutating func escape(_ letter: Unicode.Scalar) {
        bytes.append(UInt8(ascii: "\\"))
        bytes.append(UInt8(ascii: letter))
    }

    private mutating func comma() {
        if needsComma { bytes.append(UInt8(ascii: ",")) }
        needsComma = false
    }

    private mutating func open(_ bracket: UInt8) {
        comma()
        bytes.append(bracket)
    }

    private mutating func close(_ bracket: UInt8) {
        bytes.append(bracket)
        needsComma = true
    }
}
