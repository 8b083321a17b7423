import ArgumentParser
import RulesTesting
import SecurityRules

/// `sluice rules check`: what is wrong or doubtful in rules.
struct RulesCheck: ParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "check",
        abstract: "Say what is wrong or doubtful in rules.",
        discussion: """
            Findings go to standard error as text, or to standard output as JSON: one line for each file, \
            {"fileName", "issues": […]}, its issues as in the hosted service's API. Exit status: 0 no errors, 1 errors \
            (with --warnings-as-errors: any finding), 2 a file can't be read, 64 wrong usage.
            """)

    @Argument(help: "The files of rules; - is standard input.")
    var files: [String]

    @Option(help: "text or json.")
    var format = OutputFormat.text

    @Flag(help: "Let warnings fail the check too.")
    var warningsAsErrors = false

    func run() throws {
        var isFine = true
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
            let diagnostics = Self.diagnostics(source, TextFile.name(file))
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

    private static func diagnostics(_ source: String, _ name: String) -> [Diagnostic] {
        do {
            return try Ruleset.load(source: source, fileName: name).diagnostics
        } catch {
            return error.diagnostics
        }
    }

    private func report(_ diagnostics: [Diagnostic], _ source: String, _ name: String) {
        if format == .json {
            let issues = diagnostics.map { JSON.raw($0.json) }
            return print(
                JSON.object([("fileName", .string(name)), ("issues", .array(issues))]).text)
        }
        for diagnostic in diagnostics { complain(diagnostic.rendered(source: source)) }
        let errors = diagnostics.count { $0.severity == .error }
        let warnings = diagnostics.count - errors
        print("\(name): \(Self.count(errors, "error")), \(Self.count(warnings, "warning"))")
    }

    private static func count(_ count: Int, _ what: String) -> String {
        "\(count == 0 ? "no" : String(count)) \(what)\(count == 1 ? "" : "s")"
    }
}
