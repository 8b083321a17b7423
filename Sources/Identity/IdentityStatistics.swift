import Synchronization

/// The counters of an ``Authenticator``. Any thread may read them.
public final class IdentityStatistics: Sendable {
    let fresh = Atomic<Int>(0)
    let known = Atomic<Int>(0)
    let refreshed = Atomic<Int>(0)
    let refreshesFailed = Atomic<Int>(0)
    private let malformed = Atomic<Int>(0)
    private let unsupportedScheme = Atomic<Int>(0)
    private let unknownIssuer = Atomic<Int>(0)
    private let wrongAudience = Atomic<Int>(0)
    private let expired = Atomic<Int>(0)
    private let notYetValid = Atomic<Int>(0)
    private let badSignature = Atomic<Int>(0)
    private let unknownToken = Atomic<Int>(0)
    private let unavailable = Atomic<Int>(0)

    init() {}

    /// Credentials that were verified.
    public var verified: Int { fresh.load(ordering: .relaxed) }
    /// Credentials found in the cache of verified tokens.
    public var cached: Int { known.load(ordering: .relaxed) }
    /// Fetches that returned keys.
    public var keyRefreshes: Int { refreshed.load(ordering: .relaxed) }
    /// Fetches that failed.
    public var keyRefreshFailures: Int { refreshesFailed.load(ordering: .relaxed) }

    /// Credentials that were rejected for this reason.
    public func rejected(_ code: CredentialError.Code) -> Int {
        withCounter(code) { $0.load(ordering: .relaxed) }
    }

    func reject(_ code: CredentialError.Code) {
        withCounter(code) { $0.add(1, ordering: .relaxed) }
    }

    @discardableResult
    private func withCounter<Result>(
        _ code: CredentialError.Code, _ body: (borrowing Atomic<Int>) -> Result
    ) -> Result {
        switch code {
        case .malformed: body(malformed)
        case .unsupportedScheme: body(unsupportedScheme)
        case .unknownIssuer: body(unknownIssuer)
        case .wrongAudience: body(wrongAudience)
        case .expired: body(expired)
        case .notYetValid: body(notYetValid)
        case .badSignature: body(badSignature)
        case .unknownToken: body(unknownToken)
        case .unavailable: body(unavailable)
        }
    }
}
