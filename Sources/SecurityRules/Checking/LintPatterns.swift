import Wire

/// Patterns of `matches` for email addresses. `matches` must match the whole text.
extension Lints {
    mutating func checkPatterns() {
        for node in code.operations.indices {
            guard case .method(let name, let list) = code.operations[node], code.names[Int(name)] == "matches",
                list.count == 2, let argument = operands(list).last, let pattern = string(argument)
            else { continue }
            let receiver = operands(list).first.map { subjects[Int($0)] }
            let isEmail = receiver == .claim("email") || receiver == .claimOrDefault("email")
            check(PatternReader(pattern), isEmail: isEmail, at: argument)
        }
    }

    private mutating func check(_ pattern: PatternReader, isEmail: Bool, at node: Int32) {
        guard isEmail || pattern.domain != nil else { return }
        if isEmail, pattern.startsAtDomain {
            return warn(
                "matches() must match the whole address, so a pattern that begins with '@' never does.", at: node,
                hint: "begin with '.*@'")
        }
        if let label = pattern.unescapedDot(afterAt: !isEmail) {
            let (before, after) = label
            return warn(
                "The dot in \(quoted(before + Text(".") + after)) matches any character.", at: node,
                hint: "write [.] for a dot: \(before.string)[.]\(after.string)")
        }
        if let end = pattern.openEnd {
            warn(
                "The pattern also matches longer domains, such as \(quoted(end.domain + Text(".example.org"))).",
                at: node, hint: "end the pattern after the domain, without '\(end.tail)'")
        }
    }
}

/// Reads a regular expression as far as addresses need it.
private struct PatternReader {
    private enum Part: Equatable {
        /// A character that stands for itself.
        case literal(UInt8)
        /// `.` without a quantifier
        case dot
        /// `.*` or `.+`
        case anything(UInt8)
        /// A class, a group, an alternative, an escape or a quantifier.
        case other
    }

    private let parts: [Part]
    private let hasAlternatives: Bool

    init(_ pattern: Text) {
        let bytes = pattern.bytes
        var parts: [Part] = []
        var hasAlternatives = false
        var index = 0
        while index < bytes.count {
            let byte = bytes[index]
            let next = index + 1 < bytes.count ? bytes[index + 1] : 0
            index += 1
            switch byte {
            case UInt8(ascii: "\\"):
                index += 1
                let isWord = Lexer.isWordPart(next)
                parts.append(isWord ? .other : .literal(next))
            case UInt8(ascii: "["):
                let (part, end) = Self.characterClass(bytes, from: index)
                parts.append(part)
                index = end
            case UInt8(ascii: "."):
                if "*+".utf8.contains(next) {
                    parts.append(.anything(next))
                    index += 1
                } else {
                    parts.append("?{".utf8.contains(next) ? .other : .dot)
                }
            case UInt8(ascii: "|"):
                hasAlternatives = true
                parts.append(.other)
            case UInt8(ascii: "^"), UInt8(ascii: "$"): continue
            case _ where "()*+?{}".utf8.contains(byte): parts.append(.other)
            default: parts.append(.literal(byte))
            }
        }
        self.parts = parts
        self.hasAlternatives = hasAlternatives
    }

    /// A class, and the index after it. `[.]` is a dot.
    private static func characterClass(_ bytes: [UInt8], from start: Int) -> (Part, Int) {
        var index = start
        if index < bytes.count, bytes[index] == UInt8(ascii: "^") { index += 1 }
        // A bracket at the start stands for itself.
        if index < bytes.count, bytes[index] == UInt8(ascii: "]") { index += 1 }
        while index < bytes.count, bytes[index] != UInt8(ascii: "]") {
            index += bytes[index] == UInt8(ascii: "\\") ? 2 : 1
        }
        let isLiteral = index == start + 1 && bytes[start] != UInt8(ascii: "^")
        return (isLiteral ? .literal(bytes[start]) : .other, index + 1)
    }

    private static func isLabel(_ part: Part) -> Bool {
        guard case .literal(let byte) = part else { return false }
        return Lexer.isWordPart(byte) || byte == UInt8(ascii: "-")
    }

    /// The index of the last `@`.
    private var at: Int? { parts.lastIndex(of: .literal(UInt8(ascii: "@"))) }

    /// The index after the last `@`, if a letter follows it.
    var domain: Int? {
        guard let at, at + 1 < parts.count, Self.isLabel(parts[at + 1]) else { return nil }
        return at + 1
    }

    var startsAtDomain: Bool { parts.first == .literal(UInt8(ascii: "@")) && !hasAlternatives }

    /// The labels around the first dot that is not escaped, after the first `@` or anywhere.
    func unescapedDot(afterAt: Bool) -> (Text, Text)? {
        let first = afterAt ? parts.firstIndex(of: .literal(UInt8(ascii: "@"))) ?? parts.count : 0
        for index in parts.indices where index > first && parts[index] == .dot && index + 1 < parts.count {
            guard Self.isLabel(parts[index - 1]), Self.isLabel(parts[index + 1]) else { continue }
            let before = parts[..<index].reversed().prefix(while: Self.isLabel).reversed()
            let after = parts[(index + 1)...].prefix(while: Self.isLabel)
            return (Self.text(Array(before)), Self.text(Array(after)))
        }
        return nil
    }

    /// The domain at the end and what follows it, if that is `.*` or `.+`.
    var openEnd: (domain: Text, tail: String)? {
        guard !hasAlternatives, let domain, case .anything(let quantifier)? = parts.last else { return nil }
        let name = parts[domain..<(parts.count - 1)]
        let dot = Part.literal(UInt8(ascii: "."))
        // The domain must be fixed and have a top-level domain.
        guard name.contains(dot), name.last != dot, name.allSatisfy({ Self.isLabel($0) || $0 == dot }) else {
            return nil
        }
        return (Self.text(Array(name)), ".\(String(UnicodeScalar(quantifier)))")
    }

    private static func text(_ parts: [Part]) -> Text {
        Text(
            parts.compactMap { part in
                if case .literal(let byte) = part { return byte }
                return nil
            })
    }
}
