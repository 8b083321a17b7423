import ArgumentParser
import Configuration
import Gateway
import Identity
import Wire

/// `sluice token`: makes tokens for callers.
struct Tokens: ParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "token", abstract: "Make tokens for callers.",
        subcommands: [NewToken.self, UnsignedToken.self])
}

/// `sluice token new`: makes a static token and prints it; the token is not stored.
private struct NewToken: ParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "new", abstract: "Make a static token and its configuration entry.",
        discussion: """
            Prints the token to standard output: give it to the caller, who sends it as 'Authorization: Bearer TOKEN'. \
            Prints the configuration entry to standard error. The entry has only the token's SHA-256, so the token \
            can't be recovered from it; the token is not stored anywhere.
            """)

    @Argument(help: "The caller's name: request.auth.uid.")
    var name: String

    func validate() throws {
        if let fault = Configuration.Token.fault(in: name) { throw ValidationError(fault) }
    }

    func run() {
        let (token, sha256) = StaticTokens.generate()
        print(token)
        complain("tokens:\n  \(name): { sha256: \"\(sha256)\" }")
    }
}

/// `sluice token unsigned`: for `sluice serve --unsigned-tokens`.
private struct UnsignedToken: ParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "unsigned",
        abstract: "Print a token without a signature, for testing rules.",
        discussion: """
            Only 'sluice serve --unsigned-tokens' accepts it, which listens on loopback addresses only.
            """)

    @Option(help: "The caller's request.auth.uid.")
    var uid: String

    @Option(
        name: .customLong("claim"),
        help: "A claim, NAME=VALUE. VALUE is JSON; anything else is text. Repeatable.")
    var claims: [String] = []

    func run() throws {
        var json = JSONWriter(reserving: 256)
        json.beginObject()
        json.member("sub", uid)
        for claim in claims {
            guard let equals = claim.firstIndex(of: "="), claim[..<equals] != "sub" else {
                throw ValidationError("--claim expects NAME=VALUE (not sub), and got '\(claim)'.")
            }
            let text = String(claim[claim.index(after: equals)...])
            let name = String(claim[..<equals])
            if (try? JSONReader.parse(Array(text.utf8))) != nil {
                json.member(key: name, json: text.utf8)
            } else {
                json.member(key: name, text)
            }
        }
        json.endObject()
        let header = Base64.encodeForURL(Array(#"{"alg":"none"}"#.utf8))
        print("\(header).\(Base64.encodeForURL(json.bytes)).")
    }
}
