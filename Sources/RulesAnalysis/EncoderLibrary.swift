import SecurityRules
import Wire

/// Functions and methods of the library.
extension Encoder {
    // MARK: Methods

    func method(_ name: String, _ receiver: Symbol, _ arguments: [Symbol]) -> Outcome {
        guard receiver != .null,
            let result = ResolvedRules.result(ofMethod: name, of: receiver.type, arguments.map(\.type))
        else { return .failure }
        let known: Outcome? =
            switch receiver {
            case .string(let text): stringMethod(name, text, arguments)
            case .list(let elements): elementsMethod(name, elements, arguments, .element)
            case .set(let elements): elementsMethod(name, elements, arguments, .byValue)
            case .keys(let map): constants(arguments.first).map { keysMethod(name, map, $0) } ?? keysMethod(name, map)
            case .inputList(let list): listMethod(name, list, arguments)
            case .map, .inputMap, .request, .incoming, .existing: mapMethod(name, receiver, arguments)
            case .difference(let newer, let older): Outcome(.differenceKeys(name, newer, older), terms)
            case .differenceKeys(let kind, let newer, let older): differenceMethod(name, kind, newer, older, arguments)
            case .timestamp(let moment): timestampMethod(name, moment)
            case .duration(let span): durationMethod(name, span)
            default: nil
            }
        return known ?? unknown("\(name)()", [receiver] + arguments, result)
    }

    private func keysMethod(_ name: String, _ map: Int) -> Outcome? {
        name == "size" ? Outcome(.int(size(of: map)), terms) : nil
    }

    private func differenceMethod(
        _ name: String, _ kind: String, _ newer: Int, _ older: Int, _ arguments: [Symbol]
    ) -> Outcome? {
        if newer == older { return kind == "unchangedKeys" ? nil : elementsMethod(name, [], arguments, .byValue) }
        if name == "size" { return differenceMethod(name, kind, newer, older, [Characters]()) }
        guard name.utf8.starts(with: "has".utf8) else { return nil }
        return constants(arguments.first).map { differenceMethod(name, kind, newer, older, $0) }
    }

    /// The strings of a list of constants; nil for any other value. Elements of other types are no keys, which matters
    /// for `hasAll` alone: so they make the list no list of constants.
    private func constants(_ list: Symbol?) -> [Characters]? {
        let elements: [Outcome]
        switch list {
        case .list(let found)?, .set(let found)?: elements = found
        default: return nil
        }
        let texts = elements.compactMap { element -> Characters? in
            guard case .string(let term)? = element.constant(terms) else { return nil }
            return terms.text(term)
        }
        return texts.count == elements.count ? texts : nil
    }

    private func stringMethod(_ name: String, _ text: Term, _ arguments: [Symbol]) -> Outcome? {
        switch name {
        case "size": return Outcome(.int(size(of: text)), terms)
        case "lower": return Outcome(.string(terms.mapped(text, to: .lower)), terms)
        case "upper": return Outcome(.string(terms.mapped(text, to: .upper)), terms)
        case "matches":
            guard case .string(let term)? = arguments.first, let pattern = terms.text(term),
                let regex = RegexParser.parse(pattern.text), !inputs.mayBeHalf(text)
            else {
                return unknown(
                    "matches()", [.string(text)] + arguments, "bool", "a regular expression that is not modelled")
            }
            return condition(terms.matches(text, regex))
        case "split":
            guard case .string(let term)? = arguments.first, terms.text(term) == Characters("/") else { return nil }
            // Segments are not empty and have no slash.
            let path = inputs.path
            guard text == inputs.name, path.middle == nil, !path.front.isEmpty else { return nil }
            return Outcome(.list(path.front.map { Outcome(.string($0), terms) }), terms)
        default: return nil
        }
    }

    /// The length in UTF-16 code units: one more for each character beyond U+FFFF.
    private func size(of text: Term) -> Term {
        let length = terms.length(text)
        if let characters = terms.text(text) {
            return terms.int(characters.scalars.reduce(0) { $0 + ($1 > 0xFFFF ? 2 : 1) })
        }
        let more = terms.function("astral", [text], .int)
        let plain = Regex.repetition(.set(CharacterSet([0...0xFFFF])), least: 0, most: nil)
        inputs.require(terms.and(terms.lessOrEqual(terms.int(0), more), terms.lessOrEqual(more, length)))
        inputs.require(terms.equal(terms.matches(text, plain), terms.equal(more, terms.int(0))))
        inputs.prefer(terms.equal(more, terms.int(0)))
        return terms.add(length, more)
    }

