/// How long the other side has let us wait since it last moved enough. Times are in nanoseconds.
struct ProgressClock {
    private var waited: UInt64 = 0
    private var bytes: UInt64 = 0
    /// Since when it is its turn; `.max` where it is not.
    private var since = UInt64.max

    /// It is the other side's turn.
    mutating func start(_ now: UInt64) { if since == .max { since = now } }

    /// It is not, for now.
    mutating func stop(_ now: UInt64) {
        if since != .max { waited += now - since }
        since = .max
    }

    /// So many bytes moved; once they are `enough` all waiting before is forgiven.
    mutating func moved(_ count: Int, of enough: UInt64, _ now: UInt64) {
        bytes += UInt64(count)
        guard bytes >= enough else { return }
        bytes = 0
        waited = 0
        if since != .max { since = now }
    }

    /// When it will have waited for `limit` in all.
    func deadline(_ limit: UInt64) -> UInt64 {
        since == .max ? .max : since &+ (waited < limit ? limit - waited : 0)
    }
}
