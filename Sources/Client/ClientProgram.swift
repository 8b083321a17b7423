import ArgumentParser
import ClientCommands
import Foundation
import Wire

/// `sluice-client`: performs the verbs of `sluice` that work on a bucket.
@main
enum ClientProgram {
    private struct Root: ParsableCommand {
        static let configuration = CommandConfiguration(
            commandName: "sluice", abstract: "Work with the buckets of a gateway.",
            subcommands: ClientCommands.all)
    }

    static func main() async {
        signal(SIGPIPE, SIG_IGN)
        setlocale(LC_TIME, "C")
        Interruption.arm()
        let verb: any Verb
        do {
            var command = try Root.parseAsRoot()
            guard let found = command as? any Verb else {
                try command.run()
                return
            }
            verb = found
        } catch {
            Root.exit(withError: error)
        }
        let canContinue = verb.canContinue
        let performed = Task { try await verb.perform() }
        Interruption.begin(canContinue: canContinue) { performed.cancel() }
        do {
            exit(try await performed.value)
        } catch {
            let failure = ClientError(error, about: "sluice")
            Output.line(failure.message)
            exit(failure.status.rawValue)
        }
    }
}
