import SecurityRules
import Wire

/// Converts values of Firestore's REST API to rules values.
enum FirestoreValue {
    /// The fields of a document or a map. If absent, there are none.
    /// - Returns: nil if a field is malformed.
    static func fields(_ json: JSONValue?) -> [BytewiseString: Value]? {
        guard let json else { return [:] }
        guard case .object(let members) = json else { return nil }
        var fields: [BytewiseString: Value] = [:]
        for member in members {
            guard let value = value(member.value) else { return nil }
            fields[member.key] = value
        }
        return fields
    }

    /// Converts a value: an object with one member, whose name is the type.
    static func value(_ json: JSONValue) -> Value? {
        guard case .object(let members) = json, members.count == 1 else { return nil }
        let content = members[0].value
        switch members[0].key {
        case "nullValue": return .null
        case "booleanValue":
            if case .boolean(let value) = content { return .bool(value) }
            return nil
        case "integerValue": return content.integer.map(Value.int)
        case "doubleValue": return number(content).map(Value.float)
        case "stringValue": return content.text.map(Value.string)
        case "bytesValue": return content.text.flatMap { Base64.decode(Array($0.utf8)[...]) }.map(Value.bytes)
        case "timestampValue": return content.text.flatMap { Timestamp(rfc3339: $0) }.map(Value.timestamp)
        case "referenceValue": return content.text.map(reference)
        case "geoPointValue":
            // Zero values may be omitted.
            guard let latitude = number(content["latitude"] ?? .number("0")),
                let longitude = number(content["longitude"] ?? .number("0"))
            else { return nil }
            return .latlng(latitude: latitude, longitude: longitude)
        case "arrayValue":
            var list: [Value] = []
            for element in content["values"]?.elements ?? [] {
                guard let value = value(element) else { return nil }
                list.append(value)
            }
            return .list(list)
        case "mapValue": return fields(content["fields"]).map(Value.map)
        default: return nil
        }
    }

    private static func number(_ json: JSONValue) -> Double? {
        switch json {
        case .number(let text): Double(text)
        case .string("NaN"): .nan
        case .string("Infinity"): .infinity
        case .string("-Infinity"): -.infinity
        default: nil
        }
    }

    /// Converts `projects/P/databases/(default)/documents/users/alice` to a path as in rules, without the project.
    private static func reference(_ name: String) -> Value {
        let segments = name.split(separator: "/").map(String.init)
        return .path(segments.first == "projects" ? Array(segments.dropFirst(2)) : segments)
    }
}
