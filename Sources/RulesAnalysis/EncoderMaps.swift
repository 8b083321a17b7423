import SecurityRules
import Wire

/// Properties, elements, maps and their differences.
extension Encoder {
    // MARK: Properties and elements

    /// Reads a property.
    func member(_ object: Symbol, _ name: Characters) -> Outcome {
        switch object {
        case .request: return requestField(name)
        case .incoming, .existing:
            guard let field = ObjectField.allCases.first(where: { Characters($0.key) == name }) else { return .failure }
            return inputs.property(field, isIncoming: object == .incoming)
        case .map(let fields): return fields.first { $0.key == name }?.value ?? .failure
        case .inputMap(let map):
            let field = inputs.field(map, name)
            var outcome = Outcome()
            outcome.add(field.value, when: field.present, terms)
            return outcome
        case .opaque("path", let number) where inputs.freeOpaques.contains(number): return .failure
        case .opaque("map", _), .opaque("path", _): return unknown("property \(name.text)", [object], "any")
        default: return .failure
        }
    }

    private func requestField(_ name: Characters) -> Outcome {
        var outcome = Outcome()
        switch name {
        case Characters("auth"):
            let fields = [
                MapField(key: Characters("uid"), value: Outcome(.string(inputs.uid), terms)),
                MapField(key: Characters("token"), value: Outcome(.inputMap(inputs.token), terms)),
            ]
            outcome.add(inputs.isAnonymous, .null, terms)
            outcome.add(terms.not(inputs.isAnonymous), .map(fields), terms)
        case Characters("path"): outcome = Outcome(.path(inputs.wholePath), terms)
        case Characters("resource"): outcome = Outcome(inputs.isWritten ? .incoming : .null, terms)
        case Characters("time"): outcome = Outcome(.timestamp(inputs.time), terms)
        case Characters("method"):
            outcome = Outcome(.string(terms.string(Characters(inputs.method.name))), terms)
        case Characters("params"): outcome = Outcome(.inputMap(inputs.params), terms)
        default: break
        }
        return outcome
    }

    func index(_ object: Symbol, _ key: Symbol) -> Outcome {
        switch (object, key) {
        case (.map, .string(let term)), (.inputMap, .string(let term)), (.request, .string(let term)),
            (.incoming, .string(let term)), (.existing, .string(let term)):
            if let name = terms.text(term) { return member(object, name) }
            if case .inputMap(let map) = object {
                let field = inputs.computedField(map, term)
                var outcome = Outcome()
                outcome.add(field.value, when: field.present, terms)
                return outcome
            }
            return unknown("index", [object, key], "any", "a computed key")
        case (.list(let elements), .int(let term)):
            var outcome = Outcome()
            for (index, element) in elements.enumerated() {
                outcome.add(element, when: terms.equal(term, terms.int(index)), terms)
            }
            return outcome
        case (.inputList(let list), .int(let term)):
            guard let index = constant(term) else { return unknown("index", [object, key], "any", "a computed index") }
            guard (0..<1_000).contains(index) else { return .failure }
            var outcome = Outcome()
            let exists = terms.less(terms.int(index), inputs.lists[list].size)
            outcome.add(inputs.element(list, index), when: exists, terms)
            return outcome
        case (.path(let path), .int(let term)):
            guard let index = constant(term) else {
                return unknown("index", [object, key], "string", "a computed index")
            }
            if path.front.indices.contains(index) { return Outcome(.string(path.front[index]), terms) }
            if path.middle == nil || index < 0 { return .failure }
            return unknown("index", [object, key], "string", "a segment of a path of unknown length")
        case (.string, .int):
            return inputs.mayBeHalf(unknown("index", [object, key], "string", "a character of a string"))
        case (.keys, .int), (.opaque("list", _), .int), (.opaque("map", _), .string):
            return unknown("index", [object, key], "any")
        case (.opaque("path", let number), .string) where inputs.freeOpaques.contains(number): return .failure
        case (.opaque("path", _), _): return unknown("index", [object, key], "string")
        default: return .failure
        }
    }

    /// The value of an integer that is a constant.
    func constant(_ term: Term) -> Int? {
        guard case .int(let value) = terms[term] else { return nil }
        return Int(exactly: value)
    }

