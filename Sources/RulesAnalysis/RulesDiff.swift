import SecurityRules
import Wire

/// What a change of rules allows that was denied, and denies that was allowed.
package struct RulesDiff: Sendable {
    /// One side of the comparison.
    package enum Direction: Sendable, CaseIterable {
        /// The new rules allow it and the old ones deny it; the other way round.
        case opened, closed
    }

    /// A statement that allows what the other rules deny, with an example for each such method.
    package struct Change: Sendable {
        /// The file of the statement, and its place there.
        package var fileName: String
        package var range: Range<SourcePosition>
        /// One for each method, in the order of the methods.
        package var examples: [ExampleRequest]
    }

    /// A question that was not decided.
    package struct Open: Sendable {
        /// The file of the statement, and its place there.
        package var fileName: String
        package var range: Range<SourcePosition>
        /// The methods for which it was not decided.
        package var methods: [Method]
        /// Why.
        package var obstacles: [Obstacle]
    }

    /// The result for one direction.
    package struct Side: Sendable {
        /// In the order of the file.
        package var changes: [Change] = []
        package var open: [Open] = []
        /// The methods for which it is proven that there is no such request.
        package var provenMethods: [Method] = []
    }

    /// What the new rules open, and what they close.
    package private(set) var opened = Side()
    package private(set) var closed = Side()
    /// The number of statements in the new rules that are not in the old ones, and of all.
    package private(set) var changedStatements = 0
    package let statements: Int

    /// Compares two rulesets.
    ///
    /// - Parameter milliseconds: The limit for each direction; what is not decided by then stays open.
    package init(from old: Ruleset, to new: Ruleset, _ solver: Solver, milliseconds: Int) {
        let (before, after) = (AnalyzedRules(old), AnalyzedRules(new))
        statements = after.resolved.statements.count
        var changed: Set<Int> = []
        let opening = Search(after, unless: before, solver, milliseconds: milliseconds)
        opened = Self.side(opening, &changed)
        changedStatements = changed.count
        closed = Self.side(Search(before, unless: after, solver, milliseconds: milliseconds), &changed)
    }

    private static func side(_ search: Search, _ changed: inout Set<Int>) -> Side {
        var side = Side()
        var examples: [Int: [ExampleRequest]] = [:]
        var open: [Int: (methods: [Method], obstacles: [Obstacle])] = [:]
        for method in Method.allCases {
            let result = search.run(method, hints: examples)
            changed.formUnion(result.changed)
            var isProven = true
            for (statement, answer) in result.answers.sorted(by: { $0.key < $1.key }) {
                switch answer {
                case .proven: continue
                case .example(let example): examples[statement, default: []].append(example)
                case .undetermined(let obstacles):
                    open[statement, default: ([], [])].methods.append(method)
                    let known = open[statement]?.obstacles ?? []
                    open[statement]?.obstacles += obstacles.filter { !known.contains($0) }
                }
                isProven = false
            }
            if isProven { side.provenMethods.append(method) }
        }
        let (fileName, all) = (search.subject.rules.fileName, search.subject.resolved.statements)
        for index in all.indices {
            if let found = examples[index] {
                side.changes.append(Change(fileName: fileName, range: all[index].range, examples: found))
            }
            if let (methods, obstacles) = open[index] {
                side.open.append(
                    Open(fileName: fileName, range: all[index].range, methods: methods, obstacles: obstacles))
            }
        }
        return side
    }
}
