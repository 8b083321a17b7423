import Glibc
import RulesTesting
import SecurityRules
import TestSupport
import Testing

@testable import RulesAnalysis

/// Compares the analysis with the engine on random rules: no proof is contradicted, and each example is one.
///
/// `SLUICE_ANALYSIS_RULESETS` sets the number of pairs of rulesets, with five times as many single ones, `SLUICE_ANALYSIS_SEED` the first seed.
@Suite struct SoundnessTests {
    private static func setting(_ name: String, _ standard: Int) -> Int {
        getenv(name).flatMap { Int(String(cString: $0)) } ?? standard
    }

    private struct Counts {
        var pairs = 0
        var proven = 0
        var examples = 0
        var open = 0
    }

    @Test func agreesWithTheEngine() throws {
        let count = Self.setting("SLUICE_ANALYSIS_RULESETS", 20)
        let first = UInt64(Self.setting("SLUICE_ANALYSIS_SEED", 1))
        let solver = try Solver()
        var counts = Counts()
        var seed = first
        while counts.pairs < count {
            defer { seed += 1 }
            var rules = RandomRules(random: SeededGenerator(seed))
            let source = rules.ruleset()
            let other = rules.random.below(4) == 0 ? rules.ruleset() : rules.mutated(source)
            guard let old = try? Ruleset.load(source: source, fileName: "old"),
                let new = try? Ruleset.load(source: other, fileName: "new")
            else { continue }
            counts.pairs += 1
            let diff = RulesDiff(from: old, to: new, solver, milliseconds: 3_000)
            var requests = RandomRequests(random: SeededGenerator(seed &* 31))
            try check(diff.opened, allowedBy: new, deniedBy: old, seed, &requests, &counts)
            try check(diff.closed, allowedBy: old, deniedBy: new, seed, &requests, &counts)
        }
        print("\(counts)")
        #expect(counts.open * 2 < counts.proven + counts.examples)
    }

    /// Each decision of the engine is a solution of the formulas, with the values of the request. A proof says that there is
    /// none, so no proof that these formulas give can be wrong about the request.
    @Test func eachDecisionIsASolution() throws {
        let count = 5 * Self.setting("SLUICE_ANALYSIS_RULESETS", 20)
        let solver = try Solver()
        let source = "rules_version = '2'; service firebase.storage { match /{path=**} { allow read, write; } }"
        let everything = AnalyzedRules(try Ruleset.load(source: source, fileName: "everything"))
        var (rulesets, seed) = (0, UInt64(Self.setting("SLUICE_ANALYSIS_SEED", 1)))
        var counts = Decisions()
        while rulesets < count {
            defer { seed += 1 }
            var random = RandomRules(random: SeededGenerator(seed))
            let source = seed % 2 == 0 ? random.ruleset() : random.statement()
            guard let rules = (try? Ruleset.load(source: source, fileName: "rules")).map(AnalyzedRules.init) else {
                continue
            }
            rulesets += 1
            let allowing = Search(rules, solver, milliseconds: 600_000)
            let denying = Search(everything, unless: rules, solver, milliseconds: 600_000)
            var requests = RandomRequests(random: SeededGenerator(seed &* 31))
            let method = Method.allCases[rulesets % Method.allCases.count]
            // Few random requests are allowed.
            let decided = (0..<100).compactMap { _ -> (request: ExampleRequest, isAllowed: Bool)? in
                var request = requests.request(method)
                // The decision adds the documents that it looked up.
                return request.isAllowed(by: rules.rules).map { (request, $0) }
            }
            let allowed = decided.filter(\.isAllowed).prefix(4).map(\.request)
            let denied = decided.filter { !$0.isAllowed }.prefix(4).map(\.request)
            counts.allowed += allowed.count
            counts.denied += denied.count
            for (requests, search) in [(allowed, allowing), (denied, denying)] {
                for request in requests where !isSolution(request, search, &counts) {
                    Issue.record(
                        "seed \(seed): the engine \(search.unless == nil ? "allows" : "denies") \(request)\n\(source)")
                }
            }
        }
        print("\(counts)")
        #expect(counts.notDecided * 20 < counts.allowed + counts.denied)
    }

    private struct Decisions {
        var allowed = 0
        var denied = 0
        var notDecided = 0
    }

    /// Whether a search may find this request.
    private func isSolution(_ request: ExampleRequest, _ search: Search, _ counts: inout Decisions) -> Bool {
        for shape in search.shapes(request.method) where RequestFacts.fits(request, shape) {
            let question = Question(search, request.method, shape)
            let goal = question.terms.or(search.subject.resolved.statements.indices.map(question.formula))
            let facts = RequestFacts(request, question.inputs).all
            switch search.check(question, facts + [goal]).0 {
            case .satisfiable: break
            case .unsatisfiable: return false
            case .unknown: counts.notDecided += 1
            }
        }
        return true
    }

    private func check(
        _ side: RulesDiff.Side, allowedBy allowing: Ruleset, deniedBy denying: Ruleset, _ seed: UInt64,
        _ requests: inout RandomRequests, _ counts: inout Counts
    ) throws {
        counts.proven += side.provenMethods.count
        counts.open += side.open.reduce(0) { $0 + $1.methods.count }
        func isExample(_ request: ExampleRequest) -> Bool {
            var request = request
            return request.isAllowed(by: allowing) == true && request.isAllowed(by: denying) == false
        }
        for example in side.changes.flatMap(\.examples) {
            counts.examples += 1
            #expect(isExample(example), "seed \(seed): \(example)")
            // As a case of a suite it is the same request. There, an update keeps what its new object lacks.
            let kept: [ObjectField] = [.size, .md5Hash, .crc32c]
            if example.method == .update,
                kept.contains(where: { example.existing?[$0] != nil && example.incoming?[$0] == nil })
            {
                continue
            }
            let text = JSON.suite([example.testCase("a", isAllowed: true)], []).text
            let suite = try TestSuite.read(text, fileName: "suite", now: ExampleRequest.defaultTime)
            #expect(suite.cases.map { $0.run(allowing).passed } == [true], "seed \(seed): \(text)")
            #expect(suite.cases.map { $0.run(denying).passed } == [false], "seed \(seed): \(text)")
        }
        for method in side.provenMethods {
            for _ in 0..<150 {
                let request = requests.request(method)
                guard isExample(request) else { continue }
                Issue.record(
                    "seed \(seed): a proof is contradicted by \(request)\n\(allowing.source)\n\(denying.source)")
                break
            }
        }
    }
}
