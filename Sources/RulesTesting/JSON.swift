/// A JSON value to be written; members stay in order.
package indirect enum JSON: Sendable {
    /// The values of RFC 8259; `raw` is a text that is JSON already.
    case null
    case bool(Bool)
    case int(Int)
    case string(String)
    case raw(String)
    case array([JSON])
    case object([(String, JSON)])

    /// As one line.
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
        case .string(let value): Self.quote(value, to: &text)
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
                Self.quote(key, to: &text)
                text += ": "
                value.write(to: &text)
            }
            text += "}"
        }
    }

    private static func quote(_ value: String, to text: inout String) {
        text += "\""
        for scalar in value.unicodeScalars {
            switch scalar {
            case "\"": text += "\\\""
            case "\\": text += "\\\\"
            case "\n": text += "\\n"
            case "\r": text += "\\r"
            case "\t": text += "\\t"
            case _ where scalar.value < 0x20 || scalar.value == 0x7F:
                let digits = String(scalar.value, radix: 16)
                text += "\\u" + String(repeating: "0", count: 4 - digits.count) + digits
            default: text.unicodeScalars.append(scalar)
            }
        }
        text += "\""
    }
}
