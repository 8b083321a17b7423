/// The result of evaluating the rules with the facts known so far.
public enum Decision: Sendable, Hashable {
    /// A rule allows the request for all values of the unknown inputs.
    case allowed
    /// No rule allows the request for any value of the unknown inputs.
    case denied(Denial)
    /// The result depends on these inputs. Decide again when they are known.
    case needs(Needs)

    /// Whether the decision is `allowed`.
    public var isAllowed: Bool { self == .allowed }
}

/// The reason for a denial, in short. `Ruleset.explain` gives the details.
public struct Denial: Sendable, Hashable {
    /// The kind of reason.
    public enum Reason: String, Sendable, Hashable {
        /// No match block with a rule for this method matches the path.
        case noMatch
        /// All rules for the request are false or fail.
        case notAllowed
        /// Listing needs `rules_version = '2'`.
        case listNeedsVersion2
        /// The name has an empty segment.
        case invalidPath
        /// The decision took longer than ``Ruleset/maximumDecisionTime``.
        case timeLimit
    }

    /// The kind of reason.
    public var reason: Reason
    /// Whether a rule for this request can read `request.auth`, so that a signed-in caller might be allowed.
    public var readsCaller: Bool

    /// A message that may be shown to a client. For `listNeedsVersion2` it is the hosted service's text.
    public var message: String {
        switch reason {
        case .noMatch, .notAllowed, .timeLimit: "The rules do not allow this request."
        case .listNeedsVersion2:
            "Listing objects in a bucket is disallowed for rules_version = \"1\". "
                + "Please update storage security rules to rules_version = \"2\" to use list."
        case .invalidPath: "The name of the object has an empty segment, which no rule can allow."
        }
    }
}

/// The unknown inputs that a decision depends on.
public struct Needs: Sendable, Hashable {
    /// The existing object.
    public var existing: Bool
    /// Properties of `request.resource`.
    public var incoming: Set<ObjectField>
    /// Documents of the database `(default)`; at most two.
    public var documents: [DocumentPath]
    /// `request.time`, if it is a period (`Request.setTime(through:)`).
    public var time: Bool

    init(_ bits: InputBits, documents: [DocumentPath]) {
        existing = bits.contains(.existing)
        incoming = Set(bits.incomingFields)
        time = bits.contains(.time)
        self.documents = documents.enumerated().filter {
            bits.contains(.document($0.offset))
        }.map(\.element)
    }
}

/// The inputs that the rules for a request can read, determined without evaluating them.
public struct Inputs: Sendable, Hashable {
    /// Whether there is any rule for the request.
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
