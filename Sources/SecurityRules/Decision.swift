/// What the rules say of a request, with what is known of it.
public enum Decision: Sendable, Hashable {
    /// Some rule allows it, whatever is still unknown.
    case allowed
    /// No rule allows it, whatever is still unknown.
    case denied(Denial)
    /// It depends on these; ask again when they are known.
    case needs(Needs)

    /// Whether it is `allowed`.
    public var isAllowed: Bool { self == .allowed }
}

/// Why a request is denied, in a few bits; `Ruleset.explain` says it at length.
public struct Denial: Sendable, Hashable {
    /// The kind of reason.
    public enum Reason: String, Sendable, Hashable {
        /// No match block with a rule for this method matches the path.
        case noMatch
        /// The rules for it are false, or fail.
        case notAllowed
        /// Listing needs `rules_version = '2'`.
        case listNeedsVersion2
        /// The name has an empty segment.
        case invalidPath
    }

    /// The kind of reason.
    public var reason: Reason
    /// Whether a rule for this request can read `request.auth`: where there is no caller, one might be let in.
    public var readsCaller: Bool

    /// What a client may be told, for `listNeedsVersion2` in the hosted service's words.
    public var message: String {
        switch reason {
        case .noMatch, .notAllowed: "The rules do not allow this request."
        case .listNeedsVersion2:
            "Listing objects in a bucket is disallowed for rules_version = \"1\". "
                + "Please update storage security rules to rules_version = \"2\" to use list."
        case .invalidPath: "The name of the object has an empty segment, which no rule can allow."
        }
    }
}

/// The inputs that a decision waits for, or that rules can read.
public struct Needs: Sendable, Hashable {
    /// The object that is there already.
    public var existing: Bool
    /// Properties of `request.resource`.
    public var incoming: Set<ObjectField>
    /// Documents, as `/databases/(default)/documents/users/alice`; at most two.
    public var documents: [String]

    init(_ bits: InputBits, documents: [Text]) {
        existing = bits.contains(.existing)
        incoming = Set(bits.incomingFields)
        self.documents = documents.enumerated().filter {
            bits.contains(.document($0.offset))
        }.map { $0.element.string }
    }
}

/// What the rules for a request can read, found without evaluating them.
public struct Inputs: Sendable, Hashable {
    /// Whether some rule for it exists at all.
    public var hasRules: Bool
    /// Whether `request.auth` can be read.
    public var caller: Bool
    /// Whether `resource` can be read.
    public var existing: Bool
    /// The properties of `request.resource` that can be read.
    public var incoming: Set<ObjectField>
    /// Whether documents can be looked up.
    public var documents: Bool

    init(_ bits: InputBits, hasRules: Bool) {
        self.hasRules = hasRules
        caller = bits.contains(.auth)
        existing = bits.contains(.existing)
        incoming = Set(bits.incomingFields)
        documents = bits.contains(.documents)
    }
}
