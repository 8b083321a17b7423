import ArgumentParser
import RulesTesting
import SecurityRules

/// `sluice rules test`: decides the requests of suites as the gateway would.
struct RulesTest: ParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "test",
        abstract: "Decide the requests of suites, and compare.",
        discussion: """
            A suite is YAML, as docs/writing-rules.md describes it, or the body of a request to the hosted service's \
            projects.test. Without FILE, the rules are those that the suite carries as 'source'. With --format json \
            each case is one line, {"state": "SUCCESS" | "FAILURE", …}, in order. Exit status: 0 all pass, 1 some fail, \
            2 a file can't be read or used, 64 wrong usage.
            """)

    @Argument(help: "The file of rules.")
    var file: String?

    @Option(name: .customLong("suite"), help: "A file of cases. May be given several times.")
    var suites: [String]

    @Option(help: "text or json.")
    var format = OutputFormat.text

    @Flag(
        help:
            "Also print each expression with the values it took; in JSON, as expressionReports of each case."
    )
    var coverage = false

    @Option(
        help: ArgumentHelp("Write the coverage as a page of HTML.", valueName: "file"))
    var coverageHtml: String?

    func validate() throws {
        if suites.isEmpty { throw ValidationError("Give at least one --suite.") }
        if coverageHtml != nil, file == nil {
            throw ValidationError("--coverage-html needs FILE: it shows one file of rules.")
        }
    }

    func run() throws {
        let own = try file.map { try RulesFile($0) }
        let now = now()
        let suites = try suites.map { path in
            try orUnreadable {
                let suite = try TestSuite.read(
                    TextFile.read(path), fileName: TextFile.name(path), now: now)
                return (suite, try own ?? Self.carried(suite))
            }
        }
        var totals = (passed: 0, failed: 0)
        var covered = own.map { [CoverageReport($0.rules, source: $0.source)] } ?? []
        for (suite, file) in suites {
            let rules = file.rules
            if own == nil { covered.append(CoverageReport(rules, source: file.source)) }
            for testCase in suite.cases {
                let result = testCase.run(rules)
                covered[covered.count - 1].add(result)
                if result.passed { totals.passed += 1 } else { totals.failed += 1 }
                switch format {
                case .json: print(result.json(rules, coverage: coverage).text)
                case .text: print(result.text(rules, colour: wantsColour()), terminator: "")
                }
            }
        }
        if format == .text {
            let count = totals.passed + totals.failed
            let counted = count == 1 ? "1 case" : "\(count) cases"
            print("\(counted): \(totals.passed) passed, \(totals.failed) failed")
            if coverage { for one in covered { print(one.text, terminator: "") } }
        }
        if let coverageHtml {
            try orUnreadable { try TextFile.replace(coverageHtml, with: covered[0].page) }
        }
        if totals.failed > 0 { throw RulesStatus.findings }
    }

    private static func carried(_ suite: TestSuite) throws -> RulesFile {
        guard let source = suite.source else {
            complain(
                "\(suite.fileName): error: there are no rules: give their file, or a 'source' in the suite"
            )
            throw RulesStatus.unreadable
        }
        return try RulesFile(source: source.text, fileName: source.fileName)
    }
}
