import Wire

/// The gateway's own metadata of an object. No client can read, set or shadow it as custom metadata.
///
/// A store that has no separate field for it keeps it in the custom metadata, under reserved keys
/// (``isReserved(_:)``). Only drivers see those.
public struct SystemMetadata: Sendable, Equatable {
    /// The tokens of the object's download URLs, in the order in which they were made. They are secrets: anyone with
    /// one can read the object. No token is empty or contains a comma.
    public var downloadTokens: [String]
    /// The upload session that made the object; nil if none did.
    public var uploadSession: UploadSessionID?

    public init(downloadTokens: [String] = [], uploadSession: UploadSessionID? = nil) {
        self.downloadTokens = downloadTokens
        self.uploadSession = uploadSession
    }

    /// Whether nothing is stored.
    public var isEmpty: Bool { downloadTokens.isEmpty && uploadSession == nil }

    // MARK: In a store

    /// Where Firebase keeps the tokens of download URLs in Cloud Storage.
    static let downloadTokensKey = "firebaseStorageDownloadTokens"
    static let uploadSessionKey = "sluice-session"
    /// Other keys with this prefix are of other versions of the gateway.
    private static let reservedPrefix = "sluice-"

    /// Whether a key of custom metadata is the gateway's own: `firebaseStorageDownloadTokens`, and every key that begins
    /// with `sluice-`. The case of letters does not matter, since some stores do not keep it.
    public static func isReserved(_ key: String) -> Bool {
        let key = key.asciiLowercased()
        return key.hasPrefix(reservedPrefix) || key == downloadTokensKey.asciiLowercased()
    }

    /// The pairs of a store: reserved keys, with tokens joined by commas as Firebase has them.
    var pairs: [BytewiseString: String] {
        var pairs: [BytewiseString: String] = [:]
        if !downloadTokens.isEmpty {
            pairs[BytewiseString(Self.downloadTokensKey)] = SystemMetadata.joined(downloadTokens)
        }
        if let uploadSession { pairs[BytewiseString(Self.uploadSessionKey)] = uploadSession.text }
        return pairs
    }

    /// The tokens as one text.
    static func joined(_ tokens: [String]) -> String { tokens.joined(separator: ",") }

    /// The tokens in a text that ``joined(_:)`` made.
    static func tokens(of text: String) -> [String] { text.split(separator: ",").map(String.init) }

    /// Takes a pair of a store if its key is reserved. One with an unknown meaning is ignored.
    /// - Returns: Whether the key is reserved.
    mutating func take(_ key: String, _ value: String) -> Bool {
        guard SystemMetadata.isReserved(key) else { return false }
        switch key {
        case Self.uploadSessionKey: uploadSession = UploadSessionID(text: value)
        case Self.downloadTokensKey: downloadTokens = SystemMetadata.tokens(of: value)
        default: break
        }
        return true
    }
}

extension ObjectAttributes {
    /// Takes a pair from the custom metadata of a store: the client's, or the gateway's own.
    mutating func take(stored key: String, _ value: String) {
        if !system.take(key, value) { customMetadata[BytewiseString(key)] = value }
    }

    /// The pairs for a store that has no separate field for ``system``.
    var storedPairs: [BytewiseString: String] {
        system.isEmpty ? customMetadata : customMetadata.merging(system.pairs) { _, system in system }
    }

    /// The size in bytes of custom and system metadata as stored.
    package var pairBytes: Int {
        system.isEmpty ? customMetadata.byteCount : customMetadata.byteCount + system.pairs.byteCount
    }
}
