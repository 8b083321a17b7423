/// The possible types of an expression, as far as they are known at load time.
struct TypeSet: OptionSet, Sendable {
    var rawValue: UInt16

    init(rawValue: UInt16) { self.rawValue = rawValue }

    init(_ type: TypeName) { rawValue = 1 << UInt16(type.index) }

    /// Parses a list such as `int|float` from the library's table. An empty list and `any` mean every type.
    init(listed types: String) {
        self = types.split(separator: "|").reduce(into: []) { set, word in
            if let type = TypeName(rawValue: String(word)) { set.insert(TypeSet(type)) }
        }
        if isEmpty { self = .any }
    }

    static let null = TypeSet(TypeName.null)
    static let bool = TypeSet(TypeName.bool)
    static let int = TypeSet(TypeName.int)
    static let string = TypeSet(TypeName.string)
    static let bytes = TypeSet(TypeName.bytes)
    static let list = TypeSet(TypeName.list)
    static let set = TypeSet(TypeName.set)
    static let map = TypeSet(TypeName.map)
    static let path = TypeSet(TypeName.path)
    static let timestamp = TypeSet(TypeName.timestamp)
    static let duration = TypeSet(TypeName.duration)
    static let numbers: TypeSet = [.int, TypeSet(TypeName.float)]
    /// The type is not known.
    static let any = TypeSet(rawValue: .max)

    /// The names as they are listed in messages.
    var names: String {
        let names = TypeName.allCases.filter { contains(TypeSet($0)) }.map(\.rawValue)
        return "[\(names.sorted().joined(separator: ", "))]"
    }

    /// The types that `==` can find equal to one of these: integers and floats are compared by value.
    var comparable: TypeSet { isDisjoint(with: .numbers) ? self : union(.numbers) }
}

/// A pair of operand types that an operator accepts.
private struct OperandRow {
    var left: TypeSet
    var right: TypeSet
    var result: TypeSet

    init(_ left: TypeSet, _ right: TypeSet, _ result: TypeSet) {
        (self.left, self.right, self.result) = (left, right, result)
    }

    static let ordering =
        [OperandRow(.numbers, .numbers, .bool)]
        + [TypeSet.string, .bytes, .timestamp, .duration].map { OperandRow($0, $0, .bool) }
    static let membership = [
        OperandRow(.string, .map, .bool), OperandRow(.any, [.list, .set], .bool),
    ]
    private static let numbers = [
        OperandRow(.int, .int, .int),
        OperandRow(.numbers, TypeSet(.float), TypeSet(.float)),
        OperandRow(TypeSet(.float), .numbers, TypeSet(.float)),
    ]

    /// The operand types of an operator other than `==` and `!=`.
    static func rows(_ operation: BinaryOperator) -> [OperandRow] {
        switch operation {
        case .less, .lessOrEqual, .greater, .greaterOrEqual: ordering
        case .isIn: membership
        case .add:
            numbers + [
                OperandRow(.string, .string, .string),
                OperandRow(.timestamp, .duration, .timestamp),
                OperandRow(.duration, .timestamp, .timestamp),
                OperandRow(.duration, .duration, .duration),
            ]
        case .subtract:
            numbers + [
                OperandRow(.timestamp, .duration, .timestamp),
                OperandRow(.timestamp, .timestamp, .duration),
                OperandRow(.duration, .duration, .duration),
            ]
        default: numbers
        }
    }
}

/// Infers the types of expressions and warns about operands that always fail.
///
/// A warning means that every evaluation of the operand is an error. Parameters, claims and documents can have any
/// type, so they never cause a warning.
extension Compiler {
    /// The result types of an operation with compiled operands; warns about operands that it can't accept.
    mutating func infer(_ operation: Operation, _ span: Span32) -> TypeSet {
        switch operation {
        case .constant(let index), .folded(let index, _): return constants[Int(index)].type.map { TypeSet($0) } ?? .any
        case .pattern, .segment, .segmentBehindGlob: return .string
        case .glob: return .path
        case .local(let index): return locals[Int(index)].types
        case .record(let record):
            if case .request = record { return .map }
            return [.map, .null]
        case .undefined, .undefinedCall, .miscountedCall: return .any
        case .member(let object, _, let code):
            require(object, .map, accepting: [.map, .path])
            return property(of: operations[Int(object)], code)
        case .index(let object, let key): return element(object, key)
        case .slice(let object, let first, let last):
            require(object, [.bytes, .list, .path, .string])
            for end in [first, last] where end >= 0 { require(end, .int) }
            return types[Int(object)].intersection([.bytes, .list, .path, .string])
        case .not(let operand):
            require(operand, .bool)
            return .bool
        case .negate(let operand):
            require(operand, .numbers)
            return types[Int(operand)].intersection(.numbers)
        case .binary(let sign, let left, let right): return binary(sign, left, right, span)
        case .all(let operands), .any(let operands):
            for operand in nodes(operands) { require(operand, .bool) }
            return .bool
        case .isType: return .bool
        case .conditional(let condition, let whenTrue, let whenFalse):
            require(condition, .bool)
            return types[Int(whenTrue)].union(types[Int(whenFalse)])
        case .list: return .list
        case .map(let entries):
            for (index, key) in nodes(entries).enumerated() where index % 2 == 0 {
                require(key, .string)
            }
            return .map
        case .path(let segments):
            for segment in nodes(segments) { require(segment, [.int, .path, .string]) }
            return .path
        case .call(let function, let arguments): return call(function.entry, nodes(arguments))
        case .method(let name, let operands): return method(names[Int(name)], nodes(operands))
        case .userCall(let number, _):
            let result = functionCodes[Int(number)].result
            return result < 0 ? .any : types[Int(result)]
        }
    }

