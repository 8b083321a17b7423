import Wire

/// Comparisons with a value that the left or right side never has.
extension Lints {
    private static let methods: [Text] = ["get", "list", "create", "update", "delete"]

    /// A value that something is compared with.
    private struct Other {
        /// nil if it is not constant.
        var value: Datum?
        var types: TypeSet
    }

    mutating func checkComparisons() {
        for body in bodies { checkComparisons(body) }
    }

    private mutating func checkComparisons(_ body: Body) {
        let acceptsBool = body.nodes.contains { comparesVerifiedWithBool($0) }
        for node in body.nodes {
            guard case .binary(let operation, let left, let right) = code.operations[node] else { continue }
            for (side, other) in [(left, right), (right, left)] {
                let subject = subjects[Int(side)]
                switch operation {
                case .equal, .notEqual, .isIn:
                    guard side == left || operation != .isIn else { continue }
                    if acceptsBool, subject == .claim("email_verified") { continue }
                    check(Int32(node), subject, others(other, isList: operation == .isIn), operation)
                case .less, .lessOrEqual, .greater, .greaterOrEqual, .add, .subtract:
                    checkSeconds(Int32(node), subject, code.types[Int(other)])
                case .multiply, .divide, .remainder: continue
                }
            }
        }
    }

    /// Whether it compares `email_verified` with a Boolean, perhaps besides a string.
    private func comparesVerifiedWithBool(_ node: Int) -> Bool {
        guard case .binary(let operation, let left, let right) = code.operations[node] else { return false }
        return [(left, right), (right, left)].contains { claim, other in
            subjects[Int(claim)] == .claim("email_verified")
                && others(other, isList: operation == .isIn).contains { !$0.types.isDisjoint(with: .bool) }
        }
    }

    /// The value of an operand, or with `isList` those of its elements.
    private func others(_ node: Int32, isList: Bool) -> [Other] {
        if isList {
            if case .list(let values)? = code.constantValue(node) {
                return values.map { Other(value: $0, types: $0.type.map { TypeSet($0) } ?? .any) }
            }
            if case .list(let list) = code.operations[Int(node)] {
                return operands(list).map { Other(value: code.constantValue($0), types: code.types[Int($0)]) }
            }
            return []
        }
        return [Other(value: code.constantValue(node), types: code.types[Int(node)])]
    }

    private mutating func check(_ node: Int32, _ subject: Subject, _ others: [Other], _ operation: BinaryOperator) {
        switch subject {
        case .method:
            for case .string(let name)? in others.map(\.value) where !Self.methods.contains(name) {
                return warn("request.method is never \(quoted(name)).", at: node, hint: methodHint(name))
            }
        case .segment(0), .segment(2):
            let only: Text = subject == .segment(0) ? "b" : "o"
            let names = others.compactMap { other -> Text? in
                if case .string(let name)? = other.value { return name }
                return nil
            }
            guard !names.isEmpty, names.count == others.count, !names.contains(only) else { return }
            warn(
                "\(subject.text) is always '\(only.string)', never \(quoted(names[0])): "
                    + "request.path is /b/BUCKET/o/NAME.",
                at: node, hint: "the first segment of the object's name is request.path[3]")
        default:
            guard let expected = expectedTypes(subject) else { return }
            for other in others where expected.types.union(.null).isDisjoint(with: other.types) && !other.types.isEmpty
            {
                let result =
                    switch operation {
                    case .isIn: "an element of another type never equals it"
                    case .equal: "this comparison is always false"
                    default: "this comparison is always true"
                    }
                return warn(
                    "\(subject.text) is \(expected.name), so \(result).", at: node, hint: typeHint(subject, other))
            }
        }
    }

    private func methodHint(_ name: Text) -> String {
        switch name.string.asciiLowercased() {
        case "write": return "write: request.method in ['create', 'update', 'delete']"
        case "read": return "write: request.method in ['get', 'list']"
        case "post", "put", "upload": return "an upload is 'create', also if it replaces an object"
        case "patch": return "a change of metadata is 'update'"
        case "head", "download": return "a download is 'get'"
        default:
            let near = nearestName(to: name.string, among: Self.methods.map(\.string))
            return near.map { "did you mean '\($0)'?" }
                ?? "it is 'get', 'list', 'create', 'update' or 'delete'"
        }
    }

    // MARK: Types

    private func expectedTypes(_ subject: Subject) -> (types: TypeSet, name: String)? {
        switch subject {
        case .uid: return (.string, "a string")
        case .token, .firebase: return (.map, "a map")
        case .entry: return (.string, "a string")
        case .firebaseProperty(let name):
            switch name {
            case "sign_in_provider", "tenant", "sign_in_second_factor": return (.string, "a string")
            case "identities": return (.map, "a map")
            default: return nil
            }
        case .claim(let name):
            switch name {
            case "email_verified": return (.bool, "a Boolean")
            case "auth_time", "iat", "exp": return (.numbers, "a number of seconds")
            case "email", "name", "picture", "phone_number", "sub", "user_id", "iss": return (.string, "a string")
            default: return nil
            }
        default: return nil
        }
    }

    private func typeHint(_ subject: Subject, _ other: Other) -> String {
        switch (subject, other.value) {
        case (.claim("email_verified"), _):
            return "compare with true; if your issuer sends strings, accept true as well"
        case (.claim(let name), _) where expectedTypes(.claim(name))?.types == .numbers: return Self.secondsHint
        case (.entry, .bool(let value)?): return "values of metadata are strings; write: '\(value)'"
        case (.entry, .int(let value)?): return "values of metadata are strings; write: '\(value)'"
        case (.entry, _): return "values of metadata are strings"
        case (.token, _), (.firebase, _): return "compare one of its properties"
        default: return "compare it with \(expectedTypes(subject)?.name ?? "another value")"
        }
    }

    private static let secondsHint = "the time of the request in seconds is: request.time.toMillis() / 1000"

    private mutating func checkSeconds(_ node: Int32, _ subject: Subject, _ types: TypeSet) {
        guard case .claim(let name) = subject, expectedTypes(subject)?.types == .numbers,
            types.isSubset(of: [.timestamp, .duration]), !types.isEmpty
        else { return }
        let other = types == .timestamp ? "a timestamp" : types == .duration ? "a duration" : "a time"
        warn(
            "request.auth.token.\(name.string) is a number of seconds, so this operation with \(other) is an error.",
            at: node, hint: Self.secondsHint)
    }
}
