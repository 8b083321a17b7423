extension Evaluator {
    mutating func matches(_ node: Int32, _ text: Text, _ pattern: Pattern) -> Datum {
        if let matches = pattern.matchesByShape(text) {
            return charge(node, cost(text.count)) ?? .bool(matches)
        }
        return charge(node, searchCost(text.count, pattern)) ?? .bool(pattern.matchesByRE2(text))
    }

    /// The cost of a search, which takes at most the text's length times the pattern's size.
    private func searchCost(_ length: Int, _ pattern: Pattern) -> Int {
        (length * pattern.size) >> 12
    }

    mutating func string(
        _ node: Int32, _ method: MethodName, _ text: Text, _ arguments: [Datum], _ first: Int32
    ) -> Datum {
        if let stop = charge(node, cost(text.count)) { return stop }
        switch method {
        case .size: return .int(Int64(text.utf16Count))
        case .lower: return .string(text.mappingASCII(UInt8(ascii: "A")...UInt8(ascii: "Z")) { $0 | 0x20 })
        case .upper: return .string(text.mappingASCII(UInt8(ascii: "a")...UInt8(ascii: "z")) { $0 & ~0x20 })
        case .trim: return .string(text.trimmed)
        case .toUtf8: return .bytes(text.bytes)
        default: break
        }
        guard case .string(let source)? = arguments.first else { return .null }
        let pattern: Pattern
        if case .pattern(let index, _, _) = program.operations[Int(first)] {
            pattern = program.patterns[Int(index)]
        } else {
            if let stop = charge(node, EvaluationLimits.computedPattern) { return stop }
            guard let computed = program.computedPatterns.pattern(source) else {
                return fail(node, "Invalid regular expression pattern. Pattern: \(source.string).")
            }
            pattern = computed
        }
        switch method {
        case .matches: return matches(node, text, pattern)
        case .split: return split(node, text, pattern)
        default:
            guard case .string(let substitute)? = arguments.last else { return .null }
            return replace(node, text, pattern, substitute)
        }
    }

    /// Calls `body` for each match from left to right, without overlap. After an empty match the search advances by one
    /// character. Each match costs 1, and each search as much as if it reached the end of the text.
    private mutating func eachMatch(
        _ node: Int32, _ text: Text, _ pattern: Pattern,
        _ body: (_ match: [Range<Int>?], _ whole: Range<Int>) -> Bool
    ) -> Datum? {
        var start = 0
        while start <= text.count {
            if let stop = charge(node, searchCost(text.count - start, pattern)) { return stop }
            guard let match = pattern.find(in: text, from: start), let whole = match[0] else {
                return nil
            }
            guard body(match, whole) else { return tooLarge(node) }
            if let stop = charge(node, 1) { return stop }
            start = whole.upperBound
            if whole.isEmpty {
                start += 1
                while start < text.count, text[start] & 0xC0 == 0x80 { start += 1 }
            }
        }
        return nil
    }

    /// Splits like Java's `String.split`: without an empty string for an empty match at the beginning, and without
    /// empty strings at the end. Text that consists only of matches gives an empty list. Text without a match gives
    /// itself.
    private mutating func split(_ node: Int32, _ text: Text, _ pattern: Pattern) -> Datum {
        var parts: [Text] = []
        var end = 0
        let stop = eachMatch(node, text, pattern) { _, whole in
            if whole.upperBound > 0, !(whole.isEmpty && whole.lowerBound == text.count) {
                parts.append(text.slice(end..<whole.lowerBound))
                end = whole.upperBound
            }
            return true
        }
        if let stop { return stop }
        if parts.isEmpty { return .list([.string(text)]) }
        parts.append(text.slice(end..<text.count))
        while let last = parts.last, last.isEmpty { parts.removeLast() }
        return .list(parts.map(Datum.string))
    }

    /// Replaces all matches. In the substitute, `$1` stands for group 1 and `\$` for a dollar sign, as in Java.
    private mutating func replace(
        _ node: Int32, _ text: Text, _ pattern: Pattern, _ substitute: Text
    ) -> Datum {
        guard let parts = Substitute(substitute.bytes, groups: pattern.groupCount) else {
            return fail(node, "Invalid replacement string: \(substitute.string).")
        }
        var result: [UInt8] = []
        var end = 0
        let stop = eachMatch(node, text, pattern) { match, whole in
            for index in end..<whole.lowerBound { result.append(text[index]) }
            parts.append(to: &result, text, match)
            end = whole.upperBound
            return result.count <= EvaluationLimits.size
        }
        if let stop { return stop }
        for index in end..<text.count { result.append(text[index]) }
        guard result.count <= EvaluationLimits.size else { return tooLarge(node) }
        return charge(node, cost(result.count)) ?? .string(Text(result))
    }
}

/// A parsed replacement string.
private struct Substitute {
    private enum Part {
        case byte(UInt8)
        case group(Int)
    }

    private var parts: [Part] = []

    /// nil if it refers to a group that the pattern does not have.
    init?(_ bytes: [UInt8], groups: Int) {
        var index = 0
        while index < bytes.count {
            let byte = bytes[index]
            index += 1
            guard byte == UInt8(ascii: "\\") || byte == UInt8(ascii: "$") else {
                parts.append(.byte(byte))
                continue
            }
            guard index < bytes.count else { return nil }
            let next = bytes[index]
            index += 1
            if byte == UInt8(ascii: "\\") {
                parts.append(.byte(next))
            } else {
                guard Lexer.isDigit(next), Int(next - UInt8(ascii: "0")) <= groups else {
                    return nil
                }
                parts.append(.group(Int(next - UInt8(ascii: "0"))))
            }
        }
    }

    /// Appends the replacement for one match, until the result exceeds the size limit.
    func append(to result: inout [UInt8], _ text: Text, _ match: [Range<Int>?]) {
        for part in parts where result.count <= EvaluationLimits.size {
            switch part {
            case .byte(let byte): result.append(byte)
            case .group(let number):
                guard let range = match[number] else { continue }
                result += text.slice(range).bytes
            }
        }
    }
}

extension Text {
    /// The text with the ASCII letters of a range changed.
    fileprivate func mappingASCII(
        _ letters: ClosedRange<UInt8>, _ change: (UInt8) -> UInt8
    ) -> Text {
        Text(bytes.map { letters.contains($0) ? change($0) : $0 })
    }

    /// The text without ASCII white space and control characters at both ends, as in Java.
    fileprivate var trimmed: Text {
        var (start, end) = (0, count)
        while start < end, self[start] <= 0x20 { start += 1 }
        while end > start, self[end - 1] <= 0x20 { end -= 1 }
        return slice(start..<end)
    }
}
