import Buckets
import OpenSSL
import Wire

/// The protocol by which a client speaks of an upload session.
enum UploadDialect: UInt8, Sendable, CaseIterable {
    /// draft-ietf-httpbis-resumable-upload.
    case ietf = 1
    /// tus 1.0.0.
    case tus = 2
    /// Firebase Storage.
    case firebase = 3

    /// For metrics, and in the stored context.
    var name: String {
        switch self {
        case .ietf: "ietf"
        case .tus: "tus"
        case .firebase: "firebase"
        }
    }

    /// Whether the URL of a session is enough to use it. A credential that is sent must still be its creator's. Otherwise
    /// every request shows the creator's credential.
    var isBearer: Bool { self == .firebase }

    /// Whether an append may begin below the offset: the bytes that are there already are skipped. The length of the
    /// object is then only compared at the end.
    var overlaps: Bool { self == .firebase }

    /// Whether a cancelled session is reported as such, and not as unknown.
    var remembersCancelling: Bool { self == .firebase }

    /// Whether an upload is complete as soon as its offset has reached its length. Excess bytes then are of their
    /// request alone, and do not end the session.
    var endsAtLength: Bool { self == .tus }

    /// Whether a session stays when its creation has failed or its end was refused, so that a client can ask again.
    var outlivesFailures: Bool { self != .tus }

    init?(name: String) {
        guard let dialect = UploadDialect.allCases.first(where: { $0.name == name }) else {
            return nil
        }
        self = dialect
    }
}

/// The name of an upload session in URLs: sealed, so that nobody can make one or read it.
///
/// base64url without padding of: the length of the key's id (1 byte), that id, a nonce of 12 bytes, and sealed by
/// AES-256-GCM the dialect (1 byte), the session's id (24 bytes: its expiry and 128 random bits) and the bucket's name.
/// The key's id is authenticated too.
struct UploadToken: Equatable {
    var dialect: UploadDialect
    var bucket: String
    var id: UploadSessionID

    /// Characters of the longest token: a key's id has up to 64 bytes, a bucket's name up to 222.
    static let maximumLength = 480
}

/// The keys that seal upload sessions' tokens: the first seals, and each opens what it sealed.
public struct UploadKeys: Sendable, Equatable {
    private let keys: LinkKeys

    /// Reads the format of the keys of links.
    /// - Throws: ``LinkKeys/Malformed`` with the number of the line.
    public init(text: String) throws(LinkKeys.Malformed) { keys = try LinkKeys(text: text) }

    /// One random key: its tokens end with the process.
    public static func random() -> UploadKeys {
        do throws(LinkKeys.Malformed) {
            return try UploadKeys(text: try LinkKeys.generate(id: "process"))
        } catch {
            preconditionFailure("a generated key is malformed: \(error)")
        }
    }

    /// Another key than the one that signs links, also where one file serves both.
    private func cipher(_ key: LinkKey) -> AES256GCM {
        AES256GCM(key: HMAC.sha256(key: key.secret, Array("sluice upload 1".utf8).span.bytes))
    }

    /// The token, sealed by the newest key.
    func seal(_ token: UploadToken) -> String {
        let key = keys.newest
        let header = [UInt8(key.id.utf8.count)] + key.id.utf8
        let nonce = AES256GCM.randomNonce()
        let text = [token.dialect.rawValue] + token.id.bytes + token.bucket.utf8
        let sealed = cipher(key).seal(text, nonce: nonce, authenticated: header)
        return Base64.encodeForURL(header + nonce + sealed)
    }

    /// Takes what ``seal(_:)`` returned; nil for anything else, also for another spelling of the same bytes.
    func open(_ text: ArraySlice<UInt8>) -> UploadToken? {
        guard text.count <= UploadToken.maximumLength, let bytes = Base64.decodeForURL(text),
            let idLength = bytes.first.map(Int.init), bytes.count > 1 + idLength,
            case let header = Array(bytes[...idLength]),
            let key = keys.key(String(decoding: header[1...], as: UTF8.self)),
            case let rest = bytes[(1 + idLength)...], rest.count >= AES256GCM.nonceBytes,
            let opened = cipher(key).open(
                Array(rest.dropFirst(AES256GCM.nonceBytes)),
                nonce: Array(rest.prefix(AES256GCM.nonceBytes)), authenticated: header),
            opened.count > 25, let dialect = UploadDialect(rawValue: opened[0]),
            let id = UploadSessionID(Array(opened[1..<25]))
        else { return nil }
        let bucket = String(decoding: opened[25...], as: UTF8.self)
        return UploadToken(dialect: dialect, bucket: bucket, id: id)
    }
}
