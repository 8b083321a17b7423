/// Measures how long we have waited for the peer since its last sufficient progress. Times are in nanoseconds.
struct ProgressClock {
    private var waited: UInt64 = 0
    private var bytes: UInt64 = 0
    /// When we began to wait for the peer; `.max` while we do not.
    private var since = UInt64.max

    /// Starts the clock, because we wait for the peer.
    mutating func start(_ now: UInt64) { if since == .max { since = now } }

    /// Stops the clock, because we do not wait for the peer.
    mutating func stop(_ now: UInt64) {
        if since != .max { waited += now - since }
        since = .max
    }

    /// Counts moved bytes. Once they are `enough`, the waiting time is reset.
    mutating func moved(_ count: Int, of enough: UInt64, _ now: UInt64) {
        bytes += UInt64(count)
        guard bytes >= enough else { return }
        bytes = 0
        waited = 0
        if since != .max { since = now }
    }

    /// When the total waiting time reaches `limit`.
    func deadline(_ limit: UInt64) -> UInt64 {
        since == .max ? .max : since &+ (waited < limit ? limit - waited : 0)
    }
}
