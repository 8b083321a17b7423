/// Records every step of an evaluation as a tree.
struct StepRecorder: Recorder {
    static var isRecording: Bool { true }

    /// A node that was evaluated.
    struct Entry {
        var node: Int32
        var value: Datum = .null
        /// The value, as text.
        var text = ""
        /// Why it failed.
        var message: String?
        var parts: [Entry] = []
    }

    private let program: Program
    private var open: [Entry] = []
    /// The conditions that were evaluated, in order.
    private(set) var finished: [Entry] = []
    private var messages: [Int32: String] = [:]

    init(_ program: Program) { self.program = program }

    mutating func enter(_ node: Int32) { open.append(Entry(node: node)) }

    mutating func failed(_ node: Int32, _ message: String) { messages[node] = message }

    mutating func leave(_ node: Int32, _ value: Datum, _ context: Context) {
        guard var entry = open.popLast() else { return }
        entry.value = value
        if case .failure(let failure) = value {
            entry.message = messages[failure.node].map { locate($0, failure.node) }
        } else {
            entry.text = ValueText.describe(value, context)
        }
        entry.parts.sort { program.spans[Int($0.node)].start < program.spans[Int($1.node)].start }
        if open.isEmpty {
            finished.append(entry)
        } else {
            open[open.count - 1].parts.append(entry)
        }
    }

    /// The text of an error as the hosted service gives it.
    private func locate(_ message: String, _ node: Int32) -> String {
        let position = program.source.position(program.spans[Int(node)].start)
        return
            "Error: \(program.source.fileName) line [\(position.line)], column [\(position.column)]. \(message)"
    }
}

extension StepRecorder.Entry {
    func step(_ program: Program, _ documents: [Text]) -> Explanation.Step {
        let span = program.source.balanced(program.spans[Int(node)])
        let outcome: Explanation.Outcome
        switch value {
        case .failure: outcome = .error(message ?? "")
        case .unknown(let unknown): outcome = .unknown(Needs(unknown.bits, documents: documents))
        default: outcome = .value(text)
        }
        return Explanation.Step(
            kind: Explanation.Step.Kind(program.operations[Int(node)]),
            text: Self.line(program.source.text(span)), range: program.source.range(span),
            outcome: outcome,
            parts: parts.map { $0.step(program, documents) })
    }
}

extension Explanation.Step.Kind {
    init(_ operation: Operation) {
        switch operation {
        case .constant, .folded, .pattern: self = .literal
        case .call(.firestoreGet, _), .call(.firestoreExists, _): self = .lookUp
        case .call, .method, .userCall, .undefinedCall, .miscountedCall: self = .call
        default: self = .other
        }
    }
}

extension SourceText {
    /// A span with the parentheses that it lacks at its ends: those around an operand are no part of the operand.
    func balanced(_ span: Span32) -> Span32 {
        var lexer = Lexer(self)
        lexer.position = Int(span.start)
        var (open, missing) = (0, 0)
        while case let token = lexer.next(), token.kind != .end, token.span.start < span.end {
            switch text(token.span) {
            case "(": open += 1
            case ")" where open > 0: open -= 1
            case ")": missing += 1
            default: break
            }
        }
        var start = Int(span.start)
        while missing > 0, let next = bytes[..<start].lastIndex(where: { $0 > 0x20 }),
            bytes[next] == UInt8(ascii: "(")
        {
            (start, missing) = (next, missing - 1)
        }
        lexer.position = Int(span.end)
        var end = lexer.position
        while open > 0, case let token = lexer.next(), text(token.span) == ")" {
            (end, open) = (lexer.position, open - 1)
        }
        return Span32(start, end)
    }
}

extension StepRecorder.Entry {
    /// Text of the source in one line, cut where it is long.
    private static func line(_ source: String) -> String {
        let words = source.prefix(4 * ValueText.maximumLength).split { $0.isWhitespace }
        let line = words.joined(separator: " ")
        return line.count <= ValueText.maximumLength
            ? line : line.prefix(ValueText.maximumLength - 1) + "…"
    }
}

/// Values as the language would write them, cut where they are long.
enum ValueText {
    static let maximumLength = 256

    static func describe(_ value: Datum, _ context: Context) -> String {
        let text = full(value, context, depth: 0)
        return text.count <= maximumLength ? text : text.prefix(maximumLength - 1) + "…"
    }

    private static func full(_ value: Datum, _ context: Context, depth: Int) -> String {
        guard depth < 8 else { return "…" }
        switch value {
        case .null: return "null"
        case .bool(let value): return value ? "true" : "false"
        case .int(let value): return String(value)
        case .float(let value): return value.isNaN ? "NaN" : "\(value)"
        case .string(let text): return quoted(text)
        case .bytes(let bytes):
            let digits = ByteText.hexadecimal(Array(bytes.prefix(maximumLength)))
            return "b'"
                + stride(from: 0, to: digits.count, by: 2).map {
                    "\\x" + String(decoding: digits[$0..<$0 + 2], as: UTF8.self)
                }.joined() + "'"
        case .list(let elements): return "[\(joined(elements, context, depth))]"
        case .set(let elements): return "[\(joined(elements, context, depth))].toSet()"
        case .map(let entries):
            let inner = entries.prefix(maximumLength).map {
                "\(quoted($0.key)): \(full($0.value, context, depth: depth + 1))"
            }
            return "{\(inner.joined(separator: ", "))}"
        case .mapDiff(let diff):
            let changes = diff.added + diff.removed + diff.changed
            return "map_diff([\(joined(changes, context, depth))])"
        case .path, .requestPath:
            return context.segments(of: value).map { "/" + $0.text.string }.joined()
        case .timestamp(let moment): return "timestamp(\(moment))"
        case .duration(let span): return "duration(\(span))"
        case .latlng(let latitude, let longitude): return "latlng(\(latitude), \(longitude))"
        case .record(.request): return "request"
        case .record(.incoming), .record(.existing):
            return full(context.whole(value), context, depth: depth)
        case .unknown: return "unknown"
        case .failure: return "error"
        }
    }

    private static func joined(_ elements: [Datum], _ context: Context, _ depth: Int) -> String {
        elements.prefix(maximumLength).map { full($0, context, depth: depth + 1) }
            .joined(separator: ", ")
    }

    private static func quoted(_ text: Text) -> String {
        var result = "'"
        for scalar in text.string.unicodeScalars.prefix(maximumLength) {
            switch scalar {
            case "'": result += "\\'"
            case "\\": result += "\\\\"
            case "\n": result += "\\n"
            case "\r": result += "\\r"
            case "\t": result += "\\t"
            default: result.unicodeScalars.append(scalar)
            }
        }
        return result + "'"
    }
}
