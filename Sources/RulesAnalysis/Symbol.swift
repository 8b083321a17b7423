import SecurityRules
import Wire

/// A value of the rules language whose type is known and whose content may be a term.
enum Symbol: Hashable, Sendable {
    case null
    case bool(Bool)
    /// An integer of 64 bits.
    case int(Term)
    /// A float by the bits of its literal.
    case float(UInt64)
    case string(Term)
    case list([Outcome])
    case set([Outcome])
    /// A map with exactly these keys, as a literal has.
    case map([MapField])
    case path(SymbolicPath)
    /// Nanoseconds since 1970, and nanoseconds.
    case timestamp(Term)
    case duration(Term)
    /// `request`, `request.resource` or `resource`.
    case request, incoming, existing
    /// A map of the request or of a document, by its index in ``Inputs``.
    case inputMap(Int)
    /// A list of the request or of a document, by its index in ``Inputs``.
    case inputList(Int)
    /// The keys of a map of the request.
    case keys(Int)
    /// The difference of two maps of the request, the newer one first; and the set of its keys that a method returns.
    case difference(Int, Int)
    case differenceKeys(String, Int, Int)
    /// A value of this type about which nothing is known. Equal numbers are equal values.
    case opaque(String, Int)

    /// The name of the type.
    var type: String {
        switch self {
        case .null: "null"
        case .bool: "bool"
        case .int: "int"
        case .float: "float"
        case .string: "string"
        case .list, .inputList, .keys: "list"
        case .set, .differenceKeys: "set"
        case .map, .inputMap, .request, .incoming, .existing: "map"
        case .path: "path"
        case .timestamp: "timestamp"
        case .duration: "duration"
        case .difference: "map_diff"
        case .opaque(let type, _): type
        }
    }
}

/// An entry of a map literal.
struct MapField: Hashable, Sendable {
    var key: Characters
    var value: Outcome
}

/// A path: its segments, and for a path of unknown length the joined segments in its middle.
struct SymbolicPath: Hashable, Sendable {
    var front: [Term]
    /// At least one segment, with slashes between them.
    var middle: Term?
    var back: [Term] = []
}

/// The result of an expression: values with the conditions under which they are the result. At most one condition holds;
/// if none holds, the result is an error.
struct Outcome: Hashable, Sendable {
    struct Case: Hashable, Sendable {
        var guardTerm: Term
        var value: Symbol
    }

    private(set) var cases: [Case] = []

    static let failure = Outcome()

    init() {}

    init(_ cases: [Case]) { self.cases = cases }

    /// A result that is always this value.
    init(_ value: Symbol, _ terms: Terms) { cases = [Case(guardTerm: terms.yes, value: value)] }

    /// A boolean that is never an error.
    init(_ condition: Term, _ terms: Terms) {
        add(condition, .bool(true), terms)
        add(terms.not(condition), .bool(false), terms)
    }

    /// Adds a value and its condition.
    mutating func add(_ condition: Term, _ value: Symbol, _ terms: Terms) {
        guard condition != terms.no else { return }
        if let index = cases.firstIndex(where: { $0.value == value }) {
            cases[index].guardTerm = terms.or(cases[index].guardTerm, condition)
        } else {
            cases.append(Case(guardTerm: condition, value: value))
        }
    }

    /// Adds the values of another result, under one more condition.
    mutating func add(_ other: Outcome, when condition: Term, _ terms: Terms) {
        for one in other.cases { add(terms.and(condition, one.guardTerm), one.value, terms) }
    }

    /// When the result is this boolean.
    func isBool(_ value: Bool, _ terms: Terms) -> Term {
        terms.or(cases.filter { $0.value == .bool(value) }.map(\.guardTerm))
    }

    /// When the result is not an error.
    func isValue(_ terms: Terms) -> Term { terms.or(cases.map(\.guardTerm)) }

    /// The only value, if there is exactly one and never an error.
    func constant(_ terms: Terms) -> Symbol? {
        cases.count == 1 && cases[0].guardTerm == terms.yes ? cases[0].value : nil
    }
}
