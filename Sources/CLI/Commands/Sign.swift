import ArgumentParser
import Configuration
import Gateway
import Glibc
import System
import Wire

/// `sluice sign`: makes a signed link, with the keys of the gateway that will serve it.
struct Sign: ParsableCommand {
    static let configuration = CommandConfiguration(
        abstract: "Make a signed link: a URL for one method on one object, valid for a while.",
        discussion: """
            Anyone who can read the keys can make links: rules are evaluated neither here nor when the link is used. \
            The gateway rejects a link with a lifetime above its links.maximumLifetime. A service without the keys can \
            request a link with 'POST /b/BUCKET/o/NAME?sign', which is subject to the rules. Exit status: 0 success, 1 \
            errors in the configuration or the keys, 64 wrong usage.
            """)

    @Option(help: "GET (also permits HEAD), PUT or DELETE.")
    var method = "GET"

    @Option(help: "The path as in the request: /b/BUCKET/o/NAME.")
    var path: String?

    @Option(help: "How long the link is valid: 900s, 15m, 24h.")
    var expires = "15m"

    @Option(help: "For PUT: the exact size of the body in bytes.")
    var size: UInt64?

    @Option(help: "For PUT: the Content-Type of the body.")
    var type: String?

    @Option(help: "The gateway's origin, written before the path: https://sluice.example.")
    var origin = ""

    @Option(
        help: """
            The key file (default: links.keys of the configuration). With --new-key: the file that gets the new key \
            as its first line; a new file can only be read by its owner.
            """)
    var keys: String?

    @Option(
        help: "Make a new key of this ID, in the file of --keys, or print its line; sign nothing.")
    var newKey: String?

    @OptionGroup var options: ConfigurationOptions

    func run() throws {
        if let newKey { return try makeKey(newKey) }
        guard let method = SignedLink.Method(rawValue: method.asciiUppercased()) else {
            throw ValidationError("--method must be GET, PUT or DELETE.")
        }
        guard let path else { throw ValidationError("--path is missing.") }
        guard method == .put || size == nil && type == nil else {
            throw ValidationError("--size and --type are properties of links for PUT.")
        }
        let (file, maximum) = try keyFile()
        guard let lifetime = Configuration.duration(expires) else {
            throw ValidationError("--expires must be a duration such as 15m, not '\(expires)'.")
        }
        guard (1_000_000_000...maximum).contains(lifetime) else {
            throw ValidationError("--expires must be from 1s to \(maximum / 1_000_000_000)s (links.maximumLifetime).")
        }
        do {
            var configuration = Configuration()
            configuration.links.keys = file
            guard let keys = try configuration.linkKeys() else { return }
            let now = SystemClock.seconds()
            let link = try SignedLink(
                method, path: path, issued: now, expires: now + Int64(lifetime / 1_000_000_000),
                size: size, contentType: type)
            print((origin.hasSuffix("/") ? String(origin.dropLast()) : origin) + link.target(keys))
        } catch {
            complain("\(error)")
            throw ExitCode(1)
        }
    }

    /// Adds a key to the file. It becomes the first one, which signs; the others still verify their links.
    private func makeKey(_ id: String) throws {
        let line = try generated(id)
        guard let keys else { return print(line) }
        do {
            let old = access(keys, F_OK) == 0 ? try TextFile.read(keys) : ""
            let text = "\(line)\n\(old)"
            _ = try LinkKeys(text: text)
            try TextFile.replace(keys, with: text, isSecret: true)
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

    /// The path of the key file, and the maximum lifetime of a link in nanoseconds.
    private func keyFile() throws -> (String, UInt64) {
        if let keys { return (keys, Configuration().links.maximumLifetime) }
        let links = try options.load().links
        guard let file = links.keys else {
            throw ValidationError("No keys: set links.keys in the configuration, or give --keys FILE.")
        }
        return (file, links.maximumLifetime)
    }
}
