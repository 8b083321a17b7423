/// Why a decision was taken: every rule that was asked, with what each part of its condition came to.
public struct Explanation: Sendable {
    /// The decision, the same as `Ruleset.decide` takes.
    public var decision: Decision
    /// The match blocks that match the path and have a rule for the method, in source order; up to the rule that allows.
    public var blocks: [Block]

    /// A match block whose path matches.
    public struct Block: Sendable {
        /// The path as it is written, with those of the blocks around it.
        public var path: String
        /// Where the path stands in the source.
        public var range: Range<SourcePosition>
        /// The captures by name, in order.
        public var captures: [(name: String, value: String)]
        /// Its rules for the method, in source order.
        public var rules: [Rule]
    }

    /// An allow statement.
    public struct Rule: Sendable {
        /// Its methods as they are written.
        public var methods: String
        /// Where it stands in the source.
        public var range: Range<SourcePosition>
        /// What its condition came to; true where it has none.
        public var outcome: Outcome
        /// Its condition, evaluated; nil where it has none.
        public var condition: Step?
    }

    /// What an expression came to.
    public enum Outcome: Sendable, Hashable {
        /// A value, as the language would write it.
        case value(String)
        /// An error: the text as the hosted service gives it.
        case error(String)
        /// It depends on inputs that are not known yet.
        case unknown(Needs)
    }

    /// An expression that was evaluated.
    public struct Step: Sendable {
        /// What an expression is.
        public enum Kind: Sendable, Hashable {
            /// A value as it is written, or several that operators, brackets or slashes join.
            case literal
            /// A look-up of a document.
            case lookUp
            /// A call of any other function, or of a method.
            case call
            /// A name, a property, an operator, or values among which are such.
            case other
        }

        /// What it is.
        public var kind: Kind
        /// Its text, in one line.
        public var text: String
        /// Where it stands in the source.
        public var range: Range<SourcePosition>
        /// What it came to.
        public var outcome: Outcome
        /// The parts that were evaluated for it, in source order; the body of a function is a part of its call.
        public var parts: [Step]
    }
}

extension Explanation.Outcome: CustomStringConvertible {
    /// The value; the error's text, which begins with `Error: `; or `unknown: …` with what is missing.
    public var description: String {
        switch self {
        case .value(let value): value
        case .error(let message): message
        case .unknown(let needs):
            "unknown: "
                + ((needs.existing ? ["resource"] : [])
                + needs.incoming.map { "request.resource.\($0.key)" }.sorted() + needs.documents)
                .joined(separator: ", ")
        }
    }
}

extension Ruleset {
    /// Decides a request and says why. Takes far longer than `decide`, for people to read.
    public func explain(_ request: Request) -> Explanation {
        guard let path = request.state.path else {
            return Explanation(
                decision: .denied(Denial(reason: .invalidPath, readsCaller: false)), blocks: [])
        }
        if let refusal = refusesList(request) {
            return Explanation(decision: .denied(refusal), blocks: [])
        }
        let context = Context(program: program, request: request.state, path: path)
        var evaluator = Evaluator(context, StepRecorder(program))
        let matching = matchingBlocks(path)
        let decision = evaluator.decide(matching)
        let documents = evaluator.documents.map(\.path)
        var steps = evaluator.recorder.finished[...]
        var blocks: [Explanation.Block] = []
        let method = Method.Set(request.method)
        for index in 0..<matching.count where !(steps.isEmpty && evaluator.isExhausted) {
            let block = program.blocks[Int(matching[index])]
            var rules: [Explanation.Rule] = []
            for allow in block.allows where program.allows[allow].methods.contains(method) {
                let code = program.allows[allow]
                // Behind the limit of expressions no rule was asked.
                guard !steps.isEmpty || (code.condition < 0 && !evaluator.isExhausted) else {
                    break
                }
                let step = code.condition < 0 ? nil : steps.removeFirst().step(program, documents)
                var rule = rule(code, step)
                if step == nil, let unknown = evaluator.possibleExhaustion {
                    rule.outcome = .unknown(Needs(unknown.bits, documents: documents))
                }
                rules.append(rule)
                if rules[rules.count - 1].outcome == .value("true") {
                    steps = []
                    break
                }
            }
            guard !rules.isEmpty else { continue }
            evaluator.enter(block: Int(matching[index]))
            blocks.append(describe(block, evaluator.captures(of: block), rules))
            if rules.last?.outcome == .value("true") { break }
        }
        return Explanation(decision: decision, blocks: blocks)
    }

    private func rule(_ code: AllowCode, _ step: Explanation.Step?) -> Explanation.Rule {
        let head = program.source.text(code.headSpan)
        return Explanation.Rule(
            methods: String(head.dropFirst("allow".count).drop { $0.isWhitespace }),
            range: program.source.range(code.span), outcome: step?.outcome ?? .value("true"),
            condition: step)
    }

    private func describe(
        _ block: BlockCode, _ captures: [(name: String, value: String)], _ rules: [Explanation.Rule]
    ) -> Explanation.Block {
        let path = block.segments.map { segment in
            switch (segment.kind, segment.name?.text) {
            case (.literal(let text), _): "/" + text.string
            case (.glob, let name): "/{\(name ?? "")=**}"
            case (.single, let name): "/{\(name ?? "")}"
            }
        }
        return Explanation.Block(
            path: path.joined(), range: program.source.range(block.pathSpan), captures: captures,
            rules: rules)
    }
}

extension Evaluator {
    func captures(of block: BlockCode) -> [(name: String, value: String)] {
        block.segments.enumerated().compactMap { place, segment in
            guard let name = segment.name?.text else { return nil }
            let isBehind = block.glob >= 0 && place > block.glob
            let index = isBehind ? place - 1 + Int(globLength) : place
            let value: Datum =
                segment.kind == .glob
                ? .requestPath(Int32(place), Int32(place) + globLength)
                : .string(context.path[index])
            return (name, ValueText.describe(value, context))
        }
    }
}
