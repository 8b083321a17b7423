/// Decides whether everything that one regular expression matches is matched by another, or never is.
///
/// It follows both through their partial derivatives (Antimirov, 1996) for one character of each class that they distinguish.
/// The solver gets the result as a fact: its own search for such a proof often does not end.
struct RegexComparison {
    /// The limits of states and of the work on them. Beyond them nothing is known.
    private static let maximumStates = 600
    private static let maximumWork = 60_000

    /// Whether each text that the first matches is matched by the second; whether no text is matched by both.
    private(set) var isIncluded = true
    private(set) var isDisjoint = true

    private typealias State = Set<Regex>
    private var work = 0

    /// nil if the limits do not suffice.
    init?(_ a: Regex, _ b: Regex) {
        var boundaries: Set<UInt32> = [0]
        a.addBoundaries(&boundaries)
        b.addBoundaries(&boundaries)
        // Characters between two boundaries are in the same sets.
        let characters = boundaries.filter { $0 <= CharacterSet.last }.sorted()
        var seen: Set<[State]> = [[[a], [b]]]
        var open: [[State]] = [[[a], [b]]]
        while let pair = open.popLast() {
            let (inFirst, inSecond) = (pair[0].contains(where: \.isNullable), pair[1].contains(where: \.isNullable))
            if inFirst { if inSecond { isDisjoint = false } else { isIncluded = false } }
            if !isDisjoint, !isIncluded { return }
            for character in characters {
                let next = pair.map { derivative($0, character) }
                guard !next[0].isEmpty, seen.insert(next).inserted else { continue }
                guard seen.count <= Self.maximumStates, work <= Self.maximumWork else { return nil }
                open.append(next)
            }
        }
    }

    private mutating func derivative(_ state: State, _ character: UInt32) -> State {
        work += state.count
        var next: State = []
        for regex in state { regex.addDerivatives(character, followedBy: [], &next) }
        return next
    }
}

/// Comparisons that have been made.
final class RegexComparisons {
    private var made: [[Regex]: RegexComparison?] = [:]

    /// The comparison of two expressions; nil if it is too large.
    func compare(_ a: Regex, _ b: Regex) -> RegexComparison? {
        if let known = made[[a, b]] { return known }
        let comparison = RegexComparison(a, b)
        made[[a, b]] = .some(comparison)
        return comparison
    }
}

extension Regex {
    /// The first characters of all ranges and of the gaps between them.
    fileprivate func addBoundaries(_ boundaries: inout Set<UInt32>) {
        switch self {
        case .set(let set):
            for range in set.ranges {
                boundaries.insert(range.lowerBound)
                boundaries.insert(range.upperBound + 1)
            }
        case .sequence(let parts), .alternatives(let parts): for part in parts { part.addBoundaries(&boundaries) }
        case .repetition(let part, _, _): part.addBoundaries(&boundaries)
        case .everything: break
        }
    }

    /// Whether it matches the empty text.
    fileprivate var isNullable: Bool {
        switch self {
        case .set: false
        case .sequence(let parts): parts.allSatisfy(\.isNullable)
        case .alternatives(let parts): parts.contains(where: \.isNullable)
        case .repetition(let part, let least, _): least == 0 || part.isNullable
        case .everything: true
        }
    }

    /// Adds what may follow a character: expressions, each of which ends with `rest`.
    fileprivate func addDerivatives(_ character: UInt32, followedBy rest: [Regex], _ result: inout Set<Regex>) {
        switch self {
        case .set(let set):
            guard set.contains(character) else { return }
            result.insert(rest.count == 1 ? rest[0] : .sequence(rest))
        case .everything: result.insert(.sequence([.everything] + rest))
        case .alternatives(let parts):
            for part in parts { part.addDerivatives(character, followedBy: rest, &result) }
        case .sequence(let parts):
            for (index, part) in parts.enumerated() {
                part.addDerivatives(character, followedBy: parts[(index + 1)...] + rest, &result)
                if !part.isNullable { return }
            }
        case .repetition(let part, let least, let most):
            if let most, most == 0 || most < least { return }
            let again = Regex.repetition(part, least: max(0, least - 1), most: most.map { $0 - 1 })
            part.addDerivatives(character, followedBy: most == 1 ? rest : [again] + rest, &result)
        }
    }
}
