import Gateway
import HTTPServer
import RulesTesting
import SecurityRules
import System
import Telemetry
import Wire

/// The rules of a bucket.
public struct BucketRules: Sendable {
    public var bucket: String
    /// The rules in effect; nil if there are none, so that everything is allowed or denied.
    public var rules: Ruleset?
    public var shadow: Ruleset?
    /// Whether everything is allowed: `rules: none`.
    public var isOpen: Bool
    /// Why the current version of the file is not in effect; nil if it is.
    public var failure: String?
    /// When the rules in effect were loaded, in seconds since 1970.
    public var since: Int64
    /// Warnings about the rules with this bucket.
    public var findings: [String]

    public init(
        bucket: String, rules: Ruleset?, shadow: Ruleset?, isOpen: Bool, failure: String?, since: Int64,
        findings: [String]
    ) {
        self.bucket = bucket
        self.rules = rules
        self.shadow = shadow
        self.isOpen = isOpen
        self.failure = failure
        self.since = since
        self.findings = findings
    }
}

extension Console {
    /// `GET /api/rules`
    func rules() -> ConsoleResponse {
        let buckets = sources.rules().map { rules in
            JSON.object([
                ("bucket", .string(rules.bucket)), ("file", rules.rules.map { .string($0.fileName) } ?? .null),
                ("isOpen", .bool(rules.isOpen)), ("version", rules.rules.map { .int($0.version) } ?? .null),
                ("since", .string(HTTPDate.rfc3339(milliseconds: rules.since * 1000))),
                ("failure", rules.failure.map(JSON.string) ?? .null),
                ("shadow", rules.shadow.map { .string($0.fileName) } ?? .null),
                ("findings", .array(rules.findings.map(JSON.string))),
            ])
        }
        return .json(.object([("buckets", .array(buckets))]))
    }

    private func rules(of bucket: String?) throws(Problem) -> BucketRules {
        guard let bucket else { throw Problem(.invalidArgument, "The bucket is not named.") }
        guard let found = sources.rules().first(where: { BytewiseString.areEqual($0.bucket, bucket) }) else {
            throw Problem(.bucketNotFound, "There is no bucket of this name.")
        }
        return found
    }

    /// `GET /api/rules/source`
    func source(_ target: ConsoleTarget) throws(Problem) -> ConsoleResponse {
        let found = try rules(of: target["bucket"])
        guard let rules = target["shadow"] == nil ? found.rules : found.shadow else {
            throw Problem(.notFound, "The bucket has no such rules.")
        }
        return .text(Array(rules.source.utf8), "text/plain; charset=utf-8")
    }

    /// `POST /api/rules/…`: evaluates rules that are in effect or given. Nothing is saved.
    func tryRules(_ path: String, _ document: JSONValue) async throws(Problem) -> ConsoleResponse {
        if path == "/api/rules/check" {
            guard let source = document["source"]?.text else { throw Console.noSource }
            return try await workbench.run { () throws(Problem) in .json(RulesWorkbench.check(source)) }
        }
        let bucket = try rules(of: document["bucket"]?.text)
        let source = document["source"]?.text
        if source == nil, path == "/api/rules/replay" { throw Console.noSource }
        let entries = path == "/api/rules/replay" ? feed.evaluated(in: bucket.bucket) : []
        switch path {
        case "/api/rules/explain":
            return try await workbench.run { () throws(Problem) in
                .json(try RulesWorkbench.explain(try RulesWorkbench.load(source, bucket), document["request"]))
            }
        case "/api/rules/test":
            let suite = document["suite"]?.text
            return try await workbench.run { () throws(Problem) in
                try SuiteRun(try RulesWorkbench.load(source, bucket), suite)
            }
        default:
            return try await workbench.run { () throws(Problem) in
                Replay(try RulesWorkbench.load(source, bucket), entries)
            }
        }
    }

    private static let noSource = Problem(.invalidArgument, "The source is missing: {\"source\": \"…\"}.")
}

/// Evaluates rules for the console, away from the loops, and not more than the gateway can spare.
final class RulesWorkbench: Sendable {
    /// CPU time: what is regained in a second, and what can be saved up, in nanoseconds.
    private struct Budget {
        let share: Int64
        let burst: Int64
        var credit: Int64
        var at = EventLoop.monotonicNow()

        init(share: Int64, burst: Int64) {
            (self.share, self.burst, credit) = (share, burst, burst)
        }

