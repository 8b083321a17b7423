import Wire

/// Writes an XML document of elements and text.
package struct XMLWriter {
    /// The document so far.
    package private(set) var bytes: [UInt8]

    /// Begins with the XML declaration.
    package init(reserving count: Int = 512) {
        bytes = []
        bytes.reserveCapacity(count)
        bytes += "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n".utf8
    }

    /// Writes the start tag of an element that has others.
    package mutating func begin(_ name: StaticString, namespace: StaticString? = nil) {
        tag("<", name)
        bytes.removeLast()
        if let namespace {
            bytes += " xmlns=\"".utf8
            namespace.withUTF8Buffer { bytes += $0 }
            bytes.append(UInt8(ascii: "\""))
        }
        bytes.append(UInt8(ascii: ">"))
    }

    /// Writes an end tag.
    package mutating func end(_ name: StaticString) { tag("</", name) }

    /// Writes an element with a text, which may be empty.
    package mutating func element(_ name: StaticString, _ text: String) {
        tag("<", name)
        append(text)
        tag("</", name)
    }

    /// Writes an element with a number.
    package mutating func element(_ name: StaticString, _ number: some BinaryInteger) {
        element(name, "\(number)")
    }

    /// Writes a text within the current element.
    package mutating func text(_ text: String) { append(text) }

    /// Writes markup as it is.
    package mutating func raw(_ markup: StaticString) { markup.withUTF8Buffer { bytes += $0 } }

    private mutating func tag(_ start: StaticString, _ name: StaticString) {
        raw(start)
        raw(name)
        bytes.append(UInt8(ascii: ">"))
    }

    /// Escapes markup, and writes characters that XML 1.0 does not have as references, as S3 does.
    private mutating func append(_ text: String) {
        let text = text.utf8
        guard text.contains(where: XMLWriter.isSpecial) else {
            bytes += text
            return
        }
        var before: (UInt8, UInt8) = (0, 0)
        for byte in text {
            switch byte {
            case UInt8(ascii: "&"): bytes += "&amp;".utf8
            case UInt8(ascii: "<"): bytes += "&lt;".utf8
            case UInt8(ascii: ">"): bytes += "&gt;".utf8
            case UInt8(ascii: "\""): bytes += "&quot;".utf8
            case 0..<0x20: bytes += "&#x\(String(byte, radix: 16));".utf8
            // U+FFFE and U+FFFF.
            case 0xbe where before == (0xef, 0xbf), 0xbf where before == (0xef, 0xbf):
                bytes.removeLast(2)
                bytes += byte == 0xbe ? "&#xfffe;".utf8 : "&#xffff;".utf8
            default: bytes.append(byte)
            }
            before = (before.1, byte)
        }
    }

    private static func isSpecial(_ byte: UInt8) -> Bool {
        byte < 0x20 || byte == 0xef
            || [UInt8(ascii: "&"), UInt8(ascii: "<"), UInt8(ascii: ">"), UInt8(ascii: "\"")].contains(byte)
    }
}
