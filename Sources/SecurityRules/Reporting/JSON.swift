import Wire

/// A JSON value to be printed for tools and for people. Members keep their order.
///
/// It is not written by `JSONWriter` of `Wire`, which sends as few bytes as it can: here a space follows each comma and
/// colon, and characters that a terminal does not show, or acts on, are escaped.
package indirect enum JSON: Sendable {
    /// The values of RFC 8259. `raw` is text that is already JSON.
    case null
    case bool(Bool)
    case int(Int)
    case string(String)
    case raw(String)
    case array([JSON])
    case object([(String, JSON)])

    /// The value as one line of JSON.
    package var text: String {
        var text = ""
        write(to: &text)
        return text
    }

    private func write(to text: inout String) {
        switch self {
        case .null: text += "null"
        case .bool(let value): text += value ? "true" : "false"
        case .int(let value): text += String(value)
        case .string(let value): VisibleText.quote(value, in: "\"", to: &text)
        case .raw(let value): text += value
        case .array(let values):
            text += "["
            for (index, value) in values.enumerated() {
                if index > 0 { text += ", " }
                value.write(to: &text)
            }
            text += "]"
        case .object(let members):
            text += "{"
            for (index, (key, value)) in members.enumerated() {
                if index > 0 { text += ", " }
                VisibleText.quote(key, in: "\"", to: &text)
                text += ": "
                value.write(to: &text)
            }
            text += "}"
        }
    }
}

extension JSON {
    /// A part of a file as the hosted service writes it: `endOffset` is the last code point's, not the next one's.
    package init(_ fileName: String, _ range: Range<SourcePosition>?) {
        var members: [(String, JSON)] = [("fileName", .string(fileName))]
        if let range {
            let (start, end) = (range.lowerBound, range.upperBound)
            members += [
                ("line", .int(start.line)), ("column", .int(start.column)),
                ("currentOffset", .int(start.offset)),
                ("endOffset", .int(max(start.offset, end.offset - 1))),
            ]
        }
        self = .object(members)
    }
}
