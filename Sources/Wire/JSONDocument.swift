/// A parsed JSON text (RFC 8259). The parser is strict: UTF-8 without a byte order mark, no duplicate key in an object
/// (most libraries keep one of the values), no lone surrogate, at most 64 levels.
///
/// A value is identified by its index, 0 for the outermost value, and is followed by its content. The document is one
/// array of nodes, not a tree; its strings are ranges of ``bytes``.
package struct JSONDocument: Sendable {
    /// Why a text is not valid JSON.
    package struct Malformed: Error, Equatable {
        package var reason: String
        /// In bytes from the start of the text.
        package var offset: Int
    }
    /// The type of a value.
    package enum Kind: UInt8, Sendable {
        case null, `false`, `true`, number, string, array, object
    }
    fileprivate struct Node {
        let kind: Kind
        let offset: UInt32
        /// For a number or string, the offset of its first byte; for an array or object, the number of its elements.
        var start: UInt32 = 0
        /// For a number or string, the offset after its last byte; for other values, the index of the next value.
        var end: UInt32
    }

    /// The default maximum number of values in a text.
    package static let defaultMaximumValues = 100_000
    /// The text, followed by the unescaped form of each string that has escapes.
    package let bytes: [UInt8]
    private let nodes: [Node]

    /// Parses the whole text.
    /// - Parameter maximumValues: Limits memory: a node is much larger than a two-byte value in the text.
    package init(_ text: [UInt8], maximumValues: Int = defaultMaximumValues) throws(Malformed) {
        var reader = Reader(text, maximumValues: maximumValues)
        try reader.whole()
        bytes = reader.bytes
        nodes = reader.nodes
    }

    /// The number of values, including names.
    package var count: Int { nodes.count }

    /// The type of the value.
    package func kind(_ index: Int) -> Kind { nodes[index].kind }

    /// The offset of the value in the text, for a string of its opening quote.
    package func offset(_ index: Int) -> Int { Int(nodes[index].offset) }

    /// The range in ``bytes`` of an unescaped string without its quotes, or of a number.
    package func range(_ index: Int) -> Range<Int> { nodes[index].range }

    /// A string, or a number as written.
    package func text(_ index: Int) -> String {
        String(decoding: bytes[range(index)], as: UTF8.self)
    }

    /// Whether a string equals `text`.
    package func has(_ index: Int, _ text: String) -> Bool {
        let (range, other) = (range(index), text.utf8.span)
        guard range.count == other.count else { return false }
        for index in other.indices where bytes[range.lowerBound + index] != other[index] {
            return false
        }
        return true
    }

    /// The values of an array, or the names of an object. The value of a name has the next index.
    package func children(of index: Int) -> Children {
        Children(
            nodes: nodes, isObject: kind(index) == .object, index: index + 1,
            count: Int(nodes[index].start))
    }

    /// The indexes of the elements of an array or object, in the order of the text.
    package struct Children: Sequence, IteratorProtocol {
        fileprivate let nodes: [Node]
        fileprivate let isObject: Bool
        fileprivate var index: Int
        /// The number of remaining elements.
        package private(set) var count: Int
        /// The next index; nil after the last.
        package mutating func next() -> Int? {
            if count == 0 { return nil }
            count -= 1
            defer { index = nodes.follower(of: isObject ? index + 1 : index) }
            return index
        }
    }
}

extension JSONDocument.Node {
    fileprivate var range: Range<Int> { Int(start)..<Int(end) }
}

extension [JSONDocument.Node] {
    /// The index after a value and its content.
    fileprivate func follower(of index: Int) -> Int {
        switch self[index].kind {
        case .number, .string: index + 1
        default: Int(self[index].end)
        }
    }
}

