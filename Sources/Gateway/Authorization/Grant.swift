import Buckets

/// Authorizes a request by something that it shows, such as a signed link, instead of the bucket's policy or before it.
protocol Grant: Sendable {
    /// The principal that issued the grant, for the log.
    var principal: String { get }
    /// The group whose limits apply.
    var group: String { get }

    /// Whether the grant allows the access; nil to leave it to the policy. ``denial(_:)`` gets the cause of a denial.
    /// - Parameter now: Seconds since 1970.
    func decide(_ existing: CurrentObject, now: Int64) -> Decision?

    /// The problem for the client after a denial; nil for the policy's.
    func denial(_ cause: String) -> Problem?
}

/// A verified signed link, and the id of the key that signed it.
struct LinkGrant: Grant {
    var link: SignedLink
    var key: String

    var principal: String { "link:\(key)" }

    var group: String { Callers.linkGroup }

    func decide(_ existing: CurrentObject, now: Int64) -> Decision? {
        link.decide(existing, now: now)
    }

    func denial(_ cause: String) -> Problem? { Problem(.linkExpired, cause) }
}
