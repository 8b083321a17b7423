import ArgumentParser
import RulesAnalysis
import SecurityRules
import Wire

/// `sluice rules prove`: proves that rules never allow certain requests.
struct RulesProve: ParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "prove",
        abstract: "Prove that rules never allow certain requests.",
        discussion: """
            A property is METHODS [PATH] [by CALLER] [when CONDITION]: methods with commas, read or write; a path below \
            the bucket with *, {name} and ** (default: every path); anybody, anonymous, signed-in or 'other NAME', which \
            is everybody whose uid is not the segment {name}; and a condition in the rules language. For each property \
            it prints a proof or a request that contradicts it, which the rules engine has allowed. A file of properties has one on \
            each line, and comments that begin with #. --json prints one object, which is a suite for 'sluice rules test' with \
            the counterexamples. docs/writing-rules.md says what is proven and what not. Needs \
            Z3 (apt-get install libz3-4). Exit status: 0 all are proven, 1 one is contradicted, 2 a file can't be read \
            or loaded, 4 one is not decided, 5 Z3 is not installed, 64 wrong usage.
            """)

    @Argument(help: "The rules file; - is standard input.")
    var file: String

    @Option(help: "A property: requests that must never be allowed. Repeatable.")
    var never: [String] = []

    @Option(help: "A file of properties. Repeatable.")
    var properties: [String] = []

    @OptionGroup var options: AnalysisOptions

    func validate() throws {
        if never.isEmpty, properties.isEmpty {
            throw ValidationError("Nothing to prove: give --never PROPERTY, or --properties FILE.")
        }
        _ = try ownProperties()
    }

    private func ownProperties() throws -> [RulesProperty] {
        try never.map { text in
            do {
                return try RulesProperty(text)
            } catch {
                throw ValidationError(VisibleText.escapedLines("--never '\(text)': \(error)"))
            }
        }
    }

    func run() throws {
        let rules = try RulesFile(file).rules
        let all =
            try ownProperties()
            + properties.flatMap { path in
                try orUnreadable { try RulesProperty.read(TextFile.read(path), fileName: TextFile.name(path)) }
            }
        if all.isEmpty {
            complain("Nothing to prove: the files of --properties have no property.")
            throw RulesStatus.unreadable
        }
        let solver = try AnalysisOptions.startSolver()
        var proofs: [RulesProof] = []
        var isUndecided = false
        var isContradicted = false
        for property in all {
            let proof = RulesProof(property, of: rules, solver, milliseconds: options.milliseconds / all.count)
            proofs.append(proof)
            if !options.printsJSON { print(proof.text(explains: options.explain), terminator: "") }
            switch proof.outcome {
            case .proven: break
            case .contradicted: isContradicted = true
            case .undetermined: isUndecided = true
            }
        }
        if options.printsJSON { print(RulesProof.json(proofs).text) }
        if isContradicted { throw RulesStatus.findings }
        if isUndecided { throw RulesStatus.undecided }
    }
}
