import Glibc

/// A loaded ruleset of Security Rules for storage. Immutable, so it can be shared between threads.
///
/// ```swift
/// let rules = try Ruleset.load(source: text, fileName: "storage.rules")
/// switch rules.decide(request) {
/// case .allowed: …
/// case .denied(let denial): …
/// case .needs(let needs): …  // look up the listed inputs, then decide again
/// }
/// ```
public struct Ruleset: Sendable {
    /// The maximum length of a source, in bytes.
    public static let maximumSourceLength = 256 << 10

    /// The time limit of one decision. Beyond it the request is denied with ``Denial/Reason/timeLimit``.
    public static let maximumDecisionTime: Duration = .nanoseconds(EvaluationLimits.time)

    let program: Program
    /// The warnings found at load time, sorted.
    public let diagnostics: [Diagnostic]
    /// For each allow statement, the largest upload that it can allow; nil if there is no limit.
    let uploadLimits: [UInt64?]
    /// The same for anonymous requests.
    let anonymousUploadLimits: [UInt64?]

    /// Loads rules from source text. `fileName` is used only in messages.
    ///
    /// - Throws: `RulesetError` with every error and warning found.
    public static func load(
        source: String, fileName: String = "storage.rules"
    ) throws(RulesetError) -> Ruleset {
        try load(source: source, fileName: fileName, lints: true)
    }

    /// - Parameter lints: Whether to warn about conditions that cannot mean what is written.
    package static func load(source: String, fileName: String, lints: Bool) throws(RulesetError) -> Ruleset {
        guard source.utf8.count <= maximumSourceLength else {
            let diagnostic = Diagnostic(
                severity: .error, fileName: fileName, message: "The source has more than \(maximumSourceLength) bytes.")
            throw RulesetError(diagnostics: [diagnostic])
        }
        let text = SourceText(source, fileName: fileName)
        var parser = Parser(text)
        parser.parse()
        guard !parser.sink.hasErrors else {
            throw RulesetError(diagnostics: parser.sink.diagnostics.sorted())
        }
        var compiler = Compiler(text, parser.tree, parser.sink)
        compiler.compile(lints: lints)
        let diagnostics = compiler.sink.diagnostics.sorted()
        guard !compiler.sink.hasErrors else { throw RulesetError(diagnostics: diagnostics) }
        let program = Program(compiler)
        return Ruleset(
            program: program, diagnostics: diagnostics,
            uploadLimits: StaticAnalysis.uploadLimits(program, isAnonymous: false),
            anonymousUploadLimits: StaticAnalysis.uploadLimits(program, isAnonymous: true))
    }

    /// The `rules_version`, 1 or 2; 1 if the source does not declare it.
    public var version: Int { program.version }

    /// Equal for copies of one loaded ruleset.
    package var identity: ObjectIdentifier { ObjectIdentifier(program) }

    /// The file name given to ``load(source:fileName:)``.
    public var fileName: String { program.source.fileName }

    /// The source text.
    package var source: String { String(decoding: program.source.bytes, as: UTF8.self) }

    // MARK: Decisions

    /// A clock that returns nanoseconds since an arbitrary moment.
    public typealias Clock = @Sendable () -> UInt64

    /// The system's monotonic clock.
    @Sendable public static func monotonicClock() -> UInt64 {
        var time = timespec()
        unsafe clock_gettime(CLOCK_MONOTONIC, &time)
        return UInt64(time.tv_sec) * 1_000_000_000 + UInt64(time.tv_nsec)
    }

    /// Decides a request with the facts known so far. Takes microseconds, and no allocation in the common case.
    ///
    /// - Parameters:
    ///   - request: The known inputs.
    ///   - clock: Nanoseconds since any moment, which never go back. It is read for decisions of many expressions only.
    public func decide(
        _ request: Request, clock: @escaping Clock = Ruleset.monotonicClock
    ) -> Decision {
        guard let path = request.state.path else {
            return .denied(Denial(reason: .invalidPath, readsCaller: false))
        }
        if let denial = denialOfList(request) { return .denied(denial) }
        let context = Context(program: program, request: request.state, path: path)
        var evaluator = Evaluator(context, NoRecorder(), clock: clock)
        return evaluator.decide(matchingBlocks(path))
    }

    func denialOfList(_ request: Request) -> Denial? {
        guard request.method == .list, version == 1 else { return nil }
        return Denial(reason: .listNeedsVersion2, readsCaller: false)
    }

    func matchingBlocks(_ path: [Text]) -> BlockList {
        var found = BlockList()
        program.index.find(path, into: &found)
        return found
    }

    /// Returns the inputs that the rules for a request can read, so that nothing else needs to be fetched. Depends only
    /// on the request's method and path.
    public func inputs(for request: Request) -> Inputs {
        guard let path = request.state.path, denialOfList(request) == nil else {
            return Inputs([], hasRules: false)
        }
        let method = Method.Set(request.method)
        let found = matchingBlocks(path)
        var bits: InputBits = []
        var hasRules = false
        for index in 0..<found.count {
            for allow in program.blocks[Int(found[index])].allows where program.allows[allow].methods.contains(method) {
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
    /// Decides over the matching blocks. The first true condition allows the request.
    mutating func decide(_ blocks: BlockList) -> Decision {
        let method = Method.Set(context.request.method)
        var unknown: InputBits = []
        var reads: InputBits = []
        var hasRules = false
        for index in 0..<blocks.count {
            let number = Int(blocks[index])
            guard program.blocks[number].methods.contains(method) else { continue }
            enter(block: number)
            for allow in program.blocks[number].allows where program.allows[allow].methods.contains(method) {
                hasRules = true
                reads.formUnion(program.allows[allow].reads)
                let condition = program.allows[allow].condition
                let value = condition < 0 ? unconditional : evaluate(condition)
                if hasEnded { return decision(unknown, hasRules: true, reads) }
                switch value {
                case .bool(true): return .allowed
                case .unknown(let found): unknown.formUnion(found.bits)
                default: continue
                }
            }
        }
        return decision(unknown, hasRules: hasRules, reads)
    }

    /// The value of a rule without a condition.
    var unconditional: Datum { possibleExhaustion.map(Datum.unknown) ?? .bool(true) }

    /// The decision if no rule allows the request.
    private func decision(_ unknown: InputBits, hasRules: Bool, _ reads: InputBits) -> Decision {
        if isTimedOut { return .denied(Denial(reason: .timeLimit, readsCaller: false)) }
        if !unknown.isEmpty { return .needs(Needs(unknown, documents: documents.map(\.path))) }
        return .denied(Denial(reason: hasRules ? .notAllowed : .noMatch, readsCaller: reads.contains(.auth)))
    }

    /// Sets up the captures of a block that matches the request's path.
    mutating func enter(block number: Int) {
        let segments = program.blocks[number].segments.count
        globLength = Int32(context.path.count - segments + 1)
    }
}
