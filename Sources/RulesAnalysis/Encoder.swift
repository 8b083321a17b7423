import SecurityRules
import Wire

/// Translates the conditions of one ruleset into terms, for requests of one method and one form of path.
///
/// Conditions have exactly the engine's three results: true, false and error. What is not modelled becomes a value that can be
/// anything, and an ``Approximation`` notes it: the formulas then hold for more requests than the rules, never for fewer.
final class Encoder {
    let rules: ResolvedRules
    let fileName: String
    let inputs: Inputs
    let terms: Terms
    /// A name for variables that differ between the rulesets of a question.
    private let label: String
    /// The parameters and bindings of the current function.
    private var locals: [Outcome] = []
    /// The number of segments of the current block's glob, if the path has a known length; and the block's segments.
    private var globLength = 0
    private var block: [ResolvedRules.Segment] = []
    /// The expression that is being translated.
    var node: ResolvedRules.NodeID = 0
    private var documents: [Int: Term] = [:]
    /// The number of look-ups whose path is not known.
    private var unknownDocuments = 0
    /// The statements whose conditions a request may evaluate.
    private var evaluated: Set<Int> = []
    /// Whether a request may reach a limit of the engine.
    private(set) var isLimited = false

    init(_ rules: ResolvedRules, fileName: String, label: String, _ inputs: Inputs) {
        self.rules = rules
        self.fileName = fileName
        self.label = label
        self.inputs = inputs
        terms = inputs.terms
    }

    // MARK: Statements

    /// When the statement allows a request: its block matches, and its condition is true.
    func allows(_ index: Int) -> Term {
        let statement = rules.statements[index]
        guard statement.methods.contains(inputs.method), !(inputs.method == .list && rules.version == 1) else {
            return terms.no
        }
        block = rules.blocks[statement.block].segments
        let matches = matchesBlock()
        if matches != terms.no { evaluated.insert(index) }
        guard matches != terms.no, let condition = statement.condition else { return matches }
        guard rules.costs[Int(condition)] <= ResolvedRules.maximumCost,
            rules.depths[Int(condition)] <= ResolvedRules.maximumDepth
        else {
            node = condition
            isLimited = true
            return terms.and(matches, terms.variable("\(label)_large\(index)", .bool))
        }
        return terms.and(matches, evaluate(condition).isBool(true, terms))
    }

    /// When the block of a statement matches a request of one of its methods.
    func matches(_ index: Int) -> Term {
        guard rules.statements[index].methods.contains(inputs.method) else { return terms.no }
        block = rules.blocks[rules.statements[index].block].segments
        return matchesBlock()
    }

    /// When no statement allows a request. A statement that a request may not reach, because the ones before it use up the
    /// limit of expressions, is not certain to allow it.
    func denies(_ conditions: [Term]) -> Term {
        var cost = 0
        let certain = conditions.enumerated().map { index, allows in
            guard evaluated.contains(index) else { return terms.no }
            cost += rules.statements[index].condition.map { rules.costs[Int($0)] } ?? 0
            guard cost > ResolvedRules.maximumCost else { return allows }
            isLimited = true
            let isReached = terms.variable("\(label)_reached\(index)", .bool)
            inputs.prefer(isReached)
            return terms.and(allows, isReached)
        }
        return terms.not(terms.or(certain))
    }

    /// Requires that look-ups fail only as the engine's do: only beyond the limit of documents of one request.
    func finish() {
        if documents.count + unknownDocuments > ResolvedRules.maximumDocuments { isLimited = true }
        for limit in documents.values {
            if isLimited { inputs.prefer(terms.not(limit)) } else { inputs.require(terms.not(limit)) }
        }
    }

    private func matchesBlock() -> Term {
        let path = inputs.wholePath
        let globIndex = block.firstIndex(of: .glob)
        let fixed = globIndex == nil ? block.count : block.count - 1
        let known = path.front.count + path.back.count
        if path.middle == nil {
            let least = globIndex == nil ? fixed : fixed + (rules.version == 1 ? 1 : 0)
            guard globIndex == nil ? known == fixed : known >= least else { return terms.no }
            globLength = known - fixed
        } else if globIndex == nil {
            return terms.no
        }
        let before = globIndex ?? block.count
        var conditions = zip(block[..<before], path.front).map { condition($0, $1) }
        if globIndex != nil {
            let tail = Array(block[(before + 1)...])
            let segments = (path.middle == nil ? path.front : path.back).suffix(tail.count)
            conditions += zip(tail, segments).map { condition($0, $1) }
        }
        return terms.and(conditions)
    }

