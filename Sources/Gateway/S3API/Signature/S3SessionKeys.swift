import Identity
import OpenSSL
import Wire

/// Temporary credentials (STS).
struct S3SessionCredentials: Sendable {
    let accessKeyID: String
    let secretAccessKey: String
    let sessionToken: String
    /// In seconds since 1970. From then on the credentials are not valid.
    let expiration: Int64
}

/// The keys that issue and verify temporary credentials. The first key issues, and each key verifies its own. A removed
/// key revokes the credentials that it has issued.
///
/// A session token is the caller itself, encrypted, so that no state is kept. It is base64url without padding and
/// contains the length of the key's id (1 byte), that id, a nonce of 12 bytes and, encrypted by AES-256-GCM, the times of
/// issue and expiry (8 bytes each), the access key's id (20 bytes) and the JSON of the caller. The key's id is
/// authenticated too.
public struct S3SessionKeys: Sendable, Equatable {
    /// The maximum length of a session token in characters.
    static let maximumToken = 4096
    private static let idPrefix = "ASIA"
    private static let idDigits = 16
    private static let secretLength = 40
    private static let headBytes = 16 + idPrefix.utf8.count + idDigits
    private let keys: LinkKeys

    /// Parses a key file in the format of link keys.
    /// - Throws: ``LinkKeys/Malformed`` with the number of the line.
    public init(text: String) throws(LinkKeys.Malformed) { keys = try LinkKeys(text: text) }

    /// One random key. Its credentials are valid until the process ends.
    public static func random() -> S3SessionKeys {
        do throws(LinkKeys.Malformed) {
            return try S3SessionKeys(text: try LinkKeys.generate(id: "process"))
        } catch {
            preconditionFailure("a generated key is malformed: \(error)")
        }
    }

    /// Derives the key, which differs from those for links and uploads even if all come from one file.
    private func cipher(_ key: LinkKey) -> AES256GCM {
        AES256GCM(key: HMAC.sha256(key: key.secret, Array("sluice s3 token 1".utf8).span.bytes))
    }

    /// Derives the secret of credentials.
    private func secret(_ key: LinkKey, _ accessKeyID: some Sequence<UInt8>, _ expires: Int64) -> [UInt8] {
        let base = HMAC.sha256(key: key.secret, Array("sluice s3 session 1".utf8).span.bytes)
        let hash = HMAC.sha256(key: base, (Array(accessKeyID) + S3SessionKeys.bytes(expires)).span.bytes)
        return Array(Base64.encode(hash).utf8.prefix(S3SessionKeys.secretLength))
    }

    private static func bytes(_ number: Int64) -> [UInt8] {
        (0..<8).map { UInt8(truncatingIfNeeded: number >> (56 - 8 * Int64($0))) }
    }

    private static func number(_ bytes: ArraySlice<UInt8>) -> Int64 {
        bytes.reduce(0) { $0 << 8 | Int64($1) }
    }

    /// Makes credentials of a caller with the newest key.
    /// - Parameters:
    ///   - now: Seconds since 1970.
    ///   - expires: Seconds since 1970.
    /// - Throws: ``Problem``: `PackedPolicyTooLarge` if the caller's claims are too large for a token.
    func issue(_ caller: SavedCaller, now: Int64, expires: Int64) throws(Problem) -> S3SessionCredentials {
        let key = keys.newest
        let id = AccessKeys.randomID(S3SessionKeys.idPrefix, digits: S3SessionKeys.idDigits)
        let header = [UInt8(key.id.utf8.count)] + key.id.utf8
        let nonce = AES256GCM.randomNonce()
        let text = S3SessionKeys.bytes(now) + S3SessionKeys.bytes(expires) + id.utf8 + caller.json
        let token = Base64.encodeForURL(header + nonce + cipher(key).seal(text, nonce: nonce, authenticated: header))
        guard token.utf8.count <= S3SessionKeys.maximumToken else {
            throw .s3(
                .invalidArgument, 400, "PackedPolicyTooLarge",
                "The claims of the token are too large for a session token.",
                cause: "a session token of \(token.utf8.count) characters")
        }
        return S3SessionCredentials(
            accessKeyID: id, secretAccessKey: String(decoding: secret(key, id.utf8, expires), as: UTF8.self),
            sessionToken: token, expiration: expires)
    }

    /// Opens a session token.
    /// - Parameters:
    ///   - accessKeyID: The id that the request has along with the token.
    ///   - now: Seconds since 1970.
    /// - Returns: The secret, the caller, and the expiry in seconds since 1970.
    /// - Throws: ``Problem``: `InvalidToken`, `ExpiredToken`.
    func open(_ token: [UInt8], accessKeyID: ArraySlice<UInt8>, now: Int64) throws(Problem) -> (
        secret: [UInt8], caller: SavedCaller, expires: Int64
    ) {
        guard token.count <= S3SessionKeys.maximumToken, let bytes = Base64.decodeForURL(token[...]),
            let idLength = bytes.first.map(Int.init), bytes.count > 1 + idLength + AES256GCM.nonceBytes
        else { throw .invalidToken(cause: "the session token is malformed") }
        let header = Array(bytes[...idLength])
        guard let key = keys.key(String(decoding: header[1...], as: UTF8.self)) else {
            throw .invalidToken(cause: "the key of the session token is not configured")
        }
        let rest = bytes[(1 + idLength)...]
        let opened = cipher(key).open(
            Array(rest.dropFirst(AES256GCM.nonceBytes)), nonce: Array(rest.prefix(AES256GCM.nonceBytes)),
            authenticated: header)
        guard let opened, opened.count > S3SessionKeys.headBytes else {
            throw .invalidToken(cause: "the session token is altered")
        }
        let expires = S3SessionKeys.number(opened[8..<16])
        guard now < expires else { throw .expiredToken }
        guard opened[16..<S3SessionKeys.headBytes].elementsEqual(accessKeyID) else {
            throw .invalidToken(cause: "the session token belongs to another access key")
        }
        guard let document = try? JSONDocument(Array(opened[S3SessionKeys.headBytes...])),
            let caller = SavedCaller(document, at: 0)
        else { throw .invalidToken(cause: "the caller of the session token can't be read") }
        return (secret(key, accessKeyID, expires), caller, expires)
    }
}
