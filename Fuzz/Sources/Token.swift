import OpenSSL
import System
import Wire

@testable import Gateway
@testable import Identity

/// Parses bytes as a token, a field value or a key set, selected by the first byte. Nothing crashes, and nothing
/// without a valid signature is accepted.
func fuzzToken(_ bytes: [UInt8]) {
    let rest = Array(bytes.dropFirst())
    switch (bytes.first ?? 0) % 4 {
    case 0: _ = try? KeySet(rest)
    case 1: judge(rest)
    case 2:
        // Encodes header and claims as base64, so that the parser behind the decoder is reached.
        let parts = rest.split(
            separator: 0x0a, maxSplits: 1, omittingEmptySubsequences: false)
        judge(
            parts.map { Array(Base64.encodeForURL(Array($0)).utf8) }.joined(separator: [0x2e]) + [
                0x2e
            ])
    default: ask(rest)
    }
}

private let keys = """
    {"keys": [{"kty": "EC", "crv": "P-256", "x": "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU",
     "y": "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"}]}
    """
private let key = try! KeySet(Array(keys.utf8)).keys[0]
private let now: Int64 = 1_700_000_000
private let issuer = TokenIssuer(
    name: "a", keys: .file("/keys"), issuer: "https://a.example", audiences: ["a"])

/// A token results in a principal within the limits, or in an error without details.
private func judge(_ text: [UInt8]) {
    guard text.count(where: { $0 == 0x2e }) == 2, let token = try? JSONWebToken(text) else {
        return
    }
    precondition(text.count <= JSONWebToken.maximumBytes)
    let validator = ClaimsValidator(token, now)
    for entry in [try? validator.principal(issuer, key), try? validator.developer()] {
        guard let entry else { continue }
        let principal = entry.principal
        precondition(Principal.uidBytes.contains(principal.uid.utf8.count))
        precondition(entry.until > now)
        // Claims that were accepted can be converted for the rules.
        _ = principal.auth
    }
    let message = text.span.bytes.extracting(first: token.signedBytes)
    for algorithm in SignatureAlgorithm.allCases {
        precondition(!key.verifies(message, token.signature, algorithm))
    }
}

private let pool = BlockingPool(threads: 1)
private let authenticator = Authenticator(
    issuers: [issuer], staticTokens: [], acceptsUnsigned: false, pool: pool, now: { now },
    environment: [:])

/// No configured issuer has keys, so no token is accepted. The call never suspends, so it ends at once.
private func ask(_ value: [UInt8]) {
    var fields = HeaderFields()
    fields.append("authorization", String(decoding: value, as: UTF8.self))
    let asked = fields
    Task.immediate {
        let principal = try? await authenticator.authenticate(asked)
        precondition((principal ?? nil) == nil)
    }
}
