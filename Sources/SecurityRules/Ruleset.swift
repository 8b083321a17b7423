/// Security Rules for storage, loaded: immutable, and free to be shared between threads.
///
/// ```swift
/// let rules = try Ruleset.load(source: text, fileName: "storage.rules")
/// switch rules.decide(request) {
/// case .allowed: …
/// case .denied(let denial): …
/// case .needs(let needs): …  // find out what it names, and ask again
/// }
/// ```
public struct Ruleset: Sendable {
    /// The longest source that loads, in bytes.
    public static let maximumSourceLength = 256 << 10

    let program: Program
    /// What was found while loading, sorted: warnings only.
    public let diagnostics: [Diagnostic]

    /// Loads rules. Nothing is read from disk: `fileName` is only for messages.
    ///
    /// - Throws: `RulesetError` with every error and warning found.
    public static func load(
        source: String, fileName: String = "storage.rules"
    ) throws(RulesetError) -> Ruleset {
        guard source.utf8.count <= maximumSourceLength else {
            let diagnostic = Diagnostic(
                severity: .error, fileName: fileName,
                message: "The source has more than \(maximumSourceLength) bytes.")
            throw RulesetError(diagnostics: [diagnostic])
        }
        let text = SourceText(source, fileName: fileName)
        var parser = Parser(text)
        parser.parse()
        guard !parser.sink.hasErrors else {
            throw RulesetError(diagnostics: parser.sink.diagnostics.sorted())
        }
        var compiler = Compiler(text, parser.tree, parser.sink)
        compiler.compile()
        let diagnostics = compiler.sink.diagnostics.sorted()
        guard !compiler.sink.hasErrors else { throw RulesetError(diagnostics: diagnostics) }
        return Ruleset(program: Program(compiler), diagnostics: diagnostics)
    }

    /// The `rules_version`, 1 or 2; 1 where the source does not say.
    public var version: Int { program.version }

    /// The name given to the source.
    public var fileName: String { program.source.fileName }

    // MARK: Decisions

    /// Decides a request with what is known of it. Pure; takes microseconds, and no memory in the common case.
    public func decide(_ request: Request) -> Decision {
        guard let path = request.state.path else {
            return .denied(Denial(reason: .invalidPath, readsCaller: false))
        }
        if let refusal = refusesList(request) { return .denied(refusal) }
        let context = Context(program: program, request: request.state, path: path)
        var evaluator = Evaluator(context, NoRecorder())
        return evaluator.decide(matchingBlocks(path))
    }

    func refusesList(_ request: Request) -> Denial? {
        guard request.method == .list, version == 1 else { return nil }
        return Denial(reason: .listNeedsVersion2, readsCaller: false)
    }

    func matchingBlocks(_ path: [Text]) -> BlockList {
        var found = BlockList()
        program.index.find(path, into: &found)
        return found
    }

    /// What the rules for a request can read, so that nothing is fetched in vain. Looks at its method and path alone.
    public func inputs(for request: Request) -> Inputs {
        guard let path = request.state.path, refusesList(request) == nil else {
            return Inputs([], hasRules: false)
        }
        let method = Method.Set(request.method)
        let found = matchingBlocks(path)
        var bits: InputBits = []
        var hasRules = false
        for index in 0..<found.count {
            for allow in program.blocks[Int(found[index])].allows
            where program.allows[allow].methods.contains(method) {
                hasRules = true
                bits.formUnion(program.allows[allow].reads)
            }
        }
        if request.method != .create, request.method != .update { bits.subtract(.incoming) }
        if request.method == .list { bits.subtract(.existing) }
        return Inputs(bits, hasRules: hasRules)
    }
}

extension Evaluator {
    /// The decision over the blocks that match: the first condition that is true allows.
    mutating func decide(_ blocks: BlockList) -> Decision {
        let method = Method.Set(context.request.method)
        var unknown: InputBits = []
        var reads: InputBits = []
        var hasRules = false
        for index in 0..<blocks.count {
            let number = Int(blocks[index])
            guard program.blocks[number].methods.contains(method) else { continue }
            enter(block: number)
            for allow in program.blocks[number].allows
            where program.allows[allow].methods.contains(method) {
                hasRules = true
                reads.formUnion(program.allows[allow].reads)
                let condition = program.allows[allow].condition
                let value = condition < 0 ? unconditional : evaluate(condition)
                if isExhausted { return decision(unknown, hasRules: true, reads) }
                switch value {
                case .bool(true): return .allowed
                case .unknown(let found): unknown.formUnion(found.bits)
                default: continue
                }
            }
        }
        return decision(unknown, hasRules: hasRules, reads)
    }

    /// What a rule without condition comes to.
    var unconditional: Datum { possibleExhaustion.map(Datum.unknown) ?? .bool(true) }

    /// The decision where no rule allows.
    private func decision(_ unknown: InputBits, hasRules: Bool, _ reads: InputBits) -> Decision {
        if !unknown.isEmpty { return .needs(Needs(unknown, documents: documents.map(\.path))) }
        return .denied(
            Denial(reason: hasRules ? .notAllowed : .noMatch, readsCaller: reads.contains(.auth)))
    }

    /// Makes the captures of a block that matches the request's path.
    mutating func enter(block number: Int) {
        let segments = program.blocks[number].segments.count
        globLength = Int32(context.path.count - segments + 1)
    }
}
