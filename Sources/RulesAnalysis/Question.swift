import SecurityRules
import Wire

/// The formulas of a search for one method and one form of path.
final class Question {
    let terms = Terms()
    let inputs: Inputs
    /// For each statement of the subject, the formula of the requests that are looked for.
    private var formulas: [Term]
    private var own: [Term]
    private var others: Set<Term> = []
    private var constraints: [Term] = []
    /// Whether a request may reach a limit of the engine.
    private var isLimited = false
    private let comparisons: RegexComparisons

    init(_ search: Search, _ method: Method, _ shape: PathShape) {
        comparisons = search.comparisons
        inputs = Inputs(terms, method, shape)
        let encoder = { [inputs] (rules: AnalyzedRules, label: String) in
            Encoder(rules.resolved, fileName: rules.rules.fileName, label: label, inputs)
        }
        let subject = encoder(search.subject, "a")
        let indices = search.subject.resolved.statements.indices
        own = indices.map(subject.allows)
        var encoders: [Encoder] = []
        var required = terms.yes
        if let also = search.also {
            let encoder = encoder(also, "c")
            required = terms.or(also.resolved.statements.indices.map(encoder.allows))
            encoder.finish()
            encoders.append(encoder)
        }
        var denied = terms.yes
        if let unless = search.unless {
            let encoder = encoder(unless, "b")
            let allowed = unless.resolved.statements.indices.map(encoder.allows)
            others = Set(allowed)
            denied = encoder.denies(allowed)
            encoder.finish()
            encoders.append(encoder)
        }
        formulas = own.map { [terms] in terms.and($0, required, denied) }
        if search.excludesOthers {
            formulas = indices.map { index in
                var rest = own
                rest[index] = terms.no
                return terms.and(own[index], subject.denies(rest))
            }
        }
        if search.isInverted {
            formulas = indices.map { terms.and(subject.matches($0), terms.not(own[$0])) }
        }
        subject.finish()
        encoders.append(subject)
        isLimited = encoders.contains { $0.isLimited }
        constraints = inputs.finish()
    }

    func formula(_ statement: Int) -> Term { formulas[statement] }

    /// Whether a statement is not one of the rules that must deny.
    func isChanged(_ statement: Int) -> Bool { own[statement] != terms.no && !others.contains(own[statement]) }

    // MARK: Constraints

    /// The constraints that share a variable with a formula, directly or through others. The rest can always be met.
    func relevant(to formulas: [Term]) -> [Term] {
        var known: Set<Term> = []
        var seen: Set<Term> = []
        for formula in formulas { collect(formula, &known, &seen) }
        var rest = constraints.filter { $0 != terms.yes }.map { constraint in
            var (variables, seen): (Set<Term>, Set<Term>) = ([], [])
            collect(constraint, &variables, &seen)
            return (constraint, variables)
        }
        var found: [Term] = []
        while true {
            let added = rest.filter { !$0.1.isDisjoint(with: known) || $0.1.isEmpty }
            if added.isEmpty { return found }
            rest.removeAll { !$0.1.isDisjoint(with: known) || $0.1.isEmpty }
            for (constraint, variables) in added where !found.contains(constraint) {
                found.append(constraint)
                known.formUnion(variables)
            }
        }
    }

    /// The preferences that concern variables of some formulas.
    func preferences(for formulas: [Term]) -> [Term] {
        var (known, seen): (Set<Term>, Set<Term>) = ([], [])
        for formula in formulas + relevant(to: formulas) { collect(formula, &known, &seen) }
        return inputs.preferences.filter { preference in
            var (variables, seen): (Set<Term>, Set<Term>) = ([], [])
            collect(preference, &variables, &seen)
            return !variables.isDisjoint(with: known)
        }
    }

    /// Facts about the regular expressions of some formulas: which of two that are applied to one string implies the other.
    func regexFacts(_ formulas: [Term]) -> [Term] {
        var (variables, seen): (Set<Term>, Set<Term>) = ([], [])
        for formula in formulas { collect(formula, &variables, &seen) }
        var tests: [Term: [(regex: Regex, term: Term)]] = [:]
        for term in seen.sorted(by: { $0.id < $1.id }) {
            guard case .apply(.matches(let regex), let operands) = terms[term] else { continue }
            tests[operands[0], default: []].append((regex, term))
        }
        var facts: [Term] = []
        for (_, tests) in tests.sorted(by: { $0.key.id < $1.key.id }) where tests.count <= Self.maximumTests {
            for (index, a) in tests.enumerated() {
                for b in tests[(index + 1)...] {
                    if let forth = comparisons.compare(a.regex, b.regex) {
                        if forth.isIncluded { facts.append(terms.implies(a.term, b.term)) }
                        if forth.isDisjoint { facts.append(terms.not(terms.and(a.term, b.term))) }
                    }
                    if let back = comparisons.compare(b.regex, a.regex), back.isIncluded {
                        facts.append(terms.implies(b.term, a.term))
                    }
                }
            }
        }
        return facts
    }

    /// The largest number of regular expressions on one string that are compared with each other.
    private static let maximumTests = 24

    private func collect(_ term: Term, _ variables: inout Set<Term>, _ seen: inout Set<Term>) {
        guard seen.insert(term).inserted else { return }
        switch terms[term] {
        case .variable: variables.insert(term)
        case .apply(_, let operands): for operand in operands { collect(operand, &variables, &seen) }
        default: break
        }
    }

    // MARK: Approximations

    /// The approximations whose variables are among these names.
    func obstacles(_ names: [String]) -> [Obstacle] {
        var found: Set<Int> = []
        for name in names where name.utf8.starts(with: "opaque".utf8) {
            let digits = name.utf8.dropFirst(6).prefix { (UInt8(ascii: "0")...UInt8(ascii: "9")).contains($0) }
            if let number = Int(String(decoding: Array(digits), as: UTF8.self)) { found.insert(number) }
        }
        return found.sorted().compactMap { inputs.approximations[$0] }.map(Obstacle.init)
            + (isLimited ? [.limit("the limits of expressions and documents of one request")] : [])
    }

    /// Whether a variable stands for a limit of the engine.
    private static func isLimit(_ name: String) -> Bool {
        ["a", "b", "c"].contains { side in
            ["_large", "_reached", "_limit"].contains { name.utf8.starts(with: (side + $0).utf8) }
        }
    }

    /// A formula that excludes a model: by the opaque values if there are any, or else by all of it.
    func block(_ model: Model) -> Term {
        let names = model.values.keys.sorted()
        let opaque = names.filter { $0.utf8.starts(with: "opaque".utf8) || Self.isLimit($0) }
        let equalities = (opaque.isEmpty ? names : opaque).compactMap { name -> Term? in
            switch model.values[name] {
            case .bool(let value)?:
                let variable = terms.variable(name, .bool)
                return value ? variable : terms.not(variable)
            case .int(let value)?: return terms.equal(terms.variable(name, .int), terms.int(value))
            case .string(let value)?: return terms.equal(terms.variable(name, .string), terms.string(value))
            case nil: return nil
            }
        }
        return terms.not(terms.and(equalities))
    }
}

extension Obstacle {
    init(_ approximation: Approximation) {
        self = .approximation(
            fileName: approximation.fileName, position: approximation.position, text: approximation.text,
            reason: approximation.reason)
    }
}
