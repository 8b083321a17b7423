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
        do {
            exit(try await verb.perform())
        } catch {
            let failure = ClientError(error, about: "sluice")
            Output.line(failure.message)
            exit(failure.status.rawValue)
        }
    }
}

/// Ends the program at once on a signal. Nothing is cancelled: the gateway keeps what it has for the next attempt.
private enum Interruption {
    // Safety: set once, before other threads exist.
    nonisolated(unsafe) private static var sources: [any DispatchSourceSignal] = []

    static func arm() {
        for number in [SIGINT, SIGTERM, SIGHUP] {
            signal(number, SIG_IGN)
            let source = DispatchSource.makeSignalSource(
                signal: number, queue: DispatchQueue(label: "sluice.signals"))
            source.setEventHandler {
                Output.line("interrupted; the same command continues where it was.")
                _exit(128 + number)
            }
            source.resume()
            sources.append(source)
        }
    }
}
