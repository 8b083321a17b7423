import Wire

/// The gateway's own metadata of an object. No client can read, set or shadow it as custom metadata. A store without a
/// separate field keeps it in custom metadata under reserved keys (``isReserved(_:)``), which only drivers see.
public struct SystemMetadata: Sendable, Equatable {
    private struct Values: Sendable, Equatable {
        var downloadTokens: [String] = []
        var uploadSession: UploadSessionID?
        var s3: S3Properties?
    }
    private final class Box: Sendable {
        let values: Values

        init(_ values: Values) { self.values = values }
    }
    /// nil if nothing is stored. In a class, because metadata is copied often and most objects have none of these.
    private var box: Box?

    public init(downloadTokens: [String] = [], uploadSession: UploadSessionID? = nil, s3: S3Properties? = nil) {
        if downloadTokens.isEmpty, uploadSession == nil, s3 == nil { return }
        self.downloadTokens = downloadTokens
        self.uploadSession = uploadSession
        self.s3 = s3
    }

    private var values: Values {
        get { box?.values ?? Values() }
        set { box = newValue == Values() ? nil : Box(newValue) }
    }

    /// The tokens of the object's download URLs, oldest first. They are secrets: each one permits reading the object.
    /// No token is empty or contains a comma.
    public var downloadTokens: [String] {
        get { box?.values.downloadTokens ?? [] }
        set { values.downloadTokens = newValue }
    }

    /// The upload session that made the object; nil if none did.
    public var uploadSession: UploadSessionID? {
        get { box?.values.uploadSession }
        set { values.uploadSession = newValue }
    }

    /// What only clients of S3 see; nil for most objects.
    public var s3: S3Properties? {
        get { box?.values.s3 }
        set { values.s3 = newValue?.isEmpty == true ? nil : newValue }
    }

    public static func == (left: SystemMetadata, right: SystemMetadata) -> Bool {
        left.box === right.box || left.values == right.values
    }

    /// Whether nothing is stored.
    public var isEmpty: Bool { box == nil }

    // MARK: In a store

    /// The key under which Firebase keeps download tokens in Cloud Storage.
    static let downloadTokensKey = "firebaseStorageDownloadTokens"
    static let uploadSessionKey = "sluice-session"
    static let s3Key = "sluice-s3"
    /// Unknown keys with this prefix come from other versions of the gateway.
    private static let reservedPrefix = "sluice-"

    /// Whether a key of custom metadata is reserved: `firebaseStorageDownloadTokens`, and every key that begins with
    /// `sluice-`, in any case of letters, because some stores do not keep the case.
    public static func isReserved(_ key: String) -> Bool {
        let key = key.asciiLowercased()
        return key.hasPrefix(reservedPrefix) || key == downloadTokensKey.asciiLowercased()
    }

    /// The reserved pairs for a store. Tokens are joined by commas, as in Firebase.
    var pairs: [BytewiseString: String] {
        var pairs: [BytewiseString: String] = [:]
        if !downloadTokens.isEmpty {
            pairs[BytewiseString(Self.downloadTokensKey)] = SystemMetadata.joined(downloadTokens)
        }
        if let uploadSession { pairs[BytewiseString(Self.uploadSessionKey)] = uploadSession.text }
        if let s3 { pairs[BytewiseString(Self.s3Key)] = s3.text }
        return pairs
    }

    static func joined(_ tokens: [String]) -> String { tokens.joined(separator: ",") }

    static func tokens(of text: String) -> [String] { text.split(separator: ",").map(String.init) }

    /// Takes a stored pair if its key is reserved, and returns whether it is. Unknown reserved pairs are ignored.
    mutating func take(_ key: String, _ value: String) -> Bool {
        guard SystemMetadata.isReserved(key) else { return false }
        switch key {
        case Self.uploadSessionKey: uploadSession = UploadSessionID(text: value)
        case Self.downloadTokensKey: downloadTokens = SystemMetadata.tokens(of: value)
        case Self.s3Key: s3 = S3Properties(text: value)
        default: break
        }
        return true
    }
}

extension ObjectAttributes {
    /// Takes a stored pair of the client or the gateway.
    mutating func take(stored key: String, _ value: String) {
        if !system.take(key, value) { customMetadata[BytewiseString(key)] = value }
    }

    var storedPairs: [BytewiseString: String] {
        system.isEmpty ? customMetadata : customMetadata.merging(system.pairs) { _, system in system }
    }

    /// The size of custom and system metadata as stored.
    package var pairBytes: Int {
        system.isEmpty ? customMetadata.byteCount : customMetadata.byteCount + system.pairs.byteCount
    }
}
