import Wire

/// The reasons for a decision: every evaluated rule, with the result of each part of its condition.
public struct Explanation: Sendable {
    /// The decision, equal to the result of `Ruleset.decide`.
    public var decision: Decision
    /// The blocks that match the path and have a rule for the method, in order, up to the rule that allows.
    public var blocks: [Block]

    /// A match block whose path matches.
    public struct Block: Sendable {
        /// The path as written, including the paths of the enclosing blocks.
        public var path: String
        /// The location of the path in the source.
        public var range: Range<SourcePosition>
        /// The captures by name, in order.
        public var captures: [(name: String, value: String)]
        /// Its rules for the method, in source order.
        public var rules: [Rule]
    }

    /// An allow statement.
    public struct Rule: Sendable {
        /// Its methods as written.
        public var methods: String
        /// Its location in the source.
        public var range: Range<SourcePosition>
        /// The result of its condition; true if it has none.
        public var outcome: Outcome
        /// Its evaluated condition; nil if it has none.
        public var condition: Step?
    }

    /// The result of an expression.
    public enum Outcome: Sendable, Hashable {
        /// A value, in the syntax of the rules language.
        case value(String)
        /// An error, with the hosted service's text.
        case error(String)
        /// The result depends on inputs that are not known yet.
        case unknown(Needs)
    }

    /// An evaluated expression.
    public struct Step: Sendable {
        /// The kind of an expression.
        public enum Kind: Sendable, Hashable {
            /// A literal, or literals joined by operators, brackets or slashes.
            case literal
            /// A document lookup.
            case lookUp
            /// A call of another function or of a method.
            case call
            /// A name, a property, an operator, or a composed value that contains one of these.
            case other
        }

        /// The kind of the expression.
        public var kind: Kind
        /// Its source text, on one line.
        public var text: String
        /// Its location in the source.
        public var range: Range<SourcePosition>
        /// Its result.
        public var outcome: Outcome
        /// Where its error is reported, such as an operator or a function name; nil without an error.
        public var errorPosition: SourcePosition?
        /// The parts that were evaluated for it, in source order. The body of a function is a part of its call.
        public var parts: [Step]
    }
}

extension Explanation.Outcome: CustomStringConvertible {
    /// The value; the error's text, which starts with `Error: `; or `unknown: …` with the missing inputs.
    public var description: String {
        switch self {
        case .value(let value): value
        case .error(let message): message
        case .unknown(let needs):
            "unknown: "
                + ((needs.existing ? ["resource"] : []) + (needs.time ? ["request.time"] : [])
                + needs.incoming.map { "request.resource.\($0.key)" }.sorted() + needs.documents.map(\.description))
                .joined(separator: ", ")
        }
    }
}

extension Ruleset {
    /// Decides a request and explains the decision. Much slower than `decide`; the result is for people to read.
    ///
    /// - Parameters:
    ///   - request: The known inputs.
    ///   - clock: Nanoseconds since any moment, which never go back; without it there is no limit of time.
    public func explain(_ request: Request, clock: @escaping Clock = { 1 }) -> Explanation {
        guard let path = request.state.path else {
            return Explanation(decision: .denied(Denial(reason: .invalidPath, readsCaller: false)), blocks: [])
        }
        if let denial = denialOfList(request) {
            return Explanation(decision: .denied(denial), blocks: [])
        }
        let context = Context(program: program, request: request.state, path: path)
        var evaluator = Evaluator(context, StepRecorder(program), clock: clock)
        let matching = matchingBlocks(path)
        let decision = evaluator.decide(matching)
        let documents = evaluator.documents.map(\.path)
        var steps = evaluator.recorder.finished[...]
        var blocks: [Explanation.Block] = []
        let method = Method.Set(request.method)
        for index in 0..<matching.count where !(steps.isEmpty && evaluator.hasEnded) {
            let block = program.blocks[Int(matching[index])]
            var rules: [Explanation.Rule] = []
            for allow in block.allows where program.allows[allow].methods.contains(method) {
                let code = program.allows[allow]
                // No rules were evaluated after a limit was exceeded.
                guard !steps.isEmpty || (code.condition < 0 && !evaluator.hasEnded) else {
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
        Explanation.Rule(
            methods: methods(of: code),
            range: program.source.range(code.span), outcome: step?.outcome ?? .value("true"),
            condition: step)
    }

    private func describe(
        _ block: BlockCode, _ captures: [(name: String, value: String)], _ rules: [Explanation.Rule]
    ) -> Explanation.Block {
        Explanation.Block(
            path: block.path, range: program.source.range(block.pathSpan), captures: captures, rules: rules)
    }
}

extension Evaluator {
    func captures(of block: BlockCode) -> [(name: String, value: String)] {
        block.segments.enumerated().compactMap { position, segment in
            guard let name = segment.name?.text else { return nil }
            let isBehind = block.glob >= 0 && position > block.glob
            let index = isBehind ? position - 1 + Int(globLength) : position
            let value: Datum =
                segment.kind == .glob
                ? .requestPath(Int32(position), Int32(position) + globLength) : .string(context.path[index])
            return (name, ValueText.describe(value, context))
        }
    }
}