/// Parses a text in one pass.
private struct Reader {
    typealias Malformed = JSONDocument.Malformed
    private static let maximumDepth = 64
    private static let fewMembers = 16
    var bytes: [UInt8]
    var nodes: [JSONDocument.Node] = []
    /// The length of the text, which the unescaped strings follow in ``bytes``.
    private let end: Int
    private var offset = 0
    private var remainingValues: Int

    init(_ text: [UInt8], maximumValues: Int) {
        bytes = text
        end = text.count
        remainingValues = maximumValues
        nodes.reserveCapacity(text.count / 12)
    }

    mutating func whole() throws(Malformed) {
        // The unescaped strings together are no longer than the text.
        guard end < Int(UInt32.max) / 2 else { throw fail("it is too long") }
        guard (try? UTF8Span(validating: bytes.span)) != nil else {
            throw fail("it is not valid UTF-8")
        }
        try value(depth: 0)
        skipWhiteSpace()
        if offset < end { throw fail("something follows the value") }
    }

    private func fail(_ reason: String, at offset: Int? = nil) -> Malformed {
        Malformed(reason: reason, offset: offset ?? self.offset)
    }

    private var next: UInt8? { offset < end ? bytes[offset] : nil }

    private mutating func add(_ kind: JSONDocument.Kind, at offset: Int, _ start: Int, _ end: Int) {
        nodes.append(
            JSONDocument.Node(
                kind: kind, offset: UInt32(offset), start: UInt32(start), end: UInt32(end)))
    }

    private mutating func skipWhiteSpace() {
        while let byte = next, byte == 0x20 || byte == 0x09 || byte == 0x0a || byte == 0x0d {
            offset += 1
        }
    }

    private mutating func skip(_ character: Unicode.Scalar) -> Bool {
        guard next == UInt8(ascii: character) else { return false }
        offset += 1
        return true
    }

    private mutating func value(depth: Int) throws(Malformed) {
        if depth > Reader.maximumDepth { throw fail("it is nested too deeply") }
        remainingValues -= 1
        if remainingValues < 0 { throw fail("it has too many values") }
        skipWhiteSpace()
        switch next {
        case UInt8(ascii: "{"): try object(depth)
        case UInt8(ascii: "["): try array(depth)
        case UInt8(ascii: "\""): try string()
        case UInt8(ascii: "t"): try word("true", .true)
        case UInt8(ascii: "f"): try word("false", .false)
        case UInt8(ascii: "n"): try word("null", .null)
        default: try number()
        }
    }

    private mutating func word(_ word: String, _ kind: JSONDocument.Kind) throws(Malformed) {
        guard bytes[offset..<end].starts(with: word.utf8) else { throw fail("a value is expected") }
        add(kind, at: offset, 0, nodes.count + 1)
        offset += word.utf8.count
    }

    private mutating func object(_ depth: Int) throws(Malformed) {
        let own = nodes.count
        add(.object, at: offset, 0, 0)
        offset += 1
        var count = 0
        // The first names are compared pairwise; building a set is worthwhile only for more.
        var names: Set<BytewiseString> = []
        skipWhiteSpace()
        if !skip("}") {
            repeat {
                skipWhiteSpace()
                let name = nodes.count
                try string()
                guard isNew(name, of: own, count, &names) else {
                    throw fail("'\(text(name).prefix(64))' is given twice", at: Int(nodes[name].offset))
                }
                skipWhiteSpace()
                guard skip(":") else { throw fail("':' is expected") }
                try value(depth: depth + 1)
                count += 1
                skipWhiteSpace()
            } while skip(",")
            guard skip("}") else { throw fail("',' or '}' is expected") }
        }
        nodes[own].start = UInt32(count)
        nodes[own].end = UInt32(nodes.count)
    }

    private func text(_ index: Int) -> String {
        String(decoding: bytes[nodes[index].range], as: UTF8.self)
    }

