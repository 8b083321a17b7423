import ArgumentParser
import RulesTesting
import SecurityRules
import Wire

/// `sluice rules test`: evaluates the requests of test suites, as the gateway would.
struct RulesTest: ParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "test",
        abstract: "Run test suites against rules.",
        discussion: """
            A suite is a YAML file as described in docs/writing-rules.md, what 'sluice rules diff' or 'prove' prints with \
            --json, or the JSON body of a request to projects.test of the Firebase Rules API. Without FILE, the suite's own 'source' gives the rules. With \
            --format json each case is one line, {"state": "SUCCESS" | "FAILURE", …}, in the suite's order. Exit \
            status: 0 all cases pass, 1 a case fails, 2 a file can't be read or used, 64 wrong usage.
            """)

    @Argument(help: "The rules file (default: the rules in the suite).")
    var file: String?

    @Option(name: .customLong("suite"), help: "A test suite. Repeatable.")
    var suites: [String]

    @Option(help: "text or json.")
    var format = OutputFormat.text

    @Flag(
        help:
            "Also print each expression with its values; in JSON, as expressionReports of each case."
    )
    var coverage = false

    @Option(
        help: ArgumentHelp("Write the coverage as an HTML page.", valueName: "file"))
    var coverageHtml: String?

    func validate() throws {
        if suites.isEmpty { throw ValidationError("Give at least one --suite.") }
        if coverageHtml != nil, file == nil {
            throw ValidationError("--coverage-html requires FILE: the page shows one rules file.")
        }
    }

    func run() throws {
        let own = try file.map { try RulesFile($0) }
        let now = now()
        let suites = try suites.map { path in
            try orUnreadable {
                let suite = try TestSuite.read(TextFile.read(path), fileName: TextFile.name(path), now: now)
                return (suite, try own ?? Self.carried(suite))
            }
        }
        var totals = (passed: 0, failed: 0)
        var covered = own.map { [CoverageReport($0.rules)] } ?? []
        for (suite, file) in suites {
            let rules = file.rules
            if own == nil { covered.append(CoverageReport(rules)) }
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
            complain("\(suite.fileName): error: there are no rules: give their file, or a 'source' in the suite")
            throw RulesStatus.unreadable
        }
        return try RulesFile(source: source.text, fileName: source.fileName)
    }
}
