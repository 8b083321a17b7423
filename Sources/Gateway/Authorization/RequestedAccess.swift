import Wire

/// The access to a bucket that a request needs: a method of Security Rules on a name. Policies decide on it. One
/// ``ObjectOperation`` needs one access; an upload is a `create` until it turns out to replace an object.
public struct RequestedAccess: Sendable, Equatable {
    /// The methods of Security Rules. In rules, `read` is `get` and `list`, and `write` is the other three.
    public enum Kind: String, Sendable, CaseIterable {
        case get, list, create, update, delete
    }

    /// The method.
    public var kind: Kind
    /// The bucket's name.
    public var bucket: String
    /// The object's decoded name, without the final `/` of a folder marker; for a list, the folder that it reveals,
    /// without the final `/`.
    public var name: String
    /// Whether the object is a folder marker: its own name has a `/` at the end, which rules see as `resource.name`.
    public var isMarker = false

    public init(_ kind: Kind, bucket: String, name: String) {
        self.kind = kind
        self.bucket = bucket
        self.name = name
    }

    init(_ kind: Kind, bucket: String, _ name: ObjectName) {
        self.init(kind, bucket: bucket, name: name.rulesPath)
        isMarker = name.isMarker
    }

    /// The object's own name.
    var objectName: String { isMarker ? name + "/" : name }
}
