import ArgumentParser
import ClientCommands
import Foundation
import Synchronization
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
            Interruption.canContinue.withLock { $0 = found.canContinue }
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
    /// ``Verb/canContinue`` of the verb that is performed.
    static let canContinue = Mutex(false)

    static func arm() {
        for number in [SIGINT, SIGTERM, SIGHUP] {
            // Who has started this program may want a signal ignored: nohup(1), a shell in the background.
            let before = signal(number, SIG_IGN)
            if unsafeBitCast(before, to: Int.self) == unsafeBitCast(SIG_IGN, to: Int.self) {
                continue
            }
            let source = DispatchSource.makeSignalSource(
                signal: number, queue: DispatchQueue(label: "sluice.signals"))
            source.setEventHandler {
                let advice = canContinue.withLock {
                    $0 ? "; the same command continues where it was." : "."
                }
                Output.line("interrupted\(advice)")
                _exit(128 + number)
            }
            source.resume()
            sources.append(source)
        }
    }
}
