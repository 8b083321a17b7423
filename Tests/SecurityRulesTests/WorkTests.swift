import Synchronization
import Testing

@testable import SecurityRules

/// Limits on the work with nested and shared values, and on the time of a decision.
@Suite struct WorkTests {
    private static let exhausted = "maximum of 1000 expressions"

    /// Functions that build two values of 2^18 leaves with shared parts and pass them to `body`.
    private func functions(_ body: String, _ level: String, leaf: String) -> String {
        let levels = (1...18).map { number in
            let part = number == 1 ? "x" : "n\(number - 1)(x)"
            return "function n\(number)(x) { let a = \(part); return \(level); }"
        }
        return levels.joined(separator: "\n") + """

            function body(a, b) { return \(body); }
            function bomb() { return body(n18(\(leaf)), n18(\(leaf))); }
            """
    }

    private func bomb(
        _ body: String, _ level: String = "[a, a]", leaf: String = "request.time"
    ) -> String {
        outcome("bomb()", functions: functions(body, level, leaf: leaf))
    }

    @Test(arguments: [
        "a == b", "a != b", "[a] == [b]", "a in [b]", "[a].toSet() == [b].toSet()",
        "[a, b].toSet().size() == 1", "[a].hasAny([b])", "[a].hasAll([b])", "[a].hasOnly([b])",
        "[a].removeAll([b]) == []", "[a].toSet().union([b].toSet()).size() == 1",
        "[a].toSet().difference([b].toSet()).size() == 0",
        "[a].toSet().intersection([b].toSet()).size() == 1", "[a].toSet().hasAny([b])",
        "{'k': a} == {'k': b}", "{'k': a}.diff({'k': b}).changedKeys().size() == 0",
        "[[a]].concat([[b]]) == [[a], [b]]",
    ])
    func nestedLists(_ body: String) {
        #expect(bomb(body).contains(Self.exhausted))
    }

    @Test(arguments: ["a == b", "{'k': a}.diff({'k': b}).changedKeys().size() == 0"])
    func nestedMaps(_ body: String) {
        #expect(bomb(body, "{'x': a, 'y': a}").contains(Self.exhausted))
    }

    /// Comparisons that are not needed are skipped.
    @Test func nestedValuesThatDiffer() {
        #expect(bomb("a == [b]") == "false")
        #expect(bomb("a == null") == "false")
        #expect(bomb("[a].size() == 1") == "true")
    }

    @Test func longTexts() {
        let long = "'" + String(repeating: "x", count: 60_000) + "'"
        let body = [String](repeating: "[a] == [b]", count: 20).joined(separator: " && ")
        let functions = "function body(a, b) { return \(body); }"
        #expect(outcome("body(\(long), \(long))", functions: functions).contains(Self.exhausted))
    }

    /// A decision is not final while it is unknown whether it reaches its limit.
    @Test func unknownWork() throws {
        let ruleset = try rules(
            "resource != null && bomb() || request.method == 'create'",
            functions: functions("a == b", "[a, a]", leaf: "request.time"))
        var request = request()
        request.existing = .unknown
        guard case .needs = ruleset.decide(request, clock: { 1 }) else {
            Issue.record("decided: \(ruleset.decide(request, clock: { 1 }))")
            return
        }
        request.existing = .absent
        #expect(ruleset.decide(request, clock: { 1 }) == .allowed)
        request.existing = .object(everything())
        #expect(!ruleset.decide(request, clock: { 1 }).isAllowed)
    }

    // MARK: Memory

    @Test(arguments: ["/$(a)/$(a)", "/a/b/{x}/{y}.bind({'x': a, 'y': a})"])
    func paths(_ level: String) {
        #expect(bomb("a is path", level, leaf: "'x'").contains("more than 65536 bytes"))
        #expect(bomb("string(a).size() > 0", level, leaf: "'x'").contains("more than 65536 bytes"))
    }

