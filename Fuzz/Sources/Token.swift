import EventLoop
import OpenSSL
import Wire

@testable import Identity

/// Bytes as a token, as a field's value, and as a key set: nothing crashes, and nothing that no key has signed is ever
/// believed. The first byte chooses.
func fuzzToken(_ bytes: [UInt8]) {
    let rest = Array(bytes.dropFirst())
    switch (bytes.first ?? 0) % 4 {
    case 0: _ = try? KeySet(rest)
    case 1: judge(rest)
    case 2:
        // Claims and header as they are, so that what follows base64 is reached.
        let parts = rest.split(
            separator: 0x0a, maxSplits: 1, omittingEmptySubsequences: false)
        judge(parts.map { Array(Base64.encodeForURL($0).utf8) }.joined(separator: [0x2e]) + [0x2e])
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

/// Whatever a token says comes to a principal within the limits, or to an error that tells nothing.
private func judge(_ text: [UInt8]) {
    guard text.count(where: { $0 == 0x2e }) == 2, let token = try? WebToken(text) else { return }
    precondition(text.count <= WebToken.maximumBytes)
    let judgement = Judgement(token, now)
    for entry in [try? judgement.principal(issuer, key), try? judgement.developer()] {
        guard let entry else { continue }
        let principal = entry.principal
        precondition(Principal.uidBytes.contains(principal.uid.utf8.count))
        precondition(entry.until > now)
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

/// Nothing is configured whose keys are there: nobody gets in. (It never suspends, and so ends at once.)
private func ask(_ value: [UInt8]) {
    var fields = HeaderFields()
    fields.append("authorization", String(decoding: value, as: UTF8.self))
    let asked = fields
    Task.immediate {
        let principal = try? await authenticator.authenticate(asked)
        precondition((principal ?? nil) == nil)
    }
}
