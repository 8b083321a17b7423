/// How numbers compare, which depends on where they stand.
enum NumberRule {
    /// The operands of `==`: an integer equals a float of the same value, and NaN nothing.
    case outermost
    /// Those of `in` and of the methods of lists: an integer never equals a float.
    case element
    /// Inside lists and maps: floats are equal as Java's `Double.equals` has it, so zero differs from minus zero.
    case strict
    /// At any depth in sets and differences: by value, and NaN equals itself.
    case byValue

    var inside: NumberRule { self == .byValue ? .byValue : .strict }
}

extension Context {
    /// Whether two values are equal; values of different types are not. Neither is an error or unknown.
    func equal(_ a: Datum, _ b: Datum, _ rule: NumberRule) -> Bool {
        switch (a, b) {
        case (.null, .null): true
        case (.bool(let a), .bool(let b)): a == b
        case (.int(let a), .int(let b)): a == b
        case (.float(let a), .float(let b)): Self.equal(a, b, rule)
        case (.int(let a), .float(let b)), (.float(let b), .int(let a)):
            (rule == .outermost || rule == .byValue) && Double(a) == b
        case (.string(let a), .string(let b)): a == b
        case (.bytes(let a), .bytes(let b)): a == b
        case (.timestamp(let a), .timestamp(let b)): a == b
        case (.duration(let a), .duration(let b)): a == b
        case (.latlng(let a, let b), .latlng(let c, let d)): a == c && b == d
        case (.list(let a), .list(let b)):
            a.count == b.count && zip(a, b).allSatisfy { equal($0, $1, rule.inside) }
        case (.set(let a), .set(let b)):
            a.count == b.count && a.allSatisfy { contains(b, $0, .byValue) }
        case (.map(let a), .map(let b)):
            a.count == b.count
                && zip(a, b).allSatisfy {
                    $0.key == $1.key && equal($0.value, $1.value, rule.inside)
                }
        case (.mapDiff(let a), .mapDiff(let b)):
            equal(.set(a.added), .set(b.added), .byValue)
                && equal(.set(a.removed), .set(b.removed), .byValue)
                && equal(.set(a.changed), .set(b.changed), .byValue)
                && equal(.set(a.unchanged), .set(b.unchanged), .byValue)
        case (.path, .path), (.path, .requestPath), (.requestPath, .path),
            (.requestPath, .requestPath):
            segments(of: a) == segments(of: b)
        default: false
        }
    }

    private static func equal(_ a: Double, _ b: Double, _ rule: NumberRule) -> Bool {
        switch rule {
        case .outermost, .element: a == b
        case .strict: a.isNaN ? b.isNaN : a.bitPattern == b.bitPattern
        case .byValue: a == b || (a.isNaN && b.isNaN)
        }
    }

    func contains(_ elements: [Datum], _ value: Datum, _ rule: NumberRule) -> Bool {
        for element in elements where equal(element, value, rule) { return true }
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

    /// A record as the map that it stands for; any other value as it is.
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
        case .time: .timestamp(request.time)
        case .method: .string(Self.methodNames[Int(request.method.rawValue)])
        case .params: request.params
        }
    }

    private static let methodNames = Method.allCases.map { Text($0.name) }

    /// The property of a record, the value of a key of a map or what is bound in a path; nil where it has none.
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
