import Buckets
import System
import Wire

/// Counts the open upload sessions known to this gateway: the sessions and staged bytes of each caller.
///
/// A session counts with its declared length, or otherwise with the bytes received. The missing bytes of a declared length
/// count until ``reservationTime`` passes without an append, and again from the next one.
final class UploadLedger: Sendable {
    /// One open session.
    struct Entry: Sendable {
        var bucket: String
        var dialect: UploadDialect
        var owner: CallerLimits.Key
        /// ``Principal/identity`` of the creator; nil if anyone with the URL may continue the session.
        var creator: [UInt8]?
        /// The bytes that count.
        var bytes: UInt64
        /// Seconds since 1970.
        var expires: Int64
        /// The bytes that have arrived.
        var received: UInt64 = 0
        /// When the session began or the last append ended, in seconds since 1970.
        var movedAt = SystemClock.seconds()
        /// How many appends run.
        var appends = 0
        /// For an upload in parts.
        var parts: PartCount?
    }

    /// The bytes of an upload in parts. Only the parts that this gateway has received are known.
    struct PartCount {
        /// The declared length of the object; nil if there is none.
        var declared: UInt64?
        /// The sizes of the durable parts, by number.
        private var sizes: [Int: UInt64] = [:]
        private(set) var kept: UInt64 = 0
        /// The bytes of the parts in progress.
        private var coming: UInt64 = 0

        init(declared: UInt64?) { self.declared = declared }

        /// The bytes that count.
        var bytes: UInt64 { max(declared ?? 0, kept &+ coming) }

        mutating func begin(_ size: UInt64) { coming &+= size }

        mutating func end(_ number: Int, _ size: UInt64, isKept: Bool) {
            coming &-= min(size, coming)
            guard isKept else { return }
            kept = kept &- (sizes[number] ?? 0) &+ size
            sizes[number] = size
        }
    }

    /// How long the missing bytes of a declared length count after an append, in seconds.
    static let reservationTime: Int64 = 300

    /// The limits of open sessions and their bytes; 0 is no limit.
    struct Limits: Sendable {
        /// Of each caller.
        var sessions: Int
        /// Of each caller.
        var bytes: UInt64
        /// Of all sessions of the bucket.
        var bucketBytes: UInt64

        /// Of each caller in the bucket: half of ``bucketBytes``, unless callers have no limit.
        var callerShare: UInt64 { bytes == 0 ? 0 : bucketBytes - bucketBytes / 2 }
    }

    /// The limit that is exceeded.
    enum LimitExceeded: Error { case sessions, callerBytes, callerShare, bucketBytes }

    private struct Usage {
        var sessions = 0
        var bytes: UInt64 = 0
    }
    private struct Share: Hashable {
        var owner: CallerLimits.Key
        var bucket: BytewiseString
    }
    private struct State {
        private(set) var entries: [UploadSessionID: Entry] = [:]
        /// The sessions by the hour of their expiry, so that a sweep only visits the expired ones.
        private(set) var hours: [Int64: Set<UploadSessionID>] = [:]
        var owners: [CallerLimits.Key: Usage] = [:]
        var buckets: [BytewiseString: Usage] = [:]
        /// Bytes of each caller in each bucket; none is 0.
        private var shares: [Share: UInt64] = [:]
        private var lapsedAt: Int64 = 0

        /// Checks the limits for `more` additional bytes of the entry's caller. Before it refuses them, reservations lapse.
        mutating func check(_ more: UInt64, _ entry: Entry, _ limits: Limits, _ now: Int64)
            throws(LimitExceeded)
        {
            do throws(LimitExceeded) { try compare(more, entry, limits) } catch {
                // Each attempt visits all entries.
                guard lapsedAt < now else { throw error }
                lapse(now)
                try compare(more, entry, limits)
            }
        }

        private func compare(_ more: UInt64, _ entry: Entry, _ limits: Limits)
            throws(LimitExceeded)
        {
            let bucket = BytewiseString(entry.bucket)
            let share = Share(owner: entry.owner, bucket: bucket)
            func exceeds(_ used: UInt64, _ limit: UInt64) -> Bool {
                limit > 0 && (more > limit || used > limit - more)
            }
            if exceeds(owners[entry.owner]?.bytes ?? 0, limits.bytes) { throw .callerBytes }
            if exceeds(buckets[bucket]?.bytes ?? 0, limits.bucketBytes) { throw .bucketBytes }
            if exceeds(shares[share] ?? 0, limits.callerShare) { throw .callerShare }
        }

