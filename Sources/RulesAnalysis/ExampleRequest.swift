import SecurityRules
import Wire

/// A request with all of its inputs: an example for a result of the analysis.
package struct ExampleRequest: Sendable, Equatable {
    /// The operation.
    package var method: Method
    /// The bucket, and the segments of the object's name.
    package var bucket = "b"
    package var segments: [String] = []
    /// nil for an anonymous caller.
    package var uid: String?
    /// The claims of the caller.
    package var token: [BytewiseString: Value] = [:]
    /// The properties of the stored object; nil if there is none. What is not given is null, or missing if it can't be.
    package var existing: [ObjectField: Value]?
    /// The properties of `request.resource`; nil for methods that have none.
    package var incoming: [ObjectField: Value]?
    /// The query parameters.
    package var parameters: [BytewiseString: Value] = [:]
    /// The time of the request.
    package var time = ExampleRequest.defaultTime
    /// The documents that the rules look up.
    package var documents: [DocumentPath: Lookup] = [:]

    /// The time of an example whose time does not matter.
    package static let defaultTime = Timestamp(seconds: 1_767_268_800)!

    /// The object's name.
    package var name: String { segments.joined(separator: "/") }

    package init(_ method: Method) {
        self.method = method
        if method == .create || method == .update { incoming = [:] }
    }

    /// The request as the engine takes it.
    package var request: Request {
        var request = Request(
            method, bucket: bucket, object: name, caller: uid.map { Caller(uid: $0, token: token) }, time: time,
            existing: existing.map { .object(facts($0)) } ?? .absent, incoming: incoming.map(facts))
        if !parameters.isEmpty { request.setParameters(parameters) }
        for (path, lookup) in documents { request.setDocument(path, lookup) }
        return request
    }

    private func facts(_ properties: [ObjectField: Value]) -> ObjectFacts {
        var facts = ObjectFacts(name: name, bucket: bucket)
        facts.setNotStored()
        for (field, value) in properties { facts.set(field, .known(value)) }
        return facts
    }

    /// Decides the request. Documents that the example does not have are absent, and are added to it.
    package mutating func isAllowed(by rules: Ruleset) -> Bool? {
        for _ in 0..<8 {
            switch rules.decide(request) {
            case .allowed: return true
            case .denied(let denial): return denial.reason == .timeLimit ? nil : false
            case .needs(let needs):
                let missing = needs.documents.filter { documents[$0] == nil }
                if missing.isEmpty { return nil }
                for path in missing { documents[path] = .absent }
            }
        }
        return nil
    }
}

extension ExampleRequest {
    /// The request of a model; nil if there is none, because a string is not what a request can have.
    init?(_ model: Model, _ inputs: Inputs) {
        self.init(inputs.method)
        let path = inputs.path
        let parts = path.front + [path.middle].compactMap(\.self) + path.back
        // Segments that the formula does not have can be any.
        let texts = parts.map { model.string($0) }.map { $0.isEmpty ? "x" : $0 }
        segments = texts.flatMap { $0.utf8.split(separator: UInt8(ascii: "/")).map { String($0) ?? "" } }
        guard segments.count >= parts.count, path.middle != nil || segments.count == parts.count else { return nil }
        let bucket = model.string(inputs.bucket)
        if !bucket.isEmpty { self.bucket = bucket }
        let reader = ExampleReader(model: model, inputs: inputs)
        if !model.bool(inputs.isAnonymous) {
            uid = model.string(inputs.uid)
            token = reader.map(inputs.token, 0)
        }
        parameters = reader.map(inputs.params, 0)
        if model.values["time"] != nil { time = reader.time(inputs.time) }
        if model.bool(inputs.hasExisting) { existing = reader.object(isIncoming: false) }
        if incoming != nil { incoming = reader.object(isIncoming: true) }
        for document in inputs.documents {
            let segments = document.segments.map { model.string($0) }
            guard let path = DocumentPath("/" + segments.joined(separator: "/")) else { continue }
            documents[path] =
                model.bool(document.failed)
                ? .failed : model.bool(document.present) ? .present(reader.map(document.fields, 0)) : .absent
        }
    }
}

