import CoreMetrics
import Identity

/// What is counted of callers, by the groups of the configuration: never by the caller.
public struct CallerMetrics: Sendable {
    private struct Handles: Sendable {
        let requests: Counter
        let bytesIn: Counter
        let bytesOut: Counter
        /// In the order of the limits' cases.
        let limited: [Counter]
    }
    private let anonymous: Handles
    private let groups: [String: Handles]

    /// Makes the handles and names the families in `registry`.
    public init(_ configuration: Configuration, _ registry: PrometheusRegistry) {
        registry.describe(
            "sluice_caller_requests_total", "Requests answered, by the caller's group.")
        registry.describe(
            "sluice_caller_received_bytes_total", "Bytes of bodies taken, by the caller's group.")
        registry.describe(
            "sluice_caller_sent_bytes_total", "Bytes of bodies sent, by the caller's group.")
        registry.describe(
            "sluice_limited_requests_total",
            "Requests refused because their caller uses too much, by its group and the limit.")
        func handles(_ group: String) -> Handles {
            let label = [("group", group)]
            func counter(_ name: String, _ more: [(String, String)] = []) -> Counter {
                Counter(label: name, dimensions: label + more, factory: registry)
            }
            return Handles(
                requests: counter("sluice_caller_requests_total"),
                bytesIn: counter("sluice_caller_received_bytes_total"),
                bytesOut: counter("sluice_caller_sent_bytes_total"),
                limited: CallerLimits.Limit.allCases.map {
                    counter("sluice_limited_requests_total", [("limit", $0.rawValue)])
                })
        }
        anonymous = handles(Callers.anonymousGroup)
        groups = Dictionary(
            uniqueKeysWithValues: configuration.groups.map { ($0, handles($0)) })
    }

    /// Counts one request.
    func count(_ record: RequestRecord) {
        let handle = record.principal == nil ? anonymous : groups[record.group] ?? anonymous
        handle.requests.increment()
        if record.bytesIn > 0 { handle.bytesIn.increment(by: Int64(clamping: record.bytesIn)) }
        if record.bytesOut > 0 { handle.bytesOut.increment(by: Int64(clamping: record.bytesOut)) }
        if let limit = record.limit { handle.limited[limit.index].increment() }
    }
}

extension Configuration {
    /// The groups that callers with an identity can belong to.
    var groups: Set<String> {
        var groups: Set<String> = [Callers.linkGroup, Callers.developmentGroup]
        groups.insert(https.clients.group ?? Callers.certificateGroup)
        for issuer in issuers { groups.insert(issuer.group ?? issuer.name) }
        for token in tokens { groups.insert(token.group ?? token.name) }
        return groups
    }
}

extension CallerLimits.Limit {
    fileprivate var index: Int {
        switch self {
        case .requests: 0
        case .transfers: 1
        case .bytesIn: 2
        case .bytesOut: 3
        }
    }
}

extension PrometheusRegistry {
    /// Shows what becomes of tokens.
    public func addTokens(_ statistics: IdentityStatistics) {
        collect { text in
            let name = "sluice_tokens_total"
            text.family(name, .counter, "Credentials in Authorization, by what came of them.")
            text.sample(name, [PrometheusLabel("outcome", "verified")], statistics.verified)
            text.sample(name, [PrometheusLabel("outcome", "known")], statistics.cached)
            for code in CredentialError.Code.allCases {
                text.sample(
                    name, [PrometheusLabel("outcome", code.rawValue)], statistics.refused(code))
            }
            text.single(
                "sluice_issuer_key_refreshes_total", .counter, "Fetches of issuers' keys.",
                statistics.keyRefreshes)
            text.single(
                "sluice_issuer_key_refresh_failures_total", .counter,
                "Fetches of issuers' keys that brought none.", statistics.keyRefreshFailures)
        }
    }
}