    private func elementsMethod(
        _ name: String, _ elements: [Outcome], _ arguments: [Symbol], _ rule: NumberRule
    ) -> Outcome? {
        if name == "size", rule == .element || elements.isEmpty {
            return Outcome(.int(terms.int(elements.count)), terms)
        }
        if name == "toSet" { return Outcome(.set(elements), terms) }
        switch (name, arguments.first) {
        case ("hasAny", .inputList(let list)?) where rule == .element:
            return condition(terms.or(elements.map { isMember($0, of: list) }))
        case ("hasOnly", .inputList(let list)?) where rule == .element:
            return condition(terms.and(elements.map { isMember($0, of: list) }))
        case ("hasAny", .keys(let map)?), ("hasOnly", .keys(let map)?):
            guard let keys = constants(.list(elements)) else { return nil }
            return keysMethod(name == "hasAny" ? "hasAny" : "hasAll", map, keys)
        case ("hasAll", .keys(let map)?):
            guard let keys = constants(.list(elements)) else { return nil }
            return keysMethod("hasOnly", map, keys)
        default: break
        }
        guard case .list(let other)? = arguments.first else { return nil }
        func has(_ container: [Outcome], _ element: Outcome) -> Term {
            terms.or(
                element.cases.map { terms.and($0.guardTerm, isMember($0.value, of: container, rule)) })
        }
        switch name {
        case "hasAll": return condition(terms.and(other.map { has(elements, $0) }))
        case "hasAny": return condition(terms.or(other.map { has(elements, $0) }))
        case "hasOnly": return condition(terms.and(elements.map { has(other, $0) }))
        case "concat": return Outcome(.list(elements + other), terms)
        default: return nil
        }
    }

    /// Whether a list of the request contains an element of a list literal.
    private func isMember(_ element: Outcome, of list: Int) -> Term {
        terms.or(element.cases.map { terms.and($0.guardTerm, inputs.isMember(list, $0.value)) })
    }

    private func listMethod(_ name: String, _ list: Int, _ arguments: [Symbol]) -> Outcome? {
        if name == "size" { return Outcome(.int(inputs.lists[list].size), terms) }
        guard case .list(let elements)? = arguments.first else { return nil }
        switch name {
        case "hasAll": return condition(terms.and(elements.map { isMember($0, of: list) }))
        case "hasAny": return condition(terms.or(elements.map { isMember($0, of: list) }))
        default: return nil
        }
    }

    // MARK: Times

    private func timestampMethod(_ name: String, _ moment: Term) -> Outcome? {
        func floor(_ a: Term, _ divisor: Int128) -> Term { terms.divide(a, by: divisor, .quotient) }
        let second = Inputs.second
        let ofDay = terms.divide(moment, by: 86_400 * second, .remainder)
        switch name {
        case "toMillis": return Outcome(.int(floor(moment, 1_000_000)), terms)
        case "time": return Outcome(.duration(ofDay), terms)
        case "date": return Outcome(.timestamp(terms.add(moment, terms.multiply(ofDay, by: -1))), terms)
        case "hours": return Outcome(.int(floor(ofDay, 3600 * second)), terms)
        case "minutes": return Outcome(.int(terms.divide(floor(ofDay, 60 * second), by: 60, .remainder)), terms)
        case "seconds": return Outcome(.int(terms.divide(floor(ofDay, second), by: 60, .remainder)), terms)
        case "nanos": return Outcome(.int(terms.divide(moment, by: second, .remainder)), terms)
        // 1970 began on a Thursday.
        case "dayOfWeek":
            let day = terms.add(floor(moment, 86_400 * second), terms.int(3))
            return Outcome(.int(terms.add(terms.divide(day, by: 7, .remainder), terms.int(1))), terms)
        default: return nil
        }
    }

    private func durationMethod(_ name: String, _ span: Term) -> Outcome? {
        name == "seconds"
            ? Outcome(.int(truncatedQuotient(span, Inputs.second)), terms)
            : Outcome(.int(truncatedRemainder(span, Inputs.second)), terms)
    }

    // MARK: Functions

    func call(_ name: String, _ arguments: [Symbol]) -> Outcome {
        guard let result = ResolvedRules.result(ofFunction: name, arguments.map(\.type)) else { return .failure }
        let known: Outcome? =
            switch (name, arguments.first) {
            case ("int", .int?), ("float", .float?), ("string", .string?), ("float", .opaque("float", _)?):
                Outcome(arguments[0], terms)
            case ("int", .string(let term)?):
                terms.text(term).map { text in
                    Int64(text.text).map { Outcome(.int(terms.int($0)), terms) } ?? .failure
                }
            case ("string", let value?): text(of: value).map { Outcome(.string($0), terms) }
            case ("path", .string(let term)?): terms.text(term).flatMap(path)
            case ("math.abs", .int(let value)?): magnitude(value)
            case ("math.round", .int?): Outcome(arguments[0], terms)
            case ("timestamp.date", _): date(arguments)
            case ("timestamp.value", .int(let value)?): moment(value)
            case ("duration.value", .int(let value)?): duration(value, arguments[1])
            case ("duration.time", _): duration(arguments)
            case ("duration.abs", .duration(let span)?):
                Outcome(
                    .duration(terms.ifThenElse(terms.less(span, terms.int(0)), terms.multiply(span, by: -1), span)),
                    terms)
            case ("firestore.get", .path(let path)?), ("firestore.exists", .path(let path)?):
                lookUp(path, isGet: name == "firestore.get")
            default: nil
            }
        if known == nil, name.utf8.starts(with: "firestore.".utf8) { return unknownLookUp(name, arguments, result) }
        return known ?? unknown("\(name)()", arguments, result)
    }

