import ArgumentParser
import Glibc
import SecurityRules

/// `sluice rules …`: for people who write rules. One file a verb; `docs/writing-rules.md` is their guide.
struct Rules: ParsableCommand {
    static let configuration = CommandConfiguration(
        abstract: "Check, test, explain and format Security Rules.",
        subcommands: [RulesCheck.self, RulesTest.self, RulesExplain.self, RulesFormat.self])
}

/// How a verb prints.
enum OutputFormat: String, ExpressibleByArgument, CaseIterable {
    case text
    case json
}

/// Exit statuses that verbs of rules share; 64, wrong usage, is the argument parser's.
enum RulesStatus {
    /// There are findings, or cases that failed.
    static let findings = ExitCode(1)
    /// A file can't be read, or what is in it can't be used at all.
    static let unreadable = ExitCode(2)
    /// `rules explain`: the request is denied.
    static let denied = ExitCode(3)
    /// `rules explain`: it depends on what was not given.
    static let undecided = ExitCode(4)
}

/// Rules with their text.
struct RulesFile {
    let rules: Ruleset
    let source: String

    /// The rules of a file; what is wrong with it goes to standard error, and the process ends with status 2.
    init(_ path: String) throws {
        let source = try orUnreadable { try TextFile.read(path) }
        try self.init(source: source, fileName: TextFile.name(path))
    }

    /// Rules from their text; what is wrong with them goes to standard error, and the process ends with status 2.
    init(source: String, fileName: String) throws {
        self.source = source
        do {
            rules = try Ruleset.load(source: source, fileName: fileName)
        } catch {
            for diagnostic in error.diagnostics where diagnostic.severity == .error {
                complain(diagnostic.rendered(source: source))
            }
            throw RulesStatus.unreadable
        }
    }
}

/// Runs `body`; what it throws goes to standard error, and the process ends with status 2.
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

/// The time now.
func now() -> Timestamp {
    var time = timespec()
    clock_gettime(CLOCK_REALTIME, &time)
    guard let now = Timestamp(seconds: Int64(time.tv_sec), nanoseconds: Int32(time.tv_nsec)) else {
        fatalError("the clock is beyond the year 9999")
    }
    return now
}

/// Whether standard output is a terminal that shows colours and nobody asked for none (https://no-color.org).
func wantsColour() -> Bool {
    func variable(_ name: String) -> String { getenv(name).map { String(cString: $0) } ?? "" }
    return isatty(STDOUT_FILENO) == 1 && variable("NO_COLOR").isEmpty && variable("TERM") != "dumb"
}
