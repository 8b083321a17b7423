import YAML

/// Parses JSON (RFC 8259) into YAML nodes, so that the same code reads both formats.
///
/// libyaml can parse most JSON, but no surrogate pairs in escapes. Strings become scalars that are not plain.
struct JSONReader {
    private static let maximumDepth = 128
    private let text: [Unicode.Scalar]
    private var place = 0
    private var mark = Mark(line: 1, column: 1)

    /// Reads the whole text.
    static func load(_ text: String) throws(YAMLError) -> Node {
        var reader = JSONReader(text: Array(text.unicodeScalars))
        if reader.next == "\u{FEFF}" { reader.place = 1 }
        let node = try reader.node(depth: 0)
        reader.skipSpace()
        if reader.next != nil { throw reader.fail("something follows the value") }
        return node
    }

    private init(text: [Unicode.Scalar]) { self.text = text }

    private func fail(_ reason: String) -> YAMLError {
        YAMLError(message: "not JSON: \(reason)", mark: mark)
    }

    private var next: Unicode.Scalar? { place < text.count ? text[place] : nil }

    private mutating func take() -> Unicode.Scalar? {
        guard let scalar = next else { return nil }
        place += 1
        if scalar == "\n" {
            mark = Mark(line: mark.line + 1, column: 1)
        } else {
            mark.column += 1
        }
        return scalar
    }

    private mutating func skipSpace() {
        while let scalar = next, [" ", "\t", "\n", "\r"].contains(scalar) { _ = take() }
    }

    private mutating func skip(_ scalar: Unicode.Scalar) -> Bool {
        guard next == scalar else { return false }
        _ = take()
        return true
    }

    private mutating func node(depth: Int) throws(YAMLError) -> Node {
        skipSpace()
        if depth > Self.maximumDepth { throw fail("it is nested too deeply") }
        let start = mark
        switch next {
        case "{": return .mapping(try members(depth), start)
        case "[": return .sequence(try elements(depth), start)
        case "\"": return .scalar(.init(try string(), isPlain: false, mark: start))
        default: return .scalar(.init(try word(), isPlain: true, mark: start))
        }
    }

    private mutating func members(_ depth: Int) throws(YAMLError) -> [(key: Node, value: Node)] {
        _ = take()
        var pairs: [(key: Node, value: Node)] = []
        var known: Set<[UInt8]> = []
        skipSpace()
        if skip("}") { return pairs }
        repeat {
            skipSpace()
            let start = mark
            guard next == "\"" else { throw fail("a name in quotes is expected") }
            let key = try string()
            guard known.insert(Array(key.utf8)).inserted else {
                throw YAMLError(message: "not JSON: '\(key)' is given twice", mark: start)
            }
            skipSpace()
            guard skip(":") else { throw fail("':' is expected") }
            pairs.append(
                (.scalar(.init(key, isPlain: false, mark: start)), try node(depth: depth + 1)))
            skipSpace()
        } while skip(",")
        guard skip("}") else { throw fail("',' or '}' is expected") }
        return pairs
    }

    private mutating func elements(_ depth: Int) throws(YAMLError) -> [Node] {
        _ = take()
        var nodes: [Node] = []
        skipSpace()
        if skip("]") { return nodes }
        repeat {
            nodes.append(try node(depth: depth + 1))
            skipSpace()
        } while skip(",")
        guard skip("]") else { throw fail("',' or ']' is expected") }
        return nodes
    }

    /// Parses a number, `true`, `false` or `null`.
    private mutating func word() throws(YAMLError) -> String {
        let start = mark
        var word = ""
        while let scalar = next,
            scalar.properties.isAlphabetic || "+-.0123456789".unicodeScalars.contains(scalar)
        {
            word.unicodeScalars.append(scalar)
            _ = take()
        }
        let isNumber =
            word.wholeMatch(of: /-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?/) != nil
        guard isNumber || ["true", "false", "null"].contains(word) else {
            throw YAMLError(message: "not JSON: a value is expected", mark: start)
        }
        return word
    }

    private mutating func string() throws(YAMLError) -> String {
        let start = mark
        _ = take()
        var text = ""
        while let scalar = next {
            if scalar.value < 0x20 { throw fail("a control character must be escaped") }
            _ = take()
            if scalar == "\"" { return text }
            text.unicodeScalars.append(scalar == "\\" ? try escape() : scalar)
        }
        throw YAMLError(message: "not JSON: a string has no end", mark: start)
    }

    private mutating func escape() throws(YAMLError) -> Unicode.Scalar {
        let start = mark
        switch take() {
        case "\"": return "\""
        case "\\": return "\\"
        case "/": return "/"
        case "b": return "\u{8}"
        case "f": return "\u{c}"
        case "n": return "\n"
        case "r": return "\r"
        case "t": return "\t"
        case "u": break
        default: throw YAMLError(message: "not JSON: an escape is unknown", mark: start)
        }
        let first = try codeUnit()
        if let scalar = Unicode.Scalar(first) { return scalar }
        guard first < 0xDC00, skip("\\"), skip("u") else { throw fail("a surrogate is alone") }
        let second = try codeUnit()
        guard (0xDC00...0xDFFF).contains(second),
            let scalar = Unicode.Scalar(0x10000 + (first - 0xD800) << 10 + (second - 0xDC00))
        else { throw fail("a surrogate is alone") }
        return scalar
    }

    private mutating func codeUnit() throws(YAMLError) -> UInt32 {
        var value: UInt32 = 0
        for _ in 0..<4 {
            guard let scalar = next, scalar.isASCII, let digit = Character(scalar).hexDigitValue
            else { throw fail("four hexadecimal digits are expected") }
            value = value << 4 | UInt32(digit)
            _ = take()
        }
        return value
    }
}