    func slice(_ object: Symbol, _ low: Symbol?, _ high: Symbol?) -> Outcome {
        let bounds = [low, high].map { bound -> Int? in
            if case .int(let term)? = bound { constant(term) } else { nil }
        }
        guard [low, high].allSatisfy({ $0 == nil || $0?.type == "int" }) else { return .failure }
        let isConstant = (low == nil || bounds[0] != nil) && (high == nil || bounds[1] != nil)
        func range(_ count: Int) -> Range<Int>? {
            let (low, high) = (bounds[0] ?? 0, bounds[1] ?? count)
            return low >= 0 && low < count && high >= 1 && high <= count && high >= low ? low..<high : nil
        }
        switch object {
        case .list(let elements) where isConstant:
            return range(elements.count).map { Outcome(.list(Array(elements[$0])), terms) } ?? .failure
        case .path(let path) where isConstant && path.middle == nil:
            return range(path.front.count).map {
                Outcome(.path(SymbolicPath(front: Array(path.front[$0]))), terms)
            } ?? .failure
        case .list, .path, .string, .inputList, .keys, .opaque("list", _), .opaque("path", _), .opaque("bytes", _):
            return inputs.mayBeHalf(unknown("slice", [object, low ?? .null, high ?? .null], object.type))
        default: return .failure
        }
    }

    // MARK: Methods of maps

    func mapMethod(_ name: String, _ map: Symbol, _ arguments: [Symbol]) -> Outcome? {
        switch (name, map, arguments.first) {
        case ("get", _, .string(let term)?):
            guard let key = terms.text(term) else { return nil }
            let value = member(map, key)
            var outcome = value
            outcome.add(terms.not(value.isValue(terms)), arguments[1], terms)
            return outcome
        case ("size", .map(let fields), _): return Outcome(.int(terms.int(fields.count)), terms)
        case ("size", .inputMap(let map), _): return Outcome(.int(size(of: map)), terms)
        case ("keys", .map(let fields), _):
            let keys = fields.map(\.key).sorted { $0.scalars.lexicographicallyPrecedes($1.scalars) }
            return Outcome(.list(keys.map { Outcome(.string(terms.string($0)), terms) }), terms)
        case ("keys", .inputMap(let map), _): return Outcome(.keys(map), terms)
        case ("diff", .inputMap(let newer), .inputMap(let older)?):
            inputs.link(newer, older)
            return Outcome(.difference(newer, older), terms)
        default: return nil
        }
    }

    /// The number of keys of a map of the request.
    func size(of map: Int) -> Term {
        let size = terms.variable("\(inputs.maps[map].name)_size", .int)
        inputs.define("size \(map)") { [terms] inputs in
            let named = inputs.maps[map].keys.map {
                terms.ifThenElse(inputs.field(map, $0).present, terms.int(1), terms.int(0))
            }
            return [terms.equal(size, terms.sum([inputs.maps[map].others] + named))]
        }
        return size
    }

    // MARK: Keys

    /// `hasAll`, `hasAny` and `hasOnly` of the keys of a map of the request, with constant keys.
    func keysMethod(_ name: String, _ map: Int, _ keys: [Characters]) -> Outcome {
        let present = keys.map { inputs.field(map, $0).present }
        switch name {
        case "hasAll": return condition(terms.and(present))
        case "hasAny": return condition(terms.or(present))
        default:
            let number = inputs.opaque("only \(keys.map(\.scalars))", [.inputMap(map)], nil)
            let only = terms.variable("only\(number)", .bool)
            inputs.define("only \(number)") { [terms] inputs in
                let rest = inputs.maps[map].keys.filter { !keys.contains($0) }.map {
                    terms.not(inputs.field(map, $0).present)
                }
                let noOthers = terms.equal(inputs.maps[map].others, terms.int(0))
                return [terms.equal(only, terms.and([noOthers] + rest))]
            }
            return condition(only)
        }
    }

    // MARK: Two maps