        /// The seconds until something may be spent; nil if it may be now.
        mutating func wait() -> Int64? {
            let now = EventLoop.monotonicNow()
            credit = min(burst, credit + Int64(clamping: (now - at) / 1_000_000) * share / 1000)
            at = now
            return credit > 0 ? nil : -credit / share + 1
        }
    }
    private struct State {
        /// For one evaluation: an explanation, a check.
        var single = Budget(share: 5_000_000, burst: 250_000_000)
        /// For suites and replays, which must not use up what an explanation needs.
        var many = Budget(share: 15_000_000, burst: 750_000_000)
        var jobs = 0
    }
    /// The maximum number of suites and replays at the same time.
    private static let maximumJobs = 2
    /// A suite or a replay ends after this many nanoseconds.
    static let maximumTime: UInt64 = 1_000_000_000
    /// How long a suite or a replay has a thread of the pool, in nanoseconds.
    private static let slice: UInt64 = 10_000_000

    private let pool: BlockingPool
    private let state = Lock(State())

    init(_ pool: BlockingPool) { self.pool = pool }

    private static func limited(_ wait: Int64) -> Problem {
        Problem(
            .tooManyRequests, "Rules are evaluated as far as time permits. Try again later.",
            field: ("retry-after", "\(wait)"))
    }

    /// Runs one evaluation in the pool.
    /// - Throws: ``Problem`` with `too-many-requests` if the time is used up.
    func run(_ job: @escaping @Sendable () throws(Problem) -> ConsoleResponse) async throws(Problem) -> ConsoleResponse
    {
        if let wait = state.withLock({ $0.single.wait() }) { throw RulesWorkbench.limited(wait) }
        return try await pool.run { [state] () throws(Problem) in
            let begin = EventLoop.monotonicNow()
            defer {
                let spent = Int64(clamping: EventLoop.monotonicNow() - begin)
                state.withLock { $0.single.credit -= spent }
            }
            return try job()
        }
    }

    /// Runs many evaluations in the pool, in slices, so that reads of files come in between.
    /// - Throws: ``Problem`` with `too-many-requests` if the time is used up, or too many run.
    func run<Evaluations: RulesEvaluations>(
        _ make: @escaping @Sendable () throws(Problem) -> Evaluations
    ) async throws(Problem) -> ConsoleResponse {
        let wait = state.withLock { state -> Int64? in
            if let wait = state.many.wait() { return wait }
            if state.jobs >= RulesWorkbench.maximumJobs { return 1 }
            state.jobs += 1
            return nil
        }
        if let wait { throw RulesWorkbench.limited(wait) }
        defer { state.withLock { $0.jobs -= 1 } }
        var evaluations: Evaluations?
        while true {
            let current = evaluations
            let (next, spent, isLast) = try await pool.run { () throws(Problem) -> (Evaluations, UInt64, Bool) in
                let begin = EventLoop.monotonicNow()
                var evaluations: Evaluations
                if let current { evaluations = current } else { evaluations = try make() }
                while evaluations.step() {
                    let spent = EventLoop.monotonicNow() - begin
                    if spent > RulesWorkbench.slice { return (evaluations, spent, false) }
                }
                return (evaluations, EventLoop.monotonicNow() - begin, true)
            }
            state.withLock { $0.many.credit -= Int64(clamping: spent) }
            evaluations = next
            if isLast { return try next.response() }
        }
    }
}

extension RulesWorkbench {
    static func load(_ source: String?, _ bucket: BucketRules) throws(Problem) -> Ruleset {
        guard let source else {
            guard let rules = bucket.rules else {
                throw Problem(.invalidArgument, "The bucket has no rules: give the source.")
            }
            return rules
        }
        do throws(RulesetError) {
            return try Ruleset.load(source: source, fileName: bucket.rules?.fileName ?? "edited.rules")
        } catch {
            let first = error.diagnostics.first { $0.severity == .error }
            let place = first?.range.map { "\($0.lowerBound.line):\($0.lowerBound.column): " } ?? ""
            throw Problem(.invalidArgument, "The rules have errors. \(place)\(first?.message ?? "")")
        }
    }

