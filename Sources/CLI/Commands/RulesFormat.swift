import ArgumentParser
import SecurityRules
import Wire

/// `sluice rules fmt`: formats rules in the standard style.
struct RulesFormat: ParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "fmt",
        abstract: "Format rules in the standard style.",
        discussion: """
            Prints the formatted rules. --write replaces each file; --check only lists the files that would change. \
            Exit status: 0 success, 1 with --check: a file would change, 2 a file can't be read, written or parsed, \
            64 wrong usage.
            """)

    @Argument(help: "The rules files; - is standard input.")
    var files: [String]

    @Flag(help: "List the files that are not formatted; change nothing.")
    var check = false

    @Flag(help: "Replace each file with its formatted text.")
    var write = false

    func validate() throws {
        if check, write { throw ValidationError("--check and --write exclude each other.") }
        if write, files.contains("-") { throw ValidationError("Standard input can't be written.") }
    }

    func run() throws {
        var isUsable = true
        var isFormatted = true
        for file in files {
            var source = ""
            do {
                source = try TextFile.read(file)
                let formatted = try Ruleset.format(source: source, fileName: TextFile.name(file))
                if check {
                    if formatted != source { print(VisibleText.escaped(TextFile.name(file))) }
                    isFormatted = isFormatted && formatted == source
                } else if !write {
                    print(formatted, terminator: "")
                } else if formatted != source {
                    try TextFile.replace(file, with: formatted)
                }
            } catch let error as RulesetError {
                error.complain(source: source)
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
