import ArgumentParser
import Glibc
import SecurityRules
import System
import Wire

/// `sluice rules …`: tools for writing rules, one file for each subcommand. See `docs/writing-rules.md`.
struct Rules: ParsableCommand {
    static let configuration = CommandConfiguration(
        abstract: "Check, test, explain, format, compare and prove Security Rules.",
        subcommands: [
            RulesCheck.self, RulesTest.self, RulesExplain.self, RulesFormat.self, RulesDiffCommand.self,
            RulesProve.self,
        ])
}

/// The format that a subcommand prints.
enum OutputFormat: String, ExpressibleByArgument, CaseIterable {
    case text
    case json
}

/// Exit statuses of the `rules` subcommands. The argument parser exits with 64 on wrong usage.
enum RulesStatus {
    /// The rules have findings, or test cases failed.
    static let findings = ExitCode(1)
    /// A file can't be read, or its content can't be used at all.
    static let unreadable = ExitCode(2)
    /// `rules explain`: the request is denied.
    static let denied = ExitCode(3)
    /// `rules explain`: the decision depends on a value that was not given. `rules diff` and
    /// `rules prove`: a question was not decided.
    static let undecided = ExitCode(4)
    /// `rules diff`, `rules prove` and `rules check --prove`: Z3 is not installed.
    static let noSolver = ExitCode(5)
}

/// Rules from a file.
struct RulesFile {
    let rules: Ruleset

    /// Loads the rules of a file. Errors go to standard error, and the process exits with status 2.
    init(_ path: String) throws {
        let source = try orUnreadable { try TextFile.read(path) }
        try self.init(source: source, fileName: TextFile.name(path))
    }

    /// Loads rules from their text. Errors go to standard error, and the process exits with status 2.
    init(source: String, fileName: String) throws {
        do {
            rules = try Ruleset.load(source: source, fileName: fileName)
        } catch {
            error.complain(source: source)
            throw RulesStatus.unreadable
        }
    }
}

extension RulesetError {
    /// Writes the errors to standard error, each with its line of the source.
    func complain(source: String) {
        let errors = diagnostics.filter { $0.severity == .error }
        for text in errors.rendered(source: source) { CLI.complain(text) }
    }
}

/// Runs `body`. An error that it throws goes to standard error, and the process exits with status 2.
func orUnreadable<Result>(_ body: () throws -> Result) throws -> Result {
    do {
        return try body()
    } catch let exit as ExitCode {
        throw exit
    } catch {
        complain("\(error)")
        throw RulesStatus.unreadable
    }
}

/// The current time.
func now() -> Timestamp {
    let time = SystemClock.time()
    guard let now = Timestamp(seconds: Int64(time.tv_sec), nanoseconds: Int32(time.tv_nsec)) else {
        fatalError("the clock is beyond the year 9999")
    }
    return now
}

/// Whether standard output is a terminal with colours, and `NO_COLOR` is not set (https://no-color.org).
func wantsColour() -> Bool {
    func variable(_ name: String) -> String { getenv(name).map { String(cString: $0) } ?? "" }
    return isatty(STDOUT_FILENO) == 1 && variable("NO_COLOR").isEmpty && variable("TERM") != "dumb"
}