    @Test(arguments: ["a.toUtf8().toHexString()", "[a, a].join(a)", "a + a"])
    func texts(_ level: String) {
        #expect(
            bomb("a is string", level, leaf: "'xxxx'").contains("more than 65536 bytes"), "\(level)"
        )
    }

    @Test func substitutes() {
        let groups = String(repeating: "$0", count: 30_000)
        let text = String(repeating: "x", count: 60_000)
        #expect(
            outcome("'\(text)'.replace('x+', '\(groups)').size() > 0").contains(
                "more than 65536 bytes"))
    }

    /// Each search goes to the end of the text.
    @Test func searches() {
        let text = String(repeating: "a", count: 60_000)
        for method in ["split('a.*b|a')", "replace('a.*b|a', 'c')"] {
            #expect(outcome("'\(text)'.\(method).size() > 0").contains(Self.exhausted))
        }
    }

    /// Text of a wide and deep value would exceed the memory.
    @Test func explanations() throws {
        let wide = "[" + [String](repeating: "a", count: 90).joined(separator: ", ") + "]"
        let functions = (1...7).map { number in
            let part = number == 1 ? "'x'" : "n\(number - 1)()"
            return "function n\(number)() { let a = \(part); return \(wide); }"
        }
        let ruleset = try rules(
            "debug(n7()) == 1", functions: functions.joined(separator: "\n"))
        let explanation = ruleset.explain(request())
        let step = try #require(explanation.blocks.first?.rules.first?.condition?.parts.first)
        #expect(step.outcome.description.hasPrefix("[[[[[[['x', 'x', "))
        #expect(step.outcome.description.count == 256)
    }

    @Test func messages() {
        let long = String(repeating: "x", count: 60_000)
        #expect(outcome("{'a': 1}['\(long)'] == 1").utf8.count < 2_000)
    }

    // MARK: Loading

    @Test func patternsTogether() throws {
        func patterns(_ count: Int, _ pattern: (Int) -> String) -> String {
            (0..<count).map { "'a'.matches('\(pattern($0))')" }.joined(separator: " || ")
        }
        let large = patterns(40) { "[^a]{900}[^b]{900}\($0)" }
        do {
            _ = try rules(large)
            Issue.record("they load")
        } catch {
            #expect(
                error.diagnostics.map(\.message) == [
                    "The regular expressions are too large together."
                ])
        }
        let tooLarge = patterns(40) { "\\\\pL{900}\($0)" }
        #expect(throws: RulesetError.self) { try rules(tooLarge) }
        // A repeated pattern counts once.
        _ = try rules(patterns(90) { _ in "[^a]{900}[^b]{900}" })
        _ = try rules(patterns(90) { "users/[a-z0-9]{1,40}/\($0)/.*[.](png|jpe?g)" })
    }

    @Test func manyBlocksInAnyOrder() throws {
        let singles = (0..<500).map { _ in "match /b/{b}/o/{x} { allow get: if false; }" }
        let literals = (0..<500).map { _ in "match /b/{b}/o/a { allow get: if false; }" }
        let ruleset = try Ruleset.load(
            source: "rules_version = '2'; service firebase.storage { "
                + zip(singles, literals).map { $0 + $1 }.joined()
                + "match /b/{b}/o/{x} { allow get: if true; } }")
        var found = BlockList()
        ruleset.program.index.find(["b", "B", "o", "a"], into: &found)
        #expect((0..<found.count).map { Int(found[$0]) } == Array(0...1000))
    }

    // MARK: Time

    /// Advances by a fixed step with each read.
    private final class StepClock: Sendable {
        private let now = Mutex<UInt64>(0)
        private let step: UInt64
        init(step: UInt64) { self.step = step }
        func read() -> UInt64 {
            now.withLock {
                $0 += step
                return $0
            }
        }
        var isRead: Bool { now.withLock { $0 } > 0 }
    }

    @Test func time() throws {
        let timedOut = Decision.denied(Denial(reason: .timeLimit, readsCaller: false))
        let work = (0..<90).map { "request.auth.uid != '\($0)'" }.joined(separator: " && ")
        let ruleset = try rules("(\(work)) || true")
        let slow = StepClock(step: 60_000_000)
        #expect(ruleset.decide(request(), clock: slow.read) == timedOut)
        let explanation = ruleset.explain(request(), clock: StepClock(step: 60_000_000).read)
        #expect(explanation.decision == timedOut)
        #expect(explanation.blocks.first?.rules.first?.outcome != .value("true"))
        #expect(ruleset.decide(request(), clock: StepClock(step: 1_000_000).read) == .allowed)
        // A decision that exceeds the time limit is final, even with unknown inputs.
        var early = request()
        early.existing = .unknown
        let dependent = try rules("resource == null && (\(work)) || true")
        let slowToo = StepClock(step: 60_000_000)
        #expect(dependent.decide(early, clock: slowToo.read) == timedOut)
        // Small decisions do not read the clock.
        let idle = StepClock(step: 60_000_000)
        let small = try rules("request.auth.uid == 'alice'")
        #expect(small.decide(request(), clock: idle.read) == .allowed)
        #expect(!idle.isRead)
        #expect(Ruleset.maximumDecisionTime == .milliseconds(50))
        #expect(Ruleset.monotonicClock() > 0)
    }
}
