import ArgumentParser
import RulesAnalysis
import SecurityRules
import Wire

/// `sluice rules diff`: what a change of rules allows that was denied, and denies that was allowed.
struct RulesDiffCommand: ParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "diff",
        abstract: "Find what a change of rules newly allows and denies.",
        discussion: """
            Compares two rules files over all requests, not by their text: for each method it shows a request that only \
            one of them allows, or proves that there is none. Each request shown was decided by the rules engine with \
            both files. --json prints one object, which is a suite for 'sluice rules test' with these requests. \
            docs/writing-rules.md says what is proven and what not. Needs Z3 (apt-get install libz3-4). Exit status: 0 \
            nothing is newly allowed, 1 something is newly allowed, 2 a file can't be read or loaded, 4 not decided, 5 \
            Z3 is not installed, 64 wrong usage.
            """)

    @Argument(help: "The rules file before the change; - is standard input.")
    var old: String

    @Argument(help: "The rules file after it; - is standard input.")
    var new: String

    @OptionGroup var options: AnalysisOptions

    func validate() throws {
        if old == "-", new == "-" { throw ValidationError("Only one file can be standard input.") }
    }

    func run() throws {
        let before = try RulesFile(old).rules
        let after = try RulesFile(new).rules
        let solver = try AnalysisOptions.startSolver()
        let diff = RulesDiff(from: before, to: after, solver, milliseconds: options.milliseconds / 2)
        if options.printsJSON {
            print(diff.json.text)
        } else {
            print(diff.text(before.fileName, after.fileName, explains: options.explain), terminator: "")
        }
        if !diff.opened.changes.isEmpty { throw RulesStatus.findings }
        if !diff.opened.open.isEmpty { throw RulesStatus.undecided }
    }
}

/// The options of the verbs that prove.
struct AnalysisOptions: ParsableArguments {
    @Option(
        help: ArgumentHelp(
            "The time limit in seconds. What is not decided by then stays undecided.", valueName: "seconds"))
    var timeLimit = 30

    @Flag(help: "Say why something was not decided.")
    var explain = false

    @Option(help: "text or json.")
    var format = OutputFormat.text

    @Flag(help: "The same as --format json.")
    var json = false

    var printsJSON: Bool { json || format == .json }

    var milliseconds: Int { timeLimit * 1000 }

    func validate() throws {
        guard (1...3600).contains(timeLimit) else {
            throw ValidationError("--time-limit must be from 1 to 3600 seconds.")
        }
    }

    /// Starts the solver. Without Z3 the process exits with status 5.
    static func startSolver() throws -> Solver {
        do {
            return try Solver()
        } catch {
            complain("\(error)")
            throw RulesStatus.noSolver
        }
    }
}
