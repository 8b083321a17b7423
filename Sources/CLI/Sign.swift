import ArgumentParser
import EventLoop
import Gateway

/// `sluice sign`: makes a signed link with the keys of the gateway that is to honour it.
struct Sign: ParsableCommand {
    static let configuration = CommandConfiguration(
        abstract: "Make a signed link: a URL that allows one request on one object for a while.",
        discussion: """
            Whoever can read the keys decides: no rule is asked, here or when the link is used. A service without the keys \
            asks the gateway for a link by 'POST /b/BUCKET/o/NAME?sign', which the rules decide. Exit status: 0 fine, 1 \
            findings in the configuration or the keys, 64 wrong usage.
            """)

    @Option(help: "GET (good for HEAD too), PUT or DELETE.")
    var method = "GET"

    @Option(help: "The path as it stands in a request: /b/BUCKET/o/NAME.")
    var path: String?

    @Option(help: "How long the link is valid: 900s, 15m, 24h.")
    var expires = "15m"

    @Option(help: "Bytes of the body of a PUT.")
    var size: UInt64?

    @Option(help: "Content-Type of the body of a PUT.")
    var type: String?

    @Option(help: "What to put before the path: https://sluice.example.")
    var origin = ""

    @Option(help: "The file of keys; links.keys of the configuration otherwise.")
    var keys: String?

    @Option(help: "Print a line with a new key of this id for the file of keys, and sign nothing.")
    var newKey: String?

    @OptionGroup var options: ConfigurationOptions

    func run() throws {
        if let newKey { return print(try generated(newKey)) }
        guard let method = SignedLink.Method(rawValue: method.uppercased()) else {
            throw ValidationError("--method is GET, PUT or DELETE.")
        }
        guard let path else { throw ValidationError("--path is missing.") }
        guard method == .put || size == nil && type == nil else {
            throw ValidationError("--size and --type are of links for PUT.")
        }
        let (file, maximum) = try place()
        guard let lifetime = Configuration.duration(expires) else {
            throw ValidationError("--expires is a duration such as 15m, and not '\(expires)'.")
        }
        guard (1_000_000_000...maximum).contains(lifetime) else {
            throw ValidationError(
                "--expires is from 1s to \(maximum / 1_000_000_000)s (links.maximumLifetime).")
        }
        do {
            var configuration = Configuration()
            configuration.links.keys = file
            guard let keys = try configuration.linkKeys() else { return }
            let link = try SignedLink(
                method, path: path, expires: systemSeconds() + Int64(lifetime / 1_000_000_000),
                size: size, contentType: type)
            print((origin.hasSuffix("/") ? String(origin.dropLast()) : origin) + link.target(keys))
        } catch {
            complain("\(error)")
            throw ExitCode(1)
        }
    }

    private func generated(_ id: String) throws -> String {
        do throws(LinkKeys.Malformed) {
            return try LinkKeys.generate(id: id)
        } catch {
            throw ValidationError("--new-key: \(error)")
        }
    }

    /// The file of keys, and how long a link may be valid.
    private func place() throws -> (String, UInt64) {
        if let keys { return (keys, Configuration().links.maximumLifetime) }
        let links = try options.load().links
        guard let file = links.keys else {
            throw ValidationError(
                "No keys: the configuration has no links.keys. Or give --keys FILE.")
        }
        return (file, links.maximumLifetime)
    }
}