        /// Ends the reservations of sessions without an append for ``reservationTime``.
        mutating func lapse(_ now: Int64) {
            lapsedAt = now
            let idle = entries.filter { _, entry in
                entry.appends == 0 && entry.bytes > entry.received && entry.movedAt + reservationTime <= now
            }
            for (id, entry) in idle { resize(id, entry, entry.received) }
        }

        /// Counts an entry with other bytes.
        mutating func resize(_ id: UploadSessionID, _ entry: Entry, _ bytes: UInt64) {
            resize(id, entry, from: entry, bytes)
        }

        /// Replaces an entry by one with other bytes.
        mutating func resize(_ id: UploadSessionID, _ entry: Entry, from old: Entry, _ bytes: UInt64) {
            var entry = entry
            count(old, sessions: -1)
            entry.bytes = bytes
            entries[id] = entry
            count(entry, sessions: 1)
        }

        /// Changes what does not count of an entry.
        mutating func change(_ id: UploadSessionID, _ body: (inout Entry) -> Void) {
            if entries[id] != nil { body(&entries[id]!) }
        }

        mutating func put(_ id: UploadSessionID, _ entry: Entry) {
            entries[id] = entry
            hours[entry.expires / 3600, default: []].insert(id)
        }

        mutating func take(_ id: UploadSessionID) -> Entry? {
            guard let entry = entries.removeValue(forKey: id) else { return nil }
            let hour = entry.expires / 3600
            hours[hour]?.remove(id)
            if hours[hour]?.isEmpty == true { hours[hour] = nil }
            return entry
        }

        /// - Parameter sessions: 1 if the entry is added, -1 if it is removed.
        mutating func count(_ entry: Entry, sessions: Int) {
            let bucket = BytewiseString(entry.bucket)
            var usage = owners[entry.owner] ?? Usage()
            var all = buckets[bucket] ?? Usage()
            usage.sessions += sessions
            all.sessions += sessions
            if sessions > 0 {
                usage.bytes &+= entry.bytes
                all.bytes &+= entry.bytes
            } else {
                usage.bytes &-= entry.bytes
                all.bytes &-= entry.bytes
            }
            owners[entry.owner] = usage.sessions == 0 ? nil : usage
            let share = Share(owner: entry.owner, bucket: bucket)
            let bytes = shares[share] ?? 0
            let left = sessions > 0 ? bytes &+ entry.bytes : bytes &- entry.bytes
            shares[share] = left == 0 ? nil : left
            buckets[bucket] = all
        }
    }
    private let state = Lock(State())

    /// Reserves a session whose id is not known yet. ``add(_:_:)`` or ``giveBack(_:)`` must follow.
    /// - Throws: ``LimitExceeded``. Nothing is counted then.
    func reserve(_ entry: Entry, _ limits: Limits, now: Int64 = SystemClock.seconds())
        throws(LimitExceeded)
    {
        try state.withLock { (state) throws(LimitExceeded) in
            let open = state.owners[entry.owner]?.sessions ?? 0
            if limits.sessions > 0, open >= limits.sessions { throw .sessions }
            try state.check(entry.bytes, entry, limits, now)
            state.count(entry, sessions: 1)
        }
    }

    /// A reserved session was not begun.
    func giveBack(_ entry: Entry) { state.withLock { $0.count(entry, sessions: -1) } }

    /// A reserved session has begun.
    func add(_ id: UploadSessionID, _ entry: Entry) { state.withLock { $0.put(id, entry) } }

    /// Counts a session begun by another process, which has checked the limits.
    /// - Returns: Whether it was unknown here.
    func adopt(_ id: UploadSessionID, _ entry: Entry) -> Bool {
        state.withLock { state in
            guard state.entries[id] == nil else { return false }
            state.put(id, entry)
            state.count(entry, sessions: 1)
            return true
        }
    }

    /// The entry of a session; nil if it is unknown here.
    func entry(_ id: UploadSessionID) -> Entry? { state.withLock { $0.entries[id] } }

    /// Sets the staged bytes of a session. A decrease always succeeds.
    /// - Throws: ``LimitExceeded``. Nothing changes then.
    func set(
        _ id: UploadSessionID, bytes: UInt64, _ limits: Limits, now: Int64 = SystemClock.seconds()
    ) throws(LimitExceeded) {
        try state.withLock { (state) throws(LimitExceeded) in
            guard let entry = state.entries[id], bytes != entry.bytes else { return }
            if bytes > entry.bytes { try state.check(bytes - entry.bytes, entry, limits, now) }
            state.resize(id, entry, bytes)
        }
    }