    /// Warns if a node can have none of the expected types. `accepting` adds undocumented types.
    mutating func require(_ node: Int32, _ expected: TypeSet, accepting: TypeSet? = nil) {
        let found = types[Int(node)]
        guard found.isDisjoint(with: accepting ?? expected), !found.isEmpty else { return }
        typeWarnings.append(
            (
                "Invalid type. Received one of \(found.names). Expected one of \(expected.names).",
                spans[Int(node)]
            ))
    }

    private func nodes(_ list: OperandList) -> ArraySlice<Int32> {
        operands[Int(list.start)..<Int(list.start + list.count)]
    }

    // MARK: Properties and elements

    private func property(of object: Operation, _ code: FieldCode) -> TypeSet {
        switch object {
        case .record(.request):
            switch code.request {
            case .auth, .resource: return [.map, .null]
            case .path: return .path
            case .time: return .timestamp
            case .method: return .string
            case .params: return .map
            case nil: return .any
            }
        case .record: return property(code.object)
        case .member(let request, _, let field) where field.request == .resource:
            guard case .record(.request) = operations[Int(request)] else { return .any }
            return property(code.object)
        default: return .any
        }
    }

    private func property(_ field: ObjectField?) -> TypeSet {
        switch field {
        case nil: .any
        case .generation, .metageneration, .size: [.int, .null]
        case .timeCreated, .updated: [.timestamp, .null]
        case .metadata: [.map, .null]
        default: [.string, .null]
        }
    }

    private mutating func element(_ object: Int32, _ key: Int32) -> TypeSet {
        require(object, [.list, .map, .path, .string])
        let found = types[Int(object)]
        var keys: TypeSet = []
        if !found.isDisjoint(with: [.map, .path]) { keys.insert(.string) }
        if !found.isDisjoint(with: [.list, .path, .string]) { keys.insert(.int) }
        if !keys.isEmpty { require(key, keys) }
        return found.isDisjoint(with: [.list, .map, .path]) && !found.isDisjoint(with: .string) ? .string : .any
    }

    // MARK: Operators

    private mutating func binary(
        _ operation: BinaryOperator, _ left: Int32, _ right: Int32, _ span: Span32
    ) -> TypeSet {
        let (first, second) = (types[Int(left)], types[Int(right)])
        if operation == .equal || operation == .notEqual {
            if first.comparable.isDisjoint(with: second), !first.isEmpty, !second.isEmpty {
                typeWarnings.append(
                    (
                        "The sub-expressions are not comparable, so this comparison will always "
                            + "return \(operation == .equal ? "false" : "true").", span
                    ))
            }
            return .bool
        }
        func union(_ rows: [OperandRow], _ part: KeyPath<OperandRow, TypeSet>) -> TypeSet {
            rows.reduce(into: []) { $0.formUnion($1[keyPath: part]) }
        }
        var rows = OperandRow.rows(operation)
        let result = operation == .isIn ? TypeSet.bool : union(rows, \.result)
        if operation == .isIn {
            // The type of the container determines which elements are possible.
            require(right, union(rows, \.right))
            rows = rows.filter { !$0.right.isDisjoint(with: second) }
            if !rows.isEmpty { require(left, union(rows, \.left)) }
            return result
        }
        require(left, union(rows, \.left))
        let possible = rows.filter { !$0.left.isDisjoint(with: first) }
        require(right, union(possible.isEmpty ? rows : possible, \.right))
        rows = possible.filter { !$0.right.isDisjoint(with: second) }
        return rows.isEmpty ? result : union(rows, \.result)
    }

    // MARK: Calls

    private mutating func call(_ entry: LibraryEntry, _ arguments: ArraySlice<Int32>) -> TypeSet {
        for (argument, types) in zip(arguments, entry.parameters) {
            require(argument, TypeSet(listed: types))
        }
        return TypeSet(listed: entry.result)
    }

    private mutating func method(_ name: Text, _ operands: ArraySlice<Int32>) -> TypeSet {
        guard let receiver = operands.first else { return .any }
        let arguments = operands.dropFirst()
        var entries: [(type: TypeSet, entry: LibraryEntry)] = []
        for entry in Library.methodsByName[name.string] ?? [] where entry.parameters.count == arguments.count {
            if case .type(let type) = entry.owner { entries.append((TypeSet(type), entry)) }
        }
        guard !entries.isEmpty else { return .any }
        require(receiver, entries.reduce(into: []) { $0.formUnion($1.type) })
        entries.removeAll { $0.type.isDisjoint(with: types[Int(receiver)]) }
        guard !entries.isEmpty else { return .any }
        for (index, argument) in arguments.enumerated() {
            require(
                argument,
                entries.reduce(into: []) {
                    $0.formUnion(TypeSet(listed: $1.entry.parameters[index]))
                })
        }
        return entries.reduce(into: []) { $0.formUnion(TypeSet(listed: $1.entry.result)) }
    }
}
