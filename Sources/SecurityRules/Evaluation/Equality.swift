/// How numbers are compared, which depends on their context.
enum NumberRule {
    /// Operands of `==`: an integer equals a float of the same value, and NaN equals nothing.
    case outermost
    /// Operands of `in` and of list methods: an integer never equals a float.
    case element
    /// Inside lists and maps: an integer never equals a float, zero differs from minus zero, and NaN equals nothing.
    case strict
    /// At any depth in sets and differences: by value, and NaN equals itself.
    case byValue

    var inside: NumberRule { self == .byValue ? .byValue : .strict }
}

extension Context {
    /// Whether two values are equal. Values of different types are not. Neither may be an error or unknown.
    func equal(_ a: Datum, _ b: Datum, _ rule: NumberRule, _ work: inout Work) -> Bool {
        guard work.take(8) else { return false }
        switch (a, b) {
        case (.null, .null): return true
        case (.bool(let a), .bool(let b)): return a == b
        case (.int(let a), .int(let b)): return a == b
        case (.float(let a), .float(let b)): return Self.equal(a, b, rule)
        case (.int(let a), .float(let b)), (.float(let b), .int(let a)):
            return (rule == .outermost || rule == .byValue) && Double(a) == b
        case (.string(let a), .string(let b)): return equal(a, b, &work)
        case (.bytes(let a), .bytes(let b)): return a.count == b.count && work.take(a.count) && a == b
        case (.timestamp(let a), .timestamp(let b)): return a == b
        case (.duration(let a), .duration(let b)): return a == b
        case (.latlng(let a, let b), .latlng(let c, let d)): return a == c && b == d
        case (.list(let a), .list(let b)):
            return a.count == b.count && a.indices.allSatisfy { equal(a[$0], b[$0], rule.inside, &work) }
        case (.set(let a), .set(let b)): return equal(sets: a, b, &work)
        case (.map(let a), .map(let b)):
            return a.count == b.count
                && a.indices.allSatisfy {
                    equal(a[$0].key, b[$0].key, &work) && equal(a[$0].value, b[$0].value, rule.inside, &work)
                }
        case (.mapDiff(let a), .mapDiff(let b)):
            return equal(sets: a.added, b.added, &work)
                && equal(sets: a.removed, b.removed, &work)
                && equal(sets: a.changed, b.changed, &work)
                && equal(sets: a.unchanged, b.unchanged, &work)
        case (.path, .path), (.path, .requestPath), (.requestPath, .path),
            (.requestPath, .requestPath):
            let (a, b) = (segments(of: a), segments(of: b))
            return a.count == b.count && work.take(16 * a.count)
                && a.indices.allSatisfy { work.take(a[$0].text.count) && a[$0] == b[$0] }
        default: return false
        }
    }

    private func equal(_ a: Text, _ b: Text, _ work: inout Work) -> Bool {
        a.count == b.count && work.take(a.count) && a == b
    }

    private func equal(sets a: [Datum], _ b: [Datum], _ work: inout Work) -> Bool {
        a.count == b.count && a.allSatisfy { contains(b, $0, .byValue, &work) }
    }

    private static func equal(_ a: Double, _ b: Double, _ rule: NumberRule) -> Bool {
        switch rule {
        case .outermost, .element: a == b
        case .strict: !a.isNaN && a.bitPattern == b.bitPattern
        case .byValue: a == b || (a.isNaN && b.isNaN)
        }
    }

    func contains(
        _ elements: [Datum], _ value: Datum, _ rule: NumberRule, _ work: inout Work
    ) -> Bool {
        for element in elements {
            if equal(element, value, rule, &work) { return true }
            if work.isExhausted { return false }
        }
        return false
    }

    // MARK: Paths

    /// The segments of a path; empty for anything else.
    func segments(of value: Datum) -> [PathValue.Segment] {
        switch value {
        case .path(let path): path.segments
        case .requestPath(let start, let end): path[Int(start)..<Int(end)].map { .text($0) }
        default: []
        }
    }

    // MARK: Records

    /// A record converted to the map that it represents. Other values are returned unchanged.
    func whole(_ value: Datum) -> Datum {
        switch value {
        case .record(.request):
            let fields = RequestField.allCases.map {
                MapEntry(key: RequestField.keys[Int($0.rawValue)], value: whole(requestValue($0)))
            }
            var bits: InputBits = []
            for field in fields {
                if case .unknown(let unknown) = field.value { bits.formUnion(unknown.bits) }
            }
            return bits.isEmpty ? .makeMap(fields) : .unknown(Unknown(bits: bits, mayFail: false))
        case .record(.incoming): return request.incoming?.whole ?? .null
        case .record(.existing):
            if case .object(let facts) = request.existing { return facts.whole }
            return .null
        default: return value
        }
    }

    func requestValue(_ field: RequestField) -> Datum {
        switch field {
        case .auth: request.auth
        case .path: .requestPath(0, Int32(path.count))
        case .resource: request.incoming == nil ? .null : .record(.incoming)
        case .time:
            request.lastTime == nil
                ? .timestamp(request.time) : .unknown(Unknown(bits: .time, mayFail: false))
        case .method: .string(Self.methodNames[Int(request.method.rawValue)])
        case .params: request.params
        }
    }

    private static let methodNames = Method.allCases.map { Text($0.name) }

    /// The property of a record, the value of a map's key or a bound value of a path; nil if there is none.
    func entry(_ value: Datum, _ key: Text, _ code: FieldCode) -> Datum? {
        switch value {
        case .map(let entries): return entries[key]
        case .path(let path): return path.bound[key]
        case .record(.request):
            guard let field = code.request else { return nil }
            return requestValue(field)
        case .record(.incoming): return request.incoming?.value(code, key)
        case .record(.existing):
            if case .object(let facts) = request.existing { return facts.value(code, key) }
            return nil
        default: return nil
        }
    }
}
