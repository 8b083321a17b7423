import Buckets
import Logging
import System
import Wire

/// What operators see.
extension EventDispatcher {
    func show(_ time: UInt64) {
        guard let state else { return }
        mustShow = time < showTime
        if mustShow { return }
        showTime = time + EventDispatcher.showInterval
        var counts = base
        counts.add(state.counts)
        var status = Status()
        status.counts = counts
        status.pending = state.pending
        status.retries = state.retries
        status.dead = state.deadKept
        status.oldest = state.oldest
        status.lastCause = state.lastCause
        status.state =
            state.isGone
            ? "gone"
            : subscription.asksPermission && !isPermitted
                ? "asking" : state.isPaused ? "paused" : state.lastCause != nil ? "failing" : "delivering"
        shown.withLock { $0 = status }
        if told == counts || time < lossTime { return }
        let isNews = counts.dead > told.dead || counts.discarded > told.discarded
        if isNews { lossTime = time + EventDispatcher.lossInterval }
        tellLosses(counts)
    }

    /// Logs what was given up, once a minute.
    func tellLosses(_ counts: DeliveryCounts) {
        var metadata: Logger.Metadata = ["subscription": "\(name)", "bucket": "\(bucket)"]
        if counts.dead > told.dead {
            metadata["count"] = "\(counts.dead - told.dead)"
            metadata["cause"] = "\(state?.lastCause ?? "none")"
            logger.error(
                "events given up: older than maximumAge, or failing while too many wait; 'sluice events' lists them",
                metadata: metadata)
        }
        if counts.discarded > told.discarded {
            metadata["count"] = "\(counts.discarded - told.discarded)"
            metadata["cause"] = nil
            logger.error("events discarded: more than maximumPending were pending", metadata: metadata)
        }
        told = counts
    }
}

extension DeliveryCounts {
    mutating func add(_ other: DeliveryCounts) {
        settled += other.settled
        failed += other.failed
        dead += other.dead
        discarded += other.discarded
    }
}
