import Wire
import YAML

extension Node {
    /// Parses JSON (RFC 8259) into nodes, so that the same code reads both formats. Strings become scalars that are not
    /// plain. A byte order mark is ignored.
    ///
    /// libyaml can parse most JSON, but no surrogate pairs in escapes.
    static func loadJSON(_ text: String) throws(YAMLError) -> Node {
        var bytes = Array(text.utf8)
        if bytes.starts(with: [0xef, 0xbb, 0xbf]) { bytes.removeFirst(3) }
        var marks = Marks(bytes: bytes)
        do throws(JSONDocument.Malformed) {
            return node(0, of: try JSONDocument(bytes, maximumValues: .max), &marks)
        } catch {
            throw YAMLError(message: "not JSON: \(error.reason)", mark: marks.mark(error.offset))
        }
    }

    private static func node(_ index: Int, of document: JSONDocument, _ marks: inout Marks) -> Node {
        let start = marks.mark(document.offset(index))
        func plain(_ text: String) -> Node { .scalar(Scalar(text, isPlain: true, mark: start)) }
        switch document.kind(index) {
        case .null: return plain("null")
        case .false: return plain("false")
        case .true: return plain("true")
        case .number: return plain(document.text(index))
        case .string: return .scalar(Scalar(document.text(index), isPlain: false, mark: start))
        case .array:
            return .sequence(
                document.children(of: index).map { node($0, of: document, &marks) }, start)
        case .object:
            return .mapping(
                document.children(of: index).map { key in
                    (node(key, of: document, &marks), node(key + 1, of: document, &marks))
                }, start)
        }
    }
}

/// Converts ascending offsets in a text to marks.
private struct Marks {
    let bytes: [UInt8]
    private var offset = 0
    private var last = Mark(line: 1, column: 1)

    init(bytes: [UInt8]) { self.bytes = bytes }

    mutating func mark(_ target: Int) -> Mark {
        while offset < target {
            if bytes[offset] == UInt8(ascii: "\n") {
                last = Mark(line: last.line + 1, column: 1)
            } else if bytes[offset] & 0xc0 != 0x80 {
                last.column += 1
            }
            offset += 1
        }
        return last
    }
}
