import Buckets
import OpenSSL
import Wire

/// The protocol that a client uses for an upload session.
enum UploadDialect: UInt8, Sendable, CaseIterable {
    /// draft-ietf-httpbis-resumable-upload.
    case ietf = 1
    /// tus 1.0.0.
    case tus = 2
    /// Firebase Storage.
    case firebase = 3
    /// Uploads in parts of the native API.
    case parts = 4
    /// Multipart uploads of S3.
    case s3 = 5

    /// The name in metrics and in the stored context.
    var name: String {
        switch self {
        case .ietf: "ietf"
        case .tus: "tus"
        case .firebase: "firebase"
        case .parts: "parts"
        case .s3: "s3"
        }
    }

    /// Whether the bytes arrive in numbered parts.
    var hasParts: Bool { self == .parts || self == .s3 }

    /// Whether another caller than the creator learns that there is such an upload.
    var deniesOthers: Bool { self == .s3 }

    /// Whether an upload ends if its completion is refused. Otherwise it can be completed again, or cancelled.
    var endsRefused: Bool { self != .s3 }

    /// Whether a session's URL is sufficient to use it. If a credential is sent, it must still be the creator's. In the
    /// other dialects, every request needs the creator's credential.
    var isBearer: Bool { self == .firebase }

    /// Whether an append may begin before the offset. Bytes that are stored already are skipped, and the object's
    /// length is only compared at the end.
    var overlaps: Bool { self == .firebase }

    /// Whether a report of an upload that has ended repeats its result, and an error says that it has ended. In the
    /// other dialects a client would take such an error for the upload's result.
    var reportsEnd: Bool { self == .firebase }

    /// Whether a cancelled session is reported as cancelled instead of unknown.
    var remembersCancelling: Bool { self == .firebase }

    /// Whether an upload is complete as soon as its offset reaches its length. Excess bytes then only fail their
    /// request and don't end the session.
    var endsAtLength: Bool { self == .tus }

    /// Whether a session survives a failed creation or rejected completion, so that the client can retry.
    var outlivesFailures: Bool { self != .tus }

    init?(name: String) {
        guard let dialect = UploadDialect.allCases.first(where: { $0.name == name }) else {
            return nil
        }
        self = dialect
    }
}

/// The name of an upload session in URLs. It is encrypted and authenticated, so it can't be forged or read.
///
/// A token is base64url without padding. It contains the length of the key's id (1 byte), that id, a nonce of 12 bytes
/// and, encrypted by AES-256-GCM, the dialect (1 byte), the session's id (24 bytes: its expiry and 128 random bits) and
/// the bucket's name. The key's id is authenticated too.
struct UploadToken: Equatable {
    var dialect: UploadDialect
    var bucket: String
    var id: UploadSessionID

    /// The length of the longest token in characters. A key's id has at most 64 bytes, a bucket's name at most 222.
    static let maximumLength = 480
}

/// The name of an upload in parts in URLs, encrypted as an ``UploadToken`` is. It has all that a part needs, so that no
/// state is read for it: the dialect (1 byte), the session's id (24 bytes), digests of the object's name with its bucket
/// and of the creator's identity (16 bytes each), and the store's key.
struct PartsToken: Equatable {
    /// Of the longest token, in characters.
    static let maximumLength = 640
    private static let digestBytes = 16

    let dialect: UploadDialect
    let id: UploadSessionID
    let key: [UInt8]
    private let object: ArraySlice<UInt8>
    /// Zeros if the creator was anonymous.
    private let creator: ArraySlice<UInt8>

    init(
        _ id: UploadSessionID, dialect: UploadDialect = .parts, bucket: String, name: String, creator: [UInt8]?,
        key: [UInt8]
    ) {
        self.dialect = dialect
        self.id = id
        self.key = key
        object = PartsToken.digest(of: Array(bucket.utf8) + [0] + name.utf8)
        self.creator = creator.map { PartsToken.digest(of: $0) } ?? PartsToken.nobody
    }

    private static let nobody = [UInt8](repeating: 0, count: digestBytes)[...]

    private static func digest(of bytes: [UInt8]) -> ArraySlice<UInt8> {
        let digest = Digest(.sha256)
        digest.update(bytes.span.bytes)
        return digest.finish().prefix(digestBytes)
    }

    var isAnonymous: Bool { creator == PartsToken.nobody }

    /// Whether the creator has this ``Principal/identity``.
    func isOf(creator identity: [UInt8]) -> Bool { creator == PartsToken.digest(of: identity) }

