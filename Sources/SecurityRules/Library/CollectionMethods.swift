extension Evaluator {
    /// The elements of a list or a set; empty for other types.
    private func elements(_ value: Datum?) -> [Datum] {
        switch value {
        case .list(let elements), .set(let elements): elements
        default: []
        }
    }

    mutating func list(
        _ node: Int32, _ method: MethodName, _ elements: [Datum], _ arguments: [Datum]
    ) -> Datum {
        let other = self.elements(arguments.first)
        switch method {
        case .size: return .int(Int64(elements.count))
        case .concat:
            guard elements.count + other.count <= EvaluationLimits.size else {
                return tooLarge(node)
            }
            return charge(node, cost((elements.count + other.count) * 16))
                ?? .list(elements + other)
        case .join:
            guard case .string(let separator)? = arguments.first else { return .null }
            return join(node, elements, separator)
        case .toSet: return measured(node) { .set($0.unique(elements, &$1)) }
        case .removeAll:
            return measured(node) { context, work in
                .list(elements.filter { !context.contains(other, $0, .element, &work) })
            }
        default:
            return measured(node) { .bool($0.has(method, elements, other, .element, &$1)) }
        }
    }

    private mutating func join(_ node: Int32, _ elements: [Datum], _ separator: Text) -> Datum {
        if let stop = charge(node, cost(elements.count * 16)) { return stop }
        var result: [UInt8] = []
        for (index, element) in elements.enumerated() {
            guard let text = text(of: element) else {
                return fail(
                    node,
                    "Unsupported operation error. Received: list of \(element.typeName). "
                        + "Expected: list of string.")
            }
            if index > 0 { result += separator.bytes }
            result += text.bytes
            if result.count > EvaluationLimits.size { return tooLarge(node) }
        }
        return charge(node, cost(result.count)) ?? .string(Text(result))
    }

    mutating func set(
        _ node: Int32, _ method: MethodName, _ elements: [Datum], _ arguments: [Datum]
    ) -> Datum {
        let other = self.elements(arguments.first)
        switch method {
        case .size: return .int(Int64(elements.count))
        case .difference:
            return measured(node) { context, work in
                .set(elements.filter { !context.contains(other, $0, .byValue, &work) })
            }
        case .intersection:
            return measured(node) { context, work in
                .set(elements.filter { context.contains(other, $0, .byValue, &work) })
            }
        case .union:
            guard elements.count + other.count <= EvaluationLimits.size else {
                return tooLarge(node)
            }
            return measured(node) { context, work in
                .set(elements + other.filter { !context.contains(elements, $0, .byValue, &work) })
            }
        default:
            return measured(node) { .bool($0.has(method, elements, other, .byValue, &$1)) }
        }
    }

    // MARK: Maps

    mutating func map(
        _ node: Int32, _ method: MethodName, _ receiver: Datum, _ arguments: [Datum]
    ) -> Datum {
        if method == .get { return get(node, receiver, arguments[0], arguments[1]) }
        let whole = context.whole(receiver)
        guard case .map(let entries) = whole else { return whole }
        if let stop = charge(node, cost(entries.count * 16)) { return stop }
        switch method {
        case .size: return .int(Int64(entries.count))
        case .keys: return .list(entries.map { .string($0.key) })
        case .values: return .list(entries.sorted { $0.order < $1.order }.map(\.value))
        default:
            let other = context.whole(arguments[0])
            guard case .map(let older) = other else { return other }
            return charge(node, cost(older.count * 16))
                ?? measured(node) { .mapDiff($0.difference(entries, older, &$1)) }
        }
    }

    /// Looks up a key, or a sequence of nested keys. Returns the default if one of them is missing.
    private mutating func get(
        _ node: Int32, _ map: Datum, _ key: Datum, _ fallback: Datum
    ) -> Datum {
        var keys = [key]
        if case .list(let path) = key {
            keys = path
            if keys.isEmpty { return fallback }
        }
        var value = map
        for key in keys {
            if case .unknown(let unknown) = value {
                return .unknown(Unknown(bits: unknown.bits, mayFail: true))
            }
            if case .string(let name) = key, let stop = charge(node, cost(key: name)) {
                return stop
            }
            guard case .string(let name) = key, value.type == .map,
                let next = context.entry(value, name, FieldCode(name))
            else { return fallback }
            value = next
        }
        if case .unknown(let unknown) = fallback, case .failure = value { return .unknown(unknown) }
        return value
    }

    func mapDiff(_ method: MethodName, _ diff: MapDiff) -> Datum {
        switch method {
        case .addedKeys: .set(diff.added)
        case .removedKeys: .set(diff.removed)
        case .changedKeys: .set(diff.changed)
        case .unchangedKeys: .set(diff.unchanged)
        default: .set(diff.added + diff.removed + diff.changed)
        }
    }
}

extension Context {
    fileprivate func has(
        _ method: MethodName, _ elements: [Datum], _ other: [Datum], _ rule: NumberRule, _ work: inout Work
    ) -> Bool {
        switch method {
        case .hasAll: other.allSatisfy { contains(elements, $0, rule, &work) }
        case .hasAny: other.contains { contains(elements, $0, rule, &work) }
        default: elements.allSatisfy { contains(other, $0, rule, &work) }
        }
    }

    fileprivate func unique(_ elements: [Datum], _ work: inout Work) -> [Datum] {
        var result: [Datum] = []
        for element in elements where !contains(result, element, .byValue, &work) {
            result.append(element)
        }
        return result
    }

    fileprivate func difference(
        _ newer: [MapEntry], _ older: [MapEntry], _ work: inout Work
    ) -> MapDiff {
        var (added, changed, unchanged): ([Datum], [Datum], [Datum]) = ([], [], [])
        for entry in newer where work.take(8 + entry.key.count) {
            if let before = older[entry.key] {
                if equal(entry.value, before, .byValue, &work) {
                    unchanged.append(.string(entry.key))
                } else {
                    changed.append(.string(entry.key))
                }
            } else {
                added.append(.string(entry.key))
            }
        }
        let removed = older.filter { newer[$0.key] == nil }.map { Datum.string($0.key) }
        return MapDiff(added: added, removed: removed, changed: changed, unchanged: unchanged)
    }
}
