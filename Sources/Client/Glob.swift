import Wire

/// A pattern of names: `*` and `?` within a segment, `[a-z]`, `**` across segments; a backslash escapes.
struct Glob {
    /// The characters that have a meaning in patterns, and the backslash.
    static let special = Array("*?[]\\".utf8)

    private enum Element {
        case character(Unicode.Scalar)
        case any
        case run
        case anything
        case oneOf([ClosedRange<Unicode.Scalar>], isNegated: Bool)
    }

    /// The folder that holds everything that the pattern matches.
    private(set) var folder = ""
    /// Whether names in folders below may match.
    private(set) var isRecursive = false
    private var elements: [Element] = []

    /// nil if the text is no pattern.
    init?(_ text: String) {
        let scalars = Array(text.unicodeScalars)
        var index = 0
        var literal = ""
        var folderEnd = 0
        while index < scalars.count {
            switch scalars[index] {
            case "\\" where Glob.isSpecial(scalars, index + 1):
                index += 1
                elements.append(.character(scalars[index]))
            case "*" where index + 1 < scalars.count && scalars[index + 1] == "*":
                index += 1
                elements.append(.anything)
            case "*": elements.append(.run)
            case "?": elements.append(.any)
            case "[": index = set(scalars, index)
            case let other: elements.append(.character(other))
            }
            index += 1
        }
        let first = elements.firstIndex {
            if case .character = $0 { false } else { true }
        }
        guard let first else { return nil }
        for (position, element) in elements[..<first].enumerated() {
            guard case .character(let scalar) = element else { break }
            literal.unicodeScalars.append(scalar)
            if scalar == "/" { folderEnd = position }
        }
        folder = String(String.UnicodeScalarView(literal.unicodeScalars.prefix(folderEnd)))
        isRecursive = elements[first...].contains {
            switch $0 {
            case .anything, .character("/"): true
            default: false
            }
        }
    }

    private static func isSpecial(_ scalars: [Unicode.Scalar], _ index: Int) -> Bool {
        index < scalars.count && scalars[index].isASCII && special.contains(UInt8(scalars[index].value))
    }

    /// The text of a path that is no pattern, without its backslashes before special characters.
    static func unescaped(_ text: String) -> String {
        guard text.utf8.contains(UInt8(ascii: "\\")) else { return text }
        let scalars = Array(text.unicodeScalars)
        var result = ""
        var index = 0
        while index < scalars.count {
            if scalars[index] == "\\", isSpecial(scalars, index + 1) { index += 1 }
            result.unicodeScalars.append(scalars[index])
            index += 1
        }
        return result
    }

    /// Adds `[a-z]` or `[!a-z]`; without its end it is a bracket.
    /// - Returns: The index of its last character.
    private mutating func set(_ scalars: [Unicode.Scalar], _ start: Int) -> Int {
        var index = start + 1
        let isNegated = index < scalars.count && (scalars[index] == "!" || scalars[index] == "^")
        if isNegated { index += 1 }
        var ranges: [ClosedRange<Unicode.Scalar>] = []
        while index < scalars.count, scalars[index] != "]" || ranges.isEmpty {
            if index + 2 < scalars.count, scalars[index + 1] == "-", scalars[index + 2] != "]",
                scalars[index] <= scalars[index + 2]
            {
                ranges.append(scalars[index]...scalars[index + 2])
                index += 3
            } else {
                ranges.append(scalars[index]...scalars[index])
                index += 1
            }
        }
        guard index < scalars.count else {
            elements.append(.character("["))
            return start
        }
        elements.append(.oneOf(ranges, isNegated: isNegated))
        return index
    }

    /// Whether a path matches.
    func matches(_ path: String) -> Bool {
        let path = Array(path.unicodeScalars)
        // The positions that the elements so far can reach: no backtracking.
        var reached = [Bool](repeating: false, count: path.count + 1)
        reached[0] = true
        for element in elements {
            var next = [Bool](repeating: false, count: path.count + 1)
            for position in 0...path.count where reached[position] {
                switch element {
                case .run, .anything:
                    var end = position
                    next[end] = true
                    while end < path.count {
                        if case .run = element, path[end] == "/" { break }
                        end += 1
                        if next[end] { break }
                        next[end] = true
                    }
                default:
                    if position < path.count, Glob.matches(element, path[position]) {
                        next[position + 1] = true
                    }
                }
            }
            reached = next
        }
        return reached[path.count]
    }

    private static func matches(_ element: Element, _ scalar: Unicode.Scalar) -> Bool {
        switch element {
        case .character(let expected): scalar == expected
        case .oneOf(let ranges, let isNegated): scalar != "/" && ranges.contains { $0.contains(scalar) } != isNegated
        case .any: scalar != "/"
        case .run, .anything: false
        }
    }
}
