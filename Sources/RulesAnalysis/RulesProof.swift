import SecurityRules
import Wire

/// Whether rules have a property.
package struct RulesProof: Sendable {
    /// The result for one property.
    package enum Outcome: Sendable {
        /// No request contradicts it.
        case proven
        /// This request, which this statement allows, contradicts it.
        case contradicted(ExampleRequest, Range<SourcePosition>)
        /// It is not known.
        case undetermined([Obstacle])
    }

    /// The property.
    package let property: RulesProperty
    /// The result.
    package let outcome: Outcome
    private let fileName: String

    /// Looks for a request that the rules allow and the property forbids.
    package init(_ property: RulesProperty, of rules: Ruleset, _ solver: Solver, milliseconds: Int) {
        self.property = property
        fileName = rules.fileName
        let subject = AnalyzedRules(rules)
        let search = Search(subject, also: property.rules, solver, milliseconds: milliseconds)
        var obstacles: [Obstacle] = []
        for method in property.rules.resolved.statements[0].methods {
            for (statement, answer) in search.run(method).answers.sorted(by: { $0.key < $1.key }) {
                switch answer {
                case .proven: continue
                case .example(let example):
                    outcome = .contradicted(example, subject.resolved.statements[statement].range)
                    return
                case .undetermined(let found): obstacles += found.filter { !obstacles.contains($0) }
                }
            }
        }
        outcome = obstacles.isEmpty ? .proven : .undetermined(obstacles)
    }

    /// The result in words. Every line ends with a line feed.
    package func text(explains: Bool) -> String {
        let what = (property.place.map { "\(VisibleText.escaped($0)): " } ?? "") + VisibleText.escaped(property.text)
        switch outcome {
        case .proven: return "✓ proven: never \(what)\n"
        case .contradicted(let example, let range):
            return "✗ counterexample: never \(what)\n  \(VisibleText.escaped(fileName)):\(range.lowerBound.line):"
                + "\(range.lowerBound.column) allows\n  \(example.text)\n"
        case .undetermined(let obstacles):
            return "? not decided: never \(what)\n" + (explains ? obstacles.map { "  \($0.text)\n" }.joined() : "")
        }
    }

    /// The results as a suite for `sluice rules test`. Counterexamples are its cases; they expect a denial.
    package static func json(_ proofs: [RulesProof]) -> JSON {
        var cases: [JSON] = []
        let properties = proofs.map { $0.json(&cases) }
        return .suite(cases, [("properties", .array(properties))])
    }

    private func json(_ cases: inout [JSON]) -> JSON {
        var members: [(String, JSON)] = [("never", .string(property.text))]
        if let place = property.place { members.append(("place", .string(place))) }
        switch outcome {
        case .proven: members.append(("state", .string("PROVEN")))
        case .contradicted(let example, let range):
            members += [
                ("state", .string("CONTRADICTED")), ("sourcePosition", JSON(fileName, range)),
                ("case", .int(cases.count)),
            ]
            cases.append(example.testCase("never \(property.text)", isAllowed: false))
        case .undetermined(let obstacles):
            members += [("state", .string("UNDETERMINED")), ("reasons", .array(obstacles.map(\.json)))]
        }
        return .object(members)
    }
}
