import SecurityRules
import Wire

/// The result of a test case.
package struct TestResult: Sendable {
    /// The case.
    package let testCase: TestCase
    /// Its request, with the documents that were looked up.
    package let request: Request
    /// The decision, from the same function that the gateway uses.
    package let decision: Decision
    /// The explanation of the decision.
    package let explanation: Explanation
    /// Messages about the run, then the evaluation errors.
    package let messages: [String]
    /// Why the case failed; nil if it passed.
    package let failure: String?

    /// Whether the case passed.
    package var passed: Bool { failure == nil }
}

extension TestCase {
    /// Evaluates the request as the gateway would, with the documents of the case.
    package func run(_ rules: Ruleset) -> TestResult {
        var request = request
        var messages = notes
        var explanation = rules.explain(request).withoutLiterals
        var known: Set<DocumentPath> = []
        // Look up all documents, even those that do not change the decision, so that the explanation shows them.
        while true {
            let waiting = explanation.missingDocuments.filter { !known.contains($0.key) }
            if waiting.isEmpty { break }
            known.formUnion(waiting.keys)
            for (path, functions) in waiting.sorted(by: { $0.key.description < $1.key.description }) {
                let lookup = documents.lookup(path, by: functions)
                if lookup == nil {
                    messages.append("The case says nothing of the document \(path): looking for it fails.")
                }
                request.setDocument(path, lookup ?? .failed)
            }
            explanation = rules.explain(request).withoutLiterals
        }
        messages += explanation.errors.map(\.message)
        let decision = rules.decide(request)
        return TestResult(
            testCase: self, request: request, decision: decision, explanation: explanation, messages: messages,
            failure: failure(decision.isAllowed, explanation))
    }

    private func failure(_ isAllowed: Bool, _ explanation: Explanation) -> String? {
        guard isAllowed == expectsAllow else {
            return "expected \(expectsAllow ? "allow" : "deny"), and it is \(isAllowed ? "allowed" : "denied")"
        }
        switch because {
        case .text(let text):
            let shown = ExplanationText(explanation, fileName: "").text
            return shown.contains(text) ? nil : "the explanation does not have '\(text)'"
        case .line(let line):
            return explanation.concerns(line: line)
                ? nil : "no rule on line \(line) \(isAllowed ? "allows" : "denies") it"
        case nil: return nil
        }
    }
}

extension Explanation {
    /// Whether the rule that allows the request is on a line; for a denied request, whether an evaluated rule is.
    func concerns(line: Int) -> Bool {
        let rules = blocks.flatMap(\.rules)
        let deciding = decision.isAllowed ? rules.suffix(1) : rules[...]
        return deciding.contains {
            // The upper bound is the position after the last character.
            ($0.range.lowerBound.line...$0.range.upperBound.line).contains(line)
        }
    }

    /// The evaluation errors of conditions, and the positions at which they are reported.
    var errors: [(message: String, position: SourcePosition)] {
        blocks.flatMap(\.rules).compactMap { rule in
            guard let condition = rule.condition, case .error(let message) = condition.outcome else { return nil }
            return (message, condition.errorPosition ?? condition.range.lowerBound)
        }
    }

    /// All evaluated expressions.
    var steps: [Step] {
        var found: [Step] = []
        var waiting = blocks.reversed().flatMap { $0.rules.reversed().compactMap(\.condition) }
        while let step = waiting.popLast() {
            found.append(step)
            waiting += step.parts.reversed()
        }
        return found
    }

    /// The documents that were looked up but are unknown, with the functions that looked them up.
    var missingDocuments: [DocumentPath: Set<DocumentMocks.Function>] {
        var missing: [DocumentPath: Set<DocumentMocks.Function>] = [:]
        for step in steps {
            guard case .unknown(let needs) = step.outcome else { continue }
            for path in needs.documents {
                missing[path, default: []].formUnion(step.functionCall.map { [$0.function] } ?? [])
            }
        }
        return missing.mapValues { $0.isEmpty ? Set(DocumentMocks.Function.allCases) : $0 }
    }

    /// A copy without literals, whose values are evident from the source.
    var withoutLiterals: Explanation {
        var copy = self
        for block in copy.blocks.indices {
            for rule in copy.blocks[block].rules.indices {
                copy.blocks[block].rules[rule].condition =
                    copy.blocks[block].rules[rule]
                    .condition?.withoutLiterals
            }
        }
        return copy
    }

    /// The document lookups.
    var functionCalls: [(function: DocumentMocks.Function, argument: String)] {
        steps.compactMap(\.functionCall)
    }
}

extension Explanation.Step {
    /// The document lookup; nil if the expression is none.
    var functionCall: (function: DocumentMocks.Function, argument: String)? {
        // The argument of a call begins after the function's name, other first parts at the expression's start.
        let name = text.filter { !$0.isWhitespace }
        guard let part = parts.first, parts.count == 1,
            part.range.lowerBound > range.lowerBound,
            let function = DocumentMocks.Function.allCases.first(where: {
                name.hasPrefix($0.rawValue + "(")
            }), case .value(let argument) = part.outcome
        else { return nil }
        return (function, argument)
    }
}

extension Explanation.Step {
    fileprivate var withoutLiterals: Explanation.Step {
        var copy = self
        copy.parts = parts.filter { !$0.isLiteral && !isSegment($0) }.map(\.withoutLiterals)
        return copy
    }

    /// Whether the expression is a literal: a number, string, bytes, Boolean or null.
    private var isLiteral: Bool {
        guard parts.isEmpty, let first = text.unicodeScalars.first else { return false }
        return ["true", "false", "null"].contains(text) || "'\".0123456789".unicodeScalars.contains(first)
            || text.hasPrefix("b'") || text.hasPrefix("b\"")
    }

    /// Whether a part is a constant segment of this path.
    private func isSegment(_ part: Explanation.Step) -> Bool {
        part.kind == .literal && kind == .other && text.hasPrefix("/")
    }
}