    /// Whether keys that no rule names differ between two maps.
    private func othersDiffer(_ a: Int, _ b: Int) -> Term {
        if a == b { return terms.no }
        let differ = terms.variable("differ_\(min(a, b))_\(max(a, b))", .bool)
        let (x, y) = (inputs.maps[a].others, inputs.maps[b].others)
        inputs.require(terms.or(terms.equal(x, y), differ))
        inputs.require(terms.implies(differ, terms.less(terms.int(0), terms.add(x, y))))
        return differ
    }

    /// Whether two maps of the request are equal.
    func equal(maps a: Int, _ b: Int, _ rule: NumberRule) -> Term {
        if a == b { return terms.yes }
        inputs.link(a, b)
        let name = "equal_\(rule)_\(min(a, b))_\(max(a, b))"
        let isEqual = terms.variable(name, .bool)
        let differ = othersDiffer(a, b)
        inputs.define(name) { [self] inputs in
            let same = inputs.maps[a].keys.map { terms.not(isDifferent("affectedKeys", a, b, $0, rule)) }
            return [terms.equal(isEqual, terms.and([terms.not(differ)] + same))]
        }
        return isEqual
    }

    /// Whether a map of the request equals a map literal.
    func equal(_ map: Int, _ fields: [MapField], _ rule: NumberRule) -> Term {
        let same = fields.map { field in
            let input = inputs.field(map, field.key)
            return terms.and(input.present, equal(input.value, field.value, rule.inside))
        }
        let only = keysMethod("hasOnly", map, fields.map(\.key)).isBool(true, terms)
        return terms.and(same + [only])
    }

    /// Whether a key is among those that a method of the difference returns.
    func isDifferent(
        _ kind: String, _ newer: Int, _ older: Int, _ key: Characters, _ rule: NumberRule = .byValue
    ) -> Term {
        let (new, old) = (inputs.field(newer, key), inputs.field(older, key))
        switch kind {
        case "addedKeys": return terms.and(new.present, terms.not(old.present))
        case "removedKeys": return terms.and(old.present, terms.not(new.present))
        default: break
        }
        let both = terms.and(new.present, old.present)
        let same = equal(new.value, old.value, rule)
        switch kind {
        case "changedKeys": return terms.and(both, terms.not(same))
        case "unchangedKeys": return terms.and(both, same)
        default:
            return terms.or(terms.not(terms.equal(new.present, old.present)), terms.and(both, terms.not(same)))
        }
    }

    /// `hasAll`, `hasAny`, `hasOnly` and `size` of the keys in a difference, with constant keys.
    func differenceMethod(_ name: String, _ kind: String, _ newer: Int, _ older: Int, _ keys: [Characters]) -> Outcome {
        let differ = keys.map { isDifferent(kind, newer, older, $0) }
        if name == "hasAll" { return condition(terms.and(differ)) }
        if name == "hasAny" { return condition(terms.or(differ)) }
        let number = inputs.opaque("\(name) \(kind) \(newer) \(older) \(keys.map(\.scalars))", [], nil)
        let others = otherKeys(kind, newer, older)
        let size = terms.variable("difference\(number)", .int)
        let only = terms.variable("only\(number)", .bool)
        inputs.define("difference \(number)") { [self] inputs in
            let rest = inputs.maps[newer].keys.filter { !keys.contains($0) }.map { isDifferent(kind, newer, older, $0) }
            if name == "hasOnly" {
                let none = [terms.equal(others, terms.int(0))] + rest.map(terms.not)
                return [terms.equal(only, terms.and(none))]
            }
            let counts = rest.map { terms.ifThenElse($0, terms.int(1), terms.int(0)) }
            return [terms.equal(size, terms.sum([others] + counts))]
        }
        return name == "size" ? Outcome(.int(size), terms) : condition(only)
    }

    /// The number of keys that no rule names, among those that a method of the difference returns.
    private func otherKeys(_ kind: String, _ newer: Int, _ older: Int) -> Term {
        let count = terms.variable("others_\(kind)_\(newer)_\(older)", .int)
        let most = terms.add(inputs.maps[newer].others, inputs.maps[older].others)
        inputs.require(terms.and(terms.lessOrEqual(terms.int(0), count), terms.lessOrEqual(count, most)))
        if kind == "affectedKeys" {
            inputs.require(terms.equal(othersDiffer(newer, older), terms.less(terms.int(0), count)))
        }
        return count
    }
}
