import SecurityRules
import Wire
import YAML

extension NodeReader {
    /// Reads an object as the gateway would pass it to the rules. Missing optional properties are null.
    mutating func object(
        _ node: Node, _ what: String, _ path: ObjectPath, isIncoming: Bool
    ) -> ObjectFacts {
        var facts = ObjectFacts(name: path.object, bucket: path.bucket)
        set(node, what, in: &facts, isIncoming: isIncoming)
        return facts
    }

    /// The new object of an unchanged update: the old one, without the properties of stored objects.
    func unchanged(_ old: Node?, _ path: ObjectPath) -> ObjectFacts {
        var facts = ObjectFacts(name: path.object, bucket: path.bucket)
        guard let old, old.mapping != nil else { return facts }
        // Errors in the old object are reported where it is read as `resource`, so ignore them here.
        var quiet = self
        let incoming = old.mapping?.filter { key, _ in
            ObjectField.allCases.contains { $0.isIncoming && $0.key == key.scalar?.string }
        }
        quiet.set(.mapping(incoming ?? [], Mark(line: 1, column: 1)), "", in: &facts, isIncoming: true)
        return facts
    }

    /// Sets the given properties.
    mutating func set(
        _ node: Node, _ what: String, in facts: inout ObjectFacts, isIncoming: Bool
    ) {
        let fields = ObjectField.allCases.filter { !isIncoming || $0.isIncoming }
        guard let members = members(node, what, known: fields.map(\.key)) else { return }
        for field in fields {
            guard let value = members[field.key] else { continue }
            facts.set(field, .known(property(field, value)))
        }
    }

    /// Reads a property with the type that it has in the gateway.
    private mutating func property(_ field: ObjectField, _ node: Node) -> Value {
        switch field {
        case _ where field.isNullable && node.isNull: return .null
        case .generation, .metageneration, .size:
            guard let number = node.scalar.flatMap({ Int64($0.string) }), number >= 0 else {
                fail("\(field.key) must be a whole number", node.mark)
                return .null
            }
            return .int(number)
        case .timeCreated, .updated: return time(node, field.key).map(Value.timestamp) ?? .null
        case .metadata:
            var map: [BytewiseString: Value] = [:]
            for (key, value) in entries(node, "metadata") {
                map[key.string] = string(value, "metadata").map(Value.string)
            }
            return .map(map)
        case .name, .bucket, .md5Hash, .crc32c, .etag, .contentDisposition, .contentEncoding,
            .contentLanguage, .contentType, .cacheControl, .storageClass:
            return string(node, field.key).map(Value.string) ?? .null
        }
    }

    /// Reads a caller: a user ID, or a mapping with claims.
    mutating func caller(_ node: Node) -> Caller? {
        if node.isNull { return nil }
        if let scalar = node.scalar { return Caller(uid: scalar.string) }
        guard let members = members(node, "auth", known: ["uid", "token"]) else { return nil }
        guard let uid = members["uid"] else {
            fail("auth has no 'uid'", node.mark)
            return nil
        }
        let token = members["token"].map { map($0, isTyped: true) } ?? [:]
        return string(uid, "uid").map { Caller(uid: $0, token: token) }
    }

    /// Reads a document: a mapping of its fields, `absent`, or `failed`.
    mutating func document(_ node: Node) -> Lookup {
        if node.mapping != nil { return .present(map(node, isTyped: true)) }
        switch node.scalar?.string {
        case "absent": return .absent
        case "failed": return .failed
        default:
            fail("a document is a mapping of its fields, 'absent' or 'failed'", node.mark)
            return .failed
        }
    }
}

extension ObjectField {
    /// Whether the property can be null.
    fileprivate var isNullable: Bool {
        switch self {
        case .name, .bucket, .size, .timeCreated, .updated, .md5Hash, .crc32c: false
        default: true
        }
    }
}
