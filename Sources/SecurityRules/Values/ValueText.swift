import Wire

/// Formats a value in the syntax of the rules language and truncates it.
///
/// Nothing after the cut is visited: a value whose parts share others could expand to more than the memory.
struct ValueText {
    /// The maximum length in characters.
    static let maximumLength = 256
    private static let maximumDepth = 8

    private let context: Context
    private var text = ""

    static func describe(_ value: Datum, _ context: Context) -> String {
        var writer = ValueText(context: context)
        writer.write(value, depth: 0)
        return writer.text.count <= maximumLength ? writer.text : writer.text.prefix(maximumLength - 1) + "…"
    }

    private init(context: Context) { self.context = context }

    /// Whether everything that follows would be cut. Also limits bytes, for few characters of many bytes.
    private var isFull: Bool {
        let bytes = text.utf8.count
        return bytes > 16 * Self.maximumLength || (bytes > Self.maximumLength && text.count > Self.maximumLength)
    }

    private mutating func write(_ value: Datum, depth: Int) {
        guard depth < Self.maximumDepth else {
            text += "…"
            return
        }
        switch value {
        case .null: text += "null"
        case .bool(let value): text += value ? "true" : "false"
        case .int(let value): text += String(value)
        case .float(let value): text += value.isNaN ? "NaN" : "\(value)"
        case .string(let value): write(value)
        case .bytes(let bytes):
            text += "b'"
            for byte in bytes.prefix(Self.maximumLength) {
                text += "\\x" + String(decoding: ByteText.hexadecimal([byte]), as: UTF8.self)
            }
            text += "'"
        case .list(let elements): write(elements, "[", "]", depth)
        case .set(let elements): write(elements, "[", "].toSet()", depth)
        case .map(let entries): write(entries, depth)
        case .mapDiff(let diff): write(diff.added + diff.removed + diff.changed, "map_diff([", "])", depth)
        case .path, .requestPath:
            for segment in context.segments(of: value) where !isFull {
                text += "/" + Self.beginning(of: segment.text)
            }
        case .timestamp(let moment): text += "timestamp(\(moment))"
        case .duration(let span): text += "duration(\(span))"
        case .latlng(let latitude, let longitude): text += "latlng(\(latitude), \(longitude))"
        case .record(.request): text += "request"
        case .record(.incoming), .record(.existing): write(context.whole(value), depth: depth)
        case .unknown: text += "unknown"
        case .failure: text += "error"
        }
    }

    private mutating func write(
        _ elements: [Datum], _ open: String, _ close: String, _ depth: Int
    ) {
        text += open
        for (index, element) in elements.enumerated() {
            if isFull { return }
            if index > 0 { text += ", " }
            write(element, depth: depth + 1)
        }
        text += close
    }

    private mutating func write(_ entries: [MapEntry], _ depth: Int) {
        text += "{"
        for (index, entry) in entries.enumerated() {
            if isFull { return }
            if index > 0 { text += ", " }
            write(entry.key)
            text += ": "
            write(entry.value, depth: depth + 1)
        }
        text += "}"
    }

    private mutating func write(_ value: Text) {
        VisibleText.quote(Self.beginning(of: value), in: "'", to: &text)
    }

    /// The part of a text that can be shown.
    private static func beginning(of text: Text) -> String {
        String(
            text.slice(0..<min(text.count, 4 * maximumLength)).string.unicodeScalars.prefix(
                maximumLength + 1))
    }
}
