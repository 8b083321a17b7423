/// Writes JSON (RFC 8259) as UTF-8, without white space, for clients, services and stores.
///
/// Two other writers print for people too, and so escape more: `JSON` in `SecurityRules`, which writes what `sluice
/// rules` prints, and `LogLine` in `Telemetry`, which also redacts secrets.
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

    /// Writes a parsed value, without white space.
    package mutating func value(_ value: JSONValue) {
        switch value {
        case .null: null()
        case .boolean(let value): raw(value ? "true" : "false")
        case .number(let text): raw(text)
        case .string(let text): string(text)
        case .array(let elements):
            beginArray()
            for element in elements { self.value(element) }
            endArray()
        case .object(let members):
            beginObject()
            for member in members {
                key(text: member.key)
                self.value(member.value)
            }
            endObject()
        }
    }

    /// Writes a `null`.
    package mutating func null() {
        comma()
        bytes.append(contentsOf: "null".utf8)
        needsComma = true
    }

    /// Writes a member with a string.
    package mutating func member(_ key: StaticString, _ value: String) {
        self.key(key)
        string(value)
    }

    /// Writes a member with a string.
    package mutating func member(_ key: StaticString, _ value: Substring) {
        self.key(key)
        string(value)
    }

    /// Writes a member with a number.
    package mutating func member(_ key: StaticString, _ value: Int64) {
        self.key(key)
        bytes.append(contentsOf: String(value).utf8)
        needsComma = true
    }

    /// Writes a member with a number as a string, as APIs of Google do for 64 bits.
    package mutating func member(_ key: StaticString, quoted value: Int64) {
        self.key(key)
        bytes.append(UInt8(ascii: "\""))
        var digits = InlineArray<20, UInt8>(repeating: 0)
        var start = digits.count
        var rest = value.magnitude
        repeat {
            start -= 1
            digits[start] = UInt8(ascii: "0") + UInt8(truncatingIfNeeded: rest % 10)
            rest /= 10
        } while rest > 0
        if value < 0 { bytes.append(UInt8(ascii: "-")) }
        append(digits.span.extracting(start...))
        bytes.append(UInt8(ascii: "\""))
        needsComma = true
    }

    /// Writes a member with `null`; its key is known only at run time.
    package mutating func memberNull(key: String) {
        self.key(text: key)
        null()
    }

    /// Writes a member with a string; its key is known only at run time.
    package mutating func member(key: String, _ value: String) {
        self.key(text: key)
        string(value)
    }

    /// Writes a member whose value is JSON already.
    package mutating func member(key: String, json: some Sequence<UInt8>) {
        self.key(text: key)
        bytes.append(contentsOf: json)
        needsComma = true
    }

    /// Writes a string, escaping only the characters that RFC 8259, section 7, requires.
    package mutating func string(_ value: String) { string(value.utf8.span) }

    /// Writes a string.
    package mutating func string(_ value: Substring) { string(value.utf8.span) }

    private mutating func string(_ text: Span<UInt8>) {
        comma()
        bytes.append(UInt8(ascii: "\""))
        var start = 0
        for index in text.indices {
            let byte = text[index]
            guard byte < 0x20 || byte == UInt8(ascii: "\"") || byte == UInt8(ascii: "\\") else {
                continue
            }
            append(text.extracting(start..<index))
            escape(byte)
            start = index + 1
        }
        append(text.extracting(start..<text.count))
        bytes.append(UInt8(ascii: "\""))
        needsComma = true
    }

    private mutating func append(_ run: Span<UInt8>) {
        run.withUnsafeBufferPointer { bytes.append(contentsOf: $0) }
    }

    private mutating func escape(_ byte: UInt8) {
        switch byte {
        case UInt8(ascii: "\""), UInt8(ascii: "\\"):
            bytes.append(UInt8(ascii: "\\"))
            bytes.append(byte)
        case 0x08: escape("b")
        case 0x09: escape("t")
        case 0x0a: escape("n")
        case 0x0c: escape("f")
        case 0x0d: escape("r")
        default:
            escape("u")
            let digits: StaticString = "0123456789abcdef"
            bytes.append(contentsOf: [0x30, 0x30, 0x30 + (byte >> 4)])
            bytes.append(digits.utf8Start[Int(byte & 15)])
        }
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