/// Reads the inputs of a request from a model.
private struct ExampleReader {
    /// The largest number of further elements or keys, and the largest depth of a value.
    private static let maximumOthers = 60
    private static let maximumDepth = 8

    let model: Model
    let inputs: Inputs

    func time(_ term: Term) -> Timestamp {
        let value = model.int(term)
        let rest = ((value % Inputs.second) + Inputs.second) % Inputs.second
        return Timestamp(
            seconds: Int64(clamping: (value - rest) / Inputs.second), nanoseconds: Int32(clamping: rest))
            ?? ExampleRequest.defaultTime
    }

    func object(isIncoming: Bool) -> [ObjectField: Value] {
        var properties: [ObjectField: Value] = [:]
        for (key, record) in inputs.recordValues where key.isIncoming == isIncoming {
            guard model.bool(record.isPresent) else { continue }
            if model.bool(record.isNull) {
                properties[key.field] = .null
            } else if let map = record.map {
                properties[key.field] = .map(self.map(map, 0))
            } else if let term = record.value {
                switch key.field {
                case .size, .generation, .metageneration: properties[key.field] = .int(Int64(clamping: model.int(term)))
                case .timeCreated, .updated: properties[key.field] = .timestamp(time(term))
                default: properties[key.field] = .string(model.string(term))
                }
            }
        }
        return properties
    }

    func map(_ index: Int, _ depth: Int) -> [BytewiseString: Value] {
        let map = inputs.maps[index]
        var result: [BytewiseString: Value] = [:]
        for key in map.keys {
            guard let field = map.fields[key], model.bool(field.present) else { continue }
            let text = BytewiseString(key.text)
            if let free = map.values[key] {
                result[text] = value(free, depth + 1)
            } else if case .string(let term)? = field.value.cases.first?.value {
                result[text] = .string(model.string(term))
            }
        }
        for (key, present, value) in map.computed where model.bool(present) {
            let text = BytewiseString(model.string(key))
            if result[text] == nil {
                result[text] =
                    map.content == .strings ? .string(model.string(value.string)) : self.value(value, depth + 1)
            }
        }
        for number in 0..<Int(clamping: min(model.int(map.others), Int128(Self.maximumOthers))) {
            result[BytewiseString("other\(number)")] = .string("x")
        }
        return result
    }

    private func value(_ free: Inputs.FreeValue, _ depth: Int) -> Value {
        guard depth < Self.maximumDepth else { return .null }
        switch Inputs.FreeValue.types[Int(clamping: min(max(0, model.int(free.tag)), 11))] {
        case "null": return .null
        case "bool": return .bool(model.bool(free.bool))
        case "int": return .int(Int64(clamping: model.int(free.int)))
        case "float": return .float(0.5)
        case "string": return .string(model.string(free.string))
        case "list": return .list(list(free.list, depth))
        case "map": return .map(map(free.map, depth))
        case "timestamp": return .timestamp(time(free.time))
        case "duration": return TimeSpan(seconds: 1).map(Value.duration) ?? .null
        case "bytes": return .bytes([1])
        case "path": return .path(["a"])
        default: return .latlng(latitude: 1, longitude: 1)
        }
    }

    private func list(_ index: Int, _ depth: Int) -> [Value] {
        let list = inputs.lists[index]
        var values: [Value] = []
        for (position, element) in list.elements.sorted(by: { $0.key < $1.key }) {
            guard Int128(position) < model.int(list.size), position < Self.maximumOthers else { continue }
            while values.count < position { values.append("x") }
            values.append(value(element, depth + 1))
        }
        for (element, isMember) in list.members where model.bool(isMember) {
            if let value = value(element), !values.contains(value) { values.append(value) }
        }
        while values.count < min(Int(clamping: model.int(list.size)), Self.maximumOthers) { values.append("x") }
        return values
    }

    private func value(_ symbol: Symbol) -> Value? {
        switch symbol {
        case .null: .null
        case .bool(let value): .bool(value)
        case .int(let term): .int(Int64(clamping: model.int(term)))
        case .float(let bits): .float(Double(bitPattern: bits))
        case .string(let term): .string(model.string(term))
        case .timestamp(let term): .timestamp(time(term))
        default: nil
        }
    }
}
