import Identity
import Telemetry
import Wire

/// The metrics of callers, by configured group. Individual callers are not counted, to bound the number of series.
public struct CallerMetrics: Sendable {
    private struct Handles {
        let requests: PrometheusCounter
        let bytesIn: PrometheusCounter
        let bytesOut: PrometheusCounter
        /// In the order of the cases of `Limit`.
        let limited: InlineArray<4, PrometheusCounter>
    }
    private let anonymous: Handles
    private let groups: [BytewiseString: Handles]

    /// Makes the handles and describes the families in `registry`.
    /// - Parameter groups: The groups of callers with an identity.
    public init(groups: Set<BytewiseString>, _ registry: PrometheusRegistry) {
        registry.describe(
            "sluice_caller_requests_total", "Completed requests, by caller group.")
        registry.describe(
            "sluice_caller_received_bytes_total",
            "Bytes of request bodies received, by caller group.")
        registry.describe(
            "sluice_caller_sent_bytes_total", "Bytes of response bodies sent, by caller group.")
        registry.describe(
            "sluice_limited_requests_total",
            "Requests refused because of a caller's limit, by caller group and limit.")
        func handles(_ group: String) -> Handles {
            let label = [("group", group)]
            func counter(_ name: String, _ more: [(String, String)] = []) -> PrometheusCounter {
                registry.counter(name, label + more)
            }
            return Handles(
                requests: counter("sluice_caller_requests_total"),
                bytesIn: counter("sluice_caller_received_bytes_total"),
                bytesOut: counter("sluice_caller_sent_bytes_total"),
                limited: InlineArray { index in
                    let limit = CallerLimits.Limit.allCases[index]
                    return counter("sluice_limited_requests_total", [("limit", limit.rawValue)])
                })
        }
        anonymous = handles(Callers.anonymousGroup)
        self.groups = Dictionary(
            uniqueKeysWithValues: groups.map { ($0, handles($0.text)) })
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
    /// Adds the number of keys of each issuer.
    public func addIssuerKeys(_ authenticator: Authenticator) {
        if authenticator.issuers.isEmpty { return }
        collect { text in
            let name = "sluice_issuer_keys"
            text.family(name, .gauge, "Keys of an issuer that verify tokens; 0 if all are withdrawn.")
            for (issuer, keys) in authenticator.keyCounts {
                text.sample(name, [PrometheusLabel("issuer", issuer)], keys ?? 0)
            }
        }
    }

    /// Adds the results of token verification.
    public func addTokens(_ statistics: IdentityStatistics) {
        collect { text in
            let name = "sluice_tokens_total"
            text.family(name, .counter, "Credentials in Authorization, by outcome.")
            text.sample(name, [PrometheusLabel("outcome", "verified")], statistics.verified)
            text.sample(name, [PrometheusLabel("outcome", "known")], statistics.cached)
            for code in CredentialError.Code.allCases {
                text.sample(name, [PrometheusLabel("outcome", code.rawValue)], statistics.rejected(code))
            }
            text.single(
                "sluice_issuer_key_refreshes_total", .counter, "Fetches of issuers' keys.", statistics.keyRefreshes)
            text.single(
                "sluice_issuer_key_refresh_failures_total", .counter,
                "Failed fetches of issuers' keys.", statistics.keyRefreshFailures)
        }
    }
}
