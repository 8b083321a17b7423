import Gateway
import Wire

/// The Firebase Storage protocol.
public struct FirebaseConfiguration: Sendable, Equatable {
    /// Whether buckets without their own setting support it.
    public var isEnabled = false
    /// The uids of the callers who may create and delete download tokens.
    public var administrators: [String] = []
    /// Whether reading the metadata of an object without a download token makes one.
    public var mintsTokens = true

    static let settings: [Setting<Configuration>] = [
        .flag(
            "firebase", \.firebase.isEnabled,
            "Whether every bucket speaks the Firebase Storage protocol at /v0."),
        .list(
            "firebaseOptions.administrators", "uids", \.firebase.administrators,
            "Callers who may create and delete download tokens, by uid; nobody by default."
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
            administrators: Set(firebase.administrators.map { BytewiseString($0) }),
            mintsTokens: firebase.mintsTokens)
    }
}
