/// A set of code points, as sorted ranges.
struct CharacterSet: Hashable, Sendable {
    private(set) var ranges: [ClosedRange<UInt32>]

    /// The last code point, and the last one that Z3 has.
    static let last: UInt32 = 0x10FFFF
    static let lastOfSolver: UInt32 = 0x2FFFF
    static let all = CharacterSet([0...last])

    init(_ ranges: [ClosedRange<UInt32>]) {
        var merged: [ClosedRange<UInt32>] = []
        for range in ranges.sorted(by: { $0.lowerBound < $1.lowerBound }) {
            if let last = merged.last, range.lowerBound <= last.upperBound + 1 {
                merged[merged.count - 1] = last.lowerBound...max(last.upperBound, range.upperBound)
            } else {
                merged.append(range)
            }
        }
        self.ranges = merged
    }

    func contains(_ scalar: UInt32) -> Bool { ranges.contains { $0.contains(scalar) } }

    func union(_ other: CharacterSet) -> CharacterSet { CharacterSet(ranges + other.ranges) }

    var inverted: CharacterSet {
        var next: UInt32 = 0
        var gaps: [ClosedRange<UInt32>] = []
        for range in ranges {
            if range.lowerBound > next { gaps.append(next...range.lowerBound - 1) }
            next = range.upperBound + 1
        }
        if next <= Self.last { gaps.append(next...Self.last) }
        return CharacterSet(gaps)
    }

    /// Whether Z3's characters can stand for all others: the characters beyond U+FFFF are all in the set or all outside.
    var treatsAstralAlike: Bool {
        ranges.allSatisfy { $0.upperBound <= 0xFFFF || ($0.upperBound == Self.last && $0.lowerBound <= 0x10000) }
    }
}

/// A regular expression over code points, without groups and anchors.
indirect enum Regex: Hashable, Sendable {
    /// One character of a set. The empty set matches nothing.
    case set(CharacterSet)
    case sequence([Regex])
    case alternatives([Regex])
    /// Repetitions, without an upper limit if `most` is nil.
    case repetition(Regex, least: Int, most: Int?)
    /// All strings.
    case everything

    static let nothing = Regex.set(CharacterSet([]))
    static let empty = Regex.sequence([])

    static func literal(_ text: Characters) -> Regex {
        .sequence(text.scalars.map { .set(CharacterSet([$0...$0])) })
    }

    /// Whether Z3 can decide it.
    var isExact: Bool {
        switch self {
        case .set(let set): set.treatsAstralAlike
        case .sequence(let parts), .alternatives(let parts): parts.allSatisfy(\.isExact)
        case .repetition(let part, _, _): part.isExact
        case .everything: true
        }
    }

    /// The expression that matches a text exactly if this one matches the text with its letters changed.
    func before(_ letterCase: LetterCase) -> Regex {
        switch self {
        case .set(let set):
            var changed = CharacterSet(set.inverted.union(letterCase.source).inverted.ranges)
            let shift: (UInt32) -> UInt32 = { letterCase == .lower ? $0 - 32 : $0 + 32 }
            for letter in letterCase.target.ranges[0] where set.contains(letter) {
                changed = changed.union(CharacterSet([shift(letter)...shift(letter)]))
            }
            return .set(changed)
        case .sequence(let parts): return .sequence(parts.map { $0.before(letterCase) })
        case .alternatives(let parts): return .alternatives(parts.map { $0.before(letterCase) })
        case .repetition(let part, let least, let most):
            return .repetition(part.before(letterCase), least: least, most: most)
        case .everything: return self
        }
    }
}

extension LetterCase {
    /// The letters that it changes, and what they become.
    fileprivate var source: CharacterSet { CharacterSet([self == .lower ? 0x41...0x5A : 0x61...0x7A]) }
    fileprivate var target: CharacterSet { CharacterSet([self == .lower ? 0x61...0x7A : 0x41...0x5A]) }
}

// MARK: - Matching

extension Regex {
    /// Whether it matches a whole text. For short texts: the time may grow with the square of the length.
    func matches(_ text: [UInt32]) -> Bool { ends(text, from: [0]).contains(text.count) }

    /// The offsets at which a match that starts at one of `starts` may end.
    private func ends(_ text: [UInt32], from starts: Set<Int>) -> Set<Int> {
        if starts.isEmpty { return [] }
        switch self {
        case .set(let set): return Set(starts.filter { $0 < text.count && set.contains(text[$0]) }.map { $0 + 1 })
        case .sequence(let parts): return parts.reduce(starts) { $1.ends(text, from: $0) }
        case .alternatives(let parts): return parts.reduce(into: []) { $0.formUnion($1.ends(text, from: starts)) }
        case .everything: return Set((starts.min() ?? 0)...text.count)
        case .repetition(let part, let least, let most):
            var current = starts
            for _ in 0..<least { current = part.ends(text, from: current) }
            var (all, count) = (current, least)
            while !current.isEmpty, most.map({ count < $0 }) ?? true {
                current = part.ends(text, from: current).subtracting(all)
                all.formUnion(current)
                count += 1
            }
            return all
        }
    }
}
