import Wire

/// Records every step of an evaluation as a tree.
struct StepRecorder: Recorder {
    static var isRecording: Bool { true }

    /// A node that was evaluated.
    struct Entry {
        var node: Int32
        var value: Datum = .null
        /// The value as text.
        var text = ""
        /// The error message, if the node failed.
        var message: String?
        /// The byte offset at which the error is reported.
        var position: Int32 = 0
        var parts: [Entry] = []
    }

    private let program: Program
    private var open: [Entry] = []
    /// The evaluated conditions, in order.
    private(set) var finished: [Entry] = []
    private var messages: [Int32: (text: String, position: Int32)] = [:]

    init(_ program: Program) { self.program = program }

    mutating func enter(_ node: Int32) { open.append(Entry(node: node)) }

    mutating func failed(_ node: Int32, _ message: String, atStart: Bool) {
        // A message can contain a value of any length.
        let limit = 4 * ValueText.maximumLength
        let text =
            message.utf8.count <= limit
            ? message : String(message.unicodeScalars.prefix(limit - 1)) + "…"
        let position = atStart ? program.spans[Int(node)].start : program.marks[Int(node)]
        messages[node] = (text, position)
    }

    mutating func leave(_ node: Int32, _ value: Datum, _ context: Context) {
        guard var entry = open.popLast() else { return }
        entry.value = value
        if case .failure(let failure) = value {
            entry.message = messages[failure.node].map { locate($0.text, $0.position) }
            entry.position = messages[failure.node]?.position ?? 0
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

    /// The text of an error in the hosted service's format.
    private func locate(_ message: String, _ position: Int32) -> String {
        let position = program.source.position(position)
        return "Error: \(program.source.fileName) line [\(position.line)], column [\(position.column)]. \(message)"
    }
}

extension StepRecorder.Entry {
    func step(_ program: Program, _ documents: [DocumentPath]) -> Explanation.Step {
        let span = program.balancedSpan(of: node)
        let outcome: Explanation.Outcome
        switch value {
        case .failure: outcome = .error(message ?? "")
        case .unknown(let unknown): outcome = .unknown(Needs(unknown.bits, documents: documents))
        default: outcome = .value(text)
        }
        return Explanation.Step(
            kind: Explanation.Step.Kind(program.operations[Int(node)]),
            text: Self.line(program.source.text(span.prefix(8 * ValueText.maximumLength))),
            range: program.source.range(span),
            outcome: outcome,
            errorPosition: message.map { _ in program.source.position(position) },
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

extension StepRecorder.Entry {
    /// The source text on one line, truncated if it is long.
    private static func line(_ source: String) -> String {
        let words = source.split { $0.isWhitespace }
        let line = words.joined(separator: " ")
        return line.count <= ValueText.maximumLength ? line : line.prefix(ValueText.maximumLength - 1) + "…"
    }
}
