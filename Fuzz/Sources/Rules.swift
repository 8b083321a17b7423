@testable import SecurityRules

/// Feeds source to the lexer, the parser, the checker and the formatter. Nothing crashes. Formatted source is stable
/// and has the same meaning.
func fuzzRules(_ bytes: [UInt8]) {
    let source = String(decoding: bytes, as: UTF8.self)
    let ruleset = try? Ruleset.load(source: source)
    guard let formatted = try? Ruleset.format(source: source) else {
        precondition(ruleset == nil)
        return
    }
    precondition((try? Ruleset.format(source: formatted)) == formatted)
    let again = try? Ruleset.load(source: formatted)
    precondition((again == nil) == (ruleset == nil))
    guard let again, let ruleset else { return }
    precondition(
        again.diagnostics.map(\.message).sorted() == ruleset.diagnostics.map(\.message).sorted())
    for method in Method.allCases {
        let request = RulesGenerator.fullRequest(method)
        let decision = ruleset.decide(request, clock: stopped)
        precondition(decision == again.decide(request, clock: stopped))
        precondition(decision == ruleset.explain(request).decision)
    }
}

/// Evaluates programs generated from the input, on requests with more and more known inputs. Recording changes nothing,
/// and a final decision stays the same.
func fuzzEvaluator(_ bytes: [UInt8]) {
    var generator = RulesGenerator(bytes)
    let source = generator.ruleset()
    guard let ruleset = try? Ruleset.load(source: source) else { return }
    let method = generator.method()
    let full = RulesGenerator.fullRequest(method)
    let decision = check(ruleset, full, source)
    if case .needs = decision {
        preconditionFailure("all is known, and yet \(decision)\n\(source)")
    }
    var request = full
    for _ in 0..<4 {
        generator.forget(in: &request)
        let early = check(ruleset, request, source)
        if case .needs(let needs) = early {
            precondition(needs.documents.count <= 2, source)
            continue
        }
        precondition(
            early.isAllowed == decision.isAllowed, "\(early) became \(decision)\n\(source)")
    }
    let (pattern, text) = (generator.pattern(), generator.text())
    if let compiled = try? Pattern(Text(pattern)), let answer = compiled.matchesByShape(Text(text)) {
        precondition(answer == compiled.matchesByRE2(Text(text)), "\(pattern) on \(text)")
    }
}

/// A clock on which no decision takes too long: what a sanitizer makes slow must not be denied for it.
private let stopped: Ruleset.Clock = { 1 }

private func check(_ ruleset: Ruleset, _ request: Request, _ source: String) -> Decision {
    let decision = ruleset.decide(request, clock: stopped)
    precondition(decision == ruleset.explain(request).decision, source)
    let inputs = ruleset.inputs(for: request)
    if case .needs(let needs) = decision {
        precondition(!needs.existing || inputs.existing, source)
        precondition(needs.incoming.isSubset(of: inputs.incoming), source)
        precondition(needs.documents.isEmpty || inputs.documents, source)
    }
    return decision
}