    private func condition(_ segment: ResolvedRules.Segment, _ term: Term) -> Term {
        guard case .literal(let text) = segment else { return terms.yes }
        return terms.equal(term, terms.string(Characters(text)))
    }

    // MARK: Expressions

    func evaluate(_ id: ResolvedRules.NodeID) -> Outcome {
        guard !terms.isTooLarge else { return .failure }
        let outer = node
        defer { node = outer }
        node = id
        switch rules[id] {
        case .constant(let value): return Outcome(symbol(value), terms)
        case .otherConstant: return unknown("constant \(fileName) \(id)", [], "any", "a value that is not modelled")
        case .segment(let index): return Outcome(.string(inputs.wholePath.front[index]), terms)
        case .segmentBehindGlob(let index):
            let path = inputs.wholePath
            let segments = path.middle == nil ? path.front : path.back
            return Outcome(.string(segments[segments.count - (block.count - index)]), terms)
        case .glob(let index): return Outcome(.path(glob(index)), terms)
        case .local(let index): return locals[index]
        case .root(.request): return Outcome(.request, terms)
        case .root(.existing):
            var outcome = Outcome()
            outcome.add(inputs.hasExisting, .existing, terms)
            outcome.add(terms.not(inputs.hasExisting), .null, terms)
            return outcome
        case .failure: return .failure
        case .member(let object, let name): return each([object]) { self.member($0[0], Characters(name)) }
        case .index(let object, let key): return each([object, key]) { self.index($0[0], $0[1]) }
        case .slice(let object, let first, let last):
            let bounds = [first, last].compactMap(\.self)
            return each([object] + bounds) { symbols in
                var bounds = symbols.dropFirst()
                let low = first == nil ? nil : bounds.removeFirst()
                return self.slice(symbols[0], low, bounds.first)
            }
        case .not(let operand): return not(evaluate(operand))
        case .negate(let operand): return each([operand]) { self.negate($0[0]) }
        case .binary(let operation, let left, let right):
            return each([left, right]) { self.binary(operation, $0[0], $0[1]) }
        case .all(let operands): return chain(operands, absorbing: false)
        case .any(let operands): return chain(operands, absorbing: true)
        case .isType(let operand, let type): return isType(evaluate(operand), type)
        case .conditional(let condition, let whenTrue, let whenFalse):
            let condition = evaluate(condition)
            var outcome = Outcome()
            outcome.add(evaluate(whenTrue), when: condition.isBool(true, terms), terms)
            outcome.add(evaluate(whenFalse), when: condition.isBool(false, terms), terms)
            return outcome
        case .list(let elements): return list(elements)
        case .map(let entries): return map(entries)
        case .path(let parts): return each(parts) { self.path($0) }
        case .call(let name, let arguments):
            return name == "debug" ? evaluate(arguments[0]) : each(arguments) { self.call(name, $0) }
        case .method(let name, let operands):
            return each(operands) { self.method(name, $0[0], Array($0.dropFirst())) }
        case .userCall(let number, let arguments): return userCall(rules.functions[number], arguments)
        }
    }

    private func userCall(_ function: ResolvedRules.Function, _ arguments: [ResolvedRules.NodeID]) -> Outcome {
        let values = arguments.map { evaluate($0) }
        let outer = locals
        locals = values
        for binding in function.bindings { locals.append(evaluate(binding)) }
        let result = evaluate(function.result)
        locals = outer
        return result
    }

    private func glob(_ index: Int) -> SymbolicPath {
        let path = inputs.wholePath
        guard path.middle != nil else { return SymbolicPath(front: Array(path.front[index..<index + globLength])) }
        let tail = block.count - index - 1
        return SymbolicPath(
            front: Array(path.front[index...]), middle: path.middle, back: Array(path.back.dropLast(tail)))
    }

    /// The symbol of a constant.
    func symbol(_ value: Value) -> Symbol {
        switch value {
        case .null: return .null
        case .bool(let value): return .bool(value)
        case .int(let value): return .int(terms.int(value))
        case .float(let value): return .float(value.bitPattern)
        case .string(let text):
            let characters = Characters(text)
            guard characters.isExact else { return opaqueSymbol("string", text) }
            return .string(terms.string(characters))
        case .list(let values): return .list(values.map { Outcome(symbol($0), terms) })
        case .path(let segments):
            let texts = segments.map(Characters.init)
            guard texts.allSatisfy(\.isExact) else { return opaqueSymbol("path", "\(segments)") }
            return .path(SymbolicPath(front: texts.map(terms.string)))
        case .timestamp(let moment):
            return .timestamp(terms.int(Int128(moment.seconds) * Inputs.second + Int128(moment.nanoseconds)))
        case .duration(let span):
            return .duration(terms.int(Int128(span.seconds) * Inputs.second + Int128(span.nanoseconds)))
        case .bytes, .map, .latlng: return opaqueSymbol("\(value.typeName)", "\(value)")
        }
    }

