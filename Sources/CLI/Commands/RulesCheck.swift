import ArgumentParser
import RulesAnalysis
import RulesTesting
import SecurityRules
import Wire

/// `sluice rules check`: reports the errors and warnings of rules.
struct RulesCheck: ParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "check",
        abstract: "Report errors and warnings in rules.",
        discussion: """
            Findings go to standard error as text, or to standard output as JSON. The JSON has one line for each file, \
            {"fileName", "issues": […]}, with issues as in the API of Firebase Rules. Exit status: 0 no errors, 1 \
            errors (with --warnings-as-errors: or warnings), 2 a file can't be read, 5 --prove without Z3, 64 wrong usage.
            """)

    @Argument(help: "The rules files; - is standard input.")
    var files: [String] = []

    @Option(
        help: """
            A configuration file: check all of its rules files, and warn of statements that can never allow anything \
            in their bucket.
            """)
    var config: String?

    @Option(help: "text or json.")
    var format = OutputFormat.text

    @Flag(
        help: """
            Also warn of statements that never allow a request or whose requests others allow too, and of conditions \
            that always hold; 5 seconds for each file. Needs Z3 (apt-get install libz3-4).
            """)
    var prove = false

    @Flag(help: "Treat warnings as errors.")
    var warningsAsErrors = false

    func validate() throws {
        if files.isEmpty, config == nil {
            throw ValidationError("No rules: give files, or --config FILE.")
        }
    }

    func run() throws {
        var files = files
        var isFine = true
        if let config {
            let options = try ConfigurationOptions.parse(["--config=\(config)"])
            let rules = RulesInEffect(try options.load())
            files += rules.configuration.rulesFiles
            for finding in rules.findings() {
                complain("\(finding)")
                if warningsAsErrors { isFine = false }
            }
        }
        let solver = prove ? try AnalysisOptions.startSolver() : nil
        var isReadable = true
        for file in files {
            let source: String
            do {
                source = try TextFile.read(file)
            } catch {
                complain("\(error)")
                isReadable = false
                continue
            }
            let diagnostics = Self.diagnostics(source, TextFile.name(file), solver)
            report(diagnostics, source, TextFile.name(file))
            isFine =
                isFine
                && diagnostics.allSatisfy {
                    $0.severity == .warning && !warningsAsErrors
                }
        }
        if !isReadable { throw RulesStatus.unreadable }
        if !isFine { throw RulesStatus.findings }
    }

    private static func diagnostics(_ source: String, _ name: String, _ solver: Solver?) -> [Diagnostic] {
        do {
            let rules = try Ruleset.load(source: source, fileName: name)
            let proven = solver.map { StatementFindings.warnings(rules, $0, milliseconds: 5_000) } ?? []
            return (rules.diagnostics + rules.fixedDepthListWarnings() + proven).sorted()
        } catch {
            return error.diagnostics
        }
    }

    private func report(_ diagnostics: [Diagnostic], _ source: String, _ name: String) {
        if format == .json {
            let issues = diagnostics.map { JSON.raw($0.json) }
            return print(JSON.object([("fileName", .string(name)), ("issues", .array(issues))]).text)
        }
        for text in diagnostics.rendered(source: source) { complain(text) }
        let errors = diagnostics.count { $0.severity == .error }
        let warnings = diagnostics.count - errors
        let counts = "\(Self.count(errors, "error")), \(Self.count(warnings, "warning"))"
        print("\(VisibleText.escaped(name)): \(counts)")
    }

    private static func count(_ count: Int, _ what: String) -> String {
        "\(count == 0 ? "no" : String(count)) \(what)\(count == 1 ? "" : "s")"
    }
}
