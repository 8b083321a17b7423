import Foundation
import Wire

/// A failure after which another attempt may succeed.
struct Failure: Sendable {
    let error: StorageError
    /// Seconds that the gateway wants the client to wait.
    var retryAfter: TimeInterval?
}

/// Decides when to try again: with growing pauses, until nothing has succeeded for the retry time.
struct Retries {
    private static let firstPause: TimeInterval = 0.2
    private static let longestPause: TimeInterval = 20
    /// The longest attempt in seconds, without the time for its bytes.
    private static let longestAttempt: TimeInterval = 60

    private let limit: TimeInterval
    private var attemptBegan: ContinuousClock.Instant
    /// When the first attempt began of those that failed since the last success.
    private var failing: ContinuousClock.Instant?
    private var pause = Retries.firstPause
    /// Whether any attempt has failed. Its request may have been executed nevertheless.
    private(set) var hasFailed = false

    /// - Parameter limit: The retry time in seconds.
    init(_ limit: TimeInterval) {
        self.limit = limit
        attemptBegan = .now
    }

    private var left: TimeInterval {
        guard let failing else { return limit }
        let spent = failing.duration(to: .now).components
        return limit - TimeInterval(spent.seconds) - TimeInterval(spent.attoseconds) / 1e18
    }

    /// Begins an attempt.
    /// - Returns: Its time limit in seconds, without the time for its bytes.
    mutating func begin() -> TimeInterval {
        attemptBegan = .now
        return max(1, min(Retries.longestAttempt, left))
    }

    /// Called after progress, or after a pause.
    mutating func succeeded() {
        failing = nil
        pause = Retries.firstPause
    }

    /// Waits after a failure.
    /// - Throws: `retryLimitExceeded` if the retry time is over, with the failure's text; `cancelled`.
    mutating func failed(_ failure: Failure, _ control: TransferControl) async throws(StorageError) {
        if control.isCancelled { throw .cancelled }
        failing = failing ?? attemptBegan
        hasFailed = true
        guard left > 0 else { throw Retries.exceeded(failure.error) }
        let wanted = max(failure.retryAfter ?? 0, pause * TimeInterval.random(in: 0.75...1.25))
        await control.sleep(min(wanted, left))
        if control.isCancelled { throw .cancelled }
        pause = min(pause * 2, Retries.longestPause)
    }

    private static func exceeded(_ last: StorageError) -> StorageError {
        // Repeated corruption is not a failure of the connection.
        if last.reason == .nonMatchingChecksum { return last }
        return StorageError(
            .retryLimitExceeded, "There was no success within the retry time. \(last.message)",
            status: last.status, problemCode: last.problemCode, requestID: last.requestID)
    }
}
