import ArgumentParser
import ClientCommands
import Foundation
import Wire

/// `sluice-client`: performs the verbs of `sluice` that work on a bucket.
@main
enum ClientProgram {
    private struct Root: ParsableCommand {
        static let configuration = CommandConfiguration(
            commandName: "sluice", abstract: "Work with the buckets of a gateway.", subcommands: ClientCommands.all)
    }

    static func main() async {
        fillStandardStreams()
        signal(SIGPIPE, SIG_IGN)
        setlocale(LC_TIME, "C")
        Interruption.arm()
        let verb: any Verb
        do {
            try checkArguments()
            var command = try Root.parseAsRoot()
            guard let found = command as? any Verb else {
                try command.run()
                return
            }
            verb = found
        } catch let error as ClientError {
            end(error)
        } catch {
            Root.exit(withError: error)
        }
        let canContinue = verb.canContinue
        let performed = Task { try await verb.perform() }
        Interruption.begin(canContinue: canContinue) { performed.cancel() }
        do {
            exit(try await performed.value)
        } catch {
            end(ClientError(error, about: "sluice"))
        }
    }

    private static func end(_ failure: ClientError) -> Never {
        Output.line(failure.message)
        exit(failure.status.rawValue)
    }

    /// Opens something in the place of standard streams that are closed: otherwise a file or a connection would get their
    /// number. Reading standard input and writing standard output fail as before; messages are dropped.
    private static func fillStandardStreams() {
        let streams = [
            (STDIN_FILENO, O_WRONLY), (STDOUT_FILENO, O_RDONLY), (STDERR_FILENO, O_WRONLY),
        ]
        for (descriptor, flags) in streams where fcntl(descriptor, F_GETFD) < 0 {
            _ = open("/dev/null", flags)
        }
    }

    /// The parser replaces bytes that are not UTF-8, and so would name another file.
    private static func checkArguments() throws {
        for index in 1..<max(1, Int(CommandLine.argc)) {
            guard let argument = CommandLine.unsafeArgv[index],
                String(validatingCString: argument) == nil
            else { continue }
            throw ClientError(
                .usage,
                "'\(VisibleText.withoutSecrets(String(cString: argument)))' is not UTF-8, as the names of objects are. Rename the file."
            )
        }
    }
}
