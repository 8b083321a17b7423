import SecurityRules

/// An explanation for people: the decision, the blocks and rules that were asked, and below each its expressions with
/// their values.
package struct ExplanationText {
    /// The text, lines with their ends.
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

    /// Writes it, with the colours of a terminal or without.
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
                case .listNeedsVersion2, .invalidPath: denial.message
                }
            text += "\(paint("denied", .bad)): \(reason)\n"
        case .needs(let needs):
            let names = needs.names.joined(separator: ", ")
            text += "\(paint("undecided", .open)): it depends on \(names)\n"
        }
    }

    private mutating func rule(_ rule: Explanation.Rule, _ fileName: String) {
        let start = rule.range.lowerBound
        let outcome = outcome(rule.outcome, isBelow: rule.condition != nil)
        text += "  allow \(rule.methods)\(outcome)  "
        text += paint("\(fileName):\(start.line):\(start.column)", .faint) + "\n"
        if let condition = rule.condition { step(condition, depth: 2) }
    }

    private mutating func step(_ step: Explanation.Step, depth: Int) {
        if depth > 2, step.outcome == .value(step.text) { return }
        let isBelow = step.parts.contains { $0.outcome == step.outcome }
        text += String(repeating: "  ", count: depth) + step.text
        text += outcome(step.outcome, isBelow: isBelow) + "\n"
        for part in step.parts { self.step(part, depth: depth + 1) }
    }

    /// An outcome; of an error or unknown that stands `isBelow` too, only the word.
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

    private func paint(_ text: String, _ style: Style) -> String {
        colour ? "\u{1B}[\(style.rawValue)m\(text)\u{1B}[0m" : text
    }
}

extension Needs {
    /// What is missing, as the rules write it.
    var names: [String] {
        (existing ? ["resource"] : []) + incoming.map { "request.resource.\($0.key)" }.sorted()
            + documents
    }
}

extension TestResult {
    /// The result for people: one line, and below a failure what is wrong and why it was decided so.
    package func text(_ rules: Ruleset, colour: Bool) -> String {
        let word = passed ? "ok  " : "FAIL"
        let painted = colour ? "\u{1B}[\(passed ? "32" : "31")m\(word)\u{1B}[0m" : word
        var text = "\(painted) \(testCase.name)\n"
        guard let failure else { return text }
        text += "     \(testCase.place): \(failure)\n"
        for message in messages { text += "     \(message)\n" }
        let why = ExplanationText(explanation, fileName: rules.fileName, colour: colour).text
        for line in why.split(separator: "\n") { text += "     \(line)\n" }
        return text
    }
}
