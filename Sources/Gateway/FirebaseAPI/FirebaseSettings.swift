import Wire

/// How the Firebase dialect serves a bucket.
public struct FirebaseSettings: Sendable, Equatable {
    /// The uids of the callers who may create and delete download tokens.
    public var administrators: Set<BytewiseString>
    /// Whether reading the metadata of an object without a download token makes one.
    public var mintsTokens: Bool

    public init(administrators: Set<BytewiseString> = [], mintsTokens: Bool = true) {
        self.administrators = administrators
        self.mintsTokens = mintsTokens
    }
}
