/// Parses a valid RE2 pattern, as `matches` applies it: to the whole text.
///
/// Lookups of Unicode properties, word boundaries, and anchors inside a pattern are not supported.
struct RegexParser {
    private indirect enum Piece {
        case regex(Regex)
        case begin, end
        case sequence([Piece])
        case alternatives([Piece])
        case repetition(Piece, least: Int, most: Int?)
    }

    /// A construct that is not supported, or not valid.
    private struct Unsupported: Error {}

    private struct Flags {
        var ignoresCase = false
        var dotMatchesLineBreak = false
    }

    private let text: [Unicode.Scalar]
    private var index = 0
    private var flags = Flags()
    private var depth = 0

    private init(_ pattern: String) { text = Array(pattern.unicodeScalars) }

    /// The expression of a pattern; nil if it has something that is not supported.
    static func parse(_ pattern: String) -> Regex? {
        var parser = RegexParser(pattern)
        guard let piece = try? parser.alternatives(), parser.index == parser.text.count,
            let regex = try? resolve(piece, isFirst: true, isLast: true), regex.isExact
        else { return nil }
        return regex
    }

    // MARK: Anchors

    /// Removes anchors at both ends, where they change nothing.
    private static func resolve(_ piece: Piece, isFirst: Bool, isLast: Bool) throws -> Regex {
        switch piece {
        case .regex(let regex): return regex
        case .begin where isFirst, .end where isLast: return .empty
        case .begin, .end: throw Unsupported()
        case .alternatives(let parts):
            return .alternatives(try parts.map { try resolve($0, isFirst: isFirst, isLast: isLast) })
        case .repetition(let part, let least, let most):
            return .repetition(try resolve(part, isFirst: false, isLast: false), least: least, most: most)
        case .sequence(let parts):
            let begin = parts.firstIndex { if case .begin = $0 { false } else { true } } ?? parts.count
            let end = parts.lastIndex { if case .end = $0 { false } else { true } } ?? -1
            return .sequence(
                try parts.enumerated().map { offset, part in
                    try resolve(part, isFirst: isFirst && offset <= begin, isLast: isLast && offset >= end)
                })
        }
    }

    // MARK: Grammar

    private var next: Unicode.Scalar? { index < text.count ? text[index] : nil }

    private mutating func skip(_ expected: String) -> Bool {
        let scalars = Array(expected.unicodeScalars)
        guard text[index...].starts(with: scalars) else { return false }
        index += scalars.count
        return true
    }

    private mutating func alternatives() throws -> Piece {
        depth += 1
        defer { depth -= 1 }
        guard depth < 100 else { throw Unsupported() }
        var choices = [try sequence()]
        while skip("|") { choices.append(try sequence()) }
        return choices.count == 1 ? choices[0] : .alternatives(choices)
    }

    private mutating func sequence() throws -> Piece {
        var parts: [Piece] = []
        while let scalar = next, scalar != "|", scalar != ")" {
            guard let atom = try atom() else { continue }
            parts.append(try repeated(atom))
        }
        return .sequence(parts)
    }

    private mutating func repeated(_ atom: Piece) throws -> Piece {
        var piece = atom
        while let (least, most) = try quantifier() {
            // Greedy or not, the language is the same.
            _ = skip("?")
            piece = .repetition(piece, least: least, most: most)
        }
        return piece
    }

    private mutating func quantifier() throws -> (Int, Int?)? {
        if skip("*") { return (0, nil) }
        if skip("+") { return (1, nil) }
        if skip("?") { return (0, 1) }
        let start = index
        guard skip("{"), let least = number() else {
            index = start
            return nil
        }
        var most: Int? = least
        if skip(",") { most = number() }
        guard skip("}") else {
            index = start
            return nil
        }
        guard least <= 1000, (most ?? 0) <= 1000 else { throw Unsupported() }
        return (least, most)
    }

    private mutating func number() -> Int? {
        var digits = ""
        while let scalar = next, ("0"..."9").contains(scalar), digits.utf8.count < 6 {
            digits.unicodeScalars.append(scalar)
            index += 1
        }
        return Int(digits)
    }

    /// An atom; nil for a setting of flags.
    private mutating func atom() throws -> Piece? {
        guard let scalar = next else { throw Unsupported() }
        index += 1
        switch scalar {
        case "^": return .begin
        case "$": return .end
        case ".":
            return .regex(.set(flags.dotMatchesLineBreak ? .all : CharacterSet([0x0A...0x0A]).inverted))
        case "(": return try group()
        case "[": return .regex(.set(try bracket()))
        case "\\":
            if skip("A") { return .begin }
            if skip("z") { return .end }
            return .regex(.set(try folded(escape())))
        case "*", "+", "?": throw Unsupported()
        default: return .regex(.set(try folded(CharacterSet([scalar.value...scalar.value]))))
        }
    }

