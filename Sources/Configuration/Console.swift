import System
import Wire

/// The console for browsers.
public struct ConsoleConfiguration: Sendable, Equatable {
    /// `host:port` of its listener; nil if it is switched off.
    public var address: String?
    /// The SHA-256 of its token, in hexadecimal.
    public var token: String?
    /// Names of hosts at which a proxy serves it.
    public var hosts: [String] = []
    /// Whether the last denials are kept without a viewer.
    public var remember = false

    static let listener: Setting<Configuration> = .address(
        "listen.console", \.console.address,
        "Address of the console for browsers, on loopback; null has none.")

    static let settings: [Setting<Configuration>] = [
        .digest(
            "console.token", \.console.token,
            "SHA-256 of the token that the console needs, as 'sluice token new' prints it."),
        .list(
            "console.hosts", "host names", \.console.hosts,
            "Hosts at which a proxy with authentication of its own serves the console, beside localhost.",
            check: S3Configuration.domainFault),
        .flag(
            "console.remember", \.console.remember,
            "Whether the last denials are kept while nobody looks; otherwise nothing is."),
    ]
}

extension ConfigurationReader {
    mutating func checkConsole() {
        let console = result.console
        guard let address = console.address else {
            if console.token != nil {
                report(SettingError(message: "'console.token' requires 'listen.console'"), at: "console.token")
            }
            return
        }
        if SocketAddress(address)?.isLoopback != true {
            report(
                SettingError(
                    message: "'listen.console': \(address) is not a loopback address, such as 127.0.0.1:9091"),
                at: "listen.console")
        }
        if console.token == nil, broken.isDisjoint(with: ["console", "console.token"]) {
            report(
                SettingError(
                    message:
                        "the console has no token: 'console.token' is the sha256 that 'sluice token new console' prints"
                ),
                at: "listen.console")
        }
    }
}
