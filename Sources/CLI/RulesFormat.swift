import ArgumentParser
import SecurityRules

/// `sluice rules fmt`: rules in the one style.
struct RulesFormat: ParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "fmt",
        abstract: "Format rules in the one style.",
        discussion: """
            Prints the formatted rules; --write puts them in place of the file, and --check only names the files that \
            would change. Exit status: 0 fine, 1 with --check: some would change, 2 a file can't be read, written or \
            parsed, 64 wrong usage.
            """)

    @Argument(help: "The files of rules; - is standard input.")
    var files: [String]

    @Flag(help: "Name the files that are not formatted, and change nothing.")
    var check = false

    @Flag(help: "Write each file anew.")
    var write = false

    func validate() throws {
        if check, write { throw ValidationError("--check and --write exclude each other.") }
        if write, files.contains("-") { throw ValidationError("Standard input can't be written.") }
    }

    func run() throws {
        var isUsable = true
        var isFormatted = true
        for file in files {
            do {
                let source = try TextFile.read(file)
                let formatted = try Ruleset.format(source: source, fileName: TextFile.name(file))
                if check {
                    if formatted != source { print(TextFile.name(file)) }
                    isFormatted = isFormatted && formatted == source
                } else if !write {
                    print(formatted, terminator: "")
                } else if formatted != source {
                    try TextFile.replace(file, with: formatted)
                }
            } catch let error as RulesetError {
                let source = try? TextFile.read(file)
                for diagnostic in error.diagnostics where diagnostic.severity == .error {
                    complain(diagnostic.rendered(source: file == "-" ? nil : source))
                }
                isUsable = false
            } catch {
                complain("\(error)")
                isUsable = false
            }
        }
        if !isUsable { throw RulesStatus.unreadable }
        if !isFormatted { throw RulesStatus.findings }
    }
}