    private mutating func group() throws -> Piece? {
        let outer = flags
        if skip("?P<") || skip("?<") {
            while let scalar = next, scalar != ">" { index += scalar == "=" || scalar == "!" ? text.count : 1 }
            guard skip(">") else { throw Unsupported() }
        } else if skip("?") {
            var value = true
            loop: while true {
                guard let scalar = next else { throw Unsupported() }
                index += 1
                switch scalar {
                case "i": flags.ignoresCase = value
                case "s": flags.dotMatchesLineBreak = value
                case "-": value = false
                case ":": break loop
                case ")":
                    // RE2 repeats what is before the flags.
                    guard try quantifier() == nil else { throw Unsupported() }
                    return nil
                default: throw Unsupported()
                }
            }
        }
        let piece = try alternatives()
        guard skip(")") else { throw Unsupported() }
        flags = outer
        return piece
    }

    // MARK: Sets

    private static let digits = CharacterSet([0x30...0x39])
    private static let spaces = CharacterSet([0x09...0x0A, 0x0C...0x0D, 0x20...0x20])
    private static let words = CharacterSet([0x30...0x39, 0x41...0x5A, 0x5F...0x5F, 0x61...0x7A])

    /// The set of an escape, after its backslash.
    private mutating func escape() throws -> CharacterSet {
        guard let scalar = next else { throw Unsupported() }
        index += 1
        switch scalar {
        case "d": return Self.digits
        case "s": return Self.spaces
        case "D" where !flags.ignoresCase: return Self.digits.inverted
        case "S" where !flags.ignoresCase: return Self.spaces.inverted
        case "w" where !flags.ignoresCase: return Self.words
        case "W" where !flags.ignoresCase: return Self.words.inverted
        case "n": return CharacterSet([0x0A...0x0A])
        case "t": return CharacterSet([0x09...0x09])
        case "r": return CharacterSet([0x0D...0x0D])
        case "f": return CharacterSet([0x0C...0x0C])
        case "v": return CharacterSet([0x0B...0x0B])
        case "a": return CharacterSet([0x07...0x07])
        case "x":
            let isLong = skip("{")
            var digits = ""
            while let scalar = next, digits.utf8.count < (isLong ? 6 : 2), scalar.properties.isASCIIHexDigit {
                digits.unicodeScalars.append(scalar)
                index += 1
            }
            guard let value = UInt32(digits, radix: 16), isLong ? skip("}") : digits.utf8.count == 2 else {
                throw Unsupported()
            }
            return CharacterSet([value...value])
        default:
            // Letters and digits have a meaning, or none that is valid.
            guard scalar.isASCII, !scalar.properties.isAlphabetic, !("0"..."9").contains(scalar) else {
                throw Unsupported()
            }
            return CharacterSet([scalar.value...scalar.value])
        }
    }

    private mutating func bracket() throws -> CharacterSet {
        let isInverted = skip("^")
        var set = CharacterSet([])
        var isStart = true
        while isStart || next != "]" {
            isStart = false
            let first = try member()
            guard skip("-") else {
                set = set.union(first)
                continue
            }
            if next == "]" {
                set = set.union(first).union(CharacterSet([0x2D...0x2D]))
                break
            }
            let last = try member()
            guard let low = first.only, let high = last.only, low <= high else { throw Unsupported() }
            set = set.union(CharacterSet([low...high]))
        }
        guard skip("]") else { throw Unsupported() }
        set = try folded(set)
        // As in RE2's default, an inverted set contains the line break.
        return isInverted ? set.inverted : set
    }

    private mutating func member() throws -> CharacterSet {
        if skip("[:") {
            for (name, ranges) in Self.classes where skip("\(name):]") { return CharacterSet(ranges) }
            throw Unsupported()
        }
        guard let scalar = next else { throw Unsupported() }
        index += 1
        return scalar == "\\" ? try escape() : CharacterSet([scalar.value...scalar.value])
    }

    private static let classes: [(String, [ClosedRange<UInt32>])] = [
        ("alnum", [0x30...0x39, 0x41...0x5A, 0x61...0x7A]), ("alpha", [0x41...0x5A, 0x61...0x7A]),
        ("digit", [0x30...0x39]), ("lower", [0x61...0x7A]), ("upper", [0x41...0x5A]),
        ("space", [0x09...0x0D, 0x20...0x20]), ("word", words.ranges),
        ("xdigit", [0x30...0x39, 0x41...0x46, 0x61...0x66]),
    ]

    /// The set with both cases of its letters, if case is ignored. Two characters outside ASCII fold to a letter in it.
    private func folded(_ set: CharacterSet) throws -> CharacterSet {
        guard flags.ignoresCase else { return set }
        guard (set.ranges.last?.upperBound ?? 0) < 0x80 else { throw Unsupported() }
        var result = set
        for letter in UInt32(0x41)...0x5A where set.contains(letter) || set.contains(letter + 32) {
            result = result.union(CharacterSet([letter...letter, letter + 32...letter + 32]))
            if letter == 0x4B { result = result.union(CharacterSet([0x212A...0x212A])) }
            if letter == 0x53 { result = result.union(CharacterSet([0x017F...0x017F])) }
        }
        return result
    }
}

extension CharacterSet {
    /// The single member; nil if there is not exactly one.
    fileprivate var only: UInt32? {
        guard ranges.count == 1, ranges[0].count == 1 else { return nil }
        return ranges[0].lowerBound
    }
}
