import SecurityRules
import Wire

/// Claims as the rules see them.
enum ClaimValues {
    /// Levels of arrays and objects within a claim.
    static let maximumDepth = 16

    /// A claim's value: whole numbers become integers, and others floats, as the hosted service reads them.
    /// - Returns: nil where it is nested too deeply, has a number beyond all floats, or an object with two names that are
    ///   one to Swift (canonical equivalence), so that one of them would vanish.
    static func value(_ json: JSONValue, depth: Int = 1) -> Value? {
        guard depth <= maximumDepth else { return nil }
        switch json {
        case .null: return .null
        case .boolean(let value): return .bool(value)
        case .number(let text):
            if let integer = Int64(text) { return .int(integer) }
            return number(text).map { Value(number: $0) }
        case .string(let text): return .string(text)
        case .array(let elements):
            var values: [Value] = []
            for element in elements {
                guard let value = value(element, depth: depth + 1) else { return nil }
                values.append(value)
            }
            return .list(values)
        case .object(let members): return map(members, depth: depth).map(Value.map)
        }
    }

    /// The members of an object; nil as with ``value(_:depth:)``.
    static func map(_ members: [JSONMember], depth: Int = 0) -> [String: Value]? {
        var map: [String: Value] = [:]
        map.reserveCapacity(members.count)
        for member in members {
            guard let value = value(member.value, depth: depth + 1),
                map.updateValue(value, forKey: member.key) == nil
            else { return nil }
        }
        return map
    }

    /// A finite number of JSON.
    static func number(_ text: String) -> Double? {
        guard let number = Double(text), number.isFinite else { return nil }
        return number
    }
}