    static func check(_ source: String) -> JSON {
        var (version, diagnostics): (JSON, [Diagnostic]) = (.null, [])
        do throws(RulesetError) {
            let rules = try Ruleset.load(source: source)
            version = .int(rules.version)
            diagnostics = (rules.diagnostics + rules.fixedDepthListWarnings()).sorted()
        } catch {
            diagnostics = error.diagnostics
        }
        let formatted = try? Ruleset.format(source: source)
        return .object([
            ("version", version), ("issues", .array(diagnostics.map { .raw($0.json) })),
            ("formatted", formatted.map(JSON.string) ?? .null),
        ])
    }

    static func explain(_ rules: Ruleset, _ inputs: JSONValue?) throws(Problem) -> JSON {
        guard let inputs, let method = inputs["method"]?.text, let path = inputs["path"]?.text else {
            throw Problem(.invalidArgument, "The request has a method and a path.")
        }
        var arguments = RequestArguments(method: method, path: path)
        if let auth = inputs["auth"], auth != .null { arguments.auth = JSON(auth).text }
        arguments.resource = inputs["resource"].map { JSON($0).text }
        if let new = inputs["new"], new != .null { arguments.incoming = JSON(new).text }
        arguments.time = inputs["time"]?.text
        for parameter in inputs["params"]?.members ?? [] {
            guard let value = parameter.value.text else { throw Problem(.invalidArgument, "Parameters are texts.") }
            arguments.parameters.append("\(parameter.key)=\(value)")
        }
        for document in inputs["documents"]?.members ?? [] {
            arguments.documents.append("\(document.key)=\(document.value.text ?? JSON(document.value).text)")
        }
        let request: Request
        do throws(SuiteError) {
            request = try arguments.request(now: RulesPolicy.now())
        } catch {
            let findings = error.findings.map { $0.hasPrefix("--") ? String($0.dropFirst(2)) : $0 }
            return .object([("findings", .array(findings.map(JSON.string)))])
        }
        let explanation = rules.explain(request, clock: Ruleset.monotonicClock)
        return .object([
            ("explanation", explanation.json(rules.fileName)), ("text", .string(explanation.text(rules.fileName))),
            ("findings", .array([])),
        ])
    }
}

/// Evaluations of a ruleset for many requests, one after the other.
protocol RulesEvaluations: Sendable {
    /// Evaluates the next request. Returns false if there is none.
    mutating func step() -> Bool

    /// The results.
    func response() throws(Problem) -> ConsoleResponse
}

/// The cases of a test suite.
struct SuiteRun: RulesEvaluations {
    private let rules: Ruleset
    private let cases: [TestCase]
    private let end = EventLoop.monotonicNow() + RulesWorkbench.maximumTime
    private var coverage: Coverage
    private var results: [JSON] = []
    private var passed = 0

    init(_ rules: Ruleset, _ text: String?) throws(Problem) {
        guard let text else { throw Problem(.invalidArgument, "The suite is missing.") }
        guard text.utf8.count <= 1 << 20 else { throw Problem(.payloadTooLarge, "A suite has at most 1 MiB.") }
        do throws(SuiteError) {
            cases = try TestSuite.read(text, fileName: "suite", now: RulesPolicy.now()).cases
        } catch {
            throw Problem(.invalidArgument, error.description)
        }
        self.rules = rules
        coverage = Coverage(of: rules)
    }

    mutating func step() -> Bool {
        guard results.count < cases.count, EventLoop.monotonicNow() < end else { return false }
        let result = cases[results.count].run(rules)
        coverage.add(result.explanation)
        if result.passed { passed += 1 }
        results.append(result.json(rules, coverage: false))
        return true
    }

    func response() throws(Problem) -> ConsoleResponse {
        guard results.count == cases.count else {
            throw Problem(.invalidArgument, "The suite takes too long. Use 'sluice rules test'.")
        }
        return .json(
            .object([
                ("passed", .int(passed)), ("failed", .int(results.count - passed)), ("results", .array(results)),
                ("coverage", JSON(coverage, rules.fileName)),
            ]))
    }
}

/// The kept requests, decided by other rules. The newest come first.
struct Replay: RulesEvaluations {
    /// The maximum number of listed changes.
    private static let maximumChanges = 100

    private let rules: Ruleset
    private let entries: [RequestFeed.Entry]
    private let end = EventLoop.monotonicNow() + RulesWorkbench.maximumTime
    private var coverage: Coverage
    private var (evaluated, same, undetermined, allowed, denied) = (0, 0, 0, 0, 0)
    private var changed: [(entry: RequestFeed.Entry, now: Verdict, explanation: Explanation)] = []

