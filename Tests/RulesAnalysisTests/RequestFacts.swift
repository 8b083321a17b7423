import SecurityRules
import Wire

@testable import RulesAnalysis

/// What a request says of the variables of a question. What can't be said in a term is left out.
struct RequestFacts {
    let request: ExampleRequest
    let inputs: RulesAnalysis.Inputs
    private var terms: Terms { inputs.terms }

    init(_ request: ExampleRequest, _ inputs: RulesAnalysis.Inputs) {
        self.request = request
        self.inputs = inputs
    }

    /// Whether the path of the request has this form.
    static func fits(_ request: ExampleRequest, _ shape: PathShape) -> Bool {
        let count = request.segments.count
        return shape.isLong ? count > shape.count + shape.backCount : count == shape.count
    }

    var all: [Term] {
        var facts = path
        facts += [
            same(inputs.isAnonymous, request.uid == nil), terms.equal(inputs.time, time(request.time)),
            same(inputs.hasExisting, request.existing != nil),
        ]
        if let uid = request.uid {
            facts.append(terms.equal(inputs.uid, string(uid)))
            facts += map(inputs.token, request.token)
        }
        facts += map(inputs.params, request.parameters)
        for (key, record) in inputs.recordValues {
            guard let object = key.isIncoming ? request.incoming : request.existing else { continue }
            facts += property(key.field, record, object[key.field])
        }
        for document in inputs.documents { facts += self.document(document) }
        return facts
    }

    private var path: [Term] {
        let count = inputs.path.front.count
        let back = inputs.path.back.count
        let segments = request.segments
        var facts = [terms.equal(inputs.bucket, string(request.bucket))]
        facts += zip(inputs.path.front, segments).map { terms.equal($0, string($1)) }
        facts += zip(inputs.path.back, segments.suffix(back)).map { terms.equal($0, string($1)) }
        if let middle = inputs.path.middle {
            let joined = segments.dropFirst(count).dropLast(back).joined(separator: "/")
            facts.append(terms.equal(middle, string(joined)))
        }
        return facts
    }

    private func property(_ field: ObjectField, _ record: RulesAnalysis.Inputs.RecordValue, _ value: Value?) -> [Term] {
        guard let value else {
            switch field {
            case .size, .md5Hash, .crc32c, .timeCreated, .updated: return [same(record.isPresent, false)]
            case .generation, .metageneration, .etag: return []
            default: return [same(record.isNull, true)]
            }
        }
        var facts = [same(record.isPresent, true), same(record.isNull, value == .null)]
        switch value {
        case .int(let number): record.value.map { facts.append(terms.equal($0, terms.int(number))) }
        case .string(let text): record.value.map { facts.append(terms.equal($0, string(text))) }
        case .timestamp(let moment): record.value.map { facts.append(terms.equal($0, time(moment))) }
        case .map(let fields): record.map.map { facts += map($0, fields) }
        default: break
        }
        return facts
    }

    private func document(_ document: RulesAnalysis.Inputs.Document) -> [Term] {
        request.documents.flatMap { path, lookup -> [Term] in
            guard path.segments.count == document.segments.count else { return [] }
            let isThis = terms.and(
                zip(document.segments, path.segments).map {
                    terms.equal($0, string(String(decoding: $1, as: UTF8.self)))
                })
            var facts = [same(document.failed, lookup == .failed)]
            if lookup != .failed { facts.append(same(document.present, lookup != .absent)) }
            if case .present(let fields) = lookup { facts += map(document.fields, fields) }
            return facts.map { terms.implies(isThis, $0) }
        }
    }

    // MARK: Values

    private func same(_ term: Term, _ value: Bool) -> Term { terms.equal(term, terms.bool(value)) }
    private func string(_ text: String) -> Term { terms.string(Characters(text)) }
    private func time(_ moment: Timestamp) -> Term {
        terms.int(Int128(moment.seconds) * RulesAnalysis.Inputs.second + Int128(moment.nanoseconds))
    }

    private func map(_ index: Int, _ values: [BytewiseString: Value]) -> [Term] {
        let map = inputs.maps[index]
        var values = values
        var facts: [Term] = []
        for key in values.keys {
            for computed in map.computed {
                facts.append(terms.implies(terms.equal(computed.key, string("\(key)")), computed.present))
            }
        }
        for computed in map.computed {
            let isKey = terms.or(values.keys.map { terms.equal(computed.key, string("\($0)")) })
            facts.append(terms.implies(computed.present, isKey))
        }
        for key in map.keys {
            guard let field = map.fields[key] else { continue }
            let value = values.removeValue(forKey: BytewiseString(key.text))
            facts.append(same(field.present, value != nil))
            guard let value else { continue }
            if let free = map.values[key] {
                facts += self.value(free, value)
            } else if case .string(let term)? = field.value.cases.first?.value, case .string(let text) = value {
                facts.append(terms.equal(term, string(text)))
            }
        }
        return facts + [terms.equal(map.others, terms.int(values.count))]
    }

    private func value(_ free: RulesAnalysis.Inputs.FreeValue, _ value: Value) -> [Term] {
        guard let tag = RulesAnalysis.Inputs.FreeValue.types.firstIndex(of: type(value)) else { return [] }
        var facts = [terms.equal(free.tag, terms.int(tag))]
        switch value {
        case .bool(let value): facts.append(same(free.bool, value))
        case .int(let value): facts.append(terms.equal(free.int, terms.int(value)))
        case .string(let text): facts.append(terms.equal(free.string, string(text)))
        case .timestamp(let moment): facts.append(terms.equal(free.time, time(moment)))
        case .list(let values): facts += list(free.list, values)
        case .map(let values): facts += map(free.map, values)
        default: break
        }
        return facts
    }

    private func type(_ value: Value) -> String {
        switch value {
        case .null: "null"
        case .bool: "bool"
        case .int: "int"
        case .float: "float"
        case .string: "string"
        case .bytes: "bytes"
        case .list: "list"
        case .map: "map"
        case .path: "path"
        case .timestamp: "timestamp"
        case .duration: "duration"
        case .latlng: "latlng"
        }
    }

    private func list(_ index: Int, _ values: [Value]) -> [Term] {
        let list = inputs.lists[index]
        var facts = [terms.equal(list.size, terms.int(values.count))]
        for (position, element) in list.elements where values.indices.contains(position) {
            facts += value(element, values[position])
        }
        for (element, isMember) in list.members {
            let equalities = values.map { value -> Term? in
                switch (element, value) {
                case (.null, .null): terms.yes
                case (.bool(let a), .bool(let b)): terms.bool(a == b)
                case (.int(let term), .int(let value)): terms.equal(term, terms.int(value))
                case (.string(let term), .string(let text)): terms.equal(term, string(text))
                case (.null, _), (.bool, _), (.int, _), (.string, _): terms.no
                default: nil
                }
            }
            let known = equalities.compactMap(\.self)
            if known.count == equalities.count { facts.append(terms.equal(isMember, terms.or(known))) }
        }
        return facts
    }
}
