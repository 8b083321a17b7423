import Glibc
import SecurityRules
import TestSupport
import Testing

@testable import RulesAnalysis

/// Compares the analysis with the engine on random rules: no proof is contradicted, and each example is one.
///
/// `SLUICE_ANALYSIS_RULESETS` sets the number of pairs of rulesets, `SLUICE_ANALYSIS_SEED` the first seed.
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
        let count = Self.setting("SLUICE_ANALYSIS_RULESETS", 40)
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
            check(diff.opened, allowedBy: new, deniedBy: old, seed, &requests, &counts)
            check(diff.closed, allowedBy: old, deniedBy: new, seed, &requests, &counts)
        }
        print("\(counts)")
        #expect(counts.open * 2 < counts.proven + counts.examples)
    }

    private func check(
        _ side: RulesDiff.Side, allowedBy allowing: Ruleset, deniedBy denying: Ruleset, _ seed: UInt64,
        _ requests: inout RandomRequests, _ counts: inout Counts
    ) {
        counts.proven += side.provenMethods.count
        counts.open += side.open.reduce(0) { $0 + $1.methods.count }
        func isExample(_ request: ExampleRequest) -> Bool {
            var request = request
            return request.isAllowed(by: allowing) == true && request.isAllowed(by: denying) == false
        }
        for example in side.changes.flatMap(\.examples) {
            counts.examples += 1
            #expect(isExample(example), "seed \(seed): \(example)")
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
