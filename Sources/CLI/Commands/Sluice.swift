import ArgumentParser
import ClientCommands
import Telemetry
import Wire

/// The program. Each subcommand has its own file; the client's are in `ClientCommands`.
@main
struct Sluice: ParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "sluice",
        abstract: "A storage gateway: buckets over HTTP/2 and HTTP/1.1, streaming both ways.",
        version: BuildInfo.current.description,
        groupedSubcommands: [
            CommandGroup(
                name: "Gateway",
                subcommands: [
                    Serve.self, Check.self, Rules.self, Tokens.self, Sign.self, UploadsCommand.self, CacheCommand.self,
                    EventsCommand.self, S3Command.self,
                ]),
            CommandGroup(name: "Client", subcommands: ClientCommands.all.filter { $0 != Events.self }),
            CommandGroup(name: "Shell", subcommands: [Completion.self, Manual.self]),
        ])

    static func main() {
        do {
            var command = try parseAsRoot()
            if command is any ClientCommand { try ClientExecutable.replaceThisProcess() }
            try command.run()
        } catch {
            guard exitCode(for: error) == .success else { end(error) }
            print(examplesLast(fullMessage(for: error)))
        }
    }

    /// Ends the program with a message, in which the arguments are shown without secrets.
    private static func end(_ error: any Error) -> Never {
        var message = fullMessage(for: error)
        guard !message.isEmpty else { exit(withError: error) }
        for argument in CommandLine.arguments {
            let shown = VisibleText.withoutSecrets(argument)
            if shown == argument { continue }
            message = message.split(separator: argument, omittingEmptySubsequences: false).joined(separator: shown)
        }
        complain(message)
        exit(withError: exitCode(for: error))
    }

    /// A help text that ends with its examples. The parser prints them before the usage.
    private static func examplesLast(_ help: String) -> String {
        let lines = help.split(separator: "\n", omittingEmptySubsequences: false)
        guard let start = lines.firstIndex(of: "EXAMPLES:"),
            let end = lines[start...].firstIndex(where: { $0.hasPrefix("USAGE:") })
        else { return help }
        var rest = lines[..<start] + lines[end...]
        while rest.last?.isEmpty == true { rest.removeLast() }
        var examples = lines[start..<end]
        while examples.last?.isEmpty == true { examples.removeLast() }
        return (rest + [""] + examples).joined(separator: "\n")
    }
}
