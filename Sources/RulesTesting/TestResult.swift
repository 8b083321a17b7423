import SecurityRules

/// What came of a case.
package struct TestResult: Sendable {
    /// The case.
    package let testCase: TestCase
    /// The decision, by what the gateway calls as well.
    package let decision: Decision
    /// Why it was decided as it was.
    package let explanation: Explanation
    /// Messages about the run and the errors of evaluation, in order.
    package let messages: [String]
    /// What is wrong; nil where the case passed.
    package let failure: String?

    /// Whether the case came out as it should.
    package var passed: Bool { failure == nil }
}

extension TestCase {
    /// Decides the request as the gateway would, its documents being those of the case.
    package func run(_ rules: Ruleset) -> TestResult {
        var request = request
        var messages = notes
        var explanation = rules.explain(request).withoutLiterals
        var known: Set<String> = []
        // Also what the decision does not depend on is looked up, so that it is seen.
        while true {
            let waiting = explanation.missingDocuments.filter { !known.contains($0.key) }
            if waiting.isEmpty { break }
            known.formUnion(waiting.keys)
            for (path, functions) in waiting.sorted(by: { $0.key < $1.key }) {
                let lookup = documents.lookup(path, by: functions)
                if lookup == nil {
                    messages.append(
                        "The case says nothing of the document \(path): looking for it fails.")
                }
                request.setDocument(path, lookup ?? .failed)
            }
            explanation = rules.explain(request).withoutLiterals
        }
        messages += explanation.errors.map(\.message)
        let decision = rules.decide(request)
        return TestResult(
            testCase: self, decision: decision, explanation: explanation, messages: messages,
            failure: failure(decision.isAllowed, explanation))
    }

    private func failure(_ isAllowed: Bool, _ explanation: Explanation) -> String? {
        guard isAllowed == expectsAllow else {
            return
                "expected \(expectsAllow ? "allow" : "deny"), and it is \(isAllowed ? "allowed" : "denied")"
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
    /// Whether the rule that allows, or for a denied request one that was asked, stands on a line.
    func concerns(line: Int) -> Bool {
        let rules = blocks.flatMap(\.rules)
        let deciding = decision.isAllowed ? rules.suffix(1) : rules[...]
        return deciding.contains {
            // The end of a range is the place behind it.
            ($0.range.lowerBound.line...$0.range.upperBound.line).contains(line)
        }
    }

    /// The errors that conditions came to, each with the innermost expression that has it.
    var errors: [(message: String, position: SourcePosition)] {
        blocks.flatMap(\.rules).compactMap { rule in
            guard let condition = rule.condition, case .error(let message) = condition.outcome
            else { return nil }
            var step = condition
            while let part = step.parts.first(where: { $0.outcome == .error(message) }) {
                step = part
            }
            return (message, step.range.lowerBound)
        }
    }

    /// All expressions that were evaluated.
    var steps: [Step] {
        var found: [Step] = []
        var waiting = blocks.reversed().flatMap { $0.rules.reversed().compactMap(\.condition) }
        while let step = waiting.popLast() {
            found.append(step)
            waiting += step.parts.reversed()
        }
        return found
    }

    /// The documents that were asked for and are not known, with the functions that asked.
    var missingDocuments: [String: Set<DocumentMocks.Function>] {
        var missing: [String: Set<DocumentMocks.Function>] = [:]
        for step in steps {
            guard case .unknown(let needs) = step.outcome else { continue }
            for path in needs.documents {
                missing[path, default: []].formUnion(step.functionCall.map { [$0.function] } ?? [])
            }
        }
        return missing.mapValues { $0.isEmpty ? Set(DocumentMocks.Function.allCases) : $0 }
    }

    /// The same without the literals, which tell nothing: the values are as they are written.
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

    /// The look-ups of documents.
    var functionCalls: [(function: DocumentMocks.Function, argument: String)] {
        steps.compactMap(\.functionCall)
    }
}

extension Explanation.Step {
    /// The look-up that it is, if it is one.
    var functionCall: (function: DocumentMocks.Function, argument: String)? {
        // The argument of a call begins behind the name; the first part of another expression does not.
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

    /// Whether it is a number, a string or bytes, or a truth value or null.
    private var isLiteral: Bool {
        guard parts.isEmpty, let first = text.unicodeScalars.first else { return false }
        return ["true", "false", "null"].contains(text)
            || "'\".0123456789".unicodeScalars.contains(first)
            || text.hasPrefix("b'") || text.hasPrefix("b\"")
    }

    /// Whether a part is a segment that stands in this path as it is.
    private func isSegment(_ part: Explanation.Step) -> Bool {
        part.kind == .literal && kind == .other && text.hasPrefix("/")
    }
}
