import ArgumentParser
import Gateway
import Identity
import Wire

/// `sluice token`: makes tokens.
struct Tokens: ParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "token", abstract: "Make tokens for callers.",
        subcommands: [NewToken.self, UnsignedToken.self])
}

/// `sluice token new`: a static token, which is shown this once.
private struct NewToken: ParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "new", abstract: "Make a static token and what to configure for it.",
        discussion: """
            Prints the token on a line of its own: give it to the caller, who sends it as 'Authorization: Bearer TOKEN'. \
            The entry for the configuration goes to standard error: it has the token's SHA-256 only. Nobody can read \
            the token from it, and nothing else keeps it.
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
        abstract: "Print a token without a signature, for trying rules out.",
        discussion: """
            Only 'sluice serve --unsigned-tokens' takes it, which listens on this machine alone.
            """)

    @Option(help: "request.auth.uid.")
    var uid: String

    @Option(
        name: .customLong("claim"),
        help: "A claim: NAME=VALUE, a JSON value or else text. May be given several times.")
    var claims: [String] = []

    func run() throws {
        var json = JSONWriter(reserving: 256)
        json.beginObject()
        json.member("sub", uid)
        for claim in claims {
            guard let equals = claim.firstIndex(of: "="), claim[..<equals] != "sub" else {
                throw ValidationError("--claim wants NAME=VALUE, and got '\(claim)'.")
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
