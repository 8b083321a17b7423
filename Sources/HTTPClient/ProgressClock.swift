/// Measures how long the peer has made us wait since its last sufficient progress. Times are in nanoseconds.
struct ProgressClock {
    private var waited: UInt64 = 0
    private var bytes: UInt64 = 0
    /// The start of the peer's turn; `.max` if it is not its turn.
    private var since = UInt64.max

    /// Starts the peer's turn.
    mutating func start(_ now: UInt64) { if since == .max { since = now } }

    /// Stops the clock, because we do not wait for the peer.
    mutating func stop(_ now: UInt64) {
        if since != .max { waited += now - since }
        since = .max
    }

    /// Counts bytes that moved. Once they are `enough`, the previous waiting time is reset.
    mutating func moved(_ count: Int, of enough: UInt64, _ now: UInt64) {
        bytes += UInt64(count)
        guard bytes >= enough else { return }
        bytes = 0
        waited = 0
        if since != .max { since = now }
    }

    /// The time at which the total waiting time reaches `limit`.
    func deadline(_ limit: UInt64) -> UInt64 {
        since == .max ? .max : since &+ (waited < limit ? limit - waited : 0)
    }
}
