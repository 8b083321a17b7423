import Logging
import Synchronization

/// Logs each denial, a sample of the allowed decisions, and each decision from which the shadow rules differ. A line
/// has the request's ID, which the caller gets as `X-Request-Id`, and the reason, which the caller does not get.
public final class DecisionLog: RequestObserver {
    private let logger: Logger
    private let logsDenials: Bool
    private let sample: Int
    private let allowed = Atomic<Int>(0)

    /// - Parameter sample: One in this many allowed decisions is logged; 0 logs none.
    public init(_ logger: Logger, logsDenials: Bool, sample: Int) {
        self.logger = logger
        self.logsDenials = logsDenials
        self.sample = sample
    }

    public func finished(_ record: RequestRecord) {
        guard let decision = record.decision, isWanted(decision) || record.shadow != nil else {
            return
        }
        var metadata: Logger.Metadata = [
            "request": "\(record.requestId)", "method": "\(record.operation?.rawValue ?? "-")",
            "path": "\(record.path)", "peer": "\(record.peer)", "duration_us": "\(record.decisionNanoseconds / 1000)",
        ]
        if let principal = record.principal { metadata["principal"] = "\(principal)" }
        if let trace = record.trace?.context?.traceID { metadata["trace"] = "\(trace)" }
        if decision == .denied, let cause = record.cause { metadata["reason"] = "\(cause)" }
        if let shadow = record.shadow { metadata["shadow"] = "\(shadow.rawValue)" }
        logger.info("\(decision.rawValue)", metadata: metadata)
    }

    private func isWanted(_ decision: Verdict) -> Bool {
        switch decision {
        case .denied: return logsDenials
        case .undetermined: return false
        case .allowed:
            if sample == 0 { return false }
            return allowed.wrappingAdd(1, ordering: .relaxed).oldValue % sample == 0
        }
    }
}
