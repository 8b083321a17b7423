import Wire

/// The settings of the Firebase dialect for a bucket.
public struct FirebaseSettings: Sendable, Equatable {
    /// The uids of the callers who may create and delete download tokens.
    public var administrators: Set<BytewiseString>
    /// Whether a download token is created when the metadata of an object without one is read.
    public var mintsTokens: Bool

    public init(administrators: Set<BytewiseString> = [], mintsTokens: Bool = true) {
        self.administrators = administrators
        self.mintsTokens = mintsTokens
    }
}
