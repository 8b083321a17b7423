import Wire

extension Caller {
    /// `request.auth.token` as JSON, in order. Values without a JSON form would be null; claims have none.
    package var tokenJSON: [UInt8] {
        var json = JSONWriter(reserving: 512)
        var token = Datum.map([])
        if case .map(let properties) = value {
            for property in properties where property.key == "token" { token = property.value }
        }
        json.write(token)
        return json.bytes
    }
}

extension JSONWriter {
    fileprivate mutating func write(_ datum: Datum) {
        switch datum {
        case .bool(let value): raw(value ? "true" : "false")
        case .int(let value): raw(String(value))
        case .float(let value) where value.isFinite: raw(value.description)
        case .string(let text): string(text.string)
        case .list(let elements):
            beginArray()
            for element in elements { write(element) }
            endArray()
        case .map(let entries):
            beginObject()
            for entry in entries.sorted(by: { $0.order < $1.order }) {
                key(text: entry.key.string)
                write(entry.value)
            }
            endObject()
        default: null()
        }
    }
}
