import Gateway
import Wire

/// The Firebase Storage protocol.
public struct FirebaseConfiguration: Sendable, Equatable {
    /// Whether buckets without their own setting support it.
    public var isEnabled = false
    /// The callers who may create and delete download tokens: uids, or `ISSUER:UID`.
    public var administrators: [String] = []
    /// Whether reading the metadata of an object without a download token makes one.
    public var mintsTokens = true

    static let settings: [Setting<Configuration>] = [
        .flag(
            "firebase", \.firebase.isEnabled,
            "Whether every bucket speaks the Firebase Storage protocol at /v0."),
        .list(
            "firebaseOptions.administrators", "uids or ISSUER:UID", \.firebase.administrators,
            "Callers that may create and delete download tokens; none by default. ISSUER is a name of issuers or tokens."
        ) { $0.isEmpty ? "a uid has at least one character" : nil },
        .flag(
            "firebaseOptions.mintTokens", \.firebase.mintsTokens,
            "Whether reading the metadata of an object without a download token gives it one, as "
                + "getDownloadURL needs it."),
    ]
}

extension Configuration {
    /// The settings of the Firebase dialect for a bucket; nil if it does not serve the bucket.
    public func firebase(of bucket: Bucket) -> FirebaseSettings? {
        guard bucket.firebase ?? firebase.isEnabled else { return nil }
        return FirebaseSettings(
            administrators: Set(firebase.administrators.map(administrator)), mintsTokens: firebase.mintsTokens)
    }

    /// Parses `ISSUER:UID`. A uid may have colons too, so that only the name of an issuer or a static token counts as one.
    private func administrator(_ text: String) -> FirebaseSettings.Administrator {
        let parts = text.utf8.split(separator: UInt8(ascii: ":"), maxSplits: 1)
        let name = parts.first.map { String(decoding: $0, as: UTF8.self) } ?? ""
        let names = issuers.map(\.name) + tokens.map(\.name)
        guard parts.count == 2, names.contains(where: { BytewiseString.areEqual($0, name) }) else {
            return .init(uid: BytewiseString(text))
        }
        return .init(
            source: BytewiseString(name),
            uid: BytewiseString(String(decoding: parts[1], as: UTF8.self)))
    }

    /// The administrators whose uid counts from every issuer, although there are several; empty if there is one.
    public var ambiguousAdministrators: [String] {
        let sources = issuers.count + (tokens.isEmpty ? 0 : 1) + (https.clients.authorities == nil ? 0 : 1)
        guard sources > 1 else { return [] }
        return firebase.administrators.filter { administrator($0).source == nil }
    }
}