    private func text(of value: Symbol) -> Term? {
        switch value {
        case .null: return terms.string(Characters("null"))
        case .bool(let value): return terms.string(Characters(value ? "true" : "false"))
        case .int(let number): return digits(number)
        case .path(let path):
            let slash = terms.string(Characters("/"))
            let parts = path.front + [path.middle].compactMap(\.self) + path.back
            return terms.concatenate(parts.flatMap { [slash, $0] })
        default: return nil
        }
    }

    /// A constant path; nil if it has bindings.
    private func path(_ text: Characters) -> Outcome? {
        let slash = UInt32(UInt8(ascii: "/"))
        guard !text.scalars.contains(UInt32(UInt8(ascii: "{"))) else { return nil }
        var scalars = text.scalars[...]
        if scalars.first == slash { scalars.removeFirst() }
        if scalars.last == slash { scalars.removeLast() }
        let parts = scalars.isEmpty ? [] : scalars.split(separator: slash, omittingEmptySubsequences: false)
        return Outcome(.path(SymbolicPath(front: parts.map { terms.string(Characters(Array($0))) })), terms)
    }

    /// The absolute value. The smallest integer stays as it is.
    private func magnitude(_ value: Term) -> Outcome {
        let least = terms.int(Int64.min)
        let negated = terms.ifThenElse(terms.equal(value, least), least, terms.multiply(value, by: -1))
        return Outcome(.int(terms.ifThenElse(terms.less(value, terms.int(0)), negated, value)), terms)
    }

    private func constants(_ arguments: [Symbol]) -> [Int]? {
        let values = arguments.compactMap { argument -> Int? in
            if case .int(let term) = argument { constant(term) } else { nil }
        }
        return values.count == arguments.count ? values : nil
    }

    private func date(_ arguments: [Symbol]) -> Outcome? {
        guard let values = constants(arguments) else { return nil }
        guard (1...9999).contains(values[0]), (1...12).contains(values[1]), (1...31).contains(values[2]) else {
            return .failure
        }
        func padded(_ value: Int, _ width: Int) -> String {
            String(repeating: "0", count: max(0, width - "\(value)".utf8.count)) + "\(value)"
        }
        let text = "\(padded(values[0], 4))-\(padded(values[1], 2))-\(padded(values[2], 2))T00:00:00Z"
        return Timestamp(rfc3339: text).map { Outcome(symbol(.timestamp($0)), terms) } ?? .failure
    }

    private func moment(_ milliseconds: Term) -> Outcome {
        let value = terms.multiply(milliseconds, by: 1_000_000)
        return guarded(inputs.timeRange(value), .timestamp(value))
    }

    private func duration(_ count: Term, _ unit: Symbol) -> Outcome? {
        guard case .string(let term) = unit, let unit = terms.text(term) else { return nil }
        let units: [(String, Int128)] = [
            ("w", 604_800 * Inputs.second), ("d", 86_400 * Inputs.second), ("h", 3600 * Inputs.second),
            ("m", 60 * Inputs.second), ("s", Inputs.second), ("ms", 1_000_000), ("ns", 1),
        ]
        guard let scale = units.first(where: { Characters($0.0) == unit })?.1 else { return .failure }
        let value = terms.multiply(count, by: scale)
        return guarded(inputs.durationRange(value), .duration(value))
    }

    private func duration(_ arguments: [Symbol]) -> Outcome? {
        // Larger numbers may overflow on the way.
        guard let values = constants(arguments), values.allSatisfy({ $0.magnitude < 1 << 40 }) else { return nil }
        let seconds = values[0] * 3600 + values[1] * 60 + values[2]
        let value = terms.int(Int128(seconds) * Inputs.second + Int128(values[3]))
        return guarded(inputs.durationRange(value), .duration(value))
    }

    // MARK: Documents

    private func lookUp(_ path: SymbolicPath, isGet: Bool) -> Outcome? {
        guard path.middle == nil else { return nil }
        let segments = path.front
        func text(_ text: String) -> Term { terms.string(Characters(text)) }
        guard segments.count >= 5, segments.count % 2 == 1 else { return .failure }
        var conditions = [
            terms.equal(segments[0], text("databases")), terms.equal(segments[1], text("(default)")),
            terms.equal(segments[2], text("documents")),
        ]
        for segment in segments.dropFirst(3) {
            conditions += ["", ".", ".."].map { terms.not(terms.equal(segment, text($0))) }
        }
        let document = inputs.document(segments)
        let number = inputs.documents.firstIndex { $0.segments == segments } ?? 0
        conditions += [terms.not(document.failed), terms.not(limit(of: number))]
        if !isGet {
            var outcome = Outcome()
            outcome.add(Outcome(document.present, terms), when: terms.and(conditions), terms)
            return outcome
        }
        let fields = [
            MapField(key: Characters("data"), value: Outcome(.inputMap(document.fields), terms)),
            MapField(key: Characters("id"), value: Outcome(.string(segments[segments.count - 1]), terms)),
            MapField(key: Characters("__name__"), value: Outcome(.path(path), terms)),
        ]
        return guarded(terms.and(conditions + [document.present]), .map(fields))
    }
}
