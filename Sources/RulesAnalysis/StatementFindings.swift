import SecurityRules

/// What the solver finds out about the statements of one file: those that are useless, and conditions that decide nothing.
package enum StatementFindings {
    /// Warnings for statements that never allow a request, whose requests others allow too, or whose condition always holds.
    ///
    /// - Parameter milliseconds: The limit for all questions. What is not proven by then is not reported.
    package static func warnings(_ rules: Ruleset, _ solver: Solver, milliseconds: Int) -> [Diagnostic] {
        let analyzed = AnalyzedRules(rules)
        let end = Solver.now() + Int64(milliseconds)
        func proven(excludesOthers: Bool = false, isInverted: Bool = false) -> Set<Int> {
            let left = Int(max(0, end - Solver.now()))
            let search = Search(
                analyzed, excludesOthers: excludesOthers, isInverted: isInverted, confirms: false, solver,
                milliseconds: left)
            var proven = Set(analyzed.resolved.statements.indices)
            for method in Method.allCases {
                for (index, answer) in search.run(method).answers {
                    if case .proven = answer { continue }
                    proven.remove(index)
                }
            }
            return proven
        }
        let dead = proven()
        let always = proven(isInverted: true).subtracting(dead)
        let covered = proven(excludesOthers: true).subtracting(dead)
        return analyzed.resolved.statements.indices.compactMap { index in
            let statement = analyzed.resolved.statements[index]
            let text: (String, String)? =
                if dead.contains(index) {
                    statement.isLiteral(false, analyzed.resolved)
                        ? nil
                        : (
                            "This statement never allows a request.",
                            "its condition is false or an error for all of them"
                        )
                } else if covered.contains(index) {
                    ("Other statements allow all that this one allows.", "without it the rules decide the same")
                } else if always.contains(index), statement.condition != nil,
                    !statement.isLiteral(true, analyzed.resolved)
                {
                    ("This condition always holds.", "'if true' says so, and check warns of it where that is dangerous")
                } else {
                    nil
                }
            return text.map {
                Diagnostic(
                    severity: .warning, fileName: rules.fileName, range: statement.range, message: $0.0, hint: $0.1)
            }
        }
    }
}

extension ResolvedRules.Statement {
    /// Whether the condition is this literal.
    fileprivate func isLiteral(_ value: Bool, _ rules: ResolvedRules) -> Bool {
        guard let condition, case .constant(.bool(value)) = rules[condition] else { return false }
        return true
    }
}
