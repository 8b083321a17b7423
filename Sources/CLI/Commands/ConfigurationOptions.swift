import ArgumentParser
import Configuration
import Gateway
import Glibc
import SecurityRules
import System
import Wire

/// The options that name the configuration file and override its values.
struct ConfigurationOptions: ParsableArguments {
    @Option(help: "The configuration file (default: SLUICE_CONFIG).")
    var config: String?

    @Option(
        name: .customLong("listen"),
        help: """
            The address of the listener without TLS: host:port, unix:/PATH of a socket, or null for none.
            """)
    var listen: String?

    @Option(help: "The number of event loops; 0 means one for each available processor.")
    var threads: Int?

    @Option(
        name: .customLong("set"),
        help: "Override a configuration key, as in --set limits.idleTimeout=30s. Repeatable.")
    var settings: [String] = []

    /// The source of the configuration.
    enum Source {
        /// The file that the command's argument, ``config`` or the environment names.
        case file(argument: String?)
        /// Flags and variables alone, which name the buckets.
        case flags
    }

    /// The path of the configuration file; nil if there is none, and flags name the buckets.
    /// - Throws: ``ValidationError`` if no file and no bucket is named, or two files.
    func file(_ source: Source = .file(argument: nil)) throws -> String? {
        guard case .file(let argument) = source else { return nil }
        if let argument, let config {
            throw ValidationError("Give one configuration: \(argument), or --config \(config).")
        }
        let file = argument ?? config ?? Environment.variables()["SLUICE_CONFIG"]
        if file == nil, !settings.contains(where: { $0.hasPrefix("buckets.") }) {
            throw ValidationError(
                """
                No configuration: give --config FILE, set SLUICE_CONFIG, serve a directory with 'sluice serve DIR', or \
                name buckets with --set, as in --set buckets.photos.directory.path=DIR.
                """)
        }
        return file
    }

    /// Reads the configuration. Errors go to standard error, and the process exits with status 1.
    func load(_ source: Source = .file(argument: nil)) throws -> Configuration {
        do {
            return try read(source)
        } catch let error as ConfigurationError {
            complain(error.description)
            throw ExitCode(1)
        }
    }

    /// Reads the configuration.
    /// - Throws: ``ConfigurationError``, or ``ValidationError`` for a wrong flag.
    func read(_ source: Source = .file(argument: nil)) throws -> Configuration {
        try Configuration.load(
            file: try file(source), environment: Environment.variables(),
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
                throw ValidationError("--set expects KEY=VALUE, not '\(setting)'.")
            }
            let path = String(setting[..<equals])
            let value = String(setting[setting.index(after: equals)...])
            flags.append(.init(path: path, value: value, source: "--set \(path)"))
        }
        return flags
    }
}

/// Writes lines to standard error. Control characters other than line feeds and tabs are escaped.
func complain(_ text: String) {
    var line = VisibleText.escapedLines(text) + "\n"
    line.withUTF8 { _ = write(STDERR_FILENO, $0.baseAddress, $0.count) }
}