    init(_ rules: Ruleset, _ entries: [RequestFeed.Entry]) {
        self.rules = rules
        self.entries = entries
        coverage = Coverage(of: rules)
    }

    mutating func step() -> Bool {
        guard evaluated < entries.count, EventLoop.monotonicNow() < end else { return false }
        let entry = entries[entries.count - 1 - evaluated]
        evaluated += 1
        guard let evaluation = entry.record.evaluation else { return true }
        let explanation = rules.explain(evaluation.request, clock: Ruleset.monotonicClock)
        coverage.add(ParameterRedaction(evaluation.request).applied(to: explanation))
        let now: Verdict
        switch explanation.decision {
        case .allowed: now = .allowed
        case .denied: now = .denied
        case .needs:
            undetermined += 1
            return true
        }
        if now == entry.record.decision {
            same += 1
            return true
        }
        if now == .denied { denied += 1 } else { allowed += 1 }
        if changed.count < Replay.maximumChanges { changed.append((entry, now, explanation)) }
        return true
    }

    func response() -> ConsoleResponse {
        let numbers = [
            ("evaluated", evaluated), ("same", same), ("undetermined", undetermined),
            ("skipped", entries.count - evaluated), ("denied", denied), ("allowed", allowed),
        ]
        var line = LogLine()
        line.raw("{")
        for (name, number) in numbers {
            line.quoted(name)
            line.raw(":")
            line.number(UInt64(number))
            line.raw(",")
        }
        line.raw("\"changed\":[")
        for (index, change) in changed.enumerated() {
            line.write(change.entry, change.now, change.explanation, isFirst: index == 0)
        }
        line.raw("],\"coverage\":")
        return .json(bytes: line.bytes + Array(JSON(coverage, rules.fileName).text.utf8) + Array("}\n".utf8))
    }
}

extension LogLine {
    /// Appends a request whose decision has changed.
    fileprivate mutating func write(
        _ entry: RequestFeed.Entry, _ now: Verdict, _ explanation: Explanation, isFirst: Bool
    ) {
        raw(isFirst ? "{\"request\":" : ",{\"request\":")
        quoted(entry.record.requestId)
        raw(",\"was\":\"")
        word(entry.record.decision?.rawValue ?? "none")
        raw("\",\"now\":\"")
        word(now.rawValue)
        raw("\",\"position\":")
        // Rules are evaluated up to the one that allows.
        let rule = now == .allowed ? explanation.blocks.last?.rules.last : explanation.blocks.first?.rules.first
        if let start = (rule?.condition?.range ?? rule?.range)?.lowerBound {
            raw("{\"line\":")
            number(UInt64(start.line))
            raw(",\"column\":")
            number(UInt64(start.column))
            raw("}")
        } else {
            raw("null")
        }
        raw(",\"line\":")
        AccessLog.writeJSON(entry.record, &self, at: entry.time)
        raw("}")
    }
}

extension Explanation {
    func text(_ fileName: String) -> String { ExplanationText(self, fileName: fileName).text }
}

extension JSON {
    init(_ value: JSONValue) {
        switch value {
        case .null: self = .null
        case .boolean(let value): self = .bool(value)
        case .number(let text): self = .raw(text)
        case .string(let text): self = .string(text)
        case .array(let elements): self = .array(elements.map { JSON($0) })
        case .object(let members): self = .object(members.map { ($0.key, JSON($0.value)) })
        }
    }

    /// The conditions and expressions of rules, with the values that they had.
    fileprivate init(_ coverage: Coverage, _ fileName: String) {
        func row(_ range: Range<SourcePosition>, _ values: [(value: String, count: Int)]) -> JSON {
            // Of many values the first ones say enough.
            let values = values.prefix(20).map {
                JSON.object([("value", .string(String($0.value.prefix(200)))), ("count", .int($0.count))])
            }
            return .object([("sourcePosition", JSON(fileName, range)), ("values", .array(values))])
        }
        self = .object([
            ("conditions", .array(coverage.statements.map { row($0.head, $0.values) })),
            ("expressions", .array(coverage.expressions.map { row($0.range, $0.values) })),
        ])
    }
}

extension JSONValue {
    fileprivate var members: [JSONMember]? {
        if case .object(let members) = self { members } else { nil }
    }
}

extension ConsoleResponse {
    static func json(_ value: JSON) -> ConsoleResponse { .json(bytes: Array("\(value.text)\n".utf8)) }
}