    private func opaqueSymbol(_ type: String, _ text: String) -> Symbol {
        let number = inputs.opaque("\(type) \(text)", [], approximation("a constant of type \(type)"))
        return type == "string" ? .string(terms.variable("opaque\(number)_string", .string)) : .opaque(type, number)
    }

    // MARK: Operands

    /// The largest number of combinations of operand types that one operation is translated for.
    private static let combinations = 600

    /// Evaluates operands, all of which must have a value, and combines the results for each of their types.
    func each(_ operands: [ResolvedRules.NodeID], _ body: ([Symbol]) -> Outcome) -> Outcome {
        each(operands.map { evaluate($0) }, body)
    }

    func each(_ outcomes: [Outcome], _ body: ([Symbol]) -> Outcome) -> Outcome {
        let count = outcomes.reduce(1) { min($0 * $1.cases.count, Self.combinations + 1) }
        guard count <= Self.combinations else {
            return unknown(unique("types"), [], "any", "too many possible types")
        }
        var combined: [(condition: Term, symbols: [Symbol])] = [(terms.yes, [])]
        for outcome in outcomes {
            combined = combined.flatMap { before in
                outcome.cases.compactMap { one in
                    let condition = terms.and(before.condition, one.guardTerm)
                    return condition == terms.no ? nil : (condition, before.symbols + [one.value])
                }
            }
        }
        var result = Outcome()
        for (condition, symbols) in combined { result.add(body(symbols), when: condition, terms) }
        return result
    }

    /// A name for one evaluation of an operation, which no other has.
    private func unique(_ operation: String) -> String { "\(label) \(operation) \(inputs.number())" }

    /// A look-up of a document whose path is not known. It may fail because of the limit, which each ruleset reaches on
    /// its own.
    func unknownLookUp(_ name: String, _ arguments: [Symbol], _ types: String) -> Outcome {
        unknownDocuments += 1
        return unknown("\(label) \(name)()", arguments, types, "a look-up whose path is not known")
    }

    func approximation(_ reason: String) -> Approximation {
        Approximation(
            fileName: fileName, position: rules.range(of: node).lowerBound, text: rules.text(of: node), reason: reason)
    }

    /// The result of an operation that is not modelled: any value of these types, the same for equal operands; and
    /// possibly an error.
    func unknown(
        _ operation: String, _ operands: [Symbol], _ types: String, _ reason: String? = nil, mayFail: Bool = true
    ) -> Outcome {
        let number = inputs.opaque(operation, operands, approximation(reason ?? "\(operation) is not modelled"))
        let name = "opaque\(number)"
        var rest = mayFail ? terms.not(terms.variable("\(name)_fails", .bool)) : terms.yes
        if mayFail { inputs.prefer(rest) }
        var outcome = Outcome()
        let all = types.utf8.split(separator: UInt8(ascii: "|")).map { String($0) ?? "" }
        for (index, type) in all.enumerated() {
            let isLast = index == all.count - 1
            let isThis = isLast ? terms.yes : terms.variable("\(name)_is_\(type)", .bool)
            outcome.add(opaqueValue(name, number, type), when: terms.and(rest, isThis), terms)
            rest = terms.and(rest, terms.not(isThis))
        }
        return outcome
    }

    private func opaqueValue(_ name: String, _ number: Int, _ type: String) -> Outcome {
        switch type {
        case "bool": return Outcome(terms.variable("\(name)_bool", .bool), terms)
        case "int":
            let value = terms.variable("\(name)_int", .int)
            inputs.require(inputs.isInteger(value))
            return Outcome(.int(value), terms)
        case "string": return Outcome(.string(terms.variable("\(name)_string", .string)), terms)
        case "timestamp":
            let value = terms.variable("\(name)_time", .int)
            inputs.require(inputs.timeRange(value))
            return Outcome(.timestamp(value), terms)
        case "duration":
            let value = terms.variable("\(name)_duration", .int)
            inputs.require(inputs.durationRange(value))
            return Outcome(.duration(value), terms)
        case "any", "": return inputs.outcome(inputs.freeValue(name), name)
        case "list": return Outcome(.inputList(inputs.freeValue(name).list), terms)
        default: return Outcome(.opaque(type, number), terms)
        }
    }

