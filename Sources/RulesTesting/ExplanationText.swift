import SecurityRules
import Wire

/// A readable explanation: the decision, then evaluated blocks and rules, with expressions and values below.
package struct ExplanationText {
    /// The text. Every line ends with a line feed.
    package private(set) var text = ""
    private let colour: Bool

    private enum Style: String {
        case good = "32"
        case bad = "31"
        case open = "33"
        case value = "36"
        case faint = "2"
        case strong = "1"
    }

    /// Writes an explanation, optionally in the colours of a terminal.
    package init(_ explanation: Explanation, fileName: String, colour: Bool = false) {
        self.colour = colour
        let explanation = explanation.withoutLiterals
        decision(explanation)
        for block in explanation.blocks {
            let start = block.range.lowerBound
            text += "\(paint("match \(block.path)", .strong))  "
            text += paint("\(fileName):\(start.line):\(start.column)", .faint) + "\n"
            if !block.captures.isEmpty {
                let captures = block.captures.map { "\($0.name) = \($0.value)" }
                text += "  \(paint(captures.joined(separator: ", "), .faint))\n"
            }
            for rule in block.rules { self.rule(rule, fileName) }
        }
    }

    private mutating func decision(_ explanation: Explanation) {
        switch explanation.decision {
        case .allowed: text += paint("allowed", .good) + "\n"
        case .denied(let denial):
            let reason =
                switch denial.reason {
                case .noMatch: "no match block with a rule for this method matches the path"
                case .notAllowed: "no rule that matches came to true"
                case .timeLimit: "the decision took longer than \(Ruleset.maximumDecisionTime)"
                case .listNeedsVersion2, .invalidPath: denial.message
                }
            text += "\(paint("denied", .bad)): \(reason)\n"
        case .needs(let needs):
            let names = needs.names.joined(separator: ", ")
            text += "\(paint("undecided", .open)): it depends on \(VisibleText.escaped(names))\n"
        }
    }

    private mutating func rule(_ rule: Explanation.Rule, _ fileName: String) {
        let start = rule.range.lowerBound
        let outcome = outcome(rule.outcome, isBelow: rule.condition != nil)
        text += "  allow \(VisibleText.escaped(rule.methods))\(outcome)  "
        text += paint("\(fileName):\(start.line):\(start.column)", .faint) + "\n"
        if let condition = rule.condition { step(condition, depth: 2) }
    }

    private mutating func step(_ step: Explanation.Step, depth: Int) {
        if depth > 2, step.outcome == .value(step.text) { return }
        let isBelow = step.parts.contains { $0.outcome == step.outcome }
        text += String(repeating: "  ", count: depth) + VisibleText.escaped(step.text)
        text += outcome(step.outcome, isBelow: isBelow) + "\n"
        for part in step.parts { self.step(part, depth: depth + 1) }
    }

    /// Formats an outcome. With `isBelow`, a part has the same outcome: errors and unknowns become one word.
    private func outcome(_ outcome: Explanation.Outcome, isBelow: Bool) -> String {
        let style: Style =
            switch outcome {
            case .value("true"): .good
            case .value("false"), .error: .bad
            case .value: .value
            case .unknown: .open
            }
        let text =
            switch outcome {
            case .error where isBelow: "error"
            case .unknown where isBelow: "unknown"
            default: outcome.description
            }
        return " → " + paint(text, style)
    }

    /// The text in a style. Control characters in it are escaped.
    private func paint(_ text: String, _ style: Style) -> String {
        let text = VisibleText.escaped(text)
        return colour ? "\u{1B}[\(style.rawValue)m\(text)\u{1B}[0m" : text
    }
}

extension Needs {
    /// The missing values, as they are written in rules.
    var names: [String] {
        (existing ? ["resource"] : []) + (time ? ["request.time"] : [])
            + incoming.map { "request.resource.\($0.key)" }.sorted()
            + documents.map(\.description)
    }
}

extension TestResult {
    /// The result as text: one line, and for a failure also the difference and the explanation of the decision.
    package func text(_ rules: Ruleset, colour: Bool) -> String {
        let word = passed ? "ok  " : "FAIL"
        let painted = colour ? "\u{1B}[\(passed ? "32" : "31")m\(word)\u{1B}[0m" : word
        var text = "\(painted) \(VisibleText.escaped(testCase.name))\n"
        guard let failure else { return text }
        for line in ["\(testCase.location): \(failure)"] + messages {
            text += "     \(VisibleText.escaped(line))\n"
        }
        let why = ExplanationText(explanation, fileName: rules.fileName, colour: colour).text
        for line in why.split(separator: "\n") { text += "     \(line)\n" }
        return text
    }
}
