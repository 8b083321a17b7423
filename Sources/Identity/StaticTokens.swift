import OpenSSL
import Synchronization
import Wire

/// A token that is configured by its hash.
public struct StaticToken: Sendable, Equatable {
    /// The configured name, which is the `uid`.
    public var name: String
    /// SHA-256 of the token: 32 bytes.
    public var sha256: [UInt8]
    /// The group of its principal.
    public var group: String

    /// - Parameter group: By default the name.
    public init(name: String, sha256: [UInt8], group: String? = nil) {
        self.name = name
        self.sha256 = sha256
        self.group = group ?? name
    }
}

/// Makes static tokens.
public enum StaticTokens {
    /// A new token of 256 random bits (`sluice_` and 43 characters), and its SHA-256 for the configuration.
    public static func generate() -> (token: String, sha256: String) {
        var generator = SystemRandomNumberGenerator()
        let bits = (0..<32).map { _ in UInt8.random(in: .min ... .max, using: &generator) }
        let token = "sluice_" + Base64.encodeForURL(bits)
        return (token, Hexadecimal.encode(hash(Array(token.utf8).span.bytes)))
    }

    static func hash(_ token: RawSpan) -> [UInt8] {
        let digest = Digest(.sha256)
        digest.update(token)
        return digest.finish()
    }
}

final class StaticTokenTable: Sendable {
    let tokens: [(token: StaticToken, principal: Principal)]
    /// Whether the tokens were replaced. A cached result must then be looked up again.
    let isReplaced = Atomic(false)

    init(_ tokens: [StaticToken]) {
        self.tokens = tokens.map {
            (
                $0,
                Principal(
                    kind: .staticToken, uid: $0.name, source: $0.name, group: $0.group,
                    expires: .max)
            )
        }
    }

    func find(_ text: [UInt8]) -> Principal? {
        let hash = StaticTokens.hash(text.span.bytes)
        var found: Principal?
        // Compare with all tokens, so that the time does not depend on which one matches.
        for (token, principal) in tokens where areEqualInConstantTime(token.sha256, hash) && found == nil {
            found = principal
        }
        return found
    }
}