    /// Notes a look-up of a document. Returns when it fails because of the limit of documents.
    func limit(of document: Int) -> Term {
        if let known = documents[document] { return known }
        let limit = terms.variable("\(label)_limit\(document)", .bool)
        documents[document] = limit
        return limit
    }

    // MARK: Logic

    private func not(_ operand: Outcome) -> Outcome {
        var outcome = Outcome()
        outcome.add(operand.isBool(false, terms), .bool(true), terms)
        outcome.add(operand.isBool(true, terms), .bool(false), terms)
        return outcome
    }

    /// `&&` and `||`: the absorbing value on any side decides; otherwise an error on any side is the result.
    private func chain(_ operands: [ResolvedRules.NodeID], absorbing: Bool) -> Outcome {
        let outcomes = operands.map { evaluate($0) }
        var outcome = Outcome()
        outcome.add(terms.or(outcomes.map { $0.isBool(absorbing, terms) }), .bool(absorbing), terms)
        outcome.add(terms.and(outcomes.map { $0.isBool(!absorbing, terms) }), .bool(!absorbing), terms)
        return outcome
    }

    private func isType(_ operand: Outcome, _ type: String) -> Outcome {
        var outcome = Outcome()
        for one in operand.cases {
            let actual = one.value.type
            let isIt = actual == type || (type == "number" && (actual == "int" || actual == "float"))
            outcome.add(one.guardTerm, .bool(isIt), terms)
        }
        return outcome
    }

    // MARK: Composed values

    /// Whether a value is a record, which a list or a map would copy.
    private func holdsRecord(_ outcome: Outcome) -> Bool {
        outcome.cases.contains { $0.value == .request || $0.value == .incoming || $0.value == .existing }
    }

    private func list(_ elements: [ResolvedRules.NodeID]) -> Outcome {
        let outcomes = elements.map { evaluate($0) }
        if outcomes.contains(where: holdsRecord) {
            return unknown(unique("list"), [], "list", "a list of objects")
        }
        var outcome = Outcome()
        outcome.add(terms.and(outcomes.map { $0.isValue(terms) }), .list(outcomes), terms)
        return outcome
    }

    private func map(_ entries: [ResolvedRules.NodeID]) -> Outcome {
        let outcomes = entries.map { evaluate($0) }
        var fields: [MapField] = []
        for index in stride(from: 0, to: outcomes.count, by: 2) {
            guard case .string(let term)? = outcomes[index].constant(terms), let key = terms.text(term),
                !holdsRecord(outcomes[index + 1])
            else { return unknown(unique("map"), [], "map", "a map with computed keys or with objects") }
            fields.removeAll { $0.key == key }
            fields.append(MapField(key: key, value: outcomes[index + 1]))
        }
        var outcome = Outcome()
        outcome.add(terms.and(outcomes.map { $0.isValue(terms) }), .map(fields), terms)
        return outcome
    }

    private func path(_ parts: [Symbol]) -> Outcome {
        var path = SymbolicPath(front: [])
        func append(_ term: Term) { if path.middle == nil { path.front.append(term) } else { path.back.append(term) } }
        for part in parts {
            switch part {
            case .string(let term): append(term)
            case .int(let number):
                guard let text = digits(number) else { return unknown("path", parts, "path", "a number in a path") }
                append(text)
            case .path(let other):
                for segment in other.front { append(segment) }
                guard let middle = other.middle else { continue }
                guard path.middle == nil else { return unknown("path", parts, "path", "a path of unknown length") }
                (path.middle, path.back) = (middle, other.back)
            case .opaque("path", _): return unknown("path", parts, "path", "a path of unknown length")
            default: return .failure
            }
        }
        return Outcome(.path(path), terms)
    }

    /// The decimal digits of a constant.
    func digits(_ number: Term) -> Term? {
        guard case .int(let value) = terms[number] else { return nil }
        return terms.string(Characters("\(value)"))
    }
}

extension Characters {
    /// Whether Z3 has all of its characters.
    var isExact: Bool { scalars.allSatisfy { $0 <= CharacterSet.lastOfSolver } }
}

extension Value {
    fileprivate var typeName: String {
        switch self {
        case .bytes: "bytes"
        case .latlng: "latlng"
        default: "map"
        }
    }
}
