import Wire

/// A token or a comment.
struct FormatPiece {
    enum Kind {
        case token(Parser.Role)
        /// To the end of the line.
        case lineComment
        case blockComment
    }

    var kind: Kind
    var text: String
    /// The number of line breaks before it in the source.
    var breaks: Int

    var role: Parser.Role? { if case .token(let role) = kind { role } else { nil } }
}

/// A logical line, and its layout on several lines if it is too long.
struct FormatLine {
    /// The maximum line length in code points.
    static let maximumColumns = 100

    private struct Item {
        var text: String
        var hasSpace: Bool
        /// The priority of a line break before it, lowest first; nil if none is permitted.
        var order: Order?
        var isLineComment: Bool
    }

    /// Orders break positions by their nesting in brackets, then by the precedence of the operator.
    private struct Order: Comparable {
        var depth: Int
        var strength: Int

        static func < (left: Order, right: Order) -> Bool {
            (left.depth, left.strength) < (right.depth, right.strength)
        }
    }

    private var items: [Item] = []
    private let indent: Int
    private let continuation: Int
    private var depth = 0

    /// - Parameters:
    ///   - indent: The indent of the line, in steps of two spaces.
    ///   - continuation: The indent of its continuation lines.
    init(indent: Int, continuation: Int = 2) {
        self.indent = indent
        self.continuation = continuation
    }

    var isEmpty: Bool { items.isEmpty }

    var endsWithBrace: Bool { items.last?.text.hasSuffix("{") == true }

    /// Appends a piece. `last` is the role of the token before it; nil if the line must not be broken between them.
    mutating func append(_ piece: FormatPiece, hasSpace: Bool, _ last: Parser.Role?) {
        let isBracket = piece.role == .open || piece.role == .tight || piece.role == .close
        if isBracket, [")", "]", "}"].contains(piece.text) { depth -= 1 }
        var order: Order?
        if !items.isEmpty, let last, let strength = strength(piece, last) {
            // Break before a property or the first method of a chain only if there is no other position.
            let isLastResort = strength == 10 && items.last?.text != ")"
            order = Order(depth: isLastResort ? depth + 1000 : depth, strength: strength)
        }
        if isBracket, ["(", "[", "{"].contains(piece.text) { depth += 1 }
        var isLineComment = false
        if case .lineComment = piece.kind { isLineComment = true }
        items.append(
            Item(
                text: piece.text, hasSpace: hasSpace && !items.isEmpty, order: order,
                isLineComment: isLineComment))
    }

    /// How tightly a piece is bound to the one before it. Loosest first: a comma within brackets, operators by
    /// increasing precedence, method calls on the result of a call, and a comma between the methods of an allow
    /// statement.
    private func strength(_ piece: FormatPiece, _ last: Parser.Role) -> Int? {
        switch piece.role {
        case .binary:
            switch piece.text {
            case "=": return nil
            case "?", ":": return 1
            case "||": return 2
            case "&&": return 3
            case "==", "!=": return 4
            case "is": return 5
            case "in": return 6
            case "<", "<=", ">", ">=": return 7
            case "+", "-": return 8
            default: return 9
            }
        case .tight: return piece.text == "." ? 10 : nil
        case .plain, .prefix, .open, nil:
            guard last == .separator, items.last?.text == "," else { return nil }
            return depth > 0 || indent == continuation ? 0 : 11
        default: return nil
        }
    }

    /// The formatted lines, without line breaks.
    func texts() -> [String] {
        var lines: [String] = []
        layOut(items[...], &lines)
        return lines
    }

    /// Adds the lines of some items. Items that fit go on one line. Otherwise they are broken at the positions with the
    /// best priority, with as many on each line as fit.
    private func layOut(_ items: ArraySlice<Item>, _ lines: inout [String]) {
        let best = items.dropFirst().compactMap(\.order).min()
        guard let best, !fits(items, lines.isEmpty) else {
            lines.append(text(items, lines.isEmpty))
            return
        }
        var start = items.startIndex
        var end = start
        while end < items.endIndex {
            let next = items[(end + 1)...].firstIndex { $0.order == best } ?? items.endIndex
            if end > start, !fits(items[start..<next], lines.isEmpty) {
                layOut(items[start..<end], &lines)
                start = end
            }
            end = next
        }
        layOut(items[start...], &lines)
    }

    private func fits(_ items: ArraySlice<Item>, _ isFirst: Bool) -> Bool {
        var width = 2 * (isFirst ? indent : continuation)
        for (index, item) in items.enumerated() where !item.isLineComment {
            width += item.text.unicodeScalars.count + (item.hasSpace && index > 0 ? 1 : 0)
        }
        return width <= Self.maximumColumns
    }

    private func text(_ items: ArraySlice<Item>, _ isFirst: Bool) -> String {
        var text = String(repeating: "  ", count: isFirst ? indent : continuation)
        for (index, item) in items.enumerated() {
            text += (item.hasSpace && index > 0 ? " " : "") + item.text
        }
        return text
    }
}
