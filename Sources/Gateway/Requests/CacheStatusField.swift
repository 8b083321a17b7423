import Buckets
import Wire

extension HeaderFields {
    /// Adds `Cache-Status` (RFC 9211), and `Age` (RFC 9111, section 5.1) if versions have a time-to-live.
    mutating func append(_ outcome: CacheOutcome) {
        var status =
            switch outcome.result {
            case .hit: "sluice; hit"
            case .stale: outcome.isForwarded ? "sluice; fwd=miss; detail=stale" : "sluice; hit; detail=stale"
            case .validated: "sluice; fwd=stale; detail=validated"
            case .miss: "sluice; fwd=miss"
            case .partial: "sluice; fwd=partial"
            case .replaced: "sluice; fwd=stale"
            case .bypass: "sluice; fwd=bypass"
            }
        if outcome.isStored { status += "; stored" }
        if outcome.isCollapsed { status += "; collapsed" }
        if outcome.isRemembered, let timeToLive = outcome.timeToLive { status += "; ttl=\(timeToLive)" }
        append("cache-status", status)
        if let age = outcome.age, !contains("age") { append("age", age) }
    }
}