    /// A part is about to be received. ``ended(_:part:size:isKept:now:)`` must follow.
    /// - Throws: ``LimitExceeded``. Nothing changes then.
    func begins(
        _ id: UploadSessionID, partOf size: UInt64, _ limits: Limits, now: Int64 = SystemClock.seconds()
    ) throws(LimitExceeded) {
        try state.withLock { (state) throws(LimitExceeded) in
            guard var entry = state.entries[id], var parts = entry.parts else { return }
            parts.begin(size)
            if parts.bytes > entry.bytes { try state.check(parts.bytes - entry.bytes, entry, limits, now) }
            entry.parts = parts
            entry.appends += 1
            // A reservation may have lapsed.
            state.resize(id, entry, from: state.entries[id]!, max(entry.bytes, parts.bytes))
        }
    }

    /// A part has ended.
    /// - Parameter isKept: Whether it is durable.
    func ended(
        _ id: UploadSessionID, part number: Int, size: UInt64, isKept: Bool, now: Int64 = SystemClock.seconds()
    ) {
        state.withLock { state in
            guard let before = state.entries[id], var parts = before.parts else { return }
            parts.end(number, size, isKept: isKept)
            var entry = before
            entry.parts = parts
            entry.appends = max(0, entry.appends - 1)
            entry.received = parts.kept
            entry.movedAt = now
            state.resize(id, entry, from: before, parts.bytes)
        }
    }

    /// An append begins. The session's reservation does not lapse until ``appended(_:received:now:)``.
    func appends(_ id: UploadSessionID) {
        state.withLock { $0.change(id) { $0.appends += 1 } }
    }

    /// An append has ended.
    /// - Parameter received: The bytes of the session that have arrived.
    func appended(_ id: UploadSessionID, received: UInt64, now: Int64 = SystemClock.seconds()) {
        state.withLock { state in
            state.change(id) { entry in
                // The entry may be a new one, of a session that was found again.
                entry.appends = max(0, entry.appends - 1)
                entry.received = received
                entry.movedAt = now
            }
        }
    }

    /// Ends the reservations of sessions without an append for ``reservationTime``.
    func lapse(_ now: Int64) { state.withLock { $0.lapse(now) } }

    /// A session has ended.
    /// - Returns: Its entry; nil if it was not open here.
    @discardableResult
    func remove(_ id: UploadSessionID) -> Entry? {
        state.withLock { state in
            guard let entry = state.take(id) else { return nil }
            state.count(entry, sessions: -1)
            return entry
        }
    }

    /// The sessions of a bucket that count the most bytes.
    /// - Parameter owner: nil for the sessions of all callers.
    func largest(of bucket: String, owner: CallerLimits.Key?, limit: Int) -> [UploadSessionID] {
        let found = state.withLock { state in
            state.entries.filter { _, entry in
                BytewiseString.areEqual(entry.bucket, bucket) && (owner == nil || entry.owner == owner)
            }.map { (id: $0.key, bytes: $0.value.bytes) }
        }
        return found.sorted { $0.bytes > $1.bytes }.prefix(limit).map(\.id)
    }

    /// Removes expired sessions of a bucket.
    /// - Parameters:
    ///   - now: Seconds since 1970.
    ///   - limit: The maximum number to remove. Call again if it is reached.
    func removeExpired(of bucket: String, _ now: Int64, limit: Int) -> [Entry] {
        let expired = state.withLock { state in
            var found: [UploadSessionID] = []
            for (hour, ids) in state.hours where hour <= now / 3600 {
                for id in ids where found.count < limit {
                    guard let entry = state.entries[id], entry.expires <= now,
                        BytewiseString.areEqual(entry.bucket, bucket)
                    else { continue }
                    found.append(id)
                }
            }
            return found
        }
        return expired.compactMap { remove($0) }
    }

    /// Open sessions and staged bytes of a bucket.
    func usage(of bucket: BytewiseString) -> (sessions: Int, bytes: UInt64) {
        state.withLock { state in
            let usage = state.buckets[bucket] ?? Usage()
            return (usage.sessions, usage.bytes)
        }
    }
}
