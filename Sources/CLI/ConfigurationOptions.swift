import ArgumentParser
import Buckets
import Gateway
import Glibc

/// Where the configuration comes from and what overrides it.
struct ConfigurationOptions: ParsableArguments {
    @Option(help: "The configuration file; SLUICE_CONFIG otherwise.")
    var config: String?

    @Option(
        name: .customLong("listen"),
        help: "The address for clear text: host:port, or null for none.")
    var listen: String?

    @Option(help: "Event loops; 0 takes the processors the process may use.")
    var threads: Int?

    @Option(
        name: .customLong("set"),
        help: "Any other key: --set limits.idleTimeout=30s. May be given several times.")
    var settings: [String] = []

    /// The file that is read.
    /// - Throws: ``ValidationError`` where none is named.
    func file(_ argument: String? = nil) throws -> String {
        guard let file = argument ?? config ?? processEnvironment()["SLUICE_CONFIG"] else {
            throw ValidationError("No configuration: give --config FILE or set SLUICE_CONFIG.")
        }
        return file
    }

    /// Reads the configuration; findings go to standard error, and the process ends with status 1.
    func load(_ argument: String? = nil) throws -> Configuration {
        do {
            return try read(argument)
        } catch let error as ConfigurationError {
            complain(error.description)
            throw ExitCode(1)
        }
    }

    /// Reads the configuration.
    /// - Throws: ``ConfigurationError``, or ``ValidationError`` for a wrong flag.
    func read(_ argument: String? = nil) throws -> Configuration {
        try Configuration.load(
            file: try file(argument), environment: processEnvironment(),
            flags: try flags())
    }

    private func flags() throws -> [Configuration.Override] {
        var flags: [Configuration.Override] = []
        if let listen {
            flags.append(.init(path: "listen.http", value: listen, source: "--listen"))
        }
        if let threads {
            flags.append(.init(path: "threads", value: String(threads), source: "--threads"))
        }
        for setting in settings {
            guard let equals = setting.firstIndex(of: "=") else {
                throw ValidationError("--set wants KEY=VALUE, and got '\(setting)'.")
            }
            let path = String(setting[..<equals])
            let value = String(setting[setting.index(after: equals)...])
            flags.append(.init(path: path, value: value, source: "--set \(path)"))
        }
        return flags
    }
}

/// Writes a line to standard error.
func complain(_ text: String) {
    var line = text + "\n"
    line.withUTF8 { _ = write(STDERR_FILENO, $0.baseAddress, $0.count) }
}
