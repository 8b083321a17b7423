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

    /// The name in metrics and in the stored context.
    var name: String {
        switch self {
        case .ietf: "ietf"
        case .tus: "tus"
        case .firebase: "firebase"
        }
    }

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
        let key = keys.newest
        let header = [UInt8(key.id.utf8.count)] + key.id.utf8
        let nonce = AES256GCM.randomNonce()
        let text = [token.dialect.rawValue] + token.id.bytes + token.bucket.utf8
        let sealed = cipher(key).seal(text, nonce: nonce, authenticated: header)
        return Base64.encodeForURL(header + nonce + sealed)
    }

    /// Decrypts a token of ``seal(_:)``; nil for anything else, even for another encoding of the same bytes.
    func open(_ text: ArraySlice<UInt8>) -> UploadToken? {
        guard text.count <= UploadToken.maximumLength, let bytes = Base64.decodeForURL(text),
            let idLength = bytes.first.map(Int.init), bytes.count > 1 + idLength,
            case let header = Array(bytes[...idLength]),
            let key = keys.key(String(decoding: header[1...], as: UTF8.self)),
            case let rest = bytes[(1 + idLength)...], rest.count >= AES256GCM.nonceBytes,
            let opened = cipher(key).open(
                Array(rest.dropFirst(AES256GCM.nonceBytes)), nonce: Array(rest.prefix(AES256GCM.nonceBytes)),
                authenticated: header), opened.count > 25, let dialect = UploadDialect(rawValue: opened[0]),
            let id = UploadSessionID(Array(opened[1..<25]))
        else { return nil }
        let bucket = String(decoding: opened[25...], as: UTF8.self)
        return UploadToken(dialect: dialect, bucket: bucket, id: id)
    }
}
