import Buckets

/// What a request shows that allows its operation by itself, in place of the bucket's policy.
protocol Grant: Sendable {
    /// Who gave it, for the log.
    var principal: String { get }
    /// Whose limits count.
    var group: String { get }

    /// Whether it allows the operation. The cause of a denial is for ``denial(_:)``.
    /// - Parameter now: Seconds since 1970.
    func decide(_ existing: CurrentObject, now: Int64) -> Decision

    /// The problem that the client gets for a denial.
    func denial(_ cause: String) -> Problem
}

/// A signed link, and the id of the key that signed it.
struct LinkGrant: Grant {
    var link: SignedLink
    var key: String

    var principal: String { "link:\(key)" }

    var group: String { Callers.linkGroup }

    func decide(_ existing: CurrentObject, now: Int64) -> Decision {
        link.decide(existing, now: now)
    }

    func denial(_ cause: String) -> Problem { Problem(.linkExpired, cause) }
}
