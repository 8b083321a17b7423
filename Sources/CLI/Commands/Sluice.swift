import ArgumentParser
import Telemetry

/// The program. Each subcommand has a file of its own.
@main
struct Sluice: ParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "sluice",
        abstract: "A storage gateway: buckets over HTTP/2 and HTTP/1.1, streaming both ways.",
        version: BuildInfo.current.description,
        subcommands: [
            Serve.self, Check.self, Rules.self, Tokens.self, Sign.self, UploadsCommand.self,
        ])
}
