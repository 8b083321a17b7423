import Buckets
import Wire

extension HeaderFields {
    /// Adds `Cache-Status` (RFC 9211), and `Age` (RFC 9111, section 5.1) if versions have a time-to-live.
    mutating func append(_ outcome: CacheOutcome) {
        var status = "sluice"
        switch outcome.result {
        case .hit: status += "; hit"
        case .stale: status += "; hit; detail=stale"
        case .validated: status += "; fwd=stale; detail=validated"
        case .miss: status += "; fwd=miss"
        case .partial: status += "; fwd=partial"
        case .replaced: status += "; fwd=stale"
        case .bypass: status += "; fwd=bypass"
        }
        if outcome.isStored { status += "; stored" }
        if outcome.isCollapsed { status += "; collapsed" }
        if outcome.isRemembered, let timeToLive = outcome.timeToLive { status += "; ttl=\(timeToLive)" }
        append("cache-status", status)
        if let age = outcome.age, !contains("age") { append("age", age) }
    }
}