    func isOf(bucket: String, name: String) -> Bool {
        object == PartsToken.digest(of: Array(bucket.utf8) + [0] + name.utf8)
    }

    fileprivate var bytes: [UInt8] { [dialect.rawValue] + id.bytes + object + creator + key }

    fileprivate init?(_ bytes: [UInt8]) {
        let keyStart = 25 + 2 * PartsToken.digestBytes
        guard bytes.count >= keyStart, let dialect = UploadDialect(rawValue: bytes[0]), dialect.hasParts,
            let id = UploadSessionID(Array(bytes[1..<25]))
        else { return nil }
        self.dialect = dialect
        self.id = id
        object = bytes[25..<25 + PartsToken.digestBytes]
        creator = bytes[25 + PartsToken.digestBytes..<keyStart]
        key = Array(bytes[keyStart...])
    }
}

/// The keys that encrypt the tokens of upload sessions. The first key encrypts, and each key decrypts its own tokens.
public struct UploadKeys: Sendable, Equatable {
    private let keys: LinkKeys

    /// Parses a key file in the format of link keys.
    /// - Throws: ``LinkKeys/Malformed`` with the number of the line.
    public init(text: String) throws(LinkKeys.Malformed) { keys = try LinkKeys(text: text) }

    /// One random key. Its tokens are valid until the process ends.
    public static func random() -> UploadKeys {
        do throws(LinkKeys.Malformed) {
            return try UploadKeys(text: try LinkKeys.generate(id: "process"))
        } catch {
            preconditionFailure("a generated key is malformed: \(error)")
        }
    }

    /// Derives the key, which differs from the one that signs links even if both come from one file.
    private func cipher(_ key: LinkKey) -> AES256GCM {
        AES256GCM(key: HMAC.sha256(key: key.secret, Array("sluice upload 1".utf8).span.bytes))
    }

    /// Returns the token, encrypted with the newest key.
    func seal(_ token: UploadToken) -> String {
        seal([token.dialect.rawValue] + token.id.bytes + token.bucket.utf8)
    }

    /// Returns the token, encrypted with the newest key.
    func seal(_ token: PartsToken) -> String { seal(token.bytes, isStable: token.dialect == .s3) }

    /// - Parameter isStable: Whether the same text always gives the same token: the nonce is then derived from the text.
    private func seal(_ text: [UInt8], isStable: Bool = false) -> String {
        let key = keys.newest
        let header = [UInt8(key.id.utf8.count)] + key.id.utf8
        let nonce = isStable ? UploadKeys.nonce(key, text) : AES256GCM.randomNonce()
        let sealed = cipher(key).seal(text, nonce: nonce, authenticated: header)
        return Base64.encodeForURL(header + nonce + sealed)
    }

    private static func nonce(_ key: LinkKey, _ text: [UInt8]) -> [UInt8] {
        let nonceKey = HMAC.sha256(key: key.secret, Array("sluice upload nonce 1".utf8).span.bytes)
        return Array(HMAC.sha256(key: nonceKey, text.span.bytes).prefix(AES256GCM.nonceBytes))
    }

    /// Decrypts a token; nil for anything else, even for another encoding of the same bytes.
    func open(_ text: ArraySlice<UInt8>) -> UploadToken? {
        guard let opened = decrypted(text, UploadToken.maximumLength), opened.count > 25,
            let dialect = UploadDialect(rawValue: opened[0]), !dialect.hasParts,
            let id = UploadSessionID(Array(opened[1..<25]))
        else { return nil }
        let bucket = String(decoding: opened[25...], as: UTF8.self)
        return UploadToken(dialect: dialect, bucket: bucket, id: id)
    }

    /// Decrypts a token of an upload in parts; nil for anything else, even for another encoding of the same bytes.
    func openParts(_ text: ArraySlice<UInt8>) -> PartsToken? {
        decrypted(text, PartsToken.maximumLength).flatMap { PartsToken($0) }
    }

    private func decrypted(_ text: ArraySlice<UInt8>, _ maximumLength: Int) -> [UInt8]? {
        guard text.count <= maximumLength, let bytes = Base64.decodeForURL(text),
            let idLength = bytes.first.map(Int.init), bytes.count > 1 + idLength,
            case let header = Array(bytes[...idLength]),
            let key = keys.key(String(decoding: header[1...], as: UTF8.self)),
            case let rest = bytes[(1 + idLength)...], rest.count >= AES256GCM.nonceBytes
        else { return nil }
        return cipher(key).open(
            Array(rest.dropFirst(AES256GCM.nonceBytes)), nonce: Array(rest.prefix(AES256GCM.nonceBytes)),
            authenticated: header)
    }
}
