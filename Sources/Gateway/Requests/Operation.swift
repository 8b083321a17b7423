import Wire

/// What one request asks of a bucket: what a policy decides on.
public struct Operation: Sendable, Equatable {
    /// The methods of Security Rules; a `read` there is `get` and `list`, a `write` the other three.
    public enum Kind: String, Sendable, CaseIterable {
        case get, list, create, update, delete
    }

    /// What is to be done.
    public var kind: Kind
    /// The bucket's name.
    public var bucket: String
    /// The object's one decoded name; for a list the folder it reveals, without its trailing `/`.
    public var name: String

    public init(_ kind: Kind, bucket: String, name: String) {
        self.kind = kind
        self.bucket = bucket
        self.name = name
    }
}
