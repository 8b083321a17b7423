import SecurityRules

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
        case .string(let value): JSONText.quote(value, to: &text)
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
                JSONText.quote(key, to: &text)
                text += ": "
                value.write(to: &text)
            }
            text += "}"
        }
    }
}
