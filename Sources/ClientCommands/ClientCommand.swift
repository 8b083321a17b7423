import ArgumentParser

/// A verb of the command line that works on a bucket through its gateway.
///
/// This target only declares the verbs. `sluice` parses them, for its help, its completions and its manual,
/// and starts `sluice-client`, which does the work: that needs Foundation, and a server should not carry it.
package protocol ClientCommand: ParsableCommand {}

/// A verb whose last argument is its target.
package protocol TransferCommand: ClientCommand {
    /// The sources and the target.
    var arguments: [String] { get }
}

extension TransferCommand {
    /// All arguments but the last.
    package var sources: [String] { Array(arguments.dropLast()) }

    /// The last argument.
    package var target: String { arguments[arguments.count - 1] }

    /// - Throws: `ValidationError` unless there is a source and a target.
    package func validate() throws { try checkArguments() }

    func checkArguments() throws {
        if arguments.count < 2 {
            throw ValidationError("Give at least one source, and then the target.")
        }
    }
}

/// The verbs of the client.
package enum ClientCommands {
    /// All of them, in the order of the help.
    package static let all: [any ParsableCommand.Type] = [
        Put.self, Get.self, Cat.self, List.self, Stat.self, Remove.self, Move.self, Copy.self, Sync.self, Meta.self,
        Events.self,
    ]

    /// The name of the program that performs them.
    package static let executable = "sluice-client"
}

/// The exit statuses of the verbs, as in `docs/client.md`. An interruption by a signal is 128 plus its number.
package enum ClientStatus: Int32, Sendable {
    /// A failure without its own status, or several different failures.
    case failure = 1
    /// A local file or directory can't be read or written.
    case local = 2
    /// No such object, folder or bucket.
    case notFound = 3
    /// The credential is missing or invalid, or the rules deny the request.
    case denied = 4
    /// The object or file was changed by someone else meanwhile.
    case conflict = 5
    /// The gateway can't be reached, or can't serve the request.
    case network = 6
    /// Wrong usage.
    case usage = 64
}
