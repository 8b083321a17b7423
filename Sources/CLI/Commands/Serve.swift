import ArgumentParser
import Configuration
import Gateway
import Glibc
import Identity
import System
import Wire

/// `sluice serve`: serves until SIGTERM or SIGINT, then drains; a second signal exits at once. SIGHUP reloads.
struct Serve: ParsableCommand {
    static let configuration = CommandConfiguration(
        abstract: "Serve the configured buckets.",
        discussion: """
            SIGTERM or SIGINT drains: open requests are finished, then the program exits; a second signal exits at \
            once. SIGHUP reloads the configuration, the rules, the static tokens and the certificates. \
            Exit status: 0 drained, 1 errors in the configuration, 2 could not start, 3 the drain took too long, 64 \
            wrong usage, 128 plus the signal's number after a second signal.
            """)

    @Argument(
        help: """
            The configuration file (default: --config, or SLUICE_CONFIG), or a directory that is served as a bucket, \
            without a configuration file; it is created if its path ends with a slash.
            """,
        completion: .file())
    var path: String?

    @Option(
        help: "The bucket's name, if a directory is served (default: the directory's own name).")
    var bucket: String?

    @Option(
        help: "The file of Security Rules: overrides the key 'rules'.", completion: .file())
    var rules: String?

    @Flag(
        help: "No rules: everybody who reaches the listeners may read, write and delete everything."
    )
    var open = false

    @Flag(
        help: """
            Also serve the console for browsers, at 127.0.0.1:9091 unless --set listen.console=ADDRESS says another \
            address. Prints its URL with a new token.
            """)
    var console = false

    @OptionGroup var options: ConfigurationOptions

    @Flag(
        help: """
            For development only: accept tokens without a signature and tokens of unknown issuers. \
            Every listener, the operator listener included, must have a loopback address.
            """)
    var unsignedTokens = false

    func validate() throws {
        if open, rules != nil { throw ValidationError("--open and --rules exclude each other.") }
    }

    func run() throws {
        let served = try ServedDirectory(path, name: bucket)
        if bucket != nil, served == nil {
            throw ValidationError("--bucket NAME requires a directory to serve.")
        }
        var options = options
        if let served {
            if let config = options.config {
                throw ValidationError(
                    "A directory is served without a configuration file: leave out --config \(config).")
            }
            options.settings += served.settings
            let isDecided = open || rules != nil || options.settings.contains { $0.hasPrefix("rules=") }
            if !isDecided, Environment.variables()["SLUICE_RULES"] == nil {
                throw ValidationError(
                    "Give --rules FILE, or --open to let everybody who reaches the listener read and write.")
            }
        }
        if let rules = open ? Configuration.openToAll : rules {
            options.settings.append("rules=\(rules)")
        }
        let token = console ? addConsole(to: &options.settings) : nil
        let source: ConfigurationOptions.Source = served == nil ? .file(argument: path) : .flags
        let configuration = try options.load(source)
        if unsignedTokens { try requireLoopback(configuration) }
        let signals = SignalSet([SIGTERM, SIGINT, SIGHUP])
        let manager: ServiceManager
        let service: Service
        do {
            manager = try ServiceManager(Environment.variables())
            service = try Service(configuration, manager, acceptsUnsigned: unsignedTokens)
        } catch {
            complain("\(try options.file(source) ?? path ?? "serve"): error: \(error)")
            // Not exit(): it would destroy objects that loops which have been started still use.
            Glibc._exit(2)
        }
        if let served, isatty(STDERR_FILENO) == 1 { served.introduce(configuration) }
        if let token, let address = service.consoleAddress.withLock({ $0 }) {
            let isPath = address.description.hasPrefix(SocketAddress.unixPrefix)
            complain("Console: " + (isPath ? "\(address), token \(token)" : "http://\(address)/#\(token)"))
        }
        ProcessMemory.releaseCode()
        ProcessMemory.releaseHeapAfterBursts()
        var isEnding = false
        while true {
            let signal = signals.wait()
            if signal == SIGHUP {
                manager.reloading()
                service.reload { try options.read(source) }
                manager.ready()
            } else if isEnding {
                service.abandon()
                Glibc._exit(128 + signal)
            } else {
                isEnding = true
                service.boundEnd()
                Task {
                    await service.drain()
                    // Not exit(): it would destroy objects that the running loops still use.
                    Glibc._exit(0)
                }
            }
        }
    }
}

extension Serve {
    /// Adds the settings of a console with a new token, which it returns.
    private func addConsole(to settings: inout [String]) -> String {
        let (token, sha256) = StaticTokens.generate()
        let isGiven = settings.contains { $0.hasPrefix("listen.console=") }
        if !isGiven, Environment.variables()["SLUICE_LISTEN_CONSOLE"] == nil {
            settings.append("listen.console=127.0.0.1:9091")
        }
        settings.append("console.token=\(sha256)")
        return token
    }

    /// Exits if a listener is not on loopback: every client can claim any identity.
    private func requireLoopback(_ configuration: Configuration) throws {
        let all = [
            configuration.http, configuration.https.address, configuration.operatorAddress, configuration.s3.http,
            configuration.s3.https, configuration.console.address,
        ]
        for address in all.compactMap({ $0 }) {
            guard SocketAddress(address)?.isLoopback == true else {
                complain("--unsigned-tokens: error: \(address) is not a loopback address, such as 127.0.0.1")
                throw ExitCode(2)
            }
        }
    }
}

/// Blocks signals so that `wait()` can receive them. Threads that are started later inherit the blocked set.
private struct SignalSet {
    private var set = sigset_t()

    init(_ signals: [Int32]) {
        sigemptyset(&set)
        for signal in signals { sigaddset(&set, signal) }
        pthread_sigmask(SIG_BLOCK, &set, nil)
        signal(SIGPIPE, SIG_IGN)
    }

    func wait() -> Int32 {
        var set = set
        var signal: Int32 = 0
        while sigwait(&set, &signal) != 0 {}
        return signal
    }
}
