import Identity
import Wire

/// The settings of the Firebase dialect for a bucket.
public struct FirebaseSettings: Sendable, Equatable {
    /// A caller who may create and delete download tokens.
    public struct Administrator: Sendable, Hashable {
        /// The configured name of the issuer or static token; nil for a caller of any of them.
        public var source: BytewiseString?
        /// The caller's uid.
        public var uid: BytewiseString

        public init(source: BytewiseString? = nil, uid: BytewiseString) {
            self.source = source
            self.uid = uid
        }
    }

    /// The callers who may create and delete download tokens.
    public var administrators: Set<Administrator>
    /// Whether a download token is created when the metadata of an object without one is read.
    public var mintsTokens: Bool

    public init(administrators: Set<Administrator> = [], mintsTokens: Bool = true) {
        self.administrators = administrators
        self.mintsTokens = mintsTokens
    }

    /// Whether a caller may create and delete download tokens.
    func isAdministrator(_ caller: Principal) -> Bool {
        let uid = BytewiseString(caller.uid)
        return administrators.contains(Administrator(uid: uid))
            || administrators.contains(Administrator(source: BytewiseString(caller.source), uid: uid))
    }
}
