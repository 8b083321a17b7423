import ArgumentParser
import EventLoop
import Gateway
import Glibc

/// `sluice serve`: serves until SIGTERM or SIGINT, then drains; a second signal ends it at once. SIGHUP reloads.
struct Serve: ParsableCommand {
    static let configuration = CommandConfiguration(
        abstract: "Serve the configured buckets.",
        discussion: """
            Signals: SIGTERM and SIGINT drain open requests and end with status 0; a second one ends at once. \
            SIGHUP reads the configuration, the rules, static tokens and the certificates again. Exit status: 0 after a drain, 1 findings in \
            the configuration, 2 could not start, 64 wrong usage, 128 and the signal's number after a second signal.
            """)

    @OptionGroup var options: ConfigurationOptions

    @Flag(
        help: """
            For development: take the word of whoever calls, also by tokens without a signature. Only where every \
            listener, the operator's too, is on a loopback address.
            """)
    var unsignedTokens = false

    func run() throws {
        let file = try options.file()
        let configuration = try options.load()
        if unsignedTokens { try requireLoopback(configuration) }
        let signals = SignalSet([SIGTERM, SIGINT, SIGHUP])
        let service: Service
        do {
            service = try Service(configuration, acceptsUnsigned: unsignedTokens)
        } catch {
            complain("\(file): error: \(error)")
            throw ExitCode(2)
        }
        var isEnding = false
        while true {
            let signal = signals.wait()
            if signal == SIGHUP {
                service.reload { try options.read() }
            } else if isEnding {
                service.abandon()
                Glibc._exit(128 + signal)
            } else {
                isEnding = true
                Task {
                    await service.drain()
                    // Not exit(): loops still run, and what it would tidy up is theirs.
                    Glibc._exit(0)
                }
            }
        }
    }
}

extension Serve {
    /// Who takes anybody's word must not be reached by anybody.
    private func requireLoopback(_ configuration: Configuration) throws {
        let all = [configuration.http, configuration.https.address, configuration.operatorAddress]
        for address in all.compactMap({ $0 }) {
            guard SocketAddress(address)?.isLoopback == true else {
                complain(
                    "--unsigned-tokens: error: \(address) is not a loopback address, such as 127.0.0.1"
                )
                throw ExitCode(2)
            }
        }
    }
}

/// Signals that are waited for in place of being delivered. Threads that are started afterwards block them too.
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
