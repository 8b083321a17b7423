import Wire

extension Request {
    /// The inputs of a decision as JSON: `method`, `path`, `auth`, `resource`, `new`, `time`, `params` and `documents`, in the
    /// form that `sluice rules explain` and test suites read. Properties that are not known are left out, and so are
    /// `resource` and `new` as a whole.
    package var json: [(String, JSON)] {
        let path = state.path.map { "/" + $0.map(\.string).joined(separator: "/") }
        var members: [(String, JSON)] = [
            ("method", .string(method.name)), ("path", path.map(JSON.string) ?? .null), ("auth", JSON(state.auth)),
        ]
        switch existing {
        case .unknown: break
        case .absent: members.append(("resource", .null))
        case .object(let facts): members.append(("resource", facts.json(isStored: true)))
        }
        if let incoming {
            var old: ObjectFacts?
            if method == .update, case .object(let facts) = existing { old = facts }
            members.append(("new", incoming.json(isStored: false, over: old)))
        }
        members.append(("time", .string(time.description)))
        if case .map(let parameters) = state.params, !parameters.isEmpty {
            members.append(("params", JSON(state.params)))
        }
        if !state.documents.isEmpty {
            let documents = state.documents.map { ($0.key.description, JSON($0.value)) }.sorted { $0.0 < $1.0 }
            members.append(("documents", .object(documents)))
        }
        return members
    }
}

extension ObjectFacts {
    /// The known properties but the name and the bucket, which the path has.
    /// - Parameters:
    ///   - isStored: Whether it is a stored object.
    ///   - old: The object that is updated. Its properties stay unless the new object sets them, to null if need be.
    fileprivate func json(isStored: Bool, over old: ObjectFacts? = nil) -> JSON {
        var members: [(String, JSON)] = []
        for field in ObjectField.allCases where field != .name && field != .bucket {
            guard let value = fields[Int(field.rawValue)] else { continue }
            switch value {
            case .unknown: continue
            case .null:
                // Others are null if they are left out, but for those that an update keeps.
                let before = old?.fields[Int(field.rawValue)]
                let isKept = field.isIncoming && before.map { if case .null = $0 { false } else { true } } == true
                if isKept || (isStored && ObjectFacts.ofStored.contains(field)) { members.append((field.key, .null)) }
            case .timestamp(let time): members.append((field.key, .string(time.description)))
            default: members.append((field.key, JSON(value)))
            }
        }
        return .object(members)
    }
}

extension JSON {
    /// A claim, or a field of a document. What JSON has no notation for has its type, as in the Firestore protocol.
    fileprivate init(_ datum: Datum) {
        switch datum {
        case .null: self = .null
        case .bool(let value): self = .bool(value)
        case .int(let value): self = .raw(String(value))
        case .float(let value) where value.isFinite:
            let text = JSON.raw(value.description)
            self = value == value.rounded() ? .object([("doubleValue", text)]) : text
        case .string(let text): self = .string(text.string)
        case .list(let elements): self = .array(elements.map { JSON($0) })
        case .map(let entries):
            self = .object(entries.sorted { $0.order < $1.order }.map { ($0.key.string, JSON($0.value)) })
        case .timestamp(let time): self = .object([("timestampValue", .string(time.description))])
        case .latlng(let latitude, let longitude):
            let degrees = [("latitude", latitude), ("longitude", longitude)].map { ($0, JSON.raw($1.description)) }
            self = .object([("geoPointValue", .object(degrees))])
        // Claims and documents have no others.
        default: self = .null
        }
    }

    fileprivate init(_ lookup: Lookup) {
        switch lookup {
        case .present(let fields): self = JSON(Datum(.map(fields)))
        case .absent: self = .string("absent")
        case .failed: self = .string("failed")
        }
    }
}

extension Request {
    /// The approximate memory of the inputs, in bytes.
    package var byteCount: Int {
        var count = 512 + state.auth.byteCount + state.params.byteCount + (state.incoming?.byteCount ?? 0)
        if case .object(let facts) = state.existing { count += facts.byteCount }
        for lookup in state.documents.values {
            if case .present(let fields) = lookup { count += Datum(.map(fields)).byteCount }
        }
        return count
    }
}

extension ObjectFacts {
    fileprivate var byteCount: Int { fields.reduce(0) { $0 + 32 + ($1?.byteCount ?? 0) } }
}

extension Datum {
    fileprivate var byteCount: Int {
        switch self {
        case .string(let text): 32 + text.count
        case .list(let elements): elements.reduce(64) { $0 + $1.byteCount }
        case .map(let entries): entries.reduce(64) { $0 + 64 + $1.key.count + $1.value.byteCount }
        default: 16
        }
    }
}

extension Request {
    /// The query parameters with a text, ordered by name.
    package var parameters: [(name: String, value: String)] {
        guard case .map(let entries) = state.params else { return [] }
        return entries.compactMap { entry in
            if case .string(let text) = entry.value { (entry.key.string, text.string) } else { nil }
        }.sorted { $0.0 < $1.0 }
    }
}
