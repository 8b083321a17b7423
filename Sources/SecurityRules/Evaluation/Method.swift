import Wire

/// The operation that a request performs, in the terms of the rules language.
public enum Method: UInt8, Sendable, Hashable, CaseIterable {
    /// Reads an object's bytes or its metadata.
    case get
    /// Lists the objects below a prefix; never allowed by a ruleset of version 1.
    case list
    /// Writes an object's bytes, whether or not the object exists.
    case create
    /// Changes the metadata of an object.
    case update
    /// Removes an object.
    case delete

    /// The name as used in rules.
    public var name: String {
        switch self {
        case .get: "get"
        case .list: "list"
        case .create: "create"
        case .update: "update"
        case .delete: "delete"
        }
    }

    /// The method with this name.
    public init?(name: String) {
        guard let found = Self.allCases.first(where: { $0.name == name }) else { return nil }
        self = found
    }

    /// A set of methods.
    struct Set: OptionSet, Sendable {
        var rawValue: UInt8

        init(rawValue: UInt8) { self.rawValue = rawValue }

        init(_ method: Method) { rawValue = 1 << method.rawValue }

        static let read: Set = [Set(.get), Set(.list)]
        static let write: Set = [Set(.create), Set(.update), Set(.delete)]

        /// The methods that a word in `allow` includes.
        init?(word: String) {
            switch word {
            case "read": self = .read
            case "write": self = .write
            default:
                guard let method = Method(name: word) else { return nil }
                self.init(method)
            }
        }
    }
}
