import SecurityRules
import Wire

/// The answer to a question whether there is such a request.
package enum Answer: Sendable {
    /// There is none.
    case proven
    /// This one; the engine has confirmed it.
    case example(ExampleRequest)
    /// It is not known.
    case undetermined([Obstacle])
}

/// A reason why a question was not decided.
package enum Obstacle: Sendable, Hashable {
    /// A part of the rules that the analysis does not know exactly: where it is, its text and the reason.
    case approximation(fileName: String, position: SourcePosition, text: String, reason: String)
    /// A limit of time or memory.
    case limit(String)
}

/// A ruleset and its tree.
package struct AnalyzedRules: Sendable {
    /// The ruleset, as loaded.
    package let rules: Ruleset
    let resolved: ResolvedRules

    package init(_ rules: Ruleset) {
        self.rules = rules
        resolved = rules.resolved
    }
}

/// Looks for requests that one ruleset allows and others allow or deny.
///
/// Each method and each length of path is a question of its own to the solver. Paths that are longer than every pattern have
/// one common question.
package struct Search {
    /// The largest time for one question to the solver, and the number of examples that may turn out to be none.
    static let questionTime = 2_000
    static let maximumTries = 5

    let subject: AnalyzedRules
    /// Rules that must allow the request too.
    let also: AnalyzedRules?
    /// Rules that must deny the request.
    let unless: AnalyzedRules?
    /// For a question within one file: whether the other statements of the subject must not allow the request.
    let excludesOthers: Bool
    /// Whether it asks for requests that a statement matches but does not allow.
    let isInverted: Bool
    /// The comparisons of regular expressions, which many questions share.
    let comparisons = RegexComparisons()
    /// Whether the engine must confirm examples. Without it only proofs mean something.
    private let confirms: Bool
    private let solver: Solver
    /// The time at which to stop, in milliseconds.
    private let deadline: Int64

    package init(
        _ subject: AnalyzedRules, also: AnalyzedRules? = nil, unless: AnalyzedRules? = nil,
        excludesOthers: Bool = false, isInverted: Bool = false, confirms: Bool = true, _ solver: Solver,
        milliseconds: Int
    ) {
        self.confirms = confirms
        self.subject = subject
        self.also = also
        self.unless = unless
        self.excludesOthers = excludesOthers
        self.isInverted = isInverted
        self.solver = solver
        deadline = Solver.now() + Int64(milliseconds)
    }

    /// The answers for each statement of the subject that allows a method.
    package struct Result: Sendable {
        /// By the statement's index.
        package var answers: [Int: Answer] = [:]
        /// The statements that are not the same in the rules that must deny.
        package var changed: Set<Int> = []
    }

    /// Answers for one method: is there a request that a statement allows, under the conditions of this search?
    /// - Parameter hints: Examples for other methods, by the statement. They are tried first.
    package func run(_ method: Method, hints: [Int: [ExampleRequest]] = [:]) -> Result {
        var result = Result()
        for (index, statement) in subject.resolved.statements.enumerated() where statement.methods.contains(method) {
            result.answers[index] = .proven
        }
        guard !result.answers.isEmpty else { return result }
        for (index, examples) in hints where result.answers[index] != nil {
            if let example = examples.lazy.compactMap({ adapt($0, to: method, statement: index) }).first {
                result.answers[index] = .example(example)
                result.changed.insert(index)
            }
        }
        for shape in shapes(method) {
            guard Solver.now() < deadline else {
                for (index, answer) in result.answers {
                    if case .proven = answer { result.answers[index] = .undetermined([.limit("the time limit")]) }
                }
                break
            }
            run(Question(self, method, shape), &result)
        }
        if result.answers.values.contains(where: { if case .undetermined = $0 { true } else { false } }) {
            let open = result.answers.filter { if case .example = $0.value { false } else { true } }
            for (index, example) in sampled(method, for: Set(open.keys)) {
                result.answers[index] = .example(example)
                result.changed.insert(index)
            }
        }
        return result
    }

    /// The forms of paths: each length up to the longest pattern, and all longer ones.
    func shapes(_ method: Method) -> [PathShape] {
        var (front, back) = (0, 0)
        var named = (path: 0, glob: 0)
        for rules in [subject, also, unless].compactMap(\.self) {
            let own = rules.resolved.namedSegments
            named = (max(named.path, own.path), max(named.glob, own.glob))
            for block in rules.resolved.blocks {
                let glob = block.segments.firstIndex(of: .glob)
                front = max(front, (glob ?? block.segments.count) - 3)
                back = max(back, glob.map { block.segments.count - $0 - 1 } ?? 0)
            }
        }
        // Rules may name segments of a glob, too; a few more are worth a question of their own.
        front = max(front + min(named.glob, 4), min(named.path, front + 4))
        let least = method == .list ? 0 : 1
        let exact = (least..<max(least, front + back + 1)).map { PathShape(count: $0) }
        return exact + [PathShape(count: front, isLong: true, backCount: back)]
    }

    private func run(_ question: Question, _ result: inout Result) {
        var open: [Int] = []
        for index in result.answers.keys.sorted() {
            if question.isChanged(index) { result.changed.insert(index) }
            if case .example = result.answers[index] { continue }
            if question.terms.isTooLarge || question.formula(index) != question.terms.no { open.append(index) }
        }
        guard !open.isEmpty else { return }
        if open.count > 1, case .proven = ask(question, open) { return }
        for index in open {
            switch ask(question, [index]) {
            case .proven: break
            case .example(let example): result.answers[index] = .example(example)
            case .undetermined(let obstacles):
                var all = obstacles
                if case .undetermined(let before)? = result.answers[index] {
                    all = before + obstacles.filter { !before.contains($0) }
                }
                result.answers[index] = .undetermined(all)
            }
        }
    }

    // MARK: One question

    private func ask(_ question: Question, _ statements: [Int]) -> Answer {
        let terms = question.terms
        let goal = terms.or(statements.map(question.formula))
        let (response, obstacles) = check(question, [goal])
        guard case .satisfiable(let model) = response else {
            if case .unsatisfiable = response { return .proven }
            return .undetermined(obstacles)
        }
        // A question about several statements is only asked for a proof.
        if statements.count > 1 { return .undetermined([]) }
        if let example = confirmed(ExampleRequest(model, question.inputs), question) { return .example(example) }
        var blocked: [Term] = []
        for _ in 0..<Self.maximumTries {
            let preferred = question.preferences(for: [goal] + blocked)
            guard case .satisfiable(let model) = check(question, [goal] + preferred + blocked).0 else { break }
            if let example = confirmed(ExampleRequest(model, question.inputs), question) { return .example(example) }
            blocked.append(question.block(model))
        }
        let none = Obstacle.limit("no example that the engine confirms was found")
        return .undetermined(obstacles.isEmpty ? [none] : obstacles)
    }

    /// Asks whether some request meets all of these formulas. Also returns what the formulas do not say exactly.
    func check(_ question: Question, _ formulas: [Term]) -> (Response, [Obstacle]) {
        let left = deadline - Solver.now()
        guard left > 0 else { return (.unknown(""), [.limit("the time limit")]) }
        guard !question.terms.isTooLarge else { return (.unknown(""), [.limit("the size of the rules")]) }
        var script = SMTText(question.terms)
        let all = question.relevant(to: formulas) + formulas
        script.assert(all + question.regexFacts(all))
        let obstacles = question.obstacles(script.variables.map(\.name))
        let time = min(Int(left), Self.questionTime)
        switch solver.evaluate(script.script, milliseconds: time) {
        case .ended(let limit): return (.unknown(""), obstacles + [.limit(limit)])
        case .text(let text):
            let response = Response(text, question.terms)
            if case .unknown(let reason) = response { return (response, obstacles + [.limit(reason)]) }
            return (response, obstacles)
        }
    }

    /// The example in its smallest form, if the engine confirms it.
    private func confirmed(_ example: ExampleRequest?, _ question: Question) -> ExampleRequest? {
        guard var example else { return nil }
        guard confirms else { return example }
        guard holds(&example) else { return nil }
        var shrinker = Shrinker(example, holds: holds)
        shrinker.run()
        return shrinker.example
    }

    /// An example for another method, if it is one for this method too, and because of the same statement.
    private func adapt(_ example: ExampleRequest, to method: Method, statement index: Int) -> ExampleRequest? {
        var adapted = ExampleRequest(method)
        (adapted.bucket, adapted.segments, adapted.uid, adapted.token) =
            (example.bucket, example.segments, example.uid, example.token)
        (adapted.parameters, adapted.time, adapted.documents) = (example.parameters, example.time, example.documents)
        if method != .list { adapted.existing = example.existing ?? (method == .create ? nil : [.size: .int(1)]) }
        if adapted.incoming != nil { adapted.incoming = example.incoming ?? example.existing ?? [.size: .int(1)] }
        guard confirms, holds(&adapted), statement(allowing: adapted) == index else { return nil }
        return shrunk(adapted, index)
    }

    /// The number of random requests for a method.
    private static let samples = 200

    /// Examples for some statements among random requests.
    private func sampled(_ method: Method, for statements: Set<Int>) -> [Int: ExampleRequest] {
        guard confirms, !excludesOthers, !isInverted else { return [:] }
        var examples: [Int: ExampleRequest] = [:]
        var sampler = RequestSampler([subject, also, unless].compactMap(\.self), seed: 1)
        for _ in 0..<Self.samples {
            var request = sampler.next(method)
            guard holds(&request), let index = statement(allowing: request), statements.contains(index),
                examples[index] == nil
            else { continue }
            examples[index] = shrunk(request, index)
        }
        return examples
    }

    /// The statement that allows a request.
    private func statement(allowing example: ExampleRequest) -> Int? {
        guard let range = subject.rules.explain(example.request).blocks.last?.rules.last?.range else { return nil }
        return subject.resolved.statements.firstIndex { $0.range == range }
    }

    /// The smallest form of an example that the same statement allows.
    private func shrunk(_ example: ExampleRequest, _ index: Int) -> ExampleRequest {
        var shrinker = Shrinker(example, holds: holds)
        shrinker.run()
        return statement(allowing: shrinker.example) == index ? shrinker.example : example
    }

    private func holds(_ example: inout ExampleRequest) -> Bool {
        // A look-up may add a document to the example, which then counts for all.
        for _ in 0..<2 {
            let before = example.documents.count
            guard example.isAllowed(by: subject.rules) == true else { return false }
            if let also, example.isAllowed(by: also.rules) != true { return false }
            if let unless, example.isAllowed(by: unless.rules) != false { return false }
            if example.documents.count == before { return true }
        }
        return true
    }
}

/// The response of the solver to one check.
enum Response {
    case satisfiable(Model)
    case unsatisfiable
    case unknown(String)

    init(_ text: String, _ terms: Terms) {
        let lines = text.utf8.split(separator: UInt8(ascii: "\n"), maxSplits: 1)
        let first = lines.first.flatMap { String($0) } ?? ""
        switch first {
        case "sat":
            self =
                Model(lines.count > 1 ? Substring(lines[1]) : "", terms).map(Self.satisfiable)
                ?? .unknown("a model that can't be read")
        case "unsat": self = .unsatisfiable
        case "unknown", "timeout": self = .unknown("the time limit of the solver")
        default: self = .unknown("an error of the solver: \(first)")
        }
    }
}

extension SMTText {
    /// The whole script: assertions, the check and the request for the values of all variables.
    var script: String {
        let values = variables.isEmpty ? "" : "(get-value (\(variables.map(\.name).joined(separator: " "))))"
        return lines.joined(separator: "\n") + "\n(check-sat)\n" + values + "\n"
    }
}