    /// Whether `name` is not among the first `count` names of an object.
    private func isNew(
        _ name: Int, of object: Int, _ count: Int, _ names: inout Set<BytewiseString>
    ) -> Bool {
        if count >= Reader.fewMembers, !names.isEmpty {
            return names.insert(BytewiseString(text(name))).inserted
        }
        var other = object + 1
        for _ in 0..<count {
            if count >= Reader.fewMembers { names.insert(BytewiseString(text(other))) }
            if areEqual(nodes[other].range, nodes[name].range) { return false }
            other = nodes.follower(of: other + 1)
        }
        if count >= Reader.fewMembers { names.insert(BytewiseString(text(name))) }
        return true
    }

    private func areEqual(_ left: Range<Int>, _ right: Range<Int>) -> Bool {
        guard left.count == right.count else { return false }
        for index in 0..<left.count
        where bytes[left.lowerBound + index] != bytes[right.lowerBound + index] { return false }
        return true
    }

    private mutating func array(_ depth: Int) throws(Malformed) {
        let own = nodes.count
        add(.array, at: offset, 0, 0)
        offset += 1
        var count = 0
        skipWhiteSpace()
        if !skip("]") {
            repeat {
                try value(depth: depth + 1)
                count += 1
                skipWhiteSpace()
            } while skip(",")
            guard skip("]") else { throw fail("',' or ']' is expected") }
        }
        nodes[own].start = UInt32(count)
        nodes[own].end = UInt32(nodes.count)
    }

    private mutating func number() throws(Malformed) {
        let start = offset
        _ = skip("-")
        if !skip("0"), !digits() { throw fail("a value is expected") }
        if skip("."), !digits() { throw fail("a digit is expected") }
        if skip("e") || skip("E") {
            if !skip("+") { _ = skip("-") }
            if !digits() { throw fail("a digit is expected") }
        }
        add(.number, at: start, start, offset)
    }

    private mutating func digits() -> Bool {
        let start = offset
        while let byte = next, ASCII.isDigit(byte) { offset += 1 }
        return offset > start
    }

    private mutating func string() throws(Malformed) {
        guard skip("\"") else { throw fail("a name in quotes is expected") }
        let start = offset
        let stop = endOfPlainText(from: start)
        offset = stop
        if skip("\"") { return add(.string, at: start - 1, start, stop) }
        // The string has an escape or is malformed. Append its unescaped form to the text.
        let copy = bytes.count
        bytes.append(contentsOf: bytes[start..<offset])
        while let byte = next {
            if byte < 0x20 { throw fail("a control character must be escaped") }
            offset += 1
            if byte == UInt8(ascii: "\"") {
                return add(.string, at: start - 1, copy, bytes.count)
            }
            if byte == UInt8(ascii: "\\") {
                bytes.append(contentsOf: String(Character(try escape())).utf8)
            } else {
                bytes.append(byte)
            }
        }
        throw fail("a string has no end", at: start - 1)
    }

    /// The offset of the first quote, backslash or control character.
    private func endOfPlainText(from start: Int) -> Int {
        let text = bytes.span
        var index = start
        while index < end {
            let byte = text[index]
            if byte == UInt8(ascii: "\"") || byte == UInt8(ascii: "\\") || byte < 0x20 { break }
            index &+= 1
        }
        return index
    }

    private mutating func escape() throws(Malformed) -> Unicode.Scalar {
        guard let letter = next else { throw fail("a string has no end") }
        offset += 1
        switch letter {
        case UInt8(ascii: "\""), UInt8(ascii: "\\"), UInt8(ascii: "/"): return Unicode.Scalar(letter)
        case UInt8(ascii: "b"): return "\u{8}"
        case UInt8(ascii: "f"): return "\u{c}"
        case UInt8(ascii: "n"): return "\n"
        case UInt8(ascii: "r"): return "\r"
        case UInt8(ascii: "t"): return "\t"
        case UInt8(ascii: "u"): break
        default: throw fail("an escape is unknown", at: offset - 1)
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
            offset += 1
        }
        return value
    }
}
