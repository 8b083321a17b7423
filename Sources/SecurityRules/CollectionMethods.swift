extension Evaluator {
    /// The elements of a list or a set.
    private func elements(_ value: Datum?) -> [Datum] {
        switch value {
        case .list(let elements), .set(let elements): elements
        default: []
        }
    }

    /// The work of comparing each with each.
    private mutating func chargeProduct(_ node: Int32, _ a: [Datum], _ b: [Datum]) -> Datum? {
        charge(node, cost(a.count * b.count * 4))
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
        case .toSet:
            return chargeProduct(node, elements, elements) ?? .set(unique(elements))
        case .removeAll:
            return chargeProduct(node, elements, other)
                ?? .list(elements.filter { !context.contains(other, $0, .element) })
        default:
            return chargeProduct(node, elements, other)
                ?? .bool(has(method, elements, other, .element))
        }
    }

    private func has(
        _ method: MethodName, _ elements: [Datum], _ other: [Datum], _ rule: NumberRule
    ) -> Bool {
        switch method {
        case .hasAll: other.allSatisfy { context.contains(elements, $0, rule) }
        case .hasAny: other.contains { context.contains(elements, $0, rule) }
        default: elements.allSatisfy { context.contains(other, $0, rule) }
        }
    }

    private func unique(_ elements: [Datum]) -> [Datum] {
        var result: [Datum] = []
        for element in elements where !context.contains(result, element, .byValue) {
            result.append(element)
        }
        return result
    }

    private mutating func join(_ node: Int32, _ elements: [Datum], _ separator: Text) -> Datum {
        if let stop = charge(node, cost(elements.count * 16)) { return stop }
        var result: [UInt8] = []
        for (place, element) in elements.enumerated() {
            guard let text = text(of: element) else {
                return fail(
                    node,
                    "Unsupported operation error. Received: list of \(element.typeName). "
                        + "Expected: list of string.")
            }
            if place > 0 { result += separator.bytes }
            result += text.bytes
            if result.count > EvaluationLimits.size { return tooLarge(node) }
        }
        return charge(node, cost(result.count)) ?? .string(Text(result))
    }

    mutating func set(
        _ node: Int32, _ method: MethodName, _ elements: [Datum], _ arguments: [Datum]
    ) -> Datum {
        let other = self.elements(arguments.first)
        if let stop = chargeProduct(node, elements, other) { return stop }
        switch method {
        case .size: return .int(Int64(elements.count))
        case .difference:
            return .set(elements.filter { !context.contains(other, $0, .byValue) })
        case .intersection:
            return .set(elements.filter { context.contains(other, $0, .byValue) })
        case .union:
            guard elements.count + other.count <= EvaluationLimits.size else {
                return tooLarge(node)
            }
            return .set(elements + other.filter { !context.contains(elements, $0, .byValue) })
        default: return .bool(has(method, elements, other, .byValue))
        }
    }

    // MARK: Maps

    mutating func map(
        _ node: Int32, _ method: MethodName, _ receiver: Datum, _ arguments: [Datum]
    ) -> Datum {
        if method == .get { return get(receiver, arguments[0], arguments[1]) }
        let whole = context.whole(receiver)
        guard case .map(let entries) = whole else { return whole }
        if let stop = charge(node, cost(entries.count * 16)) { return stop }
        switch method {
        case .size: return .int(Int64(entries.count))
        case .keys: return .list(entries.map { .string($0.key) })
        case .values: return .list(entries.sorted { $0.place < $1.place }.map(\.value))
        default:
            let other = context.whole(arguments[0])
            guard case .map(let older) = other else { return other }
            return charge(node, cost(older.count * 16)) ?? .mapDiff(difference(entries, older))
        }
    }

    /// The value at a key, or at one key after the other; the default for whatever is not there.
    private func get(_ map: Datum, _ key: Datum, _ fallback: Datum) -> Datum {
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
            guard case .string(let name) = key, value.type == .map,
                let next = context.entry(value, name, FieldCode(name))
            else { return fallback }
            value = next
        }
        if case .unknown(let unknown) = fallback, case .failure = value { return .unknown(unknown) }
        return value
    }

    private func difference(_ newer: [MapEntry], _ older: [MapEntry]) -> MapDiff {
        var (added, changed, unchanged): ([Datum], [Datum], [Datum]) = ([], [], [])
        for entry in newer {
            if let before = older[entry.key] {
                if context.equal(entry.value, before, .byValue) {
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
